"""`dirigent eval` with recipes and pages; the options themselves are in tests/evals/test_cli.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dirigent.cli import app
from dirigent.cli.choices import listed
from dirigent.cli.eval import PlannersOption
from dirigent.evals.planners import default_planners
from dirigent.evals.record import OUTCOMES, read_written
from dirigent_gym.evals import plugin
from tests.facts import says

RECIPE = 'tasks = ["gym"]\nplanners = ["best", "moa:3", "vote:3", "oracle"]\nlimit = 12\ncalibration = 12\nseed = 5\n'


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["eval", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_a_recipe_is_carried_out_and_options_go_before_it(tmp_path: Path) -> None:
    recipe, out = tmp_path / "mine.toml", tmp_path / "r.json"
    recipe.write_text(RECIPE)
    table, said = run(str(recipe), "--limit", "8", "--out", str(out))
    assert says(table.splitlines()[0], "gym test 8 3–8 seed 5")
    report = json.loads(out.read_text())
    assert list(report["planners"]) == ["best", "moa:3", "vote:3", "oracle"]
    assert report["planners"]["moa:3"]["steps"] > 1
    assert report["fit"]["n"] == 12
    assert (report["recipe"]["recipe"], report["recipe"]["max_steps"]) == (str(recipe), 5)
    assert str(recipe) in out.with_suffix(".md").read_text()
    assert "r.md, r.html" in said


def test_a_draw_that_takes_long_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(RECIPE)
    assert not says(run(str(recipe), "--limit", "8", "--out", str(tmp_path / "a.json"))[1], "8 questions")
    monkeypatch.setattr(plugin, "MANY", 8)
    assert says(run(str(recipe), "--limit", "8", "--out", str(tmp_path / "b.json"))[1], "8 questions")


def test_the_page_is_written_beside_the_report(tmp_path: Path) -> None:
    recipe, out = tmp_path / "mine.toml", tmp_path / "r.json"
    recipe.write_text(RECIPE)
    run(str(recipe), "--out", str(out))
    page = out.with_suffix(".html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<svg" in page


def test_the_limits_of_a_recipe_hold_on_the_gym_too(tmp_path: Path) -> None:
    recipe, out = tmp_path / "mine.toml", tmp_path / "r.json"
    recipe.write_text(RECIPE.replace('"moa:3", "vote:3", "oracle"', '"ceiling"') + "max_steps = 1\n")
    run(str(recipe), "--out", str(out))
    report = json.loads(out.read_text())
    assert report["planners"]["ceiling"]["steps_histogram"].keys() == {"1"}
    assert report["recipe"]["max_steps"] == 1


def test_the_error_for_a_benchmark_without_a_pool_names_the_option() -> None:
    _, said = run("--tasks", "gsm8k", code=2)
    assert says(said, "gsm8k --pool dirigent.toml")


def test_a_pool_with_missing_keys_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    pool = tmp_path / "dirigent.toml"
    pool.write_text('[[worker]]\npreset = "gpt-5"\napi_key_env = "NO_SUCH_KEY"\n')
    _, said = run("--tasks", "gsm8k", "--pool", str(pool), "--data", str(tmp_path), code=2)
    assert says(said, "gpt-5 NO_SUCH_KEY")


def test_a_recipe_with_a_misspelt_key_names_its_line(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(RECIPE + "max_costs = 3\n")
    _, said = run(str(recipe), code=2)
    assert says(said, "max_costs max_cost")
    assert says(said, "6")


@pytest.mark.parametrize("out", ["", " "])
def test_an_empty_out_is_refused(out: str) -> None:
    _, said = run("--planners", "random", "--limit", "2", "--out", out, code=2)
    assert says(said, "--out reports/mine.json")


@pytest.mark.parametrize("out", ["there", "there/", "not-yet/", "."])
def test_a_folder_is_refused_before_anything_is_asked(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    _, said = run("--planners", "random", "--limit", "2", "--out", out, code=2)
    assert says(said, f"--out {Path(out)} {Path(out) / 'report.json'}")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_a_folder_at_the_pages_path_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "r.html").mkdir()
    _, said = run("--planners", "random", "--limit", "2", "--out", str(tmp_path / "r.json"), code=2)
    assert says(said, "r.html --out")
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_the_help_names_the_default_planners() -> None:
    said = listed(PlannersOption.__metadata__[0].help)
    for pool in ("gym", "live", "recorded"):
        assert ",".join(default_planners(pool)) in said
    named = re.findall(r"[\w:-]+", said)
    assert set(default_planners("recorded")).isdisjoint({"each", "panel"})
    assert set(default_planners("recorded")) <= set(named)


@pytest.mark.parametrize(("then", "now"), [("", "max_steps = 8"), ("max_steps = 8", ""), ("", "deadline_s = 60")])
def test_outcomes_of_other_limits_are_not_gone_on_with(then: str, now: str, tmp_path: Path) -> None:
    recipe, out = tmp_path / "mine.toml", str(tmp_path / "r.json")
    recipe.write_text(RECIPE + then)
    run(str(recipe), "--planners", "random", "--out", out)
    kept = (tmp_path / "r.jsonl").read_bytes()
    recipe.write_text(RECIPE + now)
    _, said = run(str(recipe), "--planners", "random", "--resume", "--out", out, code=2)
    assert says(said, (then or now).partition(" ")[0])
    assert (tmp_path / "r.jsonl").read_bytes() == kept
    recipe.write_text(RECIPE + then)
    _, said = run(str(recipe), "--planners", "random", "--resume", "--out", out)
    assert says(said, "12")


def test_a_record_without_limits_is_gone_on_with_under_the_usual_ones(tmp_path: Path) -> None:
    recipe, out = tmp_path / "mine.toml", str(tmp_path / "r.json")
    recipe.write_text(RECIPE + "max_steps = 5\ndeadline_s = 900\n")
    run(str(recipe), "--planners", "random", "--out", out)
    about = json.loads((tmp_path / "r.jsonl").read_text().partition("\n")[0])["about"]
    assert about.keys().isdisjoint({"max_steps", "deadline_s"})
    recipe.write_text(RECIPE)
    _, said = run(str(recipe), "--planners", "random", "--resume", "--out", out)
    assert says(said, "12")


def test_every_questions_outcome_is_kept_compressed_beside_the_report(tmp_path: Path) -> None:
    recipe, out = tmp_path / "mine.toml", tmp_path / "r.json"
    recipe.write_text(RECIPE)
    run(str(recipe), "--limit", "8", "--out", str(out))
    kept = read_written(tmp_path / f"r{OUTCOMES}")
    report = json.loads(out.read_text())
    for name, row in report["planners"].items():
        own = [outcome for outcome in kept if outcome.planner == name]
        assert (len(own), sum(outcome.correct for outcome in own) / 8) == (8, row["accuracy"])
