"""Questions are read from a user's file, and a faulty row is named with its line and field."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.builtin_questions import FILE, generated

from dirigent.errors import ConfigError
from dirigent.learn.question_file import builtin_questions, guessed_grader, load_questions
from dirigent.tasks.graders import judge
from dirigent.tasks.task import Task
from tests.facts import says


def written(folder: Path, *rows: object, name: str = "my.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_row_needs_a_question_and_no_more(tmp_path: Path) -> None:
    plain, graded, judged = load_questions(
        written(
            tmp_path,
            {"question": "Why?"},
            {"id": "x", "question": "What is 2 + 2?", "answer": 4, "kind": "sums"},
            {"question": "Write a poem.", "rubric": "It rhymes."},
        )
    )
    assert (plain.question.grader, plain.labelled) == (None, False)
    assert (graded.question.id, graded.question.answer, graded.question.grader) == ("x", "4", "final_number")
    assert (judged.rubric, judged.labelled) == ("It rhymes.", False)
    assert plain.question.id
    assert plain.question.id != judged.question.id


@pytest.mark.parametrize(
    ("question", "answer", "grader"),
    [
        ("How much?", "$1,200.50", "final_number"),
        ("How much?", "-3", "final_number"),
        ("Which?\n\nA. one\nB. two", "B", "choice"),
        ("Which letter comes first?", "A", "short"),
        ("Which list?", "[1, 2]", "literal"),
        ("Is it?", "True", "literal"),
        ("Which term?", "\\frac{1}{2}", "math"),
        ("Which term?", "x^2 + 1", "math"),
        ("Who?", "Ada Lovelace", "short"),
        ("When?", "3 May 2020", "short"),
    ],
)
def test_a_grader_fits_the_form_of_the_answer(question: str, answer: str, grader: str) -> None:
    assert guessed_grader(question, answer) == grader


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "a", "answer": "1", "grader": "nmber"}, 'line 2 "grader" "nmber" did you mean "number"'),
        ({"question": "  "}, 'line 2 "question" empty'),
        ({}, 'line 2 "question" empty'),
        ({"question": "a", "anwser": "1"}, 'line 2 "anwser" did you mean "answer"'),
        ({"id": "q1", "question": "b"}, "line 2 \"id\" 'q1' line 1"),
        ({"question": "first"}, 'line 2 "question" same line 1'),
        ({"question": "a", "answer": "many", "grader": "number"}, 'line 2 "answer" \'many\' "number"'),
        ({"question": "a", "answer": "all", "grader": "choice"}, 'line 2 "answer" \'all\' "choice"'),
        ({"question": ["a"]}, 'line 2 "question" must be text'),
        ({"question": "a", "answer": "def f(): pass", "grader": "code"}, 'line 2 "code" tests'),
    ],
)
def test_a_faulty_row_is_named_with_line_and_field(tmp_path: Path, row: object, words: str) -> None:
    first = {"question": "first"} if "same" in words else {"id": "q1", "question": "first"}
    with pytest.raises(ConfigError) as error:
        load_questions(written(tmp_path, first, row))
    assert says(str(error.value), words)


def test_several_faults_are_named_at_once(tmp_path: Path) -> None:
    file = written(tmp_path, *({"question": ""} for _ in range(7)))
    with pytest.raises(ConfigError) as error:
        load_questions(file)
    assert says(str(error.value), "line 1 line 2 line 5 and 2 more")


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    file = tmp_path / "my.jsonl"
    file.write_text('{"question": "a"}\nnot json\n')
    with pytest.raises(ConfigError, match="line 2"):
        load_questions(file)


def test_an_empty_file_and_a_file_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no question"):
        load_questions(written(tmp_path))
    with pytest.raises(ConfigError, match=r"\.jsonl"):
        load_questions(written(tmp_path, name="my.txt"))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_questions(tmp_path / "none.jsonl")


def test_csv_is_read_and_its_rows_are_named(tmp_path: Path) -> None:
    file = tmp_path / "my.csv"
    file.write_text("question,answer,grader\nWhat is 2 + 2?,4,\nWho?,Ada,exact\n")
    assert [row.question.grader for row in load_questions(file)] == ["final_number", "exact"]
    file.write_text("question,answer\nWhat?,4\n,5\n")
    with pytest.raises(ConfigError) as error:
        load_questions(file)
    assert says(str(error.value), 'row 2 "question" empty')


def test_a_code_row_with_tests_is_read(tmp_path: Path) -> None:
    row = {
        "question": "Write f that adds one.",
        "answer": "def f(n):\n    return n + 1",
        "grader": "code",
        "meta": {"test_list": ["assert f(1) == 2"]},
    }
    (found,) = load_questions(written(tmp_path, row))
    assert found.question.grader == "code"
    assert "assert f(1) == 2" in found.question.answer


def test_the_set_that_ships_has_several_kinds_and_every_answer_passes_its_own_grader() -> None:
    rows = builtin_questions()
    assert 280 <= len(rows) <= 330
    kinds = Counter(row.question.kind for row in rows)
    assert len(kinds) >= 8
    assert min(kinds.values()) >= 20
    assert {row.question.split for row in rows} == {"train"}
    assert FILE.stat().st_size < 100_000


async def test_every_shipped_answer_is_right_by_its_grader_and_a_wrong_one_is_not() -> None:
    for row in builtin_questions():
        question = row.question
        assert question.grader is not None
        task = Task(question.id, question.text, question.answer, grader=question.grader)
        assert (await judge(task, f"So:\nThe answer is {question.answer}")).correct, question
        assert not (await judge(task, "I think\nThe answer is zz 7431")).correct, question


def test_the_drawn_part_of_the_shipped_set_equals_its_programs_draw() -> None:
    with gzip.open(FILE) as lines:
        shipped = [json.loads(line) for line in lines]
    assert [row for row in shipped if row["kind"] != "word problems"] == generated()
