"""A row of an earlier report in a new one, and the claims on cards of trained planners."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gym.benchmarks import results as program
from tests.evals.samples import outcome
from tests.facts import Saying, facts, says
from tests.gym.evals.samples import evaluate_gym
from tests.gym.test_packaged_weights import put

from dirigent.errors import ConfigError
from dirigent.evals.live import trained_weights
from dirigent.evals.page import as_html
from dirigent.evals.recipe import load_recipe
from dirigent.evals.record import Outcome, digest
from dirigent.evals.report import Facts, Report, as_json, as_markdown, as_table, make_report
from dirigent.evals.tables import Earlier, Weights, origins_note
from dirigent_gym.evals.carried_rows import carry_fault, read_report, with_carried_row
from dirigent_gym.evals.pools import Gym, GymSettings
from dirigent_gym.evals.workers import exact_worker

THEN = "starts from the language of plans alone and had to find every decomposition by itself"
NOW = "starts from decompositions of gym questions, workers and access random, and claims routing and access only"
NOTE = f"`conductor-language` `aaaaaaa` 2026-11-15 {THEN}; `conductor` {NOW}."
SETTINGS: Mapping[str, Any] = {
    "sets": ("gym",), "split": "test", "limit": 20, "seed": 1, "pool_sizes": (3, 8), "cards": "train",
    "workers": "exact", "max_steps": 5, "concurrency": 8,
}  # fmt: skip


def weights(sha256: str, claims: str = "") -> Weights:
    return Weights(recipe="gym-gpu", commit="c0ffee", sha256=sha256, claims=claims)


def report_of(
    right: Mapping[str, int], *, commit: str, date: str, conductor: Weights | None, **settings: Any
) -> Report:
    """A report on 20 questions, with this many right answers of each planner."""
    rows: list[Outcome] = [
        outcome(name, str(i), correct=i < count, cost_usd=0.01) for name, count in right.items() for i in range(20)
    ]
    facts = Facts(
        recipe={**SETTINGS, **settings},
        commit=commit,
        seed=1,
        date=date,
        version="0.1.0",
        tasks={"name": "gym test", "n": 20, "questions": "d1"},
        workers="exact",
        prices={},
        weights={"conductor": conductor} if conductor else {},
    )
    return make_report(rows, list(right), facts=facts, references=(), complete=True, equal_cost="vote")


def report_then(**settings: Any) -> Report:
    right = {"conductor": 11, "best": 2, "vote": 2}
    return report_of(right, commit="a" * 40, date="2026-11-15", conductor=weights("1", THEN), **settings)


def report_now(*, claims: str = NOW, **settings: Any) -> Report:
    right = {"conductor": 17, "conductor:2": 18, "warm-start": 3, "best": 2, "vote": 2}
    return report_of(right, commit="b" * 40, date="2026-12-01", conductor=weights("2", claims), **settings)


def joined(now: Report | None = None, then: Report | None = None) -> Report:
    return with_carried_row(
        now or report_now(), then or report_then(), planner="conductor", name="conductor-language", behind="conductor"
    )


def read_again(report: Report) -> Report:
    return msgspec.json.decode(as_json(report), type=Report)


def test_the_earlier_row_comes_after_todays_conductor_in_every_form() -> None:
    report = joined()
    assert list(report.planners)[:4] == ["conductor", "conductor:2", "conductor-language", "warm-start"]
    assert report.planners["conductor-language"].accuracy == 0.55
    assert report.earlier == {"conductor-language": Earlier(commit="a" * 40, date="2026-11-15")}
    assert "| conductor-language | 55.0  [" in as_markdown(report)
    assert says(as_markdown(report), NOTE)
    assert says(as_html(report), NOTE.replace("`", ""))
    lines = as_table(report).splitlines()
    assert lines[4].startswith("conductor-language  ")
    assert Saying(NOTE.replace("`", "")) in lines
    read = read_again(report)
    assert (as_markdown(read), as_html(read), as_table(read)) == (
        as_markdown(report), as_html(report), as_table(report),
    )  # fmt: skip


def test_a_row_that_was_not_paired_with_others_has_no_difference_to_them_and_no_part_in_the_verdict() -> None:
    before = report_then().planners["conductor"]
    assert before.versus_best is not None
    assert before.versus_equal_cost is not None
    report = joined()
    row = report.planners["conductor-language"]
    assert (row.versus_best, row.versus_equal_cost) == (None, None)
    assert report.verdict == report_now().verdict
    (line,) = (line for line in as_table(report).splitlines() if line.startswith("conductor-language  "))
    assert "]        –  " in line


def test_joining_twice_is_joining_once_and_without_a_conductor_the_row_comes_first() -> None:
    assert joined(joined()) == joined()
    bare = msgspec.structs.replace(report_now(), planners={"best": report_now().planners["best"]})
    assert list(joined(bare).planners) == ["conductor-language", "best"]


def test_an_earlier_report_without_weights_is_dated_and_no_more_is_said() -> None:
    then = msgspec.structs.replace(report_then(), weights={}, commit="", date="")
    report = joined(report_now(claims=""), then)
    said = origins_note(report.planners, report.weights, report.earlier)
    assert says(said, "`conductor-language` `unknown`")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("limit", 19), ("seed", 2), ("split", "dev"), ("sets", ("novel",)), ("workers", "local"), ("cards", "held_out")],
)
def test_the_difference_to_a_report_of_other_questions_or_workers_is_named(setting: str, value: Any) -> None:
    now = SETTINGS[setting]
    shown = [list(x) if isinstance(x, tuple) else x for x in (value, now)]
    for then in (report_then(**{setting: value}), read_again(report_then(**{setting: value}))):
        why = carry_fault(report_now(), then, planner="conductor")
        assert all(part in why for part in (setting, repr(shown[0]), repr(shown[1])))


def test_the_same_settings_fit_whether_read_or_just_made() -> None:
    for then in (report_then(), read_again(report_then())):
        assert carry_fault(report_now(), then, planner="conductor") == ""
        assert carry_fault(read_again(report_now()), then, planner="conductor") == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tasks": {"questions": "d2"}}, "d2 d1"),
        ({"tasks": {}}, "d1"),
        ({"planners": {}}, "conductor"),
        ({"complete": False}, ""),
        ({"by_task": {"gym": {}}}, ""),
        ({"weights": {"conductor": weights("2")}}, "conductor"),
        ({"planners": report_now().planners}, "conductor"),
    ],
)
def test_a_report_whose_row_cannot_be_copied_has_a_reason(changes: dict[str, Any], why: str) -> None:
    then = msgspec.structs.replace(report_then(), **changes)
    said = carry_fault(report_now(), then, planner="conductor")
    assert said
    assert says(said, why)


def test_questions_that_neither_names_are_not_taken_for_the_same() -> None:
    now, then = (msgspec.structs.replace(report, tasks={}) for report in (report_now(), report_then()))
    assert carry_fault(now, then, planner="conductor")


def test_a_file_that_is_no_report_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=facts("gone.json")):
        read_report(tmp_path / "gone.json")
    (tmp_path / "cut.json").write_text('{"planners": {')
    with pytest.raises(ConfigError, match=facts("cut.json")):
        read_report(tmp_path / "cut.json")


def test_pages_made_again_keep_the_row_and_the_json_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gym.json"
    out.write_bytes(as_json(report_now()))
    program.page_again(out, report_then())
    assert read_report(out) == read_again(joined())
    made = out.read_bytes()
    for earlier in (report_then(), None):
        program.page_again(out, earlier)
        assert out.read_bytes() == made
        assert says(out.with_suffix(".md").read_text(encoding="utf-8"), NOTE)
        assert "conductor-language" in out.with_suffix(".html").read_text(encoding="utf-8")
    assert capsys.readouterr().err == ""


def test_a_row_left_out_is_said_on_stderr_and_nothing_changes(capsys: pytest.CaptureFixture[str]) -> None:
    then = report_then(limit=19)
    assert program.with_earlier(report_now(), then) == report_now()
    assert capsys.readouterr() == ("", Saying("conductor-language aaaaaaa limit 19 20"))
    assert program.with_earlier(joined(), then) == joined()
    assert capsys.readouterr() == ("", Saying("conductor-language aaaaaaa limit 19 20"))


def test_a_row_of_the_present_report_stays_and_is_dated_by_the_commit_it_was_measured_at() -> None:
    present = msgspec.structs.replace(report_then(), taken_over={"best": "c" * 40})
    stay = program.rows_that_stay(present, ["conductor", "best"])
    assert {planner: report.commit[0] for planner, report in stay.items()} == {"conductor": "a", "best": "c"}
    bare = msgspec.structs.replace(report_now(), planners={"vote": report_now().planners["vote"]})
    report = program.with_row(bare, stay["best"], planner="best", name="best", behind="vote")
    assert list(report.planners) == ["vote", "best"]
    assert report.earlier["best"].commit == "c" * 40
    assert program.rows_that_stay(None, []) == {}
    with pytest.raises(ConfigError, match=facts("--stay nobody conductor best vote")):
        program.rows_that_stay(present, ["nobody"])


def test_a_broken_earlier_report_ends_the_program_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.json").write_text("{}")
    monkeypatch.setattr(program.read_earlier, "__defaults__", (tmp_path / "broken.json",))
    monkeypatch.setattr(program, "carried_out", None)
    monkeypatch.setattr(sys, "argv", ["gym.py"])
    with pytest.raises(SystemExit, match=facts("error: broken.json")):
        program.main()


def test_where_there_is_no_earlier_report_none_is_missed(tmp_path: Path) -> None:
    assert program.read_earlier(tmp_path / "none.json") is None
    assert program.with_earlier(report_now(), None) == report_now()


def test_the_earlier_conductors_report_is_of_the_questions_that_the_benchmark_asks() -> None:
    """If this fails, its row can no longer be copied, and the table would lose it."""
    earlier, recipe = program.read_earlier(), load_recipe(program.RECIPE)
    assert earlier is not None
    settings = GymSettings(sets=recipe.gym_sets, split=recipe.split, limit=recipe.limit or 0, seed=recipe.seed)
    asked = Gym(settings, exact_worker)
    assert earlier.tasks["questions"] == digest(asked.tasks)
    ours = msgspec.structs.replace(
        earlier,
        planners={},
        weights={},
        recipe={**earlier.recipe, **msgspec.structs.asdict(settings), "workers": recipe.workers},
    )
    assert carry_fault(ours, earlier, planner="conductor") == ""
    assert earlier.weights["conductor"].claims == THEN


async def test_a_report_names_its_questions_and_the_claims_of_its_planners_cards() -> None:
    gym = Gym(GymSettings(limit=6, calibration=10), exact_worker)
    report = await evaluate_gym(gym, ["right", "best"], weights={"right": weights("2", NOW), "vote": weights("3", NOW)})
    assert report.tasks["questions"] == digest(gym.tasks)
    assert f"`right` {NOW}.\n" in as_markdown(report)
    assert "`vote`" not in as_markdown(report)


def test_planners_with_one_claim_say_it_once_and_rounds_are_one_planner() -> None:
    cards = {"conductor": weights("1", NOW + "."), "warm-start": weights("2", NOW)}
    assert origins_note(["conductor", "conductor:2", "warm-start", "best"], cards, {}) == (
        f"`conductor` {NOW}; `warm-start` likewise."
    )
    assert origins_note(["conductor:2"], cards, {}) == f"`conductor` {NOW}."
    assert origins_note(["best"], cards, {}) == origins_note(["conductor"], {"conductor": weights("1")}, {}) == ""


def test_cards_are_read_for_trained_planners_alone(tmp_path: Path) -> None:
    put(tmp_path, "facts", b"GGUF one")
    put(tmp_path, "conductor", b"GGUF two", role="conductor", claims=NOW)
    found = trained_weights(["conductor", "conductor:2", "warm-start", "facts", "best"], tmp_path)
    assert {name: card.claims for name, card in found.items()} == {"conductor": NOW}
    assert (found["conductor"].recipe, found["conductor"].commit) == ("none", "0")
    assert trained_weights(["conductor"], tmp_path / "nowhere") == {}
