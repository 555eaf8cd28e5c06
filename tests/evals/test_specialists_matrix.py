"""Who can do what: specialists that know all answers get the matrix that the gym was built for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from benchmarks import specialists as program
from benchmarks.specialists import Count, Kept, Measured, as_page, examine, results_of

from dirigent.errors import ConfigError, WorkerError
from dirigent.evals import gym_workers
from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.tasks.gym.judging import Exam, Marks, asked_of, columns_of, conversations_for, exam_of, is_own, marked
from dirigent.tasks.gym.oracle import ExactSpecialist
from dirigent.tasks.gym.specialists import ROSTER, find_specialist
from dirigent.worker import Worker, WorkerInfo

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "specialists.json"


@pytest.fixture(scope="module")
def exam() -> Exam:
    return exam_of(6, own=60, test=40)


async def exact(exam: Exam) -> dict[str, Marks]:
    return {s.name: await examine(s.name, ExactSpecialist(s), exam) for s in ROSTER}


def measured(exam: Exam, marks: dict[str, Marks]) -> Measured:
    hashes = dict.fromkeys(marks, "ab")
    return Measured(results_of(exam, marks), {"a-base": "cd"}, hashes, "abc123", "2026-11-15", 61.0, 2)


async def test_specialists_that_know_everything_master_their_own_skill_and_no_other(exam: Exam) -> None:
    shares = results_of(exam, await exact(exam)).matrix.skills
    for specialist in ROSTER:
        for column, share in shares[specialist.name].items():
            if specialist.noise:  # read as a puzzle with candidates, a check is a puzzle to it
                assert (0.5 < share < 0.9) == (column in ("puzzles", "checking")) or share == 0.0, column
            else:
                assert share == (1.0 if is_own(specialist.name, column) else 0.0), (specialist.name, column)


async def test_nobody_solves_much_of_the_test_alone_and_all_of_depth_one_is_somebodys(exam: Exam) -> None:
    matrix = results_of(exam, await exact(exam)).matrix
    assert 0.0 < max(matrix.alone.values()) < 0.3
    single = [task for task in exam.tasks if task.sketch and len(task.sketch.steps) == 1]
    assert max(matrix.alone.values()) <= matrix.oracle <= len(single) / len(exam.tasks)


def test_everybody_is_asked_all_of_its_own_skill_and_the_first_few_of_the_others(exam: Exam) -> None:
    asked = asked_of(exam, "sums")
    assert len(asked["numbers to 20"]) == 60
    assert asked["numbers above"] == exam.columns["numbers above"][:6]
    assert len(conversations_for(exam, "sums")) == 60 + 6 * (len(exam.columns) - 1) + 40


def test_more_questions_begin_with_the_same_ones() -> None:
    few, many = columns_of(2), columns_of(4)
    assert {column: questions[:2] for column, questions in many.items()} == few


def test_questions_are_asked_directly_and_with_results_and_checks_always_with_candidates(exam: Exam) -> None:
    for column, questions in exam.columns.items():
        reading = [question for question in questions if question.reads]
        assert all("Result: " in question.messages[-1].text for question in reading)
        if column == "checking":
            assert reading == questions
        elif column != "puzzles":
            assert 5 < len(reading) < 55, column


def test_a_reply_counts_only_if_it_is_the_answer_and_nothing_else(exam: Exam) -> None:
    question = exam.columns["roman"][0]
    short = Exam({"roman": [question] * 3}, [], others=3)
    replies = [question.answer.upper(), f"It is {question.answer}", "unknown"]
    assert marked(short, "roman", replies).skills["roman"] == (True, False, False)


def test_replies_that_are_missing_are_an_error_and_not_wrong_answers(exam: Exam) -> None:
    with pytest.raises(ConfigError, match="roman was put 172 questions, but there are 1 replies"):
        marked(exam, "roman", ["XIV"])


def test_fewer_than_no_questions_cannot_be_asked() -> None:
    with pytest.raises(ConfigError, match="-1 questions of the test cannot be asked"):
        exam_of(1, test=-1)


async def test_the_page_says_plainly_who_falls_short(exam: Exam) -> None:
    marks = await exact(exam)
    skills = marks["dates"].skills
    half = msgspec.structs.replace(marks["dates"], skills=skills | {"dates": (True, False) * 30})
    page = as_page(measured(exam, marks | {"dates": half}))
    assert "- **`dates` is short of 98% on its own skill**: 50.0% (30 of 60; 95% interval 37.7 to 62.3); asked" in page
    assert "- `guesser` is meant to be right 70% of the time: " in page
    assert page.count("is short of") == 1
    assert "- `checker` without candidates solves 0 of 6 puzzles." in page
    assert "; no more than the 30% allowed." in page
    assert "their own the workers are right in 0 of 924, not counting `guesser` on checking (" in page
    assert "6 questions a skill (60 of a worker's own), 40 of the test." in page
    assert "| **50.0** |" in page


async def test_the_page_says_plainly_that_one_worker_solves_too_much(exam: Exam) -> None:
    marks = await exact(exam)
    able = msgspec.structs.replace(marks["code"], alone=(True,) * 20 + (False,) * 20)
    page = as_page(measured(exam, marks | {"code": able}))
    assert "solves alone: `code`, 50.0% (20 of 40; 95% interval 35.2 to 64.8); **more than** the 30% allowed." in page


def test_own_skill_is_counted_directly_and_with_results_apart(exam: Exam) -> None:
    columns = {column: tuple(q.reads for q in questions) for column, questions in asked_of(exam, "cipher").items()}
    own = program.own_of(exam, "cipher", Marks(columns, ()))
    assert (own.direct.right, own.reading.right) == (0, own.reading.of)
    assert sum(found.of for found in own.operations.values()) == 60
    assert "cipher.shift" in own.operations
    assert own.all.of == 60


class Failing:
    """Answers nothing."""

    info = WorkerInfo("failing")

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        raise WorkerError("the machine is on fire")


def with_workers(monkeypatch: pytest.MonkeyPatch, **instead: Worker) -> None:
    """Exact specialists in the place of the shipped files, but for some."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[dict[str, Worker]]:
        yield {s.name: instead.get(s.name) or ExactSpecialist(s) for s in ROSTER}

    monkeypatch.setattr(program, "shipped", opened)


