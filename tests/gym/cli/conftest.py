"""The gym's commands are tested in a folder and a home of their own, as the product's are."""

from __future__ import annotations

from tests.cli.conftest import own_place, run

__all__ = ["own_place", "run"]
