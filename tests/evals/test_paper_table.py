"""The paper's whole table, run with a stub: with keys, one command makes it."""

from __future__ import annotations

import re

import pytest
from benchmarks.paper_table import as_page, counts_of, dry_run, stopped

from dirigent.evals.costing import Estimate
from dirigent.evals.recipe import EvalRecipe
from tests.facts import says
from tests.programs import need


def test_the_estimate_counts_the_questions_left_to_ask() -> None:
    tasks = ("math500", "mmlu", "aime25", "gpqa")
    counts = counts_of(EvalRecipe(tasks=tasks, limit=490, fit=100))
    assert {name: (count.asked, count.fit) for name, count in counts.items()} == {
        "math500": (400, 100),
        "mmlu": (490, 100),
        "aime25": (30, 30),
        "gpqa": (132, 66),
    }


def test_the_page_names_the_recipes_stop_before_the_cap() -> None:
    total = Estimate(calls=10, usual_usd=1000.0, most_usd=4000.0)
    assert "`max_cost = 2000`" in stopped(2000.0, total)
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
    assert re.search(r"\| gpqa \| 178 \| 20 \| .*`HF_TOKEN` \|", page)
    assert says(page, "`conductor` `conductor:2` 7B")
    assert found.figures["max_cost_usd"] < found.figures["estimate_most_usd"]
    assert f"`max_cost = {found.figures['max_cost_usd']:g}`" in page
    assert says(page, f"{found.figures['prices']} {found.figures['date']}")
    assert page.endswith(f"{found.figures['date']}, seed 42.\n")
