"""Every planner by name: fitted on examples, put into an evaluation, its choices checked against hand-worked ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from dirigent.errors import ConfigError
from dirigent.evals.entries import Entry, ask_entries
from dirigent.evals.live import LiveField
from dirigent.evals.metrics import ceiling
from dirigent.evals.planners import (
    Rollouts,
    by_limits,
    entry_of,
    examples_of,
    fit_planners,
)
from dirigent.evals.questions import Questions
from dirigent.evals.record import Outcome
from dirigent.limits import Limits
from dirigent.plan.plan import Plan, Step
from dirigent.planners import Fitted, Fitting, PlannerName, known_planners, parse_name
from dirigent.planners.examples import Example
from dirigent.planners.fixed import Written
from dirigent.planners.table import log_odds
from dirigent.tasks import Task
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import FromFunction, Scripted
from dirigent.workers.worker import Price, Worker
from tests.evals.samples import outcome
from tests.facts import facts, says

TASKS = [Task(f"t{i}", f"How much is {i} + 1?", str(i + 1), "final_number") for i in range(4)]
REPLIES = {"dear": "5", "middle": "5", "cheap": "5", "weak": "banana"}
PRICES = {"dear": Price(10.0, 10.0), "middle": Price(4.0, 4.0), "cheap": Price(2.0, 2.0), "weak": Price(1.0, 1.0)}
SCORES = {"dear": (1, 1, 1, 0), "middle": (1, 1, 0, 0), "cheap": (1, 0, 0, 0), "weak": (0, 0, 0, 0)}
COSTS_USD = {"dear": 0.010, "middle": 0.004, "cheap": 0.002, "weak": 0.001}
TRAINED = {"conductor": lambda task, pool: Written("Answer. | dear 0 | -", name="conductor")}
EXAMPLES = tuple(
    Example(
        f"question {word}",
        {name: float(scores[i]) for name, scores in SCORES.items()},
        COSTS_USD,
        REPLIES,
        dict.fromkeys(SCORES, (100, 50)),
    )
    for i, word in enumerate(("one", "two", "three", "four"))
)


def pool_of(**replies: str) -> Pool:
    workers: list[Worker] = [
        Scripted(*[text] * 200, name=name, price=PRICES[name]) for name, text in (REPLIES | replies).items()
    ]
    return Pool(workers)


def fitting(**fields: Any) -> Fitting:
    return Fitting(**({"examples": EXAMPLES, "pool": pool_of(), "seed": 1, "trained": TRAINED} | fields))


async def one(name: str, **fields: Any) -> Fitted:
    (found,) = await fit_planners([name], fitting(**fields))
    return found


async def answered(baseline: Fitted, pool: Pool | None = None) -> Outcome:
    """The trace of `How much is 4 + 1?` in a small pool."""
    task = Task("t", "How much is 4 + 1?", "5", "final_number")
    pool_for = lambda task, repeat: pool or pool_of()  # noqa: E731
    ((limits, _),) = by_limits([baseline], Limits()).items()
    (found,) = await ask_entries([entry_of(baseline, pool_for)], [task], pool_for=pool_for, limits=limits)
    assert not found.error, found.error
    return found


def asked(found: Outcome) -> list[str]:
    return [step.worker for step in found.plan.steps] if found.plan else []


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("best", ["dear"]),
        ("single:cheap", ["cheap"]),
        ("cheapest", ["weak"]),
        ("vote:3", ["dear"] * 3 + ["count"]),
        ("vote", ["dear"] * 5 + ["count"]),
        ("self-moa:2", ["dear"] * 3),
        ("self-moa", ["dear"] * 7),
        ("moa", ["dear", "middle", "cheap", "weak", "dear", "middle", "cheap", "dear"]),
        ("moa:4", ["dear", "middle", "cheap", "dear"]),
        ("moa:3x2", ["dear", "middle", "cheap", "dear", "middle", "cheap", "dear"]),
        ("reflect", ["dear"] * 5),
        ("reflect:2", ["dear"] * 2),
        ("pipeline", ["dear"] * 3),
        ("panel", ["dear", "middle", "cheap", "count"]),
        ("weighted-vote", ["dear", "middle", "cheap", "weak", "weigh"]),
        ("escalate", ["middle", "cheap", "agree"]),
        ("knn", ["dear"]),
        ("smoothie", ["dear", "middle", "cheap", "weak", "pick"]),
        ("conductor", ["dear"]),
        ("conductor:2", ["dear"]),
    ],
)
async def test_each_name_asks_whom_it_should(name: str, workers: list[str]) -> None:
    found = await answered(await one(name))
    assert asked(found) == workers
    assert found.correct is (workers != ["weak"])


async def test_a_random_worker_is_drawn_by_question() -> None:
    baseline = await one("random")
    pool_for = lambda task, repeat: pool_of()  # noqa: E731
    tasks = [Task(f"q{i}", "How much is 4 + 1?", "5", "final_number") for i in range(40)]
    outcomes = await ask_entries([entry_of(baseline, pool_for)], tasks, pool_for=pool_for)
    assert {worker for found in outcomes for worker in asked(found)} == set(REPLIES)


async def test_a_prompted_planner_plans_with_the_best_worker_or_the_one_named() -> None:
    plan = "model_id = [2]\nsubtasks = ['Answer.']\naccess_list = [[]]"
    for name, planner in (("language", "dear"), ("language:middle", "middle")):
        fits = fitting(pool=pool_of(**{planner: plan}))
        (baseline,) = await fit_planners([name], fits)
        assert says(baseline.note, planner)
        found = await answered(baseline)
        assert asked(found) == ["cheap"]
        assert found.calls == 2


async def test_a_number_of_samples_is_open_unless_it_is_named() -> None:
    for name, usual in (("vote", 5), ("self-moa", 6)):
        open_, named = await one(name), await one(f"{name}:7")
        assert (says(open_.note, f"dear {usual}"), open_.max_steps) == (True, usual + 1)
        assert open_.sampled is not None
        assert open_.sampled.call_usd == pytest.approx(0.010)
        assert (says(named.note, "dear 7"), named.sampled) == (True, None)


async def test_if_the_pool_lacks_the_best_worker_the_next_best_answers() -> None:
    pool = pool_of().without(["dear"])
    for name, workers in {
        "best": ["middle"],
        "panel": ["middle", "cheap", "weak", "count"],
        "weighted-vote": ["middle", "cheap", "weak", "weigh"],
        "escalate": ["middle"],  # cheap and weak differ, and the second round asks the best that is there
        "knn": ["middle"],
        "smoothie": ["middle", "cheap", "weak", "pick"],
    }.items():
        assert asked(await answered(await one(name), pool)) == workers


async def test_escalation_where_fewer_than_two_are_cheaper_is_the_best_alone() -> None:
    pool = pool_of().subset(["dear", "cheap"])
    assert asked(await answered(await one("escalate"), pool)) == ["dear"]
    fits = fitting(examples=tuple(Example("q", {"dear": 1.0, "cheap": 0.0}, COSTS_USD) for _ in range(2)))
    assert (await fit_planners(["escalate"], fits))[0].note.startswith("dear")


async def test_of_more_workers_than_a_plan_has_room_for_the_first_take_part() -> None:
    many = tuple(f"w{i}" for i in range(40))
    fits = Fitting((Example("q", dict.fromkeys(many, 1.0)),), Pool(Scripted("5", name=name) for name in many))
    found = await fit_planners(["weighted-vote", "smoothie"], fits)
    assert [baseline.max_steps for baseline in found] == [32, 32]
    for baseline in found:
        assert len(asked(await answered(baseline, fits.pool))) == 32


async def test_weights_follow_the_workers_that_are_there() -> None:
    baseline = await one("weighted-vote")
    assert baseline.helpers_for is not None
    # Without `dear` (75%) and `middle` (50%), `cheap` (25%) and `weak` (0%) weigh alike, and the first answer wins.
    found = await answered(baseline, pool_of(cheap="5", weak="7").subset(["cheap", "weak"]))
    assert found.answer == "5"
    assert log_odds(0.75) == pytest.approx(1.0986, abs=1e-4)


async def test_routerdc_is_fitted_and_asks_one_worker() -> None:
    baseline = await one("routerdc")
    assert len(asked(await answered(baseline))) == 1
    assert baseline.note == "4 questions"


async def test_masrouter_learns_from_plans_that_are_carried_out_once_each() -> None:
    pool = Pool(FromFunction.of_text(lambda text: "5", name=name, price=PRICES[name]) for name in PRICES)
    tasks = [Task(str(i), example.question, "5", "final_number") for i, example in enumerate(EXAMPLES)]
    paid: list[str] = []

    async def ask(entries: Sequence[Entry], asked_tasks: Sequence[Task]) -> list[Outcome]:
        paid.extend(entry.name for entry in entries)
        return await ask_entries(entries, asked_tasks, pool_for=lambda task, repeat: pool, limits=Limits(max_steps=6))

    fits = fitting(pool=pool, rollout=Rollouts(ask, tasks))
    (baseline,) = await fit_planners(["masrouter"], fits)
    assert len(paid) == 5 * len(EXAMPLES)
    assert says(baseline.note, "5 4")
    assert (await answered(baseline, pool)).correct
    with pytest.raises(ConfigError, match=facts("masrouter")):
        await one("masrouter")


async def test_a_rollout_returns_score_and_cost_and_a_lost_one_nothing() -> None:
    plan = Plan((Step("dear", "Answer the question."),))

    async def ask(entries: Sequence[Entry], tasks: Sequence[Task], *, found: list[Outcome]) -> list[Outcome]:
        assert [entry.name.startswith("masrouter fit ") for entry in entries] == [True]
        return found

    good, lost = outcome("x", "t0", cost_usd=0.5), outcome("x", "t0", correct=False, error_kind="WorkerError")
    for found, earned in (([good], (1.0, 0.5)), ([lost], None), ([], None)):
        assert await Rollouts(partial(ask, found=found), TASKS)(TASKS[0].question, plan) == earned


async def test_a_plan_for_a_worker_that_was_not_offered_teaches_nothing() -> None:
    plan = Plan((Step("nobody", "Answer the question."),))
    pool_for = lambda task, repeat: pool_of()  # noqa: E731
    ask = partial(ask_entries, pool_for=pool_for)
    assert await Rollouts(ask, TASKS)(TASKS[0].question, plan) is None


async def test_limits_leave_room_for_the_steps_that_a_planner_needs() -> None:
    names = ["best", "moa:8", "moa:3x2", "escalate", "conductor", "conductor:2"]
    found = by_limits(await fit_planners(names, fitting()), Limits(max_rounds=2))
    assert {(limits.max_steps, limits.max_rounds): [b.name for b in group] for limits, group in found.items()} == {
        (5, 1): ["best", "conductor"],
        (8, 1): ["moa:8"],
        (7, 1): ["moa:3x2"],
        (5, 2): ["escalate", "conductor:2"],
    }


def test_examples_are_made_of_each_worker_alone_and_lost_runs_left_out() -> None:
    tasks = TASKS[:2]
    outcomes = [
        outcome("single:a", "t0", answer="1", cost_usd=0.1, input_tokens=7, output_tokens=3),
        outcome("single:b", "t0", correct=False, error_kind="WorkerError"),
        outcome("best", "t0"),
        outcome("single:a", "other"),
    ]
    (example,) = examples_of(tasks, outcomes)
    assert example == Example(tasks[0].question, {"a": 1.0}, {"a": 0.1}, {"a": "1"}, {"a": (7, 3)})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bst", "bst best"),
        ("single", "single:NAME"),
        ("single:nobody", "nobody single:nobody"),
        ("language:nobody", "nobody language:nobody"),
        ("warm-start", "warm-start"),
        ("vote:0", "vote:0 1 31"),
        ("vote:many", "vote:many 1 31"),
        ("vote:²", "vote:² 1 31"),
        ("moa:1", "moa:8"),
        ("moa:²x2", "moa:8"),
        ("moa:3x", "moa:8"),
        ("moa:8x8", "32"),
        ("pipeline:3", "pipeline 3"),
        ("conductor:9", "1 8"),
    ],
)
def test_an_unknown_planner_is_refused_before_anything_is_paid(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=facts(message)):
        LiveField(Questions((), []), pool_of(), trained=TRAINED).lineup([name])


async def test_without_a_training_split_only_those_that_need_none_can_take_part() -> None:
    names = ["single:dear", "random", "conductor", "language:middle", "oracle"]
    found = await fit_planners(names, fitting(examples=()))
    assert [baseline.name for baseline in found] == names[:4]  # the oracle is a figure
    with pytest.raises(ConfigError, match=facts("knn")):
        await one("knn", examples=())


def test_every_planner_of_the_table_has_a_description_and_can_be_made() -> None:
    for spec in known_planners():
        assert spec.about, spec.name
        assert not spec.about.endswith("."), spec.name
        assert spec.make or spec.fit, spec.name
        assert all(parse_name(form).kind == spec.name for form in spec.forms)


def test_a_name_is_taken_apart_once() -> None:
    assert parse_name("vote:5") == PlannerName("vote", "5")
    assert (str(parse_name("vote:5")), parse_name("vote:5").number) == ("vote:5", 5)
    assert (str(parse_name("best")), parse_name("best").number) == ("best", None)


def test_the_ceiling_takes_the_best_planner_of_each_kind_and_the_cheaper_of_two() -> None:
    outcomes = [
        outcome("a", "1", kind="sums", cost_usd=2.0),
        outcome("b", "1", kind="sums", cost_usd=1.0),
        outcome("a", "2", kind="words", correct=False),
        outcome("b", "2", kind="words", correct=False),
        outcome("c", "2", kind="words"),
        outcome("oracle", "1", kind="sums"),
    ]
    found = ceiling(outcomes)
    assert {(o.task, o.correct, o.cost_usd) for o in found} == {("1", True, 1.0), ("2", True, 0.0)}
    assert {o.planner for o in found} == {"ceiling"}
