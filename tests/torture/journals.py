"""Three journals of the same requests, and the checker that compares them.

The client records its requests and replies (`Client`), the stub its requests (`upstream.py`), the
server its database. `check` compares them:

    a  every answer has exactly one trace, `done`, with the same text
    b  every call at the stub has exactly one row in the ledger
    c  the ledger is the sum of what the stub said it used, to the billionth of a dollar
    d  no reservation is left open
    e  no run, socket or child process is left (`settle`, while the server still lives)
    f  no secret is in the database, the log or a reply

A call that never arrived (no server listened, or it was given up before) has a row and no entry at the stub; the
trace has to say so. An answer that was given up before its end is charged by estimate: as the trace has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, Protocol

import aiohttp
import msgspec
from sqlalchemy import select

from dirigent.messages import Usage
from dirigent.run.trace import Trace
from dirigent.store import Store
from dirigent.store.ledger import to_nusd
from dirigent.store.tables import attempts
from dirigent.workers.worker import Price
from tests.torture.evidence import found_in, values_of
from tests.torture.harness import Server, eventually
from tests.torture.upstream import MARKER, OUTPUT_WORDS, Called, answer_of, ask_of

MOST_FAULTS = 12
"""Told of a row; more of the same say nothing new."""
LEFT_OVER_S = 10.0
"""For sockets and runs to be gone after the last request."""

End = Literal["answer", "error", "cut", "lost"]
"""`answer`: whole, 200. `error`: a status or an error event, in OpenAI's shape. `cut`: a 200 that ended with
neither. `lost`: no reply, or one that broke off on the wire."""


class Sent(msgspec.Struct, frozen=True):
    """One request as the client saw it. Times are `time.monotonic`."""

    marker: str
    due_s: float
    """When it was to be sent: what latency counts from, so that a slow server cannot hide behind a slow client."""
    ended_s: float
    end: End
    status: int = 0
    text: str = ""
    code: str = ""
    """Of the error."""
    trace_id: str = ""
    overhead_ms: float | None = None
    retry_after: str = ""
    leaked: bool = False
    """A secret was in the reply."""

    @property
    def seconds(self) -> float:
        return self.ended_s - self.due_s


class Client:
    """Sends requests and writes every one of them down."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session
        self.journal: list[Sent] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, server: Server, *, keep_alive: bool = True) -> AsyncIterator[Client]:
        # The server hangs up after 15 s of silence: a client that waits as long may send into a closed connection.
        kept: dict[str, Any] = {"keepalive_timeout": 10} if keep_alive else {"force_close": True}
        connector = aiohttp.TCPConnector(limit=0, **kept)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            yield cls(server, session)

    async def ask(
        self,
        marker: str,
        *,
        model: str,
        stream: bool = False,
        faults: tuple[str, ...] = (),
        words: int = OUTPUT_WORDS,
        due_s: float | None = None,
        within_s: float = 600.0,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        **body: Any,
    ) -> Sent:
        """`POST /v1/chat/completions`, read to its end. Never raises for what the server does."""
        due_s = time.monotonic() if due_s is None else due_s
        said = [{"role": "user", "content": ask_of(marker, faults=faults, words=words)}]
        whole = {"model": model, "messages": said, "stream": stream} | body
        signed = {"Authorization": f"Bearer {self.server.key if key is None else key}"} | (headers or {})
        try:
            async with asyncio.timeout(within_s):
                sent = await self._sent(marker, whole, signed, due_s)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            sent = Sent(marker, due_s, time.monotonic(), "lost", code=type(error).__name__)
        self.journal.append(sent)
        return sent

    async def _sent(self, marker: str, body: dict[str, Any], headers: dict[str, str], due_s: float) -> Sent:
        url = self.server.url + "/v1/chat/completions"
        async with self.session.post(url, json=body, headers=headers) as response:
            raw = await response.read()
        self.server.keep(response.headers, raw)
        read = _streamed if response.content_type == "text/event-stream" else _read_whole
        try:
            end, text, code = read(response.status, raw.decode())
        except (ValueError, LookupError, TypeError):
            end, text, code = "cut", "", "unreadable"
        overhead = response.headers.get("X-Dirigent-Overhead-Ms")
        return Sent(
            marker,
            due_s,
            time.monotonic(),
            end,
            status=response.status,
            text=text,
            code=code,
            trace_id=response.headers.get("X-Dirigent-Trace-Id", ""),
            overhead_ms=float(overhead) if overhead else None,
            retry_after=response.headers.get("Retry-After", ""),
            leaked=any(secret.encode() in raw for secret in self.server.secrets),
        )


