"""`dirigent train`: carries out a recipe, from base model to exported adapter."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dirigent.cli.output import FAILED, JsonOption, carry_out, print_json, print_text
from dirigent.errors import ConfigError

if TYPE_CHECKING:
    from dirigent_gym.train.recipe import AnyRecipe


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as gym/recipes/gym-gpu.toml.")],
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue from the last checkpoint. The recipe may then have more steps, another learning rate, "
            "smaller passes, another cost cap, and other settings for measuring and saving.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder. Default: runs/NAME of the recipe, with --seed runs/NAME-seed-N."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="A seed in place of the recipe's, for drawing, shuffling and sampling.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="End, with a checkpoint, before this time is up.")] = None,
    draw_lessons: Annotated[
        bool,
        typer.Option(
            "--draw-lessons",
            help="Only draw the warm start's lessons into the run's folder, which takes minutes and no GPU; train with "
            "the same recipe and folder afterwards.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Trains a recipe's model: a conductor, the gym's specialists, or a control. Needs the extra `train`.

    Example:  dirigent train gym/recipes/tiny-cpu.toml
    """

    def work() -> Coroutine[Any, Any, int]:
        # Training runs before the command's event loop does: it has loops of its own.
        return _code(_trained())

    def _trained() -> int:
        from dirigent_gym.train.folder import default_folder
        from dirigent_gym.train.recipe import load_recipe

        loaded = load_recipe(recipe, seed=seed)
        folder = out or default_folder(loaded, seed=seed)
        if draw_lessons:
            return _store_lessons(loaded, folder, as_json=as_json)
        from dirigent_gym.train.run import carry_out as carry_out_recipe

        result = carry_out_recipe(loaded, out=folder, resume=resume, seconds=seconds, quiet=as_json)
        if as_json:
            print_json(result)
        else:
            print_text(result.summary)
        return 0 if result.finished else FAILED

    carry_out(work, as_json=as_json)


async def _code(code: int) -> int:
    return code


def _store_lessons(recipe: AnyRecipe, folder: Path, *, as_json: bool) -> int:
    from dirigent_gym.train.lessons import store_lessons
    from dirigent_gym.train.recipe import Recipe

    if not isinstance(recipe, Recipe):
        raise ConfigError(f"{recipe.name} trains no conductor, so it has no lessons to draw; leave --draw-lessons out")
    file = store_lessons(recipe, folder)
    if as_json:
        print_json({"lessons": str(file), "n": recipe.warm_start.n})
    else:
        print_text(f"{recipe.warm_start.n:,} lessons: {file}")
    return 0
