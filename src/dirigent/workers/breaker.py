"""Breaker: an endpoint that keeps failing is not asked for a while.

A closed breaker passes calls on and counts them. When half of at least ten calls within 30 s failed, it opens and
refuses every call at once for 30 s. Then it lets one call through as a probe: its outcome closes the breaker or opens
it again. Only faults of the infrastructure count: an endpoint that answers "wrong key" or "bad request" is up.
Cancelled calls, calls that a ledger refused and calls whose own deadline passed say nothing about the endpoint: they
are not counted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from dirigent.errors import RETRYABLE, WorkerError
from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.workers.worker import Worker, Wrapper

State = Literal["closed", "open", "half-open"]


class Breaker(Wrapper):
    """Refuses calls to a worker that keeps failing, with `WorkerError(fault="open")`."""

    def __init__(
        self,
        worker: Worker,
        *,
        failing_share: float = 0.5,
        least_calls: int = 10,
        window_s: float = 30.0,
        open_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(worker)
        self._failing_share = failing_share
        self._least_calls = least_calls
        self._window_s = window_s
        self._open_s = open_s
        self._clock = clock
        self._outcomes: deque[tuple[float, bool]] = deque()
        """For each call of the window: the time of its end, and whether it failed."""
        self._failures = 0
        self._opened_at: float | None = None
        self._why = ""
        self._probing = False

    @property
    def state(self) -> State:
        if self._opened_at is None:
            return "closed"
        return "open" if self._rest_s() > 0 else "half-open"

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        probe = self._admit()
        failed: bool | None = None
        try:
            reply = await self.worker.ask(request, observe=observe)
            failed = False
        except WorkerError as error:
            past_deadline = request.deadline is not None and self._clock() >= request.deadline
            if not (error.fault == "timeout" and past_deadline):
                failed = error.fault in RETRYABLE
            raise
        finally:
            if probe:
                self._judge_probe(failed)
            elif failed is not None:
                self._count(failed)
        return reply

    def _admit(self) -> bool:
        """Let a call through and return whether it is the probe. Refuse it while the breaker is open."""
        if self._opened_at is None:
            return False
        if self._rest_s() > 0 or self._probing:
            until = f"asked again in {self._rest_s():.0f} s" if self._rest_s() > 0 else "being probed now"
            raise WorkerError(
                f"{self.info.name} was not asked: {self._why}; it is {until}",
                worker=self.info.name,
                fault="open",
                retry_after_s=self._rest_s(),
            )
        self._probing = True
        return True

    def _judge_probe(self, failed: bool | None) -> None:
        self._probing = False
        if failed:
            self._open("the probe failed as well")
        elif failed is False:
            self._opened_at = None
            self._forget()

    def _count(self, failed: bool) -> None:
        if self._opened_at is not None:
            return  # the call began before the breaker opened
        now = self._clock()
        self._outcomes.append((now, failed))
        self._failures += failed
        while self._outcomes[0][0] < now - self._window_s:
            self._failures -= self._outcomes.popleft()[1]
        calls = len(self._outcomes)
        if failed and calls >= self._least_calls and self._failures >= self._failing_share * calls:
            self._open(f"{self._failures} of its last {calls} calls failed")

    def _open(self, why: str) -> None:
        self._opened_at = self._clock()
        self._why = why
        self._forget()

    def _forget(self) -> None:
        self._outcomes.clear()
        self._failures = 0

    def _rest_s(self) -> float:
        """Return the seconds until the breaker lets a probe through."""
        if self._opened_at is None:
            return 0.0
        return max(0.0, self._opened_at + self._open_s - self._clock())
