"""Load: nothing is lost under a steady stream of requests, and a thousand open streams all end.

The generator is an open loop: requests are sent when they are due (seeded, as independent callers would come) and
never wait for earlier answers, and latency counts from when a request was due. Client, server and stub share the
cores of the machine. What is judged is that every request gets its right answer and that the journals agree; rates
and times are figures, since they say as much about the machine as about the server.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

from tests.torture.harness import Progress, Result, Row, Server, config, percentile, profile, worker
from tests.torture.journals import Client, Sent, right, settle
from tests.torture.upstream import Called, Upstream, marker_of, upstream

UPSTREAM_S = 0.02
"""What the stub takes for an answer."""
STREAMS = 1000
CHUNKS_PER_S = 20
OPENING = 0.15
"""The share of a stream's length within which all of them are opened."""
MAX_GROWTH_MIB = 200.0


async def sustained(count: int, seed: int, *, rate: float = 150.0) -> Result:
    """L1: one step, with a durable trace."""
    async with (
        upstream(delay_s=UPSTREAM_S) as up,
        Server.open(config(worker("a", up), profile("one"))) as server,
        Client.open(server) as client,
    ):
        return await _loaded("L1", server, up, client, count=count, seed=seed, rate=rate, model="one", calls=1)


async def planned(count: int, seed: int, *, rate: float = 40.0) -> Result:
    """L3: two steps side by side, a third that reads both."""
    pool = profile("three", planner="moa", planner_worker="c", workers=["a", "b", "c"], max_steps=3)
    async with (
        upstream(delay_s=UPSTREAM_S) as up,
        Server.open(config(worker("a", up), worker("b", up), worker("c", up), pool)) as server,
        Client.open(server) as client,
    ):
        return await _loaded("L3", server, up, client, count=count, seed=seed, rate=rate, model="three", calls=3)


