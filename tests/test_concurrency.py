"""Several things at once: all results in order, and nothing goes on where one of them breaks."""

from __future__ import annotations

import asyncio

import pytest

from dirigent.concurrency import gather_or_cancel


class Work:
    """What was begun and what has ended."""

    def __init__(self) -> None:
        self.under_way = 0

    async def forever(self) -> None:
        self.under_way += 1
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.02)  # an end takes a while too
            self.under_way -= 1

    async def breaks(self) -> None:
        await asyncio.sleep(0.01)
        raise ValueError("broke")


async def test_results_come_in_the_order_of_the_work() -> None:
    async def after(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    assert await gather_or_cancel(after(seconds) for seconds in (0.02, 0.0, 0.01)) == [0.02, 0.0, 0.01]
    assert await gather_or_cancel([]) == []


async def test_if_one_breaks_the_others_have_ended_before_it_raises() -> None:
    work = Work()
    with pytest.raises(ValueError, match="broke"):
        await gather_or_cancel([work.forever(), work.breaks(), work.forever()])
    assert work.under_way == 0


async def test_a_cancelled_caller_leaves_none_behind() -> None:
    work = Work()
    waiting = asyncio.ensure_future(gather_or_cancel([work.forever(), work.forever()]))
    await asyncio.sleep(0.01)
    assert work.under_way == 2
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.under_way == 0
