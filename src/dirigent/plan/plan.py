"""Plan: which worker does which subtask, and which earlier results it may read.

`parse_plan` is the only function that makes a `Plan` from text, and `check_plan` checks a plan that a planner made
itself. Both end in the same checks: size, worker names, subtasks, order of access and number of steps. So every fault
is found before a worker is paid, and no other module checks again. A plan has three dialects:

    lists   model_id = [2, 0] and two more lists; read leniently, for large or prompted planners
    lines   Count its letters. | letters 2 | 0; read strictly, one line a step, for small planners
    json    {"steps":[{"id":"0","models":["letters"],"prompt":"…","access_list":[]}]}; import and export

A plan may hold `until`, a confidence. Its steps are then asked in order, one at a time, and its last step is by a
worker that selects: once that worker is so sure of an answer, its reply is the answer, and the other steps are skipped.

Every dialect can write, and read back, every plan that another dialect can read. Text may be hostile, so every bound is
checked before the work that it bounds.

Steps are numbered through the whole run: the first step of a second round has the number after the last step of the
first round (`Plan.first`), and it may read every step of the rounds before it.

`dialects.py` reads and writes the dialects; `grammar.py` has the grammars that hold a model to a dialect. This module
knows nothing of prompts or of how steps are run.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from dirigent.errors import PlanError
from dirigent.limits import Limits
from dirigent.messages import Ran
from dirigent.plan.dialects import (
    RawPlan,
    RawStep,
    clipped,
    read_json,
    read_lines,
    read_lists,
    shown,
    write_json,
    write_lines,
    write_lists,
)
from dirigent.workers.pool import Pool

Dialect = Literal["lists", "lines", "json"]

MAX_TEXT_BYTES = 64 * 1024
MAX_SUBTASK_BYTES = 8 * 1024


class Step(msgspec.Struct, frozen=True):
    worker: str
    subtask: str
    access: tuple[int, ...] = ()
    """Numbers of the earlier steps whose replies this step may read, ascending."""


class EarlierStep(Step, frozen=True):
    """A step of an earlier round, and its reply."""

    reply: str = ""
    """Empty if the step gave no result."""
    ended: bool = True
    """False if the reply was cut at its limit of tokens."""
    ran: Ran | None = None
    """The program whose output is the reply, if its worker ran one."""


class Plan(msgspec.Struct, frozen=True):
    steps: tuple[Step, ...] = ()
    """In order. No steps: accept the answer of the round before."""
    first: int = 0
    """Number of the first step: how many steps the earlier rounds of the run have. `check_plan` sets it."""
    until: float | None = None
    """Ask the steps in order and stop once the last step's worker is so sure of an answer: above 0 and below 1, to four
    decimals. None: ask every step."""

    @property
    def last(self) -> int:
        """Number of the last step, whose reply is the answer."""
        return self.first + len(self.steps) - 1

    def numbered(self) -> Iterator[tuple[int, Step]]:
        """The steps with their numbers."""
        return enumerate(self.steps, self.first)

    def step(self, number: int) -> Step:
        return self.steps[number - self.first]

    def by_itself(self) -> Plan:
        """The same steps numbered from 0, without access to steps of earlier rounds."""
        if not self.first:
            return self
        own = [tuple(j - self.first for j in step.access if j >= self.first) for step in self.steps]
        steps = tuple(Step(s.worker, s.subtask, access) for s, access in zip(self.steps, own, strict=True))
        return Plan(steps, until=self.until)


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a planner that is a program wrote its plan."""

    why: str
    """One sentence."""
    chosen: tuple[str, ...] = ()
    """The workers, in the order in which they are asked."""
    baseline: str = ""
    """The best single worker, with which the plan is compared."""
    left_out: tuple[str, ...] = ()
    """Why workers of the pool take no part, as sentences."""
    switch_cost_usd: float | None = None
    """The extra cost of leaving the worker that has read the conversation; below 0, leaving is cheaper and is done."""
    propensity: float | None = None
    """The chance with which the first of these workers was asked first, if the policy explores."""


