"""The controls: imitation of right rollouts, rewards without information, one adapter from question to answer."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from dirigent.plan.plan import format_plan
from dirigent_gym.train.direct import DirectResult
from dirigent_gym.train.recipe import BaseSettings, DirectRecipe, PolicySettings, Recipe, TinySettings
from dirigent_gym.train.rows import right_plan, training_rows
from dirigent_gym.train.run import Result, carry_out, train_conductor
from dirigent_gym.train.task import GymTask
from dirigent_gym.train.workers import Resources, exact_workers

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("algorithm", ["rft", "online_rft"])
def test_rejection_sampling_runs_and_resumes(algorithm: Any, started: Path, small_recipe: Recipe) -> None:
    recipe = msgspec.structs.replace(small_recipe, algorithm=algorithm)
    assert train_conductor(recipe, out=started, seconds=0.0, quiet=True).step == 0
    done = train_conductor(recipe, out=started, resume=True, quiet=True)
    assert isinstance(done, Result)
    assert done.finished


@pytest.mark.parametrize("control", ["format", "shuffled"])
async def test_a_control_changes_the_rewards_that_are_trained_on_and_no_figure(control: Any) -> None:
    seen = {}
    for name in ("none", control):
        recipe = Recipe("any", reward=msgspec.structs.replace(Recipe("any").reward, control=name))
        task = GymTask(
            recipe,
            rows=training_rows(recipe, ()),
            dev=(),
            resources=Resources(exact_workers()),
            runner=asyncio.Runner(),
        )
        asked = task.draw(6, step=0, rng=random.Random(0))
        plans = [right_plan(one.extra) for one in asked]
        right = [
            format_plan(one.extra.with_shown_names(plan), one.extra.shown, dialect="lines") if plan else "none"
            for one, plan in zip(asked, plans, strict=True)
        ]
        wrong = [f"Say nothing. | {one.extra.shown[0]} 0 | -" for one in asked]
        texts = [[good, bad, "no plan", bad] for good, bad in zip(right, wrong, strict=True)]
        groups = await task.score(asked, texts, step=0)
        seen[name] = ([[one.reward for one in group] for group in groups], groups[0][0].facts["accuracy"])
    assert seen["none"][1] == seen[control][1] > 0
    assert seen["none"][0] != seen[control][0]
    if control == "format":
        assert {reward for group in seen[control][0] for reward in group} == {0.0, 1.0}
    else:
        assert [sorted(group) for group in seen[control][0]] == [sorted(group) for group in seen["none"][0]]


def test_one_adapter_learns_answers_from_questions_and_is_measured_on_held_out_ones(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    recipe = DirectRecipe(
        "direct",
        base=BaseSettings(tiny=TinySettings(hidden=32, layers=1, heads=2, words=400, steps=2)),
        policy=PolicySettings(rank=4, alpha=8),
        n=60,
        steps=4,
        batch=8,
        measure=20,
    )
    result = carry_out(recipe, out=tmp_path, quiet=True)
    assert isinstance(result, DirectResult)
    assert result.finished
    assert {"dev", "test", "test_depth_1", "test_depth_4"} <= set(result.accuracy)
    assert result.questions == 32
    assert "32 questions: dev 0.0%" in result.summary
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == 4
    assert msgspec.json.decode((tmp_path / "result.json").read_bytes(), type=DirectResult) == result
