"""`dirigent demo`, with the real model and a shorter course."""

from __future__ import annotations

from pathlib import Path

import pytest

from dirigent.cli.demonstration import COURSE, SPECIALIST_COURSE
from dirigent.config import parse_config
from dirigent.discover import Found, toml_of
from tests.cli.conftest import Run


def test_the_demo_answers_through_a_plan_and_keeps_the_trace(
    run: Run, own_place: Path, weights_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = own_place / "home" / "weights"
    folder.mkdir(parents=True)
    (folder / weights_path.name).symlink_to(weights_path)
    monkeypatch.setattr("dirigent.cli.demonstration.SPECIALIST_COURSE", SPECIALIST_COURSE[1:2])
    ran = run("demo")
    assert ran.code == 0
    assert "98 MB  sha256 ok" in ran.out
    assert "A  28" in ran.out, "facts, letters and numbers did their steps"
    assert "each worker alone: 0 of" in ran.out
    assert "plan   3 steps" in ran.err
    assert len(run("traces", "list", "--json").object["traces"]) == 1


def test_every_question_of_the_course_is_planned_by_a_profile_and_workers_that_are_there() -> None:
    config = parse_config(toml_of(Found())).config
    names = {worker.name for worker in config.worker}
    for shown in (*COURSE, *SPECIALIST_COURSE):
        assert shown.profile in config.profile
        assert {step.worker for step in shown.plan.steps} <= names if shown.plan else True


def test_the_untrained_planner_is_said_to_be_untrained() -> None:
    assert [shown for shown in COURSE if shown.profile == "untrained" and "UNTRAINED" in shown.story]
