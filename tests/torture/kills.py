"""F4: the server is killed at every point where something could be lost, and comes back.

A round: some requests under way (whole, streamed, with an Idempotency-Key, in the background), a kill -9 in the
midst of them, a start over the same store. Then every Idempotency-Key is sent again, twice, and every background
response is waited for. At the end the database is held against what clients were told:

    an answer that was given          has one trace, `done`, with that text
    a name that was sent again        gave one result: that of before, if there was one
    a run                             has one settled call at most; its lost ones are closed at their worst case
    a call at the stub                has its row, and no row is open
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.store.conftest import POSTGRESQL_FOLDERS, PostgreSQL
from tests.torture import kill_points
from tests.torture.harness import Progress, Result, Server, config, eventually, percentile, worker
from tests.torture.journals import Book, leaks, read_book
from tests.torture.machine import waited_s
from tests.torture.upstream import Upstream, answer_of, ask_of, marker_of, upstream

POINTS = ("after-reply", "during-stream", *kill_points.POINTS)
STORES = ("sqlite", "postgresql")
REQUESTS = 8
"""Under way when the server dies."""
READY_S = 3.0
"""For every start, from the creation of the process, without its wait for a processor."""
DIES_S = 20.0
END_S = 60.0
"""For a background response to end after a start."""


class Told(msgspec.Struct):
    """One request, and everything that its client was told of it, over all starts."""

    marker: str
    body: dict[str, Any]
    path: str = "/v1/chat/completions"
    name: str = ""
    """Its Idempotency-Key."""
    answers: list[tuple[bytes, str]] = []
    """Each whole answer, and the run it was of."""
    refusals: list[int] = []
    response_id: str = ""


async def f4(count: int, seed: int) -> Result:
    """`count` kills, spread over points and stores."""
    rng, starts, faults, done = random.Random(seed), list[Start](), [], 0
    stores = STORES if POSTGRESQL_FOLDERS else STORES[:1]
    progress = Progress("F4", count)
    for index, store in enumerate(stores):
        share = count // len(stores) + (index < count % len(stores))
        if not share:
            continue
        kills = [(POINTS[(i + 3 * index) % len(POINTS)], rng.randint(1, 6)) for i in range(share)]
        async with _place(store) as url, upstream(delay_s=0.02, chunk_delay_s=0.01) as up:
            row = _Kills(up, Restarted(url, up), rng, progress)
            try:
                done += await row.carry_out(kills)
                faults += [f"{store}: {fault}" for fault in await row.check()]
            finally:
                await row.close()
            starts += row.starts
    figures = {
        "stores": len(stores),
        "ready p50 s": round(percentile([start.clock_s for start in starts], 0.5), 2),
        "ready max s": round(max(start.clock_s for start in starts), 2),
        "without waiting for a processor p50 s": round(percentile([start.own_s for start in starts], 0.5), 2),
        "max s": round(max(start.own_s for start in starts), 2),
    }
    return Result(done, count, tuple(faults), figures)


@contextlib.asynccontextmanager
async def _place(store: str) -> AsyncIterator[str]:
    """Where the store is: a file of the server's own, or a PostgreSQL server of its own."""
    if store == "sqlite":
        yield ""
        return
    database = await asyncio.to_thread(PostgreSQL, POSTGRESQL_FOLDERS[-1])
    try:
        yield await asyncio.to_thread(database.new_schema)
    finally:
        await asyncio.to_thread(database.stop)


class Start(msgspec.Struct, frozen=True):
    """How long it took until requests could be served."""

    clock_s: float
    own_s: float
    """Without what the process waited for a processor, on a machine that has other things to do."""


class Restarted(Server):
    """A server that dies at kill points, and that is started in the same folder again."""

    command = ("-m", "tests.torture.kill_points")

    def __init__(self, store_url: str, up: Upstream) -> None:
        self._holder = tempfile.TemporaryDirectory(prefix="dirigent-torture-")
        text = config(worker("alpha", up), worker("good", up))
        super().__init__(Path(self._holder.name), text, store_url=store_url)

    async def start_timed(self) -> Start:
        """Start it; until it says that it is ready."""
        began = time.monotonic()
        await self.start()
        status, told = await self.get("/readyz")
        assert status == 200, f"the server listens and is not ready: {told}"
        clock_s = time.monotonic() - began
        return Start(clock_s, max(0.0, clock_s - waited_s(self.pid)))

    async def close(self) -> None:
        await self.kill()
        await self.hand_over()
        self._holder.cleanup()


