"""GRPO, whole runs: a tiny one learns, leaves its adapter, ends in time or at a collapse; the paper's runs dry."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from tests.facts import Saying, says

from dirigent.messages import Message
from dirigent.tasks.task import Task
from dirigent.workers.scripted import Scripted
from dirigent_gym.questions.specialists import RL_ROSTER
from dirigent_gym.train.adapters import load_adapter
from dirigent_gym.train.checkpoint import latest
from dirigent_gym.train.grpo import Watch, load_state
from dirigent_gym.train.metrics import Collapse
from dirigent_gym.train.policy import open_base
from dirigent_gym.train.progress import Progress
from dirigent_gym.train.recipe import BaseSettings, Recipe, TinySettings, WorkerSettings, load_conductor
from dirigent_gym.train.result import Stop
from dirigent_gym.train.rows import read_tasks, skill_tasks, training_rows
from dirigent_gym.train.run import Result, train
from dirigent_gym.train.sft import Pair, SftSettings, fit_adapter, save_adapter, with_adapter
from dirigent_gym.train.tiny import tiny_base
from dirigent_gym.train.workers import TorchWorkers, load_workers

RECIPES = Path(__file__).parents[3] / "gym" / "recipes"


def test_the_tiny_run_learns_to_route_held_out_questions(tiny_run: Result) -> None:
    assert tiny_run.finished
    assert not tiny_run.stopped
    assert tiny_run.dev["accuracy"] >= tiny_run.start["accuracy_greedy"] + 0.10
    assert tiny_run.ceiling > 0.9


@pytest.mark.timeout(600)
def test_the_run_leaves_an_adapter_that_peft_reads_and_figures_of_every_step(
    tiny_run: Result, tiny_recipe: Recipe
) -> None:
    from safetensors.torch import load_file

    out = Path(tiny_run.out)
    tensors = load_file(str(out / "adapter" / "adapter_model.safetensors"))
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert any(tensor.abs().max() > 0 for name, tensor in tensors.items() if "lora_B" in name)
    assert json.loads((out / "adapter" / "adapter_config.json").read_text())["r"] == tiny_recipe.policy.rank
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "train"]
    assert [row["step"] for row in steps] == list(range(1, tiny_recipe.grpo.steps + 1))
    for name in ("loss", "reward", "valid", "accuracy", "decomposition", "worker_entropy", "steps", "plan_tokens"):
        assert all(math.isfinite(row[name]) for row in steps), name
    every, last = tiny_recipe.eval.every_steps, tiny_recipe.grpo.steps
    assert [row["step"] for row in rows if row["kind"] == "dev"] == list(range(every, last + 1, every))
    assert list((out / "tensorboard").iterdir())
    assert msgspec.json.decode((out / "result.json").read_bytes(), type=Result) == tiny_run


def test_the_run_ends_with_the_same_adapter_as_llama_cpp_loads_it(tiny_run: Result) -> None:
    from transformers import AutoConfig

    out = Path(tiny_run.out)
    assert (tiny_run.gguf, tiny_run.no_gguf) == (str(out / "conductor.gguf"), "")
    assert tiny_run.summary.splitlines()[-1] == f"adapter: {out / 'adapter'}; as GGUF: {out / 'conductor.gguf'}"
    ours = load_adapter(out / "adapter", config=None).pairs
    theirs = load_adapter(Path(tiny_run.gguf), config=AutoConfig.from_pretrained(out / "warm-start" / "base")).pairs
    assert ours.keys() == theirs.keys()
    for layer, (first, second) in ours.items():
        assert torch.equal(theirs[layer][0], first.float()), layer
        assert torch.equal(theirs[layer][1], second.float()), layer


@pytest.mark.timeout(600)
def test_a_run_without_the_package_for_it_ends_well_and_says_what_is_missing(
    tmp_path: Path, tiny_recipe: Recipe, warm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    shutil.copytree(warm_folder, tmp_path / "warm-start")
    result = train(short(tiny_recipe, steps=1), out=tmp_path, quiet=True)
    assert result.finished
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()
    assert (result.gguf, (tmp_path / "conductor.gguf").exists()) == ("", False)
    assert says(result.summary, "GGUF gguf pip install dirigent[train]")


def short(recipe: Recipe, **changes: Any) -> Recipe:
    grpo = msgspec.structs.replace(recipe.grpo, **{"steps": 4, "prompts": 2, "rollouts": 4, **changes})
    warm = msgspec.structs.replace(recipe.warm_start, measure=10)
    evals = msgspec.structs.replace(recipe.eval, n=10, every_steps=100)
    return msgspec.structs.replace(recipe, grpo=grpo, eval=evals, warm_start=warm)


@pytest.mark.timeout(600)
def test_a_collapse_stops_the_run_names_itself_and_keeps_the_checkpoint(
    tmp_path: Path, tiny_recipe: Recipe, warm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Collapse, "update", lambda self, metrics: "stopped: the policy collapsed. Checkpoint kept.")
    shutil.copytree(warm_folder, tmp_path / "warm-start")
    result = train(short(tiny_recipe), out=tmp_path, quiet=True)
    assert (result.step, result.finished) == (1, False)
    assert result.stopped.startswith("stopped: ")
    kept = latest(tmp_path)
    assert kept is not None
    assert load_state(kept[0]).rows.draws >= 1


@pytest.mark.timeout(600)
def test_a_run_ends_by_itself_before_its_time_is_up_and_goes_on_later(
    tmp_path: Path, tiny_recipe: Recipe, warm_folder: Path
) -> None:
    shutil.copytree(warm_folder, tmp_path / "warm-start")
    recipe = short(tiny_recipe, steps=2, scale="floored_std")
    cut = train(recipe, out=tmp_path, seconds=0.0, quiet=True)
    assert (cut.step, cut.stopped) == (1, Saying("stopped: --resume"))
    # The last step is taken, however late it is: there is nothing to go on with.
    done = train(recipe, out=tmp_path, resume=True, seconds=0.0, quiet=True)
    assert (done.step, done.finished, done.stopped) == (2, True, "")


FREE = SimpleNamespace(spending=None)
"""A scorer whose workers cost nothing."""


@pytest.mark.parametrize("limit_s", range(120, 200, 4))
def test_time_is_left_for_a_step_that_is_measured_after_steps_that_are_not(
    limit_s: int, tmp_path: Path, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]

    def measured(*_: Any) -> dict[str, float]:
        now_s[0] += 20.0
        return {"accuracy": 0.5}

    monkeypatch.setattr("dirigent_gym.train.grpo.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr("dirigent_gym.train.grpo.measure", measured)
    recipe = msgspec.structs.replace(tiny_recipe, eval=msgspec.structs.replace(tiny_recipe.eval, every_steps=10))
    stop, progress, rows = Stop(), Progress(tmp_path, steps=48, quiet=True), training_rows(recipe, ())
    watch = Watch(
        recipe, None, FREE, rows=rows, dev=(), ceiling=1.0, progress=progress, stop=stop, deadline=float(limit_s)  # type: ignore[arg-type]
    )  # fmt: skip
    for step in range(1, 48):
        watch.begin_step()
        now_s[0] += 5.0
        watch.end_step(step)
        if stop.reason:
            break
    progress.close()
    assert says(stop.reason, "stopped: --resume")
    assert limit_s - 60.0 < now_s[0] <= limit_s - 5.0


def test_whoever_asks_for_an_end_during_the_last_step_has_it(
    tmp_path: Path, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dirigent_gym.train.grpo.measure", lambda *_: {})
    stop, progress = Stop("stopped: interrupted. Go on with --resume"), Progress(tmp_path, steps=48, quiet=True)
    rows = training_rows(tiny_recipe, ())
    watch = Watch(
        tiny_recipe, None, FREE, rows=rows, dev=(), ceiling=1.0, progress=progress, stop=stop  # type: ignore[arg-type]
    )  # fmt: skip
    watch.end_step(47)
    assert stop.reason
    watch.end_step(48)
    assert not stop.reason
    progress.close()


@pytest.mark.timeout(600)
def test_the_papers_recipe_runs_dry_on_a_tiny_model_and_scripted_workers(tmp_path: Path) -> None:
    """All weights, the long prompt, the `lists` dialect, scaling by the group, tasks from a file."""
    for name in ("train", "dev"):
        tasks = skill_tasks(name, 12, skills=("roman", "code"), seed=1)  # type: ignore[arg-type]
        lines = b"\n".join(msgspec.json.encode(msgspec.structs.replace(task, sketch=None)) for task in tasks)
        (tmp_path / f"{name}.jsonl").write_bytes(lines)
    recipe = load_conductor(RECIPES.parents[1] / "recipes" / "paper-7b.toml")
    tasks_settings = msgspec.structs.replace(
        recipe.tasks, file=str(tmp_path / "train.jsonl"), dev_file=str(tmp_path / "dev.jsonl")
    )
    recipe = msgspec.structs.replace(
        recipe,
        base=msgspec.structs.replace(recipe.base, model="", tiny=TinySettings(hidden=32, max_tokens=4096, steps=2)),
        tasks=tasks_settings,
        warm_start=msgspec.structs.replace(recipe.warm_start, lessons="right_plans", n=30, batch=4, measure=2),
        grpo=msgspec.structs.replace(
            recipe.grpo, steps=2, prompts=2, rollouts=4, max_completion_tokens=12, sampler="torch"
        ),
        eval=msgspec.structs.replace(recipe.eval, n=2, every_steps=2),
    )
    workers = {name: Scripted("7", name=name) for name in ("gemini", "claude", "gpt", "qwen", "gemma", "r1", "q3")}
    result = train(recipe, out=tmp_path / "run", quiet=True, workers=workers)
    assert result.finished
    assert (tmp_path / "run" / "adapter" / "model.safetensors").exists()
    assert says(result.summary, "GGUF")
    assert len(read_tasks(tmp_path / "train.jsonl")) == 12


@pytest.mark.timeout(600)
def test_policy_and_specialists_share_one_base_over_the_whole_gym(tmp_path: Path) -> None:
    """The path of the shipped conductor, with random weights: adapters as workers, warm start, curriculum, cost."""
    texts = ["Plan in at most 5 lines: subtask | worker | reads"] * 3
    model, tokenizer = tiny_base(texts, settings=TinySettings(hidden=32, heads=2, words=300, max_tokens=4096), seed=1)
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    for specialist in RL_ROSTER:
        model = with_adapter(model, specialist.name, SftSettings(rank=2, alpha=4))
        save_adapter(model, specialist.name, tmp_path / "adapters")
    recipe = load_conductor(RECIPES / "gym-gpu.toml")
    recipe = msgspec.structs.replace(
        short(recipe, steps=2, prompts=4, rollouts=4, minibatch_rows=8, max_completion_tokens=8, save_every_steps=1),
        base=BaseSettings(model=str(tmp_path / "base")),
        workers=WorkerSettings("adapters", adapters=(str(tmp_path / "adapters"),)),
        warm_start=msgspec.structs.replace(recipe.warm_start, n=40, steps=2, batch=8, measure=4),
    )
    result = train(recipe, out=tmp_path / "run", quiet=True)
    assert result.finished
    assert result.ceiling < 0.1, "by table the right plans succeed; these workers know nothing"
    assert (tmp_path / "run" / "warm-start" / "policy" / "adapter_model.safetensors").exists()
    kept = latest(tmp_path / "run")
    assert kept is not None
    assert load_state(kept[0]).rows.kinds


ONLY_AN_ADAPTER_SAYS = "MMM"
"""An answer that no table of the gym has."""


@pytest.mark.timeout(600)
def test_a_policy_learns_whom_to_ask_from_what_adapters_say(
    tmp_path: Path, tiny_recipe: Recipe, warm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every question wants what one adapter says to whatever it is asked, and no other worker ever says."""
    says = {"roman": ONLY_AN_ADAPTER_SAYS, "code": "unknown"}
    model, tokenizer = open_base(BaseSettings(model=str(warm_folder / "base")))
    tasks = skill_tasks("train", 200, skills=tiny_recipe.tasks.skills, seed=1)
    subtasks = [Message("user", step.subtask) for task in tasks if task.sketch for step in task.sketch.steps]
    for name in (specialist.name for specialist in RL_ROSTER):
        settings = SftSettings(rank=4, alpha=8, learning_rate=1e-2, steps=40 if name in says else 0, batch=16)
        pairs = [Pair((subtask,), says.get(name, "unknown")) for subtask in subtasks]
        model = fit_adapter(model, tokenizer, pairs, name=name, settings=settings, report=lambda step, loss: None)
        save_adapter(model, name, tmp_path / "adapters")

    def asked(*given: Any, **named: Any) -> list[Task]:
        tasks = skill_tasks(*given, **named)
        return [msgspec.structs.replace(task, answer=ONLY_AN_ADAPTER_SAYS, grader="word") for task in tasks]

    opened: list[TorchWorkers] = []

    def loaded(*given: Any, **named: Any) -> TorchWorkers:
        opened.append(load_workers(*given, **named))
        return opened[-1]

    monkeypatch.setattr("dirigent_gym.train.rows.skill_tasks", asked)
    monkeypatch.setattr("dirigent_gym.train.scorer.load_workers", loaded)
    short_run = short(tiny_recipe, steps=8, prompts=8, rollouts=8, refills=0)
    recipe = msgspec.structs.replace(
        short_run,
        base=BaseSettings(model=str(warm_folder / "base")),
        workers=WorkerSettings("adapters", adapters=(str(tmp_path / "adapters"),)),
        warm_start=msgspec.structs.replace(short_run.warm_start, measure=40),
        eval=msgspec.structs.replace(short_run.eval, n=40, every_steps=8),
    )
    result = train(recipe, out=tmp_path / "run", quiet=True)
    (workers,) = opened
    assert workers.take_counts().rows >= 100
    assert result.start["accuracy_greedy"] > 0.1, "nobody else gives that answer"
    assert result.dev["accuracy"] >= result.start["accuracy_greedy"] + 0.2
