"""Every fault of a provider ends as its documented `WorkerError`, in time, on every wire, streamed or not."""

import asyncio
import email.utils
import time

import pytest

from dirigent.errors import WorkerError
from dirigent.messages import Message, Request, ignore
from dirigent.workers.anthropic import AnthropicWire
from dirigent.workers.gemini import GeminiWire
from dirigent.workers.http import HttpClient, HttpWorker, Timeouts, fault_of, retry_after_s
from dirigent.workers.openai import OpenAIWire
from dirigent.workers.worker import WorkerInfo
from tests.facts import facts, says
from tests.stub_provider import FAULTS, WIRES, StubProvider

MAKE = {"openai": OpenAIWire, "anthropic": AnthropicWire, "gemini": GeminiWire}
ASK = Request((Message("user", "tell me a story"),))

DOCUMENTED = {
    "429": ("rate_limited", "HTTP 429"),
    "429-retry-after": ("rate_limited", "HTTP 429"),
    "500": ("overloaded", "HTTP 500"),
    "502": ("overloaded", "HTTP 502"),
    "503": ("overloaded", "HTTP 503"),
    "connect-refused": ("connect", "127.0.0.1"),
    "connect-hang": ("timeout", "connect_s"),
    "first-byte-hang": ("timeout", "first_byte_s"),
    "mid-stream-stall": ("timeout", "chunk_s"),
    "one-byte-per-s": ("timeout", "total_s"),
    "garbage-json": ("reply", ""),
    "200-error-body": ("reply", "it broke"),
    "truncated-sse": ("reply", ""),
    "reset-mid-stream": ("reply", ""),
    "wrong-content-type": ("reply", "text/html"),
}
SHORT = {
    "connect-hang": Timeouts(connect_s=0.2),
    "first-byte-hang": Timeouts(first_byte_s=0.2),
    "mid-stream-stall": Timeouts(chunk_s=0.2),
    "one-byte-per-s": Timeouts(total_s=0.3),
}


@pytest.fixture
async def stub():
    async with StubProvider() as stub:
        stub.byte_delay_s = 0.01
        yield stub


@pytest.fixture
async def client():
    async with HttpClient() as client:
        yield client


def worker(stub, client, wire, *, fault=None):
    timeout = SHORT.get(fault, Timeouts())
    info = WorkerInfo("w", model="m")
    return HttpWorker(info, MAKE[wire](), client, base_url=stub.url(wire, fault=fault), timeout=timeout)


def test_there_are_fourteen_modes_and_each_is_documented():
    assert len(set(FAULTS)) == 14
    assert set(DOCUMENTED) == {*FAULTS, "429-retry-after"}


@pytest.mark.parametrize("observed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", DOCUMENTED)
async def test_a_fault_ends_as_its_documented_error_in_time(stub, client, fault, wire, observed):
    seen = []
    started = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        await worker(stub, client, wire, fault=fault).ask(ASK, observe=seen.append if observed else ignore)
    kind, words = DOCUMENTED[fault]
    assert caught.value.fault == kind
    assert says(str(caught.value), words)
    assert caught.value.worker == "w"
    assert caught.value.retryable
    assert caught.value.retry_after_s == (1.0 if fault == "429-retry-after" else None)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("wire", WIRES)
async def test_after_every_fault_the_same_worker_answers_again(stub, client, wire):
    scripted = [fault for fault in DOCUMENTED if not SHORT.get(fault)]
    stub.faults = [step for fault in scripted for step in (fault, None)]
    asked = worker(stub, client, wire)
    for fault in scripted:
        with pytest.raises(WorkerError):
            await asked.ask(ASK)
        assert (await asked.ask(ASK)).text == "echo: tell me a story", f"after {fault}"
    assert [call.fault for call in stub.calls] == [step for fault in scripted for step in (fault, None)]


@pytest.mark.parametrize("observed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", ["first-byte-hang", "mid-stream-stall"])
async def test_cancelling_reaches_the_provider_within_a_second(stub, client, fault, wire, observed):
    stub.faults = [fault]
    observe = (lambda event: None) if observed else ignore
    asking = asyncio.create_task(worker(stub, client, wire).ask(ASK, observe=observe))
    call = await stub.called()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    async with asyncio.timeout(1):
        await call.ended.wait()
    assert call.aborted


@pytest.mark.parametrize("wire", WIRES)
async def test_a_time_out_hangs_up_on_the_provider(stub, client, wire):
    with pytest.raises(WorkerError, match="first_byte_s"):
        await worker(stub, client, wire, fault="first-byte-hang").ask(ASK)
    async with asyncio.timeout(1):
        await stub.calls[0].ended.wait()
    assert stub.calls[0].aborted


async def test_a_provider_that_went_down_is_refused_and_answers_when_it_is_back(stub, client):
    asked = worker(stub, client, "openai")
    await stub.go_down()
    with pytest.raises(WorkerError, match=facts("127.0.0.1")) as caught:
        await asked.ask(ASK)
    assert caught.value.fault == "connect"
    await stub.come_up()
    assert (await asked.ask(ASK)).text == "echo: tell me a story"


async def test_seeded_faults_are_the_same_every_time():
    def drawn(seed):
        stub = StubProvider(fault_rate=0.5, seed=seed)
        return [stub._next_fault() for _ in range(50)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 10 < sum(fault is None for fault in drawn(1)) < 40


def test_statuses_and_their_faults():
    faults = {status: fault_of(status) for status in (204, 302, 400, 401, 402, 403, 404, 408, 409, 422, 429, 500, 529)}
    assert faults == {
        204: "reply",
        302: "request",
        400: "request",
        401: "auth",
        402: "request",
        403: "auth",
        404: "request",
        408: "overloaded",
        409: "overloaded",
        422: "request",
        429: "rate_limited",
        500: "overloaded",
        529: "overloaded",
    }


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "2"}, 2.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "Retry-After": "1"}, 0.25),
        ({"Retry-After": email.utils.formatdate(1030, usegmt=True)}, 30.0),
        ({"Retry-After": email.utils.formatdate(900, usegmt=True)}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}, None),
        ({"Retry-After": "Mon, 01 Jan 2024 00:00:00 +999999999999999"}, None),
    ],
)
def test_retry_after(headers, seconds):
    assert retry_after_s(headers, now_s=1000.0) == seconds