async def test_a_run_that_is_cut_goes_on_with_the_worker_it_was_cut_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exam, out, said = exam_of(1, test=1), tmp_path / "new" / "m.json", list[str]()
    with_workers(monkeypatch, roman=Failing())
    with pytest.raises(WorkerError, match="on fire"):
        await program.measure(exam, out=out, say=said.append)
    done = [json.loads(line)["worker"] for line in program.scratch_of(out).read_bytes().splitlines()]
    assert done == [s.name for s in ROSTER[: ROSTER.index(find_specialist("roman"))]]
    assert said[0].startswith("1 of 13: facts, own skill 1 of 1, test alone ")

    with_workers(monkeypatch, facts=Failing())  # nobody asks it again
    found = await program.measure(exam, out=out, say=said.append)
    assert list(found.results.own) == [s.name for s in ROSTER] == list(found.adapters)
    assert found.results.counts["roman"]["roman"] == Count(1, 1)
    assert {len(sha) for sha in (*found.adapters.values(), *found.base.values())} == {64}


def test_what_was_kept_of_another_exam_or_other_files_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "kept"
    same = Kept("roman", "ab", "this exam", Marks({}, ()), 1.0)
    for kept in (
        same,
        Kept("dates", "cd", "this exam", Marks({}, ()), 1.0),
        Kept("code", "ab", "x", Marks({}, ()), 1.0),
    ):
        program.keep(kept, file)
    with file.open("a") as lines:
        lines.write('{"worker": "fac')
    found = program.read_kept(file, {"roman": "ab", "dates": "ab", "code": "ab", "facts": "ab"}, exam="this exam")
    assert found == {"roman": same}


async def test_adapters_that_do_not_ship_are_named_before_anybody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match="has no adapter for conductor, facts, letters"):
        await program.measure(exam_of(1, test=0), out=tmp_path / "m.json", say=print)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--a-skill", "0"), "error: --a-skill 0: ask at least one question a skill"),
        (("--test", "-3"), "error: -3 questions of the test cannot be asked; say 0 or more"),
        (("--out", "m.md"), "error: --out m.md: name a .json file; the page is written beside it"),
        (("--page", "--out", "nowhere.json"), "error: nowhere.json holds no matrix"),
    ],
)
def test_bad_options_are_named_and_nothing_is_written(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["specialists.py", *arguments])
    with pytest.raises(SystemExit) as exit:
        program.main()
    assert str(exit.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_the_program_explains_itself_with_an_example_and_needs_no_torch() -> None:
    code = (
        "import runpy, sys; sys.argv = ['specialists.py', '--help']\n"
        "try: runpy.run_path('benchmarks/specialists.py', run_name='__main__')\n"
        "finally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=RESULTS.parents[2], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "python benchmarks/specialists.py --a-skill 20" in done.stdout


def test_the_page_in_the_docs_is_what_was_measured() -> None:
    found = program.read(RESULTS)
    assert RESULTS.with_suffix(".md").read_text(encoding="utf-8") == as_page(found)
    assert list(found.results.matrix.skills) == [s.name for s in ROSTER]
    assert found.results.matrix.test_questions > 0
    assert list(found.base) == [gym_workers.BASE_WEIGHTS]