async def streams(count: int, seed: int) -> Result:
    """L4: a thousand streams at once, each of so many seconds; `count` is streams times seconds."""
    open_streams = min(STREAMS, count)
    words = max(2, CHUNKS_PER_S * count // open_streams)
    async with (
        upstream(chunk_delay_s=1 / CHUNKS_PER_S) as up,
        Server.open(config(worker("a", up), profile("one"))) as server,
        Client.open(server) as client,
    ):
        await client.ask(marker_of(0), model="one", stream=True)
        await up.set(together=1 + open_streams)
        cpu_s = server.cpu_s()
        at_rest_mib, peak = server.rss_mib(), _Peak(server)
        progress, began = Progress("L4", open_streams), time.monotonic()

        async def one(number: int) -> Sent:
            await asyncio.sleep(number / open_streams * OPENING * words / CHUNKS_PER_S)
            sent = await client.ask(marker_of(number), model="one", stream=True, words=words)
            progress.step()
            return sent

        sents = await asyncio.gather(*(one(1 + number) for number in range(open_streams)))
        seconds = time.monotonic() - began
        peak_mib, cpu_s = await peak.stop(), server.cpu_s() - cpu_s
        faults = await settle(server, up, client)
        wrong = [sent for sent in sents if not right(sent, words=words)]
        faults += [f"{sent.marker} ended as {sent.end} {sent.status} {sent.code}" for sent in wrong[:5]]
        if peak_mib - at_rest_mib > MAX_GROWTH_MIB:
            faults.append(f"memory grew by {peak_mib - at_rest_mib:.0f} MiB, at most {MAX_GROWTH_MIB:.0f} are allowed")
        figures = {
            "chunks/s": round(open_streams * words / seconds),
            "at once": _at_once(await up.calls()),
            "server CPU us/chunk": round(cpu_s * 1e6 / (open_streams * words)),
            "growth MiB": round(peak_mib - at_rest_mib, 1),
        }
        return Result(open_streams - len(wrong), open_streams, tuple(faults), figures)


ROWS = (
    Row("L1", "150 req/s, one step, durable trace: every one answered right", 90_000, 9_000, sustained, paced=True),
    Row(
        "L3", "40 req/s, three steps with a parallel pair: every one answered right", 24_000, 2_400, planned, paced=True
    ),
    Row("L4", "1,000 open streams at 20 chunks/s all end; memory grows by at most 200 MiB", 60_000, 6_000, streams),
)


async def _loaded(
    name: str,
    server: Server,
    up: Upstream,
    client: Client,
    *,
    count: int,
    seed: int,
    rate: float,
    model: str,
    calls: int,
) -> Result:
    await client.ask(marker_of(0), model=model)  # the first request opens connections and imports
    await up.set(watch=server.store_url)
    client.journal.clear()
    progress, cpu_s = Progress(name, count), server.cpu_s()

    async def one(number: int, due_s: float) -> None:
        await client.ask(marker_of(number), model=model, due_s=due_s)
        progress.step()

    seconds = await open_loop(one, count=count, rate=rate, rng=random.Random(seed))
    sents, cpu_s = list(client.journal), server.cpu_s() - cpu_s
    faults = await settle(server, up, client)
    called = [call for call in await up.calls() if call.marker != marker_of(0)]
    if len(called) != calls * count:
        faults.append(f"{len(called)} calls at the stub for {count} requests of {calls} steps")
    faults += [f"{sent.marker} ended as {sent.end} {sent.status} {sent.code}" for sent in sents if not right(sent)][:5]
    return Result(
        sum(map(right, sents)),
        count,
        tuple(faults),
        _figures(sents, called, count / seconds) | {"server CPU ms": round(cpu_s * 1000 / count, 2)},
    )


async def open_loop(
    send: Callable[[int, float], Awaitable[None]], *, count: int, rate: float, rng: random.Random
) -> float:
    """Send request 1 to `count`, each when it is due, whatever became of those before; the seconds it all took."""
    began = due_s = time.monotonic()
    under_way: set[asyncio.Future[None]] = set()
    for number in range(1, count + 1):
        due_s += rng.expovariate(rate)
        if (wait_s := due_s - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)
        task = asyncio.ensure_future(send(number, due_s))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    while under_way:
        await asyncio.wait(under_way)
    return time.monotonic() - began


def _figures(sents: list[Sent], calls: list[Called], rate: float) -> dict[str, float | int | str]:
    """The overhead that the server itself reports, and the client's wait without the stub's part."""
    own = [sent.overhead_ms for sent in sents if sent.overhead_ms is not None]
    spans: dict[str, list[Called]] = defaultdict(list)
    for call in calls:
        spans[call.marker].append(call)
    added = [(sent.seconds - _busy_s(spans[sent.marker])) * 1000 for sent in sents]
    return {
        "req/s": round(rate, 1),
        "overhead p50 ms": round(percentile(own, 0.5), 1),
        "overhead p99 ms": round(percentile(own, 0.99), 1),
        "added p50 ms": round(percentile(added, 0.5), 1),
        "added p99 ms": round(percentile(added, 0.99), 1),
    }


def _busy_s(calls: list[Called]) -> float:
    """For how long at least one of these calls was at the stub."""
    busy_s, until = 0.0, 0.0
    for call in sorted(calls, key=lambda call: call.started_s):
        ended_s = call.ended_s or call.started_s
        busy_s += max(0.0, ended_s - max(until, call.started_s))
        until = max(until, ended_s)
    return busy_s


def _at_once(calls: list[Called]) -> int:
    """Most calls that were at the stub at the same moment."""
    moments = sorted([(c.started_s, 1) for c in calls] + [(c.ended_s or c.started_s, -1) for c in calls])
    most = now = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


class _Peak:
    """The most memory that the server held while this watched."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._most_mib = server.rss_mib()
        self._task = asyncio.ensure_future(self._watch())

    async def stop(self) -> float:
        self._task.cancel()
        await asyncio.wait([self._task])
        return max(self._most_mib, self._server.rss_mib())

    async def _watch(self) -> None:
        while True:
            self._most_mib = max(self._most_mib, self._server.rss_mib())
            await asyncio.sleep(0.2)
