"""Step: one subtask of a plan, who does it, and which earlier results it may read.

`checked_step` holds every step to the same rules, whatever dialect it was written in. Its errors say where the fault
is and show what stands there, cut short: text is hostile until read. Knows nothing of dialects, nor of how many steps
make a plan.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import msgspec

from dirigent.errors import PlanError

MAX_SUBTASK_BYTES = 8 * 1024


class Step(msgspec.Struct, frozen=True):
    worker: str
    subtask: str
    access: tuple[int, ...] = ()
    """Earlier steps whose replies this step may read, ascending."""


def checked_step(where: str, index: int, worker: str, subtask: object, access: Iterable[int]) -> Step:
    """The step, once its subtask and what it reads are in order."""
    if not isinstance(subtask, str):
        raise PlanError(f"{where}: the subtask {shown(subtask)} is not text")
    words = _well_formed(where, subtask).strip()
    if not words:
        raise PlanError(f"{where}: the subtask {shown(subtask)} is empty")
    size_bytes = len(words.encode())
    if size_bytes > MAX_SUBTASK_BYTES:
        raise PlanError(f"{where}: the subtask is {size_bytes:,} bytes; at most {MAX_SUBTASK_BYTES:,}")
    positions = tuple(sorted(set(access)))
    for position in positions:
        if not 0 <= position < index:
            raise PlanError(f"{where} reads step {shown(position)}, which is not before it")
    return Step(worker, words, positions)


def known_worker(where: str, name: str, names: tuple[str, ...]) -> str:
    """The name, if a worker of the pool has it."""
    if name in names:
        return name
    near = difflib.get_close_matches(name[:100], names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {clipped(', '.join(names) or 'none', 200)}"
    raise PlanError(f"{where}: no worker is called {shown(name)}; {hint}")


def shown(value: object) -> str:
    """The value as an error message can bear it."""
    return clipped(repr(value[:100] if isinstance(value, str) else value), 80)


def clipped(text: str, most: int) -> str:
    """The text in at most so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _well_formed(where: str, text: str) -> str:
    """The text with surrogate pairs joined: JSON's \\ud83d\\ude00 as a Python literal is such a pair."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise PlanError(f"{where}: the subtask {shown(text)} holds half a surrogate pair") from None
