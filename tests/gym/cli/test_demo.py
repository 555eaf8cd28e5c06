"""`dirigent gym demo`, with the real model and a shorter course."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.conftest import Ran, Run
from tests.facts import says
from typer.testing import CliRunner

from dirigent import Conductor, Pool, Scripted
from dirigent.config.discovery import LOCAL_POOL, LOCAL_PROFILES
from dirigent.config.file import parse_config
from dirigent.planners.fixed import Single
from dirigent_gym.cli.demo import app
from dirigent_gym.cli.demonstration import COURSE, TRAINED_COURSE, _converse
from dirigent_gym.pool import toml_text


def test_the_demo_answers_through_a_plan_and_keeps_the_trace(
    run: Run, own_place: Path, weights_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = own_place / "home" / "weights"
    folder.mkdir(parents=True)
    (folder / weights_path.name).symlink_to(weights_path)
    monkeypatch.setattr("dirigent_gym.cli.demonstration.TRAINED_COURSE", TRAINED_COURSE[:1])
    shown = CliRunner().invoke(app, ["demo"])
    ran = Ran(shown.exit_code, shown.stdout, shown.stderr)
    assert ran.code == 0, ran.err
    assert "98 MB  sha256 ok" in ran.out
    assert "A  IV" in ran.out, "facts, letters and roman did their steps"
    assert re.search(r"\b0 of \d", ran.out)
    assert "plan   3 steps" in ran.err
    assert re.search(r"\b\d+%", ran.out)
    assert len(run("traces", "list", "--json").object["traces"]) == 1


def test_the_gyms_pool_can_be_printed_and_answers_from_a_file(run: Run, own_place: Path, weights_path: Path) -> None:
    folder = own_place / "home" / "weights"
    folder.mkdir(parents=True)
    (folder / weights_path.name).symlink_to(weights_path)
    printed = CliRunner().invoke(app, ["pool"])
    Path("dirigent.toml").write_text(printed.stdout)
    known = run("ask", "the capital of Norway", "--planner", "single", "--worker", "facts")
    assert (known.code, known.out) == (0, "Oslo\n"), known.err
    assert says(known.err, "unchecked")


async def test_an_own_question_that_no_packaged_worker_knows_gets_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["Write a haiku about autumn.\n", "the capital of Norway\n", ""])

    async def line(prompt: str) -> str:
        return next(typed)

    monkeypatch.setattr("dirigent_gym.cli.demonstration.typed_line", line)
    pool = Pool([Scripted("unknown", "Oslo", name="facts")])
    await _converse(Conductor(Single(), pool), parse_config(toml_text()))
    said = capsys.readouterr().err
    assert said.count("`dirigent init`") == 1
    assert said.index("`dirigent init`") < said.index("→ Oslo"), "below the answer that it explains"


def test_every_question_of_the_course_is_planned_by_a_profile_and_workers_that_are_there() -> None:
    for text, course in ((toml_text(), TRAINED_COURSE), (f"{LOCAL_POOL}\n{LOCAL_PROFILES}", COURSE)):
        config = parse_config(text).config
        names = {worker.name for worker in config.worker}
        for shown in course:
            assert shown.profile in config.profile
            assert {step.worker for step in shown.plan.steps} <= names if shown.plan else True


def test_the_untrained_planner_is_said_to_be_untrained() -> None:
    assert [shown for shown in COURSE if shown.profile == "untrained" and "UNTRAINED" in shown.story]
