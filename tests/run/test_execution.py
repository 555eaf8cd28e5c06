"""Carrying out a plan: order, access, faults, limits, cancellation."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from tests.facts import says

from dirigent.errors import CostError, DeadlineError, StoreError, WorkerError
from dirigent.limits import Budget, Hold, Limits, Quote
from dirigent.messages import (
    Attempt,
    Delta,
    Event,
    Message,
    Observe,
    Ran,
    Reply,
    Request,
    Result,
    Schema,
    Tool,
    ToolCall,
    Usage,
    conversation,
    ignore,
)
from dirigent.plan.plan import Plan, Step
from dirigent.run.execution import execute
from dirigent.run.step_prompt import ANSWER, step_messages
from dirigent.run.trace import StepDelta, StepEnded, StepReassigned, StepRecord, StepStarted
from dirigent.workers.scripted import FromFunction, Scripted
from dirigent.workers.worker import Price

QUESTION = conversation("How many letters has the capital of Norway?")


def chain(*workers: str) -> Plan:
    return Plan(tuple(Step(name, f"do {i}", (i - 1,) if i else ()) for i, name in enumerate(workers)))


async def test_step_sees_only_what_its_access_allows() -> None:
    spy = Scripted("done")
    plan = Plan((Step("a", "one"), Step("b", "two"), Step("spy", "three", access=(1,))))
    await execute(plan, {"a": Scripted("ALPHA"), "b": Scripted("BETA"), "spy": spy}, QUESTION)
    assert "BETA" in spy.seen_text
    assert "ALPHA" not in spy.seen_text


async def test_the_last_reply_is_the_answer_and_every_step_is_recorded() -> None:
    plan = chain("a", "b")
    done = await execute(plan, {"a": Scripted("Oslo"), "b": Scripted("4")}, QUESTION)
    assert done.reply is not None
    assert done.reply.text == "4"
    assert [step.status for step in done.steps] == ["done", "done"]
    assert all(step.attempts and step.messages for step in done.steps)
    assert done.steps[1].started_s >= done.steps[0].ended_s


async def test_steps_that_do_not_read_one_another_run_at_the_same_time() -> None:
    both = asyncio.Barrier(2)

    async def meet(request: Request) -> str:
        await asyncio.wait_for(both.wait(), 5)
        return "met"

    from dirigent.workers.scripted import FromFunction

    workers = {"a": FromFunction(meet, name="a"), "b": FromFunction(meet, name="b"), "c": Scripted("end")}
    plan = Plan((Step("a", "x"), Step("b", "y"), Step("c", "z", (0, 1))))
    assert (await execute(plan, workers, QUESTION)).error is None


async def test_a_step_waits_only_for_the_steps_it_reads() -> None:
    order: list[int] = []

    def note(event: Event) -> None:
        if isinstance(event, StepEnded):
            order.append(event.step.index)

    workers = {"slow": Scripted("s", delay_s=0.2), "quick": Scripted("q")}
    plan = Plan((Step("slow", "x"), Step("quick", "y"), Step("quick", "z", (1,))))
    await execute(plan, workers, QUESTION, observe=note)
    assert order == [1, 2, 0]


async def test_a_failed_worker_is_replaced_once_and_the_record_shows_it() -> None:
    events: list[Event] = []
    workers = {"bad": Scripted(WorkerError("down", worker="bad")), "good": Scripted("fine")}
    done = await execute(chain("bad"), workers, QUESTION, reassign=True, observe=events.append)
    step = done.steps[0]
    assert (step.worker, step.planned_worker, step.status) == ("good", "bad", "done")
    assert [type(e) for e in events] == [StepStarted, StepReassigned, StepStarted, StepEnded]


class BreaksOff:
    """Writes a hundred tokens, which cost $100, and no end."""

    info = Scripted("x", name="bad", price=Price(0, 1e6)).info

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        observe(Delta("four" * 100))
        raise WorkerError("cut", fault="reply")


async def test_spending_before_the_ledger_failed_is_on_record() -> None:
    class Once(Budget):
        async def reserve(self, quote: Quote) -> Hold:
            if self.spent_usd:
                raise StoreError("the disk is full")
            return await super().reserve(quote)

    workers = {"bad": BreaksOff(), "good": Scripted("fine")}
    done = await execute(chain("bad"), workers, QUESTION, reassign=True, stream=True, ledger=Once())
    assert isinstance(done.error, StoreError)
    assert (done.steps[0].status, done.steps[0].cost_usd) == ("failed", 100)


async def test_a_failed_workers_spending_counts_against_the_cap_of_its_step() -> None:
    good = Scripted("word " * 100, name="good", price=Price(0, 1e6))
    limits = Limits(max_step_cost_usd=130, max_output_tokens=100)
    workers = {"bad": BreaksOff(), "good": good}
    done = await execute(chain("bad"), workers, QUESTION, limits=limits, reassign=True, stream=True)
    assert done.steps[0].worker == "good"
    assert 100 < done.steps[0].cost_usd <= 130


async def test_a_step_is_reassigned_at_most_once() -> None:
    down = WorkerError("down")
    third = Scripted("never asked")
    workers = {"a": Scripted(down), "b": Scripted(down), "c": third}
    done = await execute(chain("a"), workers, QUESTION, reassign=True)
    assert isinstance(done.error, WorkerError)
    assert third.requests == []


async def test_without_reassignment_the_failure_ends_the_run() -> None:
    workers = {"bad": Scripted(WorkerError("down")), "good": Scripted("fine")}
    done = await execute(chain("bad", "good"), workers, QUESTION)
    assert [step.status for step in done.steps] == ["failed", "cancelled"]
    assert str(done.error) == "down"


async def test_a_substitute_must_have_the_abilities_of_the_request() -> None:
    plain = Scripted("no schema here")
    able = Scripted("{}", abilities=frozenset({"schema"}))
    workers = {"bad": Scripted(WorkerError("down")), "plain": plain, "able": able}
    options = Request((), schema=Schema({"type": "object"}))
    done = await execute(chain("bad"), workers, QUESTION, reassign=True, options=options)
    assert done.steps[0].worker == "able"
    assert plain.requests == []


@pytest.mark.parametrize("access", [(0,), ()])
async def test_a_step_that_is_not_asked_again_keeps_its_earlier_cost(access: tuple[int, ...]) -> None:
    paid = Attempt("good", 1.0, cost_usd=5.0)
    plan = Plan((Step("bad", "x"), Step("good", "y", access), Step("good", "z", (0, 1))))
    prior = [StepRecord(1, "good", "y", access, status="cancelled", attempts=(paid,))]
    workers = {"bad": Scripted(WorkerError("down")), "good": Scripted("fine", delay_s=30)}
    done = await execute(plan, workers, QUESTION, prior=prior)
    assert done.steps[1].status == "cancelled"
    assert done.steps[1].attempts == (paid,)


async def test_a_resumed_step_began_when_it_was_first_asked() -> None:
    prior = [StepRecord(0, "a", "do 0", status="cancelled", started_s=1.5, ended_s=3.0)]
    done = await execute(chain("a"), {"a": Scripted("x")}, QUESTION, prior=prior, started=time.monotonic() - 10)
    assert done.steps[0].started_s == 1.5
    assert done.steps[0].ended_s >= 10


async def test_a_tool_call_that_was_cut_off_is_not_carried_out() -> None:
    tools, able = (Tool("look", {"type": "object"}),), frozenset({"tools"})
    cut = Reply("", tool_calls=(ToolCall("1", "look", '{"at": "sk'),), finish="length")
    whole = Reply("", tool_calls=(ToolCall("1", "look", '{"at": "sky"}'),), finish="length")
    worker = Scripted(cut, whole, name="w", abilities=able)
    done = await execute(chain("w"), {"w": worker}, QUESTION, options=Request((), tools=tools))
    assert isinstance(done.error, WorkerError)
    assert says(done.error.for_caller, "max_output_tokens")
    assert len(done.steps[0].attempts) == 1
    again = await execute(chain("w"), {"w": worker}, QUESTION, options=Request((), tools=tools))
    assert again.waiting


async def test_a_plan_whose_answer_was_lost_before_is_not_paid_any_further() -> None:
    plan = Plan((Step("bad", "x"), Step("good", "y"), Step("good", "z", (0, 1))))
    good = Scripted("fine")
    prior = [StepRecord(0, "bad", "x", status="failed", error="down")]
    done = await execute(plan, {"bad": Scripted("back"), "good": good}, QUESTION, prior=prior)
    assert (str(done.error), good.calls) == ("down", 0)
    assert [step.status for step in done.steps] == ["failed", "cancelled", "cancelled"]
    aside = Plan((Step("bad", "x"), Step("good", "z")))
    assert (await execute(aside, {"bad": Scripted("back"), "good": good}, QUESTION, prior=prior)).reply is not None


async def test_a_lost_side_branch_does_not_end_the_run() -> None:
    plan = Plan((Step("bad", "side"), Step("good", "also side", (0,)), Step("good", "main")))
    done = await execute(plan, {"bad": Scripted(WorkerError("down")), "good": Scripted("fine")}, QUESTION)
    assert [step.status for step in done.steps] == ["failed", "skipped", "done"]
    assert done.error is None


async def test_a_step_that_reads_a_skipped_step_is_skipped_too() -> None:
    plan = Plan((Step("bad", "x"), Step("w", "reads 0", (0,)), Step("w", "reads 1", (1,)), Step("w", "main")))
    worker = Scripted("fine")
    done = await execute(plan, {"bad": Scripted(WorkerError("down")), "w": worker}, QUESTION)
    assert [step.status for step in done.steps] == ["failed", "skipped", "skipped", "done"]
    assert says(done.steps[2].error, "step 1")
    assert len(worker.requests) == 1


async def test_when_the_answer_is_lost_the_others_are_cancelled_at_once() -> None:
    slow = Scripted("late", delay_s=30)
    plan = Plan((Step("slow", "x"), Step("bad", "y"), Step("slow", "z", (0, 1))))
    began = time.monotonic()
    done = await execute(plan, {"slow": slow, "bad": Scripted(WorkerError("down"))}, QUESTION)
    assert time.monotonic() - began < 5
    assert [step.status for step in done.steps] == ["cancelled", "failed", "cancelled"]


async def test_the_deadline_is_kept_inside_a_step() -> None:
    limits = Limits(deadline_s=0.1)
    done = await execute(
        chain("slow", "next"),
        {"slow": Scripted("late", delay_s=30), "next": Scripted("x")},
        QUESTION,
        limits=limits,
    )
    assert isinstance(done.error, DeadlineError)
    assert "0.1 s" in str(done.error)
    assert [step.status for step in done.steps] == ["failed", "cancelled"]


async def test_a_step_has_a_deadline_of_its_own() -> None:
    limits = Limits(deadline_s=60, step_deadline_s=0.1)
    done = await execute(chain("slow"), {"slow": Scripted("late", delay_s=30)}, QUESTION, limits=limits)
    assert "step_deadline_s = 0.1" in str(done.error)


async def test_a_deadline_that_the_caller_set_is_said_to_be_the_callers() -> None:
    limits = Limits(deadline_s=60, step_deadline_s=30)
    options = Request((), deadline=time.monotonic() + 0.05)
    done = await execute(
        chain("slow"), {"slow": Scripted("late", name="slow", delay_s=30)}, QUESTION, limits=limits, options=options
    )
    assert isinstance(done.error, DeadlineError)
    assert says(str(done.error), "deadline step 0 slow")
    assert "step_deadline_s" not in str(done.error)


async def test_cancelling_abandons_running_steps_and_starts_no_other() -> None:
    after = Scripted("never")
    ended: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, StepEnded):
            ended.append(event.step.status)

    workers = {"slow": Scripted("late", delay_s=30), "after": after}
    task = asyncio.create_task(execute(chain("slow", "after"), workers, QUESTION, observe=note))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled", "cancelled"]
    assert after.requests == []


async def test_cancelling_a_plan_of_one_step_abandons_it_on_record() -> None:
    ended: list[StepEnded] = []
    slow = Scripted("late", delay_s=30)
    watch = lambda event: ended.append(event) if isinstance(event, StepEnded) else None  # noqa: E731
    task = asyncio.create_task(execute(chain("slow"), {"slow": slow}, QUESTION, observe=watch))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event.step.status for event in ended] == ["cancelled"]


@pytest.mark.parametrize("names", [("gone",), ("gone", "gone")])
async def test_a_worker_that_gives_up_by_itself_does_not_cancel_the_run(names: tuple[str, ...]) -> None:
    async def give_up(request: Request) -> str:
        raise asyncio.CancelledError

    done = await execute(chain(*names), {"gone": Scripted(give_up)}, QUESTION)
    assert done.steps[0].status == "cancelled"
    assert done.reply is None


async def test_a_bug_in_a_worker_is_not_swallowed() -> None:
    for names in (("a",), ("a", "b")):
        with pytest.raises(ZeroDivisionError):
            await execute(chain(*names), {"a": Scripted(ZeroDivisionError("bug")), "b": Scripted("x")}, QUESTION)


async def test_a_bug_in_one_step_ends_the_others_at_once() -> None:
    slow = Scripted("late", delay_s=30)
    workers = {"bug": Scripted(ZeroDivisionError("bug")), "slow": slow, "end": Scripted("x")}
    plan = Plan((Step("slow", "x"), Step("bug", "y"), Step("end", "z", (0, 1))))
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        await execute(plan, workers, QUESTION)
    assert time.monotonic() - began < 5
    assert len(asyncio.all_tasks()) == 1, "nothing outlives the run"


async def test_a_step_ended_by_a_bug_is_recorded_as_such_and_not_as_cancelled() -> None:
    workers = {"bug": Scripted(ZeroDivisionError("oh")), "slow": Scripted("late", delay_s=30), "end": Scripted("x")}
    plan = Plan((Step("slow", "x"), Step("bug", "y"), Step("end", "z", (0, 1))))
    seen: list[Event] = []
    with pytest.raises(ZeroDivisionError):
        await execute(plan, workers, QUESTION, observe=seen.append)
    ended = {event.step.index: event.step for event in seen if isinstance(event, StepEnded)}
    assert (ended[1].status, ended[1].error) == ("failed", "ZeroDivisionError: oh")
    for index in (0, 2):
        assert ended[index].status == "cancelled"
        assert says(ended[index].error, "step 1 ZeroDivisionError: oh")


async def test_a_timeout_of_the_workers_own_is_not_the_runs_deadline() -> None:
    async def hang(request: Request) -> str:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(30)
        return "never"

    for names in (("own",), ("own", "next")):
        with pytest.raises(TimeoutError):
            await execute(chain(*names), {"own": Scripted(hang), "next": Scripted("x")}, QUESTION)


async def test_the_cost_cap_stops_the_next_step_of_a_worker_that_keeps_no_book() -> None:
    dear = Scripted("x", price=Price(0, 1e6), usage=Usage(0, 3))
    budget = Budget(max_cost_usd=2.0)
    done = await execute(chain("dear", "dear"), {"dear": dear}, QUESTION, ledger=budget)
    assert isinstance(done.error, CostError)
    assert len(dear.requests) <= 1 or done.steps[1].status == "failed"


async def test_only_the_last_step_gets_schema_and_stops() -> None:
    first, last = Scripted("a"), Scripted("b")
    options = Request((), schema=Schema({"type": "object"}), stop=("END",), max_output_tokens=7)
    await execute(chain("first", "last"), {"first": first, "last": last}, QUESTION, options=options)
    assert first.requests[0].schema is None
    assert first.requests[0].stop == ()
    assert first.requests[0].max_output_tokens == Limits().max_output_tokens
    assert last.requests[0].schema is not None
    assert last.requests[0].max_output_tokens == 7


async def test_a_grammar_binds_the_last_step_and_its_substitute() -> None:
    able = frozenset({"grammar"})
    first, plain, last = Scripted("a"), Scripted("no"), Scripted("yes", abilities=able)
    workers = {"first": first, "down": Scripted(WorkerError("down")), "plain": plain, "last": last}
    options = Request((), grammar='root ::= "yes"')
    done = await execute(chain("first", "down"), workers, QUESTION, options=options, reassign=True)
    assert (done.steps[1].worker, plain.calls) == ("last", 0)
    assert (first.requests[0].grammar, last.requests[0].grammar) == ("", options.grammar)


async def test_steps_that_ask_the_same_get_seeds_of_their_own() -> None:
    worker = Scripted("x", abilities=frozenset({"seed"}))
    plan = Plan((Step("w", "same"), Step("w", "same")))
    await execute(plan, {"w": worker}, QUESTION, options=Request((), seed=10))
    assert sorted(r.seed or 0 for r in worker.requests) == [10, 11]


async def test_text_is_streamed_only_when_asked_for() -> None:
    events: list[Event] = []
    await execute(chain("a"), {"a": Scripted("one two")}, QUESTION, observe=events.append)
    assert not any(isinstance(e, StepDelta) for e in events)
    await execute(chain("a"), {"a": Scripted("one two")}, QUESTION, observe=events.append, stream=True)
    assert "".join(e.text for e in events if isinstance(e, StepDelta)) == "one two"


async def test_a_step_that_only_answers_gets_the_unchanged_conversation() -> None:
    spy = Scripted("4")
    question = (Message("system", "Be brief."), Message("user", "2 + 2?"))
    await execute(Plan((Step("spy", ANSWER),)), {"spy": spy}, question)
    assert spy.requests[0].messages == question


def test_canaries_never_leave_their_access_list() -> None:
    """10,000 random plans: every reply holds a canary, and a prompt holds exactly those it may read."""
    rng = random.Random(20261115)
    for _ in range(10_000):
        count = rng.randint(1, 8)
        plan = Plan(
            tuple(
                Step("w", f"subtask {i}", tuple(sorted(rng.sample(range(i), rng.randint(0, i))))) for i in range(count)
            )
        )
        canaries = {i: f"canary-{rng.getrandbits(64):016x}" for i in range(count)}
        index = rng.randrange(count)
        messages = step_messages(
            QUESTION, plan, index, canaries, secret=f"{rng.random()}", subtask_only=rng.random() < 0.3
        )
        text = "\n".join(message.text for message in messages)
        seen = {i for i, canary in canaries.items() if canary in text}
        assert seen == set(plan.steps[index].access)


async def test_a_step_gets_the_results_on_its_access_list_as_data():
    ran = Ran("print(4)", exit_code=0, output="4\n", confined_by="bubblewrap")
    spy = Scripted("done", name="spy")
    programmer = FromFunction(lambda request: Reply("4", ran=ran), name="a")
    plan = Plan((Step("a", "one"), Step("b", "two"), Step("spy", "three", access=(0,))))
    await execute(plan, {"a": programmer, "b": Scripted("B"), "spy": spy}, "What is 2 + 2?")
    assert spy.requests[-1].results == (Result(0, "a", "one", "4", ran=ran),)
