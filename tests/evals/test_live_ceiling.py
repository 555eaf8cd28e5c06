"""The ceiling of a live pool: the plans to try, the estimate of their cost, and the chosen plan."""

from __future__ import annotations

import pytest

from dirigent.evals.entries import ask_entries
from dirigent.evals.live import CeilingTrials, ceiling_of, chosen, estimate_trials, plans_of, search
from dirigent.evals.metrics import CEILING
from dirigent.evals.questions import Questions
from dirigent.evals.record import Outcome
from dirigent.messages import Event
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import FromFunction
from dirigent.workers.worker import Price, Worker
from tests.evals.samples import evaluate_live


def task(kind: str, i: int, *, split: str = "train") -> Task:
    return Task(
        id=f"{kind}-{split}-{i}",
        question=f"{kind} {i}?",
        answer=str(i),
        grader="exact",
        kind=kind,
        tags={"split": split},
    )


def alone(worker: str, task: Task, *, right: bool, cost_usd: float = 0.001, wrote: int = 100) -> Outcome:
    return Outcome(
        planner=f"single:{worker}",
        task=task.id,
        correct=right,
        kind=task.kind,
        input_tokens=50,
        output_tokens=wrote,
        cost_usd=cost_usd,
        valid=True,
    )


def tried(name: str, task: Task, *, right: bool, cost_usd: float = 0.002) -> Outcome:
    return Outcome(
        planner=f"ceiling: {name}", task=task.id, correct=right, kind=task.kind, cost_usd=cost_usd, valid=True
    )


def test_every_worker_alone_every_pair_of_the_four_best_and_their_small_panels_are_listed() -> None:
    plans = plans_of(["a", "b", "c", "d", "e"])
    sizes = [len(listed.plan.steps) for listed in plans]
    assert [sizes.count(n) for n in (1, 2, 3, 4)] == [5, 12, 6, 4]
    assert sum(size for size in sizes if size > 1) == 58
    assert len({listed.name for listed in plans}) == len(plans)
    assert not any("e" in [step.worker for step in listed.plan.steps] for listed in plans if len(listed.plan.steps) > 1)
    reviewed = next(listed for listed in plans if listed.name == "c, reviewed by b")
    assert [(step.worker, step.access) for step in reviewed.plan.steps] == [("c", ()), ("b", (0,))]
    judged = next(listed for listed in plans if listed.name == "b + c + d, judged by a")
    assert judged.plan.steps[-1].access == (0, 1, 2)


def test_a_pool_of_one_leaves_nothing_to_try() -> None:
    tasks = [task("sums", 1)]
    found = search(tasks, [alone("a", tasks[0], right=True)])
    assert (found.runs, found.entries) == ([], [])
    assert chosen(found, [])["sums"].name == "single:a"


def test_the_estimate_of_trials_uses_each_workers_own_tokens() -> None:
    tasks = [task("sums", 1)]
    found = search(tasks, [alone("a", tasks[0], right=True), alone("b", tasks[0], right=False, wrote=300)])
    pool = Pool([worker("a", Price(1.0, 2.0)), worker("b", Price(10.0, 20.0))])
    trials = estimate_trials(found, pool, known=lambda name, task: False)
    # a reviewed by b, b reviewed by a, a and b judged by a; 120 tokens of words around the input
    a, b = 50 * 1 + 100 * 2, 50 * 10 + 300 * 20
    pairs = a + b + (120 + 100) * 10 + b + a + (120 + 300) * 1
    panel = a + b + a + (120 + 100 + 300) * 1
    assert (trials.plans, trials.questions, trials.calls) == (3, 1, 2 + 2 + 3)
    assert trials.cost_usd == pytest.approx((pairs + panel) / 1e6)


def test_calls_that_an_earlier_run_paid_are_not_in_the_estimate() -> None:
    tasks = [task("sums", 1)]
    found = search(tasks, [alone("a", tasks[0], right=True), alone("b", tasks[0], right=False)])
    pool = Pool([worker("a", Price(1.0, 2.0)), worker("b", Price(1.0, 2.0))])
    trials = estimate_trials(found, pool, known=lambda name, task: name == "ceiling: a, reviewed by b")
    assert (trials.plans, trials.calls) == (3, 2 + 3)
    nothing = estimate_trials(found, pool, known=lambda name, task: True)
    assert (nothing.calls, nothing.cost_usd) == (0, 0.0)


