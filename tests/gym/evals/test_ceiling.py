"""The best plan of each kind: the ways to try, and the choice among them."""

from __future__ import annotations

import pytest
from tests.evals.samples import outcome

from dirigent.evals.record import Outcome
from dirigent.plan.plan import Plan
from dirigent.tasks import Task
from dirigent_gym.evals.ceiling import WAYS, Way, choose_ways, plan_by, plans_for, stand_in, way_for
from dirigent_gym.questions import ROSTER, find_specialist, generate, plan_for


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return generate("dev", 120, seed=3)


def of_shape(tasks: list[Task], shape: str, depth: int) -> Task:
    return next(t for t in tasks if t.tags["shape"] == shape and t.depth == depth)


def test_three_guesses_by_the_cheapest_is_the_tasks_own_plan(tasks: list[Task]) -> None:
    for task in tasks:
        assert plan_by(Way(3, dear=False), task, ROSTER) == plan_for(task, ROSTER)


def test_guesses_are_made_side_by_side_and_checked_together(tasks: list[Task]) -> None:
    plan = plan_by(Way(2, dear=False), of_shape(tasks, "check", 3), ROSTER)
    assert plan is not None
    assert [step.worker for step in plan.steps[:3]] == ["guesser", "guesser", "checker"]
    assert [step.access for step in plan.steps] == [(), (), (0, 1), (2,)]


def test_a_single_guess_is_not_checked_and_the_next_step_reads_it(tasks: list[Task]) -> None:
    plan = plan_by(Way(1, dear=False), of_shape(tasks, "check", 3), ROSTER)
    assert plan is not None
    assert [step.access for step in plan.steps] == [(), (0,)]


def test_a_plan_beyond_the_limit_is_no_way(tasks: list[Task]) -> None:
    assert plan_by(Way(4, dear=False), of_shape(tasks, "check", 3), ROSTER) is None
    assert plan_by(Way(4, dear=False), of_shape(tasks, "check", 2), ROSTER) is not None


def test_without_a_checker_there_is_one_guess(tasks: list[Task]) -> None:
    pool = [s for s in ROSTER if s.name != "checker"]
    plan = plan_by(Way(3, dear=False), of_shape(tasks, "check", 2), pool)
    assert plan is not None
    assert [step.worker for step in plan.steps] == ["guesser"]


def test_without_a_worker_for_a_step_there_is_no_plan(tasks: list[Task]) -> None:
    assert plans_for(of_shape(tasks, "check", 2), [find_specialist("facts")]) == {}


def test_the_dear_way_takes_the_dearer_of_two_that_are_able(tasks: list[Task]) -> None:
    task = next(t for t in tasks if plan_for(t, ROSTER).steps[-1].worker == "sums")
    cheap, dear = (plan_by(Way(3, dear=dear), task, ROSTER) for dear in (False, True))
    assert cheap is not None
    assert dear is not None
    assert (cheap.steps[-1].worker, dear.steps[-1].worker) == ("sums", "numbers")


def test_ways_that_share_a_plan_are_tried_once(tasks: list[Task]) -> None:
    plans = plans_for(of_shape(tasks, "chain", 1), [find_specialist(n) for n in ("facts", "letters", "lists")])
    assert len({stand_in(way, plans) for way in plans}) <= 1
    everybody = plans_for(of_shape(tasks, "check", 2), ROSTER)
    assert {stand_in(way, everybody) for way in everybody} == {Way(n, dear=False) for n in (1, 2, 3, 4)}
    assert all(isinstance(plan, Plan) for plan in everybody.values())


def judged(right: dict[Way, list[bool]], *, cost_usd: dict[Way, float]) -> dict[Way, list[Outcome]]:
    return {
        way: [outcome("way", "t", correct=ok, cost_usd=cost_usd.get(way, 1.0), repeat=i) for i, ok in enumerate(oks)]
        for way, oks in right.items()
    }


def test_the_way_that_is_right_most_often_is_chosen_and_the_cheaper_of_equals(tasks: list[Task]) -> None:
    task = of_shape(tasks, "check", 2)
    one, two, three = Way(1, dear=False), Way(2, dear=False), Way(3, dear=False)
    right = {one: [True, False], two: [True, True], three: [True, True]}
    assert choose_ways([(task, judged(right, cost_usd={two: 2.0, three: 3.0}))]) == {("check", 2): two}
    assert choose_ways([(task, judged(right, cost_usd={two: 3.0, three: 2.0}))]) == {("check", 2): three}


def test_a_way_is_wrong_where_it_cannot_be_gone_so_that_all_are_judged_on_the_same_questions(
    tasks: list[Task],
) -> None:
    task = of_shape(tasks, "check", 3)
    three, four = Way(3, dear=False), Way(4, dear=False)
    lucky = judged({three: [False], four: [True]}, cost_usd={})
    usual = judged({three: [True]}, cost_usd={})
    assert choose_ways([(task, lucky), (task, usual), (task, usual)]) == {("check", 3): three}


def test_a_kind_without_development_questions_takes_the_way_of_the_nearest() -> None:
    (task,) = [t for t in generate("test", 60, seed=1, depths=(4,)) if t.tags["shape"] == "fan"][:1]
    chosen = {("fan", 2): WAYS[0], ("fan", 3): WAYS[1], ("chain", 3): WAYS[2]}
    assert way_for(task, chosen) == WAYS[1]
    assert way_for(task, {}) == Way(3, dear=False)
