"""Wrappers around a worker: retry, breaker, limits and deadlines together."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

from dirigent.errors import WorkerError
from dirigent.limits import Budget
from dirigent.messages import Request, Usage, conversation
from dirigent.workers.breaker import Breaker
from dirigent.workers.metering import Metered
from dirigent.workers.scripted import Scripted
from dirigent.workers.worker import Price, Worker, layers
from dirigent.workers.wrappers import Defaults, wrap

ASKED = Request(conversation("hi"))


class Still(random.Random):
    """Draws zero, so that retries do not wait."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


def fault(name: Any = "overloaded") -> WorkerError:
    return WorkerError(f"{name} it is", fault=name)


def names(worker: Worker) -> list[str]:
    return [type(layer).__name__ for layer in layers(worker)]


def test_the_stack_has_the_layers_that_were_asked_for(tmp_path: Path):
    inner = Scripted("x", name="w")
    assert names(wrap(inner)) == ["Masked", "Retrying", "Breaker", "Metered", "Scripted"]
    full = wrap(inner, requests_per_minute=60, concurrency=4, cache=tmp_path)
    assert names(full) == ["Cached", "Masked", "Retrying", "RateLimited", "Breaker", "Metered", "Scripted"]
    assert full.info is inner.info


async def test_every_try_is_metered_and_counted_by_the_breaker():
    budget = Budget(max_cost_usd=10.0)
    inner = Scripted(fault(), fault(), "ok", price=Price(1e4, 1e4), usage=Usage(10, 10))
    worker = wrap(inner, rng=Still())
    reply = await worker.ask(Request(ASKED.messages, ledger=budget, max_output_tokens=20))
    assert [attempt.error for attempt in reply.attempts] == ["overloaded it is", "overloaded it is", ""]
    assert budget.spent_usd == sum(attempt.cost_usd for attempt in reply.attempts) == pytest.approx(0.2)
    (breaker,) = [layer for layer in layers(worker) if isinstance(layer, Breaker)]
    assert (len(breaker._outcomes), breaker._failures) == (3, 2)


async def test_a_dead_endpoint_is_left_alone_after_ten_calls_and_refused_at_once():
    inner = Scripted(fault("connect"), name="dead")
    worker = wrap(inner, rng=Still())
    faults = []
    for _ in range(100):
        with pytest.raises(WorkerError) as caught:
            await worker.ask(ASKED)
        faults.append(caught.value.fault)
    assert inner.calls == 10
    assert faults[-1] == "open"
    with pytest.raises(WorkerError) as caught:
        await worker.ask(ASKED)
    assert caught.value.attempts == (), "nothing was sent, so nothing is on the bill"


async def test_an_open_breaker_empties_the_queue_of_a_rate_limit():
    inner = Scripted(fault("connect"), name="dead")
    worker = wrap(inner, retries=0, requests_per_minute=11, rng=Still())
    began = time.monotonic()
    outcomes = await asyncio.gather(*(worker.ask(ASKED) for _ in range(200)), return_exceptions=True)
    assert time.monotonic() - began < 10.0, "the other 190 wait for no turn that they do not need"
    assert inner.calls == 10
    assert sum(isinstance(o, WorkerError) and o.fault == "open" for o in outcomes) == 190


async def test_a_cached_answer_needs_neither_turn_nor_endpoint():
    inner = Scripted("ok", fault("connect"))
    worker = wrap(inner, requests_per_minute=1, cache={})
    pinned = Request(ASKED.messages, temperature=0, deadline=time.monotonic() + 5)
    assert [(await worker.ask(pinned)).text for _ in range(3)] == ["ok"] * 3
    assert inner.calls == 1


async def test_two_hundred_at_once_settle_every_hold():
    rng = random.Random(5)

    def sometimes(request: Request) -> str | WorkerError:
        return fault(rng.choice(["connect", "reply", "auth"])) if rng.random() < 0.2 else "fine"

    budget = Budget(max_cost_usd=5.0, max_output_tokens=100_000)
    worker = wrap(Scripted(sometimes, price=Price(100, 100)), concurrency=20, rng=Still())
    request = Request(ASKED.messages, ledger=budget, max_output_tokens=50)
    outcomes = await asyncio.gather(*(worker.ask(request) for _ in range(200)), return_exceptions=True)
    attempts = [attempt for outcome in outcomes for attempt in getattr(outcome, "attempts", ())]
    assert not budget._held
    assert budget.spent_usd == pytest.approx(sum(attempt.cost_usd for attempt in attempts))
    assert budget.spent_usd <= 5.0


async def test_a_breaker_rests_for_its_workers_configured_time():
    worker = wrap(Scripted(WorkerError("down", fault="connect")), retries=0, breaker_rest_s=7.0)
    for _ in range(10):
        with pytest.raises(WorkerError, match="down"):
            await worker.ask(ASKED)
    with pytest.raises(WorkerError) as refused:
        await worker.ask(ASKED)
    assert refused.value.fault == "open"
    assert 6 < refused.value.retry_after_s <= 7


async def test_a_workers_system_line_stays_under_a_grammar():
    inner = Scripted("yes")
    await Defaults(inner, system="Answer in German.").ask(Request(ASKED.messages, grammar='root ::= "ja"'))
    assert [message.role for message in inner.requests[0].messages] == ["system", "user"]


async def test_a_workers_limit_on_its_answers_does_not_cut_its_drafts():
    inner = Scripted("plan")
    worker = Defaults(Metered(inner), max_output_tokens=48)
    await worker.ask(Request(ASKED.messages, max_output_tokens=1000, drafts=True))
    await worker.ask(Request(ASKED.messages, max_output_tokens=1000))
    assert [request.max_output_tokens for request in inner.requests] == [1000, 48]
