"""HTTP workers: one request, whole or streamed, with deadlines and estimated counts."""

import asyncio
import contextlib
import gzip
import json
import time

import msgspec
import pytest

from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Delta, Image, Message, Request, Tool, ToolCall, Usage, ignore
from dirigent.workers.anthropic import AnthropicWire
from dirigent.workers.gemini import GeminiWire
from dirigent.workers.http import HttpClient, HttpWorker, Timeouts
from dirigent.workers.metering import Metered
from dirigent.workers.openai import OpenAIWire
from dirigent.workers.secret import Secret
from dirigent.workers.worker import WorkerInfo
from tests.facts import facts
from tests.stub_provider import WIRES, StubProvider, StubReply

MAKE = {"openai": OpenAIWire, "anthropic": AnthropicWire, "gemini": GeminiWire}
ASK = Request((Message("user", "tell me a story"),))
ANSWER = {"model": "m", "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}
KEY = "a-key-of-no-known-shape"


@pytest.fixture
async def stub():
    async with StubProvider() as stub:
        yield stub


@pytest.fixture
async def client():
    async with HttpClient() as client:
        yield client


def worker(stub, client, wire="openai", **settings):
    return HttpWorker(WorkerInfo("w", model="m"), MAKE[wire](), client, base_url=stub.url(wire), **settings)


@contextlib.asynccontextmanager
async def canned(*pieces: bytes):
    """A server that answers every request with these bytes; yields its base_url and the requests it got."""
    requests = []

    async def answer(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            requests.append(head.decode())
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", requests


def http(body, *headers, status="200 OK", kind="application/json"):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"HTTP/1.1 {status}",
        *([f"Content-Type: {kind}"] if kind else []),
        f"Content-Length: {len(raw)}",
        *headers,
    ]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + raw


async def ask(base_url, client, *, request=ASK, observe=ignore, **settings):
    info = WorkerInfo("w", model="m")
    return await HttpWorker(info, OpenAIWire(), client, base_url=base_url, **settings).ask(request, observe=observe)


@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_is_the_same_whole_and_streamed(stub, client, wire):
    calls = (ToolCall("c1", "add", '{"a":1}', "sig" if wire == "gemini" else ""), ToolCall("c2", "now", "{}"))
    stub.answer = lambda call: StubReply("well, so", calls, "tool_calls", "hm", Usage(100, 20, 40, 5))
    seen = []
    request = Request(ASK.messages, tools=(Tool("add", {}), Tool("now", {})))
    whole = await worker(stub, client, wire).ask(request)
    streamed = await worker(stub, client, wire).ask(request, observe=seen.append)
    assert [call.stream for call in stub.calls] == [False, True]
    assert seen == [Delta("well, "), Delta("so")]
    assert (whole.text, whole.reasoning, whole.finish, whole.model) == ("well, so", "hm", "tool_calls", "m")
    assert [(call.name, json.loads(call.arguments)) for call in whole.tool_calls] == [
        ("add", {"a": 1}),
        ("now", {}),
    ]
    assert whole.usage == Usage(100, 20, 40, 0 if wire == "anthropic" else 5)
    assert whole.seconds > 0
    assert whole.attempts == ()

    def timeless(reply):
        calls = tuple(
            msgspec.structs.replace(call, id="", arguments=json.loads(call.arguments)) for call in reply.tool_calls
        )
        return msgspec.structs.replace(reply, seconds=0, tool_calls=calls)

    assert timeless(whole) == timeless(streamed)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("finish", ["stop", "length", "refused"])
async def test_every_way_to_finish(stub, client, wire, finish):
    stub.answer = lambda call: StubReply("x", finish=finish)
    assert (await worker(stub, client, wire).ask(ASK)).finish == finish
    assert (await worker(stub, client, wire).ask(ASK, observe=[].append)).finish == finish


@pytest.mark.parametrize("wire", WIRES)
async def test_the_key_travels_in_its_header_alone(stub, client, wire):
    stub.key = KEY
    asked = worker(stub, client, wire, key=Secret(KEY))
    assert (await asked.ask(ASK)).text == "echo: tell me a story"
    call = stub.calls[0]
    assert [name for name, value in call.headers.items() if KEY in value]
    assert KEY not in call.path + json.dumps(call.body) + repr(asked)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_wrong_key_is_an_auth_fault_that_does_not_repeat_it(stub, client, wire):
    stub.key = "the right one"
    with pytest.raises(WorkerError, match=facts("HTTP 401 Unauthorized key invalid")) as caught:
        await worker(stub, client, wire, key=Secret(KEY)).ask(ASK)
    assert (caught.value.fault, caught.value.status, caught.value.retryable) == ("auth", 401, False)
    assert KEY not in str(caught.value)


async def test_a_worker_without_a_key_sends_none(stub, client):
    await worker(stub, client).ask(ASK)
    assert "Authorization" not in stub.calls[0].headers


async def test_a_request_the_wire_cannot_carry_is_never_sent(stub, client):
    with pytest.raises(WorkerError, match=facts("w grammar")) as caught:
        await worker(stub, client, "anthropic").ask(Request(ASK.messages, grammar="g"))
    assert caught.value.fault == "request"
    assert stub.calls == []


async def test_a_deadline_that_has_passed_costs_no_call(stub, client):
    with pytest.raises(WorkerError, match=facts("deadline")) as caught:
        await worker(stub, client).ask(Request(ASK.messages, deadline=time.monotonic() - 1))
    assert caught.value.fault == "timeout"
    assert stub.calls == []


async def test_the_requests_deadline_counts_when_it_is_sooner(stub, client):
    stub.faults = ["first-byte-hang"]
    with pytest.raises(WorkerError, match=facts("deadline")) as caught:
        await worker(stub, client).ask(Request(ASK.messages, deadline=time.monotonic() + 0.2))
    assert caught.value.fault == "timeout"


async def test_headers_are_not_yet_a_first_byte(client):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n"
    hung = asyncio.Event()

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        await hung.wait()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(WorkerError, match="first_byte_s"):
            await ask(url, client, timeout=Timeouts(first_byte_s=0.2))
        hung.set()


async def test_tokens_that_the_provider_did_not_count_are_estimated(client):
    async with canned(http(ANSWER)) as (url, _):
        reply = await ask(url, client)
        assert reply.usage == Usage(input_tokens=4, output_tokens=2)
        image = Message("user", (Image(url="https://x/y.png"),))
        assert (await ask(url, client, request=Request((image,)))).usage.input_tokens == 1500


async def test_a_provider_cannot_make_a_call_cost_less_than_nothing(client):
    false = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 900}}
    async with canned(http({**ANSWER, "usage": false})) as (url, _):
        assert (await ask(url, client)).usage == Usage(5, 2, cached_input_tokens=5)
    async with canned(http({**ANSWER, "usage": {"prompt_tokens": -5}})) as (url, _):
        with pytest.raises(WorkerError, match=facts("int 0")):
            await ask(url, client)


