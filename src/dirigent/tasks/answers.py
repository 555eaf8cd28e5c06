"""The form that an answer must close in, and the final answer found in a model's free text.

Models end a reply in a few ways: a JSON object with an `answer`, a `\boxed{}`, four hashes, "the answer is". The
functions look for these in this order. An answer that was cut off before its end counts as no answer. The module only
reads text; `graders.py` compares. Questions of public benchmarks end with the form that their grader looks for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

FIELD = re.compile(r'["\']answer["\']\s*:\s*')
SAID = re.compile(r"(?:final answer|answer)(?:\*{1,3}(?!=))?\s*(?:is|:|=)\s*:?\s*(.+)", re.IGNORECASE)
"""The word "answer" may be bold, as in "**Answer**: 28". `answer**=2` is Python, so it must not match."""
HASHES = re.compile(r"####\s*(.+)")
LETTER_SAID = re.compile(r"answer is:?\s*\**(?:\(([A-Za-z])\)|([A-Z])\b(?!['’]))")
LETTER_LABEL = re.compile(r"(?i:answer)\**:\s*\**(?:\(([A-Za-z])\)|\(?([A-Zb-z])\b(?!['’]))")
"""A lone small "a" may be an article, so it counts as an option only if it is the whole answer."""
LETTER_ALONE = re.compile(r"\W*([A-Za-z])\W*(?:\s.*)?", re.DOTALL)
SAYS = re.compile(r"answer\s*(?:is|:|=)\s*:?\s*", re.IGNORECASE)
OPTION = re.compile(
    r"\**(?:[Oo]ption|[Cc]hoice)\s+\**(?:\(([A-Za-z])\)|([A-Z])\b\)?)"
    r"(?=\**(?:\s*$|[.;:](?!\w)|\s+\((?!or\b|and\b)|,?\s+(?:because|since)\b))",
    re.MULTILINE,
)
"""Matches "option B" unless the text after it shows that B is one of several options."""
DOUBTED = re.compile(
    r"(?:\b(?:if|whether|not\s+\w+)|n['’]t\s+\w+)\s+(?:that\s+)?(?:the\s+)?(?:\w+\s+)?\Z", re.IGNORECASE
)
NUMBER = re.compile(r"(?<![\w.])[-+−]?\s?\$?\s?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?:\s*/\s*\d+)?")


def final_answer(text: str) -> str:
    """Returns the final answer of a text, or "" if it states none. A text of one line is its own answer."""
    text = text.strip()
    if (field := _json_field(text)) is not None:
        return field
    if (boxed := _boxed(text)) is not None:
        return boxed
    for said in (HASHES, SAID):
        if found := said.findall(text):
            return _unwrapped(found[-1])
    return _unwrapped(text) if text and "\n" not in text else ""


def final_letter(text: str) -> str:
    """Returns the letter of the chosen option, or "".

    Tries the first "answer is (X)", then the last "Answer: X", then the final answer itself, then "option X".
    Takes the first "answer is", because models that run on invent further questions and answer those too.
    """
    if _json_field(text.strip()) is None:
        if said := LETTER_SAID.search(text):
            return (said[1] or said[2]).upper()
        if labels := LETTER_LABEL.findall(text):
            return "".join(labels[-1]).upper()
    answer = final_answer(text)
    answer = re.sub(r"\\text\w*\{(.*)\}", r"\1", answer)
    alone = LETTER_ALONE.fullmatch(answer)
    bare = len(re.sub(r"\W", "", answer)) == 1
    marked = re.match(r"\W*[A-Za-z]\s*[).:]", answer) is not None
    return alone[1].upper() if alone and (bare or marked) else _option_letter(text)


def _option_letter(text: str) -> str:
    """Returns X if the last stated answer is "option X", all stated options agree and the text holds no box."""
    if _json_field(text.strip()) is not None or _boxed(text) is not None or HASHES.search(text):
        return ""
    said = [
        None if DOUBTED.search(before[-80:]) else OPTION.match(after) for before, after in pairwise(SAYS.split(text))
    ]
    letters = {(option[1] or option[2]).upper() for option in said if option}
    return letters.pop() if len(letters) == 1 and said[-1] else ""


def final_number(text: str) -> float | None:
    """Returns the number in the final answer; if there is no final answer, the last number of the text."""
    if answer := final_answer(text):
        return number_in(answer)
    if _json_field(text.strip()) is not None:
        return None
    found = NUMBER.findall(text)
    return _number(found[-1]) if found else None


def number_in(answer: str) -> float | None:
    """Returns the first number after the last equals sign of a short answer, without units and currency."""
    part = answer.rsplit("=", 1)[-1]
    part = re.sub(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r" \1/\2", part)  # the space makes 2\frac{1}{2} two and a half
    part = re.sub(
        r"\\[,!; ]|\\text\w*\{[^}]*\}|\\(?=[$%])|(?<=\d)\{,\}(?=\d)", lambda m: "," if m[0] == "{,}" else "", part
    )
    if mixed := re.fullmatch(r"[\s$]*([-−]?)[\s$]*(\d+)\s+(\d+)\s*/\s*(\d+)\D*", part):
        whole, above, below = (float(group) for group in mixed.groups()[1:])
        return (whole + above / below) * (-1 if mixed[1] else 1) if below else None
    found = NUMBER.search(part)
    return _number(found[0]) if found else None


def literals(text: str) -> Iterator[str]:
    """Yields the texts that a final answer in Python may mean: the JSON-decoded one, then the raw one."""
    text = text.strip()
    rest = _field_rest(text)
    if rest is None:
        if answer := final_answer(text):
            yield answer
        return
    try:
        value, _ = json.JSONDecoder(strict=False).raw_decode(rest)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, str):
        yield value
    if raw := _json_field(text):
        yield raw


def _json_field(text: str) -> str | None:
    """Returns the raw `answer` field: None if there is no such field, "" if it was cut off.

    JSON's escapes stay in the text, because models forget to escape LaTeX and quotes.
    """
    rest = _field_rest(text)
    if rest is None:
        return None
    trimmed = rest.removesuffix("```").rstrip().removesuffix("}").rstrip()
    if len(trimmed) >= 2 and trimmed[0] == trimmed[-1] == '"' and not re.search(r'"\s*,\s*"\w+"\s*:', trimmed):
        return _unescaped(trimmed[1:-1])
    if whole := re.match(r'"((?:[^"\\]|\\.)*)"', rest, re.DOTALL):
        return _unescaped(whole[1])
    if rest.startswith('"'):
        return ""
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(rest)
    except (ValueError, RecursionError):
        return trimmed.rstrip(",").strip() if trimmed != rest else ""
    return rest[:end]


def _field_rest(text: str) -> str | None:
    fields = list(FIELD.finditer(text))
    return text[fields[-1].end() :].strip() if fields else None


def _unescaped(text: str) -> str:
    """Replaces double backslashes and escaped quotes by single ones. A single backslash, as in `\\frac`, stays."""
    return text.replace("\\\\", "\\").replace('\\"', '"').strip()


def _boxed(text: str) -> str | None:
    """Returns the content of the last box with balanced braces: None if there is no box, "" if it was cut off."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    begin = text.index("{", start) + 1
    depth = 1
    for i in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[begin:i].strip()
    return ""


def _unwrapped(answer: str) -> str:
    """Returns the answer without bold marks and without a full stop at its end."""
    answer = answer.strip().strip("*").strip()
    return answer.removesuffix(".").strip().strip("*").strip()


def _number(text: str) -> float | None:
    cleaned = re.sub(r"[\s$,]", "", text.replace("−", "-"))
    above, _, below = cleaned.partition("/")
    try:
        return float(above) / float(below) if below else float(above)
    except (ValueError, ZeroDivisionError):
        return None


# ---- how a question is put --------------------------------------------------------------------------------------


ANSWER_FORMS: dict[str, str] = {
    "final_number": "End with a line of its own: The answer is N.",
    "choice": "End with a line of its own: The answer is (X).",
    "math": "Put the final answer, and nothing else, in \\boxed{}.",
    "exact": "End with a line of its own: The answer is …",
    "short": "End with a line of its own: The answer is …",
    "literal": "End with a line of its own: The answer is … (a Python literal)",
    "code": "Give the whole code in one Python block.",
}
"""How a reply must close so that a grader finds its answer, by grader. Every planner's questions end with it."""

COMPLETE_FUNCTION = "Complete this Python function:"
PASS_TEST = "It must pass this test, among others:"
FILL_STARTER = "Start from this code and keep its names:"
READ_STDIN = "Write a Python program that reads the input from stdin and prints the output."


def closing_form(question: str, grader: str) -> str:
    """A question with the form its answer must close in."""
    form = ANSWER_FORMS.get(grader, "")
    return f"{question.rstrip()}\n\n{form}" if form else question


def lettered(question: str, options: Sequence[str]) -> str:
    """A multiple-choice question with its options as lettered lines."""
    return question.strip() + "\n\n" + "\n".join(f"{chr(65 + i)}. {option}" for i, option in enumerate(options))
