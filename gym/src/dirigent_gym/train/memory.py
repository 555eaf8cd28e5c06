"""Out of memory, said plainly: what was being done, and the setting that makes it need less.

A GPU's memory is used up by what a recipe asks for, so the cure is a number in the recipe, not a traceback. Nothing is
saved at that moment: checkpoints that were sealed before stay, and a run goes on from the newest of them. Knows torch's
error and nothing of models.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dirigent.errors import DirigentError


class OutOfMemory(DirigentError):
    """A run asked for more memory than there is."""


@contextmanager
def within_memory(doing: str, *, advice: str) -> Iterator[None]:
    """What happens inside fits into memory, or the error says what was being done and what to change."""
    try:
        yield
    except RuntimeError as error:
        if (cause := ran_out(error)) is None:
            raise
        raise OutOfMemory(f"out of memory {doing}{_wanted(cause)}: {advice}") from error


def ran_out(error: BaseException | None) -> BaseException | None:
    """Torch's error for it: this one, or the one it came from, as leaving a CUDA graph half captured raises another."""
    import torch

    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__context__
    return error


def _wanted(error: BaseException) -> str:
    """` (2.00 GiB more were wanted)`, where torch says how much that was."""
    _, found, rest = str(error).partition("Tried to allocate ")
    amount = " ".join(rest.split()[:2]).rstrip(".")
    return f" ({amount} more were wanted)" if found else ""
