"""Plan: who does which subtask and which earlier results it may read.

`parse_plan` is the only door from text to `Plan`: size, worker names, the order of access and the number of
steps are settled there, before any worker is paid; no other module checks again. One Plan, three dialects:

    lists   model_id = [2, 0] and two more lists; read leniently, for large or prompted planners
    lines   Count its letters. | letters 2 | 0; read strictly, one line a step, for small planners
    json    {"steps":[{"id":"0","models":["letters"],"prompt":"…","access_list":[]}]}; import and export

Whatever one dialect can read, each of them can write and read back. Text is hostile until parsed, so every
bound is checked before the work it bounds. How `lists` finds its lists in free text is in `lists.py`; the
grammars that hold a model to a dialect are in `grammar.py`. Knows nothing of prompts or of how steps are run.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from dirigent.errors import PlanError
from dirigent.limits import Limits
from dirigent.lists import MAX_ENTRIES, MAX_MARKS, MAX_NESTING, labelled_lists
from dirigent.pool import Pool

Dialect = Literal["lists", "lines", "json"]

MAX_TEXT_BYTES = 64 * 1024
MAX_SUBTASK_BYTES = 8 * 1024
REMEMBERED_CHARS = 1024
"""Plans up to this length are remembered, so that all of them together take little memory."""


class Step(msgspec.Struct, frozen=True):
    worker: str
    subtask: str
    access: tuple[int, ...] = ()
    """Earlier steps whose replies this step may read, ascending."""


class Plan(msgspec.Struct, frozen=True):
    steps: tuple[Step, ...] = ()
    """In order. Empty = accept the last round's answer."""


def parse_plan(
    text: str,
    pool: Pool | Sequence[str],
    limits: Limits = Limits(),
    *,
    dialect: Dialect = "lists",
    may_accept: bool = False,
) -> Plan:
    """The plan that the text holds, within pool and limits; any fault is a `PlanError`.

    `pool` may be its workers' names in the order of their ids. `may_accept`: an earlier round has an answer,
    so the empty plan, which accepts it, is allowed.
    """
    size_bytes = len(text) if len(text) > MAX_TEXT_BYTES else len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > MAX_TEXT_BYTES:
        raise PlanError(f"the text is {size_bytes:,} bytes or more; a plan may take {MAX_TEXT_BYTES:,}")
    read = _read if len(text) > REMEMBERED_CHARS else _read_remembered
    plan = read(text, worker_names(pool), limits.max_steps, dialect)
    if not plan.steps and not may_accept:
        raise PlanError("the plan is empty, but there is no answer yet to accept; write at least one step")
    return plan


def parse_any(
    text: str,
    pool: Pool | Sequence[str],
    limits: Limits = Limits(),
    *,
    may_accept: bool = False,
) -> Plan:
    """The plan in a text written by hand: json, lists or lines, tried in that order."""
    dialects: tuple[Dialect, ...] = ("json", "lists", "lines")
    objections = []
    for dialect in dialects:
        try:
            return parse_plan(text, pool, limits, dialect=dialect, may_accept=may_accept)
        except PlanError as error:
            objections.append(f"as {dialect}: {_clipped(str(error), 200)}")
    raise PlanError("no dialect can read this plan; " + "; ".join(objections))


def format_plan(plan: Plan, pool: Pool | Sequence[str], *, dialect: Dialect = "lists") -> str:
    """The plan as text; `parse_plan` reads it back to an equal plan."""
    short = sum(len(step.subtask) for step in plan.steps) <= REMEMBERED_CHARS
    return (_write_remembered if short else _write)(plan, worker_names(pool), dialect)


def critical_path(plan: Plan) -> int:
    """Steps in the longest chain of steps that read one another: what no parallelism can shorten."""
    depths: list[int] = []
    for step in plan.steps:
        depths.append(1 + max((depths[j] for j in step.access), default=0))
    return max(depths, default=0)


def worker_names(pool: Pool | Sequence[str]) -> tuple[str, ...]:
    """The names in the order of their ids."""
    return pool.names if isinstance(pool, Pool) else tuple(pool)


