"""The cache of replies: equal requests of one tenant share a reply, others do not."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dirigent.conduct import Conductor
from dirigent.errors import CostError, WorkerError
from dirigent.limits import Budget
from dirigent.messages import (
    Attempt,
    Delta,
    Event,
    Message,
    Reply,
    Request,
    Schema,
    Tool,
    ToolCall,
    Usage,
    conversation,
)
from dirigent.plan.planner import LanguagePlanner
from dirigent.workers.cached import NOT_IN_KEY, Cached
from dirigent.workers.metering import Metered
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted
from dirigent.workers.worker import Price

PINNED = Request(conversation("hi"), temperature=0)


async def test_the_same_question_is_paid_for_once():
    inner = Scripted("one", "two", name="w", price=Price(1e6, 1e6))
    worker = Cached(Metered(inner))
    first, again = await worker.ask(PINNED), await worker.ask(PINNED)
    assert (first.text, again.text, inner.calls) == ("one", "one", 1)
    assert first.cost_usd > 0
    assert (again.cost_usd, again.usage, again.seconds) == (0.0, Usage(), 0.0)
    assert again.attempts == (Attempt("w", 0.0, cached=True),)


async def test_a_reply_is_given_again_whole():
    call = ToolCall("1", "look", '{"at": "sky"}', signature="s")
    inner = Scripted(Reply("text", tool_calls=(call,), finish="tool_calls", model="m-1", reasoning="hm"))
    worker = Cached(inner)
    first, again = await worker.ask(PINNED), await worker.ask(PINNED)
    same = ("text", "tool_calls", "finish", "model", "reasoning")
    assert [getattr(again, name) for name in same] == [getattr(first, name) for name in same]


@pytest.mark.parametrize(
    ("fields", "calls"),
    [({}, 2), ({"temperature": 0.7}, 2), ({"temperature": 0}, 1), ({"seed": 7}, 1), ({"seed": 0}, 1)],
)
async def test_only_requests_that_pin_their_answer_are_kept(fields: dict[str, Any], calls: int):
    inner = Scripted("x")
    worker = Cached(inner)
    for _ in range(2):
        await worker.ask(Request(conversation("hi"), **fields))
    assert inner.calls == calls


async def test_everything_is_kept_when_asked_to():
    inner = Scripted("x")
    worker = Cached(inner, always=True)
    for _ in range(2):
        await worker.ask(Request(conversation("hi"), temperature=1.0))
    assert inner.calls == 1


OTHER: dict[str, Any] = {
    "messages": (Message("user", "ho"),),
    "tools": (Tool("look", {}),),
    "tool_choice": "none",
    "schema": Schema({}),
    "json_mode": True,
    "grammar": "root ::= x",
    "max_output_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 2,
    "stop": ("x",),
    "effort": "low",
    "tenant": "somebody else",
    "drafts": True,
}


def test_every_field_of_a_request_is_either_part_of_the_question_or_not():
    assert set(OTHER) | NOT_IN_KEY == set(Request.__struct_fields__)


@pytest.mark.parametrize("field", OTHER)
async def test_another_question_is_asked_anew(field: str):
    inner = Scripted("x")
    worker = Cached(inner)
    base = Request(conversation("hi"), seed=1)
    await worker.ask(base)
    await worker.ask(msgspec.structs.replace(base, **{field: OTHER[field]}))
    assert inner.calls == 2


async def test_deadline_and_ledger_are_not_part_of_the_question():
    inner = Scripted("x")
    worker = Cached(inner)
    await worker.ask(PINNED)
    await worker.ask(msgspec.structs.replace(PINNED, deadline=1e9, ledger=Budget()))
    assert inner.calls == 1


async def test_planner_and_workers_of_a_tenant_are_asked_in_its_name():
    seen: list[str] = []

    def plan(request: Request) -> str:
        seen.append(request.tenant)
        return "model_id = [0, 0]\nsubtasks = ['a', 'b']\naccess_list = [[], [0]]"

    def work(request: Request) -> str:
        seen.append(request.tenant)
        return "x"

    inner = Conductor(LanguagePlanner(Scripted(plan)), Pool([Scripted(work, name="w")]), name="inner")
    outer = Conductor(LanguagePlanner(Scripted(plan)), Pool([inner]))
    await outer.run("hi", options=Request((), tenant="me"))
    assert seen == ["me"] * 7


async def test_workers_and_models_do_not_share_answers():
    shared: dict[str, bytes] = {}
    for name, model in (("a", "m"), ("b", "m"), ("a", "n")):
        reply = await Cached(Scripted(name + model, name=name, model=model), shared).ask(PINNED)
        assert reply.text == name + model


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_a_folder_keeps_answers_between_processes(tmp_path: Path):
    assert (await Cached(Scripted("kept"), tmp_path / "cache").ask(PINNED)).text == "kept"
    other = Scripted("fresh")
    assert (await Cached(other, str(tmp_path / "cache")).ask(PINNED)).text == "kept"
    assert other.calls == 0
    assert [path.suffix for path in kept(tmp_path)] == [".json"]


async def test_a_damaged_file_costs_a_call_and_is_mended(tmp_path: Path):
    await Cached(Scripted("old"), tmp_path).ask(PINNED)
    (path,) = kept(tmp_path)
    path.write_bytes(path.read_bytes()[:10])
    inner = Scripted("new")
    for _ in range(2):
        assert (await Cached(inner, tmp_path).ask(PINNED)).text == "new"
    assert inner.calls == 1


async def test_a_cache_that_cannot_be_written_costs_the_saving_not_the_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").write_text("in the way")
    assert (await Cached(Scripted("ok"), tmp_path / "file").ask(PINNED)).text == "ok"
    assert str(tmp_path / "file") in caplog.text


async def test_a_file_that_cannot_be_put_in_place_leaves_nothing_beside_it(tmp_path: Path):
    await Cached(Scripted("old"), tmp_path).ask(PINNED)
    (path,) = kept(tmp_path)
    path.unlink()
    path.mkdir()
    assert (await Cached(Scripted("ok"), tmp_path).ask(PINNED)).text == "ok"
    assert kept(tmp_path) == []


async def test_failures_are_not_kept():
    inner = Scripted(WorkerError("down", fault="overloaded"), "up")
    worker = Cached(inner)
    with pytest.raises(WorkerError):
        await worker.ask(PINNED)
    assert (await worker.ask(PINNED)).text == "up"


async def test_identical_requests_at_the_same_time_share_one_call():
    inner = Scripted("one", "two", name="w", delay_s=0.001)
    worker = Cached(Metered(inner))
    replies = await asyncio.gather(*(worker.ask(PINNED) for _ in range(20)))
    assert {reply.text for reply in replies} == {"one"}
    assert inner.calls == 1
    assert sum(attempt.cached for reply in replies for attempt in reply.attempts) == 19


async def test_a_shared_failure_fails_all_but_is_billed_to_one():
    inner = Scripted(WorkerError("down", fault="overloaded", status=503), delay_s=0.001)
    worker = Cached(Metered(inner))
    errors = await asyncio.gather(*(worker.ask(PINNED) for _ in range(5)), return_exceptions=True)
    assert inner.calls == 1
    assert [(e.fault, e.status) for e in errors if isinstance(e, WorkerError)] == [("overloaded", 503)] * 5
    assert sorted(len(e.attempts) for e in errors if isinstance(e, WorkerError)) == [0, 0, 0, 0, 1]


class Gate:
    """A worker's answer that comes when the test lets it."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.opened = asyncio.Event()

    async def answer(self, request: Request) -> str:
        self.asked.set()
        await self.opened.wait()
        return "ok"


