"""The three dialects of a plan: how each is read into steps, and how steps are written in it.

A reader gets the workers' names in the order of their ids and the most steps there may be, and gives steps that are
in order or a `PlanError`. Who calls has bounded the text; every further bound is checked here before the work it
bounds. A writer gets steps whose workers are among the names. How `lists` finds its lists in free text is in
`lists.py`; what every step is held to is in `step.py`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from dirigent.errors import PlanError
from dirigent.plan.lists_dialect import MAX_ENTRIES, MAX_MARKS, MAX_NESTING, labelled_lists
from dirigent.plan.step import Step, checked_step, clipped, known_worker, shown

# --- lists ---


def read_lists(text: str, names: tuple[str, ...], max_steps: int) -> list[Step]:
    """The steps of three lists, wherever they stand in the text; three empty ones are no steps."""
    model_ids, subtasks, access_lists = labelled_lists(text)
    if not len(model_ids) == len(subtasks) == len(access_lists):
        raise PlanError(
            f"the lists are unequal: {len(model_ids)} in model_id, {len(subtasks)} in subtasks, "
            f"{len(access_lists)} in access_list; each needs one entry a step"
        )
    _check_count(len(model_ids), max_steps)
    steps = []
    for index, (model_id, subtask, entry) in enumerate(zip(model_ids, subtasks, access_lists, strict=True)):
        where = f"step {index}"
        worker = _worker_of_id(where, model_id, names)
        steps.append(checked_step(where, index, worker, subtask, _positions(where, index, entry)))
    return steps


def write_lists(steps: Sequence[Step], names: tuple[str, ...]) -> str:
    """The steps as three lists, one a line."""
    model_ids = ", ".join(str(names.index(step.worker)) for step in steps)
    subtasks = ", ".join(_list_string(step.subtask) for step in steps)
    access_lists = ", ".join(str(list(step.access)) for step in steps)
    return f"model_id = [{model_ids}]\nsubtasks = [{subtasks}]\naccess_list = [{access_lists}]"


def _list_string(text: str) -> str:
    """A string literal to Python and JSON alike, without what the lenient reader would take away."""
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


def _positions(where: str, index: int, entry: object) -> Iterable[int]:
    """An access entry as positions: a list of them, one alone, or `all`."""
    entries = _entries(where, entry)
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


def read_lines(text: str, names: tuple[str, ...], max_steps: int) -> list[Step]:
    """A step a line, and nothing else in the text; `accept` alone is no steps."""
    # Only "\n" ends a line: str.splitlines would also cut at characters that a subtask may hold.
    rows = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not rows:
        raise PlanError("the text has no line; write `subtask | worker id | access`, one line a step")
    if len(rows) == 1 and rows[0][1].strip() == "accept":
        return []
    _check_count(len(rows), max_steps)
    return [
        _read_line(f"line {number} (step {index})", index, line, names) for index, (number, line) in enumerate(rows)
    ]


def _read_line(where: str, index: int, line: str, names: tuple[str, ...]) -> Step:
    bars = [mark.start() for mark in _BAR_OR_ESCAPE.finditer(line) if mark[0] == "|"]
    if len(bars) != 2:
        raise PlanError(
            f"{where}: {shown(line)} has {len(bars) + 1} fields; "
            "write `subtask | worker id | access` (a bar inside the subtask is \\|)"
        )
    subtask, worker, access = line[: bars[0]], line[bars[0] + 1 : bars[1]], line[bars[1] + 1 :].strip()
    subtask = _LINE_ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], subtask)
    entries = [] if access == "-" else re.split(r"[\s,]+", access, maxsplit=MAX_ENTRIES)
    return checked_step(where, index, _line_worker(where, worker, names), subtask, _positions(where, index, entries))


def _line_worker(where: str, field: str, names: tuple[str, ...]) -> str:
    """`name id`, which must agree; a bare name or a bare id is understood too, for plans written by hand."""
    match field.split():
        case [only] if _number(only) is not None and only not in names:
            return _worker_of_id(where, only, names)
        case [name]:
            return known_worker(where, name, names)
        case [name, model_id]:
            if _worker_of_id(where, model_id, names) != known_worker(where, name, names):
                raise PlanError(f"{where}: {name} is worker {names.index(name)}, not {shown(model_id)}")
            return name
    raise PlanError(f"{where}: {shown(field.strip())} names no worker; write its name and id")


def write_lines(steps: Sequence[Step], names: tuple[str, ...]) -> str:
    """The steps, one a line."""
    lines = []
    for step in steps:
        subtask = step.subtask.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "\\n")
        access = " ".join(str(j) for j in step.access) or "-"
        lines.append(f"{subtask} | {step.worker} {names.index(step.worker)} | {access}")
    return "\n".join(lines) or "accept"


# --- json ---

STEP_KEYS = ("id", "models", "prompt", "access_list")
_THOUGHTS = re.compile(r"\s*+<think>.*?</think>", re.DOTALL | re.IGNORECASE)
_JSON_MARK = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


def read_json(text: str, names: tuple[str, ...], max_steps: int) -> list[Step]:
    """The steps of the text's first JSON object; they name one another by their ids."""
    decoded = _decode_object(text)
    if "steps" not in decoded:
        raise PlanError(f'the object has no "steps"; its keys are {shown(list(decoded))}')
    raw_steps = decoded["steps"]
    if not isinstance(raw_steps, list):
        raise PlanError(f'"steps" is {shown(raw_steps)}, not a list')
    _check_count(len(raw_steps), max_steps)
    steps: list[Step] = []
    position_of: dict[str, int] = {}
    for index, raw in enumerate(raw_steps):
        where = f"step {index}"
        _check_keys(where, raw)
        worker = _only_model(where, raw["models"], names)
        access = _json_positions(where, raw.get("access_list", []), position_of)
        steps.append(checked_step(where, index, worker, raw["prompt"], access))
        position_of[_new_id(where, raw.get("id", index), position_of)] = index
    return steps


