"""Every entry answers every question once, also after faults, kills and resumes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from dirigent.errors import ConfigError, WorkerError
from dirigent.evals.entries import Entry, Evaluated, OutOfMoney, ask_entries, noise_seed
from dirigent.evals.record import Outcome, Record, read_outcomes
from dirigent.limits import Budget, Limits
from dirigent.messages import Event, Usage
from dirigent.plan.plan import Plan, Step
from dirigent.planners.fixed import RandomWorker, Single, Written
from dirigent.run.trace import Trace
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import FromFunction, Scripted
from dirigent.workers.worker import Price
from tests.evals.samples import PRICE, adder, pool_of, single, sums
from tests.facts import facts, says


async def outcomes_of(*workers: Scripted, entries: list[Entry], n: int = 3, **settings: object) -> list[Outcome]:
    return await ask_entries(entries, sums(n), pool_for=lambda task, repeat: pool_of(*workers), **settings)  # type: ignore[arg-type]


async def test_each_entry_answers_each_question_and_is_graded() -> None:
    entries = [single("adder"), single("parrot")]
    found = await outcomes_of(adder(), Scripted("2", name="parrot", price=PRICE), entries=entries)
    assert [(o.planner, o.task, o.correct) for o in found] == [
        ("single:adder", "sum-0", True),
        ("single:adder", "sum-1", True),
        ("single:adder", "sum-2", True),
        ("single:parrot", "sum-0", False),
        ("single:parrot", "sum-1", True),
        ("single:parrot", "sum-2", False),
    ]


async def test_an_outcome_has_the_facts_of_its_trace() -> None:
    traces: dict[str, Trace] = {}

    async def keep(trace: Trace) -> None:
        traces[trace.id] = trace

    used = Usage(input_tokens=100, output_tokens=10)
    worker = Scripted("1", name="w", price=PRICE, usage=used)
    text = "one | w 0 | -\ntwo | w 0 | 0"
    entries = [Entry("two", lambda task, pool: Written(text, name="two"))]
    (found,) = await outcomes_of(worker, entries=entries, n=1, keep=keep)
    trace = traces[found.trace_id]
    assert found.plan == Plan((Step("w", "one"), Step("w", "two", (0,))))
    assert (found.valid, found.steps, found.calls, found.tokens) == (True, 2, 2, 220)
    assert (found.orchestration_input_tokens, found.orchestration_output_tokens) == (100, 10)
    assert found.cost_usd == pytest.approx(2 * (100 * 1.0 + 10 * 2.0) / 1e6) == trace.cost_usd
    assert found.seconds == trace.seconds


async def test_a_draft_that_is_not_a_plan_is_a_wrong_answer_and_no_worker_is_asked() -> None:
    worker = adder()
    entries = [Entry("garbled", lambda task, pool: Written("no plan at all", name="garbled"))]
    (found,) = await outcomes_of(worker, entries=entries, n=1)
    assert (found.valid, found.correct, found.error_kind, found.failed) == (False, False, "PlanError", False)
    assert worker.calls == 0


async def test_a_failing_worker_costs_the_question_and_differs_from_a_wrong_answer() -> None:
    broken = Scripted(WorkerError("down"), name="broken", price=PRICE)
    (found,) = await outcomes_of(broken, entries=[single("broken")], n=1)
    assert (found.correct, found.failed, found.valid) == (False, True, True)
    assert "down" in found.error


async def test_repeats_of_a_question_have_seeds_of_their_own_that_every_planner_shares() -> None:
    worker = Scripted("1", name="w", abilities=frozenset({"seed"}))
    found = await outcomes_of(worker, entries=[single("w", repeats=3)], n=1)
    seeds = [request.seed for request in worker.requests]
    assert [o.repeat for o in found] == [0, 1, 2]
    assert len(set(seeds)) == 3
    other = Scripted("1", name="v", abilities=frozenset({"seed"}))
    await outcomes_of(other, entries=[single("v", repeats=3)], n=1)
    assert [request.seed for request in other.requests] == seeds
    assert noise_seed(1, sums(1)[0], 0) != noise_seed(2, sums(1)[0], 0)


async def test_no_more_questions_are_asked_at_a_time_than_set() -> None:
    at_once, most = 0, 0

    async def counted(request: object) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        at_once -= 1
        return "1"

    await outcomes_of(FromFunction(counted, name="w"), entries=[single("w")], n=20, concurrency=3)
    assert most == 3


async def test_an_entry_is_asked_only_its_questions_and_may_have_its_own_pool() -> None:
    own = adder()
    entry = Entry(
        "picky",
        lambda task, pool: Single("adder"),
        pool_for=lambda task, repeat: Pool([own]),
        wants=lambda task: task.id == "sum-1",
    )
    found = await outcomes_of(Scripted("0", name="other"), entries=[entry])
    assert [(o.task, o.correct) for o in found] == [("sum-1", True)]
    assert own.calls == 1


async def test_the_observer_sees_every_outcome_with_the_whole_in_view() -> None:
    seen: list[Event] = []
    await outcomes_of(adder(), entries=[single("adder", repeats=2)], n=2, observe=seen.append)
    assert [event.total for event in seen if isinstance(event, Evaluated)] == [4] * 4


async def test_when_the_money_runs_out_finished_questions_stay_and_the_rest_is_not_asked() -> None:
    seen: list[Event] = []
    dear = Scripted("1", name="dear", price=Price(output=1_000_000.0), usage=Usage(output_tokens=1))
    budget = Budget(max_cost_usd=40.0)
    entries = [single("dear")]
    found = await outcomes_of(dear, entries=entries, n=50, budget=budget, concurrency=1, observe=seen.append)
    assert 0 < len(found) < 50
    assert sum(o.cost_usd for o in found) == budget.spent_usd <= 40.0
    assert dear.calls == len(found)
    assert [event.spent_usd for event in seen if isinstance(event, OutOfMoney)] == [budget.spent_usd]


async def test_a_cap_on_cost_refuses_a_worker_without_a_price() -> None:
    with pytest.raises(ConfigError, match=facts("price w")):
        await outcomes_of(Scripted("1", name="w"), entries=[single("w")], budget=Budget(max_cost_usd=1.0))


@pytest.mark.parametrize(
    ("entries", "settings", "message"),
    [
        ([single("adder"), single("adder")], {}, "single:adder"),
        ([single("adder")], {"concurrency": 0}, "concurrency 1 0"),
    ],
)
async def test_impossible_entries_are_refused(entries: list[Entry], settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=facts(message)):
        await outcomes_of(adder(), entries=entries, **settings)


async def test_finished_questions_are_not_asked_again(tmp_path: Path) -> None:
    path, worker = tmp_path / "o.jsonl", adder()
    with Record.open(path, {}) as record:
        first = await outcomes_of(worker, entries=[single("adder")], n=3, record=record)
    with Record.open(path, {}, resume=True) as record:
        again = await outcomes_of(worker, entries=[single("adder")], n=5, record=record)
    assert again[:3] == first
    assert worker.calls == len(again) == 5


CUT_RUN = """
import asyncio, sys
from pathlib import Path
from dirigent.evals.entries import ask_entries
from dirigent.evals.record import Record
from dirigent.workers.scripted import FromFunction
from tests.evals.samples import pool_of, single, sums

