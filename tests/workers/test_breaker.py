"""The breaker: it opens after failures, lets one probe try again, and closes."""

from __future__ import annotations

import asyncio

import pytest

from dirigent.errors import CostError, Fault, WorkerError
from dirigent.messages import Reply, Request, conversation
from dirigent.workers.breaker import Breaker
from dirigent.workers.scripted import Scripted
from tests.facts import facts
from tests.workers.clock import Clock

ASKED = Request(conversation("hi"))


class Endpoint:
    """Up or down, as the test says."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.worker = Scripted(self._answer, name="w")

    def _answer(self, request: Request) -> str | Exception:
        return "ok" if self.fault is None else WorkerError("no", fault=self.fault)

    @property
    def calls(self) -> int:
        return self.worker.calls


async def ask(breaker: Breaker, times: int = 1) -> list[str]:
    """The faults of so many calls, or "ok"."""
    outcomes: list[str] = []
    for _ in range(times):
        try:
            outcomes.append((await breaker.ask(ASKED)).text)
        except WorkerError as error:
            outcomes.append(error.fault)
    return outcomes


async def opened(endpoint: Endpoint, clock: Clock) -> Breaker:
    breaker = Breaker(endpoint.worker, clock=clock)
    endpoint.fault = "overloaded"
    await ask(breaker, 10)
    assert breaker.state == "open"
    return breaker


@pytest.mark.parametrize("fault", ["connect", "timeout", "overloaded", "rate_limited", "reply"])
async def test_it_opens_at_the_tenth_call_if_all_fail_and_then_asks_no_more(fault: Fault):
    endpoint = Endpoint()
    breaker = Breaker(endpoint.worker, clock=Clock())
    endpoint.fault = fault
    assert await ask(breaker, 9) == [fault] * 9
    assert breaker.state == "closed"
    assert await ask(breaker, 3) == [fault, "open", "open"]
    assert (breaker.state, endpoint.calls) == ("open", 10)


async def test_an_open_breakers_error_has_the_reason_and_the_time():
    clock = Clock()
    breaker = await opened(Endpoint(), clock)
    clock.now_s += 10.0
    with pytest.raises(WorkerError, match=facts("w 10 20")) as caught:
        await breaker.ask(ASKED)
    assert not caught.value.retryable
    assert caught.value.retry_after_s == pytest.approx(20.0)


async def test_less_than_half_failing_keeps_it_closed():
    endpoint = Endpoint()
    breaker = Breaker(endpoint.worker, clock=Clock())
    for _ in range(50):
        endpoint.fault = None
        await ask(breaker, 6)
        endpoint.fault = "timeout"
        await ask(breaker, 4)
    assert breaker.state == "closed"
    await ask(breaker, 150)
    assert breaker.state == "open"


async def test_half_of_ten_failing_opens_it_but_never_at_a_call_that_went_well():
    endpoint = Endpoint()
    breaker = Breaker(endpoint.worker, clock=Clock())
    await ask(breaker, 5)
    endpoint.fault = "timeout"
    assert await ask(breaker, 6) == ["timeout"] * 5 + ["open"]
    recovering = Breaker(endpoint.worker, clock=Clock())
    await ask(recovering, 5)
    endpoint.fault = None
    assert await ask(recovering, 5) == ["ok"] * 5
    assert recovering.state == "closed"


async def test_failures_older_than_the_window_do_not_count():
    endpoint, clock = Endpoint(), Clock()
    breaker = Breaker(endpoint.worker, clock=clock)
    endpoint.fault = "connect"
    await ask(breaker, 9)
    clock.now_s += 31.0
    await ask(breaker, 9)
    assert breaker.state == "closed"


async def test_failures_older_than_the_window_do_not_count_among_later_calls_either():
    endpoint, clock = Endpoint(), Clock()
    breaker = Breaker(endpoint.worker, clock=clock)
    endpoint.fault = "connect"
    await ask(breaker, 9)
    clock.now_s += 31.0
    endpoint.fault = None
    await ask(breaker, 6)
    endpoint.fault = "connect"
    await ask(breaker, 4)
    assert breaker.state == "closed"


@pytest.mark.parametrize("fault", ["auth", "request", "unanswerable", "failed"])
async def test_an_endpoint_that_refuses_a_request_is_up(fault: Fault):
    endpoint = Endpoint()
    breaker = Breaker(endpoint.worker, clock=Clock())
    endpoint.fault = fault
    await ask(breaker, 50)
    assert breaker.state == "closed"


async def test_cancelled_and_unpaid_calls_are_not_counted():
    clock = Clock()
    breaker = Breaker(Scripted("ok"), clock=clock)
    for _ in range(20):
        await _cancelled_while_asking(breaker)
    poor = Breaker(Scripted(CostError("no money")), clock=clock)
    for _ in range(20):
        with pytest.raises(CostError):
            await poor.ask(ASKED)
    assert breaker.state == poor.state == "closed"


async def test_a_call_whose_own_deadline_passed_is_not_counted():
    clock = Clock()
    endpoint = Endpoint()
    breaker = Breaker(endpoint.worker, clock=clock)
    endpoint.fault = "timeout"
    for _ in range(20):
        with pytest.raises(WorkerError):
            await breaker.ask(Request(ASKED.messages, deadline=clock()))
    assert breaker.state == "closed"
    for _ in range(10):
        with pytest.raises(WorkerError):
            await breaker.ask(Request(ASKED.messages, deadline=clock() + 1))
    assert breaker.state == "open"


async def test_one_good_probe_closes_it():
    endpoint, clock = Endpoint(), Clock()
    breaker = await opened(endpoint, clock)
    clock.now_s += 30.0
    assert breaker.state == "half-open"
    endpoint.fault = None
    assert await ask(breaker, 3) == ["ok"] * 3
    assert breaker.state == "closed"
    endpoint.fault = "timeout"
    await ask(breaker, 6)
    assert breaker.state == "closed", "what failed before it opened is forgotten"


async def test_one_bad_probe_opens_it_for_the_whole_time_again():
    endpoint, clock = Endpoint(), Clock()
    breaker = await opened(endpoint, clock)
    clock.now_s += 30.0
    assert await ask(breaker, 2) == ["overloaded", "open"]
    clock.now_s += 29.0
    assert breaker.state == "open"
    clock.now_s += 1.0
    assert breaker.state == "half-open"
    assert endpoint.calls == 11


async def test_only_one_probe_is_out_at_a_time():
    clock = Clock()
    release = asyncio.Event()

    async def answer(request: Request) -> Reply:
        await release.wait()
        return Reply("ok")

    breaker = Breaker(Scripted(*[WorkerError("no", fault="connect")] * 10, answer), clock=clock)
    await ask(breaker, 10)
    clock.now_s += 30.0
    probe = asyncio.ensure_future(breaker.ask(ASKED))
    await asyncio.sleep(0)
    with pytest.raises(WorkerError, match=facts("scripted")):
        await breaker.ask(ASKED)
    release.set()
    assert (await probe).text == "ok"
    assert breaker.state == "closed"


async def test_a_cancelled_probe_leaves_the_next_call_to_probe():
    clock = Clock()
    breaker = Breaker(Scripted(*[WorkerError("no", fault="connect")] * 10, "ok"), clock=clock)
    await ask(breaker, 10)
    clock.now_s += 30.0
    await _cancelled_while_asking(breaker)
    assert breaker.state == "half-open"
    assert await ask(breaker) == ["ok"]


async def _cancelled_while_asking(breaker: Breaker) -> None:
    inner, slow = breaker.worker, Scripted("never", delay_s=3600)
    breaker.worker = slow
    task = asyncio.ensure_future(breaker.ask(ASKED))
    await asyncio.sleep(0)
    task.cancel()
    breaker.worker = inner
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slow.calls == 1


async def test_stragglers_from_before_it_opened_do_not_keep_it_open():
    clock = Clock()
    release = asyncio.Event()

    async def late(request: Request) -> WorkerError:
        await release.wait()
        return WorkerError("no", fault="connect")

    breaker = Breaker(Scripted(*[late] * 10, WorkerError("no", fault="connect")), clock=clock)
    stragglers = [asyncio.ensure_future(breaker.ask(ASKED)) for _ in range(10)]
    await asyncio.sleep(0)
    await ask(breaker, 10)
    clock.now_s += 20.0
    release.set()
    await asyncio.gather(*stragglers, return_exceptions=True)
    clock.now_s += 10.0
    assert breaker.state == "half-open"
