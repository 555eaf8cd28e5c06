"""TRL's trainer as a recipe sets it: updates of a draw, entropy, gradients that are no numbers, the reference."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from tests.gym.train.llamas import small_llama

from dirigent_gym.train.grpo import Watch
from dirigent_gym.train.recipe import Recipe
from dirigent_gym.train.sft import SftSettings, with_adapter
from dirigent_gym.train.trainer import REFERENCE_ADAPTER, measures_reference, shuffled_groups, trainer_arguments


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