def test_a_worker_without_a_price_makes_the_forecast_unknown_and_never_nothing() -> None:
    tasks = [task("sums", 1)]
    found = search(tasks, [alone("a", tasks[0], right=True), alone("b", tasks[0], right=False)])
    pool = Pool([worker("a", Price(1.0, 2.0)), worker("b", None)])
    assert estimate_trials(found, pool, known=lambda name, task: False).cost_usd is None


def test_the_plan_right_most_often_is_kept_for_each_kind_the_cheaper_of_equals() -> None:
    sums, words = [task("sums", i) for i in range(2)], [task("words", i) for i in range(2)]
    done = [alone("a", t, right=t.kind == "words") for t in (*sums, *words)]
    done += [alone("b", t, right=False) for t in (*sums, *words)]
    found = search([*sums, *words], done)
    outcomes = [tried("a, reviewed by b", t, right=True, cost_usd=0.003) for t in (*sums, *words)]
    outcomes += [tried("a + b, judged by a", t, right=True, cost_usd=0.002) for t in sums]
    best = chosen(found, outcomes)
    assert {kind: listed.name for kind, listed in best.items()} == {"sums": "a + b, judged by a", "words": "single:a"}
    assert ceiling_of(best).note == "sums: a + b, judged by a; words: a"


def test_lost_runs_do_not_favour_a_plan() -> None:
    tasks = [task("sums", i) for i in range(3)]
    done = [alone("a", t, right=i < 2) for i, t in enumerate(tasks)] + [alone("b", t, right=False) for t in tasks]
    best = chosen(search(tasks, done), [tried("a, reviewed by b", tasks[0], right=True)])
    assert best["sums"].name == "single:a"


def worker(name: str, price: Price | None) -> Worker:
    """`doer` answers wrongly, `checker` mends an answer that it reads and knows nothing alone."""

    def reply(text: str) -> str:
        number = text.split("sums ")[1].split("?")[0]
        if name == "checker":
            return number if "Check the earlier answer" in text else "no idea"
        return "0"

    return FromFunction.of_text(reply, name=name, price=price)


async def test_over_a_pool_it_is_chosen_on_the_fitting_questions_and_answers_the_test() -> None:
    questions = Questions(
        ("sums",), [task("sums", i, split="test") for i in range(5, 9)], [task("sums", i) for i in range(1, 4)]
    )
    events: list[Event] = []
    pool = Pool([worker("doer", Price(1.0, 1.0)), worker("checker", Price(1.0, 1.0))])
    report = await evaluate_live(questions, ["best", "ceiling", "oracle"], pool, observe=events.append)
    assert report.complete
    assert report.planners["ceiling"].accuracy == 1.0
    assert report.planners["oracle"].accuracy == 0.0
    assert report.notes["ceiling"] == "doer, reviewed by checker"
    (trials,) = [event for event in events if isinstance(event, CeilingTrials)]
    assert (trials.plans, trials.questions, trials.calls) == (3, 3, 3 * 7)
    assert report.verdict.startswith("open: ")  # a reference: it cannot win


async def test_where_its_plan_is_a_worker_that_answers_alone_anyway_it_is_not_paid_for_twice() -> None:
    questions = Questions(
        ("sums",), [task("sums", i, split="test") for i in range(5, 9)], [task("sums", i) for i in range(1, 4)]
    )
    asked: list[str] = []

    def right(text: str) -> str:
        asked.append(text)
        return text.split("sums ")[1].split("?")[0]

    able = FromFunction.of_text(right, name="able", price=Price(1.0, 1.0))
    report = await evaluate_live(questions, ["ceiling", "single:able"], Pool([able]))
    assert report.planners["ceiling"].accuracy == 1.0
    assert len(asked) == 3 + 4


async def test_entries_ask_only_the_kinds_that_their_plan_was_listed_for() -> None:
    sums, words = task("sums", 1), task("words", 2)
    done = [alone("doer", sums, right=True), alone("checker", sums, right=False)]
    found = search([sums, words], [*done, alone("doer", words, right=True)])
    pool = Pool([worker("doer", Price()), worker("checker", Price())])
    outcomes = await ask_entries(found.entries, found.tasks, pool_for=lambda task, repeat: pool)
    assert {outcome.kind for outcome in outcomes} == {"sums"}
    assert all(outcome.planner.startswith(f"{CEILING}: ") for outcome in outcomes)
