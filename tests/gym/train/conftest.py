"""The tiny recipe, carried out once for all tests that look at what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dirigent_gym.train.recipe import Recipe, load_conductor
from dirigent_gym.train.run import Result, train

RECIPE = Path(__file__).parents[3] / "gym" / "recipes" / "tiny-cpu.toml"


@pytest.fixture(scope="session")
def tiny_recipe() -> Recipe:
    return load_conductor(RECIPE)


@pytest.fixture(scope="session")
def tiny_run(tiny_recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """About a minute and a half on one core."""
    return train(tiny_recipe, out=tmp_path_factory.mktemp("tiny-cpu"), quiet=True)


@pytest.fixture(scope="session")
def warm_folder(tiny_run: Result) -> Path:
    """The sealed warm start of the tiny run, for runs that want to begin where it began."""
    return Path(tiny_run.out) / "warm-start"
