"""GRPO: groups that teach nothing are replaced, faults are nobody's, and a tiny run learns."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from tests.train.llamas import small_llama

from dirigent.errors import WorkerError
from dirigent.messages import Message, Observe, Reply, Request, ignore
from dirigent.tasks.gym.specialists import RL_ROSTER, find_specialist
from dirigent.tasks.task import Task
from dirigent.train.adapters import load_adapter
from dirigent.train.checkpoint import latest
from dirigent.train.dataset import Row
from dirigent.train.decode import Sample
from dirigent.train.grpo import Stop, Watch, load_state
from dirigent.train.metrics import Collapse
from dirigent.train.policy import Policy, Written, open_base
from dirigent.train.progress import Progress, duration, progress_line
from dirigent.train.recipe import BaseSettings, Recipe, TinySettings, WorkerSettings, load_conductor
from dirigent.train.reward import Scored
from dirigent.train.rollouts import Rollouts, scale_at, step_seed
from dirigent.train.rows import SkillRows, read_tasks, skill_tasks, training_rows
from dirigent.train.run import Result, train
from dirigent.train.scorer import Scorer, open_scorer
from dirigent.train.sft import Pair, SftSettings, fit_adapter, save_adapter, with_adapter
from dirigent.train.tiny import tiny_base
from dirigent.train.trainer import REFERENCE_ADAPTER, measures_reference, shuffled_groups, trainer_arguments
from dirigent.train.warmstart import prepare
from dirigent.train.workers import ExactWorkers, TorchWorkers, load_workers
from dirigent.worker import Worker, WorkerInfo
from dirigent.workers.scripted import Scripted

RECIPES = Path(__file__).parents[2] / "recipes"

# --- rollouts ---


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
        return [Scored(True, bool(i % 2), float(i % 2), answer=row.task.answer) for i, row in enumerate(rows)]

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


# --- several updates for each draw ---


def test_the_trainer_counts_updates_where_a_recipe_counts_draws(tiny_recipe: Recipe, tmp_path: Path) -> None:
    grpo = msgspec.structs.replace(
        tiny_recipe.grpo, steps=50, prompts=16, rollouts=8, minibatch_rows=16, save_every_steps=5, warmup=0.1
    )

    def arguments(updates: int) -> Any:
        settings = msgspec.structs.replace(grpo, updates=updates)
        return trainer_arguments(msgspec.structs.replace(tiny_recipe, grpo=settings), out=tmp_path, processes=1)

    one, four = arguments(1), arguments(4)
    assert (one.gradient_accumulation_steps, four.gradient_accumulation_steps) == (8, 2)
    assert one.steps_per_generation == four.steps_per_generation == 8
    assert one.generation_batch_size == four.generation_batch_size == 128
    for name, draws in (("max_steps", 50), ("warmup_steps", 5), ("save_steps", 5), ("logging_steps", 1)):
        assert (getattr(one, name), getattr(four, name)) == (draws, 4 * draws), name


def test_a_draw_is_shuffled_by_groups() -> None:
    columns = {
        "prompt_ids": torch.arange(24).repeat(2, 1).T,
        "advantages": torch.arange(24.0),
        "tokens": torch.tensor(7),
    }
    torch.manual_seed(1)
    shuffled = shuffled_groups(columns, size=4)
    order = shuffled["advantages"].tolist()
    groups = [order[i : i + 4] for i in range(0, 24, 4)]
    assert all(group == list(range(int(group[0]), int(group[0]) + 4)) for group in groups)
    assert sorted(order) == list(range(24)) != order
    assert shuffled["prompt_ids"].tolist() == [[row, row] for row in order]
    assert shuffled["tokens"] == 7


def test_a_gradient_that_was_no_number_is_told_after_the_draws_last_update() -> None:
    watch = SimpleNamespace(rollouts=SimpleNamespace(metrics={}))
    model = torch.nn.Linear(2, 2)
    for gradient in (math.nan, 1.0):
        model.weight.grad = torch.full_like(model.weight, gradient)
        Watch.check_gradients(watch, model)  # type: ignore[arg-type]
    assert watch.rollouts.metrics == {"bad_gradients": 1.0}


# --- whole runs ---


@pytest.mark.timeout(600)
def test_entropy_is_rewarded_only_where_a_recipe_sets_a_target(tiny_recipe: Recipe, tmp_path: Path) -> None:
    grpo = msgspec.structs.replace(tiny_recipe.grpo, entropy_target=0.1, entropy_step=0.001, entropy_most=0.02)
    wanted = trainer_arguments(msgspec.structs.replace(tiny_recipe, grpo=grpo), out=tmp_path, processes=1)
    assert wanted.use_adaptive_entropy
    assert (wanted.entropy_target, wanted.entropy_coef_delta, wanted.entropy_coef_max) == (0.1, 0.001, 0.02)
    unwanted = trainer_arguments(tiny_recipe, out=tmp_path, processes=1)
    assert not unwanted.use_adaptive_entropy
    assert unwanted.entropy_coef == 0.0


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf])
def test_one_gradient_that_is_no_number_takes_them_all_away_and_the_largest_numbers_none(bad: float | None) -> None:
    model = torch.nn.ModuleList([torch.nn.Linear(3, 4), torch.nn.Linear(5, 2), torch.nn.Linear(2, 2)])
    for parameter in list(model.parameters())[:-1]:  # the last has none
        parameter.grad = torch.full_like(parameter, torch.finfo(torch.float32).max)
    if bad is not None:
        model[1].weight.grad[1, 3] = bad
    watch = SimpleNamespace(rollouts=SimpleNamespace(metrics={}))
    Watch.check_gradients(watch, model)  # type: ignore[arg-type]
    assert watch.rollouts.metrics["bad_gradients"] == float(bad is not None)
    left = {float(p.grad.max()) for p in model.parameters() if p.grad is not None}
    assert left == (set() if bad is not None else {torch.finfo(torch.float32).max})


def test_an_update_with_a_gradient_that_is_no_number_moves_nothing_though_the_optimiser_remembers_others() -> None:
    model, watch = torch.nn.Linear(2, 2), SimpleNamespace(rollouts=SimpleNamespace(metrics={}))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
    weights = []
    for gradient in (1.0, math.nan, 1.0):
        model.weight.grad = torch.full_like(model.weight, gradient)
        Watch.check_gradients(watch, model)  # type: ignore[arg-type]
        optimiser.step()
        weights.append(model.weight.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])


def test_a_step_without_any_gradient_is_no_bad_one() -> None:
    watch = SimpleNamespace(rollouts=SimpleNamespace(metrics={}))
    Watch.check_gradients(watch, torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    assert watch.rollouts.metrics == {"bad_gradients": 0.0}


def test_only_passes_of_the_reference_that_teach_nothing_count_as_its_own() -> None:
    model = with_adapter(small_llama(seed=1), "default", SftSettings(rank=4))
    assert not measures_reference(model.get_base_model().model)
    with torch.no_grad():
        assert not measures_reference(model)
        model = with_adapter(model, REFERENCE_ADAPTER, SftSettings(rank=4))
        assert measures_reference(model)
        assert not measures_reference(small_llama(seed=1))
    assert not measures_reference(model)


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
    ours = load_adapter(out / "adapter").pairs
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
    assert result.summary.endswith("; no GGUF: the package gguf is missing; pip install 'dirigent[train]'")


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
    assert result.stopped == "stopped: the policy collapsed. Checkpoint kept."
    kept = latest(tmp_path)
    assert kept is not None
    assert load_state(kept[0]).rows.draws >= 1


def test_advantages_are_scaled_only_once_cost_counts_where_the_recipe_says_so() -> None:
    assert [scale_at("with_cost", weight) for weight in (0.0, 0.01)] == ["none", "floored_std"]
    assert [scale_at(scale, 0.2) for scale in ("none", "floored_std", "group")] == ["none", "floored_std", "group"]


@pytest.mark.timeout(600)
def test_a_run_ends_by_itself_before_its_time_is_up_and_goes_on_later(
    tmp_path: Path, tiny_recipe: Recipe, warm_folder: Path
) -> None:
    shutil.copytree(warm_folder, tmp_path / "warm-start")
    recipe = short(tiny_recipe, steps=2, scale="floored_std")
    cut = train(recipe, out=tmp_path, seconds=0.0, quiet=True)
    assert (cut.step, cut.stopped) == (1, "stopped: out of time. Go on with --resume")
    # The last step is taken, however late it is: there is nothing to go on with.
    done = train(recipe, out=tmp_path, resume=True, seconds=0.0, quiet=True)
    assert (done.step, done.finished, done.stopped) == (2, True, "")


@pytest.mark.parametrize("limit_s", range(120, 200, 4))
def test_time_is_left_for_a_step_that_is_measured_after_steps_that_are_not(
    limit_s: int, tmp_path: Path, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]

    def measured(*_: Any) -> dict[str, float]:
        now_s[0] += 20.0
        return {"accuracy": 0.5}

    monkeypatch.setattr("dirigent.train.grpo.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr("dirigent.train.grpo.measure", measured)
    recipe = msgspec.structs.replace(tiny_recipe, eval=msgspec.structs.replace(tiny_recipe.eval, every_steps=10))
    stop, progress, rows = Stop(), Progress(tmp_path, steps=48, quiet=True), training_rows(recipe, ())
    watch = Watch(
        recipe, None, None, rows=rows, dev=(), ceiling=1.0, progress=progress, stop=stop, deadline=float(limit_s)  # type: ignore[arg-type]
    )  # fmt: skip
    for step in range(1, 48):
        watch.begin_step()
        now_s[0] += 5.0
        watch.end_step(step)
        if stop.reason:
            break
    progress.close()
    assert stop.reason == "stopped: out of time. Go on with --resume"
    assert limit_s - 60.0 < now_s[0] <= limit_s - 5.0


def test_whoever_asks_for_an_end_during_the_last_step_has_it(
    tmp_path: Path, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dirigent.train.grpo.measure", lambda *_: {})
    stop, progress = Stop("stopped: interrupted. Go on with --resume"), Progress(tmp_path, steps=48, quiet=True)
    rows = training_rows(tiny_recipe, ())
    watch = Watch(
        tiny_recipe, None, None, rows=rows, dev=(), ceiling=1.0, progress=progress, stop=stop  # type: ignore[arg-type]
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
    recipe = load_conductor(RECIPES / "paper-7b.toml")
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
    assert result.summary.endswith("no GGUF: all weights were trained, and only adapters are exported")
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

    monkeypatch.setattr("dirigent.train.rows.skill_tasks", asked)
    monkeypatch.setattr("dirigent.train.scorer.load_workers", loaded)
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


# --- what is shown ---


def test_the_progress_line_reads_as_designed() -> None:
    figures = {
        "reward": 0.81,
        "accuracy": 0.79,
        "valid": 1.0,
        "steps": 2.1,
        "steps_needed": 2.0,
        "worker_entropy": 0.93,
        "step_seconds": 2.4,
    }
    line = progress_line(125, 250, figures, last_reward=0.79, seconds_left=400)
    assert line == (
        "step 125/250  ████████░░░░░░░░  reward 0.81 (+0.02)  right 79%  valid 100%  steps 2.1/2.0  "
        "worker entropy 0.93  2.4 s/step  left 6 m 40 s"
    )
    assert progress_line(1, 4, {}, last_reward=None, seconds_left=3) == "step 1/4  ████░░░░░░░░░░░░  left 3 s"
    assert duration(3900) == "1 h 5 m"


def test_progress_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for step in (1, 2):
        progress = Progress(tmp_path, steps=2, quiet=True)
        progress.record("train", step, {"reward": 0.123456789123})
        progress.close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"kind": "train", "step": step, "reward": 0.12345679} for step in (1, 2)]
