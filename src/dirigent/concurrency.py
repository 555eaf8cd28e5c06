"""Waiting for several things at once, without leaving a task behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

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
