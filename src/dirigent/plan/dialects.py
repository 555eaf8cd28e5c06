"""The three dialects of a plan: how each is read into raw steps, and how a plan is written in it.

A reader gets the workers' names in the order of their ids, the most steps that a plan may have, and the number of steps
in earlier rounds. It returns raw steps or raises `PlanError`; `plan.py` then checks each raw step. The caller has
bounded the text; a reader checks every further bound before the work that it bounds. A writer gets a plan whose workers
are all among the names. `lists_dialect.py` finds the three lists of `lists` in free text.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from dirigent.errors import PlanError
from dirigent.limits import HARD_MAX_STEPS
from dirigent.plan.lists_dialect import MAX_ENTRIES, MAX_MARKS, MAX_NESTING, labelled_lists

if TYPE_CHECKING:
    from dirigent.plan.plan import Plan


class RawStep(NamedTuple):
    """A step as it was read; nothing of it is checked yet."""

    where: str
    """Where it was found, for error messages: `step 2`, or `line 3 (step 2)`."""
    worker: str
    subtask: object
    access: Iterable[int]


class RawPlan(NamedTuple):
    steps: list[RawStep]
    until: float | None = None


# --- lists ---


def read_lists(text: str, names: tuple[str, ...], max_steps: int, earlier: int) -> RawPlan:
    """Reads three lists and `until`, wherever in the text they are; three empty lists are no steps."""
    model_ids, subtasks, access_lists, until = labelled_lists(text, earlier=earlier)
    if not len(model_ids) == len(subtasks) == len(access_lists):
        raise PlanError(
            f"the lists are unequal: {len(model_ids)} in model_id, {len(subtasks)} in subtasks, "
            f"{len(access_lists)} in access_list; each needs one entry a step"
        )
    _check_count(len(model_ids), max_steps)
    steps = []
    for index, (model_id, subtask, entry) in enumerate(zip(model_ids, subtasks, access_lists, strict=True), earlier):
        where = f"step {index}"
        worker = _worker_of_id(where, model_id, names)
        steps.append(RawStep(where, worker, subtask, _positions(where, index, entry, earlier)))
    return RawPlan(steps, until)


def write_lists(plan: Plan, names: tuple[str, ...]) -> str:
    """Writes three lists, one a line, and `until` if the plan has it."""
    model_ids = ", ".join(str(names.index(step.worker)) for step in plan.steps)
    subtasks = ", ".join(_list_string(step.subtask) for step in plan.steps)
    access_lists = ", ".join(str(list(step.access)) for step in plan.steps)
    until = "" if plan.until is None else f"until = {plan.until:.4f}".rstrip("0") + "\n"
    return f"{until}model_id = [{model_ids}]\nsubtasks = [{subtasks}]\naccess_list = [{access_lists}]"


def _list_string(text: str) -> str:
    """A string literal to Python and JSON alike, without the characters that the lenient reader deletes."""
    quoted = json.dumps(text, ensure_ascii=False).replace("`", "\\u0060")
    # The same test as in the grammar: what follows may begin a think tag, or is an escape or the end.
    return re.sub(r'<(?=[/tT<"\\])', r"\\u003c", quoted)


def _worker_of_id(where: str, model_id: object, names: tuple[str, ...]) -> str:
    number = _number(model_id)
    if number is None:
        raise PlanError(f"{where}: model id {shown(model_id)} is not a number")
    if not 0 <= number < len(names):
        raise PlanError(f"{where}: there is no worker {shown(number)}; ids go from 0 to {len(names) - 1}")
    return names[number]


def _positions(where: str, index: int, entry: object, earlier: int) -> Iterable[int]:
    """The step numbers of an access entry: a list of numbers, one number, or `all`, earlier rounds' steps included."""
    entries = _entries(where, entry, earlier)
    if any(_is_all(item) for item in entries):
        return range(index)
    positions = [_number(item) for item in entries]
    for item, position in zip(entries, positions, strict=True):
        if position is None:
            raise PlanError(f'{where}: access {shown(item)} is neither an earlier step\'s number nor "all"')
    return [position for position in positions if position is not None]


# --- lines ---

_BAR_OR_ESCAPE = re.compile(r"\\.|\|")
_LINE_ESCAPE = re.compile(r"\\([\\|n])")
_UNTIL_LINE = re.compile(r"\s*until\b([^|]*)")
_PERCENT = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%?\s*")


