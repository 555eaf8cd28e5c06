"""The program behind the table of questions from elsewhere: its lines, and the figure of each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from gym.benchmarks import elsewhere as program

from dirigent.evals.record import Outcome, Record
from dirigent.plan.plan import Plan, format_plan
from dirigent.plan.planner import Planner
from dirigent.planners.fixed import Written
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool
from dirigent_gym.evals.pools import Gym, GymSettings
from dirigent_gym.evals.workers import exact_worker
from dirigent_gym.questions import ROSTER, plan_for, solvable
from dirigent_gym.questions.handwritten import handwritten, handwritten_plain
from dirigent_gym.questions.reasoning import FAMILIES, read_sample
from dirigent_gym.train.controls import Share

SETTINGS = GymSettings(sets=program.SETS, limit=40, seed=3)


def copyist(task: Task, pool: Pool) -> Planner:
    """Asks the right workers in the right order, but copies the question: the tables do not know these words."""
    offered = [specialist for specialist in ROSTER if specialist.name in pool]
    if not solvable(task, offered):
        return Written("nobody can", name="conductor")
    steps = [msgspec.structs.replace(s, subtask="As asked above, in my words.") for s in plan_for(task, offered).steps]
    return Written(format_plan(Plan(tuple(steps)), pool, dialect="lines"), name="conductor")


@pytest.fixture(scope="module")
def record_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elsewhere") / "outcomes.jsonl"


@pytest.fixture(scope="module")
def lines(record_file: Path) -> dict[str, program.Line]:
    with Record.open(record_file, {"seed": "3"}) as record:
        table = asyncio.run(program.gathered(SETTINGS, exact_worker, {"conductor": copyist}, record))
    return {line.name: line for line in table}


def counted(share: Share | None) -> int:
    return share.n if share else 0


def test_both_sets_are_reported_whole_and_in_parts(lines: dict[str, program.Line]) -> None:
    assert counted(lines["written by hand"].answers) == counted(lines["reasoning-gym"].answers) == 40
    assert sum(counted(lines[f"written by hand, depth {depth}"].answers) for depth in (1, 2, 3, 4)) == 40
    assert sum(counted(lines[f"reasoning-gym, {family}"].answers) for family in FAMILIES) == 40
    assert sum(counted(lines[f"as people type, depth {depth}"].answers) for depth in (1, 2, 3, 4)) == 40
    assert len(lines) == 3 + 4 + len(FAMILIES) + 4


def test_by_default_all_questions_are_asked() -> None:
    gym = Gym(msgspec.structs.replace(SETTINGS, limit=program.ALL), exact_worker)
    assert len(gym.tasks) == len(handwritten()) + len(read_sample()[1]) + len(handwritten_plain())


def test_right_workers_count_whatever_comes_of_their_words(lines: dict[str, program.Line]) -> None:
    for name in ("written by hand", "reasoning-gym"):
        line = lines[name]
        assert line.answers is not None
        assert line.wired is not None
        assert line.right_plan is not None
        assert line.answers.value < 0.2 < 0.7 < line.wired.value <= line.workers.value  # type: ignore[union-attr]
        assert line.right_plan.value > 0.7  # some pools lack a worker


def test_recorded_questions_are_not_asked_again(lines: dict[str, program.Line], record_file: Path) -> None:
    def nobody(task: Task, pool: Pool) -> Planner:
        raise AssertionError("asked again")

    with Record.open(record_file, {"seed": "3"}, resume=True) as record:
        again = asyncio.run(program.gathered(SETTINGS, exact_worker, {"conductor": nobody}, record))
    assert again == list(lines.values())


def test_lost_runs_do_not_count_and_a_missing_plan_has_no_right_worker() -> None:
    tasks = handwritten()[:3]
    record = Record()
    record.add(Outcome("conductor", tasks[0].id, correct=True, marks={"placed": True, "wired": False}))
    record.add(Outcome("conductor", tasks[1].id))
    record.add(Outcome("conductor", tasks[2].id, error_kind="WorkerError"))
    line = program._line("x", tasks, record)
    assert [share and (share.value, share.n) for share in (line.answers, line.workers, line.wired)] == [
        (0.5, 2),
        (0.5, 2),
        (0.0, 2),
    ]
    assert line.right_plan is None


def test_the_page_names_its_evidence() -> None:
    half = Share(0.5, (0.2, 0.8), 40)
    table = [program.Line("written by hand", half, half, half, None)]
    page = program.as_page(program.Elsewhere(table, 1, {"conductor": "ab" * 32}, "abc", "2026-11-16", 1.0))
    assert "| written by hand | 40 | 50.0% (20.0–80.0) | 50.0% (20.0–80.0) | 50.0% (20.0–80.0) | – |" in page
    assert "sha256 `abababababab`, commit `abc`, 2026-11-16" in page
