"""The workers' side of a torture row: a stub provider in a process of its own, told by each question how to behave.

    async with upstream() as up:
        up.url("anthropic")                       # the base_url of a worker
        await up.set(delay_s=0.05)                # settings of `StubProvider`, between or during requests
        calls = await up.calls()                  # the journal: what came in, and what became of it

A question says what becomes of it (`ask_of`): which faults its calls meet, in turn, and how many words the answer
has. So the same seed gives the same faults however many requests are under way. The right answer follows from the
question's marker alone (`answer_of`), not on the worker. A model called `good...` meets no faults.

Told where a SQLite store is (`watch`), it also looks now and then whether every call that came in has its row.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from dirigent.messages import Usage
from tests.stub_provider import FAULTS, StubProvider, WireName
from tests.stub_wires import StubCall, StubReply

ROOT = Path(__file__).parents[2]
MARKER = re.compile(r"torture-\d{7}")
SCRIPT = re.compile(r"faults: ([a-z0-9, -]+)\.")
WORDS = re.compile(r"words: (\d+)\.")
WATCH_EVERY = 20
"""Calls between two looks at the store."""
OUTPUT_WORDS = 12
BACKLOG = 4096


class Called(msgspec.Struct, frozen=True):
    """One call as the provider saw it. Times are `time.monotonic`, which all processes of a machine share."""

    marker: str
    model: str
    fault: str | None
    stream: bool
    started_s: float
    ended_s: float | None
    aborted: bool
    """The caller hung up."""
    whole: bool
    """All of a right answer was written."""
    input_tokens: int
    output_tokens: int
    """What the answer said it used."""


def marker_of(number: int) -> str:
    return f"torture-{number:07d}"


def ask_of(marker: str, *, faults: Sequence[str] = (), words: int = OUTPUT_WORDS) -> str:
    """The question with this marker. Its n-th call meets the n-th fault, further calls the last; `ok` is no fault."""
    assert {*faults} <= {*FAULTS, "429-retry-after", "ok"}, faults
    script = f" faults: {', '.join(faults)}." if faults else ""
    return f"This is {marker}. words: {words}.{script}"


def answer_of(marker: str, *, words: int = OUTPUT_WORDS) -> str:
    """The one right answer."""
    number = int(marker.rpartition("-")[2])
    return " ".join([f"{marker}:", *(f"w{(number * 31 + i) % 997}" for i in range(words - 1))])


def usage_of(marker: str, *, words: int = OUTPUT_WORDS) -> Usage:
    """What the right answer says it used."""
    return Usage(input_tokens=20 + int(marker.rpartition("-")[2]) % 13, output_tokens=words)


class Upstream:
    """The stub's process, as a row sees it."""

    def __init__(
        self, process: asyncio.subprocess.Process, hello: dict[str, Any], session: aiohttp.ClientSession
    ) -> None:
        self.process = process
        self._hello = hello
        self._session = session

    def url(self, wire: WireName, *, fault: str = "") -> str:
        """`base_url` of a worker; `connect-refused` and `connect-hang` are ports without a server."""
        urls: dict[str, str] = self._hello["urls"]
        return urls[f"{wire} {fault}".strip()]

    async def calls(self) -> list[Called]:
        async with self._session.get(self._hello["control"] + "/calls") as response:
            return msgspec.json.decode(await response.read(), type=list[Called])

    async def unwritten(self) -> tuple[int, int]:
        """How often the store was looked at, and how often a call had no row."""
        async with self._session.get(self._hello["control"] + "/watched") as response:
            looks, missing = await response.json()
            return looks, missing

    async def set(self, **settings: Any) -> None:
        """`delay_s`, `chunk_delay_s`, `byte_delay_s`, `retry_after` of the stub; `watch`, the path of a store."""
        await self._tell("set", settings)

    async def go_down(self) -> None:
        """New connections are refused, and idle ones closed."""
        await self._tell("down", {})

    async def come_up(self) -> None:
        await self._tell("up", {})

    async def _tell(self, what: str, settings: dict[str, Any]) -> None:
        async with self._session.post(f"{self._hello['control']}/{what}", json=settings) as response:
            assert response.status == 200, await response.text()


