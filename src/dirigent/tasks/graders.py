"""Grade replies in free text, and compare the final answers of two replies.

    final_number  numeric equality within 1e-6; whole numbers must be equal
    choice        one letter
    exact         the same text; case and spacing are ignored
    short         the same text, or a number within 1e-3; units, currency and per cent are ignored
    literal       the same Python literal in value and type; the quotes of a text may be missing
    math          mathematically equal (`mathematics.py`)
    code          tests in a sandbox
    score         the reply is the score itself, for files without recorded answers

`task.py` judges the graders of bare values. A vote compares answers with the same functions that grade them, so "1/2"
and "0.5" are one answer for both. Programs are the exception, because a vote runs no tests: two programs are the same
answer if their syntax trees are equal, without comments, layout and prose.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from functools import lru_cache
from typing import Any, get_args

from dirigent.errors import GradeError
from dirigent.sandbox import Sandbox
from dirigent.tasks.answers import final_answer, final_letter, final_number, literals, number_in
from dirigent.tasks.code import extract, grade_code_task
from dirigent.tasks.mathematics import same_mathematics
from dirigent.tasks.task import BareGrader, Grade, Grader, Task, comparable, grade, tidy

TOLERANCE = 1e-6
SHORT_TOLERANCE = 1e-3
"""Relative tolerance of a number in a short free answer. The Conductor paper's grader of RLPR uses the same."""

QUANTITY = re.compile(r"[$€£]?\s*([-+]?(?:\d[\d,]*(?:\.\d+)?|,*\.\d+)(?:e[-+]?\d+)?)(\s*%|[^\d%]*)", re.IGNORECASE)
"""A number, optionally with a currency before it and a unit after it. No two neighbouring groups match the same
characters, because otherwise a reply of thousands of digits would take seconds."""

SCALES = frozenset({"hundred", "thousand", "million", "billion", "trillion", "dozen"})
"""Words after a number that are not units: without such a word the number has another value."""


async def judge(task: Task, text: str, *, sandbox: Sandbox | None = None) -> Grade:
    """Judges a reply to any task. Raises GradeError if the task has no answer, or code has no sandbox."""
    if task.grader in get_args(BareGrader):
        return grade(task, text)
    if not task.answer.strip() and task.grader != "score":
        raise GradeError(f"task {task.id!r} has no answer to grade against")
    match task.grader:
        case "final_number":
            number, gold = final_number(text), number_in(task.answer)
            if gold is None:
                raise GradeError(f"task {task.id!r} is graded by number, but its answer is {task.answer!r}")
            return Grade(_near(number, gold), "" if number is None else f"{number:g}")
        case "choice":
            letter = final_letter(text)
            return Grade(letter == task.answer.strip().strip("()").upper(), letter)
        case "literal":
            return _literal_grade(task.answer, text)
        case "math":
            answer = final_answer(text)
            return Grade(bool(answer) and await same_mathematics(task.answer, answer), answer)
        case "score":
            return _score_grade(text)
        case "code":
            if sandbox is None:
                raise GradeError(f"task {task.id!r} is graded by running code, but there is no sandbox to run it in")
            return await grade_code_task(task, text, sandbox=sandbox)
        case "short":
            answer = final_answer(text)
            return Grade(_same_short(answer, task.answer), answer)
        case _:
            answer = final_answer(text)
            return Grade(bool(answer) and _folded(answer) == _folded(task.answer), answer)


async def same_answer(first: str, second: str, *, grader: Grader) -> bool:
    """Returns whether two replies give the same final answer. A reply without one agrees with no other."""
    match grader:
        case "final_number":
            return _near(final_number(first), final_number(second))
        case "choice":
            return bool(letter := final_letter(first)) and letter == final_letter(second)
        case "literal":
            left, right = _values(first), _values(second)
            return bool(left) and bool(right) and any(_equal(a, b) for a in left for b in right)
        case "math":
            left_answer, right_answer = final_answer(first), final_answer(second)
            if not left_answer or not right_answer:
                return False
            return await same_mathematics(left_answer, right_answer)
        case "code":
            return bool(program := _program(first)) and program == _program(second)
        case "score":
            raise GradeError(f"replies graded by {grader!r} cannot be compared with each other")
        case "short":
            left_answer, right_answer = final_answer(first), final_answer(second)
            return bool(left_answer) and _same_short(left_answer, right_answer)
        case "exact":
            return bool(answer := _folded(final_answer(first))) and answer == _folded(final_answer(second))
        case _:
            bare, other = tidy(first), tidy(second)
            return bool(bare) and comparable(bare, grader=grader) == comparable(other, grader=grader)


def _near(number: float | None, gold: float | None) -> bool:
    if number is None or gold is None:
        return False
    if number.is_integer() and gold.is_integer():
        return number == gold  # a tolerance of 1e-6 on some millions would accept the next whole number
    return abs(number - gold) <= TOLERANCE * max(1.0, abs(gold))


def _same_short(answer: str, gold: str) -> bool:
    """Returns whether the texts or the numbers are equal. If both have a unit or a scale, those must match."""
    answer, gold = answer.replace("−", "-"), gold.replace("−", "-")
    if not answer.strip() or _folded(answer) == _folded(gold):
        return bool(answer.strip())
    got, wanted = QUANTITY.fullmatch(answer.strip().strip("$")), QUANTITY.fullmatch(gold.strip().strip("$"))
    if got is None or wanted is None:
        return False
    units = {_folded(found[2]) for found in (got, wanted)}
    if len(units) > 1 and ("" not in units or any(SCALES & set(unit.split()) for unit in units)):
        return False
    left, right = (float(found[1].replace(",", "")) for found in (got, wanted))
    return abs(left - right) <= SHORT_TOLERANCE * max(abs(right), 1e-9)


def _folded(text: str) -> str:
    """Returns the text without case, spacing, and the commas between listed words."""
    return tidy(re.sub(r"[,\s]+", " ", text))


def _literal_grade(gold: str, text: str) -> Grade:
    wanted = _literal(gold)
    values = _values(text)
    got = next(iter(literals(text)), "")
    return Grade(any(_equal(wanted, value) for value in values), got)


def _values(text: str) -> list[Any]:
    """Returns the possible meanings of an answer: the literal it spells, or its text as an unquoted string."""
    return [value for answer in literals(text) for value in (_literal(answer), answer)]


def _literal(text: str) -> Any:
    text = text.strip().strip("`").strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a model's text is harmless here
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text


def _equal(left: Any, right: Any) -> bool:
    """Returns whether values and, at every depth, types are equal: 1 is not True and not 1.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(_equal(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    return bool(left == right)


@lru_cache(maxsize=128)  # a vote compares each reply with several others
def _program(reply: str) -> str:
    """Returns the syntax tree of the code in a reply as text, or the code itself if it does not parse."""
    code = textwrap.dedent(extract(reply)).strip("\n")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
            return ast.dump(tree) if tree.body else ""
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return "\n".join(line.rstrip() for line in code.split("\n")).strip()


def _score_grade(text: str) -> Grade:
    try:
        score = float(text)
    except ValueError:
        raise GradeError(f"a recorded score must be a number, not {text[:80]!r}") from None
    return Grade(score >= 1.0, text, score)