class _Kills:
    """The rounds over one store."""

    def __init__(self, up: Upstream, server: Restarted, rng: random.Random, progress: Progress) -> None:
        self.up, self.server, self.rng, self.progress = up, server, rng, progress
        self.told: list[Told] = []
        self.starts: list[Start] = []
        self.faults: list[str] = []
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=END_S))

    async def carry_out(self, kills: list[tuple[str, int]]) -> int:
        """Rounds of these kills; how many died as they should and came back."""
        await self.server.prepare()
        await self.server.start()
        done = 0
        for point, number in kills:
            asked = self._requests()
            before = len(self.faults)
            await self._until_dead(point, number, asked)
            kill_points.disarm(self.server.folder)
            self.starts.append(await self.server.start_timed())
            if (took_s := self.starts[-1].own_s) > READY_S:
                self.faults.append(f"after {point} {number} the server was ready after {took_s:.1f} s")
            await asyncio.gather(*(self._again(one) for one in asked))
            done += len(self.faults) == before
            self.progress.step()
        return done

    async def close(self) -> None:
        await self.session.close()
        await self.server.close()

    def _requests(self) -> list[Told]:
        fresh = []
        for i in range(REQUESTS):
            marker = marker_of(len(self.told) + 1)
            said = ask_of(marker)
            if i == 0:
                body: dict[str, Any] = {"model": "worker/alpha", "input": said, "background": True}
                fresh.append(Told(marker, body, path="/v1/responses"))
            else:
                messages = [{"role": "user", "content": said}]
                body = {"model": "worker/alpha", "messages": messages, "stream": i % 2 == 0}
                fresh.append(Told(marker, body, name=f"name-{marker}" if i % 4 else ""))
            self.told.append(fresh[-1])
        return fresh

    async def _until_dead(self, point: str, number: int, asked: list[Told]) -> None:
        """Send all of them at once; the server dies on the way."""
        process = self.server.process
        assert process is not None
        if point in kill_points.POINTS:
            kill_points.arm(self.server.folder, point, number)
        seen = asyncio.Event()
        sending = [asyncio.ensure_future(self._send(one, point, seen)) for one in asked]
        if point not in kill_points.POINTS:
            await asyncio.wait_for(seen.wait(), DIES_S)
            await asyncio.sleep(self.rng.random() * 0.01)
            process.kill()
        try:
            await asyncio.wait_for(process.wait(), DIES_S)
        except TimeoutError:
            self.faults.append(f"the server did not come to {point} {number}")
            await self.server.kill()
        await asyncio.gather(*sending)

    async def _send(self, one: Told, point: str = "", seen: asyncio.Event | None = None) -> None:
        """Read the reply to its end. `seen` is set where the client has come to the point."""
        headers = {"Authorization": f"Bearer {self.server.key}"} | ({"Idempotency-Key": one.name} if one.name else {})
        try:
            async with self.session.post(self.server.url + one.path, json=one.body, headers=headers) as response:
                pieces = []
                async for piece in response.content.iter_any():
                    pieces.append(piece)
                    if seen is not None and point == "during-stream" and one.body.get("stream") and len(pieces) > 1:
                        seen.set()
        except (aiohttp.ClientError, OSError):
            return  # it was not acknowledged
        whole = b"".join(pieces)
        self.server.keep(response.headers, whole)
        if response.status != 200:
            one.refusals.append(response.status)
            return
        if one.body.get("background"):
            one.response_id = msgspec.json.decode(whole)["id"]
        elif not one.body.get("stream") or whole.rstrip().endswith(b"data: [DONE]"):
            one.answers.append((whole, response.headers["X-Dirigent-Trace-Id"]))
            if seen is not None and point == "after-reply":
                seen.set()
        else:
            self.faults.append(f"{one.marker}: a stream ended as if it were whole: {whole[-200:]!r}")

    async def _again(self, one: Told) -> None:
        """After a start: the same name twice, and the background response until it has ended."""
        if one.response_id:
            if not await eventually(lambda: self._completed(one), within_s=END_S):
                self.faults.append(f"{one.marker}: the background response {one.response_id} did not end")
            return
        if not one.name:
            return
        given = len(one.answers)
        for _ in range(2):
            await self._send(one)
        if len(one.answers) != given + 2 or len({answer for answer, _ in one.answers}) != 1:
            said = f"{len(one.answers) - given} answers, {len(set(one.answers))} different, refused {one.refusals}"
            self.faults.append(f"{one.marker}: its name was sent twice after the start: {said}")

    async def _completed(self, one: Told) -> bool:
        headers = {"Authorization": f"Bearer {self.server.key}"}
        async with self.session.get(f"{self.server.url}/v1/responses/{one.response_id}", headers=headers) as response:
            found = await response.json()
        if found["status"] == "completed" and answer_of(one.marker) not in str(found["output"]):
            self.faults.append(f"{one.marker}: the background response says {str(found['output'])[:200]}")
        return bool(found["status"] == "completed")

    async def check(self) -> list[str]:
        """The database against what clients were told."""
        await self.server.stop()
        book, calls = await read_book(self.server), await self.up.calls()
        rows = sum(len(of_run) for of_run in book.attempts.values())
        faults = [*self.faults, *_unkept(self.told, book), *_unlike_rows(book), *await leaks(self.server)]
        if len(calls) > rows:
            faults.append(f"{len(calls)} calls at the stub, and {rows} rows in the ledger")
        return faults[:12]


def _unkept(told: list[Told], book: Book) -> list[str]:
    """Answers that were given and are not on record as they were given."""
    faults = []
    for one in told:
        for answer, run_id in one.answers:
            trace = book.traces.get(run_id)
            if trace is None or trace.status != "done" or trace.answer != answer_of(one.marker):
                faults.append(f"{one.marker} was answered by {run_id}, which is {trace and trace.status}")
            if not one.body.get("stream") and answer_of(one.marker).encode() not in answer:
                faults.append(f"{one.marker} was answered wrongly: {answer[:200]!r}")
    return faults


def _unlike_rows(book: Book) -> list[str]:
    """Every plan here has one step: a run has one settled call, and beside it only what a kill lost."""
    faults, states = [], defaultdict(int)
    for run_id, rows in book.attempts.items():
        settled = [row for row in rows if row.state == "settled"]
        trace = book.traces.get(run_id)
        for row in rows:
            states[row.state] += 1
        if len(settled) > 1:
            faults.append(f"run {run_id} has {len(settled)} settled calls")
        if trace is not None and trace.status == "done" and len(settled) != 1:
            faults.append(f"run {run_id} is done with {len(settled)} settled calls")
    if states["open"]:
        faults.append(f"{states['open']} reservations are open after the last start")
    return faults