@pytest.mark.parametrize("observe", [ignore, lambda event: None])
async def test_a_whole_reply_that_cannot_be_used_is_on_the_bill(client, observe):
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 900}}
    ended = {"choices": [{"message": {}, "delta": {}, "finish_reason": "malformed"}], "usage": usage}
    stream = http(f"data: {json.dumps(ended)}\n\ndata: [DONE]\n\n".encode(), kind="text/event-stream")
    async with canned(http(ended) if observe is ignore else stream) as (url, _):
        wire = HttpWorker(WorkerInfo("w", model="m"), OpenAIWire(), client, base_url=url)
        with pytest.raises(WorkerError, match=facts("malformed")) as caught:
            await Metered(wire).ask(ASK, observe=observe)
    assert caught.value.attempts[0].usage == Usage(5, 7, cached_input_tokens=5)


async def test_connections_are_used_again(stub, client):
    stub.chunk_delay_s = 0.01  # so that a stream's end comes a little after its last event
    asked = worker(stub, client)
    for observe in (ignore, [].append, [].append, ignore):
        await asked.ask(ASK, observe=observe)
    assert len({call.peer for call in stub.calls}) == 1


async def test_a_stream_that_says_done_but_does_not_end_is_an_answer(client):
    chunk = json.dumps({"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]})
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nContent-Length: 999\r\n\r\n"
    async with canned(head, f"data: {chunk}\n\ndata: [DONE]\n\n".encode()) as (url, _):
        assert (await ask(url, client, observe=[].append)).text == "hi"


async def test_redirects_are_not_followed(stub, client):
    async with canned(http(b"", f"Location: {stub.url('openai')}/chat/completions", status="307 Moved")) as (
        url,
        _,
    ):
        with pytest.raises(WorkerError, match=facts("307 base_url")) as caught:
            await ask(url, client)
    assert caught.value.fault == "request"
    assert stub.calls == []


async def test_cookies_are_not_kept(client):
    async with canned(http(ANSWER, "Set-Cookie: who=you; Path=/")) as (url, requests):
        await ask(url, client)
        await ask(url, client)
    assert len(requests) == 2
    assert "cookie" not in "".join(requests).lower()


async def test_proxies_of_the_environment_are_ignored(stub, client, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (await worker(stub, client).ask(ASK)).text == "echo: tell me a story"


async def test_compressed_replies_are_read_and_bombs_are_not(client):
    packed = gzip.compress(json.dumps(ANSWER).encode())
    async with canned(http(packed, "Content-Encoding: gzip")) as (url, _):
        assert (await ask(url, client)).text == "hello"
    bomb = gzip.compress(b" " * 64 * 1024 * 1024)
    async with canned(http(bomb, "Content-Encoding: gzip")) as (url, _):
        with pytest.raises(WorkerError, match=facts("8388608")) as caught:
            await ask(url, client)
    assert caught.value.fault == "reply"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (http(ANSWER, kind=""), "application/json"),
        (http(ANSWER, kind="text/plain"), "text/plain"),
        (http(b"junk", "Content-Encoding: gzip"), "0"),
        (http(ANSWER, status="202 Accepted"), "HTTP 202 Accepted"),
        (http(ANSWER)[:-5], ""),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", "HTTP"),
    ],
)
async def test_odd_replies_are_errors(client, raw, words):
    async with canned(raw) as (url, _):
        with pytest.raises(WorkerError, match=facts(words)) as caught:
            await ask(url, client)
    assert caught.value.fault == "reply"


async def test_an_endless_line_in_a_stream_is_an_error(client):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: "
    async with canned(head, *[b"x" * 65536] * 32) as (url, _):
        with pytest.raises(WorkerError, match=facts("1048576")) as caught:
            await ask(url, client, observe=[].append)
    assert caught.value.fault == "reply"


async def test_a_stream_without_end_is_an_error(client):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    event = b"data: " + json.dumps({"choices": [{"delta": {"content": "x" * 60000}}]}).encode() + b"\n\n"
    async with canned(head, *[event] * 200) as (url, _):
        with pytest.raises(WorkerError, match=facts("8388608")):
            await ask(url, client, observe=[].append)


async def test_hanging_up_before_a_reply_is_a_connect_fault(client):
    async with canned() as (url, _):
        with pytest.raises(WorkerError) as caught:
            await ask(url, client)
    assert caught.value.fault == "connect"


async def test_json_was_sent_where_a_stream_was_asked_for(client):
    async with canned(http({"error": {"message": "no streams here"}})) as (url, _):
        with pytest.raises(WorkerError, match=facts("application/json no streams here")):
            await ask(url, client, observe=[].append)


@pytest.mark.parametrize("body", [[{"error": {"message": "nope"}}], {"detail": "nope"}, {"message": "nope"}, "nope"])
async def test_error_bodies_of_many_shapes_are_quoted(client, body):
    async with canned(http(body, status="422 Unprocessable")) as (url, _):
        with pytest.raises(WorkerError, match=facts("HTTP 422 Unprocessable nope")) as caught:
            await ask(url, client)
    assert (caught.value.fault, caught.value.status) == ("request", 422)


@pytest.mark.parametrize(
    "url", ["", "api.openai.com/v1", "ftp://x", "http://", "http://user:pass-word@x/v1", "http://[x"]
)
def test_an_unusable_base_url_is_a_config_error(url):
    with pytest.raises(ConfigError, match=facts("base_url")) as caught:
        HttpWorker(WorkerInfo("w"), OpenAIWire(), HttpClient(), base_url=url)
    assert "pass-word" not in str(caught.value)


def test_time_outs_must_be_above_0_and_known():
    with pytest.raises(ValueError, match=facts("chunk_s 0")):
        Timeouts(chunk_s=0)
    with pytest.raises(msgspec.ValidationError, match=facts("total")):
        msgspec.convert({"total": 5}, Timeouts)
