"""Faults that end a run before its last step: an interrupt, no memory, a full disk. Each message names the remedy.

A checkpoint is written beside the old one and then replaces it, so a run always resumes from a whole checkpoint.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from dirigent.errors import DirigentError

INTERRUPTED = b"\ninterrupted: the run ends after the present step (or its warm start); interrupt again to end now\n"
FULL = (errno.ENOSPC, errno.EDQUOT)
SIGNS = ("No space left on device", "Disk quota exceeded", "iostream error", "PytorchStreamWriter failed")
"""Parts of the messages of safetensors and torch about a full disk: they pass on no error number."""


class OutOfMemory(DirigentError):
    """A run asked for more memory than there is."""


class DiskFull(DirigentError):
    """A run could not write its files."""


class Stop(msgspec.Struct):
    """The reason to end the run before its last step. The run ends after the step in which it was set."""

    reason: str = ""


@contextmanager
def stop_on_signal(stop: Stop, *, aloud: bool) -> Iterator[None]:
    """The first interrupt ends the run after the present step, with a checkpoint; the second ends it at once."""

    def ask(number: int, _: Any) -> None:
        stop.reason = "stopped: interrupted. Checkpoint kept. Go on with --resume"
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else before[number])
        if aloud:
            os.write(2, INTERRUPTED)  # not through the stream, which may be in the middle of a line

    numbers = (signal.SIGINT, signal.SIGTERM)
    before: dict[int, Any] = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, ask)
    except ValueError:  # only the main thread gets signals, and this is another
        before.clear()
    try:
        yield
    finally:
        for heard, handler in before.items():
            signal.signal(heard, handler)


@contextmanager
def within_memory(doing: str, *, advice: str) -> Iterator[None]:
    """Turns torch's error for missing memory into an error that names the activity and the setting to change."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        _, found, rest = str(error).partition("Tried to allocate ")
        amount = f" ({' '.join(rest.split()[:2]).rstrip('.')} more were needed)" if found else ""
        raise OutOfMemory(f"out of memory {doing}{amount}: {advice}") from error


@contextmanager
def within_disk() -> Iterator[None]:
    """Turns the errors of a full disk into a DiskFull error."""
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        raise DiskFull("the disk is full: make room, then go on with --resume") from error


def is_full(error: BaseException | None) -> bool:
    """Whether this error, or an error that caused it, comes from a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        if not isinstance(error, OSError) and any(sign in str(error) for sign in SIGNS):
            return True
        error = error.__cause__ or error.__context__
    return False
