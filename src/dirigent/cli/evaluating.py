"""What `dirigent eval` opens: the gym's workers, a recorded file or a configured pool; record, store and sandbox.

One function a kind of evaluation, each from an `EvalRecipe` to its `Report`. Imported only when the command runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dirigent import plugins
from dirigent.cli.output import say
from dirigent.cli.progress import bringing, progress
from dirigent.cli.running import fetch_weights
from dirigent.config.runtime import Runtime, load, open_runtime, open_store
from dirigent.errors import ConfigError
from dirigent.evals.evaluate import Keep
from dirigent.evals.git_info import source_commit
from dirigent.evals.live import evaluate_live, expanded, needs_fitting
from dirigent.evals.live_pool import live_pool, planners_behind, shipped_weights, with_warm_start, workers_behind
from dirigent.evals.planners import default_planners
from dirigent.evals.questions import gather, grading
from dirigent.evals.recipe import GYM, RECORDED, EvalRecipe
from dirigent.evals.record import About, Record, digest
from dirigent.evals.recorded import (
    RecordedSet,
    RecordedSettings,
    evaluate_recorded,
    load_recorded,
    of_benchmarks,
    usable_planners,
)
from dirigent.evals.recorded import expanded as expanded_recorded
from dirigent.evals.report import Report
from dirigent.limits import Budget, Limits
from dirigent.tasks.benchmarks import load_benchmark


async def carried_out(recipe: EvalRecipe, file: Path, *, resume: bool, traces: bool, source: str = "") -> Report:
    """The report of a recipe. Outcomes go beside `file`; `source` is the recipe's own file, for the report to name."""
    making = Making(recipe, file.with_suffix(".jsonl"), resume, traces)
    if recipe.kind == "gym":
        report: Report = await plugins.load("tasks", GYM).carried_out(making)
    elif recipe.kind == "recorded":
        report = await _recorded(making)
    else:
        report = await _live(making)
    return msgspec.structs.replace(report, recipe={**report.recipe, **_settings(recipe, source)})