def _read(text: str, names: tuple[str, ...], max_steps: int, dialect: Dialect) -> Plan:
    read = {"lists": _read_lists, "lines": _read_lines, "json": _read_json}[dialect]
    plan = Plan(tuple(read(text, names, max_steps)))
    _check_printable(plan, names)
    return plan


def _write(plan: Plan, names: tuple[str, ...], dialect: Dialect) -> str:
    for index, step in enumerate(plan.steps):
        _known_worker(f"step {index}", step.worker, names)
    write = {"lists": _write_lists, "lines": _write_lines, "json": _write_json}[dialect]
    return write(plan, names)


# A server writes and reads the same few plans over and over: those of its fixed planners.
_read_remembered = functools.lru_cache(maxsize=256)(_read)
_write_remembered = functools.lru_cache(maxsize=256)(_write)


def _check_printable(plan: Plan, names: tuple[str, ...]) -> None:
    """Refuse a plan that some dialect could not write within the bound on text.

    Else a plan full of characters that one dialect has to escape could be read but never written back.
    """
    # No dialect spends more than 6 bytes on a byte of subtask, or 512 on the rest of a step besides its name.
    most_bytes = sum(6 * len(s.subtask.encode()) + len(s.worker.encode()) + 512 for s in plan.steps)
    if most_bytes <= MAX_TEXT_BYTES:
        return
    for dialect, write in (("lists", _write_lists), ("lines", _write_lines), ("json", _write_json)):
        size_bytes = len(write(plan, names).encode())
        if size_bytes > MAX_TEXT_BYTES:
            raise PlanError(
                f"the plan takes {size_bytes:,} bytes when written as {dialect}; "
                f"at most {MAX_TEXT_BYTES:,}: shorten its subtasks"
            )


# --- lists ---


def _read_lists(text: str, names: tuple[str, ...], max_steps: int) -> list[Step]:
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
        steps.append(_step(where, index, worker, subtask, _positions(where, index, entry)))
    return steps


def _write_lists(plan: Plan, names: tuple[str, ...]) -> str:
    model_ids = ", ".join(str(names.index(step.worker)) for step in plan.steps)
    subtasks = ", ".join(_list_string(step.subtask) for step in plan.steps)
    access_lists = ", ".join(str(list(step.access)) for step in plan.steps)
    return f"model_id = [{model_ids}]\nsubtasks = [{subtasks}]\naccess_list = [{access_lists}]"


def _list_string(text: str) -> str:
    """A string literal to Python and JSON alike, without what the lenient reader would take away."""
    quoted = json.dumps(text, ensure_ascii=False).replace("`", "\\u0060")
    # The same test as in the grammar: what follows may begin a think tag, or is an escape or the end.
    return re.sub(r'<(?=[/tT<"\\])', r"\\u003c", quoted)


def _worker_of_id(where: str, model_id: object, names: tuple[str, ...]) -> str:
    number = _number(model_id)
    if number is None:
        raise PlanError(f"{where}: model id {_show(model_id)} is not a number")
    if not 0 <= number < len(names):
        raise PlanError(f"{where}: there is no worker {_show(number)}; ids go from 0 to {len(names) - 1}")
    return names[number]


def _positions(where: str, index: int, entry: object) -> Iterable[int]:
    """An access entry as positions: a list of them, one alone, or `all`."""
    entries = _entries(where, entry)
    if any(_is_all(item) for item in entries):
        return range(index)
    positions = [_number(item) for item in entries]
    for item, position in zip(entries, positions, strict=True):
        if position is None:
            raise PlanError(f'{where}: access {_show(item)} is neither an earlier step\'s number nor "all"')
    return [position for position in positions if position is not None]


# --- lines ---

_BAR_OR_ESCAPE = re.compile(r"\\.|\|")
_LINE_ESCAPE = re.compile(r"\\([\\|n])")


