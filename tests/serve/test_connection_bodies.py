"""Bodies: what is left of a refused one, chunks, and what comes beside their content, as little or without end."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from dirigent.serve.http import connection
from dirigent.serve.http.json_body import MAX_BODY_BYTES
from tests.serve.conftest import Server, Start
from tests.serve.test_connection import BODY, Wire, refused
from tests.serve.test_connection_headers import said_to_one_who_looks_late


@pytest.fixture
async def soon(start: Start) -> Server:
    """A server that waits for headers a short while only."""
    return await start(header_timeout_s=0.3)


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
    monkeypatch.setattr(connection, "MAX_DROPPED_BYTES", 20_000)
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


@pytest.mark.parametrize("asks_first", [False, True])
async def test_a_body_announced_as_too_large_is_refused_at_once(server: Server, asks_first: bool) -> None:
    wire = await Wire.open(server)
    announced = wire.request().removesuffix(BODY).replace(b"%d" % len(BODY), b"%d" % (MAX_BODY_BYTES + 1))
    wire.writer.write(asking_first(wire, announced) if asks_first else announced)
    async with asyncio.timeout(server.service.settings.body_timeout_s / 2):
        answer = await wire.answer()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"too_large"' in answer
    await wire.close()


async def test_a_client_that_sends_a_body_too_large_before_it_reads_can_read_why(server: Server) -> None:
    wire = await Wire.open(server)
    size = MAX_BODY_BYTES + MAX_BODY_BYTES // 2
    wire.writer.write(wire.request().removesuffix(BODY).replace(b"%d" % len(BODY), b"%d" % size))
    wire.writer.write(b"x" * size)
    await wire.writer.drain()
    assert (await wire.answer()).startswith(b"HTTP/1.1 413 ")
    wire.writer.write(wire.request())
    assert (await wire.answer()).startswith(b"HTTP/1.1 200 ")
    await wire.close()


async def test_what_comes_behind_a_body_is_no_header(server: Server) -> None:
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
async def test_what_chunks_need_is_not_beside_their_content(start: Start, of: int, read: int) -> None:
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
    "a trailer": [in_chunks(BODY)[:-2] + b"X-Long: ", *[b"z" * 1000] * 4],
    "trailers": [in_chunks(BODY)[:-2], *[b"X-A: b\r\n" * 100] * 5],
    "an extension": [b"%x;" % len(BODY), *[b"z" * 1000] * 4],
    "extensions": [b"1;a=b\r\n \r\n" * 200] * 5,
    "a trailer behind content that came slowly": [b"64\r\n", *[b"z"] * 100, b"\r\n0\r\nX-Long: ", *[b"z" * 1100] * 2],
    "both": [b"%x;" % len(BODY), b"z" * 1100, b"\r\n%b\r\n0\r\nX-Long: " % BODY, b"z" * 1100],
}


@pytest.mark.parametrize("beside", MUCH)
async def test_much_beside_the_content_of_a_body_is_431_and_the_end(start: Start, beside: str) -> None:
    server = await start(max_header_bytes=2048)
    wire = await Wire.open(server)
    began = time.monotonic()
    for piece in (chunked(wire), *MUCH[beside]):
        wire.writer.write(piece)
        await asyncio.sleep(0.01)
    said = await wire.rest()
    assert said.startswith(b"HTTP/1.1 431 ")
    assert said.count(b"HTTP/1.1 ") == 1
    assert time.monotonic() - began < 5
    assert server.stub.calls == []
    await wire.close()


@pytest.mark.parametrize("each", [20, 4096], ids=["many", "one"])
async def test_trailers_in_one_read_are_held_to_the_length_of_a_header(start: Start, each: int) -> None:
    server = await start(max_header_bytes=2000)
    for size, status in ((2000, b"200"), (2020, b"431")):
        wire = await Wire.open(server)
        wire.writer.write(chunked(wire) + in_chunks(BODY, trailers=trailers_of(size, each=each)))
        said = await (wire.answer() if status == b"200" else wire.rest())
        assert said.startswith(b"HTTP/1.1 %b " % status)
        assert said.count(b"HTTP/1.1 ") == 1
        await wire.close()
    assert len(server.stub.calls) == 1, "what was refused was not carried out"


async def test_much_beside_a_body_whose_last_read_holds_too_much_is_not_carried_out(start: Start) -> None:
    server = await start(max_header_bytes=2048)
    wire = await Wire.open(server)
    wire.writer.write(chunked(wire) + b"%x" % len(BODY))
    await asyncio.sleep(0.05)
    wire.writer.write(b";" + b"z" * 3000 + b"\r\n" + BODY + b"\r\n0\r\n\r\n")
    assert (await wire.rest()).startswith(b"HTTP/1.1 431 ")
    await asyncio.sleep(0.2)
    assert server.stub.calls == []
    await wire.close()


async def test_much_beside_a_body_whose_request_was_answered_is_the_end_without_a_word(start: Start) -> None:
    server = await start(max_header_bytes=2048)
    wire = await Wire.open(server)
    wire.writer.write(chunked(wire).replace(b"Content-Type: application/json\r\n", b""))
    assert (await wire.answer()).startswith(b"HTTP/1.1 415 ")
    began = time.monotonic()
    for piece in MUCH["a trailer"]:
        wire.writer.write(piece)
        await asyncio.sleep(0.02)
    with contextlib.suppress(ConnectionResetError):
        assert await wire.rest() == b""
    assert time.monotonic() - began < 5
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
    with contextlib.suppress(ConnectionResetError):
        assert b"HTTP/1.1 " not in await wire.rest(), "nothing is said in the middle of a reply"
    await wire.close()
    server.stub.delay_s = 0.0
    await server.request("POST", f"/v1/responses/{begun.object['id']}/cancel")


async def test_much_beside_a_body_behind_a_request_under_way_is_the_end(start: Start) -> None:
    server = await start(max_header_bytes=2048)
    server.stub.delay_s = 60.0
    wire = await Wire.open(server)
    wire.writer.write(wire.request())
    call = await server.stub.called(1)
    wire.writer.write(chunked(wire) + in_chunks(BODY, trailers=trailers_of(4000, each=100)))
    assert await wire.rest() == b"", "nothing is said in the middle of another reply"
    await asyncio.wait_for(call.ended.wait(), 5)
    assert call.aborted
    await wire.close()


async def test_such_a_refusal_is_read_by_a_client_that_looks_late(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LAST_WORD_S", 0.5)
    server = await start(max_header_bytes=2048)
    wire = await Wire.open(server)
    content = b" " * 70_000  # enough for the server to stop reading, until it is taken
    body = in_chunks(content)[:-2] + b"X-Long: " + b"z" * 1_000_000
    assert (await said_to_one_who_looks_late(server, chunked(wire), body)).startswith(b"HTTP/1.1 431 ")
    await wire.close()
