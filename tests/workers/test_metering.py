"""Metering: every call is reserved before it is made, and settled or charged afterwards."""

from __future__ import annotations

import asyncio

import pytest

from dirigent.errors import CostError, WorkerError
from dirigent.limits import Budget, Hold, Quote
from dirigent.messages import (
    Delta,
    Event,
    Image,
    Message,
    Observe,
    Reply,
    Request,
    Schema,
    Text,
    Tool,
    ToolCall,
    Usage,
    conversation,
    ignore,
)
from dirigent.workers.metering import Metered, attempts_of, most_input_tokens
from dirigent.workers.scripted import Scripted
from dirigent.workers.worker import Price, WorkerInfo
from tests.facts import facts
from tests.workers.clock import Clock

PRICE = Price(input=1_000.0, output=10_000.0, cached_input=100.0)
"""A tenth of a cent a token read, a cent a token written: sums that can be checked by eye."""


def asked(ledger: Budget | None = None, **fields: object) -> Request:
    return Request(conversation("12345678"), ledger=ledger, **fields)  # type: ignore[arg-type]


async def test_a_call_becomes_one_attempt_with_its_cost():
    worker = Metered(Scripted("ok", name="w", price=PRICE, usage=Usage(100, 5, cached_input_tokens=50)))
    reply = await worker.ask(asked())
    (attempt,) = reply.attempts
    assert attempt.worker == "w"
    assert attempt.usage == reply.usage == Usage(100, 5, cached_input_tokens=50)
    assert attempt.cost_usd == reply.cost_usd == pytest.approx(0.05 + 0.005 + 0.05)
    assert attempt.error == ""
    assert not attempt.cached


async def test_input_that_is_put_into_a_cache_is_paid_and_reserved_at_its_own_rate():
    price = Price(input=1_000.0, output=0.0, cached_input=100.0, cache_write_input=1_250.0)
    used = Usage(100, 0, cached_input_tokens=30, cache_write_input_tokens=20)
    assert price.of(used) == pytest.approx(0.05 + 0.003 + 0.025)
    assert price.of(used + used) == pytest.approx(2 * price.of(used))
    assert Price(input=1_000.0).of(used) == pytest.approx(0.1), "no rate of its own: as other input"
    assert price.most_of_input(100) == pytest.approx(0.125)
    budget = Budget(max_cost_usd=1.0)
    reply = await Metered(Scripted("ok", name="w", price=price, usage=used)).ask(asked(budget))
    assert reply.cost_usd == budget.spent_usd == pytest.approx(0.078)


async def test_a_server_that_counts_cached_input_beside_the_input_gives_no_money_back():
    price = Price(input=1_000.0, output=0.0, cached_input=100.0)
    assert price.of(Usage(10, 0, cached_input_tokens=1_000)) == pytest.approx(0.1)
    budget = Budget(max_cost_usd=1.0)
    worker = Scripted("ok", name="w", price=price, usage=Usage(0, 1, cached_input_tokens=1_000))
    await Metered(worker).ask(asked(budget))
    assert budget.spent_usd == pytest.approx(0.1)


async def test_seconds_are_those_of_the_call():
    clock = Clock()

    async def slow(request: Request) -> str:
        await clock.sleep(2.5)
        return "ok"

    reply = await Metered(Scripted(slow), clock=clock).ask(asked())
    assert reply.seconds == reply.attempts[0].seconds == 2.5


async def test_the_ledger_holds_the_worst_case_during_the_call_and_the_truth_after_it():
    budget = Budget(max_cost_usd=1.0)
    held: list[float] = []

    def look(request: Request) -> str:
        held.extend(hold.cost_usd for hold in budget._held.values())
        return "12345678"

    await Metered(Scripted(look, price=PRICE)).ask(asked(budget, max_output_tokens=20))
    assert held == [pytest.approx((16 + 4) * 0.001 + 20 * 0.01)]
    assert budget.spent_usd == pytest.approx(2 * 0.001 + 2 * 0.01)
    assert budget.spent_tokens == 2
    assert not budget._held


async def test_a_call_may_write_no_more_than_the_ledger_and_the_model_allow():
    inner = Scripted("x" * 1_000, price=PRICE, output_tokens=50)
    await Metered(inner).ask(asked())
    await Metered(inner).ask(asked(max_output_tokens=30))
    await Metered(inner).ask(asked(Budget(max_cost_usd=0.02 + 0.25)))
    assert [request.max_output_tokens for request in inner.requests] == [50, 30, 25]


async def test_a_call_that_cannot_be_paid_is_not_made():
    inner = Scripted("never", price=PRICE)
    with pytest.raises(CostError, match=facts("scripted $0.01")) as caught:
        await Metered(inner).ask(asked(Budget(max_cost_usd=0.01)))
    assert inner.calls == 0
    assert caught.value.attempts == ()


