"""A provider that writes more than it was allowed: its stream is cut, its whole replies are paid and marked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dirigent.errors import CostError
from dirigent.limits import Budget
from dirigent.messages import Event, Message, Request, Usage
from dirigent.workers.anthropic import AnthropicWire
from dirigent.workers.gemini import GeminiWire
from dirigent.workers.http import MOST_CHARS_PER_TOKEN, SPARE_CHARS, HttpClient, HttpWorker
from dirigent.workers.metering import Metered
from dirigent.workers.openai import OpenAIWire
from dirigent.workers.wire import Wire
from dirigent.workers.worker import Price, WorkerInfo
from tests.facts import facts
from tests.stub_provider import StubProvider
from tests.stub_wires import WIRES, StubReply, WireName

MAKE: dict[WireName, Any] = {"openai": OpenAIWire, "anthropic": AnthropicWire, "gemini": GeminiWire}
LONG = "again and " * 4000
ALLOWED = 50


@pytest.fixture
async def stub() -> AsyncIterator[StubProvider]:
    async with StubProvider(lambda call: LONG) as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    async with HttpClient() as opened:
        yield opened


def worker(stub: StubProvider, client: HttpClient, wire: WireName) -> Metered:
    made: Wire = MAKE[wire]()
    info = WorkerInfo("big", model="m", price=Price(input=1, output=2))
    return Metered(HttpWorker(info, made, client, base_url=stub.url(wire)))


def asked(ledger: Budget | None = None) -> Request:
    return Request((Message("user", "hi"),), max_output_tokens=ALLOWED, ledger=ledger)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_is_cut_and_its_connection_closed(
    stub: StubProvider, client: HttpClient, wire: WireName
) -> None:
    stub.chunk_delay_s = 0.001
    seen: list[Event] = []
    reply = await worker(stub, client, wire).ask(asked(Budget()), observe=seen.append)
    most = SPARE_CHARS + MOST_CHARS_PER_TOKEN * ALLOWED
    assert (reply.finish, LONG.startswith(reply.text)) == ("length", True)
    assert most < len(reply.text) < most + 50
    assert len(seen) == len(reply.text.split())
    assert reply.usage.output_tokens == -(-len(reply.text) // 4)
    assert reply.attempts[0].overran
    async with asyncio.timeout(5):
        await stub.calls[0].ended.wait()
    assert stub.calls[0].aborted


@pytest.mark.parametrize("wire", WIRES)
async def test_reasoning_that_does_not_end_is_cut_too(stub: StubProvider, client: HttpClient, wire: WireName) -> None:
    stub.answer = lambda call: StubReply("yes", reasoning=LONG)
    reply = await worker(stub, client, wire).ask(asked(Budget()), observe=lambda event: None)
    assert (reply.finish, reply.text) == ("length", "")
    assert reply.usage.output_tokens == len(LONG) // 4


async def test_a_worker_within_its_limit_is_unchanged(stub: StubProvider, client: HttpClient) -> None:
    stub.answer = lambda call: StubReply("word " * ALLOWED, finish="length", usage=Usage(10, ALLOWED))
    for observe in (None, lambda event: None):
        more = {} if observe is None else {"observe": observe}
        reply = await worker(stub, client, "openai").ask(asked(Budget()), **more)
        assert (reply.text, reply.attempts[0].overran) == ("word " * ALLOWED, False)


async def test_a_whole_reply_is_paid_in_full_and_no_further_call_begins(stub: StubProvider, client: HttpClient) -> None:
    stub.answer = lambda call: StubReply("much", usage=Usage(10, 10_000))
    budget = Budget(max_cost_usd=0.001)
    big = worker(stub, client, "openai")
    reply = await big.ask(asked(budget))
    assert reply.attempts[0].overran
    assert reply.cost_usd == budget.spent_usd == pytest.approx(10 * 1e-6 + 10_000 * 2e-6)
    with pytest.raises(CostError, match=facts("$0")):
        await big.ask(asked(budget))
    assert len(stub.calls) == 1


async def test_without_a_limit_nothing_is_cut(stub: StubProvider, client: HttpClient) -> None:
    reply = await worker(stub, client, "openai").ask(Request((Message("user", "hi"),)), observe=lambda event: None)
    assert (reply.text, reply.attempts[0].overran) == (LONG, False)
