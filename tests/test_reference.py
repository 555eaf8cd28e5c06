"""The reference pages are what the code says."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gym.benchmarks.claims_table import DRAWN

from dirigent.config.file import Config, Profile, StoreConfig
from dirigent.config.worker_config import WorkerConfig
from tests.facts import says

GENERATE = Path(__file__).parent.parent / "docs" / "generate.py"


@pytest.fixture(scope="module")
def generate() -> dict[str, Any]:
    return runpy.run_path(str(GENERATE), run_name="generate")


def test_the_page_is_current(generate: dict[str, Any]) -> None:
    written = generate["PAGE"].read_text(encoding="utf-8")
    assert written == generate["page"](), "run  python docs/generate.py"


def test_the_page_of_commands_is_current(generate: dict[str, Any]) -> None:
    written = generate["COMMANDS_PAGE"].read_text(encoding="utf-8")
    assert written == generate["commands_page"](), "run  python docs/generate.py"
    assert "## dirigent traces replay" in written


def test_every_command_shows_an_example(generate: dict[str, Any]) -> None:
    sections = generate["commands_page"]().split("\n## ")[1:]
    assert [section.splitlines()[0] for section in sections if "Example" not in section] == []


@pytest.mark.parametrize("table", [Config, WorkerConfig, Profile, StoreConfig], ids=lambda t: t.__name__)
def test_every_key_has_a_description(generate: dict[str, Any], table: type[msgspec.Struct]) -> None:
    said = generate["_docstrings"](table)
    assert [name for name in table.__struct_fields__ if not said.get(name)] == []


CLAIMS = [
    {"name": "share of the ceiling", "value": 0.95, "interval": [0.9, 0.98], "n": 40, "must": 0.9},
    {"name": "depth 3, share of its ceiling", "value": 0.5, "interval": [0.4, 0.6], "n": 10, "must": 0.8},
    {"name": "(d) shuffled reward, gain", "unit": "points", "must": 0.03, "at_most": True},
]


def test_the_page_on_learning_is_current(generate: dict[str, Any]) -> None:
    text, drawings = generate["learning_page"](generate["RESULTS"])
    assert generate["LEARNING_PAGE"].read_text(encoding="utf-8") == text, "run  python docs/generate.py"
    for name, drawn in drawings.items():
        assert (generate["RESULTS"] / name).read_text(encoding="utf-8") == drawn


def test_a_page_without_results_says_that_nothing_was_measured(generate: dict[str, Any], tmp_path: Path) -> None:
    text, drawings = generate["learning_page"](tmp_path)
    places = re.findall(r"<!-- (\w+) -->\n(.*?)<!-- /\1 -->", text, re.DOTALL)
    assert [name for name, inside in places if inside.strip() and "|" not in inside] == [
        "claims",
        "curves",
        "shortfalls",
    ]
    assert drawings == {}


def test_results_fill_the_page_with_the_table_the_curves_and_missed_bounds(
    generate: dict[str, Any], tmp_path: Path
) -> None:
    made = {"table": CLAIMS, "workers": "exact", "seeds": 3, "commit": "abc", "date": "2026-11-15"}
    (tmp_path / "claims.json").write_text(json.dumps(made | {"sizes": {"test": 1000}}))
    figures = {"valid": 1.0, "steps": 1.5, "worker_entropy": 0.9, "steps_2": 0.4, "plan_tokens": 53.0, "cost": 4.0}
    steps = [{"kind": "train", "step": i} | figures for i in (1, 2)]
    (tmp_path / "claims-metrics-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    text, drawings = generate["learning_page"](tmp_path)
    assert says(text, "3 1,000 `abc`")
    assert re.search(r"\| share of the ceiling \| 95\.0% \| 90\.0%.* 98\.0% \| 40 \| ≥ 90\.0% \|", text)
    missed = text.partition("<!-- shortfalls -->")[2]
    assert "- **depth 3, share of its ceiling**" in missed
    assert "(d) shuffled reward, gain" in missed
    assert list(drawings) == [
        "curves-what-is-right-about-plans.svg",
        "curves-steps.svg",
        "curves-variety.svg",
        "curves-plans-by-number-of-steps.svg",
        "curves-tokens-and-cost.svg",
    ]
    assert all(f"](results/{name})" in text for name in drawings)
    assert says(drawings["curves-tokens-and-cost.svg"], "5.30 4.00")


def test_runs_that_were_cut_short_are_named_above_their_table(generate: dict[str, Any], tmp_path: Path) -> None:
    made = {"table": CLAIMS, "workers": "exact", "seeds": 3, "commit": "abc", "date": "2026-11-15"}
    made |= {"sizes": {"test": 1000}, "cut": {"conductor 2": "347 of 360 updates"}}
    (tmp_path / "claims.json").write_text(json.dumps(made))
    assert says(generate["learning_page"](tmp_path)[0], "2026-11-15 conductor 2 347 360")


WATCHED = ("valid", "accuracy_given_valid", "plan_tokens", "cost", "routing_other_names", "zero_variance_groups")
HISTOGRAM = tuple(f"steps_{n}" for n in range(1, 6))


def test_every_figure_that_is_drawn_is_kept_and_the_kept_run_has_it(generate: dict[str, Any]) -> None:
    drawn = {name for figures in generate["CURVES"].values() for name in figures}
    assert drawn >= {*WATCHED, *HISTOGRAM}
    assert drawn == set(DRAWN) - {"kind", "step"}
    kept = [json.loads(line) for line in (generate["RESULTS"] / "claims-metrics-1.jsonl").read_text().splitlines()]
    assert drawn == {name for row in kept for name in row} - {"kind", "step"}
    assert [row["step"] for row in kept] == list(range(1, len(kept) + 1))


@pytest.fixture
def own_pages(generate: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of docs/, with the two pages that are written anew between their marks, and a small result."""
    for name in ("PAGE", "COMMANDS_PAGE", "API_PAGE", "LEARNING_PAGE", "BASELINES_PAGE", "RESULTS"):
        own = tmp_path / generate[name].relative_to(GENERATE.parent)
        monkeypatch.setitem(generate["main"].__globals__, name, own)
        own.parent.mkdir(exist_ok=True)
    for name in ("API_PAGE", "LEARNING_PAGE", "BASELINES_PAGE"):
        (tmp_path / generate[name].name).write_bytes((GENERATE.parent / generate[name].name).read_bytes())
    first_page = tmp_path / "README.md"
    first_page.write_text("Steps: <!-- = .1 claims-metrics-1.jsonl/0/steps -->1.5<!-- = -->", encoding="utf-8")
    monkeypatch.setitem(generate["main"].__globals__, "PAGES_WITH_FIGURES", (first_page,))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "claims-metrics-1.jsonl").write_text('{"kind": "train", "step": 1, "steps": 1.5}\n')
    return tmp_path