async def test_a_failed_call_is_on_the_error_and_costs_nothing_if_nothing_came():
    budget = Budget(max_cost_usd=1.0)
    worker = Metered(Scripted(WorkerError("503 from upstream", fault="overloaded"), name="w", price=PRICE))
    with pytest.raises(WorkerError) as caught:
        await worker.ask(asked(budget))
    (attempt,) = caught.value.attempts
    assert (attempt.error, attempt.cost_usd, attempt.usage) == ("503 from upstream", 0.0, Usage())
    assert caught.value.worker == "w"
    assert budget.spent_usd == 0.0
    assert not budget._held


class BreaksOff:
    """Writes eight characters, then stalls or fails."""

    info = WorkerInfo("broken", price=PRICE)

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.writing = asyncio.Event()

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        observe(Delta("1234"))
        observe(Delta("5678"))
        self.writing.set()
        if self.error is not None:
            raise self.error
        await asyncio.sleep(3600)
        raise AssertionError


async def test_an_interrupted_stream_is_charged_for_its_input_and_output():
    budget = Budget(max_cost_usd=1.0)
    seen: list[Event] = []
    worker = Metered(BreaksOff(WorkerError("cut", fault="reply")))
    with pytest.raises(WorkerError) as caught:
        await worker.ask(asked(budget), observe=seen.append)
    assert caught.value.attempts[0].usage == Usage(2, 2)
    assert budget.spent_usd == caught.value.attempts[0].cost_usd == pytest.approx(0.022)
    assert seen == [Delta("1234"), Delta("5678")]


async def test_a_reply_that_came_whole_and_cannot_be_used_is_charged_by_its_providers_count():
    budget = Budget(max_cost_usd=1.0)
    unusable = WorkerError("no text in it", fault="reply")
    unusable.usage = Usage(100, 5)
    with pytest.raises(WorkerError) as caught:
        await Metered(Scripted(unusable, price=PRICE)).ask(asked(budget))
    assert caught.value.attempts[0].usage == Usage(100, 5)
    assert budget.spent_usd == caught.value.attempts[0].cost_usd == pytest.approx(0.15)


async def test_a_reply_that_cannot_be_used_and_was_longer_than_it_may_be_is_marked_too():
    unusable = WorkerError("no text in it", fault="reply")
    unusable.usage = Usage(1, 50)
    for most, overran in ((20, True), (50, False)):
        with pytest.raises(WorkerError) as caught:
            await Metered(Scripted(unusable, price=PRICE)).ask(asked(Budget(), max_output_tokens=most))
        assert caught.value.attempts[0].overran == overran


async def test_a_ledger_that_rounds_to_billionths_makes_no_call_an_overrun():
    class Rounding(Budget):
        async def reserve(self, quote: Quote) -> Hold:
            hold = await super().reserve(quote)
            return Hold(hold.id, hold.cost_usd - 0.5e-9, hold.max_output_tokens)

    worker = Metered(Scripted("ok", price=Price(input=0.0, output=10_000.0), usage=Usage(2, 20)))
    reply = await worker.ask(asked(Rounding(), max_output_tokens=20))
    assert reply.cost_usd == pytest.approx(0.2)
    assert not reply.attempts[0].overran


async def test_the_ledger_learns_whether_the_price_is_known():
    quotes: list[Quote] = []

    class Noting(Budget):
        async def reserve(self, quote: Quote) -> Hold:
            quotes.append(quote)
            return await super().reserve(quote)

    for price in (None, Price()):
        await Metered(Scripted("ok", price=price)).ask(asked(Noting()))
    assert [quote.priced for quote in quotes] == [False, True]


async def test_a_cancelled_call_is_charged_settled_and_observed():
    budget = Budget(max_cost_usd=1.0)
    inner = BreaksOff()
    task = asyncio.ensure_future(Metered(inner).ask(asked(budget), observe=lambda event: None))
    await inner.writing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    (attempt,) = attempts_of(caught.value)
    assert (attempt.error, attempt.usage) == ("cancelled", Usage(2, 2))
    assert budget.spent_usd == attempt.cost_usd == pytest.approx(0.022)
    assert not budget._held


async def test_the_tools_and_images_of_a_cancelled_call_were_read_too():
    inner = BreaksOff()
    tools = (Tool("look", {}, description="x" * 400),)
    messages = (Message("user", (Text("look"), Image(url="https://x/y.png"))),)
    task = asyncio.ensure_future(Metered(inner).ask(Request(messages, tools=tools)))
    await inner.writing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert attempts_of(caught.value)[0].usage.input_tokens > 1_600


async def test_a_bug_in_a_worker_propagates_and_leaves_no_hold():
    budget = Budget(max_cost_usd=1.0)
    with pytest.raises(ZeroDivisionError) as caught:
        await Metered(Scripted(ZeroDivisionError("oops"), price=PRICE)).ask(asked(budget))
    assert attempts_of(caught.value)[0].error == "ZeroDivisionError: oops"
    assert not budget._held


