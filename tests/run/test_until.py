"""Plans with `until`: steps in order, a choice after each, and no call for a step that the choice makes needless."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import pytest

from dirigent.conduct import Conductor
from dirigent.errors import DeadlineError, StoreError, WorkerError
from dirigent.limits import Limits
from dirigent.messages import Event, Message, Reply, Request, Schema, Tool, ToolCall
from dirigent.plan.plan import Plan, Step
from dirigent.planners.fixed import Fixed
from dirigent.replay import plan_of, replay, same_outcome
from dirigent.run.cost_estimate import estimate
from dirigent.run.execution import execute
from dirigent.run.resume import RunState, with_results
from dirigent.run.step_prompt import ANSWER
from dirigent.run.trace import Check, StepChecked, StepDelta, StepEnded, StepRecord, StepStarted, critical_path_s
from dirigent.show.drawing import draw_plan, draw_trace
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import FromFunction, Scripted
from dirigent.workers.worker import Price, Worker


def chooser(confidence: Mapping[int, float | None], *, name: str = "select") -> FromFunction:
    """Repeats its last result; sure of it by how many results there are."""

    def choose(request: Request) -> Reply:
        return Reply(request.results[-1].text, confidence=confidence[len(request.results)])

    return FromFunction(choose, name=name, selects=True, price=Price())


def asking(*workers: str, until: float = 0.7) -> Plan:
    last = Step("select", "Choose.", tuple(range(len(workers))))
    return Plan((*[Step(name, ANSWER) for name in workers], last), until=until)


def pool_of(*workers: Worker) -> dict[str, Worker]:
    return {worker.info.name: worker for worker in workers}


async def test_the_run_ends_once_the_choice_is_sure_enough() -> None:
    a, b, c = (Scripted(f"says {name}", name=name) for name in "abc")
    events: list[Event] = []
    workers = pool_of(a, b, c, chooser({1: 0.4, 2: 0.7, 3: 0.9}))
    done = await execute(asking("a", "b", "c"), workers, "?", observe=events.append, stream=True)
    assert done.error is None
    assert done.reply is not None
    assert (done.reply.text, done.reply.confidence) == ("says b", 0.7)
    assert [step.status for step in done.steps] == ["done", "done", "skipped", "done"]
    assert done.steps[2].error == "select was 70% sure after step 1, and until is 70%"
    assert done.steps[3].checks == (Check(0, 0.4), Check(1, 0.7))
    assert (a.calls, b.calls, c.calls) == (1, 1, 0)
    assert [event.check for event in events if isinstance(event, StepChecked)] == list(done.steps[3].checks)
    assert [event.index for event in events if isinstance(event, StepStarted)] == [0, 1, 3]
    streamed = "".join(event.text for event in events if isinstance(event, StepDelta) and event.index == 3)
    assert streamed == "says b", "a choice that is no answer is not streamed"
    assert [event.step.index for event in events if isinstance(event, StepEnded)] == [0, 1, 2, 3]


async def test_without_a_sure_choice_every_step_is_asked_and_the_last_choice_counts() -> None:
    workers = pool_of(Scripted("a", name="a"), Scripted("b", name="b"), chooser({1: 0.1, 2: 0.2}))
    done = await execute(asking("a", "b"), workers, "?")
    assert [step.status for step in done.steps] == ["done", "done", "done"]
    assert done.reply is not None
    assert (done.reply.text, done.reply.confidence) == ("b", 0.2)
    assert done.steps[-1].checks == (Check(0, 0.1),)


async def test_steps_run_one_at_a_time() -> None:
    working = 0

    async def alone(request: Request) -> str:
        nonlocal working
        working += 1
        await asyncio.sleep(0.01)
        assert working == 1
        working -= 1
        return "done"

    workers = pool_of(*[FromFunction(alone, name=name) for name in "abc"], chooser({1: 0.0, 2: 0.0, 3: 0.0}))
    done = await execute(asking("a", "b", "c"), workers, "?")
    assert done.error is None
    plan = asking("a", "b", "c")
    assert critical_path_s(done.steps, plan) == pytest.approx(sum(step.seconds for step in done.steps))
    assert critical_path_s(done.steps, plan) > critical_path_s(done.steps)


async def test_a_failed_step_is_passed_over() -> None:
    down = Scripted(WorkerError("down"), name="a")
    spare = Scripted("spare", name="spare")
    workers = pool_of(down, Scripted("b", name="b"), spare, chooser({1: 0.9}))
    done = await execute(asking("a", "b"), workers, "?", reassign=True)
    assert done.error is None
    assert [step.status for step in done.steps] == ["failed", "done", "done"]
    assert done.reply is not None
    assert done.reply.text == "b"
    assert spare.calls == 0, "the next step is the substitute"


async def test_a_step_that_reads_a_failed_step_is_passed_over_too() -> None:
    plan = Plan((Step("a", "x"), Step("b", "y", (0,)), Step("c", "z"), Step("select", "Choose.", (0, 1, 2))), until=0.5)
    workers = pool_of(
        Scripted(WorkerError("down"), name="a"), Scripted("b", name="b"), Scripted("c", name="c"), chooser({1: 0.2})
    )
    done = await execute(plan, workers, "?")
    assert [step.status for step in done.steps] == ["failed", "skipped", "done", "done"]
    assert done.steps[1].error == "step 0, which it reads, gave no result"
    assert done.reply is not None
    assert done.reply.text == "c"


async def test_the_run_fails_only_if_no_result_is_left() -> None:
    workers = pool_of(Scripted(WorkerError("first"), name="a"), Scripted(WorkerError("second"), name="b"), chooser({}))
    done = await execute(asking("a", "b"), workers, "?")
    assert str(done.error) == "first"
    assert [step.status for step in done.steps] == ["failed", "failed", "cancelled"]
    assert done.reply is None


async def test_with_no_result_left_the_last_failed_step_gets_a_substitute() -> None:
    down = WorkerError("down")
    workers = pool_of(
        Scripted(down, name="a"), Scripted(down, name="b"), Scripted("spare", name="c"), chooser({1: 0.5})
    )
    done = await execute(asking("a", "b"), workers, "?", reassign=True)
    assert done.error is None
    assert [step.worker for step in done.steps] == ["a", "c", "select"]


async def test_a_selector_without_a_confidence_counts_as_unsure() -> None:
    workers = pool_of(Scripted("a", name="a"), Scripted("b", name="b"), chooser({1: None, 2: None}))
    done = await execute(asking("a", "b"), workers, "?")
    assert [step.status for step in done.steps] == ["done", "done", "done"]
    assert done.reply is not None
    assert (done.reply.text, done.steps[-1].checks) == ("b", (Check(0, None),))


async def test_a_selector_that_fails_is_not_sure_and_gets_a_substitute_in_the_end() -> None:
    broken = Scripted(WorkerError("broken"), name="select", selects=True)
    workers = pool_of(Scripted("a", name="a"), Scripted("b", name="b"), broken)
    done = await execute(asking("a", "b"), workers, "?")
    assert str(done.error) == "broken"
    assert [step.status for step in done.steps] == ["done", "done", "failed"]
    saved = await execute(asking("a", "b"), workers, "?", reassign=True)
    assert saved.error is None
    assert (saved.steps[-1].worker, saved.steps[-1].checks) == ("a", (Check(0, None),))


async def test_a_slow_step_leaves_time_to_choose_among_the_results_before_it() -> None:
    slow = Scripted("late", name="b", delay_s=30)
    workers = pool_of(Scripted("a", name="a"), slow, chooser({1: 0.3}))
    done = await execute(asking("a", "b"), workers, "?", limits=Limits(deadline_s=0.5))
    assert done.error is None
    assert [step.status for step in done.steps] == ["done", "failed", "done"]
    assert "only the time to choose" in done.steps[1].error
    assert done.reply is not None
    assert done.reply.text == "a"


async def test_no_further_step_begins_once_the_time_is_up() -> None:
    slow, after = Scripted("late", name="b", delay_s=30), Scripted("never", name="c")
    workers = pool_of(Scripted("a", name="a"), slow, after, chooser({1: 0.3}))
    done = await execute(asking("a", "b", "c"), workers, "?", limits=Limits(deadline_s=0.5))
    assert [step.status for step in done.steps] == ["done", "failed", "skipped", "done"]
    assert done.steps[2].error == "no time was left for it"
    assert after.calls == 0


async def test_the_deadline_of_the_run_holds_for_the_choice() -> None:
    async def dawdle(request: Request) -> Reply:
        await asyncio.sleep(30)
        return Reply("late", confidence=1.0)

    workers = pool_of(Scripted("a", name="a"), FromFunction(dawdle, name="select", selects=True))
    done = await execute(asking("a"), workers, "?", limits=Limits(deadline_s=0.2))
    assert isinstance(done.error, DeadlineError)


async def test_a_cancelled_run_keeps_its_finished_steps() -> None:
    workers = pool_of(Scripted("a", name="a"), Scripted("b", name="b", delay_s=30), chooser({1: 0.1}))
    ended: list[StepRecord] = []
    task = asyncio.ensure_future(
        execute(
            asking("a", "b"),
            workers,
            "?",
            observe=lambda event: ended.append(event.step) if isinstance(event, StepEnded) else None,
        )
    )
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert {step.index: step.status for step in ended} == {0: "done", 1: "cancelled", 2: "cancelled"}


async def test_steps_that_may_be_the_answer_get_the_callers_schema() -> None:
    plan = Plan(
        (Step("a", ANSWER), Step("b", "Check it.", (0,)), Step("select", "Choose.", (0, 1))),
        until=0.9,
    )
    a = Scripted("{}", name="a", abilities=frozenset({"schema"}))
    b = Scripted("{}", name="b", abilities=frozenset({"schema"}))
    select = chooser({1: 0.1, 2: 0.1})
    options = Request((), schema=Schema({"type": "object"}), max_output_tokens=77)
    await execute(plan, pool_of(a, b, select), "?", options=options)
    assert all(worker.requests[0].schema is not None for worker in (a, b))
    assert a.requests[0].max_output_tokens == 77
    assert select.requests[-1].schema is None


# --- tools, resuming, journal ---

TOOL = Tool("weather", {})
CALLS = Reply("", tool_calls=(ToolCall("1", "weather", "{}"),), finish="tool_calls")


def conductor(plan: Plan, *workers: Worker, **settings: object) -> Conductor:
    return Conductor(Fixed(plan), Pool(workers), reassign=False, **settings)  # type: ignore[arg-type]


async def test_a_step_that_asks_for_a_tool_waits_and_the_plan_continues_there() -> None:
    a = Scripted("dry", name="a")
    b = Scripted(CALLS, "rain", name="b", abilities=frozenset({"tools"}))
    c = Scripted("never", name="c")
    running = conductor(asking("a", "b", "c"), a, b, c, chooser({1: 0.2, 2: 0.8}))
    paused: list[RunState] = []
    options = Request((), tools=(TOOL,))

    def keep(event: Event) -> None:
        if (state := getattr(event, "state", None)) is not None:
            paused.append(state)

    waiting = await running.run("?", options=options, observe=keep)
    assert waiting.status == "waiting"
    assert [step.status for step in waiting.steps] == ["done", "waiting", "waiting", "waiting"]
    state = with_results(paused[0], {call.id: Message("tool", "wet") for call in waiting.tool_calls})
    done = await running.run("?", options=options, resume=state)
    assert (done.status, done.answer) == ("done", "rain")
    assert [step.status for step in done.steps] == ["done", "done", "skipped", "done"]
    assert done.steps[-1].checks == (Check(0, 0.2), Check(1, 0.8))
    assert (a.calls, b.calls, c.calls) == (1, 2, 0)


async def test_a_run_resumes_from_each_state_of_its_journal() -> None:
    plan = asking("a", "b", "c")
    stored: list[RunState] = []

    async def journal(state: RunState) -> None:
        stored.append(state)

    def workers() -> list[Scripted]:
        return [Scripted(name, name=name) for name in "abc"]

    select = chooser({1: 0.2, 2: 0.8})
    whole = await conductor(plan, *workers(), select).run("?", journal=journal)
    assert whole.answer == "b"
    for state in stored:
        again = workers()
        done = await conductor(plan, *again, select).run("?", resume=state)
        assert (done.status, done.answer) == ("done", "b")
        assert [step.status for step in done.steps] == ["done", "done", "skipped", "done"]
        asked = {step.index for round in state.trace.rounds for step in round.steps if step.status == "done"}
        assert [worker.calls for worker in again] == [1 - (0 in asked), 1 - (1 in asked), 0], "nothing is paid twice"


async def test_a_failed_step_stays_skipped_when_its_run_resumes() -> None:
    prior = [StepRecord(0, "a", ANSWER, status="failed", error="down")]
    workers = pool_of(Scripted("a", name="a"), Scripted("b", name="b"), chooser({1: 0.9}))
    done = await execute(asking("a", "b"), workers, "?", prior=prior)
    assert done.error is None
    assert [step.status for step in done.steps] == ["failed", "done", "done"]


async def test_a_journal_that_fails_ends_the_run_before_more_is_paid() -> None:
    async def journal(step: StepRecord) -> None:
        raise StoreError("the disk is full")

    b = Scripted("b", name="b")
    workers = pool_of(Scripted("a", name="a"), b, chooser({1: 0.1}))
    done = await execute(asking("a", "b"), workers, "?", journal=journal)
    assert isinstance(done.error, StoreError)
    assert b.calls == 0


# --- estimate, drawing, replay ---


def test_the_low_estimate_stops_after_one_step_and_the_high_asks_all() -> None:
    price = Price(input=0.0, output=10.0)
    workers = pool_of(*[Scripted("x", name=name, price=price) for name in "abc"], chooser({}))
    limits = Limits(max_output_tokens=1000)
    stopping = estimate(asking("a", "b", "c"), workers, "?", limits=limits)
    one = estimate(asking("a"), workers, "?", limits=limits)
    all_three = estimate(msgspec.structs.replace(asking("a", "b", "c"), until=None), workers, "?", limits=limits)
    assert stopping.low_usd == one.low_usd
    assert stopping.high_usd == all_three.high_usd == pytest.approx(0.03)
    assert stopping.low_usd < all_three.low_usd


async def test_a_drawing_shows_until_and_the_choices_confidence() -> None:
    plan = asking("a", "b", "c")
    assert "at most 4 steps, in order, until 70% sure" in draw_plan(plan).plain
    assert "(with" not in draw_plan(plan).plain
    workers = [*[Scripted(name, name=name) for name in "abc"], chooser({1: 0.415, 2: 0.83})]
    trace = await conductor(plan, *workers).run("?")
    for style in ("timeline", "tree"):
        drawn = draw_trace(trace, style=style).plain  # type: ignore[arg-type]
        assert "↳ sure of its choice: 41.5% after step 0, 83% after step 1" in drawn
        assert "– skipped" in drawn
        assert "select was 83% sure after step 1" in " ".join(drawn.split())


@pytest.mark.parametrize("sure", [{1: 0.2, 2: 0.8, 3: 0.0}, {1: 0.1, 2: 0.2, 3: 0.3}, {1: 0.9}])
async def test_a_run_replays_with_until(sure: dict[int, float | None]) -> None:
    plan = asking("a", "b", "c")
    workers = [*[Scripted(name, name=name) for name in "abc"], chooser(sure)]
    trace = await conductor(plan, *workers).run("?")
    again = await replay(trace)
    assert same_outcome(trace, again)
    assert [step.status for step in again.steps] == [step.status for step in trace.steps]
    assert again.steps[-1].checks == trace.steps[-1].checks
    assert plan_of(trace) == plan


async def test_a_run_with_a_failed_step_replays() -> None:
    workers = [Scripted(WorkerError("down"), name="a"), Scripted("b", name="b"), chooser({1: 0.8})]
    trace = await conductor(asking("a", "b"), *workers).run("?")
    again = await replay(trace)
    assert same_outcome(trace, again)
    assert [step.status for step in again.steps] == ["failed", "done", "done"]
