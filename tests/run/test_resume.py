"""Runs that wait for the caller's tools, and runs that continue from their stored state."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from dirigent.conduct import Conductor
from dirigent.errors import ConfigError, StoreError, WorkerError
from dirigent.limits import Limits
from dirigent.messages import Attempt, Event, Message, Reply, Request, Tool, ToolCall, Usage
from dirigent.plan.plan import Plan, Step
from dirigent.plan.planner import LanguagePlanner
from dirigent.planners.fixed import Fixed
from dirigent.run.resume import (
    REFERENCE,
    Paused,
    RunState,
    pending_calls,
    run_of_reference,
    taken_back,
    with_lost_calls,
    with_results,
)
from dirigent.run.trace import Planned, Round, StepEnded, StepRecord, Trace, attempts_since, usage_since
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted
from dirigent.workers.worker import Price

WaitUntil = Callable[..., Awaitable[None]]

TOOLS = frozenset({"tools"})
OPTIONS = Request((), tools=(Tool("weather", {"type": "object"}),))


def calls(*ids: str, text: str = "") -> Reply:
    return Reply(
        text, tool_calls=tuple(ToolCall(id, "weather", f'{{"at": "{id}"}}') for id in ids), finish="tool_calls"
    )


def worker(name: str, *replies: str | Reply | Exception | Callable[..., object], **card: object) -> Scripted:
    settings = {"abilities": TOOLS, "price": Price(0, 1e4), "usage": Usage(1, 1)} | card
    return Scripted(*replies, name=name, **settings)  # type: ignore[arg-type]


def conductor(plan: Plan, *workers: Scripted, limits: Limits = Limits()) -> Conductor:
    return Conductor(Fixed(plan), Pool(workers), limits=limits)


class Leg:
    """One leg of a run: its trace, and the state it paused in."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    @property
    def state(self) -> RunState:
        (paused,) = (event for event in self.events if isinstance(event, Paused))
        # As read from a store.
        return msgspec.json.decode(msgspec.json.encode(paused.state), type=RunState)

    async def run(self, running: Conductor, state: RunState | None = None, **more: object) -> Trace:
        return await running.run("Weather?", options=OPTIONS, observe=self.events.append, resume=state, **more)  # type: ignore[arg-type]


def results(state: RunState, **by_upstream_id: str) -> RunState:
    found = pending_calls(state.trace.id, state.trace.rounds)
    return with_results(state, {c.id: Message("tool", by_upstream_id[c.call.id]) for c in found})


CHAIN = Plan((Step("a", "look up"), Step("b", "use a tool", (0,)), Step("c", "answer", (1,))))


async def test_a_step_in_the_middle_asks_for_a_tool_and_continues_with_its_result() -> None:
    a, b, c = worker("a", "ALPHA"), worker("b", calls("up-1"), "BETA"), worker("c", "GAMMA")
    running, first = conductor(CHAIN, a, b, c), Leg()
    waiting = await first.run(running)
    assert (waiting.status, waiting.answer, waiting.error) == ("waiting", "", "")
    assert [step.status for step in waiting.steps] == ["done", "waiting", "waiting"]
    (call,) = waiting.tool_calls
    assert (call.name, call.arguments) == ("weather", '{"at": "up-1"}')

    done = await Leg().run(running, results(first.state, **{"up-1": "rain"}))
    assert (done.status, done.answer, done.id) == ("done", "GAMMA", waiting.id)
    assert [w.calls for w in (a, b, c)] == [1, 2, 1]
    asked, answered = b.requests[1].messages[-2:]
    assert asked.tool_calls == (ToolCall("up-1", "weather", '{"at": "up-1"}'),)
    assert (answered.role, answered.tool_call_id, answered.name, answered.text) == ("tool", "up-1", "weather", "rain")
    assert b.requests[1].messages[:-2] == b.requests[0].messages, "what it saw before, marks included"
    assert len(done.attempts) == 4, "calls before and after the pause are all on the bill"
    assert done.steps[1].tool_traffic == (asked, answered)


async def test_ids_of_calls_name_run_and_step_and_are_short() -> None:
    running, first = conductor(CHAIN, worker("a", "x"), worker("b", calls("same", "same")), worker("c", "y")), Leg()
    trace = await first.run(running)
    ids = [call.id for call in trace.tool_calls]
    assert len(set(ids)) == 2, "a provider may use an id twice; ours differ"
    for id in ids:
        assert len(id) <= 64
        assert REFERENCE.fullmatch(id)
        assert run_of_reference(id) == trace.id
    assert run_of_reference("call_abc") is None


async def test_steps_that_do_not_read_a_waiting_step_go_on() -> None:
    plan = Plan((Step("a", "tool"), Step("b", "no tool"), Step("c", "join", (0, 1))))
    a, b, c = worker("a", calls("1"), "A"), worker("b", "B"), worker("c", "C")
    trace = await Leg().run(conductor(plan, a, b, c))
    assert [step.status for step in trace.steps] == ["waiting", "done", "waiting"]
    assert (b.calls, c.calls) == (1, 0)


async def test_two_steps_wait_at_once_and_each_sees_only_its_own_traffic() -> None:
    plan = Plan((Step("a", "left"), Step("b", "right"), Step("c", "join", (0, 1))))
    a, b, c = worker("a", calls("call_0"), "A"), worker("b", calls("call_0"), "B"), worker("c", "C")
    running, first = conductor(plan, a, b, c), Leg()
    trace = await first.run(running)
    assert len(trace.tool_calls) == 2
    state = first.state
    left, right = pending_calls(trace.id, state.trace.rounds)
    state = with_results(state, {left.id: Message("tool", "LEFT-CANARY"), right.id: Message("tool", "RIGHT-CANARY")})
    done = await Leg().run(running, state)
    assert done.answer == "C"
    assert ("LEFT-CANARY" in a.seen_text, "RIGHT-CANARY" in a.seen_text) == (True, False)
    assert ("LEFT-CANARY" in b.seen_text, "RIGHT-CANARY" in b.seen_text) == (False, True)
    assert "CANARY" not in c.seen_text, "who reads a step sees its reply, never its tool traffic"


async def test_canaries_of_random_plans_with_tools_never_leave_their_access_list() -> None:
    rng = random.Random(4)
    for _ in range(60):
        count = rng.randint(1, 6)
        steps = [tuple(sorted(rng.sample(range(i), rng.randint(0, i)))) for i in range(count)]
        plan = Plan(tuple(Step(f"w{i}", f"do {i}", access) for i, access in enumerate(steps)))
        workers = [
            worker(f"w{i}", *([calls(f"u{i}")] if rng.random() < 0.5 else []), f"reply-{i}-canary")
            for i in range(count)
        ]
        running, leg = conductor(plan, *workers, limits=Limits(max_steps=6)), Leg()
        trace = await leg.run(running)
        while trace.status == "waiting":
            state = leg.state
            pending = pending_calls(trace.id, state.trace.rounds)
            given = {call.id: Message("tool", f"tool-{call.step}-canary") for call in pending}
            leg = Leg()
            trace = await leg.run(running, with_results(state, given))
        assert trace.status == "done"
        for i, asked in enumerate(workers):
            seen = asked.seen_text
            assert {j for j in range(count) if f"reply-{j}-canary" in seen} <= set(steps[i])
            assert {j for j in range(count) if f"tool-{j}-canary" in seen} <= {i}


async def test_a_step_may_ask_for_tools_again_and_again_up_to_a_limit() -> None:
    b = worker("b", calls("1"), calls("2"), calls("3"))
    running = conductor(Plan((Step("b", "tool"),)), b, limits=Limits(max_tool_rounds=2))
    leg = Leg()
    await leg.run(running)
    for id in ("1", "2"):
        state, leg = results(leg.state, **{id: f"result {id}"}), Leg()
        trace = await leg.run(running, state)
    assert (trace.status, trace.error_kind) == ("failed", "LimitError")
    assert "max_tool_rounds" in trace.error
    assert len(trace.attempts) == 3
    assert [m.text for m in b.requests[2].messages[-4:]] == ["", "result 1", "", "result 2"]


async def test_missing_results_are_named() -> None:
    leg = Leg()
    trace = await leg.run(conductor(Plan((Step("b", "tool"),)), worker("b", calls("1", "2"))))
    one, two = (call.id for call in trace.tool_calls)
    with pytest.raises(ConfigError, match=two) as caught:
        with_results(leg.state, {one: Message("tool", "x")})
    assert one not in str(caught.value)