class Door:
    """A ledger that admits no call, like a hanging database."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def reserve(self, quote: Quote) -> Hold:
        self.reached.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody opens it")

    def settle(self, hold: Hold, *, cost_usd: float, output_tokens: int) -> None:
        raise AssertionError("what was never reserved cannot be settled")


async def test_a_call_cancelled_while_it_is_reserved_is_not_made_and_leaves_no_hold():
    door = Door()
    budget = Budget(max_cost_usd=1.0, parent=door)
    inner = Scripted("12345678", price=PRICE)
    request = Request(conversation("12345678"), ledger=budget, max_output_tokens=20)
    task = asyncio.ensure_future(Metered(inner).ask(request))
    await door.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert inner.calls == 0
    assert attempts_of(caught.value) == ()
    assert not budget._held
    assert budget.spent_usd == 0


async def test_a_cost_stated_by_the_worker_overrides_the_price():
    reply = await Metered(Scripted(Reply("x", cost_usd=0.5), price=PRICE)).ask(asked())
    assert reply.cost_usd == reply.attempts[0].cost_usd == 0.5


async def test_a_worker_without_a_price_costs_nothing():
    budget = Budget()
    reply = await Metered(Scripted("12345678")).ask(asked(budget))
    assert reply.attempts[0].cost_usd == 0.0
    assert reply.attempts[0].usage == Usage(2, 2)
    assert budget.spent_tokens == 2


class Uncounted:
    info = WorkerInfo("uncounted", price=PRICE)

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        assert observe is ignore, "there is no observer, so nothing need be streamed"
        return Reply("12345678")


async def test_a_reply_without_counts_is_estimated_since_it_was_not_free():
    reply = await Metered(Uncounted()).ask(asked())
    assert reply.usage == Usage(2, 2)
    assert reply.cost_usd == pytest.approx(0.022)


def test_the_input_is_estimated_generously():
    plain = Request(conversation("x" * 100))
    assert most_input_tokens(plain) == 16 + 50
    assert most_input_tokens(Request(conversation("語" * 100))) == 16 + 150
    assert most_input_tokens(Request(conversation("\ud800"))) == 16 + 1
    picture = Message("user", (Text("x" * 100), Image(url="https://example.com/a.png")))
    assert most_input_tokens(Request((picture,))) == 16 + 50 + 1_500
    called = Message("assistant", tool_calls=(ToolCall("1", "look", "{}"),))
    assert most_input_tokens(Request((called,))) == 16 + 3
    tool = Tool("look", {"type": "object", "properties": {"where": {"type": "string"}}})
    assert most_input_tokens(Request((), tools=(tool,))) > 16 + 40
    assert most_input_tokens(Request((), schema=Schema({"type": "object"}))) > 16 + 20


@pytest.mark.parametrize(
    ("reply", "wrong"),
    [
        (Reply("four", usage=Usage(-5, 1)), "input_tokens -5"),
        (Reply("four", usage=Usage(5, 10**9)), "output_tokens 1000000000"),
        (Reply("four", usage=Usage(5, 1.5)), "output_tokens 1.5"),  # type: ignore[arg-type]
        (Reply("four", usage=Usage(5, 1, cached_input_tokens=-1)), "cached_input_tokens -1"),
        (Reply("four", cost_usd=float("nan")), "cost_usd nan"),
        (Reply("four", cost_usd=float("inf")), "cost_usd inf"),
        (Reply("four", cost_usd=-0.5), "cost_usd -0.5"),
    ],
)
async def test_a_reply_with_figures_that_are_none_is_refused_and_on_the_bill(reply: Reply, wrong: str):
    budget = Budget(max_cost_usd=100.0)
    with pytest.raises(WorkerError, match=facts(f"w {wrong}")) as caught:
        await Metered(Own(reply)).ask(asked(budget, max_output_tokens=100))
    (attempt,) = caught.value.attempts
    assert caught.value.fault == "reply"
    assert attempt.cost_usd == budget.spent_usd == pytest.approx(attempt.usage.input_tokens * 0.001 + 0.01)
    assert attempt.usage.input_tokens > 0


async def test_an_error_cannot_count_money_back_either():
    error = WorkerError("no", fault="reply")
    error.usage = Usage(-5, -5)
    budget = Budget(max_cost_usd=100.0)
    with pytest.raises(WorkerError) as caught:
        await Metered(Own(error)).ask(asked(budget, max_output_tokens=100))
    (attempt,) = caught.value.attempts
    assert attempt.usage == Usage()
    assert budget.spent_usd == 0


async def test_half_a_character_in_a_reply_becomes_a_mark():
    for text, shown in (("\ud83d", "\ufffd"), ("\ud83d\ude00", "\U0001f600"), ("ünï", "ünï")):
        reply = await Metered(Own(Reply(text))).ask(asked())
        assert reply.text == shown


class Own:
    """A user's own worker, which no test of ours has checked."""

    info = WorkerInfo("w", price=PRICE)

    def __init__(self, outcome: Reply | Exception) -> None:
        self.outcome = outcome

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome
