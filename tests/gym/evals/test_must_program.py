"""The program behind the table of the shipped files: it measures, continues, takes over and refuses."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from pathlib import Path

import msgspec
import pytest
from gym.benchmarks import must as program
from tests.facts import facts, says

from dirigent.errors import ConfigError
from dirigent.evals.entries import Evaluated
from dirigent.evals.record import Outcome, Record
from dirigent.plan.plan import format_plan
from dirigent.plan.planner import Planner
from dirigent.planners.fixed import Written
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool
from dirigent_gym.evals.pools import GymSettings
from dirigent_gym.evals.workers import exact_worker
from dirigent_gym.questions import ROSTER, plan_for, solvable
from dirigent_gym.train.claims import KNOW_NO_OTHERS, OTHER_SETS, PLACED, Claim, Evidence, claims

SETTINGS = GymSettings(limit=30, seed=3, calibration=20, noise_seeds=2)
CONTROLS = 8


def scholar(task: Task, pool: Pool) -> Planner:
    """Writes the right plan; it knows every worker by name and reads no card."""
    offered = [specialist for specialist in ROSTER if specialist.name in pool]
    if not solvable(task, offered):
        return Written("nobody can", name="conductor")
    return Written(format_plan(plan_for(task, offered), pool, dialect="lines"), name="conductor")


def nonsense(task: Task, pool: Pool) -> Planner:
    return Written("I would ask around.", name="warm-start")


def bench(record: Record) -> program.Bench:
    factories = {"conductor": scholar, "warm-start": nonsense}
    return program.Bench(SETTINGS, exact_worker, factories, record, CONTROLS, by_table=True)


@pytest.fixture(scope="module")
def record_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("must") / "must.jsonl"


@pytest.fixture(scope="module")
def evidence(record_file: Path) -> Evidence:
    with Record.open(record_file, {"seed": "3"}) as record:
        return asyncio.run(program.gathered(bench(record)))


@pytest.fixture(scope="module")
def lines(evidence: Evidence) -> dict[str, Claim]:
    return {line.name: line for line in [*claims(evidence), *program.own_lines(evidence)]}


def test_right_plans_reach_the_ceiling_and_beat_every_worker_alone(lines: dict[str, Claim]) -> None:
    assert lines["share of the ceiling"].value == pytest.approx(1.0, abs=0.12)  # the guesser's luck
    assert lines["depth 1, share of its ceiling"].value == 1.0
    assert lines["steps over minimal, correct answers"].value == 1.0
    assert lines["one-step kinds answered in one step"].value == pytest.approx(1.0, abs=0.1)
    assert lines["(f) conductor over an equal-cost vote of the best worker"].value > 0.5  # type: ignore[operator]
    assert lines["conductor: right answers"].n == 30
    assert lines["warm start: right answers"].value == lines["warm start, greedy: valid plans"].value == 0.0


def test_controls_are_measured_on_as_many_questions_as_were_asked_for(lines: dict[str, Claim]) -> None:
    assert lines["reworded cards, over seen ones"].value == 1.0
    assert lines["names that say nothing, over the workers' own"].value == 0.0  # no worker has a name that it knows
    assert lines["(e) and follows the name instead"].value == 1.0
    assert lines["(e) two cards swapped: routing follows the card"].value == 0.0
    for name in ("a skill and a worker never seen in RL", *OTHER_SETS.values(), *PLACED.values()):
        assert lines[name].n == CONTROLS
    for name, said in PLACED.items():
        assert lines[said].value >= lines[OTHER_SETS[name]].value  # type: ignore[operator]
        assert lines[OTHER_SETS[name]].note == KNOW_NO_OTHERS


def test_two_rounds_are_compared_question_by_question(lines: dict[str, Claim]) -> None:
    assert lines["two rounds, over one"].value == 0.0
    assert lines["two rounds, over one"].n == 30


def test_figures_that_need_training_runs_are_marked_so(lines: dict[str, Claim]) -> None:
    for name in ("(a) conductor over one adapter, question to answer", "shipped files on CPU, 4-bit base, over torch"):
        assert lines[name].verdict == "not measured"


def test_an_interrupted_run_continues_at_its_last_question(
    evidence: Evidence, record_file: Path, tmp_path: Path
) -> None:
    whole = record_file.read_bytes().splitlines(keepends=True)
    cut = tmp_path / "must.jsonl"
    cut.write_bytes(b"".join(whole[:-20]))
    with Record.open(cut, {"seed": "3"}, resume=True) as record:
        again = asyncio.run(program.gathered(bench(record)))
    assert claims(again) == claims(evidence)
    assert len(cut.read_bytes().splitlines()) == len(whole)  # missing questions were asked, and no question twice


ABOUT = {
    "questions": "q",
    "workers": "exact",
    "adapters": "a",
    "seed": "1",
    "cards": "train",
    "pool_sizes": "(3, 8)",
    "calibration": "300",
    "noise_seeds": "5",
}


def recorded(file: Path, outcomes: list[Outcome], **about: str) -> Path:
    lines = [msgspec.json.encode({"about": ABOUT | about}), *map(msgspec.json.encode, outcomes)]
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    return file


def test_finished_questions_of_an_evaluation_are_taken_over_once(tmp_path: Path) -> None:
    done = [
        Outcome("conductor", "t1", correct=True),
        Outcome("single:facts", "t1"),
        Outcome("moa", "t1"),
        Outcome("conductor", "t2", error_kind="WorkerError"),
    ]
    file, record = recorded(tmp_path / "gym.jsonl", done), Record()
    assert program.taken_over(record, file, ABOUT) == 2
    assert record.finished("conductor", "t1") == done[0]
    assert record.finished("conductor", "t2") is None  # it was lost, and is asked again
    assert program.taken_over(record, file, ABOUT) == 0


@pytest.mark.parametrize("name", ["questions", "adapters", "workers"])
def test_an_evaluation_of_something_else_is_refused(tmp_path: Path, name: str) -> None:
    file = recorded(tmp_path / "gym.jsonl", [], **{name: "other"})
    with pytest.raises(ConfigError, match=facts(f"{name} 'other' --record")):
        program.taken_over(Record(), file, ABOUT)


def test_a_file_that_is_no_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=facts("nowhere.jsonl")):
        program.taken_over(Record(), tmp_path / "nowhere.jsonl", ABOUT)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ConfigError, match=facts("empty.jsonl --record")):
        program.taken_over(Record(), tmp_path / "empty.jsonl", ABOUT)


TIMED = {"questions": 2, "workers": 14, "threads": 2, "cores": 2, "load": 0.5}


def test_seconds_that_were_measured_are_not_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "must.latency.json"
    file.write_text(json.dumps(TIMED))
    assert program.latency_of(argparse.Namespace(latency=2, anew=False), file) == TIMED
    assert program.latency_of(argparse.Namespace(latency=0, anew=True), file) == {}


def test_the_page_names_missed_bounds_and_its_evidence() -> None:
    table = [Claim("share of the ceiling", value=0.8, n=10, must=0.9), Claim("(a) one adapter")]
    found = program.Must(
        table,
        workers="exact",
        n=10,
        controls=5,
        seed=1,
        conductor="ab" * 32,
        commit="abc",
        date="2026-11-16",
        seconds=1.0,
        latency=TIMED,
    )
    page = program.as_page(found)
    assert re.search(r"share of the ceiling\. .*\b1\b", page)
    assert "sha256 `abababababab`" in page
    assert "| share of the ceiling | 80.0% |" in page
    assert says(page, "2 0.5")


def test_progress_is_shown_by_planner_and_questions(capsys: pytest.CaptureFixture[str]) -> None:
    tell = program.progress_printer(every=2)
    for planner, split in (("conductor", "train"), ("conductor", "test"), ("conductor", "test"), ("single:facts", "")):
        tell(Evaluated(Outcome(planner, "t", correct=True, tags={"split": split}), total=9))
    assert capsys.readouterr().err == "▸ conductor, test questions: 2 of 9, right 100.0%\n"
