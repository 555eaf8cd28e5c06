"""Lessons drawn ahead: the same lessons, stored in the run's folder, and never those of another recipe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from tests.facts import facts
from typer.testing import CliRunner

from dirigent.cli import app
from dirigent.errors import ConfigError
from dirigent_gym.train import lessons
from dirigent_gym.train.lessons import FILE, draw_lessons, lessons_for, store_lessons
from dirigent_gym.train.recipe import Recipe, load_conductor

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    whole = load_conductor(ROOT / "gym/recipes/gym-gpu.toml")
    return msgspec.structs.replace(whole, warm_start=msgspec.structs.replace(whole.warm_start, n=40))


def test_kept_lessons_are_those_that_would_be_drawn(recipe: Recipe, tmp_path: Path) -> None:
    drawn = draw_lessons(recipe, seed=recipe.seed)
    assert lessons_for(recipe, tmp_path) == drawn
    store_lessons(recipe, tmp_path / "run")
    assert lessons_for(recipe, tmp_path / "run") == drawn


def test_stored_lessons_are_read_and_not_drawn(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_lessons(recipe, tmp_path)
    monkeypatch.setattr(lessons, "draw_lessons", lambda *_, **__: pytest.fail("drawn although they are kept"))
    assert len(lessons_for(recipe, tmp_path)) == 40


def test_those_of_another_seed_are_refused(recipe: Recipe, tmp_path: Path) -> None:
    store_lessons(recipe, tmp_path)
    with pytest.raises(ConfigError, match=facts(FILE)):
        lessons_for(msgspec.structs.replace(recipe, seed=2), tmp_path)


def test_those_of_another_generator_are_refused(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_lessons(recipe, tmp_path / "run")
    (tmp_path / "wordings.toml").write_text("")
    monkeypatch.setattr(lessons, "GENERATOR", tmp_path)
    with pytest.raises(ConfigError, match=facts(FILE)):
        lessons_for(recipe, tmp_path / "run")


@pytest.mark.parametrize("put_otherwise", ["trained_planner_messages", "next_round_messages"])
def test_those_of_other_prompts_are_refused(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_otherwise: str
) -> None:
    store_lessons(recipe, tmp_path)
    as_now = getattr(lessons, put_otherwise)
    monkeypatch.setattr(lessons, put_otherwise, lambda *given, **named: as_now(*given, **named)[::-1])
    with pytest.raises(ConfigError, match=facts(FILE)):
        lessons_for(recipe, tmp_path)


@pytest.mark.parametrize("content", [b"", b"no lessons", b"\xfd7zXZ\x00cut"])
def test_a_file_without_lessons_is_named(recipe: Recipe, tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=facts(f"{FILE}")):
        lessons_for(recipe, tmp_path)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_command_draws_them_and_ends(recipe: Recipe, tmp_path: Path, seed: int) -> None:
    text = re.sub(r"n = \d+_000", "n = 40", (ROOT / "gym/recipes/gym-gpu.toml").read_text(encoding="utf-8"))
    file, out = tmp_path / "small.toml", tmp_path / "run"
    file.write_text(text, encoding="utf-8")
    options = [] if seed == recipe.seed else ["--seed", str(seed)]
    result = CliRunner().invoke(app, ["train", str(file), "--out", str(out), "--draw-lessons", "--json", *options])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["n"] == 40
    assert [path.name for path in out.iterdir()] == [FILE]
    drawn_by = msgspec.structs.replace(recipe, seed=seed)
    assert lessons_for(drawn_by, out) == draw_lessons(drawn_by, seed=seed)


def test_the_error_for_a_recipe_without_lessons_says_so() -> None:
    result = CliRunner().invoke(app, ["train", str(ROOT / "gym/recipes/specialists.toml"), "--draw-lessons"])
    assert result.exit_code != 0
    assert result.output.strip()
