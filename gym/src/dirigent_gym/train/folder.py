"""A run's folder: whose it is, what it goes on from, and which recipes it had.

A folder belongs to one run. `--resume` goes on from its newest whole checkpoint. A damaged one is never passed over in
silence: it is named, and where it was the only one the run is not begun anew behind anybody's back. A recipe may change
between two parts of a run where a change makes it longer, slower or smaller in memory and leaves what is learned from
alone. `recipe.json` is the recipe that counts now, `recipes.json` all of them with the update each counted from, and
`result.json` says how far the run was when its adapter was written.

Knows files and settings; nothing of models.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dirigent.errors import ConfigError
from dirigent_gym.train.checkpoint import MARKER, PREFIX, damaged, latest, set_aside, write_durably
from dirigent_gym.train.recipe import AnyRecipe, Recipe

RECIPE_FILE = "recipe.json"
RECIPES_FILE = "recipes.json"
RESULT_FILE = "result.json"
WARM_START = "warm-start"
"""Where a conductor's start lies."""
MAY_CHANGE = (
    "grpo.steps",
    "grpo.learning_rate",
    "grpo.schedule",
    "grpo.minibatch_rows",
    "grpo.oversample",
    "grpo.save_every_steps",
    "warm_start.measure",
    "eval.*",
    "workers.max_cost_usd",
)
"""Settings that `--resume` takes other values of: how long, how fast, in which portions, what is measured,
and what it may cost."""
LABELS = ("name", "about")
"""What a recipe is called makes no run another one."""
MOST_NAMED = 6
"""Files or settings that a message names before it counts the others."""

R = TypeVar("R", bound=AnyRecipe)


def default_folder(recipe: AnyRecipe, *, seed: int | None = None) -> Path:
    """Where a run goes that was not told: seeds beside the recipe's own have a folder each."""
    return Path("runs") / (recipe.name if seed is None else f"{recipe.name}-seed-{seed}")


class Counted(msgspec.Struct, frozen=True):
    """A recipe that a run had."""

    from_update: int
    """The first update that was taken under it, counted from 1."""
    changed: str
    """What it has different from the one before: `steps 340 -> 464`."""
    recipe: Recipe


class Claim(msgspec.Struct, frozen=True):
    """A folder that is ours, and what we found in it."""

    resume_from: Path | None = None
    history: tuple[Counted, ...] = ()
    notes: tuple[str, ...] = ()
    """For whoever started the run."""


@contextmanager
def held(out: Path, *, process: int = 0) -> Iterator[None]:
    """Inside, no other launch may work in this folder: two would write each other's checkpoints. The first process
    holds it for all of its own."""
    if process:
        yield
        return
    out.mkdir(parents=True, exist_ok=True)
    folder = os.open(out, os.O_RDONLY)
    try:
        _lock(folder, out)
        yield
    finally:
        os.close(folder)


def _lock(folder: int, out: Path) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"another run is at work in {out}; wait for it, or name another folder with --out") from None


def claim(recipe: Recipe, out: Path, *, resume: bool, process: int = 0) -> Claim:
    """Make the folder this run's and find what it goes on from, or refuse. The first process speaks for all."""
    if process:
        return Claim(_found(recipe, out)[0] if resume else None)
    before = _kept(recipe, out, resume=resume)
    if not resume:
        return _written(recipe, out, Claim(history=(Counted(1, "", recipe),)))
    past = _past(before, out)
    before = past[-1].recipe if past and before is None else before
    _refuse_changes(before, recipe, out, allowed=MAY_CHANGE)
    folder, step = _found(recipe, out)
    history, change = _with_present(recipe, before, past, step=step)
    notes = _where_it_goes_on(out, folder, step=step)
    if folder is not None and before is None:
        notes.append(f"{out / RECIPE_FILE} is missing: this recipe is taken for the run's")
    if change:
        notes.append(f"the recipe has changed from update {step + 1} on: {change}")
    return _written(recipe, out, Claim(folder, history, tuple(notes)))


def claim_unchanged(recipe: AnyRecipe, out: Path, *, resume: bool) -> None:
    """The same for runs that have no updates to go on from: their recipe stays as it was."""
    before = _kept(recipe, out, resume=resume)
    _refuse_changes(before, recipe, out, allowed=())
    write_durably(out / RECIPE_FILE, msgspec.json.encode(recipe))


def differences(before: AnyRecipe, now: AnyRecipe) -> dict[str, str]:
    """Every setting that differs, labels apart, by its dotted name: `3e-4 -> 8e-4`."""
    old, new = _flat(msgspec.to_builtins(before)), _flat(msgspec.to_builtins(now))
    pairs = {name: (old.get(name), new.get(name)) for name in (*new, *old) if name not in LABELS}
    return {name: f"{_said(a)} -> {_said(b)}" for name, (a, b) in pairs.items() if a != b}


