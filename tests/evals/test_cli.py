"""`dirigent eval` as people and programs call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dirigent.cli import app, progress
from tests.facts import says

QUICK = ("eval", "--limit", "12", "--calibration", "12")


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, [*QUICK, *arguments])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_a_comparison_prints_a_table_and_writes_json_and_markdown(tmp_path: Path) -> None:
    out = tmp_path / "reports" / "r.json"
    table, progress = run("--planners", "best,oracle,ceiling,random", "--seed", "3", "--out", str(out))
    assert says(table.splitlines()[0], "gym test 12 3–8 seed 3")
    assert "verdict: " in table
    assert "best: right" in progress
    report = json.loads(out.read_text())
    assert list(report["planners"]) == ["best", "oracle", "ceiling", "random"]
    assert report["seed"] == 3
    assert report["recipe"]["planners"] == ["best", "oracle", "ceiling", "random"]
    assert out.with_suffix(".md").read_text().startswith("# gym test")
    assert out.with_suffix(".jsonl").exists()


def test_json_is_the_report_and_nothing_else_on_stdout(tmp_path: Path) -> None:
    printed, _ = run("--planners", "random", "--out", str(tmp_path / "r.json"), "--json")
    assert json.loads(printed) == json.loads((tmp_path / "r.json").read_text())


def test_resuming_continues_and_may_add_a_planner(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "r.json"))
    run("--planners", "random", *out)
    _, progress = run("--planners", "random,right", "--resume", *out)
    assert says(progress, "12")


def test_resuming_with_other_questions_is_refused(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "r.json"))
    run("--planners", "random", *out)
    _, said = run("--planners", "random", "--seed", "2", "--resume", *out, code=2)
    assert says(said, "seed '1' '2'")


def test_the_default_path_is_named_after_the_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("--planners", "random")
    assert (tmp_path / "reports" / "gym-test-1.json").exists()


def test_a_cost_cap_stops_the_evaluation_and_is_reported(tmp_path: Path) -> None:
    table, said = run("--planners", "random", "--max-cost", "0", "--out", str(tmp_path / "r.json"), code=1)
    assert says(said, "$0")
    assert "incomplete" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tasks", "gim"), "gim gym"),
        (("--split", "train"), "train"),
        (("--cards", "heldout"), "heldout held_out"),
        (("--planners", "bset"), "bset best"),
        (("--planners", "conductor", "--adapters", "nowhere"), "nowhere conductor"),
        (("--workers", "local", "--adapters", "nowhere"), "nowhere facts letters"),
        (("--out", "reports/r.jsonl"), ".json"),
        (("--limit", "0"), "limit 1 0"),
    ],
)
def test_an_impossible_evaluation_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    _, said = run("--out", str(tmp_path / "r.json"), *arguments, code=2)
    assert says(said, message)
    assert not (tmp_path / "r.json").exists()


def test_traces_are_kept_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIRIGENT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    run("--planners", "random", "--traces", "--out", str(tmp_path / "r.json"))
    listed = CliRunner().invoke(app, ["traces", "list", "--json"])
    assert listed.exit_code == 0, listed.output
    line = json.loads((tmp_path / "r.jsonl").read_text().splitlines()[-1])
    assert line["trace_id"][:8] in listed.stdout


def test_without_a_terminal_a_slow_planners_progress_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    lines = progress._Lines(["best"])
    tally, quiet = progress._Tally("best", 4), progress._Tally("way: 1 guess", 4)
    for _ in range(4):
        tally.done += 1
        quiet.done += 1
        lines.show(tally)
        lines.show(quiet)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition("  ")[0] for line in said[:3]] == [f"best: {n} of 4" for n in (1, 2, 3)]
    assert len(said) == 4
    assert said[3].startswith("best: right")