def parse_plan(
    text: str,
    pool: Pool | Sequence[str],
    limits: Limits = Limits(),
    *,
    dialect: Dialect = "lists",
    may_accept: bool = False,
    earlier: int = 0,
) -> Plan:
    """Reads the plan in a text; raises `PlanError` if the text has no plan within pool and limits.

    `pool` may be the workers' names in the order of their ids; which of them select is then not checked. `earlier` is
    the number of steps in earlier rounds, which the plan's steps may read. `may_accept` allows the empty plan, which
    accepts the answer of an earlier round.
    """
    size_bytes = len(text) if len(text) > MAX_TEXT_BYTES else len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > MAX_TEXT_BYTES:
        raise PlanError(f"the text is {size_bytes:,} bytes or more; a plan may take {MAX_TEXT_BYTES:,}")
    names = worker_names(pool)
    read = {"lists": read_lists, "lines": read_lines, "json": read_json}[dialect]
    raw = read(text, names, limits.max_steps, earlier)
    return _checked(raw, pool, limits, may_accept=may_accept, earlier=earlier)


def check_plan(
    plan: Plan, pool: Pool | Sequence[str], limits: Limits = Limits(), *, may_accept: bool = False, earlier: int = 0
) -> Plan:
    """Checks a plan that is no text as `parse_plan` checks text, and numbers its steps from `earlier`."""
    steps = [RawStep(f"step {i}", s.worker, s.subtask, s.access) for i, s in enumerate(plan.steps, earlier)]
    return _checked(RawPlan(steps, plan.until), pool, limits, may_accept=may_accept, earlier=earlier)


def parse_any(
    text: str,
    pool: Pool | Sequence[str],
    limits: Limits = Limits(),
    *,
    may_accept: bool = False,
) -> Plan:
    """Reads a plan that a person wrote: as json, lists or lines, tried in that order."""
    dialects: tuple[Dialect, ...] = ("json", "lists", "lines")
    objections = []
    for dialect in dialects:
        try:
            return parse_plan(text, pool, limits, dialect=dialect, may_accept=may_accept)
        except PlanError as error:
            objections.append(f"as {dialect}: {clipped(str(error), 200)}")
    raise PlanError("no dialect can read this plan; " + "; ".join(objections))


def format_plan(plan: Plan, pool: Pool | Sequence[str], *, dialect: Dialect = "lists") -> str:
    """Writes the plan as text; `parse_plan` reads it back to an equal plan."""
    names = worker_names(pool)
    for index, step in plan.numbered():
        _check_worker(f"step {index}", step.worker, names)
    return _write(plan, names, dialect)


def critical_path(plan: Plan) -> int:
    """Steps that must follow one another. With `until` these are all its steps, if it never stops early."""
    if plan.until is not None:
        return len(plan.steps)
    depths: dict[int, int] = {}
    for index, step in plan.numbered():
        depths[index] = 1 + max((depths.get(j, 0) for j in step.access), default=0)
    return max(depths.values(), default=0)


def worker_names(pool: Pool | Sequence[str]) -> tuple[str, ...]:
    """The names in the order of their ids."""
    return pool.names if isinstance(pool, Pool) else tuple(pool)


