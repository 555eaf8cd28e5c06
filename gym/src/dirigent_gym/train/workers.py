"""The workers of a recipe, their cost cap, and the sandbox for answers that are programs.

The gym's workers answer by its tables and cost nothing. The workers of a configured pool are really asked: `Spending`
records their cost in the run's folder and refuses calls beyond the recipe's cap.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path

import msgspec

from dirigent.config.file import load_config
from dirigent.config.runtime import open_runtime
from dirigent.errors import ConfigError, CostError, GradeError, LimitError
from dirigent.limits import Budget, Hold, Quote
from dirigent.sandbox import Sandbox, open_sandbox
from dirigent.tasks.code import missing_libraries, problem_in
from dirigent.tasks.graders import judge
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Worker
from dirigent_gym.questions.oracle import ExactSpecialist
from dirigent_gym.questions.specialists import RL_ROSTER, ROSTER, Specialist
from dirigent_gym.train.recipe import Recipe, TaskSettings, WorkerSettings
from dirigent_gym.train.rows import read_tasks

SPENT_FILE = "spent.jsonl"


class Resources(msgspec.Struct, frozen=True):
    """The workers, the sandbox and the budget that plans are carried out with."""

    workers: Mapping[str, Worker]
    sandbox: Sandbox | None = None
    spending: Spending | None = None

    @property
    def refused(self) -> bool:
        """Whether the cost cap has refused a call."""
        return self.spending is not None and self.spending.refused


@asynccontextmanager
async def open_resources(
    recipe: Recipe, *, out: Path | None = None, workers: Mapping[str, Worker] | None = None
) -> AsyncIterator[Resources]:
    """Opens the recipe's workers, or those given. The run's folder `out` stores their cost between parts of a run.

    Raises ConfigError for a worker or a task that cannot be used, before any call is paid.
    """
    opened: AbstractAsyncContextManager[Mapping[str, Worker]]
    if workers is None and recipe.workers.kind == "config":
        opened = open_pool(Path(recipe.workers.config), profile=recipe.workers.profile)
    else:
        opened = nullcontext(workers or exact_workers(RL_ROSTER, misled=recipe.workers.misled))
    async with await _sandbox_for(recipe.tasks) as sandbox, opened as ready:
        yield Resources(ready, sandbox, _spending(recipe.workers, ready, out))


def exact_workers(specialists: Iterable[Specialist] = ROSTER, *, misled: float = 0.0) -> dict[str, Worker]:
    """Workers by name that answer as perfectly trained specialists would; each request's seed decides their luck."""
    return {one.name: ExactSpecialist(one, seed=None, misled=misled) for one in specialists}


@asynccontextmanager
async def open_pool(file: Path, *, profile: str = "") -> AsyncIterator[Pool]:
    """Opens the workers of a configuration: all of them, or those of a profile without its planning worker."""
    loaded = load_config(file)
    async with open_runtime(loaded) as runtime:
        pool = runtime.pool
        if profile:
            found = loaded.config.profile.get(profile)
            if found is None:
                known = ", ".join(loaded.config.profile) or "none"
                raise ConfigError(f"{file} has no profile {profile!r}; it has: {known}")
            pool = pool.subset([name for name in found.workers or pool.names if name != found.planner_worker])
        for name in pool.names:  # the planning worker is not checked: training may yet make its adapter
            if name in runtime.problems:
                raise ConfigError(runtime.problems[name])
        yield pool


async def _sandbox_for(settings: TaskSettings) -> AbstractAsyncContextManager[Sandbox | None]:
    """A sandbox, if answers to tasks of a file are programs. Raises ConfigError for a task that cannot be judged."""
    files = [Path(name) for name in (settings.file, settings.dev_file) if name]
    tasks = [(file, task) for file in files for task in read_tasks(file)]
    for file, task in tasks:
        try:
            await refuse_unjudged(task)
        except GradeError as error:
            raise ConfigError(f"{file}: {error}") from None
    return open_sandbox() if any(task.grader == "code" for _, task in tasks) else nullcontext()


async def refuse_unjudged(task: Task) -> None:
    """Raises `GradeError` if no reply to this task could be judged."""
    if task.grader != "code":
        await judge(task, "7")
    elif libraries := problem_in(task).libraries:
        raise GradeError(f"task {task.id!r}: {missing_libraries(libraries)}")


def _spending(settings: WorkerSettings, workers: Mapping[str, Worker], out: Path | None) -> Spending | None:
    if settings.kind != "config":
        return None
    for worker in workers.values() if settings.max_cost_usd is not None else ():
        if worker.info.price is None:
            raise ConfigError(
                f'a cost cap needs a price for worker "{worker.info.name}"; '
                "add  price = { input = 0, output = 0 }  if it is free"
            )
    return Spending(out, max_cost_usd=settings.max_cost_usd)


class CapReached(LimitError):
    """The run's workers have cost as much as the cap allows."""


class Spending(Budget):
    """The ledger of a run. Without a folder it starts at nothing spent.

    Every call is reserved at its worst case before it is made. In training many calls wait at once, so a call that
    finds too little money waits until earlier calls are settled. No call gets fewer tokens than it asked for: an answer
    cut short would count against the plan. If a call cannot be paid after all others are settled, it and every later
    call is refused, and the run ends.
    """

    def __init__(self, out: Path | None = None, *, max_cost_usd: float | None = None) -> None:
        super().__init__(max_cost_usd=max_cost_usd)
        self.refused = False
        self._file = None if out is None else out / SPENT_FILE
        self._open: set[int] = set()
        """Calls that are reserved and not settled yet."""
        self._settled = asyncio.Event()
        self.spent_usd = 0.0 if self._file is None else _sum(self._file)

    def require_open(self) -> None:
        """Raises `CapReached` after a refused call, because figures over the remaining plans would be of cheap ones."""
        if self.refused:
            raise CapReached(self.reached)

    @property
    def reached(self) -> str:
        """The message for a run whose cap refused a call."""
        return (
            f"stopped: workers have cost ${self.spent_usd:.4g} of the ${self.max_cost_usd or 0.0:.6g} that "
            "workers.max_cost_usd allows, too little to go on; raise it and go on with --resume"
        )

    async def reserve(self, quote: Quote) -> Hold:
        while not self.refused:
            if (hold := await self._whole(quote)) is not None:
                self._open.add(hold.id)
                return hold
            if not self._open:
                self.refused = True
                self._settled.set()
                break
            self._settled.clear()
            await self._settled.wait()
        raise CostError("the cost cap of the run is reached")

    async def _whole(self, quote: Quote) -> Hold | None:
        """A hold for as many tokens as the call asked for; None if other holds leave too little money."""
        try:
            hold = await super().reserve(quote)
        except CostError:
            return None
        if hold.max_output_tokens == quote.max_output_tokens:
            return hold
        super().settle(hold, cost_usd=0.0, output_tokens=0)
        return None

    def settle(self, hold: Hold, *, cost_usd: float, output_tokens: int) -> None:
        super().settle(hold, cost_usd=cost_usd, output_tokens=output_tokens)
        self._open.discard(hold.id)
        self._settled.set()
        if self._file is not None and cost_usd:
            with self._file.open("a", encoding="ascii") as file:
                file.write(f"{cost_usd:.9f}\n")


def _sum(file: Path) -> float:
    """The sum of the file's lines. A line that was cut while it was written counts if it is a number."""
    try:
        lines = file.read_text(encoding="ascii").split()
    except FileNotFoundError:
        return 0.0
    return sum(float(line) for line in lines if line.replace(".", "", 1).isdigit())
