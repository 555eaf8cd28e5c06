"""Going on with a run: from the same numbers, towards the same start, under the recipe as it is now."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.facts import facts, says

torch = pytest.importorskip("torch", reason="needs the train extra")


from dirigent.errors import ConfigError  # noqa: E402
from dirigent_gym.train.checkpoint import latest  # noqa: E402
from dirigent_gym.train.disk import DiskFull, within_disk  # noqa: E402
from dirigent_gym.train.folder import held  # noqa: E402
from dirigent_gym.train.grpo import Watch  # noqa: E402
from dirigent_gym.train.memory import OutOfMemory, within_memory  # noqa: E402
from dirigent_gym.train.policy import Policy  # noqa: E402
from dirigent_gym.train.recipe import GrpoSettings, Recipe, SpecialistsRecipe, parse_recipe  # noqa: E402
from dirigent_gym.train.run import Change, Result, carry_out, train  # noqa: E402
from dirigent_gym.train.trainer import set_rate  # noqa: E402

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def recipe(tiny_recipe: Recipe) -> Recipe:
    """An adapter that is held near its start, for four updates."""
    assert tiny_recipe.base.tiny is not None
    tiny = msgspec.structs.replace(tiny_recipe.base.tiny, steps=tiny_recipe.base.tiny.steps // 6)
    return msgspec.structs.replace(
        tiny_recipe,
        base=msgspec.structs.replace(tiny_recipe.base, tiny=tiny),
        policy=msgspec.structs.replace(tiny_recipe.policy, rank=4),
        warm_start=msgspec.structs.replace(tiny_recipe.warm_start, n=200, steps=20, measure=20),
        grpo=msgspec.structs.replace(
            tiny_recipe.grpo, steps=4, prompts=4, rollouts=8, save_every_steps=2, beta=0.05, learning_rate=5e-3
        ),
        eval=msgspec.structs.replace(tiny_recipe.eval, every_steps=2, n=20),
    )


@pytest.fixture(scope="module")
def whole(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The run without a break."""
    return train(recipe, out=tmp_path_factory.mktemp("whole"), quiet=True)


def cut(whole: Result, out: Path, *, at: int) -> Path:
    """The run as it was when this update's checkpoint was sealed."""
    shutil.copytree(whole.out, out)
    for folder in out.glob("checkpoint-*"):
        if int(folder.name.removeprefix("checkpoint-")) > at:
            shutil.rmtree(folder)
    (out / "metrics.jsonl").unlink()
    return out


def train_rows(out: Path | str) -> dict[int, dict[str, Any]]:
    rows = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row for row in rows if row["kind"] == "train"}


def changed(recipe: Recipe, **grpo: Any) -> Recipe:
    return msgspec.structs.replace(recipe, grpo=msgspec.structs.replace(recipe.grpo, **grpo))


