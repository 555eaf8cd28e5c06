"""The matrix of specialists: exact ones get the figures that the gym was built for."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from gym.benchmarks import specialists as program
from gym.benchmarks.specialists import Kept, examine, results_of
from gym.benchmarks.specialists_page import (
    MOST_UNAIDED,
    NEAR,
    Count,
    Measured,
    Tries,
    as_page,
    independence,
    one_of_three,
    over_questions,
    read,
)
from tests.facts import facts, says

from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.planners.spec import noise_seed
from dirigent.tasks.task import Task
from dirigent.workers.worker import Worker, WorkerInfo
from dirigent_gym.evals import workers as gym_workers
from dirigent_gym.questions.judging import (
    Exam,
    Marks,
    columns_of,
    conversations_for,
    exam_of,
    is_own,
    mark_replies,
    questions_for,
)
from dirigent_gym.questions.oracle import ExactSpecialist
from dirigent_gym.questions.skills import PUZZLE_OPERATIONS
from dirigent_gym.questions.specialists import ROSTER, find_specialist

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "specialists.json"


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


async def test_no_worker_solves_much_of_the_test_alone_and_depth_one_is_covered(exam: Exam) -> None:
    matrix = results_of(exam, await exact(exam)).matrix
    assert 0.0 < max(matrix.alone.values()) < 0.3
    single = [task for task in exam.tasks if task.sketch and len(task.sketch.steps) == 1]
    assert max(matrix.alone.values()) <= matrix.oracle <= len(single) / len(exam.tasks)


def test_everybody_is_asked_all_of_its_own_skill_and_the_first_few_of_the_others(exam: Exam) -> None:
    asked = questions_for(exam, "sums")
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
    assert mark_replies(short, "roman", replies).skills["roman"] == (True, False, False)


def test_replies_that_are_missing_are_an_error_and_not_wrong_answers(exam: Exam) -> None:
    with pytest.raises(ConfigError, match=facts("roman 172 1")):
        mark_replies(exam, "roman", ["XIV"])


def test_fewer_than_no_questions_cannot_be_asked() -> None:
    with pytest.raises(ConfigError, match=facts("-1 0")):
        exam_of(1, test=-1)


async def test_the_page_names_the_workers_that_fall_short(exam: Exam) -> None:
    marks = await exact(exam)
    skills = marks["dates"].skills
    half = msgspec.structs.replace(marks["dates"], skills=skills | {"dates": (True, False) * 30})
    page = as_page(measured(exam, marks | {"dates": half}))
    assert any(says(line, "`dates` 98% 50.0% 30 60 95% 37.7 62.3") for line in page.splitlines())
    assert any(says(line, "- `guesser` 70%") for line in page.splitlines())
    assert page.count("- **`") == 1
    assert any(says(line, "- `checker` 0 6") for line in page.splitlines())
    assert says(page, "30% 0 924 `guesser` 6 60 40")
    assert "| **50.0** |" in page


async def test_the_page_states_that_one_worker_solves_too_much(exam: Exam) -> None:
    marks = await exact(exam)
    able = msgspec.structs.replace(marks["code"], alone=(True,) * 20 + (False,) * 20)
    page = as_page(measured(exam, marks | {"code": able}))
    assert any(says(line, "`code` 50.0% 20 40 95% 35.2 64.8 30%") for line in page.splitlines())


def tried(worker: str, marks: dict[str, dict[str, str]], **changes: object) -> Tries:
    tries = Tries(worker, marks, {"a-base": "cd"}, "ab", "def456", "2026-11-16", 600.0, 2)
    return msgspec.structs.replace(tries, **changes)


def test_every_puzzle_is_asked_alike_often_in_wordings_of_its_own() -> None:
    puzzles = program.puzzles_of(3)
    texts = [puzzle.messages[-1].text for puzzle in puzzles]
    keys = [(op.full_name, key) for op in PUZZLE_OPERATIONS for key in op.table]
    assert len(set(texts)) == len(texts) == 3 * len(keys)
    for (operation, key), start in zip(keys, range(0, len(puzzles), 3), strict=True):
        assert all(key[0] in text for text in texts[start : start + 3])
        assert {puzzle.operation for puzzle in puzzles[start : start + 3]} == {operation}


class Noting:
    """Answers rightly if the seed is even, and records its requests."""

    info = WorkerInfo("guesser")

    def __init__(self) -> None:
        self.seeds: dict[str, list[int]] = {}
        self.right = {puzzle.messages[-1].text: puzzle.answer for puzzle in program.puzzles_of(1)}

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        assert request.seed is not None
        text = request.messages[-1].text
        self.seeds.setdefault(text, []).append(request.seed)
        return Reply(self.right[text] if request.seed % 2 == 0 else "unknown")


async def test_guesses_are_seeded_by_the_question_the_run_and_the_number_of_the_step() -> None:
    worker, puzzles, said = Noting(), program.puzzles_of(1), list[str]()
    marks = await program.tries_of(worker, puzzles, runs=2, guesses=3, say=said.append)
    assert said[-1] == "guesser: 118 of 118 puzzles"
    for puzzle in puzzles:
        text = puzzle.messages[-1].text
        firsts = [noise_seed(1, Task(text, text, ""), run) for run in (0, 1)]
        assert worker.seeds[text] == [first + guess for first in firsts for guess in (0, 1, 2)]
        words = ["101" if first % 2 == 0 else "010" for first in firsts]
        assert marks[puzzle.operation][text] == " ".join(words)


async def test_an_exact_guesser_is_right_as_often_as_its_card_says_and_independently() -> None:
    guesser = ExactSpecialist(find_specialist("guesser"))
    tries = tried("guesser", await program.tries_of(guesser, program.puzzles_of(4), runs=2, guesses=3, say=print))
    assert tries.all.of == 2832
    assert 0.67 < tries.all.share < 0.73
    found = independence(tries)
    assert found.difference.interval[0] < 0 < found.difference.interval[1] < 0.03
    assert one_of_three(tries).share == pytest.approx(1 - 0.3**3, abs=0.02)


class OneMind(Noting):
    """Right 70% of the time, but guesses with neighbouring seeds are equal."""

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        assert request.seed is not None
        luck = random.Random(request.seed // 8).random()
        return Reply(self.right[request.messages[-1].text] if luck < 0.7 else "unknown")


async def test_guesses_that_fall_alike_within_a_run_are_noticed() -> None:
    tries = tried("guesser", await program.tries_of(OneMind(), program.puzzles_of(1), runs=2, guesses=3, say=print))
    found = independence(tries)
    assert found.both > found.product + 0.1
    assert found.difference.interval[0] > 0.05
    assert one_of_three(tries).share < 0.9


def test_questions_of_unlike_difficulty_do_not_pass_for_dependence() -> None:
    """Half are always right and half never: both right in half of the pairs, a quarter by the mean rate."""
    found = independence(tried("guesser", {"puzzles.root": {"a": "111 111", "b": "000 000"}}))
    assert (found.both, found.product, found.difference.mean) == (0.5, 0.5, 0.0)


def test_an_interval_over_questions_is_wider_where_they_are_unlike() -> None:
    unlike = {f"q{i}": "111 111" if i % 2 else "000 000" for i in range(100)}
    low, high = over_questions(tried("guesser", {"puzzles.root": unlike}))
    assert (low, high) == pytest.approx((0.4, 0.6), abs=0.02)


async def test_the_page_reports_guesses_and_the_checker_with_the_commit_of_each(exam: Exam) -> None:
    found = measured(exam, await exact(exam))
    assert "## Guessing" not in as_page(found)
    guesses = {"puzzles.anagram": {f"a{i}": "110 101" for i in range(118)}}
    checks = {"puzzles.root": {f"a{i}": "1" if i < 2 else "0" for i in range(118)}}
    page = as_page(
        msgspec.structs.replace(
            found, guesser=tried("guesser", guesses), checker=tried("checker", checks, commit="fed987")
        )
    )
    assert says(page, "708 66.7% 2 118")
    assert "| guesser | right | 66.7 | 63.1 to 70.0 | 472 of 708 | 67.0 to 73.0 |" in page
    assert re.search(r"\| 66\.7 \| 66\.7 to 66\.7 \| 118 ", page), "all are equally hard"
    assert re.search(r"\| guesser \| [^|]+ \| 33\.3 \| \| 708 ", page)
    assert "| 44.4 | | | |" in page
    assert "| -11.1 | -11.1 to -11.1 | 118 " in page
    assert re.search(r"\| guesser \| [^|]+ \| 100\.0 \| 98\.4 to 100\.0 \| 236 of 236 \| 97\.3", page)
    assert re.search(r"\| checker \| [^|]+ \| 1\.7 \| 0\.5 to 6\.0 \| 2 of 118 \| .*10\.0 \|", page)
    assert any(says(line, "--part guesser --wordings 1` 2026-11-16 10 2 `def456`") for line in page.splitlines())
    assert any(says(line, "--part checker --wordings 1` 2026-11-16 10 2 `fed987`") for line in page.splitlines())
    assert any(says(line, "2026-11-15 1 `abc123`") for line in page.splitlines())


def test_own_skill_is_counted_directly_and_with_results_apart(exam: Exam) -> None:
    columns = {column: tuple(q.reads for q in questions) for column, questions in questions_for(exam, "cipher").items()}
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


async def test_an_interrupted_run_continues_with_the_worker_it_was_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exam, out, said = exam_of(1, test=1), tmp_path / "new" / "m.json", list[str]()
    with_workers(monkeypatch, roman=Failing())
    with pytest.raises(WorkerError, match="on fire"):
        await program.measure(exam, out=out, say=said.append)
    done = [json.loads(line)["worker"] for line in program.scratch_of(out).read_bytes().splitlines()]
    assert done == [s.name for s in ROSTER[: ROSTER.index(find_specialist("roman"))]]
    assert said[0].startswith("1 of 13: facts, own skill 1 of 1, test alone ")

    with_workers(monkeypatch, facts=Failing())  # it must not be asked again
    found = await program.measure(exam, out=out, say=said.append)
    assert list(found.results.own) == [s.name for s in ROSTER] == list(found.adapters)
    assert found.results.counts["roman"]["roman"] == Count(1, 1)
    assert {len(sha) for sha in (*found.adapters.values(), *found.base.values())} == {64}


def run_program(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["specialists.py", *arguments])
    program.main()


def test_parts_that_are_not_named_are_kept_to_the_letter_with_their_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "m.json"
    with_workers(monkeypatch)
    run_program(monkeypatch, "--a-skill", "1", "--own", "1", "--test", "1", "--wordings", "1", "--out", str(out))
    whole = read(out)
    assert whole.guesser is not None
    assert whole.checker is not None
    assert (whole.guesser.all.of, whole.checker.all) == (708, Count(0, 118))
    older = msgspec.structs.replace(whole, commit="old", guesser=msgspec.structs.replace(whole.guesser, commit="older"))
    out.write_bytes(msgspec.json.encode(older))

    with_workers(monkeypatch, facts=Failing(), guesser=Failing())  # they must not be asked again
    run_program(monkeypatch, "--part", "checker", "--wordings", "2", "--out", str(out))
    renewed = read(out)
    assert renewed.checker is not None
    assert renewed.checker.all == Count(0, 236)
    assert msgspec.structs.replace(renewed, checker=older.checker) == older
    assert out.with_suffix(".md").read_text(encoding="utf-8") == as_page(renewed)
    assert {file.name for file in tmp_path.iterdir()} == {"m.json", "m.md"}


def test_a_part_of_files_that_do_not_ship_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "m.json"
    found = read(RESULTS)
    other = msgspec.structs.replace(found, adapters=found.adapters | {"roman": "ab"})
    out.write_bytes(msgspec.json.encode(other))
    before = out.read_bytes()
    with_workers(monkeypatch)
    with pytest.raises(SystemExit, match=facts("matrix roman --part")):
        run_program(monkeypatch, "--part", "checker", "--wordings", "1", "--out", str(out))
    assert out.read_bytes() == before


def test_stored_marks_of_another_exam_or_other_files_do_not_count(tmp_path: Path) -> None:
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


async def test_missing_adapters_are_named_before_any_worker_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match=facts("conductor facts letters")):
        await program.measure(exam_of(1, test=0), out=tmp_path / "m.json", say=print)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--a-skill", "0"), "--a-skill 0"),
        (("--test", "-3"), "-3 0"),
        (("--wordings", "0"), "--wordings 0"),
        (("--part", "guesser", "--out", "nowhere.json"), "nowhere.json"),
        (("--out", "m.md"), "--out m.md .json"),
        (("--page", "--out", "nowhere.json"), "nowhere.json"),
    ],
)
def test_bad_options_are_named_and_nothing_is_written(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["specialists.py", *arguments])
    with pytest.raises(SystemExit) as exit:
        program.main()
    assert says(str(exit.value), f"error: {message}")
    assert list(tmp_path.iterdir()) == []


def test_the_program_explains_itself_with_an_example_and_needs_no_torch() -> None:
    code = (
        "import runpy, sys; sys.argv = ['specialists.py', '--help']\n"
        "try: runpy.run_path('gym/benchmarks/specialists.py', run_name='__main__')\n"
        "finally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=RESULTS.parents[2], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "python gym/benchmarks/specialists.py --a-skill 20" in done.stdout


def test_the_page_in_the_docs_equals_the_measurement() -> None:
    found = read(RESULTS)
    assert RESULTS.with_suffix(".md").read_text(encoding="utf-8") == as_page(found)
    assert list(found.results.matrix.skills) == [s.name for s in ROSTER]
    assert found.results.matrix.test_questions > 0
    assert list(found.base) == [gym_workers.BASE_WEIGHTS]


def test_the_docs_figures_of_the_specialists_belong_to_the_shipped_files() -> None:
    found, now = read(RESULTS), program.shas_now()
    assert found.adapters == now
    for tries in (found.guesser, found.checker):
        assert tries is not None
        assert tries.sha256 == now[tries.worker]
        assert tries.base == found.base


def test_the_published_guesser_is_near_its_card_on_two_thousand_guesses_and_the_checker_does_not_solve() -> None:
    found = read(RESULTS)
    assert found.guesser is not None
    assert found.checker is not None
    assert found.guesser.all.of >= 2000
    assert abs(found.guesser.all.share - 0.7) <= NEAR
    low, high = independence(found.guesser).difference.interval
    assert low <= 0 <= high
    assert found.checker.all.of >= 100
    assert found.checker.all.share <= MOST_UNAIDED
