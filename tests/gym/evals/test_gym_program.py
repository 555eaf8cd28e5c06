"""The program that writes docs/results/gym: an interrupted run continues, one with other settings begins anew."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from gym.benchmarks import results as program
from tests.facts import facts, says

from dirigent.errors import ConfigError
from dirigent.evals.recipe import EvalRecipe, load_recipe
from dirigent.evals.record import read_outcomes

RECIPE = EvalRecipe(planners=("best", "random"), limit=6, calibration=10, out="gym.json")


def test_the_recipe_alone_does_not_write_over_the_published_table() -> None:
    recipe = load_recipe(program.RECIPE)
    assert recipe.out == "reports/gym.json"
    assert program.OUT.parent.parts[-2:] == ("docs", "results")


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ([], "gym/recipes/eval-gym.toml"),
        (["--language"], "gym/benchmarks/results.py --language (gym/recipes/eval-gym.toml)"),
    ],
)
def test_the_report_names_the_settings_that_reproduce_it(
    monkeypatch: pytest.MonkeyPatch, options: list[str], source: str
) -> None:
    seen: dict[str, object] = {}

    async def refused(*given: object, **settings: object) -> None:
        seen.update(settings, out=given[1])
        raise ConfigError("enough was seen")

    monkeypatch.setattr(program, "carried_out", refused)
    monkeypatch.setattr(sys, "argv", ["gym.py", *options])
    with pytest.raises(SystemExit, match="enough was seen"):
        program.main()
    assert seen["source"] == source
    assert Path(str(seen["out"])).parent == program.OUT.parent


def hidden(folder: Path) -> list[str]:
    return [file.name for file in sorted(folder.glob(".*"))]


@pytest.fixture
def cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that ended before its report was written, because the disk was full."""

    def full(report: object, out: Path) -> None:
        raise OSError("no space left on device")

    out = tmp_path / "gym.json"
    with monkeypatch.context() as patched:
        patched.setattr(program, "write_pages", full)
        with pytest.raises(OSError, match="no space left"):
            program.evaluated(RECIPE, out, None, resume=True)
    return out


def test_finished_outcomes_outlive_a_report_that_could_not_be_written(
    cut: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (kept,) = (name for name in hidden(cut.parent) if name.endswith(".jsonl"))
    outcomes = len((cut.parent / kept).read_bytes().splitlines()) - 1
    capsys.readouterr()
    report = program.evaluated(RECIPE, cut, None, resume=True)
    assert says(capsys.readouterr().err, f"{outcomes}")
    assert report.planners["best"].n == 6
    assert report.recipe["recipe"] == "gym/recipes/eval-gym.toml"
    assert hidden(cut.parent) == []
    assert sorted(file.name for file in cut.parent.iterdir()) == [
        "gym.html",
        "gym.json",
        "gym.md",
        "gym.outcomes.jsonl.gz",
    ]


def test_other_settings_begin_anew_say_so_and_leave_the_earlier_outcomes_alone(
    cut: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: (cut.parent / name).read_bytes() for name in hidden(cut.parent)}
    capsys.readouterr()
    program.evaluated(msgspec.structs.replace(RECIPE, seed=2), cut, None, resume=True)
    said = capsys.readouterr().err
    (kept,) = (name for name in before if name.endswith(".jsonl"))
    assert says(said, f"{kept} {cut.parent}")
    assert {name: (cut.parent / name).read_bytes() for name in hidden(cut.parent)} == before


def test_commit_source_adapters_and_settings_make_the_records_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, package = tmp_path / "gym.json", tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("1")
    monkeypatch.setattr(program, "PACKAGE", package)

    def name(recipe: EvalRecipe = RECIPE, commit: str = "c0ffee+changes") -> str:
        return program.scratch_of(out, recipe, commit=commit).name

    first = name()
    assert name(msgspec.structs.replace(RECIPE, about="in other words")) == first
    others = {
        name(commit="c0ffee"),
        name(msgspec.structs.replace(RECIPE, concurrency=1)),
        name(msgspec.structs.replace(RECIPE, planners=("best",))),
        name(msgspec.structs.replace(RECIPE, adapters=str(package))),
    }
    (package / "a.py").write_text("2")
    others.add(name())
    assert len(others) == 5
    assert first not in others


def test_without_resume_a_run_begins_anew(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    program.evaluated(RECIPE, cut, None, resume=False)
    assert "outcomes from before" not in capsys.readouterr().err


def test_a_report_with_runs_missing_keeps_its_outcomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def cut_short(*given: object, **settings: object) -> object:
        return msgspec.structs.replace(await carried_out(*given, **settings), complete=False)  # type: ignore[arg-type]

    carried_out = program.carried_out
    monkeypatch.setattr(program, "carried_out", cut_short)
    program.evaluated(RECIPE, tmp_path / "gym.json", None, resume=False)
    (kept,) = (name for name in hidden(tmp_path) if name.endswith(".jsonl"))
    assert says(capsys.readouterr().err, f"{kept} --resume")


def test_the_outcomes_are_thrown_away_but_for_a_copy_where_one_is_wanted(tmp_path: Path) -> None:
    kept = tmp_path / "deep" / "kept.jsonl"
    report = program.evaluated(RECIPE, tmp_path / "gym.json", None, resume=False, keep=kept)
    assert hidden(tmp_path) == []
    assert sum(o.planner == "random" for o in read_outcomes(kept)) == report.planners["random"].n == 6


def test_a_fault_of_the_setup_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*given: object, **settings: object) -> None:
        raise ConfigError("it is in use")

    monkeypatch.setattr(program, "carried_out", refused)
    monkeypatch.setattr(sys, "argv", ["gym.py", "--out", str(tmp_path / "gym.json")])
    with pytest.raises(SystemExit, match="error: it is in use"):
        program.main()


def test_rows_of_another_commit_are_named_as_they_are_given() -> None:
    assert program.named(["conductor=1a2b", "conductor:2=1a2b"]) == {"conductor": "1a2b", "conductor:2": "1a2b"}
    with pytest.raises(ConfigError, match=facts("--taken-over conductor PLANNER=COMMIT")):
        program.named(["conductor"])