def weights(file: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(str(file / "adapter_model.safetensors"))


def test_an_adapter_is_taken_up_where_it_was_and_held_near_the_warm_start(
    recipe: Recipe, whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference is not in the checkpoint: it is the warm start, on the model before the checkpoint is read."""
    seen: dict[str, Any] = {}

    def spy(policy: Policy, folder: Path) -> None:
        from peft import get_peft_model_state_dict

        for name in ("default", "ref"):
            seen[name] = get_peft_model_state_dict(policy.model, adapter_name=name)

    monkeypatch.setattr("dirigent_gym.train.policy.export", spy)
    out = cut(whole, tmp_path / "again", at=2)
    assert not (out / "checkpoint-2" / "ref").exists()
    # As they were sealed before: with a reference, which nothing may read.
    shutil.copytree(out / "adapter", out / "checkpoint-2" / "ref")
    train(recipe, out=out, resume=True, quiet=True)

    before, after = train_rows(whole.out), train_rows(out)
    for step in (3, 4):
        for name in ("loss", "grad_norm", "reward", "kl", "learning_rate"):
            assert after[step][name] == pytest.approx(before[step][name], rel=1e-4, abs=1e-6), (step, name)
    assert all(before[4][name] > 0 for name in ("kl", "grad_norm"))
    start = weights(out / "warm-start" / "policy")
    assert start.keys() == seen["ref"].keys()
    assert all(torch.allclose(seen["ref"][name], tensor.float()) for name, tensor in start.items())
    assert any(not torch.allclose(seen["default"][name], tensor.float()) for name, tensor in start.items())


def test_a_run_killed_before_its_adapter_was_written_writes_it_without_another_update(
    recipe: Recipe, whole: Result, tmp_path: Path
) -> None:
    out = cut(whole, tmp_path / "killed", at=4)
    shutil.rmtree(out / "adapter")
    for name in ("conductor.gguf", "result.json"):
        (out / name).unlink()
    result = train(recipe, out=out, resume=True, quiet=True)
    assert (result.step, result.finished, result.dev) == (4, True, whole.dev)
    for name in ("adapter/adapter_model.safetensors", "conductor.gguf"):
        assert (out / name).read_bytes() == (Path(whole.out) / name).read_bytes()
    assert train_rows(out) == {}
    with pytest.raises(ConfigError, match=facts("4")):
        train(recipe, out=out, resume=True, quiet=True)


def test_a_second_launch_in_a_run_that_is_at_work_is_refused(recipe: Recipe, whole: Result, tmp_path: Path) -> None:
    out = cut(whole, tmp_path / "at work", at=2)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    with held(out), pytest.raises(ConfigError, match=facts("--out")):
        train(recipe, out=out, resume=True, quiet=True)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


@pytest.mark.parametrize(
    ("grpo", "said"),
    [
        ({"minibatch_rows": 12}, "32"),
        ({"sampler": "vllm"}, "vllm"),
    ],
)
def test_steps_that_cannot_be_taken_are_refused_before_anything_is_begun(
    grpo: dict[str, Any], said: str, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dirigent_gym.train.run.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=facts(said)):
        train(changed(recipe, **grpo), out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_made_longer_at_another_rate_in_smaller_passes(
    recipe: Recipe, whole: Result, tmp_path: Path
) -> None:
    out = cut(whole, tmp_path / "longer", at=4)
    longer = changed(recipe, steps=8, learning_rate=2e-3, schedule="linear", minibatch_rows=16, save_every_steps=1)
    result = train(longer, out=out, resume=True, quiet=True)
    assert (result.step, result.finished) == (8, True)
    what = (
        "steps 4 -> 8, minibatch_rows 128 -> 16, learning_rate 0.005 -> 0.002, schedule constant -> linear, "
        "save_every_steps 2 -> 1"
    )
    assert result.changes == (Change(5, what),)
    assert says(result.notes[-1], f"5 {what}")
    assert msgspec.json.decode((out / "result.json").read_bytes(), type=Result) == result
    rows = train_rows(out)
    assert sorted(rows) == [5, 6, 7, 8]
    # Down a line over 8 updates, 4 of which are taken, whatever rate the checkpoint remembered.
    assert [rows[step]["learning_rate"] for step in rows] == pytest.approx([2e-3 * left / 8 for left in (4, 3, 2, 1)])
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-7", "checkpoint-8"]


# --- several updates for each draw ---


@pytest.fixture(scope="module")
def twice(recipe: Recipe) -> Recipe:
    return changed(recipe, updates=2, minibatch_rows=8, schedule="linear", save_every_steps=3)


@pytest.fixture(scope="module")
def whole_twice(twice: Recipe, whole: Result, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Two updates for each of four draws, in two passes each, without a break."""
    return train(twice, out=with_start(whole, tmp_path_factory.mktemp("twice")), quiet=True)


def with_start(whole: Result, out: Path) -> Path:
    shutil.copytree(Path(whole.out) / "warm-start", out / "warm-start")
    return out


def test_draws_are_what_is_counted(whole_twice: Result) -> None:
    out = Path(whole_twice.out)
    assert (whole_twice.step, whole_twice.finished) == (4, True)
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-4"]
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [(row["kind"], row["step"]) for row in rows if row["kind"] != "warm start"] == [
        ("train", 1), ("dev", 2), ("train", 2), ("train", 3), ("dev", 4), ("train", 4)
    ]  # fmt: skip
    # Down a line over 8 updates; of each draw the last is told.
    rates = [row["learning_rate"] for row in train_rows(out).values()]
    assert rates == pytest.approx([5e-3 * left / 8 for left in (7, 5, 3, 1)])


def test_an_interrupt_between_the_updates_of_a_draw_waits_for_the_last_and_resumes_as_if_unbroken(
    twice: Recipe,
    whole: Result,
    whole_twice: Result,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    out, taken, check = with_start(whole, tmp_path), [], Watch.check_gradients

    def interrupted(watch: Watch, model: Any) -> None:
        check(watch, model)
        taken.append(model)
        if len(taken) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Watch, "check_gradients", interrupted)
        cut_short = train(twice, out=out, quiet=True)
    assert (cut_short.step, len(taken)) == (2, 4)
    assert says(cut_short.stopped, "stopped: --resume")
    assert "interrupted" in capfd.readouterr().err, "said at once, not when it ends"
    # What a kill leaves: half a checkpoint under a name that draw 3 will have, and one not yet called by its draw.
    for name in ("checkpoint-3", "checkpoint-6"):
        (out / name).mkdir()
        (out / name / "half.bin").write_text("half")
    assert train(twice, out=out, resume=True, quiet=True).finished

    before, after = train_rows(whole_twice.out), train_rows(out)
    for step in (1, 2, 3, 4):
        for name in ("loss", "grad_norm", "reward", "kl", "learning_rate", "clip_ratio/region_mean"):
            assert after[step][name] == pytest.approx(before[step][name], rel=1e-4, abs=1e-6), (step, name)
    ours, theirs = weights(out / "adapter"), weights(Path(whole_twice.out) / "adapter")
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-4) for name in theirs)
    assert latest(out) == (out / "checkpoint-4", 4)