def _checked(raw: RawPlan, pool: Pool | Sequence[str], limits: Limits, *, may_accept: bool, earlier: int) -> Plan:
    names, raw_steps = worker_names(pool), raw.steps
    if len(raw_steps) > limits.max_steps:
        raise PlanError(f"the plan has {len(raw_steps):,} steps; at most {limits.max_steps} are allowed")
    if not raw_steps and not may_accept:
        raise PlanError("the plan is empty, but there is no answer yet to accept; write at least one step")
    steps = []
    for index, (where, worker, subtask, access) in enumerate(raw_steps, earlier):
        _check_worker(where, worker, names)
        positions = tuple(sorted(set(access)))
        for position in positions:
            if not 0 <= position < index:
                raise PlanError(f"{where} reads step {shown(position)}, which is not before it")
        steps.append(Step(worker, _checked_subtask(where, subtask), positions))
    # Four decimals: every dialect writes them, and reads back the same number.
    until = None if raw.until is None else round(raw.until, 4)
    plan = Plan(tuple(steps), earlier if steps else 0, until)
    if until is not None:
        _check_until(plan, until, pool)
    _check_printable(plan, names)
    return plan


def _check_until(plan: Plan, until: float, pool: Pool | Sequence[str]) -> None:
    if not 0 < until < 1:
        raise PlanError(f"until is {until:g}; it must be above 0 and below 1 (in percent: above 0 and below 100)")
    if len(plan.steps) < 2:
        raise PlanError("until needs a last step that selects among the results of steps before it; add such steps")
    last = plan.steps[-1]
    if isinstance(pool, Pool) and not pool[last.worker].info.selects:
        able = ", ".join(info.name for info in pool.infos if info.selects)
        raise PlanError(
            f"until needs a last step by a worker that says how sure it is, and {shown(last.worker)} does not; "
            + (f"these do: {clipped(able, 200)}" if able else "no worker of this pool does: leave until out")
        )
    missing = [str(i) for i in range(plan.first, plan.last) if i not in last.access]
    if missing:
        raise PlanError(
            f"with until, the last step must read every step before it; step {plan.last} does not read "
            f"{', '.join(missing)}"
        )


def _check_worker(where: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        near = difflib.get_close_matches(name[:100], names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {clipped(', '.join(names) or 'none', 200)}"
        raise PlanError(f"{where}: no worker is called {shown(name)}; {hint}")


def _checked_subtask(where: str, subtask: object) -> str:
    if not isinstance(subtask, str):
        raise PlanError(f"{where}: the subtask {shown(subtask)} is not text")
    try:  # JSON's \ud83d\ude00, read as a Python literal, is a pair of surrogates: join such pairs
        words = subtask.encode("utf-16-le", "surrogatepass").decode("utf-16-le").strip()
    except UnicodeDecodeError:
        raise PlanError(f"{where}: the subtask {shown(subtask)} holds half a surrogate pair") from None
    if not words:
        raise PlanError(f"{where}: the subtask {shown(subtask)} is empty")
    size_bytes = len(words.encode())
    if size_bytes > MAX_SUBTASK_BYTES:
        raise PlanError(f"{where}: the subtask is {size_bytes:,} bytes; at most {MAX_SUBTASK_BYTES:,}")
    return words


def _check_printable(plan: Plan, names: tuple[str, ...]) -> None:
    """Refuses a plan that some dialect could not write within the bound on text.

    Without this check, a plan full of characters that one dialect has to escape could be read but never written back.
    """
    # No dialect spends more than 6 bytes on a byte of subtask, 8 on a step that is read, or 256 on the rest of a step
    # besides its worker's name.
    most_bytes = sum(6 * len(s.subtask.encode()) + len(s.worker.encode()) + 8 * len(s.access) + 256 for s in plan.steps)
    if most_bytes <= MAX_TEXT_BYTES:
        return
    dialects: tuple[Dialect, ...] = ("lists", "lines", "json")
    for dialect in dialects:
        size_bytes = len(_write(plan, names, dialect).encode())
        if size_bytes > MAX_TEXT_BYTES:
            raise PlanError(
                f"the plan takes {size_bytes:,} bytes when written as {dialect}; "
                f"at most {MAX_TEXT_BYTES:,}: shorten its subtasks"
            )


def _write(plan: Plan, names: tuple[str, ...], dialect: Dialect) -> str:
    if dialect == "json":
        return write_json(plan)
    return (write_lists if dialect == "lists" else write_lines)(plan, names)
