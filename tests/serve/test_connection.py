"""Connections that waste time: slow headers, endless headers, idleness; and what a good client never notices."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dirigent.serve import connection
from dirigent.serve.connection import Connection, _Joining
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


@pytest.fixture
async def soon(start: Start) -> Server:
    """A server that waits for headers a short while only."""
    return await start(header_timeout_s=0.3)


@pytest.mark.parametrize("beginning", [b"", b"P", b"POST /v1/models HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a_header_that_does_not_come_is_408_and_the_end(soon: Server, beginning: bytes) -> None:
    began = time.monotonic()
    wire = await Wire.open(soon)
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


def with_header_of(size: int, request: bytes) -> bytes:
    """The same request, with a header of so many bytes."""
    header, end, body = request.partition(b"\r\n\r\n")
    header += b"\r\nX-Long: "
    return header + b"z" * (size - len(header + end)) + end + body


@pytest.mark.parametrize("cut", [-1, 20, 1500], ids=["in one read", "begun before", "nearly all before"])
@pytest.mark.parametrize("most", [2048, 8192])  # few enough to be in one packet: what is unread at the end resets
async def test_a_header_that_is_whole_is_held_to_its_length_however_it_comes(start: Start, most: int, cut: int) -> None:
    server = await start(max_header_bytes=most)
    for size, status in ((most, b"200"), (most + 1, b"431"), (3 * most, b"431")):
        wire = await Wire.open(server)
        whole = with_header_of(size, wire.request())
        for piece in (whole,) if cut < 0 else (whole[:cut], whole[cut:]):
            wire.writer.write(piece)
            await asyncio.sleep(0.05)
        if status == b"431":
            said = await wire.rest()
            assert said.count(b"HTTP/1.1 ") == 1, "and nothing more is said"
        else:
            said = await wire.answer()
        assert said.startswith(b"HTTP/1.1 %b " % status)
        await wire.close()
    assert len(server.stub.calls) == 1, "what was refused was not carried out"


async def test_the_next_header_on_a_connection_is_held_to_the_same_length(start: Start) -> None:
    server = await start(max_header_bytes=2048)
    wire = await Wire.open(server)
    wire.writer.write(wire.request())
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    wire.writer.write(with_header_of(2049, wire.request()))
    assert (await wire.rest()).startswith(b"HTTP/1.1 431 ")
    await wire.close()


async def test_a_wish_for_http_2_does_not_make_a_header_shorter(start: Start) -> None:
    server = await start(max_header_bytes=2048)
    wire = await Wire.open(server)
    wish = b"Connection: Upgrade\r\nUpgrade: h2c, " + b"z" * 2048 + b"\r\n"
    wire.writer.write(wire.request().replace(b"Content-Type", wish + b"Content-Type"))
    assert (await wire.rest()).startswith(b"HTTP/1.1 431 ")
    assert server.stub.calls == []
    await wire.close()


@pytest.mark.parametrize("cuts", [(), (20,), (-150,), (20, -150), (20, -20)])
async def test_bodies_and_further_requests_are_no_part_of_a_header(start: Start, cuts: tuple[int, ...]) -> None:
    server = await start(max_header_bytes=2048)
    wire = await Wire.open(server)
    long = json.dumps({"model": "worker/alpha", "messages": [{"role": "user", "content": "hi" * 3000}]}).encode()
    whole = wire.request().replace(BODY, long).replace(b": %d\r\n" % len(BODY), b": %d\r\n" % len(long))
    every = whole + wire.request() * 20 + whole + wire.request()  # the small ones together are longer than a header
    assert 20 < len(wire.request()) - 150 < len(wire.request()) - len(BODY), "a cut within the last header"
    ends = [0, *(cut % len(every) for cut in cuts), len(every)]
    for begin, end in itertools.pairwise(ends):
        wire.writer.write(every[begin:end])
        await asyncio.sleep(0.05)
    for _ in range(23):
        assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


async def test_a_header_that_is_whole_and_too_long_behind_a_request_under_way_is_the_end(start: Start) -> None:
    server = await start(max_header_bytes=2048)
    server.stub.delay_s = 60.0
    wire = await Wire.open(server)
    wire.writer.write(wire.request())
    call = await server.stub.called(1)
    wire.writer.write(with_header_of(2049, wire.request()))
    assert await wire.rest() == b"", "nothing is said in the middle of another reply"
    await asyncio.wait_for(call.ended.wait(), 5)
    assert call.aborted
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


def refused(wire: Wire, size: int) -> bytes:
    """The header of a request that is refused (415) before its body has come."""
    lines = ("POST /v1/chat/completions HTTP/1.1", f"Host: {wire.host}", f"Content-Length: {size}", "", "")
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize("pieces", [(b"x" * 10,), (b"x" * 4, b"x" * 6)])
async def test_a_refused_body_that_came_whole_leaves_an_idle_connection(start: Start, pieces: tuple[bytes]) -> None:
    server = await start(header_timeout_s=0.3, idle_timeout_s=5)
    wire = await Wire.open(server)
    wire.writer.write(refused(wire, 10))
    assert (await wire.answer()).startswith(b"HTTP/1.1 415 ")
    for piece in pieces:
        wire.writer.write(piece)
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)  # longer than a header may take
    wire.writer.write(wire.request())
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


async def test_a_refused_body_that_came_whole_does_not_make_a_connection_live_for_ever(start: Start) -> None:
    server = await start(header_timeout_s=5, idle_timeout_s=0.3)
    wire = await Wire.open(server)
    wire.writer.write(refused(wire, 10))
    assert (await wire.answer()).startswith(b"HTTP/1.1 415 ")
    wire.writer.write(b"x" * 10)
    began = time.monotonic()
    assert await wire.rest() == b""
    assert 0.25 < time.monotonic() - began < 3
    await wire.close()


async def test_a_refused_body_that_comes_byte_by_byte_is_cut_off_without_a_word(soon: Server) -> None:
    """Its request has had its reply: a second one would be taken for the next request's."""
    wire = await Wire.open(soon)
    wire.writer.write(refused(wire, 1000))
    assert (await wire.answer()).startswith(b"HTTP/1.1 415 ")
    began = time.monotonic()
    ended = asyncio.ensure_future(wire.rest())
    while not ended.done():
        wire.writer.write(b"x")
        await asyncio.sleep(0.02)
    with contextlib.suppress(ConnectionResetError):
        assert await ended == b""
    assert time.monotonic() - began < 5
    await wire.close()


