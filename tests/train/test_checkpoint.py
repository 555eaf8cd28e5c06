"""Checkpoints count only when they are whole, and a run that was killed takes the same next step."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dirigent.errors import ConfigError
from dirigent.train.checkpoint import MARKER, latest, seal, sealed_step, write_durably
from dirigent.train.recipe import Recipe


def folder_of(out: Path, step: int, text: str = "weights") -> Path:
    folder = out / f"checkpoint-{step}"
    (folder / "inner").mkdir(parents=True)
    (folder / "model.bin").write_text(text)
    (folder / "inner" / "state.json").write_text("{}")
    return folder


def test_a_checkpoint_counts_once_it_is_sealed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 3)
    assert sealed_step(folder) is None
    assert latest(tmp_path) is None
    seal(folder, step=3)
    assert sealed_step(folder) == 3
    assert latest(tmp_path) == (folder, 3)


def test_the_newest_whole_checkpoint_is_taken_by_number_not_by_name(tmp_path: Path) -> None:
    for step in (9, 10):
        seal(folder_of(tmp_path, step), step=step)
    folder_of(tmp_path, 11)
    assert latest(tmp_path) == (tmp_path / "checkpoint-10", 10)


@pytest.mark.parametrize("spoil", ["cut", "lost", "marker cut"])
def test_a_checkpoint_that_lost_anything_does_not_count(tmp_path: Path, spoil: str) -> None:
    folder = folder_of(tmp_path, 3)
    seal(folder, step=3)
    if spoil == "cut":
        (folder / "model.bin").write_text("weig")
    elif spoil == "lost":
        (folder / "inner" / "state.json").unlink()
    else:
        (folder / MARKER).write_bytes((folder / MARKER).read_bytes()[:-4])
    assert sealed_step(folder) is None


def test_a_durable_write_replaces_the_old_file_whole(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    write_durably(file, b"old")
    write_durably(file, b"new")
    assert file.read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def train_rows(out: Path) -> dict[int, dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row for row in rows if row["kind"] == "train"}


@pytest.mark.timeout(900)
def test_a_killed_run_resumes_with_the_same_next_steps(tmp_path: Path, tiny_recipe: Recipe, warm_folder: Path) -> None:
    from dirigent.train.run import train

    grpo = msgspec.structs.replace(tiny_recipe.grpo, steps=6, prompts=4, rollouts=8, save_every_steps=3)
    evals = msgspec.structs.replace(tiny_recipe.eval, every_steps=2, n=20)
    recipe = msgspec.structs.replace(tiny_recipe, grpo=grpo, eval=evals)
    for name in ("whole", "killed"):
        shutil.copytree(warm_folder, tmp_path / name / "warm-start")
    train(recipe, out=tmp_path / "whole", quiet=True)
    kill_after_step_3(recipe, tmp_path / "killed")
    result = train(recipe, out=tmp_path / "killed", resume=True, quiet=True)

    assert (result.step, result.stopped) == (6, "")
    whole, resumed = train_rows(tmp_path / "whole"), train_rows(tmp_path / "killed")
    for step in (4, 5, 6):
        for name in ("loss", "grad_norm", "reward", "accuracy", "valid", "completions/mean_length"):
            assert resumed[step][name] == pytest.approx(whole[step][name], rel=1e-5, abs=1e-7), (step, name)
    assert len({whole[step]["reward"] for step in (4, 5, 6)}) > 1
    with pytest.raises(ConfigError, match="is finished: all 6 steps are taken"):
        train(recipe, out=tmp_path / "killed", resume=True, quiet=True)


@pytest.mark.timeout(600)
def test_an_adapter_held_near_its_start_is_taken_up_where_it_was(tmp_path: Path, tiny_recipe: Recipe) -> None:
    """With a penalty for the distance from the start, the start lies beside the policy in every checkpoint."""
    from dirigent.train.run import train

    assert tiny_recipe.base.tiny is not None
    recipe = msgspec.structs.replace(
        tiny_recipe,
        base=msgspec.structs.replace(
            tiny_recipe.base,
            tiny=msgspec.structs.replace(tiny_recipe.base.tiny, steps=tiny_recipe.base.tiny.steps // 3),
        ),
        policy=msgspec.structs.replace(tiny_recipe.policy, rank=4),
        warm_start=msgspec.structs.replace(tiny_recipe.warm_start, n=200, steps=20, measure=20),
        grpo=msgspec.structs.replace(
            tiny_recipe.grpo, steps=4, prompts=4, rollouts=8, save_every_steps=2, beta=0.05, learning_rate=5e-3
        ),
        eval=msgspec.structs.replace(tiny_recipe.eval, every_steps=2, n=20),
    )
    train(recipe, out=tmp_path / "whole", quiet=True)
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoint-4")
    (tmp_path / "again" / "metrics.jsonl").unlink()
    train(recipe, out=tmp_path / "again", resume=True, quiet=True)

    whole, resumed = train_rows(tmp_path / "whole"), train_rows(tmp_path / "again")
    for step in (3, 4):
        for name in ("loss", "grad_norm", "reward", "kl"):
            assert resumed[step][name] == pytest.approx(whole[step][name], rel=1e-4, abs=1e-6), (step, name)
    assert whole[4]["kl"] > 0


def kill_after_step_3(recipe: Recipe, out: Path) -> None:
    """Run the recipe in a process of its own and kill it, without warning, once its first checkpoint counts."""
    file = out.with_suffix(".json")
    file.write_bytes(msgspec.json.encode(recipe))
    program = (
        "import msgspec, sys; from pathlib import Path; from dirigent.train.recipe import Recipe; "
        "from dirigent.train.run import train; "
        "recipe = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Recipe); "
        "train(recipe, out=Path(sys.argv[2]), quiet=True)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(file), str(out)]) as process:
        try:
            end = time.monotonic() + 400
            while latest(out) is None:
                assert process.poll() is None, "the run ended before its first checkpoint"
                assert time.monotonic() < end, "no checkpoint in 400 s"
                time.sleep(0.02)
        finally:
            process.kill()
    found = latest(out)
    assert found is not None
    assert found[1] == 3


def test_a_folder_belongs_to_one_run(tmp_path: Path, tiny_recipe: Recipe) -> None:
    from dirigent.train.run import train

    write_durably(tmp_path / "recipe.json", msgspec.json.encode(tiny_recipe))
    with pytest.raises(ConfigError, match="holds a run already; --resume goes on with it"):
        train(tiny_recipe, out=tmp_path, quiet=True)
    other = msgspec.structs.replace(tiny_recipe, seed=99)
    with pytest.raises(ConfigError, match="the recipe has changed since"):
        train(other, out=tmp_path, resume=True, quiet=True)
