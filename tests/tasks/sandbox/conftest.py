"""One sandbox for each test, not yet attacked; skipped by name where bubblewrap is missing."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator

import pytest

from dirigent.tasks.sandbox import Sandbox, open_untested


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    need_bubblewrap()
    async with open_untested() as opened:
        yield opened


def need_bubblewrap() -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("needs bwrap: make system-deps")
