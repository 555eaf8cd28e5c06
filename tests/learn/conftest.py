"""Training tests compute with one thread: several processes of several threads each would wait for one another."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
