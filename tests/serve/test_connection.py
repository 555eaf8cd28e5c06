"""Connections that waste time: slow headers, endless headers, idleness; and what a good client never notices."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable
from urllib.parse import urlsplit

import pytest

from dirigent.serve import connection
from dirigent.serve.connection import _Joining
from tests.serve.conftest import Server, Start

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


@pytest.fixture
async def soon(start: Start) -> Server:
    """A server that waits for headers a short while only."""
    return await start(header_timeout_s=0.3)


@pytest.mark.parametrize("beginning", [b"", b"P", b"POST /v1/models HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a_header_that_does_not_come_is_408_and_the_end(soon: Server, beginning: bytes) -> None:
    wire = await Wire.open(soon)
    began = time.monotonic()
    wire.writer.write(beginning)
    assert (await wire.rest()).startswith(b"HTTP/1.1 408 ")
    assert 0.25 < time.monotonic() - began < 5
    await wire.close()


async def test_a_header_that_comes_byte_by_byte_gains_no_time(soon: Server) -> None:
    wire = await Wire.open(soon)
    began = time.monotonic()
    ended = asyncio.ensure_future(wire.rest())
    for byte in b"GET /v1/models HTTP/1.1\r\nX-Slow: " + b"z" * 1000:
        if ended.done():
            break
        wire.writer.write(bytes([byte]))
        await asyncio.sleep(0.02)
    with contextlib.suppress(ConnectionResetError):  # a byte sent after the end may drown the reply
        assert (await ended).startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - began < 5
    await wire.close()


async def test_the_next_header_on_a_connection_is_held_to_the_same_time(soon: Server) -> None:
    for beginning in (b"\r\n", b"GET / HT"):  # an empty line before a request is allowed, and begins nothing
        wire = await Wire.open(soon)
        wire.writer.write(wire.request())
        assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
        wire.writer.write(beginning)
        assert (await wire.rest()).startswith(b"HTTP/1.1 408 ")
        await wire.close()


async def test_a_request_that_takes_longer_than_a_header_may_is_answered(soon: Server) -> None:
    async def late(_call: object) -> str:
        await asyncio.sleep(0.8)
        return "late but whole"

    soon.stub.answer = late
    wire = await Wire.open(soon)
    whole = wire.request()
    wire.writer.write(whole[:20])
    await asyncio.sleep(0.05)
    wire.writer.write(whole[20:])
    assert b"late but whole" in await wire.answer()
    await wire.close()


@pytest.mark.parametrize("most", [2048, 65_536])
async def test_an_endless_header_is_431_and_the_end(start: Start, most: int) -> None:
    server = await start(max_header_bytes=most)
    wire = await Wire.open(server)
    wire.writer.write(b"GET / HTTP/1.1\r\nX-Long: " + b"z" * (most - 100))
    await asyncio.sleep(0.1)
    wire.writer.write(b"z" * 1000)  # in a piece of its own, so that all was read before the server hangs up
    assert (await wire.rest()).startswith(b"HTTP/1.1 431 ")
    await wire.close()


async def test_an_endless_header_behind_a_request_under_way_is_the_end(start: Start) -> None:
    server = await start(max_header_bytes=2048)
    release = asyncio.Event()

    async def late(_call: object) -> str:
        await release.wait()
        return "late but whole"

    server.stub.answer = late
    wire = await Wire.open(server)
    wire.writer.write(wire.request())
    call = await server.stub.called(1)
    for piece in (b"GET / HTTP/1.1\r\nX-Long: ", b"z" * 2000, b"z" * 1000):
        wire.writer.write(piece)
        await asyncio.sleep(0.1)
    assert await wire.rest() == b"", "nothing is said in the middle of another reply"
    await asyncio.wait_for(call.ended.wait(), 5)
    assert call.aborted
    await wire.close()


async def test_what_is_left_of_a_refused_body_is_taken_so_that_its_refusal_is_read(server: Server) -> None:
    wire = await Wire.open(server)
    size, piece = 300_000, b"x" * 10_000
    lines = ("POST /v1/chat/completions HTTP/1.1", f"Host: {wire.host}", f"Content-Length: {size}", "", "")
    wire.writer.write("\r\n".join(lines).encode())
    refused = await wire.answer()
    assert refused.startswith(b"HTTP/1.1 415 ")
    for _ in range(size // len(piece)):
        wire.writer.write(piece)
        await wire.writer.drain()
        await asyncio.sleep(0.002)
    wire.writer.write(wire.request())
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 "), "the connection is as good as before"
    await wire.close()


async def test_what_is_left_of_a_refused_body_is_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_BODY_BYTES", 20_000)
    wire = await Wire.open(server)
    lines = ("POST /v1/chat/completions HTTP/1.1", f"Host: {wire.host}", "Transfer-Encoding: chunked", "", "")
    wire.writer.write("\r\n".join(lines).encode())
    assert (await wire.answer()).startswith(b"HTTP/1.1 415 ")
    wire.writer.write(b"0\r\nX-Trailer: ")
    for _ in range(3):
        wire.writer.write(b"z" * 10_000)
        await asyncio.sleep(0.1)
    with contextlib.suppress(ConnectionResetError):
        assert await wire.rest() == b""
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
