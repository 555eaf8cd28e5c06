"""A recipe carried out: a tiny model learns, leaves its adapter, and continues wherever a run ended."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.facts import facts, says

from dirigent.errors import ConfigError
from dirigent.learn.base import Base
from dirigent.learn.decoder import Adapter, Decoder
from dirigent.learn.export import load_adapter
from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.workers.worker import Worker
from dirigent_gym.train.faults import DiskFull, OutOfMemory, within_disk, within_memory
from dirigent_gym.train.folder import locked
from dirigent_gym.train.metrics import Collapse
from dirigent_gym.train.recipe import Recipe, SpecialistsRecipe, load_conductor, load_recipe, parse_recipe
from dirigent_gym.train.run import (
    FromStart,
    Result,
    WarmStart,
    adapter_file,
    carry_out,
    loop_settings,
    sampler_for,
    train_conductor,
)
from dirigent_gym.train.workers import exact_workers

pytestmark = pytest.mark.timeout(600)

RECIPES = Path(__file__).parents[3] / "gym" / "recipes"


def rows_of(out: Path | str, kind: str = "train") -> dict[int, dict[str, Any]]:
    rows = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row for row in rows if row["kind"] == kind}


def changed(recipe: Recipe, **grpo: Any) -> Recipe:
    return msgspec.structs.replace(recipe, grpo=msgspec.structs.replace(recipe.grpo, **grpo))


def weights(out: Path | str) -> bytes:
    return (Path(out) / "adapter" / "adapter_model.safetensors").read_bytes()


# ---- a whole run


def test_the_tiny_run_learns_to_route_held_out_questions(tiny_run: Result) -> None:
    assert tiny_run.finished
    assert not tiny_run.stopped
    assert tiny_run.start["valid_greedy"] >= 0.97
    assert tiny_run.start["uneven"] <= 0.06
    assert tiny_run.dev["accuracy"] >= tiny_run.start["accuracy_greedy"] + 0.10
    assert tiny_run.ceiling > 0.9


def test_a_run_leaves_figures_of_every_step_and_an_adapter_in_both_formats(
    small_run: Result, small_recipe: Recipe
) -> None:
    out = Path(small_run.out)
    steps = rows_of(out)
    assert list(steps) == [1, 2, 3, 4]
    for name in ("loss", "reward", "valid", "accuracy", "decomposition", "worker_entropy", "plan_tokens"):
        assert all(math.isfinite(row[name]) for row in steps.values()), name
    assert list(rows_of(out, "dev")) == [2, 4]
    assert list((out / "tensorboard").iterdir())
    assert msgspec.json.decode((out / "result.json").read_bytes(), type=Result) == small_run
    base = Base.load(out / "warm-start" / "base", device="cpu")
    peft, gguf = Adapter.load(out / "adapter", device="cpu"), load_adapter(Path(small_run.gguf), base=base)
    assert peft.rank == small_recipe.policy.rank
    assert all((peft.b[part] - gguf.b[part]).abs().max() == 0 for part in peft.b)
    assert any(peft.b[part].abs().max() > 0 for part in peft.b)


def test_with_no_steps_to_take_a_run_ends_after_its_start(started: Path, small_recipe: Recipe) -> None:
    result = train_conductor(changed(small_recipe, steps=0), out=started, quiet=True)
    assert (result.finished, result.step, result.stopped) == (True, 0, "")
    assert result.dev["rollouts"] == 6
    assert (started / "adapter").is_dir()


# ---- resumed


class Interrupting:
    """Answers as another worker does; interrupts the process once the run in this folder has taken a step."""

    def __init__(self, worker: Worker, out: Path) -> None:
        self.worker, self.info, self.out = worker, worker.info, out

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        if (self.out / "loop" / "metrics.jsonl").exists() and signal.getsignal(
            signal.SIGINT
        ) != signal.default_int_handler:
            os.kill(os.getpid(), signal.SIGINT)
        return await self.worker.ask(request, observe=observe)


def test_an_interrupted_run_ends_after_its_step_and_resumes_to_the_same_adapter(
    started: Path, small_recipe: Recipe, small_run: Result, capfd: pytest.CaptureFixture[str]
) -> None:
    workers = {name: Interrupting(worker, started) for name, worker in exact_workers().items()}
    cut = train_conductor(small_recipe, out=started, workers=workers, quiet=False)
    assert cut.step == 2
    assert says(cut.stopped, "stopped: --resume")
    assert "interrupted" in capfd.readouterr().err, "said at once, not when it ends"
    whole = train_conductor(small_recipe, out=started, resume=True, quiet=True)
    assert (whole.step, whole.finished) == (4, True)
    assert weights(started) == weights(small_run.out)
    for step, row in rows_of(small_run.out).items():
        assert rows_of(started)[step]["loss"] == pytest.approx(row["loss"], rel=1e-4, abs=1e-6)


def test_a_run_without_time_takes_no_step_and_resumes(started: Path, small_recipe: Recipe) -> None:
    begun = train_conductor(small_recipe, out=started, seconds=0.0, quiet=True)
    assert (begun.step, begun.finished) == (0, False)
    assert says(begun.stopped, "stopped: --resume")
    with pytest.raises(ConfigError, match=facts("--resume")):
        train_conductor(small_recipe, out=started, quiet=True)
    assert train_conductor(small_recipe, out=started, resume=True, quiet=True).finished


def test_a_finished_run_is_made_longer_at_another_rate(small_run: Result, small_recipe: Recipe, tmp_path: Path) -> None:
    shutil.copytree(small_run.out, tmp_path / "run")
    longer = changed(small_recipe, steps=6, learning_rate=2e-3, minibatch_rows=8)
    result = train_conductor(longer, out=tmp_path / "run", resume=True, quiet=True)
    assert (result.step, result.finished) == (6, True)
    assert list(rows_of(tmp_path / "run")) == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ConfigError, match=facts("grpo.beta 0.05 0.1")):
        train_conductor(changed(longer, beta=0.1), out=tmp_path / "run", resume=True, quiet=True)


def test_a_checkpoint_that_cannot_be_read_is_named(small_run: Result, small_recipe: Recipe, tmp_path: Path) -> None:
    shutil.copytree(small_run.out, tmp_path / "run")
    (tmp_path / "run" / "loop" / "checkpoint.pt").write_bytes(b"half a file")
    with pytest.raises(ConfigError, match=facts("checkpoint.pt")):
        train_conductor(small_recipe, out=tmp_path / "run", resume=True, quiet=True)


def test_a_damaged_warm_start_is_not_fitted_anew_under_a_policy_that_left_it(
    started: Path, small_recipe: Recipe
) -> None:
    (started / "warm-start" / "policy" / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match=facts("warm-start adapter_model.safetensors")):
        train_conductor(small_recipe, out=started, quiet=True)


def test_a_second_launch_in_a_folder_at_work_is_refused(started: Path, small_recipe: Recipe) -> None:
    with locked(started), pytest.raises(ConfigError, match=facts("--out")):
        train_conductor(small_recipe, out=started, quiet=True)


# ---- ended


def test_a_collapse_stops_the_run_names_itself_and_keeps_the_checkpoint(
    started: Path, small_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates: list[int] = []

    def collapsed(self: Collapse, metrics: Mapping[str, float]) -> str | None:
        updates.append(1)
        return "stopped: the policy collapsed" if len(updates) == 2 else None

    monkeypatch.setattr(Collapse, "update", collapsed)
    result = train_conductor(small_recipe, out=started, quiet=True)
    assert (result.step, result.finished, result.stopped) == (1, False, "stopped: the policy collapsed")
    assert (started / "loop" / "checkpoint.pt").is_file()
    assert weights(started)


def out_of_memory(*_: Any, **__: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 1 GiB")


def test_memory_that_is_out_in_a_step_names_the_size_of_its_passes(
    started: Path, small_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dirigent.learn.grpo.logprobs", out_of_memory)
    with pytest.raises(OutOfMemory, match=facts("2.50 GiB grpo.minibatch_rows 128")):
        train_conductor(small_recipe, out=started, quiet=True)


TINY_FIT = """
kind = "%s"
name = "run"
base = { tiny = { hidden = 32, words = 400, steps = 1 } }
%s
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TINY_FIT % ("direct", "n = 20\nbatch = 8"), "2.50 GiB batch 8 steps"),
        (TINY_FIT % ("specialists", 'names = ["roman"]\n[fit]\nsteps = 4\nbatch = 8'), "roman 2.50 GiB fit.batch 8"),
    ],
)
def test_memory_that_is_out_while_an_adapter_is_fitted_names_its_batch(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dirigent.learn.imitate.logprobs", out_of_memory)
    with pytest.raises(OutOfMemory, match=facts(said)):
        carry_out(parse_recipe(text), out=tmp_path / "run", quiet=True)


def test_other_errors_are_not_taken_for_missing_memory() -> None:
    with pytest.raises(RuntimeError, match="no kernel") as raised, within_memory("here", advice="do less"):
        raise RuntimeError("no kernel")
    assert not isinstance(raised.value, OutOfMemory)
    with pytest.raises(OutOfMemory, match=facts("here do less")), within_memory("here", advice="do less"):
        raise torch.OutOfMemoryError("CUDA error")


def test_a_full_disk_is_said_and_the_run_resumes_once_there_is_room(
    started: Path, small_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("torch.save", full)
        with pytest.raises(DiskFull, match=facts("--resume")):
            train_conductor(small_recipe, out=started, quiet=True)
    assert train_conductor(small_recipe, out=started, resume=True, quiet=True).finished


def test_a_full_disk_is_recognised_in_each_librarys_error() -> None:
    """The texts are those of writes into a file system that was full."""
    safetensors = "Error while serializing: I/O error: No space left on device (os error 28)"
    for error in (OSError(errno.EDQUOT, "over quota"), RuntimeError(safetensors)):
        with pytest.raises(DiskFull), within_disk():
            raise error
    torchs = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534")
    torchs.__context__ = RuntimeError("basic_ios::clear: iostream error")
    with pytest.raises(DiskFull), within_disk():
        raise torchs
    for error in (OSError(errno.EACCES, "denied"), RuntimeError("no kernel")):
        with pytest.raises(type(error)), within_disk():
            raise error


def test_a_full_disk_ends_a_run_of_specialists_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dirigent_gym.train.specialists.train_specialists", full)
    with pytest.raises(DiskFull, match=facts("--resume")):
        carry_out(SpecialistsRecipe("few"), out=tmp_path, quiet=True)


# ---- recipes and starts


def test_every_recipe_of_a_conductor_fits_the_loop() -> None:
    recipes = [load_recipe(path) for path in sorted(RECIPES.glob("*.toml")) if not path.name.startswith("eval-")]
    ours = [recipe for recipe in recipes if isinstance(recipe, Recipe)]
    assert {recipe.name for recipe in ours} >= {"gym-gpu", "gym-language", "own-tasks", "tiny-cpu", "control-rft"}
    for recipe in ours:
        settings = loop_settings(recipe)
        assert (settings.questions, settings.beta) == (recipe.grpo.prompts, recipe.grpo.beta)


def test_a_start_that_ships_is_found_by_its_name() -> None:
    recipe = load_conductor(RECIPES / "own-tasks.toml")
    assert adapter_file(recipe.warm_start.adapter).suffix == ".gguf"
    with pytest.raises(ConfigError, match=facts("conductr conductor warm-start")):
        adapter_file("conductr")


def test_rejection_sampling_writes_with_the_start_whatever_was_learned(small_run: Result, small_recipe: Recipe) -> None:
    out = Path(small_run.out)
    base = Base.load(out / "warm-start" / "base", device="cpu")
    start = Adapter.load(out / "warm-start" / "policy", device="cpu")
    learned = Adapter.load(out / "adapter", device="cpu")
    learned.b = {part: matrix * 20 for part, matrix in learned.b.items()}
    plain = sampler_for(small_recipe, base)
    sampler = FromStart(plain, base, start)
    prompts = [base.reply_ids("Plan.")]
    now, before = Decoder(base.weights, base.shape, learned), Decoder(base.weights, base.shape, start)
    with torch.no_grad():
        drawn = plain.sample(before, prompts, group=4, seed=3)
        assert sampler.sample(now, prompts, group=4, seed=3) == drawn != plain.sample(now, prompts, group=4, seed=3)
        assert sampler.greedy(now, prompts) == plain.greedy(now, prompts)


def test_the_error_for_an_invalid_start_names_the_reason() -> None:
    good = WarmStart(0.99, 0.985, 0.01, 0.2, 0.1)
    assert good.fault == ""
    assert says(msgspec.structs.replace(good, valid_sampled=0.9).fault, "99.0% 90.0%")
    assert says(msgspec.structs.replace(good, uneven=0.05).fault, "5.0%")