PAGES = (
    "README.md",
    "api.md",
    "baselines.md",
    "how-it-learns.md",
    "reference/cli.md",
    "reference/configuration.md",
    "results/curves-steps.svg",
)


def test_a_stale_page_fails_the_check(generate: dict[str, Any], own_pages: Path) -> None:
    assert generate["main"](["--check"]) == 1
    assert generate["main"]([]) == 0
    assert generate["main"](["--check"]) == 0
    for name in PAGES:
        page = own_pages / name
        written = page.read_text(encoding="utf-8")
        mark = "<!-- /" if "<!-- /" in written else "<!-- = -->"
        stale = written.replace(mark, f"old\n{mark}", 1)
        page.write_text(stale if stale != written else "old", encoding="utf-8")
        assert generate["main"](["--check"]) == 1, name
        page.write_text(written, encoding="utf-8")
    assert generate["main"](["--check"]) == 0


def test_pages_are_written_in_place_and_nowhere_else(generate: dict[str, Any], own_pages: Path) -> None:
    theirs = [path for name in PAGES if (path := GENERATE.parent / name).exists()]
    before = [path.stat().st_mtime_ns for path in theirs]
    assert generate["main"]([]) == 0
    written = {str(path.relative_to(own_pages)) for path in own_pages.rglob("*") if path.is_file()}
    assert written == {*PAGES, "results/claims-metrics-1.jsonl"}
    assert [path.stat().st_mtime_ns for path in theirs] == before