async def test_when_the_first_is_cancelled_the_next_asks():
    gate = Gate()
    inner = Scripted(gate.answer)
    worker = Cached(inner)
    tasks = [asyncio.ensure_future(worker.ask(PINNED)) for _ in range(3)]
    await gate.asked.wait()
    tasks[0].cancel()
    gate.opened.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert [outcome.text for outcome in outcomes[1:] if isinstance(outcome, Reply)] == ["ok", "ok"]
    assert inner.calls == 2


async def test_a_waiting_caller_can_be_cancelled_alone():
    gate = Gate()
    worker = Cached(Scripted(gate.answer))
    tasks = [asyncio.ensure_future(worker.ask(PINNED)) for _ in range(2)]
    await gate.asked.wait()
    tasks[1].cancel()
    gate.opened.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes[0], Reply)
    assert isinstance(outcomes[1], asyncio.CancelledError)


async def test_one_without_money_does_not_keep_others_from_asking():
    inner = Scripted(CostError("nothing left"), "ok", delay_s=0.001)
    worker = Cached(inner)
    outcomes = await asyncio.gather(*(worker.ask(PINNED) for _ in range(2)), return_exceptions=True)
    assert isinstance(outcomes[0], CostError)
    assert isinstance(outcomes[1], Reply)


async def test_observers_see_a_cached_answer_too():
    worker = Cached(Scripted("a b"))
    await worker.ask(PINNED)
    seen: list[Event] = []
    await worker.ask(PINNED, observe=seen.append)
    assert seen == [Delta("a b")]


async def test_a_reply_cut_short_by_a_small_budget_is_neither_stored_nor_shared():
    inner = Scripted("word " * 100, name="w", price=Price(0, 1e6), delay_s=0.001)
    worker = Cached(Metered(inner))
    wanted = Request(conversation("hi"), temperature=0, max_output_tokens=500)
    poor = msgspec.structs.replace(wanted, ledger=Budget(max_cost_usd=20))
    replies = await asyncio.gather(worker.ask(poor), worker.ask(wanted))
    assert [reply.finish for reply in replies] == ["length", "stop"]
    assert (await worker.ask(wanted)).finish == "stop"
    assert inner.calls == 2


async def test_a_reply_as_long_as_the_request_allows_is_kept():
    inner = Scripted("word " * 100, name="w", price=Price(0, 1e6))
    worker = Cached(Metered(inner))
    wanted = Request(conversation("hi"), temperature=0, max_output_tokens=20, ledger=Budget(max_cost_usd=50))
    replies = [await worker.ask(wanted) for _ in range(2)]
    assert [reply.finish for reply in replies] == ["length", "length"]
    assert inner.calls == 1


async def test_a_caller_at_its_deadline_does_not_stop_others_from_asking():
    async def late(request: Request) -> str:
        assert request.deadline is not None
        await asyncio.sleep(min(request.deadline - time.monotonic(), 0.05) + 0.001)
        if time.monotonic() >= request.deadline:
            raise WorkerError("the request's deadline passed", fault="timeout")
        return "ok"

    worker = Cached(Scripted(late))
    deadlines = (time.monotonic() + 0.01, time.monotonic() + 60)
    asked = [worker.ask(msgspec.structs.replace(PINNED, deadline=deadline)) for deadline in deadlines]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(outcomes[0], WorkerError)
    assert isinstance(outcomes[1], Reply)
