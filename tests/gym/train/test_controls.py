"""The controls: imitation of right rollouts, rewards that say nothing, one adapter from question to answer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.facts import Saying

from dirigent_gym.train.checkpoint import latest
from dirigent_gym.train.direct import DirectResult
from dirigent_gym.train.grpo import Watch, load_state
from dirigent_gym.train.recipe import (
    BaseSettings,
    DirectRecipe,
    GrpoSettings,
    PolicySettings,
    Recipe,
    SecondRoundSettings,
    TinySettings,
)
from dirigent_gym.train.rollouts import Group, Rollouts
from dirigent_gym.train.run import carry_out, train
from dirigent_gym.train.scorer import open_scorer
from dirigent_gym.train.sft import collate, completion_loss
from dirigent_gym.train.shared_prompts import log_probs_and_entropies
from dirigent_gym.train.trainer import only_right_plans_count, what_counts


def short(recipe: Recipe, *, grpo: dict[str, Any], **changes: Any) -> Recipe:
    settings = msgspec.structs.replace(recipe.grpo, **{"steps": 2, "prompts": 4, "rollouts": 4, **grpo})
    warm = msgspec.structs.replace(recipe.warm_start, measure=4)
    evals = msgspec.structs.replace(recipe.eval, n=4, every_steps=100)
    return msgspec.structs.replace(recipe, grpo=settings, eval=evals, warm_start=warm, **changes)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("algorithm", "rows"), [("online_rft", 8), ("online_rft", 1024), ("rft", 8)])
def test_the_gradient_of_rejection_sampling_is_that_of_imitating_what_was_right(
    algorithm: str, rows: int, tmp_path: Path, tiny_recipe: Recipe, warm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing to hold it near its start. Every right plan counts as often as it was drawn, wrong ones never."""
    drawn: list[Group] = []
    cosines: list[float] = []
    read: list[int] = []
    right_ones: list[int] = []
    groups = Rollouts.groups

    def watched(self: Rollouts, *given: Any, **named: Any) -> list[Group]:
        drawn[:] = groups(self, *given, **named)
        return drawn

    def counted(model: Any, ids: torch.Tensor, *given: Any, **named: Any) -> Any:
        read.append(len(ids))
        return log_probs_and_entropies(model, ids, *given, **named)

    def compared(watch: Watch, model: Any) -> None:
        weights = [p for p in model.parameters() if p.requires_grad]
        taken = torch.cat([p.grad.flatten() for p in weights])
        right = [
            (group.prompt, sample.ids)
            for group in drawn
            for sample, one in zip(group.samples, group.scored, strict=True)
            if one.correct
        ]
        assert 0 < len(right) < sum(len(group.samples) for group in drawn)
        right_ones.append(len(right))
        loss = completion_loss(model, *collate(right, pad=watch.policy.tokenizer.pad_token_id, device="cpu"))
        wanted = torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)])
        cosines.append(float(torch.nn.functional.cosine_similarity(taken, wanted, dim=0)))

    monkeypatch.setattr(Rollouts, "groups", watched)
    monkeypatch.setattr(Watch, "check_gradients", compared)
    monkeypatch.setattr("dirigent_gym.train.trainer.log_probs_and_entropies", counted)
    settings = {"prompts": 8, "rollouts": 4, "beta": 0.0, "minibatch_rows": rows}
    shutil.copytree(warm_folder, tmp_path / "warm-start")
    train(short(tiny_recipe, grpo=settings, algorithm=algorithm), out=tmp_path, quiet=True)
    assert cosines == pytest.approx([1.0, 1.0], abs=1e-3)
    passes = max(1, 8 * 4 // rows)
    assert len(read) == 2 * passes
    # The others are not read, but where a pass has no other.
    assert sum(right_ones) <= sum(read) < sum(right_ones) + len(read)


def test_a_plan_that_was_wrong_counts_where_anything_holds_the_policy_or_a_mean_is_over_plans() -> None:
    def counting(**changes: Any) -> bool:
        settings = GrpoSettings(**{"beta": 0.0, "entropy_target": 0.0, "loss": "dapo", **changes})
        return only_right_plans_count(Recipe(name="any", grpo=settings, algorithm="rft"))

    assert counting()
    assert not counting(beta=0.04)
    assert not counting(entropy_target=0.1)
    assert not counting(loss="grpo")
    assert not only_right_plans_count(Recipe(name="any", grpo=GrpoSettings(beta=0.0)))


def test_rows_that_count_nothing_are_left_out_and_one_stays_where_none_counts() -> None:
    columns = {
        "advantages": torch.tensor([0.0, 1.0, 0.0, 1.0]),
        "ids": torch.arange(8).view(4, 2),
        "n": torch.tensor(9),
    }
    left = what_counts(columns)
    assert left["ids"].tolist() == [[2, 3], [6, 7]]
    assert left["n"] == 9
    assert what_counts(columns | {"advantages": torch.zeros(4)})["ids"].tolist() == [[0, 1]]


def weights_of(model: Any) -> list[float]:
    """A figure of every weight that is trained."""
    return [float(weight.detach().double().square().sum()) for weight in model.parameters() if weight.requires_grad]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("algorithm", ["rft", "online_rft"])
def test_rollouts_are_drawn_from_the_start_or_from_what_was_learned_by_then(
    algorithm: str, tmp_path: Path, tiny_recipe: Recipe, warm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second part of a run too, whose policy comes from a checkpoint."""
    written_with: list[list[float]] = []
    updated: list[list[float]] = []
    groups = Rollouts.groups

    def watched(self: Rollouts, *given: Any, **named: Any) -> list[Group]:
        written_with.append(weights_of(self.policy.model))
        return groups(self, *given, **named)

    monkeypatch.setattr(Rollouts, "groups", watched)
    monkeypatch.setattr(Watch, "check_gradients", lambda self, model: updated.append(weights_of(model)))
    shutil.copytree(warm_folder, tmp_path / "warm-start")
    settings = {"steps": 3, "prompts": 8, "rollouts": 4, "save_every_steps": 1}
    recipe = short(tiny_recipe, grpo=settings, algorithm=algorithm)
    assert train(recipe, out=tmp_path, seconds=0.0, quiet=True).step == 1
    assert train(recipe, out=tmp_path, resume=True, quiet=True).finished
    start, *later = updated
    assert start not in later
    assert later[0] != later[1]
    assert written_with == ([start] * 3 if algorithm == "rft" else updated)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("algorithm", ["rft", "online_rft"])
def test_rejection_sampling_runs_over_the_same_rollouts_and_resumes(
    algorithm: str, tmp_path: Path, tiny_recipe: Recipe, warm_folder: Path
) -> None:
    recipe = short(tiny_recipe, grpo={"steps": 3, "save_every_steps": 1, "schedule": "linear"}, algorithm=algorithm)
    results = []
    for name in ("whole", "cut"):
        shutil.copytree(warm_folder, tmp_path / name / "warm-start")
        if name == "cut":
            cut = train(recipe, out=tmp_path / name, seconds=0.0, quiet=True)
            assert (cut.step, cut.stopped) == (1, Saying("stopped: --resume"))
        results.append(train(recipe, out=tmp_path / name, resume=name == "cut", quiet=True))
    assert all(result.finished for result in results)
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    again = [json.loads(line) for line in (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()]
    names = ("step", "learning_rate", "loss", "right_kept")
    figures = [[tuple(r[name] for name in names) for r in part if r["kind"] == "train"] for part in (rows, again)]
    assert figures[0] == figures[1]
    assert [rate for _, rate, *_ in figures[0]] == pytest.approx([2e-3 * left / 3 for left in (3, 2, 1)])
    assert any(0 < right < 1 for *_, right in figures[0])
    assert len(list((tmp_path / "whole").glob("checkpoint-*"))) == recipe.grpo.keep_checkpoints


@pytest.mark.timeout(600)
@pytest.mark.parametrize("control", ["format", "shuffled"])
def test_a_control_changes_the_rewards_that_are_trained_on_and_no_figure(
    control: str, tiny_recipe: Recipe, warm_folder: Path
) -> None:
    from types import SimpleNamespace

    from dirigent_gym.train.rollouts import Rollouts
    from dirigent_gym.train.rows import SkillRows
    from dirigent_gym.train.warmstart import prepare

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
