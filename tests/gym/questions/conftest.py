"""Questions of the training split, made once for all tests that compare others with them."""

from __future__ import annotations

import pytest

from dirigent.tasks import Task
from dirigent_gym.questions import generate


@pytest.fixture(scope="session")
def train() -> list[Task]:
    return generate("train", 2_000, seed=1)
