"""The page about evaluation is complete: its programs run and its tables name everything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from dirigent.cli import app
from dirigent.evals import Figures, Report
from dirigent.evals.planners import FIGURES
from dirigent.evals.recipe import EvalRecipe
from dirigent.planners import PLANNERS
from dirigent_gym.evals.evaluation import RIGHT
from dirigent_gym.evals.spans import ASK_ALL, SPANS
from tests.facts import says

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def test_the_programs_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(code, names)
    first, verdict = capsys.readouterr().out.splitlines()
    assert first.startswith("0.5 (")
    assert verdict.strip()


@pytest.mark.parametrize("struct", [Figures, Report])
def test_every_field_of_a_report_is_explained(struct: type[Any]) -> None:
    missing = [
        name for name in struct.__struct_fields__ if name not in ("planners", "notes") and f"`{name}`" not in PAGE
    ]
    assert missing == []


def test_every_planner_and_option_is_explained() -> None:
    names = [RIGHT, ASK_ALL, SPANS, *FIGURES, *(spec.name for spec in PLANNERS if spec.name != "single")]
    assert [name for name in names if f"`{name}`" not in PAGE] == []
    names = [*FIGURES, *(spec.name for spec in PLANNERS if spec.replays and spec.name != "single")]
    assert any(all(f"`{name}`" in section for name in names) for section in PAGE.split("\n## ")[1:])
    command = typer.main.get_command(app).commands["eval"]  # type: ignore[attr-defined]
    options = {option.opts[0] for option in command.params if option.param_type_name == "option"} - {"--help"}
    assert [option for option in sorted(options) if f"`{option}`" not in PAGE] == []


def test_every_setting_of_a_recipe_is_explained() -> None:
    unsaid = [
        name
        for name in EvalRecipe.__struct_fields__
        if f"`{name}`" not in PAGE and f"`--{name.replace('_', '-')}`" not in PAGE and f"\n{name} = " not in PAGE
    ]
    assert unsaid == []


def test_the_command_on_the_page_is_one_the_program_takes() -> None:
    line = re.search(r"^\$ dirigent (eval .*)$", PAGE, re.MULTILINE)
    assert line is not None
    result = CliRunner().invoke(app, [*line[1].split(), "--split", "nowhere"])
    assert result.exit_code == 2
    assert says(result.stderr, "nowhere")