@contextlib.asynccontextmanager
async def upstream(**settings: Any) -> AsyncIterator[Upstream]:
    """A stub provider in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.torture.upstream"),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,  # its end tells the process that we are gone
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        hello = json.loads(await process.stdout.readline() or b"null")
        if hello is None:
            raise RuntimeError("the stub provider did not start: its output is above")
        async with aiohttp.ClientSession() as session:
            up = Upstream(process, hello, session)
            if settings:
                await up.set(**settings)
            yield up
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


# ---- the other process ------------------------------------------------------------------------------------


class ScriptedStub(StubProvider):
    """Reads from each question how to behave, and keeps a short journal of it."""

    def __init__(self) -> None:
        super().__init__(_answer)
        self.journal: list[Called] = []
        self.received = 0
        self.looks = self.missing = 0
        self.watch = ""
        self.together = 0
        """No stream ends before so many calls have come in."""
        self._seen: Counter[tuple[str, str]] = Counter()

    async def _respond(self, call: StubCall, request: web.Request) -> web.StreamResponse:
        text = json.dumps(call.body)
        call.fault = call.fault or self._scripted(call, text)
        self.received += 1
        if self.watch and self.received % WATCH_EVERY == 0:
            self._look()
        response = await super()._respond(call, request)
        if isinstance(response, web.Response) and response.status >= 400 and response.text is not None:
            response.text += f" (you sent {call.headers})"  # with the key, as careless providers do
        return response

    async def _send(
        self, response: web.StreamResponse, call: StubCall, frames: list[bytes], request: web.Request
    ) -> None:
        if self.together and call.stream:
            await super()._send(response, call, frames[:-2], request)
            await self._all_in()
            frames = frames[-2:]
        await super()._send(response, call, frames, request)

    def _scripted(self, call: StubCall, text: str) -> str | None:
        script = SCRIPT.search(text)
        if script is None or call.model.startswith("good"):
            return None
        faults, who = script[1].split(", "), (_marker(text), call.model)
        fault = faults[min(self._seen[who], len(faults) - 1)]
        self._seen[who] += 1
        return None if fault == "ok" else fault

    def _look(self) -> None:
        """Rows are never deleted, so the newest number is how many were written."""
        with contextlib.closing(sqlite3.connect(f"file:{self.watch}?mode=ro", uri=True)) as store:
            (rows,) = store.execute("SELECT max(id) FROM attempts").fetchone()
        self.looks += 1
        self.missing += (rows or 0) < self.received

    async def _all_in(self) -> None:
        while self.received < self.together:
            self._news.clear()
            await self._news.wait()

    async def come_up(self) -> None:
        """With room for a thousand callers at once: the system keeps others waiting for seconds."""
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True, backlog=BACKLOG)
        await self._site.start()
        self._port = self._runner.addresses[0][1]

    async def go_down(self) -> None:
        """Also closes idle connections, which a client could go on using. Down already: nothing."""
        if self._runner.sites:
            await super().go_down()
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            if connection._current_request is None and connection.transport is not None:
                connection.transport.close()

    def sweep(self) -> None:
        """Shorten what has ended: whole requests of an hour's load would not fit into memory."""
        self.journal += [_called(call) for call in self.calls if call.ended.is_set()]
        self.calls = [call for call in self.calls if not call.ended.is_set()]


def _answer(call: StubCall) -> StubReply:
    text = json.dumps(call.body)
    marker, words = _marker(text), _words(text)
    return StubReply(answer_of(marker, words=words), usage=usage_of(marker, words=words))


def _called(call: StubCall) -> Called:
    text = json.dumps(call.body)
    marker, whole = _marker(text), call.finished and call.fault in (None, "one-byte-per-s")
    usage = usage_of(marker, words=_words(text)) if whole else Usage()
    ended_s = call.finished_at if call.finished else call.aborted_at
    return Called(
        marker,
        call.model,
        call.fault,
        call.stream,
        call.started_at,
        ended_s,
        call.aborted,
        whole,
        usage.input_tokens,
        usage.output_tokens,
    )


def _marker(text: str) -> str:
    found = MARKER.search(text)
    return found[0] if found else marker_of(0)


def _words(text: str) -> int:
    found = WORDS.search(text)
    return int(found[1]) if found else OUTPUT_WORDS


async def _main() -> None:
    raise_fd_limit()
    async with ScriptedStub() as stub:
        runner = web.AppRunner(_control(stub), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        urls = {}
        for wire in ("openai", "anthropic", "gemini"):
            for fault in (None, "connect-refused", "connect-hang"):
                urls[f"{wire} {fault or ''}".strip()] = stub.url(wire, fault=fault)  # type: ignore[arg-type]
        print(json.dumps({"urls": urls, "control": f"http://127.0.0.1:{runner.addresses[0][1]}"}), flush=True)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        gone = asyncio.ensure_future(reader.read())
        while not gone.done():
            stub.sweep()
            await asyncio.wait([gone], timeout=2.0)
        await runner.cleanup()


def _control(stub: ScriptedStub) -> web.Application:
    async def calls(request: web.Request) -> web.Response:
        stub.sweep()
        under_way = [_called(call) for call in stub.calls]
        return web.Response(body=msgspec.json.encode([*stub.journal, *under_way]), content_type="application/json")

    async def watched(request: web.Request) -> web.Response:
        return web.json_response([stub.looks, stub.missing])

    async def change(request: web.Request) -> web.Response:
        for name, value in (await request.json()).items():
            assert hasattr(stub, name), name
            setattr(stub, name, value)
        return web.Response()

    async def down(request: web.Request) -> web.Response:
        await stub.go_down()
        return web.Response()

    async def up(request: web.Request) -> web.Response:
        await stub.come_up()
        return web.Response()

    app = web.Application()
    app.router.add_get("/calls", calls)
    app.router.add_get("/watched", watched)
    app.router.add_post("/set", change)
    app.router.add_post("/down", down)
    app.router.add_post("/up", up)
    return app


def raise_fd_limit() -> None:
    """As many open files as the system lets us have: a thousand streams are three thousand sockets."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    asyncio.run(_main())
