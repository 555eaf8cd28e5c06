"""Several things at once, of which none is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def all_done(work: Iterable[Awaitable[T]]) -> list[T]:
    """What each of them gives, in order. Where one breaks, or the caller is cancelled, the others have ended before
    that is said: `asyncio.gather` alone would let them go on with nobody waiting."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
