"""The program that times a training step: over which workers, and which part of a run it watches."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

pytest.importorskip("trl", reason="needs the train extra")

from gym.benchmarks import train_step as program

from dirigent_gym.train import grpo, scorer
from dirigent_gym.train.recipe import Recipe, WorkerSettings, load_conductor
from dirigent_gym.train.rows import dev_rows


@pytest.mark.parametrize("updates", [1, 2])
def test_the_last_step_is_watched_with_all_of_its_updates(updates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Profiler:
        def __init__(self, **_: Any) -> None:
            self.key_averages = lambda: SimpleNamespace(table=lambda **_: "kernels")

        def start(self) -> None:
            seen.append("start")

        def stop(self) -> None:
            seen.append("stop")

    callbacks: list[Any] = []
    trainer = SimpleNamespace(add_callback=callbacks.append)
    monkeypatch.setattr("torch.profiler.profile", Profiler)
    monkeypatch.setattr(grpo, "make_trainer", lambda: trainer)
    with program.watched(5, step=3, updates=updates):
        assert grpo.make_trainer() is trainer  # type: ignore[call-arg]
    (watching,) = callbacks
    for update in range(3 * updates):
        state = SimpleNamespace(global_step=update)
        watching.on_step_begin(None, state, None)
        seen.append(f"update {update + 1}")
        state.global_step += 1
        watching.on_step_end(None, state, None)
    watched = [f"update {number}" for number in range(2 * updates + 1, 3 * updates + 1)]
    assert seen == [*(f"update {n}" for n in range(1, 2 * updates + 1)), "start", *watched, "stop"]


RECIPE = Path(__file__).parents[3] / "gym" / "recipes" / "gym-gpu.toml"


def test_workers_are_those_named_and_only_tables_are_misled(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--workers", "exact", "adapters", "--stage", "2", "--oversample", "1", "--refills", "0"]
    monkeypatch.setattr("sys.argv", ["train_step.py", str(RECIPE), *given])
    args, recipe = program.arguments(), load_conductor(RECIPE)
    exact, adapters = (program.shortened(recipe, args, kind=kind) for kind in args.workers)
    assert exact.workers == recipe.workers
    assert adapters.workers == WorkerSettings("adapters", adapters=("packaged",))
    assert exact.rows.first_stage == adapters.rows.first_stage == 2
    assert exact.grpo == msgspec.structs.replace(exact.grpo, oversample=1.0, refills=0) != recipe.grpo
    assert (adapters.grpo.prompts, adapters.grpo.rollouts) == (recipe.grpo.prompts, recipe.grpo.rollouts)


def test_both_kinds_begin_at_the_same_start_and_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    starts: list[bool] = []

    def stand_in(recipe: Recipe, *, out: Path, quiet: bool) -> None:
        starts.append((out / "warm-start" / "fitted").exists())
        (out / "warm-start").mkdir(parents=True, exist_ok=True)
        (out / "warm-start" / "fitted").touch()
        workers_s = {"exact": 0.25, "adapters": 0.5}[recipe.workers.kind]
        seconds = {"sample_seconds": 1.0, "score_seconds": workers_s, "step_seconds": 2.0 + workers_s}
        rows = [{"kind": "train", "step": n, "plans_drawn": 1024 * n, **seconds} for n in (1, 2, 3)]
        (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setattr(program, "train", stand_in)
    monkeypatch.setattr("sys.argv", ["train_step.py", str(RECIPE), "--workers", "exact", "adapters", "--steps", "3"])
    program.main()
    lines = capsys.readouterr().out.splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    assert [line for line in lines if line.startswith("workers: ")] == ["workers: exact", "workers: adapters"]
    assert [one["workers"] for one in found] == ["exact", "adapters"]
    parts = {"generation": 1.0, "workers": 0.25, "update": 1.0, "total": 2.25}
    assert [one["mean_s"] for one in found] == [parts, parts | {"workers": 0.5, "total": 2.5}]
    # Without the first step, of what was drawn: more than is learned from.
    assert [one["drawn_a_step"] for one in found] == [2560, 2560]
    assert [one["rollouts_a_second"] for one in found] == [round(2560 / 2.25, 1), 1024]
    assert found[0]["learned_from_a_step"] == 1024
    assert starts == [False, True]


def test_what_workers_are_asked_is_counted() -> None:
    recipe = load_conductor(RECIPE)
    with program.counted() as counts, scorer.open_scorer(recipe) as opened:
        scorer.ceiling(opened, dev_rows(recipe, opened.pool, n=3))
        assert counts == []
    assert counts[0].asks >= 3
