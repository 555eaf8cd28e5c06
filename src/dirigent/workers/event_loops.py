"""Loops: workers outlive event loops, and what they hold of one must not.

Every `asyncio.run` is a loop of its own, and so is every thread's. A connection or a child process belongs to the loop
it was opened in: no other can use it, and once that loop is closed nobody can close it in order. So it is closed while
the loop still runs (`AtLoopEnd`). What only counts need not belong to a loop at all (`Places`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import AsyncGeneratorType
from typing import cast


class AtLoopEnd:
    """Has something closed before the running loop is: `asyncio.run`, `asyncio.Runner` and servers see to it.

    They close the async generators that are still open, and one of these waits here. Whoever closes the loop with a
    bare `loop.close()` closes first what was opened, as with all else in asyncio.
    """

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        self._waits = cast("AsyncGeneratorType[None, None]", _closing(close))
        with contextlib.suppress(StopIteration):  # begun, it is one that the loop closes
            self._waits.__anext__().send(None)

    async def close(self) -> None:
        """Now rather than then. It is done once."""
        if not self._waits.ag_running:  # else the loop ends just now, and does it
            await self._waits.aclose()


async def _closing(close: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await close()


class Places:
    """So many at a time, first come first served, whichever loop or thread they come from. `async with` takes one."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._guard = threading.RLock()  # a task that is thrown away gives its place back in the middle of anything

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *exc: object) -> None:
        self.give_back()

    async def take(self) -> None:
        with self._guard:
            if self._free:
                self._free -= 1
                return
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            with self._guard:
                waited = turn in self._waiting
                if waited:
                    self._waiting.remove(turn)
            if not waited:  # the place was ours already
                self.give_back()
            raise

    def give_back(self) -> None:
        with self._guard:
            while self._waiting:
                turn = self._waiting.popleft()
                with contextlib.suppress(RuntimeError):  # its loop is closed: whoever waited there is gone
                    turn.get_loop().call_soon_threadsafe(_wake, turn)
                    return
            self._free += 1


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