async def test_a_required_tool_binds_the_last_step_alone() -> None:
    plain = worker("plain", "x", abilities=frozenset())
    able, last = worker("able", "y"), worker("last", "z")
    plan = Plan((Step("plain", "1"), Step("able", "2"), Step("last", "3", (0, 1))))
    running = conductor(plan, plain, able, last)
    await running.run("?", options=msgspec.structs.replace(OPTIONS, tool_choice="required"))
    assert [w.requests[0].tools != () for w in (plain, able, last)] == [False, True, True]
    assert [w.requests[0].tool_choice for w in (able, last)] == ["auto", "required"]
    await running.run("?", options=msgspec.structs.replace(OPTIONS, tool_choice="none"))
    assert [w.requests[1].tool_choice for w in (able, last)] == ["none", "none"]


async def test_a_tool_that_the_answer_does_not_need_is_not_waited_for() -> None:
    plan = Plan((Step("a", "aside"), Step("b", "answer")))
    trace = await Leg().run(conductor(plan, worker("a", calls("1")), worker("b", "B")))
    assert (trace.status, trace.answer) == ("done", "B")
    assert trace.steps[0].status == "skipped"


async def test_money_and_time_spent_before_the_pause_count_on() -> None:
    limits = Limits(max_cost_usd=0.25, deadline_s=60)
    b = worker("b", calls("1"), calls("2"), "late")
    running, leg = conductor(Plan((Step("b", "tool"),)), b, limits=limits), Leg()
    waiting = await leg.run(running)
    state = leg.state
    slow = msgspec.structs.replace(state, trace=msgspec.structs.replace(waiting, seconds=59.99))
    assert (await Leg().run(running, results(slow, **{"1": "x"}))).status == "waiting"
    late = msgspec.structs.replace(state, trace=msgspec.structs.replace(waiting, seconds=60.0))
    assert (await Leg().run(running, results(late, **{"1": "x"}))).error_kind == "DeadlineError"
    dear = results(state, **{"1": "x"})
    paid = (Attempt("b", 0.0, Usage(1, 1), 0.24),)
    dear = with_lost_calls(dear, paid)
    assert (await Leg().run(running, dear)).error_kind == "CostError"


async def test_limits_are_those_the_run_began_with() -> None:
    plan = Plan((Step("b", "tool"),))
    leg = Leg()
    await leg.run(conductor(plan, worker("b", calls("1")), limits=Limits(max_output_tokens=7)))
    b = worker("b", "x")
    await Leg().run(conductor(plan, b, limits=Limits(max_output_tokens=999)), results(leg.state, **{"1": "r"}))
    assert b.requests[0].max_output_tokens == 7


async def test_a_reassigned_step_continues_with_its_substitute() -> None:
    bad, good = worker("bad", WorkerError("down")), worker("good", calls("1"), "fine")
    running, leg = Conductor(Fixed(Plan((Step("bad", "do"),))), Pool([bad, good])), Leg()
    await leg.run(running)
    done = await Leg().run(running, results(leg.state, **{"1": "r"}))
    assert (done.answer, done.steps[0].worker, done.steps[0].planned_worker) == ("fine", "good", "bad")
    assert (bad.calls, good.calls) == (1, 2)


async def test_a_worker_that_left_the_pool_ends_the_run_with_its_name() -> None:
    leg = Leg()
    await leg.run(conductor(CHAIN, worker("a", "x"), worker("b", calls("1")), worker("c", "y")))
    smaller = conductor(Plan((Step("a", "x"),)), worker("a", "x"), worker("b", "z"))
    trace = await Leg().run(smaller, results(leg.state, **{"1": "r"}))
    assert (trace.status, trace.error_kind) == ("failed", "ConfigError")
    assert "c" in trace.error


async def test_in_a_second_round_a_pause_keeps_the_first_answer_as_a_standing_one() -> None:
    one = 'model_id = [0]\nsubtasks = ["{}"]\naccess_list = [[]]'
    planner = Scripted(one.format("first"), one.format("second"), name="planner")
    b = worker("b", "FIRST", calls("1"), WorkerError("down"))
    running = Conductor(LanguagePlanner(planner), Pool([b]), limits=Limits(max_rounds=2), reassign=False)
    leg = Leg()
    waiting = await leg.run(running)
    assert (waiting.status, len(waiting.rounds)) == ("waiting", 2)
    done = await Leg().run(running, results(leg.state, **{"1": "r"}))
    assert (done.status, done.answer) == ("done", "FIRST")
    assert planner.calls == 2, "a plan stands as it was written"


async def test_observers_of_a_later_leg_see_the_plan_and_only_new_events() -> None:
    leg, later = Leg(), Leg()
    running = conductor(CHAIN, worker("a", "x"), worker("b", calls("1"), "y"), worker("c", "z"))
    await leg.run(running)
    await later.run(running, results(leg.state, **{"1": "r"}))
    assert any(isinstance(event, Planned) for event in later.events)
    assert [e.step.index for e in later.events if isinstance(e, StepEnded)] == [1, 2]


