"""Retries: which faults are tried again, how long they wait, and the record of every try."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from dirigent.errors import ConfigError, CostError, Fault, StoreError, WorkerError
from dirigent.limits import Budget, Hold, Quote
from dirigent.messages import Delta, Event, Observe, Reply, Request, conversation, ignore
from dirigent.workers.metering import Metered, attempts_of
from dirigent.workers.retrying import RetryBudget, Retrying
from dirigent.workers.scripted import Scripted
from dirigent.workers.worker import Price, WorkerInfo
from tests.workers.clock import Clock

ASKED = Request(conversation("hi"))


def fault(name: Fault = "overloaded", **fields: Any) -> WorkerError:
    return WorkerError(f"{name} it is", fault=name, **fields)


def retrying(inner: Scripted, clock: Clock, **settings: Any) -> Retrying:
    return Retrying(Metered(inner), rng=random.Random(1), clock=clock, sleep=clock.sleep, **settings)


@pytest.mark.parametrize("name", ["connect", "timeout", "rate_limited", "overloaded", "reply"])
async def test_a_passing_fault_is_tried_again_and_every_try_is_on_the_reply(name: Fault):
    inner = Scripted(fault(name), fault(name), "ok")
    reply = await retrying(inner, Clock()).ask(ASKED)
    assert reply.text == "ok"
    assert [attempt.error for attempt in reply.attempts] == [f"{name} it is", f"{name} it is", ""]


@pytest.mark.parametrize("name", ["auth", "request", "open", "unanswerable", "failed"])
async def test_a_lasting_fault_is_not_tried_again(name: Fault):
    inner = Scripted(fault(name), "ok")
    with pytest.raises(WorkerError):
        await retrying(inner, Clock()).ask(ASKED)
    assert inner.calls == 1


async def test_the_last_error_is_raised_with_every_try_on_it():
    inner = Scripted(fault("connect"), fault("timeout"), fault("overloaded"), "too late")
    with pytest.raises(WorkerError) as caught:
        await retrying(inner, Clock()).ask(ASKED)
    assert caught.value.fault == "overloaded"
    assert [attempt.error for attempt in caught.value.attempts] == [
        "connect it is",
        "timeout it is",
        "overloaded it is",
    ]


async def test_waits_are_drawn_from_a_bound_that_doubles_up_to_a_limit():
    longest = [0.0] * 4
    for seed in range(300):
        clock = Clock()
        worker = Retrying(
            Scripted(fault()),
            retries=4,
            base_s=1.0,
            max_s=3.0,
            rng=random.Random(seed),
            clock=clock,
            sleep=clock.sleep,
        )
        with pytest.raises(WorkerError):
            await worker.ask(ASKED)
        longest = [max(pair) for pair in zip(longest, clock.slept, strict=True)]
    for seen, bound in zip(longest, [1.0, 2.0, 3.0, 3.0], strict=True):
        assert 0.9 * bound < seen <= bound


async def test_retry_after_is_honoured():
    clock = Clock()
    await retrying(Scripted(fault("rate_limited", retry_after_s=7.0), "ok"), clock).ask(ASKED)
    assert 7.0 <= clock.slept[0] <= 7.5


async def test_a_provider_that_asks_for_too_much_patience_is_given_up_at_once():
    clock = Clock()
    with pytest.raises(WorkerError):
        await retrying(Scripted(fault("rate_limited", retry_after_s=31.0), "ok"), clock).ask(ASKED)
    assert clock.slept == []


async def test_the_most_patience_that_is_had_is_had():
    clock = Clock()
    await retrying(Scripted(fault("rate_limited", retry_after_s=30.0), "ok"), clock).ask(ASKED)
    assert 30.0 <= clock.slept[0] <= 30.5


async def test_those_sent_away_together_do_not_come_back_together():
    clock = Clock()
    worker = retrying(Scripted(*[fault("rate_limited", retry_after_s=7.0), "ok"] * 5), clock)
    for _ in range(5):
        await worker.ask(ASKED)
    assert max(clock.slept) - min(clock.slept) > 0.1


async def test_it_does_not_sleep_past_the_deadline():
    clock = Clock()
    inner = Scripted(fault(retry_after_s=5.0), "ok")
    with pytest.raises(WorkerError):
        await retrying(inner, clock).ask(Request(ASKED.messages, deadline=clock() + 4.0))
    assert (inner.calls, clock.slept) == (1, [])
    inner = Scripted(fault(retry_after_s=5.0), "ok")
    assert (await retrying(inner, clock).ask(Request(ASKED.messages, deadline=clock() + 6.0))).text == "ok"


class BreaksOff:
    """Fails on every call, after `words` words."""

    info = WorkerInfo("broken")

    def __init__(self, words: int) -> None:
        self.words = words
        self.calls = 0

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        self.calls += 1
        for _ in range(self.words):
            observe(Delta("word "))
        raise fault("reply")


@pytest.mark.parametrize(("words", "calls"), [(0, 3), (1, 1)])
async def test_after_the_first_word_was_seen_nothing_is_tried_again(words: int, calls: int):
    clock = Clock()
    inner = BreaksOff(words)
    seen: list[Event] = []
    with pytest.raises(WorkerError):
        await Retrying(inner, clock=clock, sleep=clock.sleep).ask(ASKED, observe=seen.append)
    assert inner.calls == calls
    assert len(seen) == words


async def test_words_that_no_observer_saw_do_not_prevent_a_retry():
    clock = Clock()
    inner = BreaksOff(1)
    with pytest.raises(WorkerError):
        await Retrying(inner, clock=clock, sleep=clock.sleep).ask(ASKED)
    assert inner.calls == 3


async def test_without_money_for_another_try_the_fault_is_the_error():
    clock = Clock()

    class Once(Budget):
        async def reserve(self, quote: Any) -> Any:
            self.asked = getattr(self, "asked", 0) + 1
            if self.asked > 1:
                raise CostError("nothing left")
            return await super().reserve(quote)

    inner = Scripted(fault("overloaded"), "ok", price=Price(1, 1))
    with pytest.raises(WorkerError, match="overloaded it is") as caught:
        await retrying(inner, clock).ask(Request(ASKED.messages, ledger=Once(max_cost_usd=1.0)))
    assert len(caught.value.attempts) == 1
    assert isinstance(caught.value.__cause__, CostError)


async def test_a_first_try_without_money_is_a_cost_error():
    with pytest.raises(CostError):
        await retrying(Scripted("x", price=Price(1, 1)), Clock()).ask(
            Request(ASKED.messages, ledger=Budget(max_cost_usd=0.0))
        )


async def test_a_failing_ledgers_error_lists_every_earlier_try():
    class Once(Budget):
        calls = 0

        async def reserve(self, quote: Quote) -> Hold:
            self.calls += 1
            if self.calls > 1:
                raise StoreError("the disk is full")
            return await super().reserve(quote)

    with pytest.raises(StoreError) as caught:
        await retrying(Scripted(fault(), "ok"), Clock()).ask(Request(ASKED.messages, ledger=Once()))
    assert [attempt.error for attempt in caught.value.attempts] == ["overloaded it is"]


async def test_a_cancellation_lists_every_earlier_try():
    clock = Clock()
    started = asyncio.Event()

    async def hang(request: Request) -> str:
        started.set()
        await asyncio.sleep(3600)
        return "never"

    hangs = Scripted(fault(), hang)
    task = asyncio.ensure_future(retrying(hangs, clock).ask(ASKED))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert [attempt.error for attempt in attempts_of(caught.value)] == ["overloaded it is", "cancelled"]


@pytest.mark.parametrize("error", [ZeroDivisionError("bug"), ConfigError("the key is gone"), TimeoutError("own")])
async def test_a_forbidden_exception_lists_every_try_with_its_own(error: Exception):
    with pytest.raises(type(error)) as caught:
        await retrying(Scripted(fault(), error), Clock()).ask(ASKED)
    said = f"{type(error).__name__}: {error}"
    assert [attempt.error for attempt in attempts_of(caught.value)] == ["overloaded it is", said]


async def test_a_cancellation_between_tries_lists_them_too():
    sleeping = asyncio.Event()

    async def sleep(seconds: float) -> None:
        sleeping.set()
        await asyncio.sleep(3600)

    task = asyncio.ensure_future(Retrying(Metered(Scripted(fault())), sleep=sleep).ask(ASKED))
    await sleeping.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert [attempt.error for attempt in attempts_of(caught.value)] == ["overloaded it is"]


async def test_retries_are_bounded_by_a_tenth_of_the_calls_and_a_floor():
    frozen = Clock()
    inner = Scripted(fault())

    async def no_wait(seconds: float) -> None:
        return None

    worker = Retrying(inner, clock=frozen, sleep=no_wait)
    for _ in range(1_000):
        with pytest.raises(WorkerError):
            await worker.ask(ASKED)
    assert 1_100 <= inner.calls <= 1_110


def test_a_quiet_worker_earns_its_retries_back_with_time_but_no_storm():
    clock = Clock()
    budget = RetryBudget(clock=clock)
    assert [budget.take() for _ in range(11)] == [True] * 10 + [False]
    clock.now_s += 6.0
    assert [budget.take() for _ in range(2)] == [True, False]
    clock.now_s += 1e6
    assert sum(budget.take() for _ in range(500)) == 100


async def test_the_card_is_passed_through():
    inner = Scripted("x", name="w", about="a")
    assert Retrying(inner).info is inner.info