def _read_whole(status: int, text: str) -> tuple[End, str, str]:
    body = json.loads(text)
    if status != 200:
        return "error", "", body["error"]["code"] or ""
    return "answer", body["choices"][0]["message"]["content"], ""


def _streamed(status: int, text: str) -> tuple[End, str, str]:
    datas = [frame[6:] for frame in text.split("\n\n") if frame.startswith("data: ")]
    done = datas[-1:] == ["[DONE]"]
    events = [json.loads(data) for data in datas if data != "[DONE]"]
    said = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event.get("choices"))
    codes = [event["error"]["code"] or "" for event in events if "error" in event]
    if codes:
        return ("cut" if done else "error"), said, codes[-1]
    return ("answer" if done and status == 200 else "cut"), said, ""


# ---- the checker ------------------------------------------------------------------------------------------


class AttemptRow(msgspec.Struct, frozen=True):
    run_id: str
    worker: str
    state: str
    cost_nusd: int
    output_tokens: int


class Book(msgspec.Struct, frozen=True):
    """What the database holds."""

    traces: dict[str, Trace]
    attempts: dict[str, list[AttemptRow]]
    """By run."""


class Stub(Protocol):
    """The workers' journal: an `Upstream`, or several."""

    async def calls(self) -> list[Called]: ...
    async def unwritten(self) -> tuple[int, int]: ...
    async def go_down(self) -> None: ...


async def settle(server: Server, up: Stub, client: Client, *, stop: bool = True) -> list[str]:
    """Everything that must hold once a row's requests are over; what does not, in words. Ends the server."""
    faults = await left_over(server, up, client)
    if stop:
        status = await server.stop()
        faults += [f"the server ended with {status}"] if status else []
    return faults + await check(server, up, client)


async def left_over(server: Server, up: Stub, client: Client) -> list[str]:
    """(e) Whatever is still there once clients and workers have gone."""
    await client.session.close()
    await up.go_down()
    faults = []

    async def idle() -> bool:
        return await server.in_flight() == 0 and server.sockets() <= server.sockets_at_start + _database_sockets(server)

    if not await eventually(idle, within_s=LEFT_OVER_S):
        more = server.sockets() - server.sockets_at_start
        faults.append(f"e: {await server.in_flight()} runs and {more} sockets are left")
    if children := server.children():
        faults.append(f"e: child processes are left: {children}")
    return faults


async def check(server: Server, up: Stub, client: Client) -> list[str]:
    """Compare the three journals; what does not agree, in words."""
    faults = disagreements(client.journal, await read_book(server), await up.calls())
    looks, missing = await up.unwritten()
    if missing:
        faults.append(f"b: {missing} of {looks} looks found a call whose row was not written yet")
    faults += await leaks(server, client)
    if "Traceback" in (log := server.log.read_text(errors="replace")):
        faults.append(f"the log has a traceback: {log[log.index('Traceback') :][-600:]!r}")
    return faults if len(faults) <= MOST_FAULTS else [*faults[:MOST_FAULTS], f"… and {len(faults) - MOST_FAULTS} more"]


def disagreements(sents: Sequence[Sent], book: Book, calls: Sequence[Called]) -> list[str]:
    """(a) to (d): what the client, the database and the stub tell differently."""
    return [*_unlike_traces(sents, book), *_unlike_calls(book, calls), *_open_rows(book)]


async def read_book(server: Server) -> Book:
    """The database as it is now."""
    async with Store.open(server.store_url) as store:
        traces = {trace.id: trace async for trace in store.export()}
        columns = (
            attempts.c.run_id,
            attempts.c.worker,
            attempts.c.state,
            attempts.c.cost_nusd,
            attempts.c.output_tokens,
        )
        rows = await store.read(lambda connection: connection.execute(select(*columns).order_by(attempts.c.id)).all())
    by_run: dict[str, list[AttemptRow]] = defaultdict(list)
    for run_id, worker, state, cost_nusd, output_tokens in rows:
        by_run[run_id].append(AttemptRow(run_id, worker, state, cost_nusd or 0, output_tokens or 0))
    return Book(traces, dict(by_run))