async def test_the_header_behind_a_refused_body_has_its_own_time(soon: Server) -> None:
    wire = await Wire.open(soon)
    wire.writer.write(refused(wire, 10))
    assert (await wire.answer()).startswith(b"HTTP/1.1 415 ")
    whole = wire.request()
    for piece in (b"x" * 4, b"x" * 6 + whole[:20], whole[20:]):
        wire.writer.write(piece)
        await asyncio.sleep(0.2)
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    wire.writer.write(refused(wire, 10))
    assert (await wire.answer()).startswith(b"HTTP/1.1 415 ")
    wire.writer.write(b"x" * 10 + whole[:20])
    began = time.monotonic()
    assert (await wire.rest()).startswith(b"HTTP/1.1 408 ")
    assert 0.25 < time.monotonic() - began < 5
    await wire.close()


async def test_a_request_directly_behind_a_refused_body_is_answered(server: Server) -> None:
    wire = await Wire.open(server)
    wire.writer.write(refused(wire, 10))
    assert (await wire.answer()).startswith(b"HTTP/1.1 415 ")
    wire.writer.write(b"x" * 10 + wire.request() * 2)
    for _ in range(2):
        assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


async def test_a_refused_body_in_chunks_is_taken_to_its_last_one(start: Start) -> None:
    server = await start(header_timeout_s=0.3, idle_timeout_s=5)
    wire = await Wire.open(server)
    lines = ("POST /v1/chat/completions HTTP/1.1", f"Host: {wire.host}", "Transfer-Encoding: chunked", "", "")
    wire.writer.write("\r\n".join(lines).encode())
    assert (await wire.answer()).startswith(b"HTTP/1.1 415 ")
    for piece in (b"4\r\nxxxx\r\n", b"2\r\nx", b"x\r\n0\r\n", b"\r\n"):
        wire.writer.write(piece)
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.5)
    wire.writer.write(wire.request())
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


async def test_a_body_in_chunks_is_read_whole(soon: Server) -> None:
    wire = await Wire.open(soon)
    header = wire.request().removesuffix(BODY).replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked")
    for piece in (header, b"%x\r\n" % len(BODY), BODY[:9], BODY[9:], b"\r\n0\r\n\r\n"):
        wire.writer.write(piece)
        await asyncio.sleep(0.1)  # in all longer than a header may take
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


def asking_first(wire: Wire, request: bytes) -> bytes:
    """The header of a request whose body is sent when the server says so."""
    return request.partition(b"\r\n\r\n")[0] + b"\r\nExpect: 100-continue\r\n\r\n"


async def test_a_client_that_asks_first_is_told_to_go_on(soon: Server) -> None:
    wire = await Wire.open(soon)
    for _ in range(2):
        wire.writer.write(asking_first(wire, wire.request()))
        assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await asyncio.sleep(0.4)  # longer than a header may take
        wire.writer.write(BODY)
        assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


async def test_a_client_that_asks_first_is_refused_and_may_send_its_body_all_the_same(start: Start) -> None:
    server = await start(header_timeout_s=0.3, idle_timeout_s=5)
    wire = await Wire.open(server)
    wire.writer.write(asking_first(wire, refused(wire, 10)))
    assert (await wire.answer()).startswith(b"HTTP/1.1 415 ")
    wire.writer.write(b"x" * 10)
    await asyncio.sleep(0.5)
    wire.writer.write(wire.request())
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


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


async def test_what_comes_behind_a_body_is_no_header(server: Server) -> None:
    wire = await Wire.open(server)
    lines = ("GET /v1/models HTTP/1.1", f"Host: {wire.host}", "Transfer-Encoding: chunked", "", "0", "Host: x", "", "")
    wire.writer.write("\r\n".join(lines).encode())
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
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
