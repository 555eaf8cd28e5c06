"""Measured figures of README.md and of the pages come from docs/results, and nowhere else."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gym.benchmarks import claims_table, elsewhere, must

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), DOCS / "design" / "PLAN.md"]
FIGURES: dict[str, Any] = runpy.run_path(str(DOCS / "figures.py"))
with_figures, UnknownFigure = FIGURES["with_figures"], FIGURES["UnknownFigure"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_figure_of_a_page_is_the_one_of_its_results_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert with_figures(text, DOCS / "results", page=page.name) == text, "run  python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_begins_with_a_mark(page: Path) -> None:
    """Markdown ends a paragraph where a line begins with a comment."""
    assert re.findall(r"(?m)^ *<!-- = .*", page.read_text(encoding="utf-8")) == []


def test_figures_of_the_readme_are_between_marks() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for marked in (r"<!-- = .*?<!-- = -->", r"(?s)<!-- (\S+) -->\n.*?<!-- /\1 -->", r"(?s)```.*?```"):
        text = re.sub(marked, "", text)
    assert re.findall(r"\d+(?:\.\d+)?%", text) == ["95%"]  # of the intervals
    assert re.findall(r"(?<![-\d])\d+\.\d+(?!\+)\b", text) == []


def test_a_place_is_found_by_key_by_index_and_by_name(tmp_path: Path) -> None:
    table = [{"name": "share, of all", "value": 0.875, "interval": [0.8, 0.9251]}]
    (tmp_path / "some.json").write_text(json.dumps({"table": table, "n": 1000}))
    (tmp_path / "rows.jsonl").write_text('{"row": "F1", "done": 350}\n{"row": "F2", "done": 7}\n')
    page = (
        "<!-- = % some/table/share, of all/value -->?<!-- = --> (<!-- = 100 some/table/0/interval -->?<!-- = -->) of "
        "<!-- = , some/n -->?<!-- = -->, <!-- = , rows.jsonl/F2/done -->?<!-- = -->"
    )
    written = re.sub(r"<!-- .*? -->", "", with_figures(page, tmp_path))
    assert written == "87.5% (80.0–92.5) of 1,000, 7"


@pytest.mark.parametrize(
    ("mark", "named"),
    [
        ("% gone/n", "gone.json"),
        ("% some/planners", "'planners'"),
        ("% some/table/7", "'7'"),
        ("percent some/n", "'percent'"),
    ],
)
def test_a_place_without_a_figure_is_an_error_that_names_page_and_place(mark: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text('{"table": [], "n": 1}')
    with pytest.raises(UnknownFigure) as raised:
        with_figures(f"<!-- = {mark} -->?<!-- = -->", tmp_path, page="some-page.md")
    assert named in str(raised.value)
    assert "some-page.md" in str(raised.value)


def test_the_pages_of_claims_are_made_of_the_figures_beside_them() -> None:
    results = DOCS / "results"
    found = msgspec.json.decode((results / "must.json").read_bytes(), type=must.Must)
    assert (results / "must.md").read_text(encoding="utf-8") == must.as_page(found)
    table = claims_table.read_table(results / "claims.json")
    assert (results / "claims.md").read_text(encoding="utf-8") == claims_table.as_page(table)
    other = msgspec.json.decode((results / "elsewhere.json").read_bytes(), type=elsewhere.Elsewhere)
    assert (results / "elsewhere.md").read_text(encoding="utf-8") == elsewhere.as_page(other)
