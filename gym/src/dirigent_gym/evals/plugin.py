"""The gym as a family of tasks of `dirigent eval`: the plugin of the group `dirigent.tasks`.

`--tasks gym` and `gym:SET` name its questions. Its workers are its specialists, so a recipe names no pool.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from dirigent.cli.evaluating import Opened, bounds_of, limits_of
from dirigent.cli.output import say
from dirigent.evals.live import trained_weights
from dirigent.evals.planners import default_planners
from dirigent.evals.recipe import EvalRecipe
from dirigent.evals.record import digest
from dirigent.evals.reply_cache import SHARED, Replies
from dirigent_gym.evals.evaluation import GymField
from dirigent_gym.evals.pools import Gym, GymSettings, check_sets, roster_of
from dirigent_gym.evals.workers import adapters_digest, gym_workers
from dirigent_gym.weights import FOLDER

MANY = 5_000
"""The number of questions from which the command warns that drawing them takes a while."""


def check(recipe: EvalRecipe) -> None:
    """Raises ConfigError for a recipe whose sets of questions do not exist."""
    check_sets(recipe.gym_sets)


@asynccontextmanager
async def opened(recipe: EvalRecipe, *, outcomes: Path, resume: bool) -> AsyncIterator[Opened]:
    """Opens the gym's field. Replies that planners share are stored beside the outcomes."""
    planners: Sequence[str] = recipe.planners or default_planners("gym")
    settings = GymSettings(
        sets=recipe.gym_sets,
        split=recipe.split,
        limit=recipe.limit or 200,
        seed=recipe.seed,
        cards=recipe.cards,
        calibration=recipe.calibration,
    )
    adapters = Path(recipe.adapters) if recipe.adapters else None
    weights = trained_weights(planners, adapters or FOLDER)
    shared = Replies()
    async with gym_workers(recipe.workers, planners, roster_of(settings), adapters=adapters, replies=shared) as (
        worker_for,
        factories,
    ):
        if settings.limit >= MANY:
            say(f"drawing {settings.limit:,} questions of each set, about a second for a thousand")
        field = GymField(
            Gym(settings, worker_for),
            workers=recipe.workers,
            trained=factories,
            weights=weights,
            limits=limits_of(recipe),
        )
        about = {name: str(value) for name, value in msgspec.structs.asdict(settings).items()} | {
            "tasks": "gym",
            "questions": digest(field.tasks),
            "workers": recipe.workers,
            "adapters": adapters_digest(adapters or FOLDER),
            **bounds_of(recipe),
        }
        said = {"shared": SHARED} if factories or recipe.workers == "local" else {}
        yield Opened(
            field,
            planners,
            about,
            said=said,
            beside=lambda: shared.stored_beside(outcomes, resume=resume),
        )