def _read_lines(text: str, names: tuple[str, ...], max_steps: int) -> list[Step]:
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
            f"{where}: {_show(line)} has {len(bars) + 1} fields; "
            "write `subtask | worker id | access` (a bar inside the subtask is \\|)"
        )
    subtask, worker, access = line[: bars[0]], line[bars[0] + 1 : bars[1]], line[bars[1] + 1 :].strip()
    subtask = _LINE_ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], subtask)
    entries = [] if access == "-" else re.split(r"[\s,]+", access, maxsplit=MAX_ENTRIES)
    return _step(where, index, _line_worker(where, worker, names), subtask, _positions(where, index, entries))


def _line_worker(where: str, field: str, names: tuple[str, ...]) -> str:
    """`name id`, which must agree; a bare name or a bare id is understood too, for plans written by hand."""
    match field.split():
        case [only] if _number(only) is not None and only not in names:
            return _worker_of_id(where, only, names)
        case [name]:
            return _known_worker(where, name, names)
        case [name, model_id]:
            if _worker_of_id(where, model_id, names) != _known_worker(where, name, names):
                raise PlanError(f"{where}: {name} is worker {names.index(name)}, not {_show(model_id)}")
            return name
    raise PlanError(f"{where}: {_show(field.strip())} names no worker; write its name and id")


def _write_lines(plan: Plan, names: tuple[str, ...]) -> str:
    lines = []
    for step in plan.steps:
        subtask = step.subtask.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "\\n")
        access = " ".join(str(j) for j in step.access) or "-"
        lines.append(f"{subtask} | {step.worker} {names.index(step.worker)} | {access}")
    return "\n".join(lines) or "accept"


# --- json ---

STEP_KEYS = ("id", "models", "prompt", "access_list")
_THOUGHTS = re.compile(r"\s*+<think>.*?</think>", re.DOTALL | re.IGNORECASE)
_JSON_MARK = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


def _read_json(text: str, names: tuple[str, ...], max_steps: int) -> list[Step]:
    decoded = _decode_object(text)
    if "steps" not in decoded:
        raise PlanError(f'the object has no "steps"; its keys are {_show(list(decoded))}')
    raw_steps = decoded["steps"]
    if not isinstance(raw_steps, list):
        raise PlanError(f'"steps" is {_show(raw_steps)}, not a list')
    _check_count(len(raw_steps), max_steps)
    steps: list[Step] = []
    position_of: dict[str, int] = {}
    for index, raw in enumerate(raw_steps):
        where = f"step {index}"
        _check_keys(where, raw)
        worker = _only_model(where, raw["models"], names)
        access = _json_positions(where, raw.get("access_list", []), position_of)
        steps.append(_step(where, index, worker, raw["prompt"], access))
        position_of[_new_id(where, raw.get("id", index), position_of)] = index
    return steps


def _decode_object(text: str) -> dict[str, Any]:
    """The first object of the text; what stands around it (prose, code fences, thoughts) is ignored."""
    thoughts = _THOUGHTS.match(text)
    start = text.find("{", thoughts.end() if thoughts else 0)
    if start < 0:
        raise PlanError(f"{_show(text)} holds no JSON object")
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
        raise PlanError(f"the object that begins with {_show(text[start:])} is not JSON: {error}") from None
    return dict(decoded)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise PlanError(f"the key {_show(key)} stands twice in one object")
        found[key] = value
    return found


def _check_keys(where: str, raw: object) -> None:
    if not isinstance(raw, dict):
        raise PlanError(f"{where}: {_show(raw)} is not an object")
    for key in raw:
        if key not in STEP_KEYS:
            near = difflib.get_close_matches(key[:100], STEP_KEYS, n=1, cutoff=0)
            raise PlanError(f"{where}: unknown key {_show(key)}; did you mean {near[0]!r}?")
    for key in ("models", "prompt"):
        if key not in raw:
            raise PlanError(f"{where}: the key {key!r} is missing")


def _only_model(where: str, models: object, names: tuple[str, ...]) -> str:
    if not isinstance(models, list) or len(models) != 1 or not isinstance(models[0], str):
        raise PlanError(f"{where}: models is {_show(models)}; it must be a list of exactly one worker's name")
    return _known_worker(where, models[0], names)