def _decode_object(text: str) -> dict[str, Any]:
    """The first object of the text; what stands around it (prose, code fences, thoughts) is ignored."""
    thoughts = _THOUGHTS.match(text)
    start = text.find("{", thoughts.end() if thoughts else 0)
    if start < 0:
        raise PlanError(f"{shown(text)} holds no JSON object")
    depth = 0
    for count, mark in enumerate(_JSON_MARK.finditer(text, start)):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(mark[0], 0)
        if depth > MAX_NESTING or count > 2 * MAX_MARKS:
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
            raise PlanError(f"the key {shown(key)} stands twice in one object")
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


def _only_model(where: str, models: object, names: tuple[str, ...]) -> str:
    if not isinstance(models, list) or len(models) != 1 or not isinstance(models[0], str):
        raise PlanError(f"{where}: models is {shown(models)}; it must be a list of exactly one worker's name")
    return known_worker(where, models[0], names)


def _new_id(where: str, raw: object, position_of: dict[str, int]) -> str:
    step_id = _id(where, raw)
    if step_id in position_of:
        raise PlanError(f"{where}: the id {shown(step_id)} is taken by step {position_of[step_id]}")
    if _is_all(step_id):
        raise PlanError(f"{where}: the id {shown(step_id)} means every earlier step; choose another")
    return step_id


def _json_positions(where: str, entry: object, position_of: dict[str, int]) -> Iterable[int]:
    entries = _entries(where, entry)
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


def write_json(steps: Sequence[Step], names: tuple[str, ...]) -> str:
    """The steps as one JSON object, each with its position for an id."""
    written = [
        {
            "id": str(index),
            "models": [step.worker],
            "prompt": step.subtask,
            "access_list": [str(j) for j in step.access],
        }
        for index, step in enumerate(steps)
    ]
    return json.dumps({"steps": written}, ensure_ascii=False, separators=(",", ":"))


# --- what they share ---


def _check_count(count: int, max_steps: int) -> None:
    if count > max_steps:
        raise PlanError(f"the plan has {count:,} steps; at most {max_steps} are allowed")


def _entries(where: str, entry: object) -> list[object]:
    """What an access entry names: the items of a list, or the one item it is."""
    entries = entry if isinstance(entry, list) else [entry]
    if len(entries) > MAX_ENTRIES:
        raise PlanError(f"{where}: access has more than {MAX_ENTRIES} entries, begins with {shown(entries[0])}")
    return entries


def _is_all(item: object) -> bool:
    return isinstance(item, str) and item.strip().lower() == "all"


def _number(item: object) -> int | None:
    """An int or a string of digits as a number; None for anything else, `True` included."""
    if isinstance(item, str) and re.fullmatch(r"[0-9]{1,9}", item.strip()):
        return int(item)
    return item if isinstance(item, int) and not isinstance(item, bool) else None