async def test_a_conductor_in_a_pool_passes_its_tool_calls_on() -> None:
    inner = Conductor(Fixed(Plan((Step("b", "tool"),))), Pool([worker("b", calls("1"))]), name="inner")
    reply = await inner.ask(msgspec.structs.replace(OPTIONS, messages=(Message("user", "?"),)))
    assert reply.finish == "tool_calls"
    assert [call.name for call in reply.tool_calls] == ["weather"]


async def test_the_parts_that_a_leg_adds_can_be_separated() -> None:
    leg = Leg()
    running = conductor(CHAIN, worker("a", "x"), worker("b", calls("1"), "y"), worker("c", "z"))
    before = await leg.run(running)
    after = await Leg().run(running, results(leg.state, **{"1": "r"}))
    assert [attempt.worker for attempt in attempts_since(after, before)] == ["b", "c"]
    used = usage_since(after, before)
    assert (used.input_tokens, used.output_tokens, used.calls) == (2, 2, 2)
    assert used.orchestration_output_tokens == 1
    assert usage_since(after, None) == after.usage


async def test_a_try_that_failed_is_taken_back_and_stays_on_the_bill() -> None:
    leg = Leg()
    running = conductor(CHAIN, worker("a", "x"), worker("b", calls("1"), "y"), worker("c", WorkerError("down"), "z"))
    running.reassign = False
    waiting = await leg.run(running)
    failed = await Leg().run(running, results(leg.state, **{"1": "r"}))
    assert failed.status == "failed"
    again = taken_back(leg.state, failed)
    assert pending_calls(again.trace.id, again.trace.rounds) == pending_calls(waiting.id, waiting.rounds)
    done = await Leg().run(running, results(again, **{"1": "r"}))
    assert (done.status, done.answer) == ("done", "z")
    assert len(done.attempts) == len(failed.attempts) + 2


async def test_a_journal_has_every_step_before_the_next_is_asked() -> None:
    written: list[list[str]] = []
    at_call: list[int] = []

    async def journal(state: RunState) -> None:
        await asyncio.sleep(0)
        steps = state.trace.rounds[-1].steps
        written.append([step.status for step in steps])

    def noting(text: str) -> Callable[[Request], str]:
        def reply(request: Request) -> str:
            at_call.append(len(written))
            return text

        return reply

    workers = [worker(name, noting(name)) for name in "abc"]
    trace = await conductor(CHAIN, *workers).run("?", journal=journal)
    assert trace.status == "done"
    assert written == [[], ["done"], ["done"] * 2, ["done"] * 3]
    assert at_call == [1, 2, 3]


async def test_a_run_resumes_from_its_journal_at_the_first_unfinished_step() -> None:
    states: list[RunState] = []

    async def journal(state: RunState) -> None:
        states.append(state)

    a, b, c = worker("a", "A"), worker("b", "B"), worker("c", "C")
    running = conductor(CHAIN, a, b, c)
    await running.run("?", journal=journal)
    for state, asked in zip(states, (3, 2, 1, 0), strict=True):
        before = a.calls + b.calls + c.calls
        trace = await running.run("?", resume=state)
        assert (trace.status, trace.answer) == ("done", "C")
        assert a.calls + b.calls + c.calls - before == asked
        assert len(trace.attempts) == 3


async def test_a_journal_that_fails_ends_the_run_before_more_is_paid() -> None:
    async def journal(state: RunState) -> None:
        if state.trace.rounds[-1].steps:
            raise StoreError("the disk is full")

    a, b, c = worker("a", "A"), worker("b", "B"), worker("c", "C")
    trace = await conductor(CHAIN, a, b, c).run("?", journal=journal)
    assert (trace.status, trace.error_kind) == ("failed", "StoreError")
    assert (a.calls, b.calls, c.calls) == (1, 0, 0)


