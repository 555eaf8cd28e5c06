"""The program that writes docs/results/recorded: short figures as JSON, and pages made from them alone."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks import recorded as program

from dirigent.errors import ConfigError
from dirigent.evals.page import as_html
from dirigent.evals.recorded import RecordedSet, recorded_price, usable_planners
from dirigent.evals.report import Report
from tests.evals.test_recorded import question, rows
from tests.facts import facts, says

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "recorded.json"
ANSWERS, SCORES = "recorded_sums", "scores_of_two"


def quick_planners(questions: RecordedSet) -> list[str]:
    """The planners that need no training of several seconds."""
    return [name for name in usable_planners(questions) if name not in ("routerdc", "smoothie")]


@pytest.fixture
async def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run over two small sets: one of answers, one of scores on two tasks."""
    scores = [
        question(i) | {"task": "odd" if i % 2 else "even", "scores": {"a": float(i % 3 > 0), "b": 0.5}}
        for i in range(20)
    ]
    for name, found in ((ANSWERS, rows(20)), (SCORES, scores)):
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as file:
            file.write("\n".join(json.dumps(row) for row in found))
    monkeypatch.setattr(program, "SETS", (ANSWERS, SCORES))
    monkeypatch.setattr(program, "usable_planners", quick_planners)
    file = tmp_path / "results" / "recorded.json"
    await program.main(tmp_path, file, None)
    return file


def test_a_page_in_markdown_links_a_page_with_plots_for_each_set(out: Path) -> None:
    text = out.with_suffix(".md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([\w-]+\.html)\)", text)
    assert linked == ["recorded-sums.html", "recorded-of-two.html"]
    for name, report in zip(linked, program.read(out), strict=True):
        page = (out.parent / name).read_text(encoding="utf-8")
        assert page == as_html(report)
        assert page.startswith("<!doctype html>")
        assert page.count("<svg") >= 2
        assert says(page, "/ 4")
    assert says(text, "8")


def test_the_json_has_commit_concurrency_and_the_command(out: Path) -> None:
    for found in json.loads(out.read_text()).values():
        assert {"commit", "date", "version"} <= found.keys()
        told = {name: found["recipe"][name] for name in ("concurrency", "limit", "folds", "recipe")}
        assert told == {"concurrency": 8, "limit": "all", "folds": 5, "recipe": "benchmarks/recorded.py"}


async def test_pages_made_again_from_the_json_are_the_same_to_the_letter(out: Path) -> None:
    before = {file.name: file.read_bytes() for file in out.parent.iterdir()}
    assert len(before) == 4
    for name in before.keys() - {out.name}:
        (out.parent / name).unlink()
    await program.main(None, out, None)
    assert {file.name: file.read_bytes() for file in out.parent.iterdir()} == before


def test_fields_left_out_of_the_json_are_empty_or_repeated_elsewhere(out: Path) -> None:
    found = json.loads(out.read_text())
    assert found[ANSWERS]["planners"]["vote"].keys().isdisjoint({"by_kind", "by_depth", "marks", "parallel_fans"})
    assert set(found[SCORES]["by_task"]) == {"odd", "even"}
    assert set(found[SCORES]["capacity"]) == {"all"}
    answers, scores = program.read(out)
    assert answers.planners["vote"].by_kind == {}
    assert answers.planners["best"].versus_best is None
    assert {task: of["best"].n for task, of in scores.by_task.items()} == {"odd": 10, "even": 10}
    assert {example.planner for example in answers.examples} <= {*program.METHODS}


def test_figures_keep_more_digits_than_any_page_shows() -> None:
    kept: Any = program.rounded({"p": 0.123456789, "cost": 0.00407500498, "n": 874, "of": [1 / 3, None, "x"]})
    assert kept == {"p": 0.1234568, "cost": 0.004075005, "n": 874, "of": [0.3333333, None, "x"]}


async def test_a_set_that_is_missing_is_named_before_anything_is_replayed(tmp_path: Path) -> None:
    out = tmp_path / "recorded.json"
    with pytest.raises(ConfigError, match=facts("recorded_zeroeval_gsm8k.jsonl.gz --data 5")):
        await program.main(tmp_path, out, None)
    assert not out.exists()


@pytest.mark.parametrize("content", [None, "{", '{"a": {"planners": {}}}', '{"a": 1}'])
async def test_the_error_for_unreadable_figures_names_the_command(tmp_path: Path, content: str | None) -> None:
    out = tmp_path / "recorded.json"
    if content is not None:
        out.write_text(content)
    with pytest.raises(ConfigError, match=facts("recorded.json --data")):
        await program.main(None, out, None)


def test_the_page_of_results_is_made_of_its_figures_and_names_the_prices_of_now() -> None:
    reports: list[Report] = program.read(RESULTS)
    assert program.page(reports) == RESULTS.with_suffix(".md").read_text(encoding="utf-8")
    assert RESULTS.stat().st_size < 300_000
    for report in reports:
        assert (RESULTS.parent / program.page_name(report, stem=RESULTS.stem)).exists()
        assert report.chosen["prices"] == {name: recorded_price(name)[1] for name in report.prices}
        assert report.prices == {name: recorded_price(name)[0] for name in report.prices}
