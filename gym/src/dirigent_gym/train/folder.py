"""A run's folder: the run that it holds, and the settings that a resumed run may change.

A folder belongs to one run and one process at a time. `recipe.json` is the recipe of the run. With `--resume` a recipe
may differ in settings that make a run longer, slower or smaller in memory, but not in what the run learns from.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec

from dirigent.errors import ConfigError
from dirigent_gym.train.recipe import AnyRecipe, Recipe

RECIPE_FILE = "recipe.json"
RESULT_FILE = "result.json"
WARM_START = "warm-start"
"""The folder of a conductor's warm start."""
SEAL = "whole.json"
"""Written last into the warm start's folder. Without this file the warm start is made anew."""
MAY_CHANGE = (
    "grpo.steps",
    "grpo.learning_rate",
    "grpo.minibatch_rows",
    "grpo.save_every_steps",
    "eval.*",
    "workers.max_cost_usd",
)
"""Settings that may differ with `--resume`: the length, speed and portions of the run, its measurements, and its cost
cap."""
LABELS = ("name", "about")
"""Settings that only name a recipe; changing them does not make another run."""
MOST_NAMED = 6
"""The number of settings that a message names before it counts the rest."""


def default_folder(recipe: AnyRecipe, *, seed: int | None = None) -> Path:
    """The folder of a run without `--out`. A seed other than the recipe's own has a folder of its own."""
    return Path("runs") / (recipe.name if seed is None else f"{recipe.name}-seed-{seed}")


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Locks the folder: two processes in one folder would overwrite each other's checkpoints."""
    out.mkdir(parents=True, exist_ok=True)
    folder = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ConfigError(f"another run is at work in {out}; wait for it, or name another folder with --out") from None
    finally:
        os.close(folder)


def claim(recipe: AnyRecipe, out: Path, *, resume: bool) -> None:
    """Make the folder this run's. Raises ConfigError if it holds another recipe's run, or a run and `resume` is off."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / RECIPE_FILE
    # A conductor's start that failed leaves only its recipe, often with the very fault that the user then mends.
    holds_work = not isinstance(recipe, Recipe) or (out / WARM_START / SEAL).exists()
    if file.exists() and not resume and holds_work:
        raise ConfigError(f"{out} holds a run already; continue it with --resume or name another folder with --out")
    if file.exists() and resume:
        try:
            before = msgspec.json.decode(file.read_bytes(), type=type(recipe))
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{file} is not of this kind of run: {error}; name another folder with --out") from None
        _refuse_changes(before, recipe, out)
    write_durably(file, msgspec.json.encode(recipe))


def differences(before: AnyRecipe, now: AnyRecipe) -> dict[str, str]:
    """Every setting that differs, except labels, by its dotted name: `3e-4 -> 8e-4`."""
    old, new = _flat(msgspec.to_builtins(before)), _flat(msgspec.to_builtins(now))
    pairs = {name: (old.get(name), new.get(name)) for name in (*new, *old) if name not in LABELS}
    return {name: f"{_shown(a)} -> {_shown(b)}" for name, (a, b) in pairs.items() if a != b}


def write_durably(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves either the new content or the old content, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_changes(before: AnyRecipe, now: AnyRecipe, out: Path) -> None:
    allowed = MAY_CHANGE if isinstance(now, Recipe) else ()
    changed = differences(before, now).items()
    refused = [f"{name} {change}" for name, change in changed if not any(fnmatch(name, one) for one in allowed)]
    if refused:
        takes = f"--resume accepts changes to {', '.join(allowed)} only; " if allowed else ""
        more = len(refused) - MOST_NAMED
        named = ", ".join(refused[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        raise ConfigError(
            f"the recipe has changed since the run in {out} began: {named}; "
            f"{takes}change it back or name another folder with --out"
        )


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one table with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _shown(value: Any) -> str:
    """A setting as people write it: rates as 3e-4, not 0.0003 or 3e-04."""
    if not isinstance(value, float):
        return "nothing" if value is None else str(value)
    if value == 0 or abs(value) >= 1e-3:
        return f"{value:.12g}"
    digits, exponent = f"{value:.11e}".split("e")
    return f"{float(digits):.12g}e{int(exponent)}"