def _kept(recipe: R, out: Path, *, resume: bool) -> R | None:
    """The recipe that the folder's run had last. None: it has none, or does not say."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / RECIPE_FILE
    if not resume and (any(out.glob(f"{PREFIX}*")) or (file.exists() and _depends_on_it(recipe, out))):
        raise ConfigError(f"{out} holds a run already; --resume goes on with it, --out names another folder")
    return _read(file, type(recipe)) if file.exists() else None


def _depends_on_it(recipe: AnyRecipe, out: Path) -> bool:
    """Whether anything in a folder was made by the recipe there. A start that failed leaves a recipe alone, with the
    very fault that a person then mends."""
    return not isinstance(recipe, Recipe) or (out / WARM_START / MARKER).exists()


def _past(before: Recipe | None, out: Path) -> tuple[Counted, ...]:
    """The recipes that the run had; of runs from before there was a list, the one they were kept with."""
    file = out / RECIPES_FILE
    if file.exists():
        return _read(file, tuple[Counted, ...])
    return () if before is None else (Counted(1, "", before),)


def _refuse_changes(before: AnyRecipe | None, now: AnyRecipe, out: Path, *, allowed: Sequence[str]) -> None:
    changed = {} if before is None else differences(before, now)
    refused = [f"{name} {change}" for name, change in changed.items() if not any(fnmatch(name, one) for one in allowed)]
    if refused:
        takes = f"--resume takes other values of {', '.join(allowed)} only; " if allowed else ""
        raise ConfigError(
            f"the recipe has changed since the run in {out} began: {_listed(refused)}; "
            f"{takes}change it back or name another folder with --out"
        )


def _found(recipe: Recipe, out: Path) -> tuple[Path | None, int]:
    """The newest whole checkpoint and its step, if there is one and steps are left, or its adapter to be written."""
    found, steps = latest(out), recipe.grpo.steps
    if found is not None and (found[1] > steps or found[1] == steps == _written_at(out)):
        taken = f"all {steps} steps are taken"
        raise ConfigError(f"the run in {out} is finished: {taken}; with more of grpo.steps it goes on")
    return found or (None, 0)


def _written_at(out: Path) -> int:
    """The step whose adapter was written; -1: none was."""

    class Reached(msgspec.Struct):
        step: int

    try:
        return msgspec.json.decode((out / RESULT_FILE).read_bytes(), type=Reached).step
    except (OSError, msgspec.DecodeError):
        return -1


def _where_it_goes_on(out: Path, folder: Path | None, *, step: int) -> list[str]:
    """What to say of the checkpoints. Damaged ones after the one that counts make way; if none counts they forbid."""
    lost = damaged(out, after_step=step)
    if folder is None and lost:
        told = "; ".join(f"{one}: {_listed(files)}" for one, files in lost.items())
        raise ConfigError(
            f"no checkpoint is whole, and what was sealed is damaged: {told}. "
            "Bring the files back, or delete what is damaged to begin at update 0"
        )
    if folder is None:
        return [f"no checkpoint to go on from in {out}: begins at update 0"]
    notes = [
        f"{one.name} is damaged ({_listed(files)}), set aside as {set_aside(one).name}" for one, files in lost.items()
    ]
    return [*notes, f"goes on from update {step} ({folder})"]


def _with_present(
    recipe: Recipe, before: Recipe | None, past: Sequence[Counted], *, step: int
) -> tuple[tuple[Counted, ...], str]:
    """The recipes whose updates are still part of the run, this one included; and what it changes, if anything.

    Updates after the checkpoint are lost, and with them the recipes that counted only there.
    """
    still = tuple(one for one in past if one.from_update <= step)
    last = still[-1].recipe if still else before or recipe
    change = ", ".join(f"{name.removeprefix('grpo.')} {what}" for name, what in differences(last, recipe).items())
    if not still:
        return (Counted(1, "", recipe),), change
    return (*still, Counted(step + 1, change, recipe)) if change else still, change


def _written(recipe: Recipe, out: Path, claimed: Claim) -> Claim:
    write_durably(out / RECIPES_FILE, msgspec.json.encode(claimed.history))
    write_durably(out / RECIPE_FILE, msgspec.json.encode(recipe))
    return claimed


T = TypeVar("T")


def _read(file: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file} cannot be read as this run's: {error}; name another folder with --out") from None


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables within tables as one, with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _said(value: Any) -> str:
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