async def test_an_interrupted_run_asks_only_its_interrupted_step_again(wait_until: WaitUntil) -> None:
    seen: list[Event] = []
    a, b, c = worker("a", "A"), worker("b", "B", delay_s=30), worker("c", "C")
    running = conductor(CHAIN, a, b, c)
    state = running.begin("?")
    task = asyncio.create_task(running.run("?", observe=seen.append, resume=state))
    await wait_until(lambda: b.calls == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cut = seen[-1].trace  # type: ignore[attr-defined]
    assert [step.status for step in cut.steps] == ["done", "cancelled", "cancelled"]
    quick = worker("b", "B")
    done = await conductor(CHAIN, a, quick, c).run("?", resume=RunState(cut, state.secret))
    assert done.answer == "C"
    assert (a.calls, quick.calls) == (1, 1)
    assert [attempt.error for attempt in done.steps[1].attempts] == ["cancelled", ""], "the cut call was paid too"


def test_lost_calls_go_to_the_step_that_made_them() -> None:
    trace = Trace("r", "2026-01-01T00:00:00+00:00", (), (), Limits(), "p")
    lost = (Attempt("b", 0.0, cost_usd=1.0, error="lost"), Attempt("z", 0.0, cost_usd=2.0, error="lost"))
    unplanned = with_lost_calls(RunState(trace, "s"), lost)
    assert unplanned.trace.rounds[0].drafts[0].attempts == lost
    steps = (StepRecord(0, "a", "look up"),)
    planned = msgspec.structs.replace(trace, rounds=(Round((), CHAIN, steps),))
    given = with_lost_calls(RunState(planned, "s"), lost).trace.rounds[0].steps
    assert [len(step.attempts) for step in given] == [0, 2]
    assert with_lost_calls(RunState(planned, "s"), ()).trace is planned


def in_two_rounds(second: str, *workers: Scripted) -> Conductor:
    first = "look up | a 0 | -\nsay | a 0 | 0"
    planner = Scripted(first, second, name="planner")
    return Conductor(LanguagePlanner(planner, dialect="lines"), Pool(workers), limits=Limits(max_rounds=2))


async def test_a_pause_in_a_second_round_resumes_with_the_first_rounds_results() -> None:
    a, b = worker("a", "ALPHA", "FIRST"), worker("b", calls("1"), "BETA", "JOINED")
    running, leg = in_two_rounds("use a tool | b 1 | 0\njoin | b 1 | 1 2", a, b), Leg()
    waiting = await leg.run(running)
    assert [(step.index, step.status) for step in waiting.rounds[1].steps] == [(2, "waiting"), (3, "waiting")]
    (call,) = waiting.tool_calls
    assert call.id.startswith(f"call_{waiting.id}_2_")
    done = await Leg().run(running, results(leg.state, **{"1": "rain"}))
    assert (done.status, done.answer) == ("done", "JOINED")
    assert (a.calls, b.calls) == (2, 3)
    assert [(step.index, step.round) for step in done.steps] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    seen = b.requests[2].messages[-1].text
    assert ("FIRST" in seen, "BETA" in seen, "ALPHA" in seen) == (True, True, False)
    assert b.requests[1].messages[:-2] == b.requests[0].messages, "what it saw before, marks included"


async def test_a_run_resumes_from_its_journal_in_its_second_round() -> None:
    states: list[RunState] = []

    async def journal(state: RunState) -> None:
        states.append(msgspec.json.decode(msgspec.json.encode(state), type=RunState))

    a, b = worker("a", *["A"] * 99), worker("b", *["B"] * 99)
    second = "go on | b 1 | 0\njoin | b 1 | 1 2"
    await in_two_rounds(second, a, b).run("?", journal=journal)
    assert len(states) == 6, "two plans and four steps"
    for state, asked in zip(states[3:], (2, 1, 0), strict=True):
        before = a.calls + b.calls
        trace = await in_two_rounds(second, a, b).run("?", resume=state)
        assert (trace.status, len(trace.steps)) == ("done", 4)
        assert a.calls + b.calls - before == asked


def test_a_step_of_the_largest_number_has_a_reference() -> None:
    assert run_of_reference(f"call_abc_255_{'0' * 12}") == "abc"


def test_lost_calls_of_a_second_round_go_to_the_step_that_made_them() -> None:
    trace = Trace("r", "2026-01-01T00:00:00+00:00", (), (), Limits(max_rounds=2), "p")
    first = Round((), Plan((Step("a", "x"),)), (StepRecord(0, "a", "x"),))
    second = Round((), Plan((Step("a", "y", (0,)), Step("b", "z", (1,))), 1))
    lost = (Attempt("b", 0.0, cost_usd=1.0, error="lost"),)
    state = with_lost_calls(RunState(msgspec.structs.replace(trace, rounds=(first, second)), "s"), lost)
    (step,) = state.trace.rounds[1].steps
    assert (step.index, step.round, step.worker, step.access) == (2, 1, "b", (1,))
