"""Rate limits: calls wait for their turn, and cancelled calls give it up."""

from __future__ import annotations

import asyncio
import time

import pytest

from dirigent.errors import ConfigError, CostError, WorkerError
from dirigent.messages import Request, conversation
from dirigent.workers.ratelimited import RateLimited
from dirigent.workers.scripted import Scripted
from tests.facts import facts
from tests.workers.clock import Clock


def asked(text: str = "hi", deadline: float | None = None) -> Request:
    return Request(conversation(text), deadline=deadline)


async def test_no_window_of_a_minute_sees_more_requests_than_allowed():
    clock = Clock()
    starts: list[float] = []

    async def answer(request: Request) -> str:
        starts.append(clock())
        await clock.sleep(1.7)
        return "ok"

    worker = RateLimited(Scripted(answer), requests_per_minute=5, clock=clock, sleep=clock.sleep)
    for _ in range(23):
        await worker.ask(asked())
    assert all(later - start >= 60.0 for start, later in zip(starts, starts[5:], strict=False))
    assert starts[4] < starts[0] + 10.0, "allowed calls are not spread out needlessly"
    assert starts[-1] < starts[0] + 5 * 60.0


async def test_turns_are_taken_in_the_order_of_asking():
    clock = Clock()
    inner = Scripted("ok")
    worker = RateLimited(inner, requests_per_minute=2, clock=clock, sleep=clock.sleep)
    await asyncio.gather(*(worker.ask(asked(str(i))) for i in range(9)))
    assert [request.messages[0].text for request in inner.requests] == [str(i) for i in range(9)]
    assert len(clock.slept) == 4


async def test_so_many_calls_are_in_flight_and_no_more():
    now, most = 0, 0

    async def answer(request: Request) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1
        return "ok"

    worker = RateLimited(Scripted(answer), concurrency=3)
    await asyncio.gather(*(worker.ask(asked()) for _ in range(20)))
    assert most == 3


async def test_a_turn_after_the_deadline_is_refused_at_once():
    clock = Clock()
    inner = Scripted("ok")
    worker = RateLimited(inner, requests_per_minute=1, clock=clock, sleep=clock.sleep)
    await worker.ask(asked())
    with pytest.raises(WorkerError, match=facts("1 requests_per_minute")) as caught:
        await worker.ask(asked(deadline=clock() + 59.0))
    assert caught.value.fault == "rate_limited"
    assert (inner.calls, clock.slept) == (1, [])
    await worker.ask(asked(deadline=clock() + 61.0))
    assert clock.slept == [60.0]


async def test_those_ahead_in_the_queue_count_towards_the_wait():
    clock = Clock()
    gate = asyncio.Event()

    async def sleep(seconds: float) -> None:
        await gate.wait()
        clock.now_s += seconds

    worker = RateLimited(Scripted("ok"), requests_per_minute=2, clock=clock, sleep=sleep)
    waiting = [asyncio.ensure_future(worker.ask(asked())) for _ in range(5)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert worker._wait_s(ahead=worker._waiting) == 120.0
    with pytest.raises(WorkerError, match=facts("deadline")):
        await worker.ask(asked(deadline=clock() + 119.0))
    gate.set()
    await asyncio.gather(*waiting)
    assert clock() == 1_000.0 + 120.0


async def test_a_place_that_does_not_come_free_in_time_is_an_error():
    worker = RateLimited(Scripted("never", delay_s=60), concurrency=1)
    busy = asyncio.ensure_future(worker.ask(asked()))
    await asyncio.sleep(0)
    with pytest.raises(WorkerError, match=facts("1 concurrency")):
        await worker.ask(asked(deadline=time.monotonic() + 0.01))
    busy.cancel()
    with pytest.raises(asyncio.CancelledError):
        await busy


async def test_a_cancelled_caller_gives_its_place_and_turn_to_the_next():
    clock = Clock()
    gate = asyncio.Event()

    async def sleep(seconds: float) -> None:
        await gate.wait()
        await clock.sleep(seconds)

    inner = Scripted("ok")
    worker = RateLimited(inner, requests_per_minute=1, concurrency=2, clock=clock, sleep=sleep)
    await worker.ask(asked("first"))
    tasks = [asyncio.ensure_future(worker.ask(asked(str(i)))) for i in range(4)]
    for _ in range(5):
        await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[2].cancel()
    gate.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(outcome, asyncio.CancelledError) for outcome in done] == [True, False, True, False]
    assert [request.messages[0].text for request in inner.requests] == ["first", "1", "3"]
    assert (await worker.ask(asked("last"))).text == "ok"
    assert clock.slept == [60.0, 60.0, 60.0]


@pytest.mark.parametrize("error", [WorkerError("resting", fault="open"), CostError("no money")])
async def test_a_request_that_was_never_sent_uses_no_turn(error: Exception):
    clock = Clock()
    worker = RateLimited(Scripted(error, error, "ok"), requests_per_minute=1, clock=clock, sleep=clock.sleep)
    for _ in range(2):
        with pytest.raises(type(error)):
            await worker.ask(asked())
    await worker.ask(asked())
    assert clock.slept == []


async def test_a_call_that_failed_was_a_request_all_the_same():
    clock = Clock()
    failing = Scripted(WorkerError("no", fault="overloaded"), "ok")
    worker = RateLimited(failing, requests_per_minute=1, clock=clock, sleep=clock.sleep)
    with pytest.raises(WorkerError):
        await worker.ask(asked())
    await worker.ask(asked())
    assert clock.slept == [60.0]


@pytest.mark.parametrize("setting", ["requests_per_minute", "concurrency"])
def test_a_limit_of_nothing_is_refused(setting: str):
    with pytest.raises(ConfigError, match=facts(f"{setting} 1 0")):
        RateLimited(Scripted("x"), **{setting: 0})  # type: ignore[arg-type]
