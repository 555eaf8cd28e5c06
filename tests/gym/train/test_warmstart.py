"""The warm start: what it teaches, how it is measured, and that it is done once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from tests.facts import says

from dirigent.limits import Limits
from dirigent.plan.plan import Plan, Step, parse_plan
from dirigent_gym.train.controls import unevenness
from dirigent_gym.train.lessons import draw_lessons
from dirigent_gym.train.recipe import Recipe, TaskSettings, TinySettings, WarmStartSettings
from dirigent_gym.train.reward import Scored
from dirigent_gym.train.rows import skill_row, skill_tasks
from dirigent_gym.train.run import Result, train
from dirigent_gym.train.start import WarmStart
from dirigent_gym.train.warmstart import measure_start, prepare

SKILLS = ("roman", "code")


@pytest.mark.parametrize("lessons", ["warm_start", "gym_decompositions", "right_plans"])
def test_every_lesson_is_a_valid_plan_for_the_pool_its_prompt_shows(lessons: str) -> None:
    recipe = Recipe("x", warm_start=WarmStartSettings(lessons=lessons, n=80))  # type: ignore[arg-type]
    pairs = draw_lessons(recipe, seed=3)
    assert len(pairs) == 80
    assert any(len(pair.messages) > 2 for pair in pairs) == (lessons != "right_plans")
    for pair in pairs:
        cards = pair.messages[0].text.splitlines()[1:]
        names = [card.rpartition(" | ")[2].split()[0] for card in cards]
        second = len(pair.messages) > 2
        earlier = len(parse_plan(pair.messages[2].text, names, Limits(), dialect="lines").steps) if second else 0
        plan = parse_plan(pair.completion, names, Limits(), dialect="lines", may_accept=second, earlier=earlier)
        if second:
            assert "by writing the single line: accept" in pair.messages[3].text
        else:
            assert plan.steps


def test_lessons_follow_the_seed() -> None:
    recipe = Recipe("x", tasks=TaskSettings(skills=SKILLS), warm_start=WarmStartSettings(n=20))
    assert draw_lessons(recipe, seed=1) == draw_lessons(recipe, seed=1)
    assert draw_lessons(recipe, seed=1) != draw_lessons(recipe, seed=2)


def test_lessons_over_a_few_skills_choose_workers_and_access_at_random() -> None:
    recipe = Recipe("x", tasks=TaskSettings(skills=SKILLS), warm_start=WarmStartSettings(n=400))
    plans = [parse_plan(pair.completion, SKILLS, dialect="lines") for pair in draw_lessons(recipe, seed=1)]
    steps = [step for plan in plans for step in plan.steps]
    assert 0.42 < sum(step.worker == "roman" for step in steps) / len(steps) < 0.58
    seconds = [plan.steps[1] for plan in plans if len(plan.steps) == 2]
    assert 0.35 < sum(step.access == (0,) for step in seconds) / len(seconds) < 0.65


def scored(*workers: str) -> Scored:
    return Scored(True, False, 0.1, plan=Plan(tuple(Step(worker, "do it") for worker in workers)))


def test_unevenness_is_the_largest_distance_from_an_even_share() -> None:
    rows = [skill_row(task, SKILLS, max_steps=5) for task in skill_tasks("dev", 4, skills=SKILLS, seed=1)]
    even = [scored("roman"), scored("code"), scored("roman", "code"), scored("code", "roman")]
    assert unevenness(rows, even) == 0.0
    # 4 of 5 steps on one worker of two: 0.8 against 0.5.
    tilted = [scored("roman"), scored("roman"), scored("roman", "code"), scored("roman")]
    assert unevenness(rows, tilted) == pytest.approx(0.3)
    assert unevenness(rows[:1], [Scored(False, False, 0.0)]) == 0.0


def test_a_start_that_is_not_one_says_why() -> None:
    good = WarmStart(0.99, 0.985, 0.01, 0.2, 0.1)
    assert good.fault == ""
    assert says(msgspec.structs.replace(good, valid_sampled=0.9).fault, "99.0% 90.0%")
    assert says(msgspec.structs.replace(good, uneven=0.05).fault, "5.0%")


@pytest.mark.timeout(600)
def test_the_tiny_start_writes_valid_plans_and_favours_nobody(tiny_run: Result) -> None:
    assert tiny_run.start["valid_greedy"] >= 0.97
    assert tiny_run.start["valid_sampled"] >= 0.95
    assert tiny_run.start["uneven"] <= 0.06


@pytest.mark.timeout(600)
def test_a_finished_warm_start_is_taken_from_the_disk(tiny_recipe: Recipe, warm_folder: Path) -> None:
    def fitted_again(step: int, loss: float) -> None:
        raise AssertionError("the warm start was fitted again")

    policy = prepare(tiny_recipe, None, out=warm_folder.parent, report=fitted_again)
    rows = [skill_row(task, SKILLS, max_steps=5) for task in skill_tasks("dev", 8, skills=SKILLS, seed=1)]
    once, again = (policy.write(rows, group=1, seed=None).texts_PG for _ in range(2))
    assert once == again
    known = measure_start(policy, None, rows, seed=1, out=warm_folder.parent)  # type: ignore[arg-type]
    assert known.valid_greedy >= 0.97


@pytest.mark.timeout(600)
def test_with_no_steps_to_take_a_run_ends_after_its_start(
    tiny_recipe: Recipe, warm_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(warm_folder, out / warm_folder.name)
    recipe = msgspec.structs.replace(
        tiny_recipe,
        grpo=msgspec.structs.replace(tiny_recipe.grpo, steps=0),
        eval=msgspec.structs.replace(tiny_recipe.eval, n=8),
    )
    result = train(recipe, out=out, quiet=True)
    assert (result.finished, result.step, result.stopped) == (True, 0, "")
    assert result.dev["rollouts"] == 8
    assert (out / "adapter").is_dir()


@pytest.mark.timeout(600)
def test_a_policy_without_an_adapter_is_held_near_its_own_start(tmp_path: Path, tiny_recipe: Recipe) -> None:
    recipe = msgspec.structs.replace(
        tiny_recipe,
        grpo=msgspec.structs.replace(tiny_recipe.grpo, steps=1, prompts=2, rollouts=4, beta=0.04),
        policy=msgspec.structs.replace(tiny_recipe.policy, rank=0),
        base=msgspec.structs.replace(tiny_recipe.base, tiny=TinySettings(hidden=32, heads=2, words=300, steps=2)),
        warm_start=msgspec.structs.replace(tiny_recipe.warm_start, n=40, steps=2, batch=8, measure=2),
        eval=msgspec.structs.replace(tiny_recipe.eval, n=2, ceiling=0.9, every_steps=100),
    )
    assert train(recipe, out=tmp_path, quiet=True).finished
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    (first,) = (row for row in rows if row["kind"] == "train")
    assert first["kl"] == pytest.approx(0.0, abs=1e-6)
