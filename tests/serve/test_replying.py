"""Replies in one piece: the bytes on the wire are what uvicorn would send, and what is unusual is left to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from dirigent.serve.http.auth import Receive, Scope, Send
from dirigent.serve.http.connection import bounded_connection
from dirigent.serve.http.replying import InOnePiece
from dirigent.serve.http.server import bound

Message = dict[str, Any]

LENGTH = (b"content-length", b"2")


def start(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(text: bytes = b"ok", *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": text, "more_body": more}


@contextlib.asynccontextmanager
async def served(*messages: Message) -> AsyncIterator[int]:
    """A server that answers every request with these messages; gives its port."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(dict(message))

    listener = bound("127.0.0.1", 0)
    kind = bounded_connection(header_timeout_s=5, max_header_bytes=4096)
    config = uvicorn.Config(
        app, http=kind, lifespan="off", log_level="critical", server_header=False, date_header=False, ws="none"
    )
    server = uvicorn.Server(config)
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def answers(port: int, *requests: str) -> bytes:
    """All that comes back on one connection, until the server hangs up or the last reply was read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = b""
    for request in requests:
        writer.write(request.encode())
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            found += head
            if b"content-length: 2" in head and not request.startswith("HEAD"):
                found += await reader.readexactly(2)
    writer.close()
    return found


GET = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nx-a: b\r\ncontent-length: 2\r\n\r\nok"


async def test_a_reply_is_its_status_its_headers_and_its_body() -> None:
    async with served(start((b"x-a", b"b"), LENGTH), body()) as port:
        assert await answers(port, GET) == WHOLE


async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with served(start((b"x-a", b"b"), LENGTH), body()) as port:
        assert await answers(port, GET, GET, GET) == 3 * WHOLE


@pytest.mark.parametrize(
    "request_", ["GET / HTTP/1.0\r\n\r\n", GET.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")]
)
async def test_a_client_that_keeps_nothing_open_is_told_and_left(request_: str) -> None:
    async with served(start(LENGTH), body()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_.encode())
        async with asyncio.timeout(10):
            assert await reader.read() == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
        writer.close()


async def test_head_gets_no_body() -> None:
    async with served(start(LENGTH), body()) as port:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
        assert await answers(port, GET.replace("GET", "HEAD"), GET) == head + head + b"ok"


async def test_a_body_in_pieces_is_left_to_uvicorn() -> None:
    async with served(start(LENGTH), body(b"o", more=True), body(b"k")) as port:
        assert await answers(port, GET, GET) == 2 * b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def test_a_stream_is_left_to_uvicorn() -> None:
    async with served(start((b"content-type", b"text/event-stream")), body(b"one", more=True), body(b"")) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n").encode())
        async with asyncio.timeout(10):
            said = await reader.read()
        writer.close()
        assert b"transfer-encoding: chunked\r\n" in said
        assert said.endswith(b"\r\n\r\n3\r\none\r\n0\r\n\r\n")


async def test_a_header_that_closes_the_connection_closes_it() -> None:
    async with served(start(LENGTH, (b"connection", b"close")), body()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET.encode())
        async with asyncio.timeout(10):
            assert await reader.read() == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
        writer.close()


@pytest.mark.parametrize(
    "wrong",
    [
        [start(LENGTH), body(b"longer")],
        [start(LENGTH), body(b"s")],
        [start((b"x", b"a\r\nset-cookie: b"), LENGTH), body()],
        [start((b"x", b"a\nset-cookie: b"), LENGTH), body()],
    ],
)
async def test_a_reply_that_is_not_what_it_says_is_cut_off(wrong: list[Message]) -> None:
    async with served(*wrong) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET.encode())
        async with asyncio.timeout(10):
            said = await reader.read()
        writer.close()
        assert b"set-cookie" not in said
        assert not said.endswith(b"longer")


async def test_a_reply_that_breaks_off_before_its_body_is_a_500() -> None:
    async with served(start(LENGTH)) as port:
        assert (await answers(port, GET)).startswith(b"HTTP/1.1 500 ")


async def test_a_client_that_has_gone_is_written_nothing() -> None:
    sent: list[Message] = []

    class Cycle:
        response_started, disconnected = False, True

        async def send(self, message: Message) -> None:
            sent.append(message)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(LENGTH))
        await send(body())

    cycle: Any = Cycle()
    await InOnePiece(app)({}, cycle.send, cycle.send)
    assert sent == []
