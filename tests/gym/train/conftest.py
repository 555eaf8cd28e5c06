"""The tiny recipe carried out once, and a smaller one whose runs take seconds."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch", reason="needs the extra `train`")
pytest.importorskip("gguf", reason="needs the extra `train`")

from dirigent_gym.train.recipe import Recipe, load_conductor
from dirigent_gym.train.run import Result, train_conductor

RECIPE = Path(__file__).parents[3] / "gym" / "recipes" / "tiny-cpu.toml"


@pytest.fixture(scope="session")
def tiny_recipe() -> Recipe:
    return load_conductor(RECIPE)


@pytest.fixture(scope="session")
def tiny_run(tiny_recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """About a minute and a half on one core."""
    return train_conductor(tiny_recipe, out=tmp_path_factory.mktemp("tiny-cpu"), quiet=True)


@pytest.fixture(scope="session")
def small_recipe(tiny_recipe: Recipe) -> Recipe:
    """Four steps of a model that has learned next to nothing, held near its start."""
    replace = msgspec.structs.replace
    assert tiny_recipe.base.tiny is not None
    return replace(
        tiny_recipe,
        base=replace(tiny_recipe.base, tiny=replace(tiny_recipe.base.tiny, steps=60)),
        policy=replace(tiny_recipe.policy, rank=4),
        warm_start=replace(tiny_recipe.warm_start, n=400, steps=2, measure=6),
        grpo=replace(
            tiny_recipe.grpo,
            steps=4,
            prompts=4,
            rollouts=4,
            max_completion_tokens=24,
            save_every_steps=2,
            beta=0.05,
            learning_rate=5e-3,
        ),
        eval=replace(tiny_recipe.eval, n=6, every_steps=2),
    )


@pytest.fixture(scope="session")
def small_run(small_recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return train_conductor(small_recipe, out=tmp_path_factory.mktemp("small"), quiet=True)


@pytest.fixture
def started(small_run: Result, tmp_path: Path) -> Path:
    """A folder that holds the small run's warm start and nothing else of it."""
    shutil.copytree(Path(small_run.out) / "warm-start", tmp_path / "run" / "warm-start")
    (tmp_path / "run" / "warm-start" / "start.json").unlink()
    return tmp_path / "run"
