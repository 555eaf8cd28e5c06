"""Graders of free text: is the final answer of this reply the right one, and do two replies give the same answer?

    final_number  numeric equality within 1e-6; of whole numbers exact
    choice        one letter
    exact         the same text, case and spacing aside
    short         the same text, or a number within 1e-3, units, currency and per cent aside
    literal       the same Python literal, in value and in type; a text may stand without its quotes
    math          mathematically equal (`mathematics.py`)
    code          by tests in a sandbox
    score         the reply is the score itself, for files that recorded no answers

The gym's graders (`task.py`) want the bare value and are judged there. A vote compares answers with the same functions
that grade them, so that "1/2" and "0.5" are one answer to both. Programs are the exception, since no test is run for a
vote: two are the same answer where their syntax trees are, comments, layout and the prose around them aside.
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
"""Of a number in a short free answer, relative: as the Conductor paper's own grader of RLPR allows."""

QUANTITY = re.compile(r"[$€£]?\s*([-+]?(?:\d[\d,]*(?:\.\d+)?|,*\.\d+)(?:e[-+]?\d+)?)(\s*%|[^\d%]*)", re.IGNORECASE)
"""A number, perhaps with a currency before it and a unit behind it. No two neighbours take the same characters: else a
reply of thousands of digits takes seconds."""

SCALES = frozenset({"hundred", "thousand", "million", "billion", "trillion", "dozen"})
"""Words behind a number that are no unit: without them it is another number."""


async def judge(task: Task, text: str, *, sandbox: Sandbox | None = None) -> Grade:
    """Judge a reply to any task. `GradeError` where there is nothing to judge with; code needs a sandbox to run in."""
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
                raise GradeError(f"task {task.id!r} is graded by running code, and no sandbox is there to run it in")
            return await grade_code_task(task, text, sandbox=sandbox)
        case "short":
            answer = final_answer(text)
            return Grade(_same_short(answer, task.answer), answer)
        case _:
            answer = final_answer(text)
            return Grade(bool(answer) and _folded(answer) == _folded(task.answer), answer)


async def same_answer(first: str, second: str, *, grader: Grader) -> bool:
    """Whether two replies give the same final answer. A reply without one agrees with nobody."""
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
            raise GradeError(f"replies graded by {grader!r} cannot be compared with one another")
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
        return number == gold  # a millionth of some millions would forgive the next whole number
    return abs(number - gold) <= TOLERANCE * max(1.0, abs(gold))


def _same_short(answer: str, gold: str) -> bool:
    """Equal as text, or equal as numbers; two units that both are given must be the same, and so must scales."""
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
    """Case, spacing, and the commas between listed words aside."""
    return tidy(re.sub(r"[,\s]+", " ", text))


def _literal_grade(gold: str, text: str) -> Grade:
    wanted = _literal(gold)
    values = _values(text)
    got = next(iter(literals(text)), "")
    return Grade(any(_equal(wanted, value) for value in values), got)


def _values(text: str) -> list[Any]:
    """What the answer may stand for: the literal it spells, or the text it is, written without quotes."""
    return [value for answer in literals(text) for value in (_literal(answer), answer)]


def _literal(text: str) -> Any:
    text = text.strip().strip("`").strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a model's text is no concern of ours
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text


def _equal(left: Any, right: Any) -> bool:
    """Equal in value and, at every depth, in type: 1 is not True and not 1.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(_equal(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    return bool(left == right)


@lru_cache(maxsize=128)  # a vote compares every reply with several others
def _program(reply: str) -> str:
    """The syntax tree of the code in a reply, as text; code that does not parse stands for itself."""
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
