"""Rollouts: groups that teach nothing are replaced, faults are nobody's, and a draw can be drawn again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dirigent.errors import WorkerError
from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.plan.plan import EarlierStep
from dirigent.tasks.task import Task
from dirigent.workers.worker import Worker, WorkerInfo
from dirigent_gym.questions.specialists import find_specialist
from dirigent_gym.train.dataset import Row
from dirigent_gym.train.decode import Sample
from dirigent_gym.train.policy import Policy, Written
from dirigent_gym.train.recipe import GrpoSettings, Recipe, TaskSettings, load_conductor
from dirigent_gym.train.reward import Scored
from dirigent_gym.train.rollouts import Rollouts, scale_at, step_seed
from dirigent_gym.train.rows import SkillRows, training_rows
from dirigent_gym.train.scorer import Scorer, open_scorer
from dirigent_gym.train.warmstart import prepare
from dirigent_gym.train.workers import ExactWorkers

RECIPES = Path(__file__).parents[3] / "gym" / "recipes"


@pytest.fixture
def start(tiny_recipe: Recipe, warm_folder: Path) -> Policy:
    return prepare(tiny_recipe, None, out=warm_folder.parent, report=lambda step, loss: None)


@pytest.fixture
def scorer(tiny_recipe: Recipe) -> Iterator[Scorer]:
    with open_scorer(tiny_recipe) as opened:
        yield opened


def drawn(recipe: Recipe, policy: Policy, scorer: Scorer, *, step: int = 0) -> tuple[Rollouts, dict[str, Any]]:
    rows = SkillRows(recipe.tasks.skills, seed=1, settings=recipe.rows)
    rollouts = Rollouts(recipe, policy, scorer, rows=rows)
    trainer = SimpleNamespace(state=SimpleNamespace(global_step=step * recipe.grpo.updates))
    return rollouts, rollouts.sample([""] * (recipe.grpo.prompts * recipe.grpo.rollouts), trainer)


def groups_of(recipe: Recipe, column: list[Any]) -> list[list[Any]]:
    size = recipe.grpo.rollouts
    return [column[i : i + size] for i in range(0, len(column), size)]


def test_each_process_tries_first_rounds_of_its_own() -> None:
    """Of which second rounds are made: the same ones twice would be asked, and paid, for nothing."""
    recipe = load_conductor(RECIPES / "tiny-cpu.toml")
    tried: list[list[str]] = []

    def try_out(rows: Sequence[Row]) -> tuple[list[str], list[Scored]]:
        tried.append([row.task.question for row in rows])
        return [""] * len(rows), [Scored(False, False, 0.0)] * len(rows)

    for process in (0, 1, 0):
        rollouts = Rollouts(recipe, None, None, rows=training_rows(recipe, ()), process=process)  # type: ignore[arg-type]
        rollouts.second.draw(4, step=0, try_out=try_out)
    assert tried[0] == tried[2] != tried[1]


@pytest.mark.timeout(600)
def test_groups_without_variance_are_replaced_within_the_step(
    tiny_recipe: Recipe, start: Policy, scorer: Scorer
) -> None:
    def spread(refills: int) -> int:
        grpo = msgspec.structs.replace(tiny_recipe.grpo, refills=refills, prompts=8, rollouts=4)
        recipe = msgspec.structs.replace(tiny_recipe, grpo=grpo)
        rollouts, batch = drawn(recipe, start, scorer)
        assert {len(column) for column in batch.values()} == {32}
        for group in groups_of(recipe, batch["prompt_ids"]):
            assert all(prompt == group[0] for prompt in group)
        assert rollouts.rows.state.draws == 1 + min(refills, rollouts.rows.state.draws - 1)
        return sum(len(set(rewards)) > 1 for rewards in groups_of(recipe, batch["reward"]))

    assert spread(2) > spread(0)


@pytest.mark.timeout(600)
def test_where_enough_groups_have_variance_none_are_replaced(
    tiny_recipe: Recipe, start: Policy, scorer: Scorer
) -> None:
    for suffices, draws in ((0.0, 1), (1.0, 2)):
        grpo = msgspec.structs.replace(tiny_recipe.grpo, refills=1, refill_below=suffices, prompts=8, rollouts=4)
        rollouts, batch = drawn(msgspec.structs.replace(tiny_recipe, grpo=grpo), start, scorer)
        assert rollouts.rows.state.draws == draws
        assert len(batch["reward"]) == 32


@pytest.mark.timeout(600)
def test_after_the_first_stage_more_groups_are_sampled_than_are_learned_from(
    tiny_recipe: Recipe, start: Policy, scorer: Scorer
) -> None:
    for stage, sampled in ((0, 16), (1, 32)):
        grpo = msgspec.structs.replace(tiny_recipe.grpo, prompts=4, rollouts=4, refills=0, oversample=2.0)
        rows = msgspec.structs.replace(tiny_recipe.rows, first_stage=stage)
        rollouts, batch = drawn(msgspec.structs.replace(tiny_recipe, grpo=grpo, rows=rows), start, scorer)
        assert rollouts.metrics["rollouts"] == sampled
        assert len(batch["reward"]) == 16


def test_tasks_of_a_file_have_no_stages_to_wait_for(tmp_path: Path) -> None:
    """Nor a cost cap that cuts a group to its cheaper plans, nor draws a second time for what it cut."""
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(b"\n".join(msgspec.json.encode(Task(f"{i}", f"Q{i}", "7")) for i in range(9)))
    recipe = Recipe(
        "own",
        tasks=TaskSettings(file=str(file), dev_file=str(file)),
        grpo=GrpoSettings(prompts=4, rollouts=2, oversample=2.0, refills=3, refill_below=1.0),
    )
    asked: list[int] = []

    def write(rows: list[Row], *, group: int, **_: Any) -> Written:
        asked.append(len(rows))
        samples = [[Sample([k], [0.0]) for k in range(group)] for _ in rows]
        return Written([[place] for place in range(len(rows))], samples, [["plan"] * group for _ in rows])

    refused = Scored(True, False, None, unpaid=True)

    def score(rows: list[Row], texts: list[str], **_: Any) -> list[Scored]:
        """The cap cuts every group but the first."""
        return [Scored(True, bool(i % 2), float(i % 2)) if i % 2 == 0 or i == 1 else refused for i in range(len(rows))]

    policy, scorer = SimpleNamespace(write=write), SimpleNamespace(score=score)
    rollouts = Rollouts(recipe, policy, scorer, rows=training_rows(recipe, (WorkerInfo("one"),)))  # type: ignore[arg-type]
    groups = rollouts.groups(4, step=0)
    assert asked == [8]
    assert [group.rewards for group in groups] == [[0.1, 1.0], *[[None, None]] * 3]
    assert rollouts.metrics["dropped"] == 7


@pytest.mark.timeout(600)
def test_second_rounds_are_learned_from_where_more_groups_teach_something_than_are_wanted() -> None:
    gpu = load_conductor(RECIPES / "gym-gpu.toml")
    recipe = msgspec.structs.replace(gpu, rows=msgspec.structs.replace(gpu.rows, first_stage=2))
    asked: list[Row] = []

    def write(rows: list[Row], *, group: int, **_: Any) -> Written:
        asked[:] = rows
        samples = [[Sample([k], [0.0]) for k in range(group)] for _ in rows]
        return Written([[place] for place in range(len(rows))], samples, [["plan"] * group for _ in rows])

    def score(rows: list[Row], texts: list[str], **_: Any) -> list[Scored]:
        """Every second rollout is right, so every group teaches something."""
        steps = [(EarlierStep("a", "x", reply=row.task.answer),) for row in rows]
        return [Scored(True, bool(i % 2), float(i % 2), steps=done) for i, done in enumerate(steps)]

    policy, scorer = SimpleNamespace(write=write), SimpleNamespace(score=score)
    rollouts = Rollouts(recipe, policy, scorer, rows=training_rows(recipe, ()))  # type: ignore[arg-type]
    chosen = rollouts.groups(64, step=3)
    second = [asked[group.prompt[0]].earlier_answer is not None for group in chosen]
    assert (len(asked), len(second)) == (128, 64)
    assert 4 <= sum(second) <= 16  # of 18 among the 128


def test_a_step_drawn_again_is_the_same_and_another_step_is_not(
    tiny_recipe: Recipe, start: Policy, scorer: Scorer
) -> None:
    grpo = msgspec.structs.replace(tiny_recipe.grpo, prompts=4, rollouts=4, refills=0)
    recipe = msgspec.structs.replace(tiny_recipe, grpo=grpo)
    batches = [drawn(recipe, start, scorer, step=step)[1] for step in (5, 5, 6)]
    assert batches[0] == batches[1]
    assert batches[0]["completion_ids"] != batches[2]["completion_ids"]
    twice = msgspec.structs.replace(recipe, grpo=msgspec.structs.replace(grpo, updates=2))
    assert drawn(twice, start, scorer, step=5)[1] == batches[0]


class Broken:
    """A worker whose endpoint is down."""

    def __init__(self, info: WorkerInfo) -> None:
        self.info = info

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        raise WorkerError("nobody answers", worker=self.info.name, fault="connect")


@pytest.mark.timeout(600)
async def test_a_worker_that_fails_costs_the_rollout_its_reward_not_the_policy(
    tiny_recipe: Recipe, start: Policy
) -> None:
    exact = ExactWorkers([find_specialist("roman"), find_specialist("code")])
    workers: dict[str, Worker] = {"roman": exact["roman"], "code": Broken(exact["code"].info)}
    grpo = msgspec.structs.replace(tiny_recipe.grpo, prompts=4, rollouts=8, refills=0)
    recipe = msgspec.structs.replace(tiny_recipe, grpo=grpo)
    with open_scorer(recipe, workers=workers) as scorer:
        rollouts, batch = drawn(recipe, start, scorer)
    assert None in batch["reward"]
    assert rollouts.metrics["dropped"] > 0
    logged: dict[str, float] = {}
    given = await rollouts.plan_reward(reward=batch["reward"], log_metric=logged.__setitem__, prompts=[])
    assert given == batch["reward"]
    assert logged["dropped"] == rollouts.metrics["dropped"]


def test_every_draw_of_a_run_has_a_seed_of_its_own() -> None:
    seeds = {
        step_seed(seed, step=step, turn=turn, process=process)
        for seed in (1, 2)
        for step in range(50)
        for turn in range(3)
        for process in range(4)
    }
    assert len(seeds) == 2 * 50 * 3 * 4


def test_advantages_are_scaled_only_once_cost_counts_where_the_recipe_says_so() -> None:
    assert [scale_at("with_cost", weight) for weight in (0.0, 0.01)] == ["none", "floored_std"]
    assert [scale_at(scale, 0.2) for scale in ("none", "floored_std", "group")] == ["none", "floored_std", "group"]
