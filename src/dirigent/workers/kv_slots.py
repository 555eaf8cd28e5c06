"""Slots: the places of a local server, and the choice of one for each request.

A slot remembers the last prompt it read: a prompt with the same beginning costs only its end. The server itself would
give a request to any slot that has a tenth of its prompt, and a short question would then overwrite a planner's long
prefix. So this module chooses the slot. Requests also wait here: one that is cancelled while it waits was never sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import msgspec

from dirigent.errors import ConfigError

SHARED_CHARS = 256
"""A shorter common beginning does not decide the slot: reading it again takes half a second."""


class Slot(msgspec.Struct, frozen=True):
    """The content of one place of the server."""

    index: int
    adapter: int | None = None
    prompt: str = ""


class Slots:
    """The places of a server. Each serves one request at a time; requests wait in order."""

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
        """Hold a slot and yield its number. The slot remembers this prompt afterwards."""
        async with self._turn:
            slot = choose_slot(self._idle, adapter=adapter, prompt=prompt)
            self._idle.remove(slot)
            try:
                yield slot.index
            finally:
                self._idle.append(Slot(slot.index, adapter, prompt))

    def forget(self) -> None:
        """Mark all slots as empty, after a new server has started."""
        self._idle = [Slot(slot.index) for slot in self._idle]


def choose_slot(idle: Sequence[Slot], *, adapter: int | None, prompt: str) -> Slot:
    """Return the slot with the longest common beginning; if none has enough, the slot with the shortest prompt.

    A prompt that one adapter has read is of no use to another adapter: the server drops it.
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
