"""The program that times a training step, on a run of seconds."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch", reason="needs the extra `train`")

from gym.benchmarks import train_step as program

from dirigent_gym.train.recipe import Recipe, load_conductor
from dirigent_gym.train.run import Result

pytestmark = pytest.mark.timeout(600)

RECIPE = Path(__file__).parents[3] / "gym" / "recipes" / "gym-gpu.toml"


def test_options_override_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train_step.py", str(RECIPE), "--steps", "3", "--oversample", "1"])
    recipe = load_conductor(RECIPE)
    short = program.shortened(recipe, program.arguments())
    assert (short.grpo.steps, short.grpo.oversample, short.warm_start.steps) == (3, 1.0, 100)
    assert (short.grpo.prompts, short.grpo.rollouts) == (recipe.grpo.prompts, recipe.grpo.rollouts)


def test_steps_are_timed_from_the_start_of_an_earlier_run(
    small_recipe: Recipe,
    small_run: Result,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(program, "load_conductor", lambda path: small_recipe)
    start = str(Path(small_run.out) / "warm-start")
    monkeypatch.setattr("sys.argv", ["train_step.py", "tiny.toml", "--steps", "2", "--start", start])
    program.main()
    *shown, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last)
    assert [line.split()[0] for line in shown] == ["seconds", "step", "step"]
    assert (figures["steps"], figures["plans_a_step"]) == (1, 16.0), "the first step is not averaged"
    parts = figures["mean_s"]
    assert parts["writing"] + parts["workers"] + parts["update"] == pytest.approx(parts["total"], abs=0.005)
    assert msgspec.json.encode(figures)
