"""The questions of a calibration: a user's file, or the set that ships.

A row needs a `question`. With an `answer` it is graded, by its `grader` or by one that fits the answer's form. With a
`rubric` in place of an answer, a judge worker grades it. With neither, correctness can only be estimated. A faulty row
is an error that names its line and its field, before anything is paid.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from dirigent.errors import ConfigError, GradeError
from dirigent.learn.table import Question
from dirigent.tasks.answers import final_letter, number_in
from dirigent.tasks.benchmarks import FREE, LITERAL_TASKS, task_of
from dirigent.tasks.code import missing_libraries, problem_in
from dirigent.tasks.published import Row
from dirigent.tasks.tables import decoded, raw_rows
from dirigent.tasks.task import Grader
from dirigent.toml import nearest

BUILTIN = "builtin_questions.jsonl.gz"

GRADERS: dict[str, Grader] = {str(name): grader for name, grader in FREE.items()} | {"final_number": "final_number"}
"""The names that a row may give, and the graders that they mean."""

FIELDS = ("id", "question", "answer", "grader", "rubric", "kind", "task", "split", "part", "meta")
ENDINGS = (".jsonl", ".gz", ".json", ".csv")
MOST_FAULTS = 5
"""Faults that one error names."""

OPTIONS = re.compile(r"^\s*\(?[A-B][).:]\s", re.MULTILINE)
MATHEMATICAL = re.compile(r"\\[a-z]+|\^|_\{|(?<=\w)/(?=\w)|\bsqrt\b|\bpi\b")
PLAIN_NUMBER = re.compile(r"[$€£]?\s*[-+−]?\d[\d,]*(?:\.\d+)?\s*%?")


class CalibrationQuestion(msgspec.Struct, frozen=True):
    """A question of a calibration, with what grades it."""

    question: Question
    rubric: str = ""
    """For a judge: what a good answer is like."""

    @property
    def labelled(self) -> bool:
        return bool(self.question.answer)


def builtin_questions() -> list[CalibrationQuestion]:
    """Returns the set that ships: about 300 questions of several kinds, each with an answer."""
    with resources.as_file(resources.files("dirigent.learn").joinpath(BUILTIN)) as file:
        return load_questions(file)


def load_questions(file: Path) -> list[CalibrationQuestion]:
    """Returns the questions of a JSON, JSON lines or CSV file; raises ConfigError with the faults of its rows."""
    if file.suffix not in ENDINGS:
        raise ConfigError(f"{file} must be a .jsonl, .json or .csv file of questions")
    found: list[CalibrationQuestion] = []
    faults: list[str] = []
    lines: dict[str, str] = {}
    for place, raw in _placed(file):
        try:
            row = _read(raw)
        except ConfigError as error:
            faults.append(f"{place}: {error}")
            continue
        id = row.question.id
        if id in lines:
            what = f'"id" {id!r} is the id of' if raw.get("id") else '"question" is the same as in'
            faults.append(f"{place}: {what} {lines[id]} too")
        lines[id] = place
        found.append(row)
    if faults:
        more = f"\nand {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
        raise ConfigError(f"{file} cannot be asked:\n" + "\n".join(faults[:MOST_FAULTS]) + more)
    if not found:
        raise ConfigError(f'{file} holds no question; write one object a line: {{"question": "…", "answer": "…"}}')
    return found


def guessed_grader(question: str, answer: str) -> Grader:
    """Returns the grader that fits an answer's form."""
    answer = answer.strip()
    if re.fullmatch(r"\(?[A-J]\)?", answer) and OPTIONS.search(question):
        return "choice"
    if PLAIN_NUMBER.fullmatch(answer):
        return "final_number"
    try:
        value = ast.literal_eval(answer)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        value = None
    if isinstance(value, list | tuple | dict | set | bool):
        return "literal"
    return "math" if MATHEMATICAL.search(answer) and len(answer) <= 100 else "short"


def _placed(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each row with its place in the file, as an error names it."""
    if file.suffix in (".csv", ".json"):
        for number, raw in enumerate(raw_rows(file), start=1):
            if not isinstance(raw, Mapping):
                raise ConfigError(f"{file}, row {number} is no object with a question, but {raw!r:.60}")
            yield f"row {number}", raw
        return
    for number, raw in decoded(file, dict[str, Any]):
        yield f"line {number}", raw


def _read(raw: Mapping[str, Any]) -> CalibrationQuestion:
    for name in raw:
        near = difflib.get_close_matches(str(name).lower(), FIELDS, n=1, cutoff=0.75)
        if name not in FIELDS and near:
            raise ConfigError(f'there is no field "{name}"; did you mean "{near[0]}"?')
    text = _text(raw, "question").strip()
    if not text:
        raise ConfigError('"question" is empty')
    answer, rubric, named = (_text(raw, name).strip() for name in ("answer", "rubric", "grader"))
    if named and named not in GRADERS:
        raise ConfigError(f'"grader" is unknown: "{named}"{nearest(named, GRADERS)}')
    id = _text(raw, "id").strip() or hashlib.sha1(text.encode()).hexdigest()[:12]
    kind, split, part = _text(raw, "kind") or _text(raw, "task"), _text(raw, "split"), _text(raw, "part")
    grader: Grader | None = GRADERS[named] if named else guessed_grader(text, answer) if answer else None
    if grader == "exact" and kind in LITERAL_TASKS:
        grader = "literal"
    if grader == "code":
        text, answer = _program(raw, id)
    elif answer and grader is not None:
        _check_answer(answer, grader)
    return CalibrationQuestion(Question(id, text, kind, answer, grader, split, part), rubric)


def _text(raw: Mapping[str, Any], name: str) -> str:
    value = raw.get(name)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float | list) and name in ("answer", "id"):
        return str(value)
    raise ConfigError(f'"{name}" must be text, not {value!r:.60}')


def _check_answer(answer: str, grader: Grader) -> None:
    if grader == "final_number" and number_in(answer) is None:
        raise ConfigError(f'"answer" is {answer!r}, and the grader "number" compares numbers; use "short" or "math"')
    if grader == "choice" and not (len(answer.strip("()")) == 1 and final_letter(answer)):
        raise ConfigError(f'"answer" is {answer!r}, and the grader "choice" compares one letter; use "short"')


def _program(raw: Mapping[str, Any], id: str) -> tuple[str, str]:
    """Returns the question as it is asked, and its tests as the grader reads them."""
    try:
        row = msgspec.convert({"answer": "", **raw, "id": id}, Row)
        task = task_of(row)
        problem = problem_in(task)
    except (msgspec.ValidationError, GradeError, KeyError, ValueError) as error:
        raise ConfigError(f'"grader" is "code", and the row has no tests in "meta" that can be run: {error}') from None
    if problem.libraries:
        raise ConfigError(f'"meta": {missing_libraries(problem.libraries)}')
    return task.question, task.answer
