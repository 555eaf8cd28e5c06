"""How a run ends before its last step: at an interrupt, or where memory, disk or money are out.

Both ways say what is kept and what the run goes on from. What a run is made of is in `run.py`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dirigent_gym.train.checkpoint import latest, sealed_step
from dirigent_gym.train.disk import DiskFull
from dirigent_gym.train.folder import WARM_START
from dirigent_gym.train.memory import OutOfMemory
from dirigent_gym.train.recipe import AnyRecipe, SpecialistsRecipe
from dirigent_gym.train.result import Stop
from dirigent_gym.train.spending import CapReached

INTERRUPTED = b"\ninterrupted: ends after the present step, a warm start first; once more to end now\n"


@contextmanager
def says_what_is_kept(recipe: AnyRecipe, out: Path) -> Iterator[None]:
    """Out of memory, disk or money: the error also says what the run can go on from once there is more."""
    try:
        yield
    except (OutOfMemory, DiskFull, CapReached) as error:
        raise type(error)(f"{error}. {_kept(recipe, out)}") from error


def _kept(recipe: AnyRecipe, out: Path) -> str:
    if isinstance(recipe, SpecialistsRecipe):
        return "Rounds that were finished are kept; --resume goes on from them"
    if (found := latest(out)) is not None:
        return f"The checkpoint of update {found[1]} is kept; --resume goes on from it"
    if sealed_step(out / WARM_START) is not None:
        return "The warm start is kept; --resume goes on from it"
    return "Nothing is fitted yet; begin again in another folder (--out)"


@contextmanager
def ends_gently(stop: Stop, *, aloud: bool) -> Iterator[None]:
    """The first interrupt ends the run after the present step, checkpoint kept, and says so; the second at once."""

    def ask(number: int, _: Any) -> None:
        stop.reason = "stopped: interrupted. Checkpoint kept. Go on with --resume"
        # An event loop's own handler would only cancel a task, which training never lets look.
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else before[number])
        if aloud:
            os.write(2, INTERRUPTED)  # not by the stream: it may be in the middle of a line

    numbers = (signal.SIGINT, signal.SIGTERM)
    before: dict[int, Any] = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, ask)
    except ValueError:  # not in the main thread: whoever runs this one hears the signals
        before.clear()
    try:
        yield
    finally:
        for heard, handler in before.items():
            signal.signal(heard, handler)
