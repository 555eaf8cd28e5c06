"""Workers that are gone: one of three (F2), or all of them (F3).

The row checks the breaker: it leaves a dead worker alone after ten failures, lets one call at a time try it
again when its rest is over, and everybody once that call was answered.
"""

from __future__ import annotations

import asyncio
import random
import time

from tests.torture.harness import (
    AT_ONCE,
    DEADLINE_S,
    LATE_S,
    Progress,
    Result,
    Server,
    config,
    percentile,
    profile,
    worker,
)
from tests.torture.journals import Client, Sent, read_book, right, settle
from tests.torture.upstream import Called, Upstream, marker_of, upstream

OPEN_S = 30.0
"""How long a breaker leaves a worker alone."""


async def one_dead(count: int, seed: int, *, recovery: bool = True) -> Result:
    """F2. `recovery` also waits until the breaker lets a call try again: half a minute."""
    rng = random.Random(seed)
    async with (
        upstream() as up,
        upstream(delay_s=0.2) as other,
        Server.open(_three(up, other)) as server,
        Client.open(server) as client,
    ):
        await other.go_down()
        opened = asyncio.ensure_future(_when_open(server))
        models = [f"from-{rng.choice('abc')}" for _ in range(count)]
        sents = await _some_at_once(client, models, Progress("F2", count))
        tries = sum(row.worker == "c" for rows in (await read_book(server)).attempts.values() for row in rows)
        figures: dict[str, float | int | str] = {"asked of the dead": tries}
        faults = [] if tries <= 10 + AT_ONCE else [f"{tries} calls to the dead worker: its breaker did not open"]
        if recovery:
            faults += await _recovers(client, other, await opened, first=count + 1, figures=figures)
        opened.cancel()
        faults += await settle(server, _Both(up, other), client)
        answered = sum(map(right, sents))
        done = count if answered >= count - count // 1000 else answered  # one in a thousand may be told to come again
        return Result(done, count, tuple(faults), {"answered": answered} | figures)


async def all_dead(count: int, seed: int) -> Result:
    """F3."""
    rng = random.Random(seed)
    async with upstream() as up, Server.open(_three(up, up)) as server, Client.open(server) as client:
        await up.go_down()
        before = await _some_at_once(client, [f"from-{name}" for name in "abc" * 12], Progress("F3", 36))
        states = [await server.breaker(name) for name in "abc"]
        faults = [] if states == ["open"] * 3 else [f"after {len(before)} failures the breakers are {states}"]
        models = [f"from-{rng.choice('abc')}" for _ in range(count)]
        sents = await _some_at_once(client, models, Progress("F3", count), first=100)
        told = [sent.status == 503 and sent.code == "worker_failed" and bool(sent.retry_after) for sent in sents]
        slowest_s = max(sent.seconds for sent in sents)
        tries = sum(len(rows) for rows in (await read_book(server)).attempts.values())
        if slowest_s > 1.0 + LATE_S:
            faults.append(f"the slowest was answered after {slowest_s:.1f} s")
        if tries > 1.1 * (count + len(before)):
            faults.append(f"{tries} tries for {count + len(before)} requests")
        faults += await settle(server, up, client)
        p99_ms = round(percentile([sent.seconds for sent in sents], 0.99) * 1000, 1)
        return Result(sum(told), count, tuple(faults), {"tries in all": tries, "answered after p99 ms": p99_ms})


def _three(up: Upstream, other: Upstream) -> str:
    """Three workers, the third at an address of its own; a profile for each that begins there."""
    pool = [worker("a", up), worker("b", up), worker("c", other)]
    first = 'default_profile = "from-a"\n'
    return config(
        first, *pool, *(profile(f"from-{name}", planner_worker=name, deadline_s=DEADLINE_S) for name in "abc")
    )


async def _when_open(server: Server) -> float:
    while True:
        if await server.breaker("c") == "open":
            return time.monotonic()
        await asyncio.sleep(0.02)


async def _some_at_once(client: Client, models: list[str], progress: Progress, *, first: int = 1) -> list[Sent]:
    places = asyncio.Semaphore(AT_ONCE)

    async def ask(number: int, model: str) -> Sent:
        async with places:
            sent = await client.ask(marker_of(number), model=model, within_s=DEADLINE_S + LATE_S)
            progress.step()
            return sent

    return list(await asyncio.gather(*(ask(first + i, model) for i, model in enumerate(models))))


async def _recovers(
    client: Client, other: Upstream, opened_s: float, *, first: int, figures: dict[str, float | int | str]
) -> list[str]:
    """The worker is back: one call at a time finds that out, and then it is asked again."""
    await other.come_up()
    await asyncio.sleep(max(0.0, opened_s + OPEN_S - 1.0 - time.monotonic()))
    asking, number = [], first
    while time.monotonic() < opened_s + OPEN_S + 1.0 + LATE_S:
        asking.append(asyncio.ensure_future(client.ask(marker_of(number), model="from-c")))
        number += 1
        await asyncio.sleep(0.1)
    sents = await asyncio.gather(*asking)
    faults = [f"{sent.marker} was not answered: {sent.status} {sent.code}" for sent in sents if not right(sent)]
    calls = sorted(await other.calls(), key=lambda call: call.started_s)
    if not calls:
        return [*faults, f"the worker was back and got no call within {OPEN_S + 1.0 + LATE_S:g} s"]
    closed_s = calls[0].ended_s or 0.0
    figures["closed after s"] = round(closed_s - opened_s, 1)
    if early := [call for call in calls[1:] if call.started_s < closed_s]:
        faults.append(f"{1 + len(early)} calls probed at once")
    return faults


class _Both:
    """Two stubs as one."""

    def __init__(self, up: Upstream, other: Upstream) -> None:
        self._up, self._other = up, other

    async def go_down(self) -> None:
        await self._up.go_down()
        await self._other.go_down()

    async def calls(self) -> list[Called]:
        return [*await self._up.calls(), *await self._other.calls()]

    async def unwritten(self) -> tuple[int, int]:
        return await self._up.unwritten()
