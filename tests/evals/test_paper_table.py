"""The paper's whole table, walked with a stub: with keys, one command gives it."""

from __future__ import annotations

import pytest
from benchmarks.paper_table import as_page, counts_of, dry_run, stopped

from dirigent.evals.costing import Estimate
from dirigent.evals.recipe import EvalRecipe
from tests.programs import need


def test_the_estimate_counts_what_is_left_to_ask() -> None:
    tasks = ("math500", "mmlu", "aime25", "gpqa")
    counts = counts_of(EvalRecipe(tasks=tasks, limit=490, fit=100))
    assert {name: (count.asked, count.fit) for name, count in counts.items()} == {
        "math500": (400, 100),
        "mmlu": (490, 100),
        "aime25": (30, 30),
        "gpqa": (132, 66),
    }


def test_the_page_says_where_the_recipe_stops_before_the_most_is_spent() -> None:
    total = Estimate(calls=10, usual_usd=1000.0, most_usd=4000.0)
    assert stopped(2000.0, total).startswith("The recipe says `max_cost = 2000`, which is below the most: ")
    assert stopped(4000.0, total) == stopped(None, total) == ""


@pytest.mark.system
async def test_every_cell_of_the_papers_table_is_filled_and_its_cost_estimated() -> None:
    need("bwrap")
    found = await dry_run(rows=1, fit=1)
    assert found.figures["short"] == {}
    assert found.figures["whole"] is True
    assert (found.figures["tasks"], found.figures["workers"]) == (7, 7)
    assert found.figures["cells"] == 7 * found.figures["planners"] >= 7 * 25
    assert 100 < found.figures["estimate_usual_usd"] < found.figures["estimate_most_usd"]
    page = as_page(found)
    assert "| conductor |" in page
    assert "| gpqa | 178 | 20 | its terms accepted on the hub, and `HF_TOKEN` |" in page
    assert "`conductor` and `conductor:2` need a trained 7B, which does not ship" in page
    assert "**The conductor's own planning is counted as free**" in page
    assert "**not comparable** with published" in page
    assert found.figures["max_cost_usd"] < found.figures["estimate_most_usd"]
    assert f"The recipe says `max_cost = {found.figures['max_cost_usd']:g}`, which is below the most" in page
    assert f"as {found.figures['prices']} has them for {found.figures['date']}" in page
    assert page.endswith(f"{found.figures['date']}, seed 42.\n")