def _new_id(where: str, raw: object, position_of: dict[str, int]) -> str:
    step_id = _id(where, raw)
    if step_id in position_of:
        raise PlanError(f"{where}: the id {_show(step_id)} is taken by step {position_of[step_id]}")
    if _is_all(step_id):
        raise PlanError(f"{where}: the id {_show(step_id)} means every earlier step; choose another")
    return step_id


def _json_positions(where: str, entry: object, position_of: dict[str, int]) -> Iterable[int]:
    entries = _entries(where, entry)
    if any(_is_all(item) for item in entries):
        return range(len(position_of))
    positions = []
    for step_id in [_id(where, item) for item in entries]:
        if step_id not in position_of:
            known = _clipped(", ".join(map(_show, position_of)) or "none", 200)
            raise PlanError(f"{where} reads step {_show(step_id)}, which is not before it; earlier ids: {known}")
        positions.append(position_of[step_id])
    return positions


def _id(where: str, raw: object) -> str:
    if isinstance(raw, bool) or not isinstance(raw, str | int):
        raise PlanError(f"{where}: {_show(raw)} is not a step's id; ids are strings")
    return str(raw)


def _write_json(plan: Plan, names: tuple[str, ...]) -> str:
    steps = [
        {
            "id": str(index),
            "models": [step.worker],
            "prompt": step.subtask,
            "access_list": [str(j) for j in step.access],
        }
        for index, step in enumerate(plan.steps)
    ]
    return json.dumps({"steps": steps}, ensure_ascii=False, separators=(",", ":"))


# --- what all dialects share ---


def _check_count(count: int, max_steps: int) -> None:
    if count > max_steps:
        raise PlanError(f"the plan has {count:,} steps; at most {max_steps} are allowed")


def _step(where: str, index: int, worker: str, subtask: object, access: Iterable[int]) -> Step:
    """The step, once its subtask and what it reads are in order."""
    if not isinstance(subtask, str):
        raise PlanError(f"{where}: the subtask {_show(subtask)} is not text")
    words = _well_formed(where, subtask).strip()
    if not words:
        raise PlanError(f"{where}: the subtask {_show(subtask)} is empty")
    size_bytes = len(words.encode())
    if size_bytes > MAX_SUBTASK_BYTES:
        raise PlanError(f"{where}: the subtask is {size_bytes:,} bytes; at most {MAX_SUBTASK_BYTES:,}")
    positions = tuple(sorted(set(access)))
    for position in positions:
        if not 0 <= position < index:
            raise PlanError(f"{where} reads step {_show(position)}, which is not before it")
    return Step(worker, words, positions)


def _well_formed(where: str, text: str) -> str:
    """The text with surrogate pairs joined: JSON's \\ud83d\\ude00 as a Python literal is such a pair."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise PlanError(f"{where}: the subtask {_show(text)} holds half a surrogate pair") from None


def _known_worker(where: str, name: str, names: tuple[str, ...]) -> str:
    if name in names:
        return name
    near = difflib.get_close_matches(name[:100], names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {_clipped(', '.join(names) or 'none', 200)}"
    raise PlanError(f"{where}: no worker is called {_show(name)}; {hint}")


def _entries(where: str, entry: object) -> list[object]:
    """What an access entry names: the items of a list, or the one item it is."""
    entries = entry if isinstance(entry, list) else [entry]
    if len(entries) > MAX_ENTRIES:
        raise PlanError(f"{where}: access has more than {MAX_ENTRIES} entries, begins with {_show(entries[0])}")
    return entries


def _is_all(item: object) -> bool:
    return isinstance(item, str) and item.strip().lower() == "all"


def _number(item: object) -> int | None:
    """An int or a string of digits as a number; None for anything else, `True` included."""
    if isinstance(item, str) and re.fullmatch(r"[0-9]{1,9}", item.strip()):
        return int(item)
    return item if isinstance(item, int) and not isinstance(item, bool) else None


def _show(value: object) -> str:
    """The value as an error message can bear it."""
    return _clipped(repr(value[:100] if isinstance(value, str) else value), 80)


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
