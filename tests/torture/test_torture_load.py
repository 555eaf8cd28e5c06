"""A handful of cases of each load row, and the generator they rest on. The counts: `python -m tests.torture`."""

from __future__ import annotations

import asyncio
import itertools
import random
import time

import pytest

from tests.torture.rows_load import ROWS, open_loop

SMOKE = {"L1": 40, "L3": 12, "L4": 60}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_a_few_requests_of_each_load_row_are_all_answered_right(row):
    result = await row.run(SMOKE[row.name], 7)
    assert result.faults == ()
    assert result.done == result.wanted > 0


async def test_the_generator_sends_due_requests_while_earlier_ones_hang():
    sent, hanging = [], asyncio.Event()

    async def send(number: int, due_s: float) -> None:
        sent.append(number)
        if len(sent) == 5:
            hanging.set()
        await hanging.wait()  # no request is answered before the last one was sent

    async with asyncio.timeout(10):
        await open_loop(send, count=5, rate=1000.0, rng=random.Random(1))
    assert sent == [1, 2, 3, 4, 5]


async def test_the_same_seed_sends_at_the_same_moments_and_latency_counts_from_them():
    async def dues(seed: int) -> list[float]:
        found: list[float] = []

        async def send(number: int, due_s: float) -> None:
            found.append(due_s - began_s)
            assert due_s <= time.monotonic()

        began_s = time.monotonic()
        await open_loop(send, count=20, rate=2000.0, rng=random.Random(seed))
        return [b - a for a, b in itertools.pairwise(found)]

    assert await dues(1) == pytest.approx(await dues(1), abs=1e-6)
    assert await dues(1) != pytest.approx(await dues(2), abs=1e-6)
