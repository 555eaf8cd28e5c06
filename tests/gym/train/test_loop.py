"""A recipe carried out by the product's loop, ended early and resumed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch", reason="needs the extra `train`")
pytest.importorskip("gguf", reason="needs the extra `train`")

from dirigent.errors import ConfigError
from dirigent.learn.base import Base
from dirigent.learn.decoder import Adapter
from dirigent.learn.export import load_adapter
from dirigent_gym.train.loop import loop_settings, train_with_loop
from dirigent_gym.train.recipe import Recipe, load_recipe

RECIPES = Path(__file__).parents[3] / "gym" / "recipes"


def small() -> Recipe:
    recipe = load_recipe(RECIPES / "tiny-cpu.toml", loop="learn")
    assert isinstance(recipe, Recipe)
    assert recipe.base.tiny is not None
    replace = msgspec.structs.replace
    return replace(
        recipe,
        base=replace(recipe.base, tiny=replace(recipe.base.tiny, steps=30)),
        warm_start=replace(recipe.warm_start, n=400, steps=2, measure=6),
        grpo=replace(recipe.grpo, steps=2, prompts=4, rollouts=4, max_completion_tokens=24),
        eval=replace(recipe.eval, n=6, every_steps=2),
    )


def test_a_run_that_ends_early_is_resumed_to_its_end_and_exported(tmp_path: Path) -> None:
    recipe = small()
    begun = train_with_loop(recipe, out=tmp_path, seconds=0.0, quiet=True)
    assert (begun.step, begun.finished) == (0, False)
    assert begun.stopped
    with pytest.raises(ConfigError, match="--resume"):
        train_with_loop(recipe, out=tmp_path, quiet=True)
    done = train_with_loop(recipe, out=tmp_path, resume=True, quiet=True)
    assert (done.step, done.finished, done.stopped) == (2, True, "")
    assert "accuracy" in done.dev
    base = Base.load(tmp_path / "warm-start" / "base", device="cpu")
    peft, gguf = Adapter.load(tmp_path / "adapter", device="cpu"), load_adapter(Path(done.gguf), base=base)
    assert all((peft.b[part] - gguf.b[part]).abs().max() == 0 for part in peft.b)
    changed = msgspec.structs.replace(recipe, grpo=msgspec.structs.replace(recipe.grpo, learning_rate=1e-5))
    with pytest.raises(ConfigError, match=r"grpo\.learning_rate"):
        train_with_loop(changed, out=tmp_path, resume=True, quiet=True)


def test_every_gym_recipe_that_names_the_loop_fits_it() -> None:
    recipes = [load_recipe(path) for path in sorted(RECIPES.glob("*.toml")) if not path.name.startswith("eval-")]
    ours = [recipe for recipe in recipes if isinstance(recipe, Recipe) and recipe.loop == "learn"]
    assert {recipe.name for recipe in ours} >= {"gym-gpu", "gym-language", "control-rft", "control-format"}
    for recipe in ours:
        assert loop_settings(recipe).questions == recipe.grpo.prompts


def test_a_recipe_that_the_loop_does_not_know_is_refused_by_its_setting() -> None:
    with pytest.raises(ConfigError, match=r"workers\.kind"):
        load_recipe(RECIPES / "own-tasks.toml", loop="learn")
    with pytest.raises(ConfigError, match="specialists"):
        load_recipe(RECIPES / "specialists.toml", loop="learn")
