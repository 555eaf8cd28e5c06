"""The policy's judge: plans in, scores out, for code that is not async.

Trainers call from threads of their own, and workers belong to one event loop, so the scorer keeps a loop of its own and
everything that was opened on it. The same scorer grades training rollouts, the warm start and the development split.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from dirigent.errors import ConfigError
from dirigent.plan import format_plan
from dirigent.tasks.gym.specialists import RL_ROSTER
from dirigent.train.dataset import Row
from dirigent.train.processes import divided
from dirigent.train.recipe import Recipe
from dirigent.train.reward import Scored, ScoreSettings, score
from dirigent.train.rows import right_plan
from dirigent.train.workers import ExactWorkers, load_workers
from dirigent.worker import Worker, WorkerInfo

T = TypeVar("T")


class Scorer:
    """Workers and the loop they live on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, workers: Mapping[str, Worker], settings: ScoreSettings) -> None:
        self._loop = loop
        self.workers = workers
        self.settings = settings

    @property
    def pool(self) -> tuple[WorkerInfo, ...]:
        return tuple(worker.info for worker in self.workers.values())

    def score(self, rows: Sequence[Row], texts: Sequence[str], *, tokens: Sequence[int] = ()) -> list[Scored]:
        """Carry each text out as a plan for its row, a row standing once for each of its texts."""
        return wait_for(self._loop, score(rows, texts, self.workers, self.settings, tokens=tokens))


@contextmanager
def open_scorer(
    recipe: Recipe, *, base: tuple[Any, Any] | None = None, workers: Mapping[str, Worker] | None = None
) -> Iterator[Scorer]:
    """The recipe's workers, or those given, ready to be asked. `base`: the model that adapters stand on."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="scorer", daemon=True)
    thread.start()
    stack = AsyncExitStack()
    settings = ScoreSettings(
        recipe.reward, seed=recipe.seed, max_steps=recipe.rows.max_steps, dialect=recipe.tasks.dialect
    )
    try:
        yield Scorer(loop, workers or wait_for(loop, _workers(recipe, base, stack)), settings)
    finally:
        wait_for(loop, stack.aclose())
        wait_for(loop, loop.shutdown_default_executor())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def ceiling(scorer: Scorer, rows: Sequence[Row]) -> float | None:
    """Accuracy of the right plan for every row; a row that its pool cannot solve counts as wrong.

    Processes divide the rows among them, and all come here together.
    """
    if any(row.task.sketch is None for row in rows):
        return None
    plans = [(row, plan) for row in rows if (plan := right_plan(row)) is not None]
    dialect = scorer.settings.dialect
    texts = [format_plan(row.as_shown(plan), row.shown, dialect=dialect) for row, plan in plans]

    def own(places: Sequence[int]) -> list[Scored]:
        return scorer.score([plans[place][0] for place in places], [texts[place] for place in places])

    scored = divided([row.id for row, _ in plans], own)
    return sum(one.correct for one in scored) / len(rows)


def wait_for(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on another thread's loop; if the wait is broken off, so is the work."""
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def _workers(recipe: Recipe, base: tuple[Any, Any] | None, stack: AsyncExitStack) -> Mapping[str, Worker]:
    settings = recipe.workers
    if settings.kind == "exact":
        return ExactWorkers(RL_ROSTER, misled=settings.misled)
    if settings.kind == "adapters":
        if base is None:
            raise ConfigError("workers that are adapters need the base model that they are adapters on")
        return load_workers(*base, settings.adapters, cache=recipe.grpo.cache)
    from dirigent.config import load_config
    from dirigent.runtime import open_runtime

    loaded = load_config(Path(settings.config))
    runtime = await stack.enter_async_context(open_runtime(loaded))
    for problem in runtime.problems.values():
        raise ConfigError(problem)
    if not settings.profile:
        return runtime.pool
    profile = loaded.config.profile.get(settings.profile)
    if profile is None:
        known = ", ".join(loaded.config.profile) or "none"
        raise ConfigError(f"{settings.config} has no profile {settings.profile!r}; it has: {known}")
    names = profile.workers or runtime.pool.names
    return runtime.pool.subset([name for name in names if name != profile.planner_worker])
