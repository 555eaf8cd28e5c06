"""Slots: the places of a local server, and which of them a request should have.

A slot remembers the last prompt it read, so that a prompt with the same beginning costs only its end. Left
to itself the server gives a request to any slot that has a tenth of it, and a short question then wipes out
a planner's long prefix. So the choice is made here, and requests wait here too: one that is cancelled in
the queue was never sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import msgspec

from dirigent.errors import ConfigError

SHARED_CHARS = 256
"""A shorter common beginning is not worth a slot that remembers more: it is read again in half a second."""


class Slot(msgspec.Struct, frozen=True):
    """What one place of the server remembers."""

    index: int
    adapter: int | None = None
    prompt: str = ""


class Slots:
    """The places of a server, leased one request at a time, first come first served."""

    def __init__(self, count: int) -> None:
        if not 1 <= count <= 64:
            raise ConfigError(f"slots must be 1 to 64, not {count}")
        self._count = count
        self._turn = asyncio.Semaphore(count)
        self._idle = [Slot(index) for index in range(count)]

    def __len__(self) -> int:
        return self._count

    @contextlib.asynccontextmanager
    async def lease(self, adapter: int | None, prompt: str) -> AsyncIterator[int]:
        """The number of a slot that is ours until we leave; it will remember this prompt."""
        async with self._turn:
            slot = choose_slot(self._idle, adapter=adapter, prompt=prompt)
            self._idle.remove(slot)
            try:
                yield slot.index
            finally:
                self._idle.append(Slot(slot.index, adapter, prompt))

    def forget(self) -> None:
        """The server is new: it remembers nothing."""
        self._idle = [Slot(slot.index) for slot in self._idle]


def choose_slot(idle: Sequence[Slot], *, adapter: int | None, prompt: str) -> Slot:
    """The slot that has most of this prompt already; if none has much, the one with least to lose.

    What an adapter has read is of no use to another one: the server forgets it.
    """
    shared = {slot.index: _shared_chars(slot.prompt, prompt) if slot.adapter == adapter else 0 for slot in idle}
    best = max(idle, key=lambda slot: shared[slot.index])
    if shared[best.index] >= SHARED_CHARS:
        return best
    return min(idle, key=lambda slot: len(slot.prompt))


def _shared_chars(left: str, right: str) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
