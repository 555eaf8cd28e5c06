"""Every test of the command line runs in a folder and a home of its own, without the user's keys or model servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dirigent.cli import app
from dirigent.config.presets import presets

POOL = """\
[[worker]]
name = "boss"
kind = "scripted"
replies = ['''
model_id = [1, 2]
subtasks = ["find it", "say it"]
access_list = [[], [0]]
''', '''
model_id = []
subtasks = []
access_list = []
''']

[[worker]]
name = "finder"
kind = "scripted"
replies = ["four"]
about = "finds things"

[[worker]]
name = "sayer"
kind = "scripted"
replies = ["it is four"]
price = { input = 1, output = 2 }

[profile.ultra]
planner = "language"
max_rounds = 2

[profile.mini]
planner = "single"
planner_worker = "sayer"
"""


class Ran:
    """The output and the exit code of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def object(self) -> Any:
        """The one JSON object on stdout: one line, and nothing beside it."""
        assert self.out.count("\n") == 1, f"stdout is not one line: {self.out!r}"
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIRIGENT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DIRIGENT_CONFIG", raising=False)
    for provider in presets().provider.values():
        for variable in provider.api_key_env:
            monkeypatch.delenv(variable, raising=False)
    # Whatever runs on the usual ports of the machine that runs the tests is not looked for.
    monkeypatch.setattr("dirigent.config.discovery.USUAL_PORTS", {})
    return tmp_path


@pytest.fixture
def pool_file(own_place: Path) -> Path:
    path = own_place / "dirigent.toml"
    path.write_text(POOL)
    return path


@pytest.fixture
def run() -> Run:
    """The real command line, in this process."""

    def invoke(*arguments: str, input: str | None = None) -> Ran:
        result = CliRunner().invoke(app, list(arguments), input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return invoke
