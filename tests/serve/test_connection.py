"""Connections: idleness, several requests, the server's end; and what a good client never notices."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dirigent.serve.http import connection
from dirigent.serve.http.connection import Connection, _Joining
from tests.serve.conftest import Server, Start, started
from tests.stub_provider import StubProvider

BODY = json.dumps({"model": "worker/alpha", "messages": [{"role": "user", "content": "hi"}]}).encode()


class Wire:
    """A bare connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self.reader, self.writer, self.host = reader, writer, host

    @classmethod
    async def open(cls, server: Server) -> Wire:
        parts = urlsplit(server.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        return cls(reader, writer, parts.netloc)

    def request(self) -> bytes:
        lines = (
            "POST /v1/chat/completions HTTP/1.1",
            f"Host: {self.host}",
            "Content-Type: application/json",
            f"Content-Length: {len(BODY)}",
        )
        return "\r\n".join((*lines, "", "")).encode() + BODY

    async def answer(self) -> bytes:
        """One whole reply."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        return head + await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        """All that comes until the server hangs up."""
        async with asyncio.timeout(10):
            return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def refused(wire: Wire, size: int) -> bytes:
    """The header of a request that is refused (415) before its body has come."""
    lines = ("POST /v1/chat/completions HTTP/1.1", f"Host: {wire.host}", f"Content-Length: {size}", "", "")
    return "\r\n".join(lines).encode()


@pytest.fixture
async def soon(start: Start) -> Server:
    """A server that waits for headers a short while only."""
    return await start(header_timeout_s=0.3)


async def test_a_request_behind_one_under_way_is_answered_after_it_however_it_is_cut(soon: Server) -> None:
    async def late(_call: object) -> str:
        await asyncio.sleep(0.2)
        return "late but whole"

    soon.stub.answer = late
    wire = await Wire.open(soon)
    whole = wire.request()
    for piece in (whole + whole[:20], whole[20:-5], whole[-5:] + whole):
        wire.writer.write(piece)
        await asyncio.sleep(0.05)
    for _ in range(3):
        assert b"late but whole" in await wire.answer()
    await wire.close()


async def test_a_connection_without_requests_is_closed_when_its_time_is_up(
    start: Start,
) -> None:
    server = await start(idle_timeout_s=0.3)
    wire = await Wire.open(server)
    for _ in range(2):  # the second comes in time
        wire.writer.write(wire.request())
        assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    began = time.monotonic()
    assert await wire.rest() == b""
    assert 0.25 < time.monotonic() - began < 5
    await wire.close()


async def test_two_requests_in_one_piece_are_both_answered(server: Server) -> None:
    wire = await Wire.open(server)
    wire.writer.write(wire.request() * 2)
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


def busy(seconds: float, *, after_s: float, then: Callable[[], object]) -> None:
    """Keep the event loop busy. It does `then` next, and after that, without reading, what has become due."""
    loop = asyncio.get_running_loop()
    loop.call_later(after_s, time.sleep, seconds)
    loop.call_later(after_s + 0.02, then)


async def test_a_request_that_came_while_the_server_was_busy_keeps_its_idle_connection(start: Start) -> None:
    server = await start(idle_timeout_s=0.3)
    wire = await Wire.open(server)
    wire.writer.write(wire.request())
    await wire.answer()
    busy(0.5, after_s=0.1, then=lambda: wire.writer.write(wire.request()))
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


async def test_a_header_that_came_while_the_server_was_busy_came_in_time(soon: Server) -> None:
    wire = await Wire.open(soon)
    wire.writer.write(wire.request()[:20])
    busy(0.5, after_s=0.1, then=lambda: wire.writer.write(wire.request()[20:]))
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


@pytest.fixture
def stopping(tmp_path: Path, stub: StubProvider, empty_store: Path) -> AbstractAsyncContextManager[Server]:
    """A server that stops when the block ends."""
    shutil.copy(empty_store, tmp_path / "serve.db")
    return started(tmp_path, stub)


async def test_a_request_that_came_just_before_the_server_stops_is_answered(
    stopping: AbstractAsyncContextManager[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Connection.shutdown

    def late(self: Connection) -> None:
        wire.writer.write(wire.request())
        stop(self)

    async with stopping as server:
        wire = await Wire.open(server)
        wire.writer.write(wire.request())
        await wire.answer()
        monkeypatch.setattr(Connection, "shutdown", late)
        said = asyncio.ensure_future(wire.rest())
        await asyncio.sleep(0)
    assert (await said).startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in said.result()
    await wire.close()


async def test_requests_under_way_are_answered_by_a_server_that_stops(
    stopping: AbstractAsyncContextManager[Server],
) -> None:
    async with stopping as server:
        release = asyncio.Event()

        async def late(_call: object) -> str:
            await release.wait()
            return "late but whole"

        server.stub.answer = late
        wire = await Wire.open(server)
        wire.writer.write(wire.request() * 2)
        said = asyncio.ensure_future(wire.rest())
        await server.stub.called(1)
        asyncio.get_running_loop().call_later(0.3, release.set)
    assert (await said).count(b"late but whole") == 2
    await wire.close()


async def test_an_idle_connection_does_not_keep_a_server_from_stopping(
    stopping: AbstractAsyncContextManager[Server],
) -> None:
    async with stopping as server:
        wire = await Wire.open(server)
        wire.writer.write(wire.request())
        await wire.answer()
        began = time.monotonic()
    assert time.monotonic() - began < connection.LAST_REQUEST_S
    assert await wire.rest() == b""
    await wire.close()


async def test_a_client_that_was_refused_does_not_keep_a_server_from_stopping(
    stopping: AbstractAsyncContextManager[Server],
) -> None:
    async with stopping as server:
        wire = await Wire.open(server)
        wire.writer.write(b"GET / HTTP/1.1\r\nX-Long: " + b"z" * 1_000_000)
        assert (await wire.rest()).startswith(b"HTTP/1.1 431 ")
        began = time.monotonic()
    assert time.monotonic() - began < 3
    await wire.close()


async def test_a_refused_body_may_still_come_when_the_server_stops(
    stopping: AbstractAsyncContextManager[Server],
) -> None:
    """A connection that is closed with something unread is reset, and the refusal may be lost with it."""
    async with stopping as server:
        wire = await Wire.open(server)
        wire.writer.write(refused(wire, 10))
        await wire.answer()
        asyncio.get_running_loop().call_later(0.3, wire.writer.write, b"x" * 10 + wire.request())
        said = asyncio.ensure_future(wire.rest())
    assert (await said).startswith(b"HTTP/1.1 200 ")
    await wire.close()


WISH = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n"


@pytest.mark.parametrize("cut", [10_000, 30, -len(BODY), -5], ids=["nowhere", "header", "body", "end"])
async def test_a_wish_for_http_2_is_passed_over_and_its_body_read(server: Server, cut: int) -> None:
    wire = await Wire.open(server)
    whole = wire.request().replace(b"Content-Type", WISH + b"Content-Type")
    for _ in range(2):
        wire.writer.write(whole[:cut])
        await asyncio.sleep(0.05)
        wire.writer.write(whole[cut:])
        assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    wire.writer.write(whole * 2 + wire.request())
    for _ in range(3):
        assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


async def test_a_header_with_such_a_wish_is_held_to_the_same_time(soon: Server) -> None:
    wire = await Wire.open(soon)
    wire.writer.write(wire.request().replace(b"Content-Type", WISH + b"Content-Type"))
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    wire.writer.write(b"GET / HTTP/1.1\r\n" + WISH)
    assert (await wire.rest()).startswith(b"HTTP/1.1 408 ")
    await wire.close()


@pytest.mark.parametrize("said", [b"nonsense\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"])
async def test_what_is_no_request_is_400_and_the_end(server: Server, said: bytes) -> None:
    wire = await Wire.open(server)
    wire.writer.write(said)
    assert (await wire.rest()).startswith(b"HTTP/1.1 400 ")
    await wire.close()


class Sent(asyncio.Transport):
    """A transport that keeps what is written, call by call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.calls.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.calls.append(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return b"closed" in self.calls

    def close(self) -> None:
        self.calls.append(b"closed")


HEADER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


async def test_a_header_goes_out_together_with_what_follows_it():
    sent = Sent()
    joining = _Joining(sent, asyncio.get_running_loop())
    joining.write(HEADER)
    joining.write(b"ok")
    joining.write(b"more")
    await asyncio.sleep(0)
    assert sent.calls == [HEADER + b"ok", b"more"]


async def test_an_empty_piece_is_not_what_follows_a_header():
    sent = Sent()
    joining = _Joining(sent, asyncio.get_running_loop())
    joining.write(HEADER)
    joining.write(b"")
    joining.write(b"ok")
    joining.write(b"")
    assert sent.calls == [HEADER + b"ok"]


async def test_a_header_that_nothing_follows_goes_out_when_the_turn_ends():
    sent = Sent()
    joining = _Joining(sent, asyncio.get_running_loop())
    joining.write(HEADER)
    assert sent.calls == []
    await asyncio.sleep(0)
    joining.write(b"late")
    assert sent.calls == [HEADER, b"late"]


async def test_a_header_goes_out_before_the_connection_is_closed():
    sent = Sent()
    joining = _Joining(sent, asyncio.get_running_loop())
    joining.write(HEADER)
    joining.close()
    await asyncio.sleep(0)
    assert sent.calls == [HEADER, b"closed"]


async def test_nothing_is_written_to_a_connection_that_was_lost():
    sent = Sent()
    joining = _Joining(sent, asyncio.get_running_loop())
    joining.write(HEADER)
    sent.close()
    await asyncio.sleep(0)
    assert sent.calls == [b"closed"]
