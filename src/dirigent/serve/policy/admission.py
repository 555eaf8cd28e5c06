"""Admission: how many requests a key may have under way, and how many a minute.

In memory and per process: with several servers over one store each counts its own, so a key's limits hold for
each server. Money is not counted here; the ledger does that across processes.

    match admission.enter(caller):
        case Refusal() as refusal: ...  # 429 with Retry-After: refusal.retry_after_s
        case place:
            with place: ...
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal

import msgspec

from dirigent.store.keys import Caller

BUSY_RETRY_S = 1.0
"""The end of a running request is unknown; a second is short against a request and long against a retry loop."""


class Refusal(msgspec.Struct, frozen=True):
    """Not now."""

    reason: Literal["rate", "concurrency", "busy"]
    """The key's requests per minute, the key's concurrency, or the server as a whole (503 rather than 429)."""
    retry_after_s: float
    said: str


class Admission:
    """Keeps count for every key it has seen. Used from one event loop, so it needs no lock."""

    def __init__(self, *, max_in_flight: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.in_flight = 0
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    def enter(self, caller: Caller) -> Place | Refusal:
        """Returns a place, to be left by `with` or `leave()`, or raises the reason why there is none. A refusal costs
        no allowance."""
        seen = self._seen.get(caller.key_id)
        if seen is None:
            seen = self._seen[caller.key_id] = _Seen(caller.requests_per_minute, now=self._clock())
        if self._max_in_flight is not None and self.in_flight >= self._max_in_flight:
            said = f"the server has {self.in_flight} requests under way and takes no more; try again"
            return Refusal("busy", BUSY_RETRY_S, said)
        if caller.concurrency is not None and seen.in_flight >= caller.concurrency:
            said = f"this key may have {caller.concurrency} requests under way; wait for one to end"
            return Refusal("concurrency", BUSY_RETRY_S, said)
        wait_s = seen.take(caller.requests_per_minute, now=self._clock())
        if wait_s > 0:
            said = f"this key may make {caller.requests_per_minute} requests a minute; try again in {wait_s:.1f} s"
            return Refusal("rate", wait_s, said)
        seen.in_flight += 1
        self.in_flight += 1
        return Place(self, seen)


class Place:
    """One request under way. Leaving twice counts once."""

    def __init__(self, admission: Admission, seen: _Seen) -> None:
        self._admission = admission
        self._seen: _Seen | None = seen

    def leave(self) -> None:
        if self._seen is not None:
            self._seen.in_flight -= 1
            self._admission.in_flight -= 1
            self._seen = None

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


class _Seen:
    """A key's requests under way, and its allowance: a bucket that a minute fills."""

    def __init__(self, per_minute: int | None, *, now: float) -> None:
        self.in_flight = 0
        self._allowance = float(per_minute or 0)
        self._filled_at = now

    def take(self, per_minute: int | None, *, now: float) -> float:
        """Take one from the allowance; else the seconds until there is one."""
        if per_minute is None:
            return 0.0
        gained = (now - self._filled_at) * per_minute / 60
        self._allowance = min(self._allowance + gained, float(per_minute))
        self._filled_at = now
        if self._allowance >= 1:
            self._allowance -= 1
            return 0.0
        return (1 - self._allowance) * 60 / per_minute
