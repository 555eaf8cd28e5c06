"""Programs that `make system-deps` installs; a test that needs a missing one is skipped by name."""

from __future__ import annotations

import shutil

import pytest


def need(program: str) -> str:
    """Return the path of a program, or skip the test if PATH has none of that name."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program}: make system-deps")
    return found
