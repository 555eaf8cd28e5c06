"""Tests on question sets of others, which are not in the repository.

They are marked `datasets` and left out of a plain run:

    make test-data DATA=FOLDER                             the folder holds the sets as gzipped JSON lines
    DATA=FOLDER pytest -m datasets tests/datasets          the same by hand; without DATA they are skipped
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.programs import need

from dirigent.sandbox import Sandbox, open_untested


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "datasets: needs question sets of others; make test-data DATA=FOLDER")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "datasets" in (config.option.markexpr or ""):
        return
    left_out = [item for item in items if item.get_closest_marker("datasets")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def data() -> Path:
    """The folder that DATA names."""
    if not (named := os.environ.get("DATA", "")):
        pytest.skip("needs question sets of others: make test-data DATA=FOLDER")
    folder = Path(named)
    # A folder that was named and is not there is a mistake, not a reason to skip.
    assert folder.is_dir(), f"DATA={named} is no folder"
    return folder


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    need("bwrap")
    async with open_untested() as opened:
        yield opened