def read_lines(text: str, names: tuple[str, ...], max_steps: int, earlier: int) -> RawPlan:
    """Reads one step a line, after `until 70` if the first line says so; the text may hold nothing else.

    The single line `accept` is no steps.
    """
    # Only "\n" ends a line: str.splitlines would also cut at characters that a subtask may hold.
    rows = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not rows:
        raise PlanError("the text has no line; write `subtask | worker id | access`, one line a step")
    if len(rows) == 1 and rows[0][1].strip() == "accept":
        return RawPlan([])
    until = None
    if first := _UNTIL_LINE.fullmatch(rows[0][1]):
        until = _percent(first[1])
        rows = rows[1:]
    _check_count(len(rows), max_steps)
    steps = [
        _read_line(f"line {number} (step {index})", index, line, names, earlier)
        for index, (number, line) in enumerate(rows, earlier)
    ]
    return RawPlan(steps, until)


def _percent(text: str) -> float:
    if (found := _PERCENT.fullmatch(text)) is None:
        raise PlanError(f"until is followed by {shown(text.strip())}; write a percentage, such as: until 70")
    return float(found[1]) / 100


def _read_line(where: str, index: int, line: str, names: tuple[str, ...], earlier: int) -> RawStep:
    bars = [mark.start() for mark in _BAR_OR_ESCAPE.finditer(line) if mark[0] == "|"]
    if len(bars) != 2:
        raise PlanError(
            f"{where}: {shown(line)} has {len(bars) + 1} fields; "
            "write `subtask | worker id | access` (a bar inside the subtask is \\|)"
        )
    subtask, worker, access = line[: bars[0]], line[bars[0] + 1 : bars[1]], line[bars[1] + 1 :].strip()
    subtask = _LINE_ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], subtask)
    entries = [] if access == "-" else re.split(r"[\s,]+", access, maxsplit=MAX_ENTRIES + earlier)
    positions = _positions(where, index, entries, earlier)
    return RawStep(where, _line_worker(where, worker, names), subtask, positions)


def _line_worker(where: str, field: str, names: tuple[str, ...]) -> str:
    """Reads `name id`, which must agree. A bare name or a bare id is understood too, for plans written by hand."""
    match field.split():
        case [only] if _number(only) is not None and only not in names:
            return _worker_of_id(where, only, names)
        case [name]:
            return name
        case [name, model_id]:
            if _worker_of_id(where, model_id, names) != name and name in names:
                raise PlanError(f"{where}: {name} is worker {names.index(name)}, not {shown(model_id)}")
            return name
    raise PlanError(f"{where}: {shown(field.strip())} names no worker; write its name and id")


def write_lines(plan: Plan, names: tuple[str, ...]) -> str:
    """Writes one step a line, after `until` in percent if the plan has it."""
    lines = [] if plan.until is None else ["until " + f"{100 * plan.until:.2f}".rstrip("0").rstrip(".")]
    for step in plan.steps:
        subtask = step.subtask.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "\\n")
        access = " ".join(str(j) for j in step.access) or "-"
        lines.append(f"{subtask} | {step.worker} {names.index(step.worker)} | {access}")
    return "\n".join(lines) or "accept"


# --- json ---

STEP_KEYS = ("id", "models", "prompt", "access_list")
_THOUGHTS = re.compile(r"\s*+<think>.*?</think>", re.DOTALL | re.IGNORECASE)
_JSON_MARK = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


def read_json(text: str, names: tuple[str, ...], max_steps: int, earlier: int) -> RawPlan:
    """Reads the text's first JSON object. Its steps name one another by their ids, earlier rounds' by their numbers."""
    decoded = _decode_object(text, earlier)
    if "steps" not in decoded:
        raise PlanError(f'the object has no "steps"; its keys are {shown(list(decoded))}')
    raw_steps = decoded["steps"]
    if not isinstance(raw_steps, list):
        raise PlanError(f'"steps" is {shown(raw_steps)}, not a list')
    _check_count(len(raw_steps), max_steps)
    steps: list[RawStep] = []
    position_of = {str(position): position for position in range(earlier)}
    for index, raw in enumerate(raw_steps, earlier):
        where = f"step {index}"
        _check_keys(where, raw)
        worker = _only_model(where, raw["models"])
        access = _json_positions(where, raw.get("access_list", []), position_of, earlier)
        steps.append(RawStep(where, worker, raw["prompt"], access))
        position_of[_new_id(where, raw.get("id", index), position_of, earlier)] = index
    return RawPlan(steps, _json_until(decoded.get("until")))


def _json_until(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, float):  # no whole number is between 0 and 1
        raise PlanError(f'"until" is {shown(value)}; it must be a number between 0 and 1, or null')
    return value


