"""Bodies: refused ones, announced ones, chunks, and the bytes beside their content.

A reply to a request whose body has not arrived says `connection: close`. The rest of such a body is dropped for a
while, so that the client can read the reply: closing a connection with unread bytes would reset it.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from dirigent.serve.http import bounds
from dirigent.serve.http.body import MAX_BODY_BYTES
from tests.serve.conftest import Server, Start
from tests.serve.test_connection import BODY, Wire, gone, refused


async def test_the_rest_of_a_refused_body_is_taken_so_that_its_refusal_is_read(server: Server) -> None:
    wire = await Wire.open(server)
    size, piece = 300_000, b"x" * 10_000
    wire.writer.write(refused(wire, size))
    for _ in range(size // len(piece)):
        wire.writer.write(piece)
        await wire.writer.drain()
        await asyncio.sleep(0.002)
    said = await wire.rest()
    assert said.startswith(b"HTTP/1.1 415 ")
    assert b"connection: close" in said
    await wire.close()


@pytest.mark.parametrize("coding", ["Content-Length: 4000000", "Transfer-Encoding: chunked"])
async def test_the_rest_of_a_refused_body_is_bounded_in_time(
    server: Server, monkeypatch: pytest.MonkeyPatch, coding: str
) -> None:
    monkeypatch.setattr(bounds, "LINGER_S", 0.3)
    wire = await Wire.open(server)
    wire.writer.write("\r\n".join(("POST /v1/models HTTP/1.1", f"Host: {wire.host}", coding, "", "")).encode())
    assert (await wire.answer()).startswith(b"HTTP/1.1 405 ")
    began = time.monotonic()
    ended = asyncio.ensure_future(gone(wire))
    while not ended.done():
        wire.writer.write(b"1\r\nx\r\n")
        await asyncio.sleep(0.02)
    assert await ended == b""
    assert 0.25 < time.monotonic() - began < 5
    await wire.close()


async def test_the_rest_of_a_refused_body_is_bounded_in_size(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_BODY_BYTES", 20_000)
    monkeypatch.setattr(bounds, "LINGER_S", 60)
    wire = await Wire.open(server)
    wire.writer.write(refused(wire, 20_000))
    assert (await wire.answer()).startswith(b"HTTP/1.1 415 ")
    wire.writer.write(b"x" * 19_999)
    await asyncio.sleep(0.05)
    assert not wire.reader.at_eof()
    wire.writer.write(b"xx")
    assert await gone(wire) == b""
    await wire.close()


async def test_a_refused_body_that_came_with_its_header_leaves_an_idle_connection(server: Server) -> None:
    wire = await Wire.open(server)
    for _ in range(2):
        wire.writer.write(refused(wire, 10) + b"x" * 10)
        said = await wire.answer()
        assert said.startswith(b"HTTP/1.1 415 ")
        assert b"connection: close" not in said
    wire.writer.write(wire.request())
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/messages", b"/v1/responses"])
async def test_a_body_that_is_announced_as_too_large_is_refused_at_once(
    server: Server, path: bytes, expect: bytes
) -> None:
    wire = await Wire.open(server)
    asked = wire.request().removesuffix(BODY).replace(b"/v1/chat/completions", path)
    asked = asked.replace(b"Length: %d\r\n" % len(BODY), b"Length: %d\r\n%b" % (MAX_BODY_BYTES + 1, expect))
    wire.writer.write(asked)
    async with asyncio.timeout(2):
        said = await wire.answer()
    assert said.startswith(b"HTTP/1.1 413 "), "and not a word of 100 Continue before it"
    assert b"connection: close" in said
    await wire.close()


async def test_a_body_in_chunks_is_read_whole(server: Server) -> None:
    wire = await Wire.open(server)
    header = wire.request().removesuffix(BODY).replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked")
    for piece in (header, b"%x\r\n" % len(BODY), BODY[:9], BODY[9:], b"\r\n0\r\n\r\n"):
        wire.writer.write(piece)
        await asyncio.sleep(0.02)
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


def asking_first(wire: Wire, request: bytes) -> bytes:
    """The header of a request whose body is sent when the server says so."""
    return request.partition(b"\r\n\r\n")[0] + b"\r\nExpect: 100-continue\r\n\r\n"


async def test_a_client_that_expects_100_gets_it(server: Server) -> None:
    wire = await Wire.open(server)
    for _ in range(2):
        wire.writer.write(asking_first(wire, wire.request()))
        assert (await wire.reader.readuntil(b"\r\n\r\n")).strip() == b"HTTP/1.1 100 Continue"
        wire.writer.write(BODY)
        assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


async def test_a_client_that_asks_first_is_refused_and_may_send_its_body_all_the_same(server: Server) -> None:
    wire = await Wire.open(server)
    wire.writer.write(asking_first(wire, refused(wire, 10)))
    assert (await wire.answer()).startswith(b"HTTP/1.1 415 ")
    wire.writer.write(b"x" * 10)
    assert await wire.rest() == b"", "the connection ends without a reset"
    await wire.close()


async def test_bytes_after_a_body_are_not_headers(server: Server) -> None:
    wire = await Wire.open(server)
    lines = ("GET /v1/models HTTP/1.1", f"Host: {wire.host}", "Transfer-Encoding: chunked", "", "0", "Host: x", "", "")
    wire.writer.write("\r\n".join(lines).encode())
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


def chunked(wire: Wire, *, target: str = "POST /v1/chat/completions") -> bytes:
    """The header of a request whose body comes in chunks."""
    lines = (f"{target} HTTP/1.1", f"Host: {wire.host}", "Content-Type: application/json", "Transfer-Encoding: chunked")
    return "\r\n".join((*lines, "", "")).encode()


def in_chunks(body: bytes, *, of: int = 10_000, extension: bytes = b"", trailers: bytes = b"") -> bytes:
    pieces = [body[at : at + of] for at in range(0, len(body), of)]
    chunks = [b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces]
    return b"".join((*chunks, b"0\r\n", trailers, b"\r\n"))


def trailers_of(size: int, *, each: int) -> bytes:
    """Whole trailers of so many bytes together, each of so many."""
    return b"".join(b"X-A: %b\r\n" % (b"z" * (min(each, size - at) - 7)) for at in range(0, size, each))


LITTLE = {
    "nothing": {},
    "an extension": {"extension": b";name=value"},
    "trailers": {"trailers": b"X-Sum: 12\r\nX-More: z\r\n"},
    "both": {"extension": b';name="a value"', "trailers": b"X-Sum: 12\r\n"},
}


@pytest.mark.parametrize("beside", LITTLE)
@pytest.mark.parametrize("cut", [-1, 1, 50])
async def test_a_little_beside_the_content_of_a_body_is_passed_over(server: Server, beside: str, cut: int) -> None:
    wire = await Wire.open(server)
    body = in_chunks(BODY, of=30, **LITTLE[beside])
    for _ in range(2):
        wire.writer.write(chunked(wire) + body[:cut])
        await asyncio.sleep(0.02)
        wire.writer.write(body[cut:])
        assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    wire.writer.write((chunked(wire) + body) * 2)
    for _ in range(2):
        assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


@pytest.mark.parametrize("of", [1, 20, 300])
@pytest.mark.parametrize("read", [7, 1000, 100_000])
async def test_the_framing_of_chunks_is_not_part_of_the_body(start: Start, of: int, read: int) -> None:
    server = await start(max_header_bytes=1024)
    wire = await Wire.open(server)
    body = BODY.replace(b"hi", b"hi" * (300 if read == 7 else 20_000))
    whole = in_chunks(body, of=of, trailers=trailers_of(1000, each=100))
    wire.writer.write(chunked(wire))
    for at in range(0, len(whole), read):
        wire.writer.write(whole[at : at + read])
        await asyncio.sleep(0.002)
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


MUCH = {
    "a trailer": [in_chunks(BODY)[:-2] + b"X-Long: ", *[b"z" * 1000] * 3],
    "trailers": [in_chunks(BODY)[:-2], *[b"X-A: b\r\n" * 100] * 3],
    "an extension": [b"%x;" % len(BODY), *[b"z" * 1000] * 3],
}


@pytest.mark.parametrize("beside", MUCH)
async def test_much_beside_the_content_of_a_body_is_400_and_the_end(start: Start, beside: str) -> None:
    """h11 bounds one chunk's header, and all trailers together, as long as they are incomplete."""
    server = await start(max_header_bytes=2048)
    wire = await Wire.open(server)
    began = time.monotonic()
    for piece in (chunked(wire), *MUCH[beside]):
        wire.writer.write(piece)
        await asyncio.sleep(0.01)
    said = await gone(wire)
    assert said.startswith(b"HTTP/1.1 400 ")
    assert said.count(b"HTTP/1.1 ") == 1
    assert time.monotonic() - began < 5
    assert server.stub.calls == []
    await wire.close()


async def test_much_beside_a_body_ends_a_reply_that_has_begun(start: Start) -> None:
    server = await start(max_header_bytes=2048)
    server.stub.delay_s = 60.0
    begun = await server.request(
        "POST", "/v1/responses", json={"model": "worker/alpha", "input": "hi", "background": True}
    )
    wire = await Wire.open(server)
    wire.writer.write(chunked(wire, target=f"GET /v1/responses/{begun.object['id']}?stream=true"))
    assert (await wire.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    for piece in MUCH["a trailer"]:
        wire.writer.write(piece)
        await asyncio.sleep(0.02)
    assert b"HTTP/1.1 " not in await gone(wire), "nothing is said in the middle of a reply"
    await wire.close()
    server.stub.delay_s = 0.0
    await server.request("POST", f"/v1/responses/{begun.object['id']}/cancel")
