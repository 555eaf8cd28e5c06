"""A run's folder: the run that owns it, and the changes of a recipe that `--resume` accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.facts import facts, says

from dirigent.errors import ConfigError
from dirigent_gym.train.folder import SEAL, claim, default_folder, differences, locked, write_durably
from dirigent_gym.train.recipe import BaseSettings, DirectRecipe, GrpoSettings, Recipe

RECIPE = Recipe("run", grpo=GrpoSettings(steps=340, learning_rate=3e-4))


def with_grpo(**changes: Any) -> Recipe:
    return msgspec.structs.replace(RECIPE, grpo=msgspec.structs.replace(RECIPE.grpo, **changes))


def begun(out: Path, recipe: Recipe = RECIPE) -> Path:
    claim(recipe, out, resume=False)
    write_durably(out / "warm-start" / SEAL, b"{}")
    return out


def kept(out: Path) -> Recipe:
    return msgspec.json.decode((out / "recipe.json").read_bytes(), type=Recipe)


def test_a_folder_that_holds_a_run_is_not_begun_anew_by_accident(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(ConfigError, match=facts("--resume")):
        claim(RECIPE, tmp_path, resume=False)
    claim(RECIPE, tmp_path, resume=True)


def test_a_start_that_failed_leaves_the_folder_to_the_recipe_as_it_was_mended(tmp_path: Path) -> None:
    claim(RECIPE, tmp_path, resume=False)
    mended = msgspec.structs.replace(RECIPE, base=BaseSettings(weights="smollm2-360m.gguf"))
    claim(mended, tmp_path, resume=False)
    assert kept(tmp_path) == mended


def test_a_run_may_resume_with_more_steps_another_rate_and_another_name(tmp_path: Path) -> None:
    longer = msgspec.structs.replace(
        with_grpo(steps=464, learning_rate=8e-4, minibatch_rows=512, save_every_steps=2),
        name="other",
        eval=msgspec.structs.replace(RECIPE.eval, every_steps=3, n=7),
    )
    claim(longer, begun(tmp_path), resume=True)
    assert kept(tmp_path) == longer


def test_any_other_change_is_refused_by_name_and_the_recipe_stays(tmp_path: Path) -> None:
    other = msgspec.structs.replace(with_grpo(steps=400, beta=0.1), seed=99)
    with pytest.raises(ConfigError) as raised:
        claim(other, begun(tmp_path), resume=True)
    assert says(str(raised.value), "seed 1 99 grpo.beta 0.04 0.1 --resume grpo.steps")
    assert "steps 340" not in str(raised.value)
    assert kept(tmp_path) == RECIPE


def test_each_seed_has_a_folder_of_its_own() -> None:
    assert default_folder(RECIPE) == Path("runs") / RECIPE.name
    assert default_folder(RECIPE, seed=2) == Path("runs") / f"{RECIPE.name}-seed-2"


def test_a_folder_is_one_launchs_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder):
        with pytest.raises(ConfigError, match=facts("run --out")), locked(folder):
            pytest.fail("two runs would write the same checkpoints")
        with locked(tmp_path / "other"):
            pass
    with locked(folder):
        pass


def test_runs_of_other_kinds_take_no_change_and_no_other_kinds_folder(tmp_path: Path) -> None:
    direct = DirectRecipe("direct")
    claim(direct, tmp_path, resume=False)
    claim(direct, tmp_path, resume=True)
    with pytest.raises(ConfigError, match=facts("learning_rate 0.001 5e-4")):
        claim(msgspec.structs.replace(direct, learning_rate=5e-4), tmp_path, resume=True)
    with pytest.raises(ConfigError, match=facts("recipe.json")):
        claim(RECIPE, tmp_path, resume=True)


def test_differences_name_settings_of_tables_that_one_recipe_lacks() -> None:
    tiny = msgspec.convert({"name": "run", "base": {"tiny": {"hidden": 32}}}, Recipe)
    changed = differences(RECIPE, tiny)
    assert changed["base.tiny.hidden"] == "nothing -> 32"
    assert differences(tiny, tiny) == {}
