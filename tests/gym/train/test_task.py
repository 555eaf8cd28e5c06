"""The gym as a task of the product's loop: prompts of serving, rewards of runs, a curriculum that checkpoints hold."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch", reason="needs the extra `train`")

from dirigent import Conductor, Scripted
from dirigent.errors import WorkerError
from dirigent.learn.grpo import Asked, Remembering
from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.plan.plan import Plan, Step, format_plan
from dirigent.plan.planner import LanguagePlanner
from dirigent_gym.train.dataset import Row, held_rows
from dirigent_gym.train.recipe import EvalSettings, GrpoSettings, Recipe
from dirigent_gym.train.reward import LambdaSettings, shown_pool
from dirigent_gym.train.rows import right_plan, training_rows
from dirigent_gym.train.task import Collapsed, GymTask, TaskState
from dirigent_gym.train.workers import Resources, exact_workers

RECIPE = Recipe(
    name="t",
    grpo=GrpoSettings(oversample=2.0),
    cost=LambdaSettings(rise_steps=10),
    eval=EvalSettings(n=8),
)


RUNNER = asyncio.Runner()


@pytest.fixture(scope="module", autouse=True)
def closed_runner() -> Iterator[None]:
    yield
    RUNNER.close()


def task(recipe: Recipe = RECIPE, workers: Any = None, dev: Sequence[Row] = ()) -> GymTask:
    resources = Resources(workers or exact_workers())
    return GymTask(recipe, rows=training_rows(recipe, ()), dev=dev, resources=resources, runner=RUNNER)


def drawn(one: GymTask, n: int = 3) -> list[Asked]:
    return one.draw(n, step=0, rng=random.Random(0))


def solvable(rows: Sequence[Asked]) -> tuple[Asked, Plan]:
    return next((asked, plan) for asked in rows if (plan := right_plan(asked.extra)) is not None)


def right_text(asked: Asked) -> str:
    plan = right_plan(asked.extra)
    assert plan is not None
    return format_plan(asked.extra.with_shown_names(plan), asked.extra.shown, dialect="lines")


async def test_a_prompt_equals_the_trained_planners_prompt_in_serving() -> None:
    for asked in drawn(task(), 4):
        planner = Scripted("nothing")
        pool = shown_pool(asked.extra, exact_workers())
        conductor = Conductor(LanguagePlanner(planner, trained=True, dialect="lines"), pool, repairs=0)
        await conductor.run(asked.extra.task.question)
        assert planner.requests[0].messages == asked.prompt


async def test_right_wrong_and_invalid_plans_earn_the_recipes_rewards() -> None:
    one = task()
    asked, plan = solvable(drawn(one, 12))
    wrong = Plan((Step(asked.extra.shown[0], "Say nothing."),))
    texts = [right_text(asked), format_plan(wrong, asked.extra.shown, dialect="lines"), "no plan at all"]
    (group,) = await one.score([asked], [texts], step=0)
    assert [rollout.reward for rollout in group] == [1.0, 0.1, 0.0]
    assert group[0].advantage == pytest.approx(1 - 1.1 / 3)
    assert group[0].facts["valid"] == pytest.approx(2 / 3)
    assert group[0].facts["accuracy"] == pytest.approx(1 / 3)
    assert len(plan.steps) >= 1


class Down:
    def __init__(self, info: Any) -> None:
        self.info = info

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        raise WorkerError("down", worker=self.info.name, fault="connect")


async def test_a_worker_that_fails_drops_the_rollout() -> None:
    workers = {name: Down(worker.info) for name, worker in exact_workers().items()}
    one = task(workers=workers)
    asked, _ = solvable(drawn(one, 12))
    (group,) = await one.score([asked], [[right_text(asked), "no plan"]], step=0)
    assert [rollout.reward for rollout in group] == [None, 0.0]


async def test_cost_counts_among_right_plans_once_the_policy_is_good_enough() -> None:
    dev = [row for row in held_rows("dev", 12, seed=7) if right_plan(row) is not None]
    one = task(dev=dev)
    asked, plan = solvable(drawn(one, 12))
    longer = Plan((*(Step(s.worker, s.subtask, s.access) for s in plan.steps), plan.steps[-1]))
    texts = [format_plan(asked.extra.with_shown_names(p), asked.extra.shown, dialect="lines") for p in (plan, longer)]
    (before,) = await one.score([asked], [texts], step=0)
    assert [rollout.reward for rollout in before] == [1.0, 1.0]

    one.recall(msgspec.json.encode(TaskState(one.rows.state, cost_from_step=0)).decode())
    (after,) = await one.score([asked], [texts], step=10)
    assert after[0].reward == 1.0
    assert after[1].reward is not None
    assert 0.8 <= after[1].reward < 1.0
    # From now on advantages are divided by the spread or by 0.1, if that is larger.
    assert after[0].advantage == pytest.approx((1.0 - (1.0 + after[1].reward) / 2) / 0.1)


def test_measuring_opens_the_next_stage_and_starts_the_cost() -> None:
    dev = [row for row in held_rows("dev", 30, seed=7) if right_plan(row) is not None]
    one = task(dev=dev)

    def write(asked: Sequence[Asked]) -> list[str]:
        return [right_text(a) for a in asked]

    assert one.rows.state.stage == 0
    figures = one.measure(write)
    assert figures["accuracy"] > 0.9
    assert figures["stage"] == 1.0
    assert len(drawn(one, 3)) == 6, "from the second stage on, twice as many groups are drawn"
    assert msgspec.json.decode(one.remembered(), type=TaskState).cost_from_step == 0


def test_a_task_with_anothers_state_draws_the_same_rows() -> None:
    one, other = task(), task()
    assert isinstance(one, Remembering)
    drawn(one)
    other.recall(one.remembered())
    assert [a.prompt for a in drawn(other)] == [a.prompt for a in drawn(one)]


async def test_an_imitating_control_counts_right_plans_and_compares_nothing() -> None:
    one = task(msgspec.structs.replace(RECIPE, algorithm="online_rft"))
    asked, _ = solvable(drawn(one, 12))
    (group,) = await one.score([asked], [[right_text(asked), "no plan"]], step=0)
    assert [rollout.advantage for rollout in group] == [1.0, 0.0]


async def test_a_collapsed_policy_stops_the_run() -> None:
    one = task()
    one.recall(one.remembered())
    asked = drawn(one, 12)
    right = [[right_text(a)] if right_plan(a.extra) else ["x"] for a in asked]
    await one.score(asked, right, step=0)

    async def go_on() -> None:
        for step in range(1, 6):
            await one.score(asked, [["nonsense"]] * len(asked), step=step)

    with pytest.raises(Collapsed, match="language of plans"):
        await go_on()
