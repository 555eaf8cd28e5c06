"""Find three labelled lists in free text, and `until`: how the `lists` dialect is read.

A language model writes its thoughts first, then `model_id`, `subtasks` and `access_list` in something close
to Python: bulleted, fenced, with curly quotes or none. `until = 0.7` has a line of its own. A text that can be
understood in one way is understood; any other is a `PlanError`. This module knows nothing of workers or steps:
`dialects.py` reads the three lists it returns.

Text may be hostile. Every scan goes forward and every list is bounded (nesting, entries, marks), so that time
is linear in the text; the quantifiers below are possessive (`*+`) for the same reason.
"""

from __future__ import annotations

import ast
import itertools
import json
import re

from dirigent.errors import PlanError
from dirigent.limits import HARD_MAX_STEPS

MAX_NESTING = 8
MAX_ENTRIES = 2 * HARD_MAX_STEPS
"""Entries of one list: more than any plan may have steps, so that the limits in force decide on the count."""
MAX_MARKS = 4096
"""Brackets, commas and strings in one list: 32 steps that each read 31 others, in quotes, stay below."""

_THINK_TAG = re.compile(r"<(/?)think>", re.IGNORECASE)

_LABEL = re.compile(
    r"(?<!\w)(?:(?P<model_id>model[ _-]ids?)|(?P<subtasks>subtasks?)|(?P<access_list>access(?:[ _-]lists?)?))"
    r"[\"'*]{0,3}\s*+[:=]\s*+(?:\*\*\s*+)?(?=\[)",
    re.IGNORECASE,
)
_UNTIL = re.compile(
    r"^[ \t\"'*]*+until[\"'*]*+[ \t]*+[:=][ \t]*+([0-9.]{1,12})[ \t,;]*+$", re.MULTILINE | re.IGNORECASE
)
_BULLET = re.compile(r"^[ \t]*+[-*•–—]++[ \t]++", re.MULTILINE)
# A string that is never closed reaches to the end of the text, so that none of it is scanned twice.
_STRING = "|".join(
    rf"{q * 3}(?:[^{q}\\]++|\\.|{q}(?!{q * 2}))*+(?:{q * 3}|\\?\Z)|{q}(?:[^{q}\\]++|\\.)*+(?:{q}|\\?\Z)" for q in "\"'"
)
_STRINGS = re.compile(_STRING, re.DOTALL)
_MARKS = re.compile(_STRING + r"|[\[\],]", re.DOTALL)
_MARKS_WITHOUT_QUOTES = re.compile(r"[\[\],]")
_STRAIGHT = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "‚": "'"})
_PYTHON_ESCAPES = frozenset("\n\\'\"abfnrtvxuUN")


def labelled_lists(text: str, *, earlier: int = 0) -> tuple[list[object], list[object], list[object], float | None]:
    """Returns `model_id`, `subtasks`, `access_list` and `until`: of each the first in the text, in any order.

    `earlier` is the number of steps in earlier rounds, each of which every step may read.
    """
    most_marks = MAX_MARKS + 2 * HARD_MAX_STEPS * earlier
    text = _without_thoughts(_BULLET.sub("", text.replace("`", "")))
    straight = text.translate(_STRAIGHT)
    found: dict[str, list[object]] = {}
    start = 0
    until = None
    while len(found) < 3 and (label := _LABEL.search(text, start)):
        until = until or _UNTIL.search(text, start, label.start())
        # The whole group is consumed, so that a label inside a subtask is never taken for one.
        end, commas = _bounds(text, straight, label.end(), most_marks)
        name = str(label.lastgroup)
        if name not in found:
            found[name] = _items(text, straight, [label.end(), *commas, end - 1])
        start = end
    missing = [name for name in ("model_id", "subtasks", "access_list") if name not in found]
    if missing:
        raise PlanError(
            f"the text has no list {' and no list '.join(missing)}; "
            "write model_id = […], subtasks = […] and access_list = […]"
        )
    until = until or _UNTIL.search(text, start)
    return found["model_id"], found["subtasks"], found["access_list"], None if until is None else _fraction(until[1])