async def slow(request):
    if request.messages[-1].text == "5 + 1":
        await asyncio.Event().wait()
    return "1"

async def main():
    with Record.open(Path(sys.argv[1]), {}) as record:
        pool = pool_of(FromFunction(slow, name="adder"))
        await ask_entries([single("adder")], sums(9), pool_for=lambda task, repeat: pool, record=record, concurrency=1)

asyncio.run(main())
"""


async def test_after_a_kill_only_unfinished_questions_are_asked(
    tmp_path: Path, wait_until: Callable[..., Awaitable[None]]
) -> None:
    path, root = tmp_path / "o.jsonl", Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CUT_RUN, str(path), cwd=root)
    try:
        await wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") == 6, within_s=60)
    finally:
        process.kill()
        await process.wait()
    worker = adder()
    with Record.open(path, {}, resume=True) as record:
        found = await outcomes_of(worker, entries=[single("adder")], n=9, record=record)
    assert [request.messages[-1].text for request in worker.requests] == ["5 + 1", "6 + 1", "7 + 1", "8 + 1"]
    assert [o.task for o in found] == [o.task for o in read_outcomes(path)] == [f"sum-{i}" for i in range(9)]


async def test_a_worker_that_never_sees_the_question_is_asked_it_as_its_subtask() -> None:
    blind = adder(subtask_only=True)
    entries = [Entry("alone", lambda task, pool: Single(("nobody", "adder")))]
    (found, *_) = await outcomes_of(blind, entries=entries)
    assert found.correct
    assert blind.requests[0].messages[-1].text == "0 + 1"


async def test_the_error_for_a_missing_single_worker_names_the_pools_workers() -> None:
    (found, *_) = await outcomes_of(adder(), entries=[Entry("alone", lambda task, pool: Single("zoe"))])
    assert (found.valid, says(found.error, "zoe adder")) == (False, True)


async def test_a_random_worker_is_the_same_for_the_same_seed_and_everybody_in_time() -> None:
    workers = [Scripted("1", name=name) for name in ("a", "b", "c")]
    entry = Entry("random", lambda task, pool: RandomWorker(seed=noise_seed(1, task, 0)))
    found = await outcomes_of(*workers, entries=[entry], n=30)
    again = await outcomes_of(*workers, entries=[entry], n=30)
    assert [o.plan for o in found] == [o.plan for o in again]
    assert {o.plan.steps[0].worker for o in found if o.plan} == {"a", "b", "c"}


async def test_an_answer_that_could_not_be_graded_is_graded_again_and_not_asked_again(tmp_path: Path) -> None:
    path, worker = tmp_path / "o.jsonl", adder()
    ungradable = [msgspec.structs.replace(task, answer="") for task in sums(3)]

    async def asked(tasks: list[Task], *, resume: bool) -> tuple[list[Outcome], float]:
        with Record.open(path, {}, resume=resume) as record:
            pool = pool_of(worker)
            found = await ask_entries([single("adder")], tasks, pool_for=lambda task, repeat: pool, record=record)
            return found, record.cost_usd

    first, paid_usd = await asked(ungradable, resume=False)
    assert [(o.correct, o.failed, o.error_kind) for o in first] == [(False, True, "GradeError")] * 3
    assert first[0].error
    again, still_usd = await asked(sums(3), resume=True)
    assert [(o.correct, o.error) for o in again] == [(True, "")] * 3
    assert worker.calls == 3
    assert still_usd == pytest.approx(paid_usd)
    assert (await asked(sums(3), resume=True)) == (again, pytest.approx(paid_usd))


async def test_money_that_others_only_hold_is_waited_for() -> None:
    """Each call may cost $16 and costs $1: eight at once hold more than there is, and yet all can be paid."""
    dear = Scripted("1", name="dear", price=Price(output=1_000_000.0), usage=Usage(output_tokens=1))
    budget = Budget(max_cost_usd=70.0)
    found = await outcomes_of(
        dear, entries=[single("dear")], n=20, budget=budget, concurrency=8, limits=Limits(max_output_tokens=16)
    )
    assert len(found) == dear.calls == 20
    assert budget.spent_usd == 20.0


async def test_half_a_character_in_an_answer_or_error_is_an_ordinary_outcome(tmp_path: Path) -> None:
    def refuse(text: str) -> str:
        raise WorkerError("no \ud800", worker="refuser")

    workers = [
        FromFunction.of_text(lambda text: "half \ud83d", name="half"),
        FromFunction.of_text(refuse, name="refuser"),
    ]
    path = tmp_path / "outcomes.jsonl"
    with Record.open(path, {}) as record:
        found = await outcomes_of(*workers, entries=[single("half"), single("refuser")], n=1, record=record)
    assert [(o.answer, o.correct, o.error_kind) for o in found] == [
        ("half \ufffd", False, ""),
        ("", False, "WorkerError"),
    ]
    assert "no \ufffd" in found[1].error
    assert read_outcomes(path) == found
