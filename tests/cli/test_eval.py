"""`dirigent eval` with recipes and pages; the options themselves are in tests/evals/test_cli.py."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from dirigent.cli import app

RECIPE = 'tasks = ["gym"]\nplanners = ["best", "moa:3", "vote:3", "oracle"]\nlimit = 12\ncalibration = 12\nseed = 5\n'


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["eval", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_a_recipe_is_carried_out_and_options_go_before_it(tmp_path: Path) -> None:
    recipe, out = tmp_path / "mine.toml", tmp_path / "r.json"
    recipe.write_text(RECIPE)
    table, said = run(str(recipe), "--limit", "8", "--out", str(out))
    assert table.startswith("gym test · 8 questions · pools of 3–8 · exact workers · seed 5")
    report = json.loads(out.read_text())
    assert list(report["planners"]) == ["best", "moa:3", "vote:3", "oracle"]
    assert report["planners"]["moa:3"]["steps"] > 1
    assert report["fit"]["n"] == 12
    assert (report["recipe"]["recipe"], report["recipe"]["max_steps"]) == (str(recipe), 5)
    assert f"seed 5, {recipe}." in out.with_suffix(".md").read_text()
    assert "r.md, r.html" in said


def test_the_page_stands_beside_the_report(tmp_path: Path) -> None:
    recipe, out = tmp_path / "mine.toml", tmp_path / "r.json"
    recipe.write_text(RECIPE)
    run(str(recipe), "--out", str(out))
    page = out.with_suffix(".html").read_text()
    assert page.startswith("<!doctype html>")
    assert "Accuracy against cost" in page


def test_the_limits_of_a_recipe_hold_on_the_gym_too(tmp_path: Path) -> None:
    recipe, out = tmp_path / "mine.toml", tmp_path / "r.json"
    recipe.write_text(RECIPE.replace('"moa:3", "vote:3", "oracle"', '"ceiling"') + "max_steps = 1\n")
    run(str(recipe), "--out", str(out))
    report = json.loads(out.read_text())
    assert report["planners"]["ceiling"]["steps_histogram"].keys() == {"1"}
    assert report["recipe"]["max_steps"] == 1


def test_a_benchmark_without_a_pool_says_what_to_add() -> None:
    _, said = run("--tasks", "gsm8k", code=2)
    assert "gsm8k needs models that answer: add  --pool dirigent.toml" in said


def test_a_pool_whose_keys_are_missing_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    pool = tmp_path / "dirigent.toml"
    pool.write_text('[[worker]]\npreset = "gpt-5"\napi_key_env = "NO_SUCH_KEY"\n')
    _, said = run("--tasks", "gsm8k", "--pool", str(pool), "--data", str(tmp_path), code=2)
    assert 'worker "gpt-5" has no key: set NO_SUCH_KEY' in said


def test_a_recipe_with_a_misspelt_key_names_its_line(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(RECIPE + "max_costs = 3\n")
    _, said = run(str(recipe), code=2)
    assert 'did you mean "max_cost"?' in said
    assert "line 6" in said
