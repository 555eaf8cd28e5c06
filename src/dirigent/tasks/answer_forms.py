"""Answer forms: whether two replies give the same answer, for questions of any kind and without the right answer.

`graders.py` compares when the kind of question is known. A server does not know it, so here the answer itself says
what it is: an option's letter, a number with or without its unit, a Python literal, mathematics, or text.
"""

from __future__ import annotations

import ast
import re
import warnings
from fractions import Fraction

from dirigent.errors import GradeError
from dirigent.tasks.answers import final_answer, final_letter, final_number
from dirigent.tasks.mathematics import plain, same_mathematics
from dirigent.tasks.task import Grader, tidy

OPTIONS = re.compile(r"\n\s*\(?A[).:]\s.*\n\s*\(?B[).:]\s", re.DOTALL)
SAYS_ANSWER = re.compile(r"^(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*:?\s*", re.IGNORECASE)
WITH_UNIT = re.compile(
    r"(?:\\?[$€£]\s*)?([-+]?[\d,]{0,30}\.?\d{1,30})(?:\s*\\?%|\s+(?:[a-z]+\s?){1,3})?", re.IGNORECASE
)
NO_UNITS = re.compile(r"\b(?:hundred|thousand|million|billion|trillion|dozen|and|or|to|mod|pi|e|i|x)\b", re.IGNORECASE)
MOST_MATH_CHARS = 60
"""Longer answers are compared with one another as text only."""
MATHEMATICAL = re.compile(r"\\|[\^*/=\[(]|sqrt|pi\b")


async def same_free_answer(first: str, second: str) -> bool:
    """Returns whether two replies give the same answer; a reply without an answer equals no reply, not even itself."""
    answers = [_free_answer(first), _free_answer(second)]
    if not all(answers):
        return False
    forms = [normal_form(answer, grader="short") for answer in answers]
    if forms[0] == forms[1] or plain(answers[0]) == plain(answers[1]):
        return True
    texts = all(form.startswith("text ") for form in forms)  # numbers and literals were compared by value
    short = max(map(len, answers)) <= MOST_MATH_CHARS
    if not (texts and short and any(map(MATHEMATICAL.search, answers))):
        return False
    try:
        return await same_mathematics(*answers)
    except GradeError:  # math-verify is not installed
        return False


def _free_answer(reply: str) -> str:
    letter = final_letter(reply)
    return letter or final_answer(reply)


def answer_of(reply: str, *, question: str, grader: Grader) -> str:
    """The final answer in a reply, as its grader reads it; empty if it has none.

    Questions with lettered options are answered by a letter. If a number is wanted, a reply that names no answer gives
    its last number.
    """
    if OPTIONS.search(question) and (letter := final_letter(reply)):
        return letter
    answer = final_answer(reply)
    if grader == "final_number" and final_number(answer) is None:
        number = final_number(reply)
        return "" if number is None else f"{number:.12g}"
    return answer


def normal_form(answer: str, *, grader: Grader) -> str:
    """The same text for answers that are plainly equal: numbers by value, Python literals by value, else clean text."""
    answer = SAYS_ANSWER.sub("", answer.strip().strip("`")).strip().strip("`").strip()
    if grader == "final_number" and (number := final_number(answer)) is not None:
        return f"number {number:.10g}"
    if grader != "literal" and (number := number_of(answer)) is not None:
        return f"number {number:.10g}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a model's text
            value = ast.literal_eval(answer)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        value = answer
    if not isinstance(value, str):
        return f"literal {value!r}"
    if grader == "literal":
        return f"text {value}"
    return "text " + (plain(value) if grader == "math" else tidy(re.sub(r"[,\s]+", " ", value)))


def number_of(answer: str) -> float | None:
    """The number that the answer is, units aside; None if it is anything else."""
    bare = plain(answer)
    if found := re.fullmatch(r"(-?)\\frac\{?(-?\d+)\}?\{?(\d+)\}?", bare):
        bare = f"{found[1]}{found[2]}/{found[3]}"
    bare = re.sub(r"(?<=\d),(?=\d{3})", "", bare)
    if re.fullmatch(r"[-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}|\d{1,30}/\d{0,29}[1-9]\d{0,29})", bare):
        return float(Fraction(bare))
    found = WITH_UNIT.fullmatch(answer.strip().strip("$").removesuffix("."))
    if found is None or NO_UNITS.search(answer):
        return None
    try:
        return float(found[1].replace(",", ""))
    except ValueError:
        return None
