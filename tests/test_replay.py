"""A recorded run, carried out again from its record alone."""

from __future__ import annotations

import msgspec
import pytest

from dirigent.conduct import Conductor
from dirigent.errors import ConfigError, WorkerError
from dirigent.limits import Limits
from dirigent.messages import Reply, Request, Tool, ToolCall
from dirigent.plan.plan import Plan, Step
from dirigent.plan.planner import LanguagePlanner
from dirigent.planners.fixed import Fixed
from dirigent.replay import plan_of, replay, same_outcome
from dirigent.run.trace import Trace
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted
from dirigent.workers.worker import Price
from tests.facts import facts

SAME_TWICE = Plan((Step("w", "try"), Step("w", "try"), Step("w", "choose", (0, 1))))


async def test_a_worker_asked_the_same_twice_replays_each_of_its_replies() -> None:
    worker = Scripted("one", "two", "the second", name="w", price=Price(1, 2))
    old = await Conductor(Fixed(SAME_TWICE), Pool([worker])).run("q")
    new = await replay(old)
    assert (new.status, new.answer) == ("done", "the second")
    assert [step.reply.text for step in new.steps if step.reply] == ["one", "two", "the second"]
    assert worker.calls == 3, "no worker may be asked again"
    assert new.cost_usd == 0 < old.cost_usd


async def test_a_failed_run_fails_again() -> None:
    plan = Plan((Step("a", "x"), Step("b", "y", (0,))))
    pool = Pool([Scripted(WorkerError("down", fault="connect"), name="a"), Scripted("B", name="b")])
    old = await Conductor(Fixed(plan), pool, reassign=False).run("q")
    assert old.status == "failed"
    new = await replay(old)
    assert new.status == "failed"
    assert "down" in new.error


async def test_a_re_assigned_step_replays_the_substitutes_reply() -> None:
    plan = Plan((Step("a", "x"),))
    pool = Pool([Scripted(WorkerError("down", fault="connect"), name="a"), Scripted("B", name="b")])
    old = await Conductor(Fixed(plan), pool).run("q")
    assert old.answer == "B"
    assert (await replay(old)).answer == "B"
    assert plan_of(old) == plan, "a live replay asks whom the plan named"


async def test_the_round_that_gave_the_answer_is_the_one_replayed() -> None:
    planner = Scripted("go | w 0 | -", "again | w 0 | -", name="p")
    pool = Pool([Scripted("first", WorkerError("down", fault="auth"), name="w")])
    conductor = Conductor(LanguagePlanner(planner, dialect="lines"), pool, limits=Limits(max_rounds=2), reassign=False)
    old = await conductor.run("q")
    assert (old.status, old.answer) == ("done", "first")
    assert (await replay(old)).answer == "first"


async def test_a_trace_without_a_plan_cannot_be_replayed() -> None:
    old = Trace(id="t", created_at="", question=(), pool=(), limits=Limits(), planner="p", status="failed", error="no")
    with pytest.raises(ConfigError, match=facts("t no")):
        await replay(old)


async def test_a_run_that_waits_for_tools_waits_again() -> None:
    calls = Reply("", tool_calls=(ToolCall("up", "weather", "{}"),), finish="tool_calls")
    plan = Plan((Step("a", "x"), Step("b", "y", (0,))))
    abilities = frozenset({"tools"})
    pool = Pool([Scripted(calls, name="a", abilities=abilities), Scripted("B", name="b", abilities=abilities)])
    old = await Conductor(Fixed(plan), pool).run("q", options=Request((), tools=(Tool("weather", {}),)))
    new = await replay(old)
    assert new.status == "waiting"
    assert same_outcome(old, new)
    assert new.tool_calls[0].id != old.tool_calls[0].id


def in_two_rounds(second: str, *replies: str | WorkerError) -> Conductor:
    planner = Scripted("go | w 0 | -\naside | w 0 | -\nsay | w 0 | 0", second, name="p")
    pool = Pool([Scripted(*replies, name="w")])
    return Conductor(LanguagePlanner(planner, dialect="lines"), pool, limits=Limits(max_rounds=2), reassign=False)


async def test_a_second_round_is_replayed_with_the_earlier_steps_that_it_read() -> None:
    old = await in_two_rounds("join | w 0 | 2", "one", "two", "three", "four").run("q")
    assert plan_of(old) == Plan((Step("w", "go"), Step("w", "say", (0,)), Step("w", "join", (1,)))), (
        "`aside` is not read"
    )
    new = await replay(old)
    assert (new.status, new.answer) == ("done", "four")
    assert [step.reply.text for step in new.steps if step.reply] == ["one", "three", "four"]


async def test_a_trace_from_before_steps_counted_on_is_still_replayed() -> None:
    old = await in_two_rounds("again | w 0 | -\njoin | w 0 | 3", "one", "two", "three", "four", "five").run("q")
    second = old.rounds[1]
    assert second.plan is not None
    steps = (
        msgspec.structs.replace(second.steps[0], index=0),
        msgspec.structs.replace(second.steps[1], index=1, access=(0,)),
    )
    counted = msgspec.structs.replace(second, plan=second.plan.by_itself(), steps=steps)
    as_before = msgspec.structs.replace(old, rounds=(old.rounds[0], counted))
    assert plan_of(as_before) == Plan((Step("w", "again"), Step("w", "join", (0,))))
    assert (await replay(as_before)).answer == "five"
