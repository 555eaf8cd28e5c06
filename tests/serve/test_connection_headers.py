"""Long headers: how they are bounded, and that their refusal is read.

h11 refuses a header that is too long before it is whole (400), and the server one that is whole (431). Slow headers are
the task of the proxy in front (`docs/deploy.md`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from urllib.parse import urlsplit

import pytest

from dirigent.serve.http import bounds
from tests.serve.conftest import Server, Start
from tests.serve.test_connection import BODY, Wire, gone


async def test_a_header_in_pieces_is_put_together(server: Server) -> None:
    async def late(_call: object) -> str:
        await asyncio.sleep(0.2)
        return "late but whole"

    server.stub.answer = late
    wire = await Wire.open(server)
    whole = wire.request()
    wire.writer.write(whole[:20])
    await asyncio.sleep(0.05)
    wire.writer.write(whole[20:])
    assert b"late but whole" in await wire.answer()
    await wire.close()


@pytest.mark.parametrize("most", [2048, 65_536])
async def test_an_endless_header_is_400_and_the_end(start: Start, most: int) -> None:
    server = await start(max_header_bytes=most)
    wire = await Wire.open(server)
    wire.writer.write(b"GET / HTTP/1.1\r\nX-Long: " + b"z" * (most - 100))
    await asyncio.sleep(0.1)
    wire.writer.write(b"z" * 1000)  # in a piece of its own, so that all was read before the server hangs up
    assert (await wire.rest()).startswith(b"HTTP/1.1 400 ")
    await wire.close()


def with_header_of(size: int, request: bytes) -> bytes:
    """The same request, with a header of so many bytes."""
    header, end, body = request.partition(b"\r\n\r\n")
    header += b"\r\nX-Long: "
    return header + b"z" * (size - len(header + end)) + end + body


@pytest.mark.parametrize("cut", [-1, 20, 1500], ids=["in one read", "begun before", "nearly all before"])
@pytest.mark.parametrize(
    "most", [2048, 8192]
)  # few enough to be in one packet: unread bytes at the end reset the connection
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
    assert len(server.stub.calls) == 1, "the refused request was not carried out"


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


async def test_a_header_that_is_whole_and_too_long_behind_a_request_under_way_is_refused_after_it(start: Start) -> None:
    server = await start(max_header_bytes=2048)
    server.stub.delay_s = 0.2
    wire = await Wire.open(server)
    wire.writer.write(wire.request())
    await server.stub.called(1)
    wire.writer.write(with_header_of(2049, wire.request()))
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    assert (await wire.answer()).startswith(b"HTTP/1.1 431 ")
    assert len(server.stub.calls) == 1
    await wire.close()


async def test_an_endless_header_behind_a_request_under_way_is_refused_after_it(start: Start) -> None:
    server = await start(max_header_bytes=2048)
    server.stub.delay_s = 0.4
    wire = await Wire.open(server)
    wire.writer.write(wire.request())
    await server.stub.called(1)
    for piece in (b"GET / HTTP/1.1\r\nX-Long: ", b"z" * 2000, b"z" * 1000):
        wire.writer.write(piece)
        await asyncio.sleep(0.05)
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    assert (await gone(wire)).startswith(b"HTTP/1.1 400 ")
    await wire.close()


async def said_to_one_who_looks_late(server: Server, *pieces: bytes) -> bytes:
    """Send all pieces, and read the reply only when the server has closed the connection."""
    loop, parts = asyncio.get_running_loop(), urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port)) as wire:
        wire.setblocking(False)
        for piece in pieces:
            await loop.sock_sendall(wire, piece)
            await asyncio.sleep(0.02)
        await asyncio.sleep(bounds.LINGER_S + 0.2)
        said = b""
        while more := await loop.sock_recv(wire, 10_000):
            said += more
        assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0, "the connection was reset"
        return said


async def test_the_refusal_of_a_long_header_is_read_by_a_client_that_looks_late(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "LINGER_S", 0.5)
    long = with_header_of(70_000, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n") + b"z" * 1_000_000
    assert (await said_to_one_who_looks_late(server, long)).startswith(b"HTTP/1.1 431 ")
