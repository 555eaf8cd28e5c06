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
from tests.facts import Saying, facts

from dirigent.errors import ConfigError
from dirigent_gym.train.checkpoint import MARKER, damage, latest, seal, sealed_step, write_durably
from dirigent_gym.train.recipe import Recipe


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


def test_before_a_checkpoint_counts_all_that_leads_to_its_files_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own name included: older checkpoints are deleted next, and of the two a crash could keep neither."""
    folder = folder_of(tmp_path, 3)
    (folder / "outer" / "inner").mkdir(parents=True)
    (folder / "outer" / "inner" / "weights.bin").write_text("weights")
    synced: list[Path] = []

    def spied(descriptor: int) -> None:
        assert not (folder / MARKER).exists()
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    with monkeypatch.context() as patch:
        patch.setattr("dirigent_gym.train.checkpoint.os.fsync", spied)
        patch.setattr("dirigent_gym.train.checkpoint.write_durably", lambda path, data: None)
        seal(folder, step=3)
    assert set(synced) == {tmp_path, folder, *folder.rglob("*")}


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


def test_a_folder_says_what_it_lost_only_if_it_was_whole_once(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 3)
    assert damage(folder) == ()
    seal(folder, step=3)
    assert damage(folder) == ()
    (folder / "model.bin").unlink()
    (folder / "inner" / "state.json").write_text("")
    assert damage(folder) == (Saying("inner/state.json 0 2"), Saying("model.bin"))


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
    from dirigent_gym.train.run import train

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
    with pytest.raises(ConfigError, match=facts("6")):
        train(recipe, out=tmp_path / "killed", resume=True, quiet=True)


def kill_after_step_3(recipe: Recipe, out: Path) -> None:
    """Run the recipe in a process of its own and kill it, without warning, once its first checkpoint counts."""
    file = out.with_suffix(".json")
    file.write_bytes(msgspec.json.encode(recipe))
    program = (
        "import msgspec, sys; from pathlib import Path; from dirigent_gym.train.recipe import Recipe; "
        "from dirigent_gym.train.run import train; "
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
