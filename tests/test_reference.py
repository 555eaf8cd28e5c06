"""The reference pages are what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dirigent.config import Config, Profile, StoreConfig, WorkerConfig

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
def test_every_key_says_what_it_means(generate: dict[str, Any], table: type[msgspec.Struct]) -> None:
    said = generate["_docstrings"](table)
    assert [name for name in table.__struct_fields__ if not said.get(name)] == []


def test_a_stale_page_fails_the_check(
    generate: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = tmp_path / "configuration.md"
    stale.write_text("old")
    monkeypatch.setitem(generate["main"].__globals__, "PAGE", stale)
    monkeypatch.setitem(generate["main"].__globals__, "COMMANDS_PAGE", tmp_path / "cli.md")
    assert generate["main"](["--check"]) == 1
    assert generate["main"]([]) == 0
    assert generate["main"](["--check"]) == 0
