"""One POST over a pooled connection: what is sent, what comes back, and when a connection is used again."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from dirigent.workers.exchange import Exchange, Target, post
from tests.facts import facts

CONNECTING = aiohttp.ClientTimeout(total=None, connect=5, sock_connect=5)
OK = b"HTTP/1.1 200 OK\r\nContent-Type: Application/JSON; charset=utf-8\r\nContent-Length: 2\r\n\r\n{}"


class Peer:
    """A server that answers requests with what it was given, or hangs up where that is nothing; keeps what it got."""

    def __init__(self, answer: Callable[[int], bytes]) -> None:
        self.answer = answer
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                said = self.answer(len(self.heads))
                if not said:
                    break
                writer.write(said)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def peer(
    answer: bytes | Callable[[int], bytes] = OK, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Peer]:
    made = Peer(answer if callable(answer) else lambda _: answer)
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        made.url = f"{'http' if tls is None else 'https'}://localhost:{port}/v1/do?a=b%20c"
        yield made


async def sent(
    connector: aiohttp.TCPConnector, url: str, *, body: bytes = b"{}", headers: dict[str, str] | None = None
) -> Exchange:
    said = {"Content-Type": "application/json", **(headers or {})}
    return await post(connector, Target(url), headers=said, body=body, connecting=CONNECTING)


async def whole(exchange: Exchange) -> bytes:
    body = await exchange.content.read()
    exchange.close()
    return body


@pytest.fixture
async def connector() -> AsyncIterator[aiohttp.TCPConnector]:
    async with aiohttp.TCPConnector(limit=0) as made:
        yield made


async def test_a_call_says_where_what_and_how_long(connector: aiohttp.TCPConnector) -> None:
    async with peer() as there:
        exchange = await sent(connector, there.url, body=b'{"a": 1}', headers={"Authorization": "Bearer ü"})
        assert (exchange.status, exchange.reason, exchange.content_type) == (200, "OK", "application/json")
        assert await whole(exchange) == b"{}"
    first, *lines = there.heads[0].removesuffix("\r\n\r\n").split("\r\n")
    said = dict(line.split(": ", 1) for line in lines)
    assert first == "POST /v1/do?a=b%20c HTTP/1.1"
    assert len(said) == len(lines), "no header twice"
    assert said["Host"] == there.url.split("/")[2]
    assert said["Content-Length"] == "8"
    assert said["Content-Type"] == "application/json"
    assert said["Authorization"] == "Bearer ü"
    assert "gzip" in said["Accept-Encoding"]
    assert there.bodies == [b'{"a": 1}']


@pytest.mark.parametrize("value", ["a\r\nInjected: yes", "a\nInjected: yes", "a\rb", "a\0b"])
async def test_a_value_that_would_begin_another_header_is_refused_before_anything_is_sent(
    connector: aiohttp.TCPConnector, value: str
) -> None:
    async with peer() as there:
        with pytest.raises(ValueError, match=facts("header")):
            await sent(connector, there.url, headers={"X": value})
        assert there.connections == 0


async def test_a_connection_is_used_again_once_its_reply_was_whole(connector: aiohttp.TCPConnector) -> None:
    async with peer() as there:
        for _ in range(3):
            await whole(await sent(connector, there.url))
        assert (len(there.heads), there.connections) == (3, 1)


async def test_a_connection_whose_reply_was_not_read_to_its_end_is_given_up(connector: aiohttp.TCPConnector) -> None:
    def begun(number: int) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nnot all" if number == 1 else OK

    async with peer(begun) as there:
        exchange = await sent(connector, there.url)
        assert await exchange.content.readany() == b"not all"
        exchange.close()
        exchange.close()  # twice does no harm
        assert await whole(await sent(connector, there.url)) == b"{}"
        assert there.connections == 2


async def test_a_connection_that_is_to_be_closed_is_not_used_again(connector: aiohttp.TCPConnector) -> None:
    async with peer(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")) as there:
        for _ in range(2):
            assert await whole(await sent(connector, there.url)) == b"{}"
        assert there.connections == 2


async def test_a_reply_may_be_announced_first(connector: aiohttp.TCPConnector) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    async with peer(hints + hints + OK) as there:
        exchange = await sent(connector, there.url)
        assert (exchange.status, await whole(exchange)) == (200, b"{}")


async def test_a_reply_without_a_body_gives_its_connection_back(connector: aiohttp.TCPConnector) -> None:
    async with peer(b"HTTP/1.1 204 No Content\r\n\r\n") as there:
        for _ in range(2):
            exchange = await sent(connector, there.url)
            assert (exchange.status, exchange.content_type, await whole(exchange)) == (204, "", b"")
        assert there.connections == 1


async def test_a_long_body_arrives_whole_at_a_peer_that_reads_slowly(connector: aiohttp.TCPConnector) -> None:
    body = bytes(range(256)) * (8 * 1024 * 4)
    async with peer() as there:
        assert await whole(await sent(connector, there.url, body=body)) == b"{}"
        assert there.bodies == [body]


async def test_cancelling_hangs_up(connector: aiohttp.TCPConnector) -> None:
    hung_up = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            got.set()
        hung_up.set()
        writer.close()

    got = asyncio.Event()
    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        task = asyncio.ensure_future(sent(connector, url))
        async with asyncio.timeout(10):
            await got.wait()
            task.cancel()
            await hung_up.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_peer_that_hangs_up_is_an_error_of_aiohttp(connector: aiohttp.TCPConnector) -> None:
    async with peer(lambda _: b"") as there:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await sent(connector, there.url)
        assert len(there.heads) == 1, "it is not for this to send a call twice"


async def test_tls_is_spoken_and_its_certificate_checked(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    making = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject)
    await asyncio.to_thread(
        subprocess.run, [*making, "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=certificate)
    async with peer(tls=tls) as there, aiohttp.TCPConnector(ssl=trusting) as connector, aiohttp.TCPConnector() as wary:
        for _ in range(2):
            assert await whole(await sent(connector, there.url)) == b"{}"
        assert there.connections == 1
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await sent(wary, there.url)
        assert len(there.heads) == 2
