"""A clock that a test moves by hand, for wrappers that take a clock as an argument."""

from __future__ import annotations

import asyncio


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)
