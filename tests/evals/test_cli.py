"""`dirigent eval` as a person or a program calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dirigent.cli import app, progress

QUICK = ("eval", "--limit", "12", "--calibration", "12")


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, [*QUICK, *arguments])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_a_comparison_prints_a_table_and_writes_json_and_markdown(tmp_path: Path) -> None:
    out = tmp_path / "reports" / "r.json"
    table, progress = run("--planners", "best,oracle,ceiling,random", "--seed", "3", "--out", str(out))
    assert table.startswith("gym test · 12 questions · pools of 3–8 · exact workers · seed 3")
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


def test_resuming_goes_on_and_may_add_a_planner(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "r.json"))
    run("--planners", "random", *out)
    _, progress = run("--planners", "random,right", "--resume", *out)
    assert "12 outcomes from before are kept" in progress


def test_resuming_with_other_questions_is_refused(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "r.json"))
    run("--planners", "random", *out)
    _, said = run("--planners", "random", "--seed", "2", "--resume", *out, code=2)
    assert "begun with seed = '1', not '2'" in said


def test_the_default_place_is_named_after_what_was_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("--planners", "random")
    assert (tmp_path / "reports" / "gym-test-1.json").exists()


def test_a_cap_on_cost_stops_and_says_so(tmp_path: Path) -> None:
    table, said = run("--planners", "random", "--max-cost", "0", "--out", str(tmp_path / "r.json"), code=1)
    assert "stopped: the evaluation may cost $0" in said
    assert "incomplete" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tasks", "gim"), 'no family of tasks is called "gim"; did you mean "gym"?'),
        (("--split", "train"), 'no split is called "train"'),
        (("--cards", "heldout"), 'did you mean "held_out"'),
        (("--planners", "bset"), 'did you mean "best"'),
        (("--planners", "conductor", "--adapters", "nowhere"), "nowhere has no adapter for conductor"),
        (("--workers", "local", "--adapters", "nowhere"), "nowhere has no adapter for facts, letters"),
        (("--out", "reports/r.jsonl"), "end it in .json"),
        (("--limit", "0"), "limit must be 1 or more"),
    ],
)
def test_what_cannot_be_evaluated_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    _, said = run("--out", str(tmp_path / "r.json"), *arguments, code=2)
    assert message in said
    assert not (tmp_path / "r.json").exists()


def test_traces_are_kept_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIRIGENT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    run("--planners", "random", "--traces", "--out", str(tmp_path / "r.json"))
    listed = CliRunner().invoke(app, ["traces", "list", "--json"])
    assert listed.exit_code == 0, listed.output
    line = json.loads((tmp_path / "r.jsonl").read_text().splitlines()[-1])
    assert line["trace_id"][:8] in listed.stdout


def test_without_a_terminal_a_slow_planner_says_how_far_it_is(
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
