"""Calls over pooled connections: the bytes sent, the reuse of connections, and that no call is sent twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from dirigent.errors import WorkerError
from dirigent.messages import Message, Observe, Reply, Request, ignore
from dirigent.workers.http import HOPS_HEADER, HttpClient, HttpWorker, after_hops
from dirigent.workers.openai import OpenAIWire
from dirigent.workers.secret import Secret
from dirigent.workers.wire import HttpCall
from dirigent.workers.worker import WorkerInfo
from tests.facts import facts

ANSWER = json.dumps({"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]})
HEAD = "HTTP/1.1 200 OK\r\nContent-Type: Application/JSON; charset=utf-8"
OK = f"{HEAD}\r\nContent-Length: {len(ANSWER)}\r\n\r\n{ANSWER}"
HANG_UP = ""


class Peer:
    """A server that answers each request with a given text, or closes the connection if the text is empty."""

    def __init__(self, answer: Callable[[int], str]) -> None:
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
                answer = self.answer(len(self.heads))
                if answer == HANG_UP:
                    break
                writer.write(answer.encode())
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def peer(answer: str | Callable[[int], str] = OK, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    made = Peer(answer if callable(answer) else lambda _: answer)
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        made.url = f"{'http' if tls is None else 'https'}://localhost:{port}/v1%20x"
        yield made


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    async with HttpClient() as made:
        yield made


async def ask(
    client: HttpClient,
    url: str,
    text: str = "hi",
    *,
    wire: OpenAIWire | None = None,
    key: Secret | None = None,
    observe: Observe = ignore,
) -> Reply:
    worker = HttpWorker(WorkerInfo("w", model="m"), wire or OpenAIWire(), client, base_url=url, key=key)
    return await worker.ask(Request((Message("user", text),)), observe=observe)


async def test_a_call_names_its_host_path_length_key_and_hops(client: HttpClient) -> None:
    async with peer() as there:
        with after_hops(1):
            assert (await ask(client, there.url, key=Secret("a-key-ü"))).text == "hello"
    first, *lines = there.heads[0].removesuffix("\r\n\r\n").split("\r\n")
    sent = dict(line.split(": ", 1) for line in lines)
    assert first == "POST /v1%20x/chat/completions HTTP/1.1"
    assert len(sent) == len(lines), "no header is sent twice"
    assert sent["Host"] == there.url.split("/")[2]
    assert sent["Content-Length"] == str(len(there.bodies[0]))
    assert sent["Content-Type"] == "application/json"
    assert sent["Authorization"] == "Bearer a-key-ü"
    assert sent[HOPS_HEADER] == "2"
    assert "gzip" in sent["Accept-Encoding"]


class Injecting(OpenAIWire, frozen=True):
    value: str = ""

    def build(self, request: Request, *, info: WorkerInfo, base_url: str, stream: bool) -> HttpCall:
        call = super().build(request, info=info, base_url=base_url, stream=stream)
        return msgspec.structs.replace(call, headers={"X": self.value})


@pytest.mark.parametrize("value", ["a\r\nInjected: yes", "a\nInjected: yes", "a\rb", "a\0b"])
async def test_a_value_that_would_begin_another_header_is_never_sent(client: HttpClient, value: str) -> None:
    async with peer() as there:
        with pytest.raises(WorkerError, match=facts("w header")) as caught:
            await ask(client, there.url, wire=Injecting(value=value))
        assert caught.value.fault == "request"
        assert there.heads == []


async def test_a_connection_is_used_again_after_a_whole_reply(client: HttpClient) -> None:
    async with peer() as there:
        for _ in range(3):
            await ask(client, there.url)
        assert (len(there.heads), there.connections) == (3, 1)


async def test_a_connection_is_closed_if_its_reply_was_not_read_to_the_end(client: HttpClient) -> None:
    chunk = json.dumps({"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]})
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 999\r\n\r\n"
    async with peer(lambda number: f"{head}data: {chunk}\n\ndata: [DONE]\n\n" if number == 1 else OK) as there:
        assert (await ask(client, there.url, observe=lambda event: None)).text == "hi"
        assert (await ask(client, there.url)).text == "hello"
        assert there.connections == 2


async def test_a_connection_that_the_peer_will_close_is_not_used_again(client: HttpClient) -> None:
    async with peer(OK.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")) as there:
        for _ in range(2):
            assert (await ask(client, there.url)).text == "hello"
        assert there.connections == 2


async def test_early_hints_may_come_before_the_reply(client: HttpClient) -> None:
    hints = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    async with peer(hints + hints + OK) as there:
        assert (await ask(client, there.url)).text == "hello"


async def test_a_connection_is_used_again_after_a_reply_without_a_body(client: HttpClient) -> None:
    async with peer("HTTP/1.1 204 No Content\r\n\r\n") as there:
        for _ in range(2):
            with pytest.raises(WorkerError, match=facts("HTTP 204")):
                await ask(client, there.url)
        assert there.connections == 1


async def test_a_body_of_megabytes_arrives_whole(client: HttpClient) -> None:
    text = "0123456789" * (4 * 1024 * 102)
    async with peer() as there:
        assert (await ask(client, there.url, text)).text == "hello"
    assert json.loads(there.bodies[0])["messages"][0]["content"] == text


@pytest.mark.parametrize("earlier_calls", [0, 1], ids=["new connection", "used connection"])
async def test_a_call_is_not_sent_again_if_the_peer_hangs_up(client: HttpClient, earlier_calls: int) -> None:
    async with peer(lambda number: OK if number <= earlier_calls else HANG_UP) as there:
        for _ in range(earlier_calls):
            await ask(client, there.url)
        with pytest.raises(WorkerError) as caught:
            await ask(client, there.url)
        assert caught.value.fault == "connect"
        assert (len(there.heads), there.connections) == (earlier_calls + 1, 1)


TRUSTING = """
import asyncio, sys
from dirigent.messages import Message, Request
from dirigent.workers.http import HttpClient, HttpWorker
from dirigent.workers.openai import OpenAIWire
from dirigent.workers.worker import WorkerInfo

async def main():
    async with HttpClient() as client:
        worker = HttpWorker(WorkerInfo("w", model="m"), OpenAIWire(), client, base_url=sys.argv[1])
        for _ in range(2):
            print((await worker.ask(Request((Message("user", "hi"),)))).text)

asyncio.run(main())
"""


async def test_the_certificate_of_a_tls_peer_is_checked(client: HttpClient, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    making = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject)
    await asyncio.to_thread(
        subprocess.run, [*making, "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with peer(tls=tls) as there:
        with pytest.raises(WorkerError, match=facts("localhost certificate")) as caught:
            await ask(client, there.url)
        assert caught.value.fault == "connect"
        assert there.heads == []
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", TRUSTING, there.url),
            env=os.environ | {"SSL_CERT_FILE": str(certificate)},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await child.communicate()
        assert out.decode().split() == ["hello", "hello"]
        assert len(there.heads) == 2
