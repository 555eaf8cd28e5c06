"""Rewards worked by hand, and plans carried out for real over exact workers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from tests.facts import facts, says

from dirigent.errors import WorkerError
from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.plan.plan import Plan, Step, format_plan
from dirigent.sandbox import Sandbox, Verdict
from dirigent.tasks.code import CodeProblem, answer_of
from dirigent.tasks.task import Task
from dirigent.workers.scripted import Scripted
from dirigent.workers.worker import Worker, WorkerInfo
from dirigent_gym.questions import find_specialist, generate, plan_for, solvable
from dirigent_gym.train.dataset import Row, kind_of, make_row
from dirigent_gym.train.reward import (
    LambdaSettings,
    RewardSettings,
    Scored,
    ScoreSettings,
    advantages,
    attempt_seed,
    controlled,
    grouped,
    lambda_at,
    lambda_start,
    plan_cost,
    rewards,
    score,
)
from dirigent_gym.train.rows import file_row
from dirigent_gym.train.workers import exact_workers

INVALID = Scored(False, False, 0.0)
WRONG = Scored(True, False, 0.1, cost=9.0)
DROPPED = Scored(True, False, None)


def right(cost: float) -> Scored:
    return Scored(True, True, 1.0, cost=cost)


# --- arithmetic ---


def test_a_mixed_group_worked_by_hand() -> None:
    # c_min 2, c_max 4: the dearest loses 0.2 * (4 - 2) / 4 = 0.1, the middle one 0.2 * (3 - 2) / 4 = 0.05.
    assert rewards([[INVALID, WRONG, right(2.0), right(4.0), right(3.0)]], 0.2) == [
        pytest.approx([0.0, 0.1, 1.0, 0.9, 0.95])
    ]


def test_cost_never_moves_a_group_without_a_correct_answer() -> None:
    group = [INVALID, msgspec.structs.replace(WRONG, cost=1.0), msgspec.structs.replace(WRONG, cost=50.0)]
    assert rewards([group], 0.2) == rewards([group], 0.0) == [[0.0, 0.1, 0.1]]


def test_the_cost_of_a_wrong_rollout_does_not_change_the_rewards_of_right_ones() -> None:
    dear_and_wrong = msgspec.structs.replace(WRONG, cost=1000.0)
    with_it = rewards([[right(2.0), right(4.0), dear_and_wrong]], 0.2)[0]
    assert with_it[:2] == rewards([[right(2.0), right(4.0), WRONG]], 0.2)[0][:2]


def test_halving_lambda_halves_the_advantage_in_an_all_correct_group() -> None:
    group = [[right(2.0), right(4.0)]]
    assert advantages(rewards(group, 0.2)) == [pytest.approx([0.05, -0.05])]
    assert advantages(rewards(group, 0.1)) == [pytest.approx([0.025, -0.025])]


def test_floored_scaling_keeps_that_too_while_the_spread_is_small() -> None:
    group = [[right(2.0), right(4.0)]]
    # Their standard deviation, 0.05, is below the floor of 0.1, so the floor divides.
    assert advantages(rewards(group, 0.2), scale="floored_std") == [pytest.approx([0.5, -0.5])]
    assert advantages(rewards(group, 0.1), scale="floored_std") == [pytest.approx([0.25, -0.25])]


def test_floored_scaling_divides_by_a_spread_above_the_floor() -> None:
    # Mean 0.5, standard deviation 0.5.
    assert advantages([[0.0, 1.0]], scale="floored_std") == [pytest.approx([-1.0, 1.0])]
    assert advantages([[0.0, 1.0]]) == [pytest.approx([-0.5, 0.5])]


def test_a_dropped_rollout_has_no_reward_and_does_not_shift_the_others() -> None:
    group = rewards([[DROPPED, WRONG, right(1.0)]], 0.2)
    assert group == [[None, 0.1, 1.0]]
    assert advantages(group) == [[None, pytest.approx(-0.45), pytest.approx(0.45)]]


def test_a_dropped_rollout_is_never_the_cheapest() -> None:
    cheap_but_dropped = Scored(True, True, None, cost=0.5)
    assert rewards([[cheap_but_dropped, right(2.0), right(4.0)]], 0.2)[0][1] == 1.0


def test_a_group_of_dropped_rollouts_has_nothing() -> None:
    assert advantages(rewards([[DROPPED, DROPPED]], 0.2)) == [[None, None]]


def test_a_free_plan_earns_the_whole_reward() -> None:
    assert rewards([[right(0.0), right(0.0)]], 0.2) == [[1.0, 1.0]]


def test_rewards_that_do_not_rise_are_refused_with_their_values() -> None:
    with pytest.raises(ValueError, match=facts("invalid 0 wrong 1 right 1")):
        RewardSettings(wrong=1.0)


def test_cost_is_price_in_calls_plus_the_critical_path() -> None:
    side_by_side = Plan((Step("a", "x"), Step("b", "y"), Step("c", "z", (0, 1))))
    assert plan_cost(side_by_side, 3e-5) == pytest.approx(3 + 2)


def test_lambda_waits_for_seven_tenths_of_the_ceiling_and_then_rises_steadily() -> None:
    settings = LambdaSettings(most=0.2, from_share=0.7, rise_steps=50)
    assert lambda_start(None, step=10, accuracy=0.62, ceiling=0.9, settings=settings) is None
    start = lambda_start(None, step=20, accuracy=0.63, ceiling=0.9, settings=settings)
    assert start == 20
    assert [lambda_at(step, start, settings) for step in (10, 20, 45, 70, 500)] == pytest.approx([0, 0, 0.1, 0.2, 0.2])
    assert lambda_at(100, None, settings) == 0.0


def test_a_setback_does_not_take_lambda_back() -> None:
    assert lambda_start(20, step=30, accuracy=0.1, ceiling=0.9) == 20


def test_without_a_known_ceiling_cost_never_counts() -> None:
    assert lambda_start(None, step=1, accuracy=1.0, ceiling=0.0) is None


# --- carrying plans out ---


def rows_of(shape: str, n: int = 1, *, depth: int = 2) -> list[Row]:
    """Rows of one shape whose pool can solve them."""
    found: list[Row] = []
    for task in generate("train", 300, seed=5, depths=(depth,)):
        row = make_row(task, random.Random(task.id), size=6)
        if task.tags["shape"] == shape and solves(row):
            found.append(row)
    return found[:n]


def solves(row: Row) -> bool:
    return solvable(row.task, [find_specialist(name) for name in row.names])


def right_plan(row: Row) -> Plan:
    return plan_for(row.task, [find_specialist(name) for name in row.names])


def text(plan: Plan, row: Row) -> str:
    return format_plan(plan, row.names, dialect="lines")


async def test_right_wrong_and_invalid_plans_get_different_rewards() -> None:
    # Not one whose first result happens to be the answer: the smaller of 3 and 21 is 3.
    row = next(
        row for row in rows_of("chain", 9) if row.task.sketch and row.task.sketch.steps[0].gold != row.task.answer
    )
    plan = right_plan(row)
    first_step_only = Plan(plan.steps[:1])
    texts = [text(plan, row), text(first_step_only, row), "no plan at all", ""]
    found = await score([row] * 4, texts, exact_workers())
    assert [(one.valid, one.correct, one.reward_base) for one in found] == [
        (True, True, 1.0),
        (True, False, 0.1),
        (False, False, 0.0),
        (False, False, 0.0),
    ]
    assert found[0].answer.casefold() == row.task.answer.casefold()
    assert found[0].cost > 2.0  # Two steps of waiting, and a price.
    assert "fields" in found[2].error


@pytest.mark.parametrize(
    ("grader", "answer"), [("math", "0.5"), ("final_number", "0.5"), ("choice", "B"), ("exact", "1/2")]
)
async def test_tasks_from_a_file_may_be_graded_by_any_grader_of_text(grader: Any, answer: str) -> None:
    said = "The answer is (B)." if grader == "choice" else r"So the answer is \boxed{1/2}."
    workers = {name: Scripted(reply, name=name) for name, reply in (("able", said), ("lost", "I cannot tell."))}
    task = Task("one", "How much is a half?", answer, grader=grader)
    row = file_row(task, [worker.info for worker in workers.values()], max_steps=5)
    texts = [format_plan(Plan((Step(name, "Say it."),)), row.shown, dialect="lines") for name in workers]
    assert [one.correct for one in await score([row, row], texts, workers)] == [True, False]


class Lenient(Sandbox):
    """Passes every program."""

    def __init__(self) -> None:
        pass

    async def judge(self, *given: Any, **named: Any) -> Verdict:
        return Verdict(True, "passed")


async def test_programs_are_judged_in_the_sandbox_and_without_it_no_plan_is_punished() -> None:
    task = Task("one", "Write f.", answer_of(CodeProblem("assert f() == 1", ("f",))), grader="code")
    workers = {"coder": Scripted("def f():\n    return 1", name="coder")}
    row = file_row(task, [worker.info for worker in workers.values()], max_steps=5)
    text = format_plan(Plan((Step("coder", "Write it."),)), row.shown, dialect="lines")
    (judged,) = await score([row], [text], workers, sandbox=Lenient())
    assert (judged.correct, judged.reward_base) == (True, 1.0)
    (unjudged,) = await score([row], [text], workers)
    assert unjudged.dropped
    assert says(unjudged.error, "sandbox")


async def test_a_worker_that_was_not_offered_makes_a_plan_invalid() -> None:
    (row,) = rows_of("chain")
    absent = next(name for name in ("roman", "code", "dates", "lists") if name not in row.names)
    (found,) = await score([row], [f"{row.task.question} | {absent} 0 | -"], exact_workers())
    assert not found.valid
    assert says(found.error, f"{absent}")


async def test_the_dear_twin_costs_more_for_the_same_answer() -> None:
    task = next(
        task
        for task in generate("train", 400, seed=8, depths=(1,))
        if task.sketch and task.sketch.skills == ("numbers",) and max(map(int, task.sketch.steps[0].key)) <= 20
    )
    row = row_with(task, ["numbers", "sums", "facts"])
    subtask = right_plan(row).steps[0].subtask
    dear, cheap = await score(
        [row] * 2, [text(Plan((Step(name, subtask),)), row) for name in ("numbers", "sums")], exact_workers()
    )
    assert dear.correct
    assert cheap.correct
    assert dear.cost_usd == pytest.approx(10 * cheap.cost_usd)
    ranked = rewards(grouped([row] * 2, [dear, cheap]), 0.2)[0]
    assert ranked[1] == 1.0
    assert ranked[0] is not None
    assert 0.8 <= ranked[0] < 1.0


def row_with(task: Task, names: Sequence[str]) -> Row:
    infos = tuple(WorkerInfo(name) for name in names)
    return Row(f"{task.id}/x", task, infos, tuple(names), (), kind_of(task))


class Counted:
    """Answers as another worker does, and writes down that it was asked."""

    def __init__(self, worker: Worker, asked: list[str]) -> None:
        self.worker, self.info, self.asked = worker, worker.info, asked

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        self.asked.append(self.info.name)
        return await self.worker.ask(request, observe=observe)


def counted(workers: dict[str, Worker]) -> tuple[dict[str, Worker], list[str]]:
    asked: list[str] = []
    return {name: Counted(worker, asked) for name, worker in workers.items()}, asked


async def test_equal_plans_of_a_group_are_carried_out_once() -> None:
    row, other = rows_of("chain", 2)
    workers, asked = counted(exact_workers())
    plan, others_plan = right_plan(row), right_plan(other)
    texts = [text(plan, row)] * 5 + [text(others_plan, other)]
    found = await score([row] * 5 + [other], texts, workers)
    assert all(one.correct for one in found)
    assert len(asked) == len(plan.steps) + len(others_plan.steps)


async def test_plans_that_ask_the_unreliable_worker_are_each_carried_out_with_luck_of_their_own() -> None:
    (row,) = rows_of("check")
    guess = right_plan(row).steps[0]
    once = text(Plan((guess,)), row)
    workers, asked = counted(exact_workers())
    found = await score([row] * 200, [once] * 200, workers)
    assert len(asked) == 200
    assert sum(one.correct for one in found) / 200 == pytest.approx(0.7, abs=0.1)
    again = await score([row] * 200, [once] * 200, exact_workers())
    assert [one.correct for one in again] == [one.correct for one in found]
    reseeded = await score([row] * 200, [once] * 200, exact_workers(), ScoreSettings(seed=1))
    assert [one.correct for one in reseeded] != [one.correct for one in found]


async def test_three_guesses_and_a_check_beat_one_guess() -> None:
    (row,) = rows_of("check")
    plan = text(right_plan(row), row)
    found = await score([row] * 100, [plan] * 100, exact_workers())
    assert sum(one.correct for one in found) >= 92


def test_attempts_have_seeds_far_apart() -> None:
    seeds = {attempt_seed(seed, task, attempt) for seed in range(3) for task in "abc" for attempt in range(20)}
    assert len(seeds) == 180
    ordered = sorted(seeds)
    assert min(b - a for a, b in pairwise(ordered)) > 32


class Down:
    """A worker whose endpoint is down."""

    def __init__(self, info: WorkerInfo) -> None:
        self.info = info

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        raise WorkerError("connection refused", fault="connect")


class Broken(Down):
    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        raise ZeroDivisionError("a bug")


def spoilt(plan: Plan, kind: type[Down]) -> dict[str, Worker]:
    workers: dict[str, Worker] = dict(exact_workers())
    name = plan.steps[0].worker
    workers[name] = kind(workers[name].info)
    return workers


async def test_a_worker_that_is_down_drops_the_rollout_and_is_never_replaced() -> None:
    (row,) = rows_of("chain")
    plan = right_plan(row)
    found = await score([row] * 2, [text(plan, row), "nonsense"], spoilt(plan, Down))
    assert found[0].dropped
    assert found[0].valid
    assert "connection refused" in found[0].error
    assert rewards([found], 0.2) == [[None, 0.0]]


async def test_a_bug_in_a_worker_is_not_taken_for_a_failure() -> None:
    (row,) = rows_of("chain")
    plan = right_plan(row)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        await score([row], [text(plan, row)], spoilt(plan, Broken))


async def test_a_bug_in_one_plan_ends_the_others_before_it_is_said() -> None:
    ended: list[str] = []

    async def slow(request: Request) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "late"

    workers = {"slow": Scripted(slow, name="slow"), "broken": Scripted(ZeroDivisionError("bug"), name="broken")}
    task = Task("one", "How much is a half?", "1/2", grader="exact")
    row = file_row(task, [worker.info for worker in workers.values()], max_steps=5)
    texts = [format_plan(Plan((Step(name, "Say it."),)), row.shown, dialect="lines") for name in workers]
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(score([row, row], texts, workers), 10)
    assert ended == ["cancelled"]


async def test_no_more_plans_run_at_the_same_time_than_allowed() -> None:
    rows = rows_of("chain", 6)
    running, most = 0, 0

    class Watching(Down):
        async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return Reply("x")

    workers: dict[str, Any] = {name: Watching(worker.info) for name, worker in exact_workers().items()}
    await score(rows, [text(right_plan(row), row) for row in rows], workers, ScoreSettings(concurrency=2))
    assert most == 2


async def test_a_second_round_may_read_the_first_rounds_results_or_accept_them() -> None:
    row = next(
        row for row in rows_of("chain", 9) if row.task.sketch and row.task.sketch.steps[-2].gold != row.task.answer
    )
    plan = right_plan(row)
    all_but_last, last = text(Plan(plan.steps[:-1]), row), text(Plan((plan.steps[-1],), len(plan.steps) - 1), row)
    drafts = [(all_but_last, last), (all_but_last, "accept"), (text(plan, row), "accept"), (text(plan, row), "no plan")]
    found = await score([row] * 4, [first for first, _ in drafts], exact_workers(), then=[then for _, then in drafts])
    assert [one.correct for one in found] == [True, False, True, True]
    assert [step.subtask for step in found[0].steps] == [step.subtask for step in plan.steps]


def test_rollouts_are_grouped_by_row_in_the_order_of_rows() -> None:
    a, b = rows_of("chain", 2)
    one, two, three = (right(float(i)) for i in range(3))
    assert grouped([a, b, a], [one, two, three]) == [[one, three], [two]]


# --- controls ---


def group_of_four() -> list[Scored]:
    return [
        Scored(False, False, 0.0),
        Scored(True, False, 0.1),
        Scored(True, True, 1.0),
        Scored(True, False, None),
    ]


def test_a_format_control_rewards_every_valid_plan_alike_and_keeps_dropped_ones_dropped() -> None:
    group = group_of_four()
    settings = RewardSettings(control="format")
    assert controlled(rewards([group], 0.0), [group], settings, seed=1) == [[0.0, 1.0, 1.0, None]]


def test_a_shuffled_control_deals_the_same_rewards_out_at_random_by_its_seed() -> None:
    group = group_of_four()
    given, settings = rewards([group] * 20, 0.0), RewardSettings(control="shuffled")
    dealt = controlled(given, [group] * 20, settings, seed=1)
    assert all(sorted(g for g in rewards_G if g is not None) == [0.0, 0.1, 1.0] for rewards_G in dealt)
    assert all(rewards_G[3] is None for rewards_G in dealt)
    assert len({tuple(rewards_G) for rewards_G in dealt}) > 3
    assert dealt == controlled(given, [group] * 20, settings, seed=1)
    assert dealt != controlled(given, [group] * 20, settings, seed=2)


def test_without_a_control_rewards_are_unchanged() -> None:
    group = group_of_four()
    assert controlled([[0.0, 0.1, 1.0, None]], [group], RewardSettings(), seed=1) == [[0.0, 0.1, 1.0, None]]
