"""The gym's further sets of questions, asked together and reported apart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.facts import facts, says
from tests.gym.evals.samples import evaluate_gym
from typer.testing import CliRunner

from dirigent.cli import app
from dirigent.errors import ConfigError
from dirigent.evals.report import Report, as_markdown
from dirigent_gym.evals.pools import Gym, GymSettings, check_sets, roster_of
from dirigent_gym.evals.test_sets import PROBES, probe_tasks
from dirigent_gym.evals.workers import exact_worker
from dirigent_gym.questions import RL_ROSTER, ROSTER
from dirigent_gym.questions.specialists import Specialist

SETS = ("gym", "handwritten", "novel")
SETTINGS = GymSettings(sets=SETS, limit=16, seed=5, calibration=24, noise_seeds=1)


@pytest.fixture(scope="module")
def report() -> Report:
    return asyncio.run(evaluate_gym(Gym(SETTINGS, exact_worker), ["best", "right", "oracle", "each"]))


def test_every_set_has_its_own_rows_and_all_of_them_together_have_theirs(report: Report) -> None:
    assert list(report.by_task) == ["gym", "gym:handwritten", "gym:novel"]
    assert report.planners["right"].n == 48
    assert all(rows["right"].n == 16 for rows in report.by_task.values())
    assert report.tasks["name"] == "gym, gym:handwritten, gym:novel"
    assert report.recipe["tasks"] == ["gym", "gym:handwritten", "gym:novel"]


def test_plans_are_judged_by_their_words_only_where_the_words_are_the_generators(report: Report) -> None:
    assert "decomposition" in report.by_task["gym"]["right"].marks
    assert set(report.by_task["gym:handwritten"]["right"].marks) == {"placed", "wired", "parallel"}
    assert set(report.planners["right"].marks) == {"placed", "wired", "parallel"}
    page = as_markdown(report)
    plans = page.partition("## Plans: gym:handwritten")[2].partition("## ")[0]
    assert "placed | wired" in plans
    assert "decomposition" not in plans


def test_each_worker_alone_is_a_table_of_its_own_and_no_planner(report: Report) -> None:
    assert list(report.planners) == ["best", "right", "oracle"]
    assert set(report.capacity["all"].workers) == {specialist.name for specialist in ROSTER}
    assert report.capacity["gym"].n == 16
    assert report.complete


def test_the_worker_rl_never_met_is_offered_only_for_its_own_questions() -> None:
    gym = Gym(SETTINGS, exact_worker)
    new = set(ROSTER) - set(RL_ROSTER)
    offered: dict[str, set[Specialist]] = {name: set() for name in SETS}
    for task in gym.tasks:
        offered[gym.set_of(task.id)] |= set(gym.offered(task))
    assert new & offered["novel"]
    assert not new & (offered["gym"] | offered["handwritten"])
    assert roster_of(SETTINGS) == ROSTER
    assert roster_of(GymSettings()) == RL_ROSTER


def test_the_split_alone_is_asked_as_ever() -> None:
    gym = Gym(GymSettings(limit=10, seed=5), exact_worker)
    assert gym.judged_by_words
    assert [task.id for task in gym.tasks] == [f"test-5-{i}" for i in range(10)]


def test_questions_of_two_sets_with_the_same_number_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    again = probe_tasks("handwritten", limit=3, seed=1)
    monkeypatch.setitem(PROBES, "novel", lambda limit, seed: list(again))
    gym = Gym(GymSettings(sets=("handwritten", "novel"), limit=3), exact_worker)
    assert len({task.id for task in gym.tasks}) == 6
    assert [gym.set_of(task.id) for task in gym.tasks] == ["handwritten"] * 3 + ["novel"] * 3


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ((), "gym second-seed"),
        (("handwriten",), "handwriten handwritten"),
        (("gym", "novel", "gym"), "gym"),
    ],
)
def test_an_unknown_or_repeated_set_is_refused(sets: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=facts(message)):
        check_sets(sets)


def test_the_command_takes_sets_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = ("--limit", "6", "--calibration", "6", "--planners", "right,each")
    result = CliRunner().invoke(app, ["eval", "--tasks", "gym:handwritten,gym:second-seed", *said])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "reports" / "gym-handwritten-second-seed-1.json").read_text())
    assert list(found["by_task"]) == ["gym:handwritten", "gym:second-seed"]
    assert found["planners"]["right"]["n"] == 12


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("gym:handwriten", "handwriten handwritten"),
        ("gym:novel,gsm8k", "gym"),
    ],
)
def test_the_command_refuses_an_unknown_set(tasks: str, message: str) -> None:
    result = CliRunner().invoke(app, ["eval", "--tasks", tasks, "--pool", ""])
    assert result.exit_code == 2
    assert says(result.stderr, message)