def test_a_second_interrupt_ends_a_run_of_the_command_line_at_once(
    twice: Recipe, whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which runs inside an event loop, as every command does."""
    heard: list[int] = []

    def interrupted(watch: Watch, model: Any) -> None:
        for _ in range(2):
            heard.append(1)
            os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the run went on")

    async def command() -> None:
        train(twice, out=with_start(whole, tmp_path), quiet=True)

    monkeypatch.setattr(Watch, "check_gradients", interrupted)
    with pytest.raises(KeyboardInterrupt), asyncio.Runner() as runner:
        runner.run(command())
    assert len(heard) == 2
    assert latest(tmp_path) is None


def test_a_run_that_is_out_of_time_ends_after_a_whole_draw(twice: Recipe, whole: Result, tmp_path: Path) -> None:
    result = train(twice, out=with_start(whole, tmp_path), seconds=0.0, quiet=True)
    assert (result.step, says(result.stopped, "stopped: --resume")) == (1, True)


def test_each_update_has_whole_groups_and_is_compared_with_the_policy_that_drew_them(
    twice: Recipe, whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trl import GRPOTrainer

    parts: list[dict[str, Any]] = []
    moved: list[float] = []
    compute, size = GRPOTrainer._compute_loss, twice.grpo.rollouts

    def spy(trainer: Any, model: Any, inputs: dict[str, Any]) -> Any:
        parts.append(inputs)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            now, _, _ = trainer._get_per_token_logps_and_entropies(model, ids, mask, inputs["completion_ids"].shape[1])
        away = (now - inputs["old_per_token_logps"]) * inputs["completion_mask"]
        moved.append(float(away.abs().max()))
        return compute(trainer, model, inputs)

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", spy)
    train(changed(twice, steps=1), out=with_start(whole, tmp_path), quiet=True)
    assert len(parts) == 4
    for part in parts:
        assert len(part["prompt_ids"]) == size
        assert (part["prompt_ids"] == part["prompt_ids"][0]).all()
        old, sampled = (
            part[name] * part["completion_mask"] for name in ("old_per_token_logps", "sampling_per_token_logps")
        )
        assert torch.allclose(old, sampled, atol=1e-3)
    assert max(moved[:2]) < 1e-4 < 1e-3 < min(moved[2:])


def test_another_number_of_updates_is_another_run(twice: Recipe, whole_twice: Result) -> None:
    with pytest.raises(ConfigError, match=r"grpo\.updates 2 -> 4"):
        train(changed(twice, updates=4, steps=8), out=Path(whole_twice.out), resume=True, quiet=True)


# --- the rate ---


@pytest.mark.parametrize("schedule", ["constant_with_warmup", "cosine", "linear"])
def test_after_a_checkpoint_the_rate_is_what_the_recipe_makes_it_at_that_step(schedule: str) -> None:
    from transformers import get_scheduler

    def at_step(n: int, *, rate: float, steps: int, kind: str = schedule) -> tuple[Any, Any]:
        optimiser = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=rate)
        led = get_scheduler(kind, optimizer=optimiser, num_warmup_steps=2, num_training_steps=steps)
        for _ in range(n):
            optimiser.step()
            led.step()
        return optimiser, led

    optimiser, old = at_step(5, rate=3e-4, steps=10, kind="cosine")
    resumed, led = at_step(0, rate=8e-4, steps=20)
    resumed.load_state_dict(optimiser.state_dict())
    led.load_state_dict(old.state_dict())
    assert resumed.param_groups[0]["lr"] < 3e-4  # what the checkpoint alone would have gone on with
    set_rate(led, 8e-4)
    unbroken, always = at_step(5, rate=8e-4, steps=20)
    for _ in range(3):
        assert resumed.param_groups[0]["lr"] == unbroken.param_groups[0]["lr"]
        assert led.get_last_lr() == always.get_last_lr()
        for one in (resumed, led, unbroken, always):
            one.step()


def test_a_start_whose_figures_were_lost_is_measured_again(recipe: Recipe, whole: Result, tmp_path: Path) -> None:
    out = cut(whole, tmp_path / "again", at=2)
    (out / "warm-start" / "start.json").unlink()
    result = train(recipe, out=out, resume=True, quiet=True)
    assert result.start == whole.start
    assert (out / "warm-start" / "start.json").exists()


def test_a_damaged_warm_start_is_not_fitted_anew_under_a_policy_that_left_it(
    recipe: Recipe, whole: Result, tmp_path: Path
) -> None:
    out = cut(whole, tmp_path / "again", at=2)
    (out / "warm-start" / "policy" / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match=facts("warm-start policy/adapter_model.safetensors")):
        train(recipe, out=out, resume=True, quiet=True)


# --- out of memory ---


def out_of_memory(*_: Any, **__: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 1 GiB")


def test_memory_that_is_out_while_plans_are_sampled_names_the_setting_and_keeps_the_checkpoint(
    recipe: Recipe, whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = cut(whole, tmp_path / "run", at=2)
    with monkeypatch.context() as patch:
        patch.setattr(Policy, "write", out_of_memory)
        with pytest.raises(OutOfMemory) as raised:
            train(changed(recipe, oversample=2.0), out=out, resume=True, quiet=True)
    assert says(str(raised.value), "2.50 GiB grpo.oversample 2 --resume")
    assert train(recipe, out=out, resume=True, quiet=True).finished


@pytest.mark.parametrize("algorithm", ["grpo", "online_rft"])
def test_memory_that_is_out_in_the_update_names_the_size_of_its_passes(
    algorithm: Any, recipe: Recipe, whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(Path(whole.out) / "warm-start", tmp_path / "warm-start")
    monkeypatch.setattr("dirigent_gym.train.trainer.log_probs_and_entropies", out_of_memory)
    with pytest.raises(OutOfMemory) as raised:
        train(msgspec.structs.replace(recipe, algorithm=algorithm), out=tmp_path, quiet=True)
    assert says(str(raised.value), "2.50 GiB grpo.minibatch_rows 32 16 --resume")


TINY_FIT = """
kind = "%s"
name = "run"
base = { tiny = { hidden = 32, words = 400 } }
%s
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            TINY_FIT % ("direct", "n = 20\nbatch = 8"),
            "2.50 GiB batch 8 steps --out",
        ),
        (
            TINY_FIT % ("specialists", 'names = ["roman"]\n[fit]\nsteps = 4\nbatch = 8'),
            "roman 2.50 GiB fit.batch 8 --resume",
        ),
    ],
)
def test_memory_that_is_out_while_an_adapter_is_fitted_names_its_batch(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dirigent_gym.train.sft.completion_loss", out_of_memory)
    with pytest.raises(OutOfMemory) as raised:
        carry_out(parse_recipe(text), out=tmp_path / "run", quiet=True)
    assert says(str(raised.value), said)


def test_where_no_smaller_portion_is_left_the_advice_is_another_run() -> None:
    from dirigent_gym.train.rollouts import smaller_batches

    assert says(smaller_batches(GrpoSettings(oversample=1.5)), "grpo.oversample 1.5")
    assert says(smaller_batches(GrpoSettings()), "oversample 1")


def test_other_errors_are_not_taken_for_it() -> None:
    with pytest.raises(RuntimeError, match="no kernel") as raised, within_memory("here", advice="do less"):
        raise RuntimeError("no kernel")
    assert not isinstance(raised.value, OutOfMemory)
    with pytest.raises(OutOfMemory, match=facts("here do less")), within_memory("here", advice="do less"):
        raise torch.OutOfMemoryError("CUDA error")


# --- a full disk ---


def test_a_full_disk_says_in_a_line_what_is_kept_and_the_run_goes_on_once_there_is_room(
    recipe: Recipe, whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = cut(whole, tmp_path / "run", at=2)
    (out / "result.json").unlink()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for place in ("dirigent_gym.train.grpo.seal", "torch.save", "dirigent_gym.train.run.write_durably"):
        with monkeypatch.context() as patch:
            patch.setattr(place, full)
            with pytest.raises(DiskFull) as raised:
                train(recipe, out=out, resume=True, quiet=True)
        update = 4 if place.endswith("write_durably") else 2
        assert says(str(raised.value), f"{update} --resume")
    assert train(recipe, out=out, resume=True, quiet=True).finished


def test_a_full_disk_is_known_by_what_each_library_makes_of_it(tmp_path: Path) -> None:
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


def test_a_full_disk_of_specialists_keeps_their_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dirigent_gym.train.specialists.train_specialists", full)
    with pytest.raises(DiskFull, match=facts("--resume")):
        carry_out(SpecialistsRecipe("few"), out=tmp_path, quiet=True)