class Making(msgspec.Struct, frozen=True):
    """What every kind of evaluation needs."""

    recipe: EvalRecipe
    outcomes: Path
    resume: bool
    traces: bool

    @asynccontextmanager
    async def running(
        self, about: About, planners: Sequence[str], *, weights: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The record, the budget, the store and the progress bars, as arguments of an evaluation."""
        with (
            Record.open(self.outcomes, about, resume=self.resume, weights=weights) as record,
            _resumable(record, self.outcomes),
            progress(planners) as observe,
        ):
            budget = Budget(max_cost_usd=self.recipe.max_cost, what="the evaluation")
            budget.spent_usd = record.cost_usd
            async with _keeping(self.traces) as keep:
                yield {
                    "record": record,
                    "budget": budget,
                    "keep": keep,
                    "observe": observe,
                    "concurrency": self.recipe.concurrency,
                    "commit": await source_commit(),
                    "date": datetime.now(UTC).date().isoformat(),
                }


async def _recorded(made: Making) -> Report:
    recipe = made.recipe
    questions = _recorded_questions(recipe)
    planners = expanded_recorded(recipe.planners or usable_planners(questions), questions)
    settings = RecordedSettings(seed=recipe.seed)
    about = {
        "pool": recipe.pool,
        "questions": digest(questions.tasks),
        "answers": questions.answers,
        "seed": str(recipe.seed),
        "folds": str(settings.folds),
    }
    async with made.running(about, planners) as running:
        return await evaluate_recorded(questions, planners, settings=settings, **running)


async def _live(made: Making) -> Report:
    recipe = made.recipe
    planners = recipe.planners or default_planners("live")
    async with _opened(Path(recipe.pool), planners) as runtime:
        pool, trained = live_pool(runtime, planners)
        names = expanded(planners, pool, trained=trained)
        with bringing() as brought:
            questions = await gather(
                recipe.tasks,
                data=Path(recipe.data) if recipe.data else None,
                limit=recipe.limit,
                fit=recipe.fit if needs_fitting(planners) else 0,
                seed=recipe.seed,
                progress=brought,
            )
        async with grading(questions) as (questions, sandbox):
            _tell_left_out(questions.left_out)
            about = {
                "questions": digest(questions.tasks),
                "fit": digest(questions.fit),
                "seed": str(recipe.seed),
                "pool": await asyncio.to_thread(workers_behind, runtime.loaded, pool),
                "max_output_tokens": str(recipe.max_output_tokens),
                **bounds_of(recipe),
            }
            weights = await asyncio.to_thread(planners_behind, runtime.loaded, trained)
            async with made.running(about, names, weights=weights) as running:
                return await evaluate_live(
                    questions,
                    planners,
                    pool,
                    seed=recipe.seed,
                    limits=limits_of(recipe),
                    sandbox=sandbox,
                    trained=trained,
                    weights=shipped_weights(runtime.config, trained),
                    pool_name=Path(recipe.pool).name,
                    **running,
                )


def limits_of(recipe: EvalRecipe) -> Limits:
    return Limits(max_steps=recipe.max_steps, max_output_tokens=recipe.max_output_tokens, deadline_s=recipe.deadline_s)


UNSAID = {"max_steps": 5, "deadline_s": 900.0}
"""What a record that does not name them was begun with: they were not written down at first."""


def bounds_of(recipe: EvalRecipe) -> dict[str, str]:
    """What a question may take, as a record names it."""
    return {name: str(value) for name, usual in UNSAID.items() if (value := getattr(recipe, name)) != usual}


@asynccontextmanager
async def _opened(pool: Path, planners: Sequence[str]) -> AsyncIterator[Runtime]:
    """The configured pool and, where it is named, the warm start that ships; local weights are brought."""
    loaded = with_warm_start(await load(pool), planners)
    async with open_runtime(loaded) as runtime:
        await fetch_weights(loaded, unusable=runtime.problems)
        yield runtime


LIMITS = ("max_cost", "max_steps", "max_output_tokens", "deadline_s")
SETTINGS = {
    "gym": LIMITS,
    "recorded": ("tasks", "pool", "data", "limit", "max_cost"),
    "live": ("limit", "fit", "pool", "data", *LIMITS),
}
"""What a report names besides what its evaluation knows itself."""


def _settings(recipe: EvalRecipe, source: str) -> dict[str, Any]:
    """What gives the report again; `source` is the recipe's file."""
    said = {name: getattr(recipe, name) for name in SETTINGS[recipe.kind]} | {"recipe": source}
    unsaid = (None, "", EvalRecipe().tasks)
    return {name: value for name, value in said.items() if value not in unsaid}


def _recorded_questions(recipe: EvalRecipe) -> RecordedSet:
    """The pool's own questions, or those of the benchmarks named that it holds answers to."""
    tasks = [name for name in recipe.tasks if name != "gym"]
    path = recipe.pool.removeprefix(RECORDED)
    if not path:
        raise ConfigError(f"--pool {recipe.pool}: write  --pool recorded:FILE  with a file of recorded answers")
    file = Path(path).expanduser()
    if not recipe.data:
        return load_recorded(file, limit=recipe.limit, tasks=tasks, seed=recipe.seed)
    if not tasks:
        raise ConfigError(f"--data {recipe.data} needs  --tasks  with the benchmarks to take from it")
    wanted = [task for name in tasks for task in load_benchmark(name, Path(recipe.data))]
    return of_benchmarks(load_recorded(file), wanted, limit=recipe.limit, seed=recipe.seed)


def _tell_left_out(left_out: Mapping[str, int]) -> None:
    for why, count in left_out.items():
        say(f"{count:,} questions are left out: {why}")


@contextmanager
def _resumable(record: Record, file: Path) -> Iterator[None]:
    """Say, when cut, that nothing is lost."""
    if record.count:
        say(f"{record.count:,} outcomes from before are kept")
    try:
        yield
    except (asyncio.CancelledError, KeyboardInterrupt):
        say(f"cut: {record.count:,} outcomes are kept in {file}; --resume goes on from them")
        raise


@asynccontextmanager
async def _keeping(traces: bool) -> AsyncIterator[Keep | None]:
    if not traces:
        yield None
        return
    async with open_store((await load()).config) as store:
        yield store.save
