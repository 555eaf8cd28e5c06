"""Conductor.run: plans, repairs, fallbacks, rounds, traces, and conductors inside conductors."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec
import pytest

from dirigent.conduct import Conductor
from dirigent.errors import ConfigError, WorkerError
from dirigent.limits import Budget, Limits
from dirigent.messages import Delta, Event, Finish, Message, Observe, Reply, Request, Usage, ignore
from dirigent.plan.plan import Plan, Step
from dirigent.plan.planner import Brief, Draft, LanguagePlanner
from dirigent.planners.fixed import Fixed, Single
from dirigent.run.trace import Drafted, Planned, RunEnded, StepEnded, Trace
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted
from dirigent.workers.worker import Price
from tests.facts import facts, says

TWO_STEPS = 'model_id = [0, 1]\nsubtasks = ["name the capital", "count its letters"]\naccess_list = [[], [0]]'
ACCEPT = "model_id = []\nsubtasks = []\naccess_list = []"


def pool_of(**replies: str) -> Pool:
    return Pool(Scripted(text, name=name, about=f"knows {name}") for name, text in replies.items())


def conductor(*drafts: str | Exception, pool: Pool | None = None, **settings: object) -> Conductor:
    planner = LanguagePlanner(Scripted(*drafts, name="planner"))
    return Conductor(planner, pool or pool_of(facts="Oslo", letters="4"), **settings)  # type: ignore[arg-type]


async def test_a_question_becomes_a_plan_an_answer_and_a_trace() -> None:
    trace = await conductor(TWO_STEPS).run("How many letters has the capital of Norway?")
    assert (trace.status, trace.answer) == ("done", "4")
    assert trace.plan == Plan((Step("facts", "name the capital"), Step("letters", "count its letters", (0,))))
    assert [info.name for info in trace.pool] == ["facts", "letters"]
    assert trace.rounds[0].drafts[0].text == TWO_STEPS
    assert trace.rounds[0].drafts[0].messages
    assert trace.usage.calls == 3


async def test_a_trace_survives_being_written_and_read() -> None:
    trace = await conductor(TWO_STEPS).run("How many letters?")
    assert msgspec.json.decode(msgspec.json.encode(trace), type=Trace) == trace


async def test_usage_adds_up_and_orchestration_is_all_but_the_answering_step() -> None:
    pool = Pool(
        [
            Scripted("Oslo", name="facts", usage=Usage(10, 2)),
            Scripted("4", name="letters", usage=Usage(20, 1)),
        ]
    )
    planner = LanguagePlanner(Scripted(TWO_STEPS, usage=Usage(100, 30)))
    usage = (await Conductor(planner, pool).run("?")).usage
    assert (usage.input_tokens, usage.output_tokens) == (130, 33)
    assert (usage.orchestration_input_tokens, usage.orchestration_output_tokens) == (110, 32)


async def test_a_draft_that_is_no_plan_is_mended_once() -> None:
    asking = conductor("I would ask facts.", TWO_STEPS)
    trace = await asking.run("?")
    assert trace.status == "done"
    first, second = trace.rounds[0].drafts
    assert first.error
    assert not second.error
    assert first.error in "".join(m.text for m in second.messages), "the planner sees the reason"


async def test_without_a_fallback_two_bad_drafts_fail_the_run() -> None:
    trace = await conductor("nonsense").run("?")
    assert (trace.status, trace.error_kind) == ("failed", "PlanError")
    assert trace.usage.calls == 2, "both drafts are billed"


async def test_the_fallback_answers_when_the_planner_cannot() -> None:
    trace = await conductor("nonsense", fallback=Single("letters")).run("?")
    assert (trace.status, trace.answer) == ("done", "4")
    assert trace.rounds[0].fallback
    assert len(trace.rounds[0].drafts) == 3


async def test_the_fallback_answers_when_the_planners_model_is_down() -> None:
    trace = await conductor(WorkerError("down"), fallback=Single()).run("?")
    assert (trace.status, trace.answer, trace.rounds[0].fallback) == ("done", "Oslo", True)


async def test_a_plan_outside_the_pool_is_refused_before_anyone_is_asked() -> None:
    pool = pool_of(facts="Oslo")
    trace = await conductor(TWO_STEPS, pool=pool, repairs=0).run("?")
    assert trace.error_kind == "PlanError"
    worker = pool["facts"]
    assert isinstance(worker, Scripted)
    assert worker.requests == []


async def test_in_a_second_round_the_planner_accepts() -> None:
    trace = await conductor(TWO_STEPS, ACCEPT, limits=Limits(max_rounds=2)).run("?")
    assert trace.answer == "4"
    assert trace.rounds[1].accepted
    assert "4" in trace.rounds[1].drafts[0].messages[-1].text, "it sees the answer"


async def test_in_a_second_round_the_planner_repairs() -> None:
    better = 'model_id = [0]\nsubtasks = ["again"]\naccess_list = [[]]'
    trace = await conductor(TWO_STEPS, better, limits=Limits(max_rounds=2)).run("?")
    assert trace.answer == "Oslo"
    assert len(trace.rounds) == 2


async def test_accepting_in_the_first_round_is_no_plan() -> None:
    trace = await conductor(ACCEPT, repairs=0).run("?")
    assert trace.error_kind == "PlanError"


async def test_a_second_round_that_fails_leaves_the_first_answer_standing() -> None:
    trace = await conductor(TWO_STEPS, "nonsense", limits=Limits(max_rounds=2), repairs=0).run("?")
    assert (trace.status, trace.answer) == ("done", "4")


async def test_the_fallback_does_not_replace_an_existing_answer() -> None:
    other = Scripted('model_id = [0]\nsubtasks = ["again"]\naccess_list = [[]]', name="other")
    limits = Limits(max_rounds=2)
    trace = await conductor(TWO_STEPS, "nonsense", limits=limits, fallback=LanguagePlanner(other)).run("?")
    assert (trace.status, trace.answer) == ("done", "4")
    assert other.requests == []


async def test_the_marks_of_one_round_say_nothing_of_those_of_the_next() -> None:
    letters = Scripted("4", name="letters")
    pool = Pool([Scripted("Oslo", name="facts"), letters])
    await conductor(TWO_STEPS, TWO_STEPS, pool=pool, limits=Limits(max_rounds=2)).run("?")
    first, second = letters.requests
    assert first.messages != second.messages, "only their marks can tell them apart"


async def test_if_a_later_round_fails_plan_steps_and_usage_are_those_of_the_answer() -> None:
    worse = 'model_id = [0]\nsubtasks = ["again"]\naccess_list = [[]]'
    pool = Pool(
        [
            Scripted("Oslo", WorkerError("down"), name="facts", usage=Usage(10, 1)),
            Scripted("4", name="letters", usage=Usage(20, 2)),
        ]
    )
    planner = LanguagePlanner(Scripted(TWO_STEPS, worse, usage=Usage(100, 50)))
    trace = await Conductor(planner, pool, limits=Limits(max_rounds=2), reassign=False).run("?")
    assert (trace.status, trace.answer) == ("done", "4")
    assert [step.worker for step in trace.steps] == ["facts", "letters"]
    assert trace.plan is not None
    assert len(trace.plan.steps) == 2
    assert (trace.usage.output_tokens, trace.usage.orchestration_output_tokens) == (103, 101)


async def test_a_fixed_planner_accepts_its_own_answer() -> None:
    trace = await Conductor(Single(), pool_of(a="yes"), limits=Limits(max_rounds=2)).run("?")
    assert [r.accepted for r in trace.rounds] == [False, True]


async def test_observers_see_the_run_in_order_and_last_of_all_its_trace() -> None:
    seen: list[Event] = []
    trace = await conductor(TWO_STEPS).run("?", observe=seen.append)
    kinds = [type(event) for event in seen]
    assert kinds.index(Drafted) < kinds.index(Planned) < kinds.index(StepEnded)
    assert isinstance(seen[-1], RunEnded)
    assert seen[-1].trace == trace


async def test_a_cancelled_run_still_leaves_a_trace() -> None:
    seen: list[Event] = []
    pool = Pool([Scripted("late", name="slow", delay_s=30)])
    running = Conductor(Single(), pool)
    task = asyncio.create_task(running.run("?", observe=seen.append))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(seen[-1], RunEnded)
    assert seen[-1].trace.status == "cancelled"
    assert seen[-1].trace.steps[0].status == "cancelled"


async def test_the_deadline_covers_planning() -> None:
    planner = LanguagePlanner(Scripted(TWO_STEPS, delay_s=30))
    trace = await Conductor(planner, pool_of(facts="x", letters="y"), limits=Limits(deadline_s=0.1)).run("?")
    assert trace.error_kind == "DeadlineError"


async def test_the_callers_deadline_covers_planning_too() -> None:
    planner = LanguagePlanner(Scripted(TWO_STEPS, delay_s=0.5))
    pool = pool_of(facts="x", letters="y")
    options = Request((), deadline=time.monotonic() + 0.05)
    trace = await Conductor(planner, pool).run("?", options=options)
    assert trace.error_kind == "DeadlineError"
    assert says(trace.error, "deadline language:scripted")
    assert trace.rounds[0].plan is None


async def test_a_plan_that_came_too_late_is_on_the_bill() -> None:
    planner = LanguagePlanner(Scripted(TWO_STEPS, delay_s=30, price=Price(1.0, 1.0)))
    running = Conductor(planner, pool_of(facts="x", letters="y"), limits=Limits(deadline_s=0.05))
    ledger = Budget()
    trace = await running.run("?", options=Request((), ledger=ledger))
    assert trace.rounds[0].drafts[0].error
    assert trace.cost_usd == ledger.spent_usd > 0


async def test_a_run_cancelled_while_it_plans_has_the_plan_on_its_bill() -> None:
    seen: list[Event] = []
    ledger = Budget()
    planner = LanguagePlanner(Scripted(TWO_STEPS, delay_s=30, price=Price(1.0, 1.0)))
    running = Conductor(planner, pool_of(facts="x", letters="y"))
    task = asyncio.create_task(running.run("?", options=Request((), ledger=ledger), observe=seen.append))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(seen[-1], RunEnded)
    assert seen[-1].trace.rounds[0].drafts[0].error
    assert seen[-1].trace.cost_usd == ledger.spent_usd > 0


@pytest.mark.parametrize("error", [ZeroDivisionError("bug"), ConfigError("the file is gone")])
async def test_calls_paid_before_an_unexpected_error_are_on_record(error: Exception) -> None:
    seen: list[Event] = []
    ledger = Budget()
    pool = Pool([Scripted("A", name="a", price=Price(1.0, 1.0)), Scripted(error, name="b", price=Price(1.0, 1.0))])
    inner = Conductor(Fixed(Plan((Step("a", "x"), Step("b", "y", (0,))))), pool, name="inner")
    outer = Conductor(Single(), Pool([inner]), reassign=False)
    with contextlib.suppress(ZeroDivisionError):
        await outer.run("?", options=Request((), ledger=ledger), observe=seen.append)
    assert isinstance(seen[-1], RunEnded)
    trace = seen[-1].trace
    assert (trace.status, trace.steps[0].status) == ("failed", "failed")
    assert [attempt.worker for attempt in trace.attempts] == ["a", "b"]
    assert trace.cost_usd == pytest.approx(ledger.spent_usd)


async def test_a_bug_of_the_planner_has_its_calls_on_the_bill() -> None:
    seen: list[Event] = []
    running = Conductor(LanguagePlanner(Scripted(ZeroDivisionError("bug"), price=Price(1.0, 1.0))), pool_of(a="x"))
    with pytest.raises(ZeroDivisionError):
        await running.run("?", observe=seen.append)
    assert isinstance(seen[-1], RunEnded)
    assert seen[-1].trace.rounds[0].drafts[0].error == "ZeroDivisionError: bug"
    assert seen[-1].trace.cost_usd > 0


async def test_a_timeout_of_the_planners_own_is_not_the_runs_deadline() -> None:
    async def hang(request: Request) -> str:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(30)
        return "never"

    with pytest.raises(TimeoutError):
        await Conductor(LanguagePlanner(Scripted(hang)), pool_of(a="x")).run("?")


async def test_a_call_with_its_own_name_for_a_cut_is_charged_all_the_same() -> None:
    async def hang(request: Request) -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise TimeoutError("mine") from None
        return "never"

    slow = Scripted(hang, name="slow", price=Price(1.0, 1.0))
    for running in (
        Conductor(Single(), Pool([slow]), limits=Limits(deadline_s=0.05)),
        Conductor(LanguagePlanner(slow), pool_of(a="x"), limits=Limits(deadline_s=0.05)),
    ):
        trace = await running.run("?")
        assert (trace.error_kind, len(trace.attempts)) == ("DeadlineError", 1)


async def test_a_question_without_a_message_is_refused_before_anyone_plans() -> None:
    planner = Scripted(TWO_STEPS, name="planner")
    with pytest.raises(ConfigError):
        await Conductor(LanguagePlanner(planner), pool_of(facts="x", letters="y")).run([])
    assert planner.calls == 0


async def test_a_cap_refuses_every_worker_without_a_price() -> None:
    unpriced = Scripted("x", name="unpriced")
    priced = Pool([Scripted("x", name="w", price=Price())])
    limits = Limits(max_cost_usd=1.0)
    nested = Pool([Conductor(Single(), Pool([unpriced]), name="inner")])
    for running in (
        Conductor(Single(), nested, limits=limits),
        Conductor(
            LanguagePlanner(Scripted("-", price=Price())), priced, limits=limits, fallback=LanguagePlanner(unpriced)
        ),
    ):
        trace = await running.run("?")
        assert trace.status == "failed"
        assert says(trace.error, "price unpriced")
    assert unpriced.calls == 0


async def test_a_cost_cap_needs_every_price() -> None:
    with pytest.raises(ConfigError, match=facts("price facts")):
        await conductor(TWO_STEPS, limits=Limits(max_cost_usd=1.0)).run("?")


async def test_a_cost_cap_of_one_step_needs_every_price() -> None:
    with pytest.raises(ConfigError, match=facts("price facts")):
        await conductor(TWO_STEPS, limits=Limits(max_step_cost_usd=1.0)).run("?")


async def test_a_cost_cap_needs_the_planning_workers_price_too() -> None:
    pool = Pool([Scripted("x", name="w", price=Price())])
    with pytest.raises(ConfigError, match=facts("price planner")):
        await conductor(TWO_STEPS, pool=pool, limits=Limits(max_cost_usd=1.0)).run("?")


async def test_a_run_never_costs_more_than_its_cap() -> None:
    pool = Pool([Scripted("word " * 5000, name="dear", price=Price(1.0, 1000.0))])
    limits = Limits(max_cost_usd=0.05)
    plan = Plan(tuple(Step("dear", "write", tuple(range(i))) for i in range(3)))
    trace = await Conductor(Fixed(plan), pool, limits=limits).run("?")
    assert 0 < trace.cost_usd <= 0.05


async def test_a_conductor_is_a_worker() -> None:
    inner = conductor(TWO_STEPS, name="inner")
    outer = Conductor(Single(), Pool([inner]))
    trace = await outer.run("?")
    assert trace.answer == "4"
    assert trace.usage.calls == 3, "the calls inside are the calls that are billed"


async def test_a_conductor_in_a_pool_streams_its_last_step() -> None:
    seen: list[Event] = []
    reply = await conductor(TWO_STEPS).ask(Request((Message("user", "?"),)), observe=seen.append)
    assert "".join(e.text for e in seen if isinstance(e, Delta)) == reply.text


async def test_a_conductor_whose_second_round_may_mend_the_answer_streams_the_one_it_gives() -> None:
    better = 'model_id = [0]\nsubtasks = ["again"]\naccess_list = [[]]'
    seen: list[Event] = []
    running = conductor(TWO_STEPS, better, limits=Limits(max_rounds=2))
    reply = await running.ask(Request((Message("user", "?"),)), observe=seen.append)
    assert (seen, reply.text) == ([Delta("Oslo")], "Oslo")


async def test_words_that_were_streamed_are_never_followed_by_anothers() -> None:
    class BreaksOff:
        info = Scripted("x", name="first").info

        async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
            observe(Delta("wrong"))
            raise WorkerError("cut", fault="reply")

    seen: list[Event] = []
    running = Conductor(Single(), Pool([BreaksOff(), Scripted("right", name="second")]))
    with pytest.raises(WorkerError) as caught:
        await running.ask(Request((Message("user", "?"),)), observe=seen.append)
    assert seen == [Delta("wrong")]
    assert [attempt.worker for attempt in caught.value.attempts] == ["first", "second"]


async def test_a_substitute_streams_the_answer_if_no_word_was_sent_before() -> None:
    seen: list[Event] = []
    pool = Pool([Scripted(WorkerError("down"), name="first"), Scripted("right", name="second")])
    reply = await Conductor(Single(), pool).ask(Request((Message("user", "?"),)), observe=seen.append)
    assert reply.text == "right"
    assert "".join(e.text for e in seen if isinstance(e, Delta)) == "right"


@pytest.mark.parametrize(("wrote", "says"), [("length", "length"), ("refused", "refused"), ("tool_calls", "stop")])
async def test_a_conductor_reports_the_reason_of_the_answers_end(wrote: Finish, says: Finish) -> None:
    running = Conductor(Single(), Pool([Scripted(Reply("so far", finish=wrote), name="w")]))
    assert (await running.ask(Request((Message("user", "?"),)))).finish == says


async def test_a_conductor_that_is_cut_short_in_a_pool_has_all_its_calls_on_the_bill() -> None:
    price = Price(1.0, 1.0)
    pool = Pool([Scripted("A", name="a", price=price), Scripted("late", name="slow", delay_s=30, price=price)])
    inner = Conductor(Fixed(Plan((Step("a", "x"), Step("slow", "y", (0,))))), pool, name="inner")
    ledger = Budget()
    outer = Conductor(Single(), Pool([inner]), limits=Limits(deadline_s=0.1))
    trace = await outer.run("?", options=Request((), ledger=ledger))
    assert trace.error_kind == "DeadlineError"
    assert [attempt.worker for attempt in trace.attempts] == ["a", "slow"]
    assert trace.cost_usd == pytest.approx(ledger.spent_usd)


async def test_a_conductor_in_its_own_pool_ends() -> None:
    class Mirror:
        info = Scripted("x", name="mirror").info
        target: Conductor

        async def ask(self, request: Request, *, observe: object = None) -> object:
            return await self.target.ask(request)

    mirror = Mirror()
    mirror.target = Conductor(Single(), Pool([mirror]))  # type: ignore[list-item]
    trace = await mirror.target.run("?")
    assert trace.status == "failed"
    assert says(trace.error, "2")


async def test_conductors_stand_two_deep_in_a_pool_and_no_deeper() -> None:
    nested = conductor(TWO_STEPS, name="innermost")
    for name in ("inner", "outer"):
        nested = Conductor(Single(), Pool([nested]), name=name)
    assert (await nested.run("?")).answer == "4"
    trace = await Conductor(Single(), Pool([nested])).run("?")
    assert (trace.status, says(trace.error, "2")) == ("failed", True)


async def test_asking_a_conductor_again_is_not_asking_deeper() -> None:
    running = conductor(TWO_STEPS)
    for _ in range(4):
        assert (await running.ask(Request((Message("user", "?"),)))).text == "4"


async def test_a_dry_run_asks_no_worker() -> None:
    pool = pool_of(facts="Oslo", letters="4")
    drafted = await conductor(TWO_STEPS, pool=pool).draft("?")
    assert drafted.plan is not None
    assert len(drafted.plan.steps) == 2
    assert all(isinstance(w, Scripted) and not w.requests for w in pool.values())


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ConfigError):
        Conductor(Single(), Pool([]))


JOINED = 'model_id = [1]\nsubtasks = ["say both"]\naccess_list = ["all"]'


async def test_a_second_round_reads_the_first_by_number_and_asks_nothing_again() -> None:
    facts, letters = Scripted("Oslo", name="facts"), Scripted("4", "Oslo has 4", name="letters")
    asking = conductor(TWO_STEPS, JOINED, pool=Pool([facts, letters]), limits=Limits(max_rounds=2))
    trace = await asking.run("?")
    assert trace.answer == "Oslo has 4"
    assert (facts.calls, letters.calls) == (1, 2)
    assert [(step.index, step.round, step.access) for step in trace.steps] == [(0, 0, ()), (1, 0, (0,)), (2, 1, (0, 1))]
    seen = letters.requests[1].messages[-1].text
    assert all(shown in seen for shown in ("Subtask: name the capital\nResult: Oslo", "Result: 4", "say both"))
    assert (trace.plan, trace.usage.calls) == (Plan((Step("letters", "say both", (0, 1)),), 2), 5)


async def test_in_a_second_round_the_planner_sees_every_step_with_its_number() -> None:
    trace = await conductor(TWO_STEPS, ACCEPT, limits=Limits(max_rounds=2)).run("?")
    shown = trace.rounds[1].drafts[0].messages[-1].text
    assert all(fact in shown for fact in ("step 0>", "Oslo", "step 1>", "Result: 4", "count on from 2"))


async def test_a_second_round_may_read_only_one_of_the_first_rounds_steps() -> None:
    letters = Scripted("4", "again 4", name="letters")
    again = 'model_id = [1]\nsubtasks = ["count again"]\naccess_list = [[0]]'
    pool = Pool([Scripted("Oslo", name="facts"), letters])
    await conductor(TWO_STEPS, again, pool=pool, limits=Limits(max_rounds=2)).run("?")
    seen = letters.requests[1].messages[-1].text
    assert ("Oslo" in seen, "Result: 4" in seen) == (True, False)


async def test_max_steps_is_per_round() -> None:
    limits = Limits(max_steps=2, max_rounds=3)
    third = 'model_id = [0, 1]\nsubtasks = ["a", "b"]\naccess_list = [[3], [4, 0]]'
    trace = await conductor(TWO_STEPS, TWO_STEPS, third, limits=limits).run("?")
    assert [step.index for step in trace.steps] == [0, 1, 2, 3, 4, 5]
    assert [step.access for step in trace.steps[4:]] == [(3,), (0, 4)]
    assert [len(round.steps) for round in trace.rounds] == [2, 2, 2]


async def test_a_step_that_does_not_exist_yet_cannot_be_read_in_a_second_round() -> None:
    beyond = 'model_id = [0]\nsubtasks = ["a"]\naccess_list = [[2]]'
    trace = await conductor(TWO_STEPS, beyond, limits=Limits(max_rounds=2), repairs=0).run("?")
    assert trace.answer == "4"
    assert "step 2 reads step 2" in trace.rounds[1].drafts[0].error


async def test_an_earlier_step_without_a_result_is_not_shown_and_shifts_no_other() -> None:
    aside = 'model_id = [0, 1]\nsubtasks = ["aside", "answer"]\naccess_list = [[], []]'
    letters = Scripted("4", "both", name="letters")
    pool = Pool([Scripted(WorkerError("down"), name="facts"), letters])
    asking = conductor(aside, JOINED, pool=pool, limits=Limits(max_rounds=2), reassign=False)
    trace = await asking.run("?")
    assert [step.status for step in trace.steps] == ["failed", "done", "done"]
    assert trace.answer == "both"
    assert "aside" not in letters.requests[1].messages[-1].text


async def test_a_fallback_plan_of_the_first_round_can_be_read_in_the_second() -> None:
    better = 'model_id = [0]\nsubtasks = ["again"]\naccess_list = [[0]]'
    asking = conductor("nonsense", better, fallback=Single("letters"), repairs=0, limits=Limits(max_rounds=2))
    trace = await asking.run("?")
    assert (trace.answer, trace.steps[1].access) == ("Oslo", (0,))


async def test_words_of_a_second_rounds_last_step_stream_under_its_number() -> None:
    seen: list[Event] = []
    trace = await conductor(TWO_STEPS, JOINED, limits=Limits(max_rounds=2)).run("?", observe=seen.append)
    assert [e.step.index for e in seen if isinstance(e, StepEnded)] == [0, 1, 2]
    assert [(e.plan.first, e.plan.last) for e in seen if isinstance(e, Planned)] == [(0, 1), (2, 2)]
    assert trace.status == "done"


async def test_a_planners_own_timeout_is_a_bug_and_not_the_deadline() -> None:
    class Hasty:
        name = "hasty"

        async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
            return Draft()

    seen: list[Event] = []
    with pytest.raises(TimeoutError):
        await Conductor(Hasty(), pool_of(facts="Oslo")).run("?", observe=seen.append)
    (ended,) = (event.trace for event in seen if isinstance(event, RunEnded))
    assert ended.rounds[0].drafts[0].error.startswith("TimeoutError")


async def test_a_planner_that_waits_for_nothing_needs_no_time() -> None:
    trace = await Conductor(Single(), pool_of(facts="Oslo"), limits=Limits(deadline_s=1e-9)).run("?")
    assert (trace.rounds[0].drafts[0].error, trace.plan) == ("", Plan((Step("facts", "Answer the question."),)))
