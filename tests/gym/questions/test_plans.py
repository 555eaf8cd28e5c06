"""Every task's own cheapest plan answers it, over exact specialists, and `compare` finds the fault of other plans."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from tests.facts import facts

from dirigent.errors import ConfigError
from dirigent.plan.plan import Plan, Step
from dirigent.run.execution import execute
from dirigent.tasks import Task, grade
from dirigent_gym.questions import (
    RL_ROSTER,
    ROSTER,
    answer,
    cards_for,
    compare,
    draw_pool,
    exact_pool,
    find_specialist,
    generate,
    plan_for,
    solvable,
)


def carry_out(plan: Plan, *, seed: str) -> str:
    replies: list[str] = []
    for i, step in enumerate(plan.steps):
        results = [(plan.steps[j].subtask, replies[j]) for j in step.access]
        replies.append(answer(find_specialist(step.worker), step.subtask, results, seed=f"{seed} {i}"))
    return replies[-1]


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return [
        *generate("train", 1_000, seed=4),
        *generate("dev", 200, seed=4),
        *generate("test", 700, seed=4),
        *generate("novel", 100, seed=4),
    ]


def test_the_cheapest_plan_of_every_task_gives_its_answer(tasks: list[Task]) -> None:
    right, all_ = Counter[str](), Counter[str]()
    for task in tasks:
        all_[task.tags["shape"]] += 1
        right[task.tags["shape"]] += grade(task, carry_out(plan_for(task, ROSTER), seed=task.question)).correct
    assert right["chain"] == all_["chain"]
    assert right["fan"] == all_["fan"]
    assert 0.93 <= right["check"] / all_["check"] < 1


def test_every_step_of_the_cheapest_plan_gives_its_gold_value(tasks: list[Task]) -> None:
    for task in tasks[:300]:
        assert task.sketch is not None
        steps = task.sketch.steps
        assert steps[-1].gold == task.answer
        for step in steps:
            if step.skill in ("puzzles", "checking"):
                continue
            worker = find_specialist(step.skill)
            results = [(steps[j].subtask, steps[j].gold) for j in step.access]
            assert answer(worker, step.subtask, results) == step.gold


async def test_the_cheapest_plan_works_through_the_real_executor(tasks: list[Task]) -> None:
    pool = exact_pool(ROSTER)
    for task in random.Random(1).sample([t for t in tasks if t.tags["shape"] != "check"], 60):
        execution = await execute(plan_for(task, ROSTER), pool, task.question, secret="s")
        assert execution.reply is not None
        assert grade(task, execution.reply.text).correct


async def test_the_guesser_answers_parallel_steps_independently() -> None:
    pool = exact_pool(ROSTER)
    subtask = "the square root of 1369"
    plan = Plan(tuple(Step("guesser", subtask) for _ in range(5)))
    replies: list[str] = []
    for _ in range(8):
        execution = await execute(plan, pool, "?", secret="s")
        replies += [step.reply.text for step in execution.steps if step.reply]
    assert 0.4 < replies.count("37") / len(replies) < 1


def test_no_single_worker_solves_much_of_the_test(tasks: list[Task]) -> None:
    test = [task for task in tasks if task.tags["split"] == "test"]
    for specialist in ROSTER:
        right = sum(grade(task, answer(specialist, task.question, seed=task.id)).correct for task in test)
        assert right / len(test) <= 0.3


def test_the_cheapest_plan_compares_as_right_in_every_way(tasks: list[Task]) -> None:
    for task in tasks:
        found = compare(task, plan_for(task, ROSTER))
        assert found.decomposition, task
        assert found.routing, task
        assert found.access, task
        assert found.minimal, task
        assert found.parallel, task


CHAIN = next(t for t in generate("train", 200, seed=6) if t.tags["shape"] == "chain" and t.depth == 3)
FAN = next(t for t in generate("train", 200, seed=6) if t.tags["shape"] == "fan" and t.depth == 2)
CHECK = next(t for t in generate("train", 200, seed=6) if t.tags["shape"] == "check" and t.depth == 2)


def with_step(plan: Plan, index: int, **changes: object) -> Plan:
    steps = list(plan.steps)
    steps[index] = msgspec.structs.replace(steps[index], **changes)
    return Plan(tuple(steps))


def test_a_wrong_worker_is_wrong_routing_and_nothing_else() -> None:
    found = compare(CHAIN, with_step(plan_for(CHAIN, ROSTER), 1, worker="planets"))
    assert (found.decomposition, found.routing, found.access) == (True, False, True)
    assert found.routed_share == pytest.approx(2 / 3)


def test_missing_access_is_wrong_access_and_nothing_else() -> None:
    found = compare(CHAIN, with_step(plan_for(CHAIN, ROSTER), 2, access=()))
    assert (found.decomposition, found.routing, found.access) == (True, True, False)


def test_the_whole_question_as_one_step_is_no_decomposition() -> None:
    found = compare(CHAIN, Plan((Step("letters", CHAIN.question),)))
    assert not found.decomposition
    assert not found.routing
    assert found.minimal


def test_steps_in_the_wrong_order_are_no_decomposition() -> None:
    first, second, third = (msgspec.structs.replace(step, access=()) for step in plan_for(CHAIN, ROSTER).steps)
    assert compare(CHAIN, Plan((first, second, third))).decomposition
    assert not compare(CHAIN, Plan((second, first, third))).decomposition


def test_branches_of_a_fan_may_stand_in_any_order() -> None:
    a, b, join = plan_for(FAN, ROSTER).steps
    found = compare(FAN, Plan((b, a, join)))
    assert found.decomposition
    assert found.access
    assert found.parallel


def test_a_fan_planned_as_a_chain_is_not_parallel() -> None:
    assert not compare(FAN, with_step(plan_for(FAN, ROSTER), 1, access=(0,))).parallel


def test_a_padded_plan_is_not_minimal() -> None:
    steps = plan_for(CHAIN, ROSTER).steps
    found = compare(CHAIN, Plan((steps[0], *steps)))
    assert not found.minimal
    assert not found.decomposition


def test_two_guesses_and_a_check_are_right_and_one_guess_is_not() -> None:
    guess, _, _, check = plan_for(CHECK, ROSTER).steps
    assert check.worker == "checker"
    two = compare(CHECK, Plan((guess, guess, msgspec.structs.replace(check, access=(0, 1)))))
    assert two.decomposition
    assert two.access
    assert not compare(CHECK, Plan((guess,))).decomposition
    assert not compare(CHECK, Plan((guess, msgspec.structs.replace(check, access=(0,))))).decomposition


def test_pools_can_mostly_but_not_always_solve_their_question(tasks: list[Task]) -> None:
    rng = random.Random(7)
    usual = [task for task in tasks if task.tags["split"] != "novel"]
    found = [solvable(task, draw_pool(task, rng, size=6)) for task in usual]
    assert 0.9 <= sum(found) / len(found) < 1


def test_pools_vary_in_members_and_order_and_have_the_size_asked_for() -> None:
    rng = random.Random(8)
    pools = [draw_pool(FAN, rng, size=6) for _ in range(50)]
    assert {len(pool) for pool in pools} == {6}
    assert len({tuple(s.name for s in pool) for pool in pools}) > 40


def test_a_small_pool_grows_to_the_workers_that_the_question_needs() -> None:
    rng = random.Random(9)
    pools = [draw_pool(CHAIN, rng, size=1) for _ in range(50)]
    assert any(solvable(CHAIN, pool) for pool in pools)


def test_the_cheap_twin_is_chosen_where_it_is_right_and_only_there() -> None:
    chosen = {"sums": 0, "numbers": 0}
    for task in generate("train", 600, seed=3, depths=(1,)):
        if task.sketch and task.sketch.steps[0].skill == "numbers":
            worker = plan_for(task, RL_ROSTER).steps[0].worker
            small = all(int(part) <= 20 for part in task.sketch.steps[0].key)
            assert worker == ("sums" if small else "numbers")
            chosen[worker] += 1
    assert all(chosen.values())


def test_a_pool_without_the_skill_cannot_be_planned_for() -> None:
    with pytest.raises(ConfigError, match=facts("planets")):
        plan_for(CHAIN, (find_specialist("planets"),))


def test_a_task_without_a_sketch_has_no_pool() -> None:
    with pytest.raises(ConfigError, match=facts("'x'")):
        draw_pool(Task("x", "?", "y"), random.Random(1), size=3)


def test_cards_are_reworded_each_time_and_held_out_wordings_are_others() -> None:
    rng = random.Random(2)
    seen = {cards_for(RL_ROSTER, rng)[0].about for _ in range(200)}
    held_out = {cards_for(RL_ROSTER, rng, wording="held_out")[0].about for _ in range(50)}
    assert len(seen) >= 25
    assert not seen & held_out
    assert all(card.subtask_only and card.price for card in cards_for(RL_ROSTER, rng))
