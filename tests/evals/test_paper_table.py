"""The paper's whole table, walked with a stub: with keys, one command gives it."""

from __future__ import annotations

import shutil

import pytest
from benchmarks.paper_table import as_page, dry_run


@pytest.mark.system
async def test_every_cell_of_the_papers_table_is_filled_and_its_cost_estimated() -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("needs bwrap: make system-deps")
    found = await dry_run(rows=1, fit=1)
    assert found.figures["short"] == {}
    assert found.figures["whole"] is True
    assert (found.figures["tasks"], found.figures["workers"]) == (7, 7)
    assert found.figures["cells"] == 7 * found.figures["planners"] >= 7 * 25
    assert 100 < found.figures["estimate_usual_usd"] < found.figures["estimate_most_usd"]
    assert "| conductor |" in as_page(found)
