"""What a run makes of a failing provider: fourteen fault modes, three wire formats, real sockets.

Retrying, re-assignment and the documented error are looked at apart; cancelling has the same table.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator

import pytest

from dirigent.conduct import Conductor
from dirigent.limits import Limits
from dirigent.messages import Event
from dirigent.plan.plan import Plan, Step
from dirigent.planners.fixed import Fixed, Single
from dirigent.run.step_prompt import ANSWER
from dirigent.run.trace import RunEnded
from dirigent.workers.anthropic import AnthropicWire
from dirigent.workers.breaker import Breaker
from dirigent.workers.gemini import GeminiWire
from dirigent.workers.http import HttpClient, HttpWorker, Timeouts
from dirigent.workers.metering import Metered
from dirigent.workers.openai import OpenAIWire
from dirigent.workers.pool import Pool
from dirigent.workers.retrying import Retrying
from dirigent.workers.worker import Worker, WorkerInfo
from dirigent.workers.wrappers import wrap
from tests.stub_provider import FAULTS, WIRES, StubProvider, WireName

MAKE = {"openai": OpenAIWire, "anthropic": AnthropicWire, "gemini": GeminiWire}
SHORT = Timeouts(connect_s=0.3, first_byte_s=0.3, chunk_s=0.3, total_s=0.6)
DEADLINE_S = 10.0


@pytest.fixture
async def stub() -> AsyncIterator[StubProvider]:
    async with StubProvider() as stub:
        stub.byte_delay_s = 0.05
        yield stub


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    async with HttpClient() as client:
        yield client


def wired(stub: StubProvider, client: HttpClient, wire: WireName, name: str, fault: str | None = None) -> HttpWorker:
    info = WorkerInfo(name, model="m")
    return HttpWorker(info, MAKE[wire](), client, base_url=stub.url(wire, fault=fault), timeout=SHORT)


def quickly(worker: Worker) -> Worker:
    """The standard stack, with pauses too short to wait for."""
    return Retrying(Breaker(Metered(worker)), base_s=0.01, max_s=0.02, rng=random.Random(1))


def conductor(*workers: Worker) -> Conductor:
    return Conductor(Single(), Pool(workers), limits=Limits(deadline_s=DEADLINE_S))


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_worker_that_always_fails_is_replaced(
    stub: StubProvider, client: HttpClient, wire: WireName, fault: str, streamed: bool
) -> None:
    pool = quickly(wired(stub, client, wire, "bad", fault)), quickly(wired(stub, client, wire, "good"))
    seen: list[Event] = []
    running = conductor(*pool)
    trace = await (running.run("hello", observe=seen.append) if streamed else running.run("hello"))
    assert (trace.status, trace.answer) == ("done", "echo: hello")
    assert trace.seconds < DEADLINE_S
    if not streamed and fault == "one-byte-per-s" and trace.steps[0].worker == "bad":
        return  # slow but whole: an answer
    assert trace.steps[0].planned_worker == "bad"
    assert all(attempt.error for attempt in trace.steps[0].attempts[:-1])


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_that_passes_is_mended_by_a_retry(
    stub: StubProvider, client: HttpClient, wire: WireName, fault: str
) -> None:
    stub.faults = [fault]
    trace = await conductor(quickly(wired(stub, client, wire, "only"))).run("hello")
    assert (trace.status, trace.answer) == ("done", "echo: hello")
    assert len(trace.attempts) == 2


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", FAULTS)
async def test_without_another_worker_the_run_fails_with_the_reason_and_no_part_of_an_answer(
    stub: StubProvider, client: HttpClient, wire: WireName, fault: str
) -> None:
    trace = await conductor(quickly(wired(stub, client, wire, "only", fault))).run("hello")
    assert (trace.status, trace.error_kind, trace.answer) == ("failed", "WorkerError", "")
    assert "only" in trace.error
    assert len(trace.attempts) == 3, "one try and two retries"
    assert trace.seconds < DEADLINE_S


async def test_retry_after_is_waited_for(stub: StubProvider, client: HttpClient) -> None:
    stub.faults = ["429-retry-after"]
    stub.retry_after = "1"
    trace = await conductor(quickly(wired(stub, client, "openai", "only"))).run("hello")
    assert trace.answer == "echo: hello"
    assert stub.calls[1].started_at - stub.calls[0].started_at >= 1.0


async def test_one_of_two_workers_is_dead_and_200_of_200_are_answered(stub: StubProvider, client: HttpClient) -> None:
    """Plans name either worker at random, with the stack that configured workers really get."""
    rng = random.Random(2)
    pool = Pool(
        [
            wrap(wired(stub, client, "openai", "dead", "connect-refused"), rng=random.Random(3)),
            wrap(wired(stub, client, "openai", "alive"), rng=random.Random(4)),
        ]
    )

    async def ask(number: int) -> bool:
        plan = Plan((Step(rng.choice(pool.names), ANSWER),))
        trace = await Conductor(Fixed(plan), pool, limits=Limits(deadline_s=30)).run(f"question {number}")
        return trace.answer == f"echo: question {number}"

    answered = 0
    for start in range(0, 200, 20):
        answered += sum(await asyncio.gather(*(ask(number) for number in range(start, start + 20))))
    assert answered == 200


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("moment", ["waiting", "between retries", "second step"])
async def test_cancelling_reaches_the_provider_within_a_second_and_starts_nothing_more(
    stub: StubProvider, client: HttpClient, wire: WireName, moment: str, streamed: bool
) -> None:
    stub.delay_s = 30.0 if moment == "waiting" else 0.0
    if moment == "between retries":
        stub.faults = ["429-retry-after"]
        stub.retry_after = "20"
    worker = quickly(wired(stub, client, wire, "w"))
    plan = Plan((Step("w", ANSWER), Step("w", "again", (0,)), Step("w", "and again", (1,))))
    seen: list[Event] = []
    running = asyncio.create_task(
        Conductor(Fixed(plan), Pool([worker])).run("hello", observe=seen.append if streamed else lambda event: None)
    )
    calls = 2 if moment == "second step" else 1
    if moment == "second step":
        await stub.called(1)
        stub.delay_s = 30.0
    call = await asyncio.wait_for(stub.called(calls), 5)
    await asyncio.sleep(0.05)
    cancelled_at = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    if moment != "between retries":
        await asyncio.wait_for(call.ended.wait(), 1.0)
        assert call.aborted_at is not None
        assert call.aborted_at - cancelled_at < 1.0
    await asyncio.sleep(0.1)
    assert len(stub.calls) == calls
    if streamed:
        assert isinstance(seen[-1], RunEnded)
        assert seen[-1].trace.status == "cancelled"