def _unlike_traces(sents: Sequence[Sent], book: Book) -> list[str]:
    """(a)"""
    by_marker: dict[str, list[Trace]] = defaultdict(list)
    for trace in book.traces.values():
        by_marker[marker_in(trace)].append(trace)
    faults = []
    for sent in sents:
        if sent.end != "answer":
            continue
        found = [trace for trace in by_marker[sent.marker] if trace.id == sent.trace_id]
        if [(trace.status, trace.answer) for trace in found] != [("done", sent.text)]:
            told = [(trace.status, trace.answer[:40]) for trace in found]
            faults.append(f"a: {sent.marker} was answered {sent.text[:40]!r}; its traces: {told}")
    return faults


def _unlike_calls(book: Book, calls: Sequence[Called]) -> list[str]:
    """(b) and (c), run by run. Runs that left no trace (a kill) are compared as a whole."""
    by_marker: dict[str, list[Called]] = defaultdict(list)
    for call in calls:
        by_marker[call.marker].append(call)
    faults, traced = [], {marker_in(trace): trace for trace in book.traces.values()}
    runs: Counter[str] = Counter(marker_in(trace) for trace in book.traces.values())
    for marker, trace in traced.items():
        if runs[marker] == 1:  # asked once: the calls with this marker are this run's
            faults += _unlike_run(marker, trace, book.attempts.get(trace.id, []), by_marker.get(marker, []))
    rows = sum(len(of_run) for of_run in book.attempts.values())
    if len(calls) > rows:
        faults.append(f"b: {len(calls)} calls at the stub, {rows} rows in the ledger")
    return faults


def _unlike_run(marker: str, trace: Trace, rows: list[AttemptRow], calls: list[Called]) -> list[str]:
    faults = []
    recorded = sorted(nusd for attempt in trace.attempts if (nusd := to_nusd(attempt.cost_usd)))
    entered = sorted(row.cost_nusd for row in rows if row.cost_nusd)
    if recorded != entered:
        faults.append(f"c: {marker}: the trace has calls for {recorded}, the ledger {entered} billionths")
    failed = [attempt for attempt in trace.attempts if attempt.error]
    # Cancelled while its row was written: the row stands, at no cost, and no call was made.
    unused = len(rows) - len(trace.attempts) if trace.status == "cancelled" else 0
    if unused < 0 or not len(calls) <= len(rows) <= len(calls) + len(failed) + unused:
        faults.append(f"b: {marker}: {len(calls)} calls at the stub, {len(rows)} rows, {len(failed)} of them failed")
    told = Counter(to_nusd(_PRICE.of(Usage(c.input_tokens, c.output_tokens))) for c in calls if c.whole)
    paid = Counter(to_nusd(attempt.cost_usd) for attempt in trace.attempts if not attempt.error)
    late = sum((told - paid).values())
    if paid - told or late > len(failed):
        faults.append(f"c: {marker}: the stub's usage costs {dict(told)}, the run was charged {dict(paid)}")
    return faults


_PRICE = Price(input=1.0, output=3.0)


def _open_rows(book: Book) -> list[str]:
    """(d)"""
    still = [row for of_run in book.attempts.values() for row in of_run if row.state == "open"]
    return [f"d: {len(still)} reservations are open, such as {still[0].worker} of {still[0].run_id}"] if still else []


async def leaks(server: Server, client: Client | None = None) -> list[str]:
    """(f) Every byte of the database and of the log, and every reply."""
    faults = [
        f"f: a secret is in the reply to {sent.marker}" for sent in (client.journal if client else ()) if sent.leaked
    ]
    faults += [f"f: a secret is in {name}" for name in found_in(server.folder, server.secrets)]
    async for values in values_of(server.store_url):
        if any(secret.encode() in values for secret in server.secrets):
            faults.append("f: a secret is in a value of the database")
    return faults


def marker_in(trace: Trace) -> str:
    """Which request a run was for."""
    found = MARKER.search(trace.question[-1].text)
    return found[0] if found else ""


def right(sent: Sent, *, words: int = OUTPUT_WORDS) -> bool:
    """Whether it got the whole right answer."""
    return sent.end == "answer" and sent.text == answer_of(sent.marker, words=words)


def _database_sockets(server: Server) -> int:
    """A PostgreSQL store keeps connections of its own."""
    return 0 if server.is_sqlite else 20
