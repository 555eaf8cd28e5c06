"""A run's folder: which run it holds, and what a resumed run may change.

A folder belongs to one run and one process at a time. `recipe.json` is the recipe of the run. With `--resume` a recipe
may differ where a change makes a run longer, slower or smaller in memory and leaves alone what it learns from.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
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
"""The folder of a conductor's start."""
SEAL = "whole.json"
"""Written last into the warm start's folder: without it the start is made anew."""
MAY_CHANGE = (
    "grpo.steps",
    "grpo.learning_rate",
    "grpo.minibatch_rows",
    "grpo.save_every_steps",
    "eval.*",
    "workers.max_cost_usd",
)
"""Settings that `--resume` takes other values of: how long, how fast, in which portions, what is measured, and what it
may cost."""
LABELS = ("name", "about")
"""What a recipe is called makes no run another one."""
MOST_NAMED = 6
"""Settings that a message names before it counts the others."""


def default_folder(recipe: AnyRecipe, *, seed: int | None = None) -> Path:
    """The folder of a run that names none: seeds other than the recipe's own have a folder each."""
    return Path("runs") / (recipe.name if seed is None else f"{recipe.name}-seed-{seed}")


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Inside, no other process may work in this folder: two would write over each other's checkpoints."""
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
    """Make the folder this run's. Refuses another recipe's run, and a run that `resume` was not asked for."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / RECIPE_FILE
    if file.exists() and not resume and _holds_work(recipe, out):
        raise ConfigError(f"{out} holds a run already; --resume goes on with it, --out names another folder")
    if file.exists() and resume:
        try:
            before = msgspec.json.decode(file.read_bytes(), type=type(recipe))
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{file} is not of this kind of run: {error}; name another folder with --out") from None
        _refuse_changes(before, recipe, out)
    write_durably(file, msgspec.json.encode(recipe))


def differences(before: AnyRecipe, now: AnyRecipe) -> dict[str, str]:
    """Every setting that differs, labels apart, by its dotted name: `3e-4 -> 8e-4`."""
    old, new = _flat(msgspec.to_builtins(before)), _flat(msgspec.to_builtins(now))
    pairs = {name: (old.get(name), new.get(name)) for name in (*new, *old) if name not in LABELS}
    return {name: f"{_shown(a)} -> {_shown(b)}" for name, (a, b) in pairs.items() if a != b}


def write_durably(path: Path, data: bytes) -> None:
    """Write a file so that after a crash it holds all of this or what it held before."""
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


def _holds_work(recipe: AnyRecipe, out: Path) -> bool:
    """Whether anything in the folder was made by its recipe. A start that failed leaves a recipe alone, often with the
    very fault that a person then mends."""
    return not isinstance(recipe, Recipe) or (out / WARM_START / SEAL).exists()


def _refuse_changes(before: AnyRecipe, now: AnyRecipe, out: Path) -> None:
    allowed = MAY_CHANGE if isinstance(now, Recipe) else ()
    changed = differences(before, now).items()
    refused = [f"{name} {change}" for name, change in changed if not any(fnmatch(name, one) for one in allowed)]
    if refused:
        takes = f"--resume takes other values of {', '.join(allowed)} only; " if allowed else ""
        raise ConfigError(
            f"the recipe has changed since the run in {out} began: {_listed(refused)}; "
            f"{takes}change it back or name another folder with --out"
        )


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables within tables as one, with dotted names."""
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


def _listed(things: Sequence[str]) -> str:
    more = len(things) - MOST_NAMED
    return ", ".join(things[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
