"""The policy's judge: plans in, scores out, for code that is not async.

Trainers call from threads of their own, and workers belong to one event loop, so the scorer keeps a loop of its own and
everything that was opened on it. The same scorer grades training rollouts, the warm start and the development split.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from dirigent.errors import ConfigError, GradeError
from dirigent.plan.plan import format_plan
from dirigent.sandbox import Sandbox, open_sandbox
from dirigent.tasks.code import missing_libraries, problem_in
from dirigent.tasks.graders import judge
from dirigent.tasks.task import Task
from dirigent.workers.worker import Worker, WorkerInfo
from dirigent_gym.questions.specialists import RL_ROSTER
from dirigent_gym.train.dataset import Row
from dirigent_gym.train.processes import divided
from dirigent_gym.train.recipe import Recipe, TaskSettings, WorkerSettings
from dirigent_gym.train.reward import Scored, ScoreSettings, score
from dirigent_gym.train.rows import read_tasks, right_plan
from dirigent_gym.train.spending import CapReached, Spending
from dirigent_gym.train.workers import ExactWorkers, load_workers

T = TypeVar("T")


class Scorer:
    """Workers and the loop they live on."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        workers: Mapping[str, Worker],
        settings: ScoreSettings,
        *,
        sandbox: Sandbox | None = None,
        spending: Spending | None = None,
    ) -> None:
        self._loop = loop
        self._sandbox = sandbox
        self.workers = workers
        self.settings = settings
        self.spending = spending
        """What workers cost, where they may cost something: the gym's never do."""

    @property
    def pool(self) -> tuple[WorkerInfo, ...]:
        return tuple(worker.info for worker in self.workers.values())

    def score(self, rows: Sequence[Row], texts: Sequence[str], *, tokens: Sequence[int] = ()) -> list[Scored]:
        """Carry each text out as a plan for its row, a row standing once for each of its texts."""
        scored = score(
            rows, texts, self.workers, self.settings, tokens=tokens, sandbox=self._sandbox, ledger=self.spending
        )
        return wait_for(self._loop, scored)

    def require_paid(self, scored: Sequence[Scored], *, what: str) -> None:
        """`CapReached` where the cap refused some of these: figures over the others would be those of cheap plans."""
        if self.spending is not None and any(one.unpaid for one in scored):
            raise CapReached(f"{what} could not all be answered: {self.spending.reached}")


@contextmanager
def open_scorer(
    recipe: Recipe,
    *,
    base: tuple[Any, Any] | None = None,
    workers: Mapping[str, Worker] | None = None,
    out: Path | None = None,
) -> Iterator[Scorer]:
    """The recipe's workers, or those given, ready to be asked, and its tasks sure to be judged. `base`: the model that
    adapters stand on; `out`: the run's folder, which remembers what workers have cost."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="scorer", daemon=True)
    thread.start()
    stack = AsyncExitStack()
    settings = ScoreSettings(
        recipe.reward, seed=recipe.seed, max_steps=recipe.rows.max_steps, dialect=recipe.tasks.dialect
    )
    try:
        sandbox = wait_for(loop, _sandbox_for(recipe.tasks, stack))
        workers = workers or wait_for(loop, _workers(recipe, base, stack))
        spending = _spending(recipe.workers, workers, out)
        yield Scorer(loop, workers, settings, sandbox=sandbox, spending=spending)
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
    scorer.require_paid(scored, what="the right plans of the development questions")
    return sum(one.correct for one in scored) / len(rows)


def wait_for(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on another thread's loop; if the wait is broken off, so is the work."""
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _spending(settings: WorkerSettings, workers: Mapping[str, Worker], out: Path | None) -> Spending | None:
    if settings.kind != "config":
        return None
    for worker in workers.values():
        if settings.max_cost_usd is not None and worker.info.price is None:
            raise ConfigError(
                f'a cost cap needs a price for worker "{worker.info.name}"; '
                "add  price = { input = 0, output = 0 }  if it is free"
            )
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    return Spending(out, max_cost_usd=settings.max_cost_usd, processes=processes)


async def _sandbox_for(settings: TaskSettings, stack: AsyncExitStack) -> Sandbox | None:
    """Where the answers to tasks of a file are run, if some are programs. A task that cannot be judged is an error now,
    not in the update that comes to ask it."""
    files = [Path(name) for name in (settings.file, settings.dev_file) if name]
    tasks = [(file, task) for file in files for task in read_tasks(file)]
    for file, task in tasks:
        try:
            await refuse_unjudged(task)
        except GradeError as error:
            raise ConfigError(f"{file}: {error}") from None
    if any(task.grader == "code" for _, task in tasks):
        return await stack.enter_async_context(open_sandbox())
    return None


async def refuse_unjudged(task: Task) -> None:
    """`GradeError` where no reply to this task could be judged."""
    if task.grader != "code":
        await judge(task, "7")
    elif libraries := problem_in(task).libraries:
        raise GradeError(f"task {task.id!r}: {missing_libraries(libraries)}")


async def _workers(recipe: Recipe, base: tuple[Any, Any] | None, stack: AsyncExitStack) -> Mapping[str, Worker]:
    settings = recipe.workers
    if settings.kind == "exact":
        return ExactWorkers(RL_ROSTER, misled=settings.misled)
    if settings.kind == "adapters":
        if base is None:
            raise ConfigError("workers that are adapters need the base model that they are adapters on")
        return load_workers(*base, settings.adapters, cache=recipe.grpo.cache)
    from dirigent.config.file import load_config
    from dirigent.config.runtime import open_runtime

    loaded = load_config(Path(settings.config))
    runtime = await stack.enter_async_context(open_runtime(loaded))
    pool = runtime.pool
    if settings.profile:
        profile = loaded.config.profile.get(settings.profile)
        if profile is None:
            known = ", ".join(loaded.config.profile) or "none"
            raise ConfigError(f"{settings.config} has no profile {settings.profile!r}; it has: {known}")
        names = profile.workers or pool.names
        pool = pool.subset([name for name in names if name != profile.planner_worker])
    for name in pool.names:  # the one that plans may have no adapter yet: it is what this run makes
        if name in runtime.problems:
            raise ConfigError(runtime.problems[name])
    return pool
