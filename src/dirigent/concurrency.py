"""What asyncio code of several rooms needs: waiting for several things, and values of one event loop.

`gather_or_cancel` leaves no task behind. `PerLoop` is for workers that are used in several event loops: every
`asyncio.run` makes a loop, and so does every thread that runs one. A connection or a lock works only in the loop it was
made in, so a worker that needs one has one for each loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


async def gather_or_cancel(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results in order. If one fails or the caller is cancelled, the others have ended before this raises.

    `asyncio.gather` alone would let the others run on. `asyncio.TaskGroup` raises a group of errors, where callers
    want the first error itself: its class decides what happens next.
    """
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


# ---- values of one event loop --------------------------------------------------------------------------------


class PerLoop(Generic[T]):
    """One value for each event loop. `make` makes it when the loop first asks for it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T:
        """Return the running loop's value."""
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            for other in list(self._values):
                if other.is_closed():
                    self._values.pop(other, None)  # another thread may remove it at the same time
            self._values[loop] = self._make()
        return self._values[loop]

    def pop(self) -> T | None:
        """Remove and return the running loop's value; None if the loop has none."""
        return self._values.pop(asyncio.get_running_loop(), None)
