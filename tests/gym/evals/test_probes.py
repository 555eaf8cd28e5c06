"""Sets of questions by name, and plans judged without regard to their words."""

from __future__ import annotations

import msgspec
import pytest
from tests.facts import facts

from dirigent.errors import ConfigError
from dirigent.plan.plan import Plan, Step
from dirigent.tasks.task import Task
from dirigent_gym.evals.pools import CALIBRATION_SEED
from dirigent_gym.evals.test_sets import (
    PROBES,
    SECOND_SEED,
    Placed,
    marks_in_other_words,
    placed,
    probe_roster,
    probe_tasks,
    second_seed,
)
from dirigent_gym.questions import RL_ROSTER, ROSTER, generate, plan_for
from dirigent_gym.questions.handwritten import handwritten


def said_otherwise(plan: Plan) -> Plan:
    return Plan(tuple(msgspec.structs.replace(s, subtask=f"In my words, part {i}.") for i, s in enumerate(plan.steps)))


def hand(shape: str, depth: int) -> Task:
    return next(task for task in handwritten() if task.tags["shape"] == shape and task.depth == depth)


@pytest.mark.parametrize("name", [name for name in PROBES if name != "reasoning-new"])
def test_every_set_has_questions_with_a_right_plan_over_its_roster(name: str) -> None:
    tasks = probe_tasks(name, limit=20, seed=1)
    assert len(tasks) == 20
    assert probe_tasks(name, limit=20, seed=1) == tasks
    assert all(plan_for(task, probe_roster(name)) for task in tasks)


def test_the_second_seed_is_neither_the_tests_nor_the_calibrations() -> None:
    first = {task.question for task in generate("test", 300, seed=1)}
    second = second_seed(300, 1)
    assert SECOND_SEED != CALIBRATION_SEED
    assert {task.tags["split"] for task in second} == {"test"}
    assert len(first & {task.question for task in second}) < 30
    assert not {task.id for task in second} & {task.id for task in generate("test", 300, seed=1)}


def test_a_set_smaller_than_the_limit_comes_whole_and_a_larger_one_in_its_own_order() -> None:
    assert probe_tasks("handwritten", limit=10_000, seed=1) == list(handwritten())
    some = probe_tasks("handwritten", limit=30, seed=1)
    assert [task.id for task in some] == sorted(task.id for task in some)
    assert some != probe_tasks("handwritten", limit=30, seed=2)


def test_an_unknown_set_and_no_limit_are_errors() -> None:
    with pytest.raises(ConfigError, match=facts("handwriten handwritten")):
        probe_tasks("handwriten", limit=10, seed=1)
    with pytest.raises(ConfigError, match=facts("limit 1 0")):
        probe_tasks("novel", limit=0, seed=1)


def test_only_the_novel_set_offers_the_worker_rl_never_met() -> None:
    assert probe_roster("novel") == ROSTER
    assert probe_roster("handwritten") == RL_ROSTER


@pytest.mark.parametrize(("shape", "depth"), [("chain", 1), ("chain", 4), ("fan", 3), ("check", 3)])
def test_a_right_plan_in_other_words_is_placed_and_wired(shape: str, depth: int) -> None:
    task = hand(shape, depth)
    plan = said_otherwise(plan_for(task, RL_ROSTER))
    assert placed(task, plan) == Placed(routing=True, access=True)
    assert marks_in_other_words(task, plan) == {"placed": True, "wired": True, "parallel": True}


def test_independent_steps_may_stand_in_any_order() -> None:
    task = hand("fan", 2)
    a, b, join = said_otherwise(plan_for(task, RL_ROSTER)).steps
    assert placed(task, Plan((b, a, join))).access


def test_wrong_workers_wrong_access_and_wrong_lengths_are_distinguished() -> None:
    task = hand("chain", 2)
    first, second = said_otherwise(plan_for(task, RL_ROSTER)).steps
    blind = Plan((first, msgspec.structs.replace(second, access=())))
    assert placed(task, blind) == Placed(routing=True, access=False)
    assert placed(task, Plan((first, msgspec.structs.replace(second, worker="checker")))) == Placed(False, False)
    assert placed(task, Plan((first,))) == Placed(False, False)
    assert placed(task, Plan((Step("nobody", "x"), second))) == Placed(False, False)


def test_two_guesses_before_a_check_are_as_right_as_three_and_one_is_not() -> None:
    task = hand("check", 2)
    guess, check = Step("guesser", "guess"), Step("checker", "check", access=(0, 1))
    assert placed(task, Plan((guess, guess, check))).access
    assert not placed(task, Plan((guess, msgspec.structs.replace(check, access=(0,))))).routing
