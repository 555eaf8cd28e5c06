"""Tries: how many wrong keys an address may send before its guesses are no longer looked up.

Keys cannot be guessed, but looking guesses up costs work, and a log full of them hides what matters. A key that was
right before stays welcome from a blocked address, since many callers may share one (a proxy, an office). In memory
and bounded: with several servers each counts its own.
"""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

REMEMBERED = 10_000
"""Addresses, and right keys, that are kept in mind at most."""


class Tries:
    """Used from one event loop, so it needs no lock. `most` wrong keys may come at once, and as many in a minute."""

    def __init__(self, *, most: int = 100, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._wrong: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Address: the tries on its account, and as of when."""
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._trying: dict[tuple[str, bytes], int] = {}
        """Keys that are being looked up, and for how many requests."""

    def begin(self, address: str, key: str) -> float:
        """Take a try; else the seconds until there is one. It counts as wrong until `end` says otherwise, so that
        many at once are no way around. The same key many times at once is one try until it is known to be wrong:
        so a program begins that has just been given a key."""
        mark = _fingerprint(key)
        if mark in self._right:
            return 0.0
        address = _group(address)
        if (address, mark) not in self._trying:
            count = self._count(address)
            if count + 1 > self._most:
                return (count + 1 - self._most) * 60 / self._most
            self._set(address, count + 1)
        self._trying[address, mark] = self._trying.get((address, mark), 0) + 1
        return 0.0

    def end(self, address: str, key: str, *, right: bool | None) -> None:
        """How the try ended; None: nobody could say, and it counts for nothing."""
        mark, address = _fingerprint(key), _group(address)
        under_way = self._trying.pop((address, mark), 0)
        if under_way > 1:
            self._trying[address, mark] = under_way - 1
        if right is None:
            self._set(address, self._count(address) - (under_way == 1))
        elif not right:
            self._right.pop(mark, None)
            self._set(address, self._count(address) + (under_way > 1))  # one was counted when they began
        elif mark not in self._right:
            self._right[mark] = None
            _bound(self._right)
            self._set(address, self._count(address) - 1)

    def _count(self, address: str) -> float:
        count, at = self._wrong.get(address, (0.0, 0.0))
        return max(0.0, count - (self._clock() - at) * self._most / 60)

    def _set(self, address: str, count: float) -> None:
        self._wrong.pop(address, None)
        if count > 0:
            self._wrong[address] = (count, self._clock())
            _bound(self._wrong)


def _fingerprint(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def _group(address: str) -> str:
    """Whom tries are counted for. One customer holds a whole /64 of IPv6."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address


def _bound(kept: OrderedDict[Any, Any]) -> None:
    while len(kept) > REMEMBERED:
        kept.popitem(last=False)
