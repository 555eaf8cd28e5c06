"""Plan: who does which subtask and which earlier results it may read.

`parse_plan` is the only door from text to `Plan`: size, worker names, the order of access and the number of
steps are settled there, before any worker is paid; no other module checks again. One Plan, three dialects:

    lists   model_id = [2, 0] and two more lists; read leniently, for large or prompted planners
    lines   Count its letters. | letters 2 | 0; read strictly, one line a step, for small planners
    json    {"steps":[{"id":"0","models":["letters"],"prompt":"…","access_list":[]}]}; import and export

Whatever one dialect can read, each of them can write and read back. Text is hostile until parsed, so every
bound is checked before the work it bounds. How each dialect is read and written is in `dialects.py`, what a
step is held to in `step.py`; the grammars that hold a model to a dialect are in `grammar.py`. Knows nothing of
prompts or of how steps are run.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

import msgspec

from dirigent.errors import PlanError
from dirigent.limits import Limits
from dirigent.plan.dialects import read_json, read_lines, read_lists, write_json, write_lines, write_lists
from dirigent.plan.step import MAX_SUBTASK_BYTES as MAX_SUBTASK_BYTES
from dirigent.plan.step import Step as Step
from dirigent.plan.step import clipped, known_worker
from dirigent.workers.pool import Pool

Dialect = Literal["lists", "lines", "json"]

MAX_TEXT_BYTES = 64 * 1024
REMEMBERED_CHARS = 1024
"""Plans up to this length are remembered, so that all of them together take little memory."""


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
            objections.append(f"as {dialect}: {clipped(str(error), 200)}")
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
    read = {"lists": read_lists, "lines": read_lines, "json": read_json}[dialect]
    plan = Plan(tuple(read(text, names, max_steps)))
    _check_printable(plan, names)
    return plan


def _write(plan: Plan, names: tuple[str, ...], dialect: Dialect) -> str:
    for index, step in enumerate(plan.steps):
        known_worker(f"step {index}", step.worker, names)
    write = {"lists": write_lists, "lines": write_lines, "json": write_json}[dialect]
    return write(plan.steps, names)


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
    for dialect, write in (("lists", write_lists), ("lines", write_lines), ("json", write_json)):
        size_bytes = len(write(plan.steps, names).encode())
        if size_bytes > MAX_TEXT_BYTES:
            raise PlanError(
                f"the plan takes {size_bytes:,} bytes when written as {dialect}; "
                f"at most {MAX_TEXT_BYTES:,}: shorten its subtasks"
            )
