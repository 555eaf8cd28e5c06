"""One sandbox for each test, not yet attacked; skipped by name if bubblewrap is missing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.programs import need

from dirigent.sandbox import Sandbox, open_untested


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    need("bwrap")
    async with open_untested() as opened:
        yield opened