def _decode_object(text: str, earlier: int) -> dict[str, Any]:
    """The first object of the text; the prose, code fences and thoughts around it are ignored."""
    thoughts = _THOUGHTS.match(text)
    start = text.find("{", thoughts.end() if thoughts else 0)
    if start < 0:
        raise PlanError(f"{shown(text)} holds no JSON object")
    depth = 0
    for count, mark in enumerate(_JSON_MARK.finditer(text, start)):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(mark[0], 0)
        if depth > MAX_NESTING or count > 2 * (MAX_MARKS + 2 * HARD_MAX_STEPS * earlier):
            raise PlanError(f"the object is nested deeper than {MAX_NESTING} or has more parts than any plan")
        if depth == 0:
            break
    try:
        decoded, _ = json.JSONDecoder(object_pairs_hook=_unique_keys).raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"the object that begins with {shown(text[start:])} is not JSON: {error}") from None
    return dict(decoded)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise PlanError(f"the key {shown(key)} occurs twice in one object")
        found[key] = value
    return found


def _check_keys(where: str, raw: object) -> None:
    if not isinstance(raw, dict):
        raise PlanError(f"{where}: {shown(raw)} is not an object")
    for key in raw:
        if key not in STEP_KEYS:
            near = difflib.get_close_matches(key[:100], STEP_KEYS, n=1, cutoff=0)
            raise PlanError(f"{where}: unknown key {shown(key)}; did you mean {near[0]!r}?")
    for key in ("models", "prompt"):
        if key not in raw:
            raise PlanError(f"{where}: the key {key!r} is missing")


def _only_model(where: str, models: object) -> str:
    if not isinstance(models, list) or len(models) != 1 or not isinstance(models[0], str):
        raise PlanError(f"{where}: models is {shown(models)}; it must be a list of exactly one worker's name")
    return models[0]


def _new_id(where: str, raw: object, position_of: dict[str, int], earlier: int) -> str:
    step_id = _id(where, raw)
    if step_id in position_of:
        taken = position_of[step_id]
        of = f" of an earlier round; number this round's steps from {earlier}" if taken < earlier else ""
        raise PlanError(f"{where}: the id {shown(step_id)} is taken by step {taken}{of}")
    if _is_all(step_id):
        raise PlanError(f"{where}: the id {shown(step_id)} means every earlier step; choose another")
    return step_id


def _json_positions(where: str, entry: object, position_of: dict[str, int], earlier: int) -> Iterable[int]:
    entries = _entries(where, entry, earlier)
    if any(_is_all(item) for item in entries):
        return range(len(position_of))
    positions = []
    for step_id in [_id(where, item) for item in entries]:
        if step_id not in position_of:
            known = clipped(", ".join(map(shown, position_of)) or "none", 200)
            raise PlanError(f"{where} reads step {shown(step_id)}, which is not before it; earlier ids: {known}")
        positions.append(position_of[step_id])
    return positions


def _id(where: str, raw: object) -> str:
    if isinstance(raw, bool) or not isinstance(raw, str | int):
        raise PlanError(f"{where}: {shown(raw)} is not a step's id; ids are strings")
    return str(raw)


def write_json(plan: Plan) -> str:
    """Writes one JSON object, with `until` if the plan has it; a step's id is its number."""
    written = [
        {
            "id": str(index),
            "models": [step.worker],
            "prompt": step.subtask,
            "access_list": [str(j) for j in step.access],
        }
        for index, step in plan.numbered()
    ]
    until = {} if plan.until is None else {"until": plan.until}
    return json.dumps({**until, "steps": written}, ensure_ascii=False, separators=(",", ":"))


# --- shared by the dialects ---


def _check_count(count: int, max_steps: int) -> None:
    if count > max_steps:
        raise PlanError(f"the plan has {count:,} steps; at most {max_steps} are allowed")


def _entries(where: str, entry: object, earlier: int) -> list[object]:
    """The items of an access entry that is a list; else the entry as the only item."""
    entries = entry if isinstance(entry, list) else [entry]
    most = MAX_ENTRIES + earlier
    if len(entries) > most:
        raise PlanError(f"{where}: access has more than {most} entries, begins with {shown(entries[0])}")
    return entries


def _is_all(item: object) -> bool:
    return isinstance(item, str) and item.strip().lower() == "all"


def _number(item: object) -> int | None:
    """An int or a string of digits as a number; None for anything else, `True` included."""
    if isinstance(item, str) and re.fullmatch(r"[0-9]{1,9}", item.strip()):
        return int(item)
    return item if isinstance(item, int) and not isinstance(item, bool) else None


def shown(value: object) -> str:
    """The value, short enough for an error message."""
    return clipped(repr(value[:100] if isinstance(value, str) else value), 80)


def clipped(text: str, most: int) -> str:
    """The text, cut to at most this many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"
