"""Faults: workers that fail in every way, workers that are gone, clients that leave, a server told to stop.

    F1   fourteen ways for a worker to fail, each as a passing fault, with a substitute, and without one
    F2   one worker of three is dead: nearly everything is answered, and it is left alone until it is back
    F3   all workers are dead: every caller gets an error at once, and dead workers are not asked
    F9   the client leaves at a seeded moment or byte: the workers' calls are given up, and it is kept as cancelled
    F12  the server gets SIGTERM under load: it answers for one more second, and every request it has begun

Every request ends as its right answer or as an error that `docs/server.md` lists. Time-outs are shorter than the
defaults, so that a row takes minutes rather than hours; the paths are the same. F2 and F3: `dead_workers.py`.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict

import msgspec

from dirigent.serve.http.server import LAST_REQUESTS_S
from tests.stub_provider import FAULTS, WIRES, WireName
from tests.torture.dead_workers import all_dead, one_dead
from tests.torture.harness import AT_ONCE, DEADLINE_S, LATE_S, Progress, Result, Row, Server, config, profile, worker
from tests.torture.journals import Book, Client, Sent, check, left_over, marker_in, read_book, right, settle
from tests.torture.upstream import Called, Upstream, ask_of, marker_of, upstream

DOCUMENTED = {(503, "worker_failed"), (504, "deadline"), (502, "answer_cut"), (502, "no_plan")}
"""What a request whose workers failed may be told; in a stream that has begun, the same codes under status 200."""
CODES = {code for _, code in DOCUMENTED}
MID_ANSWER = ("mid-stream-stall", "truncated-sse", "reset-mid-stream")
"""In a stream these come after its first words."""
SHORT = "{ connect_s = 0.5, first_byte_s = 0.8, chunk_s = 0.8, total_s = 2.0 }"


# ---- F1 ---------------------------------------------------------------------------------------------------


class Case(msgspec.Struct, frozen=True):
    """One request of F1. It has a worker of its own, so that no breaker hides the fault from the next request."""

    number: int
    mode: str
    shape: str
    """`passing`: the first call fails. `replaced`: all calls fail, another worker helps. `alone`: there is no other."""
    stream: bool
    wire: WireName

    @property
    def worker(self) -> str:
        return f"w{self.number}"

    @property
    def answerable(self) -> bool:
        """A second try or another worker can help: nothing of a broken answer has gone out."""
        return self.shape != "alone" and not (self.stream and self.mode in MID_ANSWER)

    @property
    def faults(self) -> tuple[str, ...]:
        return (self.mode, "ok") if self.shape == "passing" else (self.mode,)


BATCH = 25 * len(FAULTS)
"""Cases of one server: each has a worker of its own."""


async def worker_faults(count: int, seed: int) -> Result:
    """F1."""
    cases = _cases(count, random.Random(seed))
    progress, done, faults = Progress("F1", count), 0, []
    ended: Counter[str] = Counter()
    for start in range(0, count, BATCH):
        async with upstream(byte_delay_s=0.25) as up:
            batch = cases[start : start + BATCH]
            async with Server.open(_pool_of(batch, up)) as server, Client.open(server) as client:
                sents = await _asked(client, batch, progress)
                wrong = [said for case, sent in zip(batch, sents, strict=True) if (said := _wrong(case, sent))]
                ended.update(sent.end for sent in sents)
                done += len(batch) - len(wrong)
                faults += wrong[:5] + await settle(server, up, client)
    figures = {
        "answered": ended["answer"],
        "of answerable": sum(case.answerable for case in cases),
        "documented errors": ended["error"],
        "modes": len({case.mode.removesuffix("-retry-after") for case in cases}),
    }
    return Result(done, count, tuple(faults), figures)


def _cases(count: int, rng: random.Random) -> list[Case]:
    """Every mode as often, in every shape, whole and streamed, on every wire; in a seeded order."""
    cases = []
    for i in range(count):
        mode, turn = FAULTS[i % len(FAULTS)], i // len(FAULTS)
        if mode == "429" and turn % 2:
            mode = "429-retry-after"
        shape = ("passing", "replaced", "alone")[turn % 3]
        cases.append(Case(i + 1, mode, shape, bool(turn // 3 % 2), WIRES[turn // 6 % 3]))
    rng.shuffle(cases)
    return cases


def _pool_of(cases: list[Case], up: Upstream) -> str:
    def one(case: Case) -> str:
        dead = case.mode if case.mode.startswith("connect-") and case.shape != "passing" else ""
        return worker(case.worker, kind=case.wire, url=up.url(case.wire, fault=dead), timeout=SHORT)

    good = worker("good", up, timeout="{ first_byte_s = 10.0 }")
    return config(*map(one, cases), good, profile("one", deadline_s=DEADLINE_S))


async def _asked(client: Client, cases: list[Case], progress: Progress) -> list[Sent]:
    places = asyncio.Semaphore(AT_ONCE)

    async def ask(case: Case) -> Sent:
        allowed = [case.worker, "good"] if case.shape == "replaced" else [case.worker]
        async with places:
            sent = await client.ask(
                marker_of(case.number),
                model="one",
                stream=case.stream,
                faults=case.faults,
                within_s=DEADLINE_S + LATE_S,
                dirigent={"pool": {"allow": allowed}},
            )
            progress.step()
            return sent

    return list(await asyncio.gather(*map(ask, cases)))


def _wrong(case: Case, sent: Sent) -> str:
    """What is wrong with how it ended; nothing, as a rule."""
    what = f"{case.mode}, {case.shape}, {'streamed' if case.stream else 'whole'}, {case.wire}: {sent.marker}"
    if sent.end == "answer":
        if not right(sent):
            return f"{what} got {sent.text[:60]!r}"
        return f"{what} got an answer though no worker gave one" if case.shape == "alone" else ""
    return "" if _documented(sent) else f"{what} ended as {sent.end} {sent.status} {sent.code}"


def _documented(sent: Sent) -> bool:
    if sent.end != "error":
        return False
    if sent.status == 200:  # in a stream that had begun
        return sent.code in CODES
    return (sent.status, sent.code) in DOCUMENTED and (sent.status != 503 or bool(sent.retry_after))


# ---- F9 ---------------------------------------------------------------------------------------------------


class Left(msgspec.Struct, frozen=True):
    """A client that went away."""

    marker: str
    at_s: float
    read_bytes: int


WORDS = 80
"""Of an answer in F9: with 20 ms for each, and 0.6 s before the first, longer than any client stays."""


async def clients_leave(count: int, seed: int) -> Result:
    """F9."""
    rng, progress = random.Random(seed), Progress("F9", count)
    pool = profile("three", planner="moa", planner_worker="c", workers=["a", "b", "c"], max_steps=3)
    async with (
        upstream(delay_s=0.6, chunk_delay_s=0.02) as up,
        Server.open(config(worker("a", up), worker("b", up), worker("c", up), pool)) as server,
        Client.open(server) as client,
    ):
        places = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, draw: random.Random) -> Left:
            async with places:
                left = await _leaves(server, marker_of(number), draw)
                progress.step()
                return left

        lefts = await asyncio.gather(*(one(i, random.Random(rng.random())) for i in range(1, count + 1)))
        await asyncio.sleep(1.0)
        faults = await left_over(server, up, client)
        faults += [f"the server ended with {status}"] if (status := await server.stop()) else []
        wrong, abort_ms = _stayed(lefts, await up.calls(), await read_book(server))
        faults += wrong[:5] + await check(server, up, client)
        read = sum(left.read_bytes > 0 for left in lefts)
        figures = {"aborts seen within ms": round(max(abort_ms, default=0.0)), "left mid-answer": read}
        return Result(count - len(wrong), count, tuple(faults), figures)


async def _leaves(server: Server, marker: str, draw: random.Random) -> Left:
    """Ask, and hang up after a while or after some bytes of the answer."""
    after_bytes = draw.randrange(1, 4000) if draw.random() < 0.5 else 0
    body = {"model": "three", "messages": [{"role": "user", "content": ask_of(marker, words=WORDS)}]}
    sent = json.dumps(body | {"stream": bool(after_bytes) or draw.random() < 0.5}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
    )
    host, _, port = server.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + sent)
    await writer.drain()
    read = 0
    if after_bytes:
        while read < after_bytes and (piece := await reader.read(after_bytes - read)):
            read += len(piece)
            server.keep("", piece)
    else:
        await asyncio.sleep(draw.uniform(0.02, 1.1))
    at_s = time.monotonic()
    writer.transport.abort()
    return Left(marker, at_s, read)


def _stayed(lefts: list[Left], calls: list[Called], book: Book) -> tuple[list[str], list[float]]:
    """What went on after its client had left; and how long the stub waited for each abort, in ms."""
    by_marker: dict[str, list[Called]] = defaultdict(list)
    for call in calls:
        by_marker[call.marker].append(call)
    traces = defaultdict(list)
    for trace in book.traces.values():
        traces[marker_in(trace)].append(trace.status)
    wrong, abort_ms = [], []
    for left in lefts:
        made = by_marker[left.marker]
        late = [call for call in made if (call.ended_s or float("inf")) > left.at_s + 1.0 + LATE_S * call.aborted]
        new = [call for call in made if call.started_s > left.at_s + 1.0]
        abort_ms += [(call.ended_s - left.at_s) * 1000 for call in made if call.aborted and call.ended_s]
        kept = traces[left.marker]
        if late or new or kept != (["cancelled"] if made else kept[:1]):
            wrong.append(f"{left.marker}: {len(late)} calls went on, {len(new)} began, its traces are {kept}")
    return wrong, abort_ms


# ---- F12 --------------------------------------------------------------------------------------------------


IN_TIME_S = 0.25
"""A request that is due so long before the end of listening reaches the server in time, also from a busy client."""
NOT_TAKEN = {"ClientConnectorError": "refused"}


async def told_to_stop(count: int, seed: int) -> Result:
    """F12: so many stops of one server, each under load, each followed by a start."""
    rng, progress = random.Random(seed), Progress("F12", count)
    done, faults, ended = 0, [], Counter[str]()
    async with (
        upstream(delay_s=0.2, chunk_delay_s=0.03) as up,
        Server.open(config(worker("a", up), profile("one"), serve={"grace_s": 20.0})) as server,
        Client.open(server, keep_alive=False) as client,
    ):
        for stop in range(count):
            if stop:
                await server.start()
            asked, signalled_s = await _stopped_under_load(server, client, first=1 + stop * 1000, rng=rng)
            begun = {call.marker for call in await up.calls()}
            in_time_s = signalled_s + LAST_REQUESTS_S - IN_TIME_S
            owed = [one for one in asked if one.marker in begun or one.due_s < in_time_s]
            wrong = [one for one in owed if not right(one, words=20)]
            status = await server.stop()
            faults += [f"{one.marker}, in time, ended as {one.end} {one.status} {one.code}" for one in wrong[:3]]
            faults += [f"stop {stop + 1} ended with {status}"] if status else []
            done += not wrong and status == 0
            ended.update("answered" if right(one, words=20) else NOT_TAKEN.get(one.code, "reset") for one in asked)
            progress.step()
        await client.session.close()
        faults += await check(server, up, client)
    return Result(done, count, tuple(faults), dict(ended))


async def _stopped_under_load(
    server: Server, client: Client, *, first: int, rng: random.Random
) -> tuple[list[Sent], float]:
    """Requests come at 40 a second, before and after the signal: all of them once they have ended, and its moment."""
    stop_at_s = time.monotonic() + rng.uniform(0.3, 1.2)
    asking: list[asyncio.Future[Sent]] = []
    stopping: asyncio.Future[int] | None = None
    signalled_s = 0.0
    while time.monotonic() < stop_at_s + LAST_REQUESTS_S + 0.3:
        if stopping is None and time.monotonic() >= stop_at_s:
            signalled_s, stopping = time.monotonic(), asyncio.ensure_future(server.stop())
        number = first + len(asking)
        ask = client.ask(marker_of(number), model="one", stream=rng.random() < 0.5, words=20)
        asking.append(asyncio.ensure_future(ask))
        await asyncio.sleep(rng.expovariate(40.0))
    sents = list(await asyncio.gather(*asking))
    assert stopping is not None
    await stopping
    return sents, signalled_s


ROWS = (
    Row("F1", "14 fault modes: a right answer or a documented error, in time", 7_000, 350, worker_faults),
    Row(
        "F2",
        "one worker of three dead: 999 of 1,000 answered; it is left alone, then found again",
        1_000,
        100,
        one_dead,
        waits=True,
    ),
    Row("F3", "all workers dead: every caller gets 503 at once, tries <= 1.1 x requests", 1_000, 100, all_dead),
    Row(
        "F9", "client leaves: the stub sees it within 1 s, nothing begins, kept as cancelled", 1_000, 60, clients_leave
    ),
    Row("F12", "SIGTERM under load: every request that was begun is answered", 50, 3, told_to_stop),
)