def _fraction(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise PlanError(f"until is {text!r}; write a number between 0 and 1, such as  until = 0.7") from None


def _without_thoughts(text: str) -> str:
    """Deletes closed think blocks. If a block opened in the prompt, the text has only its end: all before that goes."""
    kept: list[str] = []
    end_of_last = 0
    opened: int | None = None
    for tag in _THINK_TAG.finditer(text):
        if not tag[1]:
            opened = tag.start() if opened is None else opened
            continue
        if opened is None:
            kept.clear()
        else:
            kept.append(text[end_of_last:opened])
        end_of_last, opened = tag.end(), None
    return "".join([*kept, text[end_of_last:]])


def _bounds(text: str, straight: str, start: int, most_marks: int) -> tuple[int, list[int]]:
    """The end of the list that opens at `start`, and the places of its own commas.

    Quotes count as they are written, else as in `straight`, the text with its curly quotes made straight. If they
    balance in neither way (an apostrophe in a single-quoted string), brackets alone decide.
    """
    bounds = (
        _balanced(text, start, _MARKS, most_marks)
        or _balanced(straight, start, _MARKS, most_marks)
        or _balanced(text, start, _MARKS_WITHOUT_QUOTES, most_marks)
    )
    if bounds is None:
        raise PlanError(f"the list that begins with {text[start : start + 40]!r} is never closed")
    return bounds


def _balanced(text: str, start: int, marks: re.Pattern[str], most_marks: int) -> tuple[int, list[int]] | None:
    """The same, if only these marks count; None if the list does not end."""
    depth = 0
    commas: list[int] = []
    for count, mark in enumerate(marks.finditer(text, start)):
        kind = mark[0]
        if kind == "[":
            depth += 1
        elif kind == "]":
            depth -= 1
        elif kind == "," and depth == 1:
            commas.append(mark.start())
        if depth == 0:
            return mark.end(), commas
        if depth > MAX_NESTING or len(commas) > MAX_ENTRIES or count > most_marks:
            raise PlanError(
                f"the list that begins with {text[start : start + 40]!r} is too large: "
                f"more than {MAX_NESTING} deep or more than {MAX_ENTRIES} entries"
            )
    return None


def _items(text: str, straight: str, cuts: list[int]) -> list[object]:
    """The list between the first and the last cut (its brackets); the others are its commas."""
    whole = slice(cuts[0], cuts[-1] + 1)
    for candidate in dict.fromkeys((text[whole], straight[whole])):
        items = _decoded(candidate)
        if items is not None:
            return items
    pieces = [text[before + 1 : after].strip() for before, after in itertools.pairwise(cuts)]
    if not pieces[-1]:
        pieces.pop()
    return [_loose_item(piece) for piece in pieces]


def _decoded(group: str) -> list[object] | None:
    """The list as a Python literal, else as JSON, else as JSON once its single quotes are double; or None."""
    # Python's parser gets strings, digits, commas and brackets only, and no escape that it would warn of: no
    # text can then make it recurse, warn or compute.
    if re.fullmatch(r"[\s0-9,\[\]]*", _STRINGS.sub("", group)):
        literal = re.sub(r"\\(.)", _python_escape, group, flags=re.DOTALL)
        try:
            return _list_or_none(ast.literal_eval(literal))
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            pass
    for candidate in (group, group.replace("'", '"')):
        try:
            return _list_or_none(json.loads(candidate, strict=False))
        except (ValueError, RecursionError):
            continue
    return None


def _python_escape(escape: re.Match[str]) -> str:
    return escape[0] if escape[1] in _PYTHON_ESCAPES else "\\" + escape[0]


def _list_or_none(value: object) -> list[object] | None:
    return value if isinstance(value, list) else None


def _loose_item(piece: str) -> object:
    """An item of a list that is neither Python nor JSON: a list of positions, a quoted text or bare words."""
    if piece.startswith("[") and piece.endswith("]"):
        items = _decoded(piece)
        return items if items is not None else [_unquoted(part) for part in piece[1:-1].split(",")]
    return _unquoted(piece)


def _unquoted(piece: str) -> str:
    piece = piece.strip()
    straight = piece.translate(_STRAIGHT)
    if len(piece) < 2 or straight[0] not in "\"'" or straight[-1] != straight[0]:
        return piece
    return re.sub(r"\\([\\'\"n])", lambda escape: "\n" if escape[1] == "n" else escape[1], piece[1:-1])
