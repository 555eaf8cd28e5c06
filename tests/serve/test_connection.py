"""Connections: idle ones, several requests on one, and the end of the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dirigent.store.keys import Caller, create_key
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


async def test_a_request_behind_one_under_way_is_answered_after_it_however_it_is_cut(server: Server) -> None:
    async def late(_call: object) -> str:
        await asyncio.sleep(0.2)
        return "late but whole"

    server.stub.answer = late
    wire = await Wire.open(server)
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


@pytest.fixture
def stopping(tmp_path: Path, stub: StubProvider, empty_store: Path) -> AbstractAsyncContextManager[Server]:
    """A server that stops when the block ends."""
    shutil.copy(empty_store, tmp_path / "serve.db")
    return started(tmp_path, stub)


async def test_requests_under_way_are_answered_by_a_server_that_stops(
    stopping: AbstractAsyncContextManager[Server],
) -> None:
    async with stopping as server:
        release = asyncio.Event()

        async def late(_call: object) -> str:
            await release.wait()
            return "late but whole"

        server.stub.answer = late
        wires = [await Wire.open(server) for _ in range(2)]
        for wire in wires:
            wire.writer.write(wire.request())
        said = [asyncio.ensure_future(wire.rest()) for wire in wires]
        await server.stub.called(2)
        asyncio.get_running_loop().call_later(0.3, release.set)
    for wire, answer in zip(wires, said, strict=True):
        assert b"late but whole" in await answer
        await wire.close()


async def test_an_idle_connection_does_not_keep_a_server_from_stopping(
    stopping: AbstractAsyncContextManager[Server],
) -> None:
    async with stopping as server:
        wire = await Wire.open(server)
        wire.writer.write(wire.request())
        await wire.answer()
        began = time.monotonic()
    assert time.monotonic() - began < 1.0
    assert await wire.rest() == b""
    await wire.close()


async def test_a_client_that_was_refused_does_not_keep_a_server_from_stopping(
    stopping: AbstractAsyncContextManager[Server],
) -> None:
    async with stopping as server:
        wire = await Wire.open(server)
        wire.writer.write(b"GET / HTTP/1.1\r\nX-Long: " + b"z" * 1_000_000)
        await gone(wire)
        began = time.monotonic()
    assert time.monotonic() - began < 3
    await wire.close()


async def test_a_refused_body_may_still_come_when_the_server_stops(
    stopping: AbstractAsyncContextManager[Server],
) -> None:
    """A connection that is closed with something unread is reset, and the client may lose the refusal."""
    async with stopping as server:
        wire = await Wire.open(server)
        wire.writer.write(refused(wire, 10))
        assert (await wire.answer()).startswith(b"HTTP/1.1 415 ")
        asyncio.get_running_loop().call_later(0.3, wire.writer.write, b"x" * 10)
        said = asyncio.ensure_future(wire.rest())
    assert await said == b"", "the connection ends without a reset"
    await wire.close()


async def gone(wire: Wire) -> bytes:
    """Read what comes until the server closes or resets the connection."""
    said = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(10):
            while piece := await wire.reader.read(10_000):
                said += piece
    return said


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


@pytest.mark.parametrize("said", [b"nonsense\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"])
async def test_bytes_that_are_no_request_get_a_400_and_end_the_connection(server: Server, said: bytes) -> None:
    wire = await Wire.open(server)
    wire.writer.write(said)
    assert (await wire.rest()).startswith(b"HTTP/1.1 400 ")
    await wire.close()


async def test_two_hosts_are_400_and_the_end(server: Server) -> None:
    wire = await Wire.open(server)
    wire.writer.write(wire.request().replace(b"Content-Type", b"Host: example.org\r\nContent-Type"))
    assert (await wire.rest()).startswith(b"HTTP/1.1 400 ")
    assert server.stub.calls == []
    await wire.close()


async def test_a_whole_address_as_target_leads_to_its_path(server: Server) -> None:
    wire = await Wire.open(server)
    wire.writer.write(wire.request().replace(b"POST /v1", b"POST http://%b/v1" % wire.host.encode()))
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    for target in (b"http://example.org", b"http://127.0.0.1.example.org:80", b"http://localhost@example.org"):
        wire.writer.write(wire.request().replace(b"POST /v1", b"POST %b/v1" % target))
        assert (await wire.answer()).startswith(b"HTTP/1.1 400 "), target
    assert len(server.stub.calls) == 1
    await wire.close()


async def test_a_server_with_keys_takes_a_whole_address_of_any_host(start: Start) -> None:
    server = await start(keys_required=True)
    made = await create_key(server.service.store, Caller(""))
    wire = await Wire.open(server)
    key = b"Authorization: Bearer %b\r\nContent-Type" % made.text.encode()
    asked = wire.request().replace(b"POST /v1", b"POST https://example.org/v1")
    wire.writer.write(asked)
    assert (await wire.answer()).startswith(b"HTTP/1.1 401 ")
    wire.writer.write(asked.replace(b"Content-Type", key))
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


@pytest.mark.parametrize("name", [b"Authorization", b"x-api-key"])
async def test_two_headers_with_credentials_are_400(start: Start, name: bytes) -> None:
    server = await start(keys_required=True)
    made = await create_key(server.service.store, Caller(""))
    line = b"%b: %b%b\r\n" % (name, b"Bearer " if name == b"Authorization" else b"", made.text.encode())
    wire = await Wire.open(server)
    wire.writer.write(wire.request().replace(b"Content-Type", line + b"Content-Type"))
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    wire.writer.write(wire.request().replace(b"Content-Type", line * 2 + b"Content-Type"))
    said = await wire.answer()
    assert said.startswith(b"HTTP/1.1 400 ")
    assert name.lower() in said
    await wire.close()
