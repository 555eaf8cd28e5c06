"""The controls: imitation of right rollouts, rewards that say nothing, one adapter from question to answer."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from dirigent.train.checkpoint import latest
from dirigent.train.decode import Sample
from dirigent.train.direct import DirectResult
from dirigent.train.grpo import load_state
from dirigent.train.policy import Policy
from dirigent.train.recipe import (
    BaseSettings,
    DirectRecipe,
    GrpoSettings,
    PolicySettings,
    Recipe,
    SecondRoundSettings,
    TinySettings,
)
from dirigent.train.reward import Scored
from dirigent.train.rft import imitate, rates, right_lessons
from dirigent.train.rollouts import Group
from dirigent.train.run import carry_out, train
from dirigent.train.scorer import open_scorer
from dirigent.train.sft import SftSettings, completion_loss, with_adapter
from dirigent.train.tiny import tiny_base
from dirigent.train.trainer import trainer_arguments


def short(recipe: Recipe, *, grpo: dict[str, Any], **changes: Any) -> Recipe:
    settings = msgspec.structs.replace(recipe.grpo, **{"steps": 2, "prompts": 4, "rollouts": 4, **grpo})
    warm = msgspec.structs.replace(recipe.warm_start, measure=4)
    evals = msgspec.structs.replace(recipe.eval, n=4, every_steps=100)
    return msgspec.structs.replace(recipe, grpo=settings, eval=evals, warm_start=warm, **changes)


def group(*, correct: tuple[bool, ...]) -> Group:
    samples = [Sample([10 + i % 2, 2], [0.0, 0.0]) for i in range(len(correct))]
    return Group([5, 6], samples, [1.0 if c else 0.1 for c in correct], [Scored(True, c, 1.0) for c in correct])


def test_only_right_rollouts_are_imitated_and_equal_ones_once() -> None:
    assert right_lessons([group(correct=(True, False, True, True))]) == [([5, 6], [10, 2]), ([5, 6], [11, 2])]
    assert right_lessons([group(correct=(False, False))]) == []


def test_imitation_makes_what_it_imitates_likelier_however_it_is_divided() -> None:
    torch.set_num_threads(1)
    losses = []
    for rows in (1, 8):
        model, tokenizer = tiny_base(["a b c"], settings=TinySettings(hidden=32, heads=2, words=270), seed=1)
        model = with_adapter(model, "default", SftSettings(rank=4, alpha=8))
        policy = Policy(model, tokenizer, max_completion_tokens=4)
        optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        lessons = [([5, 6, 7], [10, 2]), ([5], [11, 12, 2])]
        taken = [imitate(policy, lessons, optimiser, rows=rows, clip_norm=1.0) for _ in range(8)]
        assert taken[-1] < taken[0] - 0.1
        assert imitate(policy, [], optimiser, rows=rows, clip_norm=1.0) == 0.0
        losses.append(taken[0])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_imitation_takes_up_weights_and_optimiser_where_they_were(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from dirigent.train import rft

    def opened() -> tuple[Policy, torch.optim.Optimizer]:
        model, tokenizer = tiny_base(["a b c"], settings=TinySettings(hidden=32, heads=2, words=270), seed=1)
        return Policy(model, tokenizer, max_completion_tokens=4), torch.optim.AdamW(model.parameters(), lr=1e-2)

    watch: Any = SimpleNamespace(save=lambda folder, step: None)
    policy, optimiser = opened()
    imitate(policy, [([5, 6], [10, 2])], optimiser, rows=1, clip_norm=1.0)
    rft._save(tmp_path, 7, policy, optimiser, watch)
    again, resumed = opened()
    assert rft._load(tmp_path / "checkpoint-7", again, resumed) == 7
    assert resumed.state_dict()["state"]
    for name, weight in again.model.named_parameters():
        assert torch.equal(weight, policy.model.get_parameter(name)), name


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_imitation_has_the_rates_that_grpo_would_have(schedule: Any, tmp_path: Path) -> None:
    from transformers import get_scheduler

    settings = GrpoSettings(steps=10, schedule=schedule, warmup=0.2, learning_rate=4e-4)
    args = trainer_arguments(Recipe("x", grpo=settings), out=tmp_path, processes=1)
    optimiser = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=args.learning_rate)
    led = get_scheduler(args.lr_scheduler_type, optimiser, args.get_warmup_steps(10), args.max_steps)
    rate_at = rates(settings)
    for step in range(10):
        assert rate_at(step) == pytest.approx(led.get_last_lr()[0])
        optimiser.step()
        led.step()
    assert rate_at(1) == pytest.approx(2e-4)


def test_imitation_of_what_has_no_gradient_in_numbers_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny_base(["a b c"], settings=TinySettings(hidden=32, heads=2, words=270), seed=1)
    policy = Policy(model, tokenizer, max_completion_tokens=4)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    imitate(policy, [([5, 6], [10, 2])], optimiser, rows=1, clip_norm=1.0)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    monkeypatch.setattr("dirigent.train.rft.completion_loss", lambda *given: completion_loss(*given) * math.nan)
    assert math.isnan(imitate(policy, [([5, 6], [10, 2])], optimiser, rows=1, clip_norm=1.0))
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.timeout(600)
def test_rejection_sampling_runs_over_the_same_rollouts_and_resumes(
    tmp_path: Path, tiny_recipe: Recipe, warm_folder: Path
) -> None:
    recipe = short(tiny_recipe, grpo={"steps": 3, "save_every_steps": 1, "schedule": "linear"}, algorithm="rft")
    results = []
    for name in ("whole", "cut"):
        shutil.copytree(warm_folder, tmp_path / name / "warm-start")
        if name == "cut":
            cut = train(recipe, out=tmp_path / name, seconds=0.0, quiet=True)
            assert (cut.step, cut.stopped) == (1, "stopped: out of time. Go on with --resume")
        results.append(train(recipe, out=tmp_path / name, resume=name == "cut", quiet=True))
    assert all(result.finished for result in results)
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    again = [json.loads(line) for line in (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()]
    names = ("step", "learning_rate", "loss", "imitated")
    figures = [[tuple(r[name] for name in names) for r in part if r["kind"] == "train"] for part in (rows, again)]
    assert figures[0] == figures[1]
    assert [rate for _, rate, *_ in figures[0]] == pytest.approx([2e-3 * left / 3 for left in (3, 2, 1)])
    assert sum(imitated for *_, imitated in figures[0]) > 0
    assert len(list((tmp_path / "whole").glob("checkpoint-*"))) == recipe.grpo.keep_checkpoints


@pytest.mark.timeout(600)
@pytest.mark.parametrize("control", ["format", "shuffled"])
def test_a_control_changes_the_rewards_that_are_trained_on_and_no_figure(
    control: str, tiny_recipe: Recipe, warm_folder: Path
) -> None:
    from types import SimpleNamespace

    from dirigent.train.rollouts import Rollouts
    from dirigent.train.rows import SkillRows
    from dirigent.train.warmstart import prepare

    policy = prepare(tiny_recipe, None, out=warm_folder.parent, report=lambda step, loss: None)
    trainer = SimpleNamespace(state=SimpleNamespace(global_step=0))
    seen = {}
    for name in ("none", control):
        reward = msgspec.structs.replace(tiny_recipe.reward, control=name)
        recipe = short(tiny_recipe, grpo={"refills": 0}, reward=reward)
        with open_scorer(recipe) as scorer:
            rows = SkillRows(recipe.tasks.skills, seed=1, settings=recipe.rows)
            rollouts = Rollouts(recipe, policy, scorer, rows=rows)
            seen[name] = (rollouts.sample([""] * 64, trainer)["reward"], rollouts.metrics["accuracy"])
    assert seen["none"][1] == seen[control][1]
    assert seen["none"][0] != seen[control][0]
    if control == "format":
        assert set(seen[control][0]) <= {0.0, 1.0}
    else:
        assert sorted(seen[control][0]) == sorted(seen["none"][0])


@pytest.mark.timeout(600)
def test_second_rounds_are_trained_on_among_the_others_and_kept_in_the_checkpoint(
    tmp_path: Path, tiny_recipe: Recipe, warm_folder: Path
) -> None:
    shutil.copytree(warm_folder, tmp_path / "warm-start")
    second = SecondRoundSettings(share=0.5, from_stage=0, every_steps=2, tries=6)
    recipe = short(tiny_recipe, grpo={"max_completion_tokens": 48}, second_round=second)
    result = train(recipe, out=tmp_path, quiet=True)
    assert result.finished
    kept = latest(tmp_path)
    assert kept is not None
    state = load_state(kept[0])
    assert state.second.written_at == 0
    assert all(row.earlier_answer is not None for row in (*state.second.right, *state.second.wrong))


def test_one_adapter_learns_answers_from_questions_and_is_measured_on_held_out_ones(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    recipe = DirectRecipe(
        "direct",
        base=BaseSettings(tiny=TinySettings(hidden=32, layers=1, heads=2, words=400)),
        policy=PolicySettings(rank=4, alpha=8),
        n=60,
        steps=4,
        batch=8,
        measure=20,
        max_answer_tokens=6,
    )
    result = carry_out(recipe, out=tmp_path, quiet=True)
    assert isinstance(result, DirectResult)
    assert result.finished
    assert {"dev", "test", "test_depth_1", "test_depth_4"} <= set(result.accuracy)
    assert result.questions == 32
    assert "32 questions: dev 0.0%" in result.summary
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == 4
    assert msgspec.json.decode((tmp_path / "result.json").read_bytes(), type=DirectResult) == result
