"""Evaluation recipes: questions, workers and planners in one TOML file that gives the same report again.

    name = "maths"
    tasks = ["gsm8k", "math500"]
    planners = ["best", "vote", "moa", "language", "oracle"]
    pool = "dirigent.toml"
    limit = 200
    max_cost = 20.0

Paths are relative to the recipe; `out` is relative to the current folder. The command line carries a recipe out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from dirigent import plugins, toml
from dirigent.errors import ConfigError
from dirigent.limits import HARD_MAX_STEPS
from dirigent.tasks.benchmarks import find_benchmark, known_benchmarks
from dirigent.toml import nearest

GYM, GYM_SET = "gym", "gym:"
RECORDED = "recorded:"

PARTS = {"bigcodebench_hard": "bigcodebench"}
"""Benchmarks whose questions also belong to another benchmark."""


class EvalRecipe(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    about: str = ""
    tasks: tuple[str, ...] = (GYM,)
    """`gym` and its further sets (`gym:handwritten`), or benchmarks by name; with a recorded pool also the tasks of its
    file."""
    planners: tuple[str, ...] = ()
    pool: str = ""
    """A dirigent.toml whose workers are asked, or `recorded:FILE`."""
    data: str = ""
    """Folder or file with the benchmarks; without it they come from the hub."""
    limit: int | None = None
    """Questions of each task; without a limit all questions, or 200 of the gym."""
    fit: int = 60
    """Questions of each task that planners are fitted on."""
    seed: int = 1
    out: str = ""
    max_cost: float | None = None
    """The most that the whole evaluation may cost, in USD."""
    concurrency: int = 8
    max_steps: int = 5
    max_output_tokens: int = 4096
    """For one reply."""
    deadline_s: float = 900.0
    """For one question."""
    split: Literal["test", "dev", "novel"] = "test"
    """The part of the gym's questions."""
    cards: Literal["train", "held_out"] = "train"
    workers: Literal["exact", "local"] = "exact"
    """The gym's specialists: `exact` ones answer by table, `local` ones are adapters on this machine."""
    adapters: str = ""
    calibration: int = 300
    """Questions of the gym that choose the best worker and the ceiling."""

    def __post_init__(self) -> None:
        for name in ("limit", "concurrency", "calibration", "max_output_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more, not {value}")
        if not 1 <= self.max_steps <= HARD_MAX_STEPS:
            raise ValueError(f"max_steps must be 1 to {HARD_MAX_STEPS}, not {self.max_steps}")
        if self.fit < 0:
            raise ValueError(f"fit must be 0 or more, not {self.fit}")
        if not self.deadline_s > 0:
            raise ValueError(f"deadline_s must be above 0, not {self.deadline_s:g}")
        if self.max_cost is not None and not self.max_cost >= 0:
            raise ValueError(f"max_cost must be 0 or more, not {self.max_cost:g}")
        if not self.tasks:
            raise ValueError("tasks is empty; name at least one task")

    @property
    def kind(self) -> Literal["gym", "recorded", "live"]:
        if self.pool.startswith(RECORDED):
            return "recorded"
        return "gym" if all(name.partition(":")[0] == GYM for name in self.tasks) else "live"

    @property
    def gym_sets(self) -> tuple[str, ...]:
        """The gym's sets among the tasks, without the prefix `gym:`."""
        return tuple(name.removeprefix(GYM_SET) for name in self.tasks)


def load_recipe(path: Path) -> EvalRecipe:
    """A recipe from its file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the recipe {path} cannot be read: {error}") from None
    recipe = toml.decode(text, EvalRecipe, file=str(path))
    return msgspec.structs.replace(
        recipe,
        name=recipe.name or path.stem,
        pool=_from_recipe(path, recipe.pool),
        data=_from_recipe(path, recipe.data),
        adapters=_from_recipe(path, recipe.adapters),
    )


def changed(recipe: EvalRecipe, **given: Any) -> EvalRecipe:
    """Returns the recipe with the command line's values; None changes nothing."""
    values = msgspec.structs.asdict(recipe) | {name: value for name, value in given.items() if value is not None}
    try:
        return checked(msgspec.convert(values, EvalRecipe))
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(_choice_message(str(error), values)) from None


def checked(recipe: EvalRecipe) -> EvalRecipe:
    """Raises ConfigError, before anything is opened, for a recipe that would only fail later."""
    if recipe.kind == "gym":
        if recipe.pool:
            raise ConfigError(f"the gym brings its own workers; leave out  --pool {recipe.pool}, or name a benchmark")
        plugins.load("tasks", GYM).check(recipe)
        return recipe
    for part, whole in PARTS.items():
        if part in recipe.tasks and whole in recipe.tasks:
            raise ConfigError(
                f"the questions of {part} are among those of {whole}, and would be asked twice or fitted on; "
                f"leave {part} or {whole} out of  --tasks, or make two reports"
            )
    if recipe.kind == "live":
        for name in recipe.tasks:
            if name.partition(":")[0] == GYM:
                raise ConfigError("the gym and public benchmarks are evaluated apart: two reports")
            if find_benchmark(name) is None:
                raise ConfigError(f'there is no family of tasks "{name}"{nearest(name, (GYM, *known_benchmarks()))}')
        if not recipe.pool:
            raise ConfigError(
                f"{', '.join(recipe.tasks)} needs models that answer: add  --pool dirigent.toml  for those of a "
                "configuration, or  --pool recorded:FILE  with recorded answers"
            )
    return recipe


CHOICES = {"split": ("test", "dev", "novel"), "cards": ("train", "held_out"), "workers": ("exact", "local")}
NAMED = {"split": "split", "cards": "wording of cards", "workers": "workers"}


def _choice_message(error: str, values: dict[str, Any]) -> str:
    """Returns the message for an unknown choice; other errors already have one."""
    for name, known in CHOICES.items():
        if values[name] not in known:
            return f'no {NAMED[name]} is called "{values[name]}"{nearest(values[name], known)}'
    return error.partition(" - at `$")[0]


def _from_recipe(recipe: Path, path: str) -> str:
    """A path of the recipe relative to the current folder; a leading `recorded:` stays."""
    kind, colon, rest = path.partition(":") if path.startswith(RECORDED) else ("", "", path)
    return f"{kind}{colon}{recipe.parent / Path(rest).expanduser()}" if rest else ""
