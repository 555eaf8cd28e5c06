"""What `dirigent eval` opens for a recipe: a field, the record, the budget, the store and the progress bars.

Imported only when the command runs. A family of tasks of a plugin opens its own field (`opened`), as the gym does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dirigent import plugins
from dirigent.cli.output import say
from dirigent.cli.progress import bringing, progress
from dirigent.cli.running import fetch_weights
from dirigent.config.runtime import load, open_runtime, open_store
from dirigent.errors import ConfigError
from dirigent.evals.entries import Keep
from dirigent.evals.evaluate import answers_of, report_of
from dirigent.evals.field import Field
from dirigent.evals.live import LiveField, live_pool, planner_digests, shipped_weights, with_warm_start, worker_digests
from dirigent.evals.planners import default_planners, is_fitted
from dirigent.evals.questions import Questions, gather, grading
from dirigent.evals.recipe import GYM, RECORDED, EvalRecipe
from dirigent.evals.record import About, Record, digest, source_commit, write_outcomes
from dirigent.evals.recorded import (
    RecordedField,
    RecordedSet,
    RecordedSettings,
    load_recorded,
    of_benchmarks,
    usable_planners,
)
from dirigent.evals.report import Report
from dirigent.limits import Budget, Limits
from dirigent.tasks.benchmarks import load_benchmark


class Opened(msgspec.Struct, frozen=True):
    """A field that is ready to be evaluated."""

    field: Field
    planners: Sequence[str]
    about: About
    """The settings that its outcomes depend on, for the record."""
    behind: Mapping[str, str] = {}
    """The exact weights of the planners that are models, for the record."""
    said: Mapping[str, Any] = {}
    """Further settings for the report."""
    beside: Callable[[], AbstractContextManager[Any]] = nullcontext
    """The open resources while the questions are asked."""


async def carried_out(recipe: EvalRecipe, file: Path, *, resume: bool, traces: bool, source: str = "") -> Report:
    """The report of a recipe. Outcomes go beside `file`; `source` is the recipe's own file, for the report to name."""
    outcomes = file.with_suffix(".jsonl")
    async with _opened(recipe, outcomes=outcomes, resume=resume) as opened:
        # A wrong name is refused before the record is touched.
        rows = opened.field.lineup(opened.planners).rows
        with (
            Record.open(outcomes, opened.about, resume=resume, weights=opened.behind) as record,
            _resumable(record, outcomes),
            progress(rows) as observe,
            opened.beside(),
        ):
            budget = Budget(max_cost_usd=recipe.max_cost, what="the evaluation")
            budget.spent_usd = record.cost_usd
            async with _keeping(traces) as keep:
                answers = await answers_of(
                    opened.field,
                    opened.planners,
                    record=record,
                    concurrency=recipe.concurrency,
                    budget=budget,
                    keep=keep,
                    observe=observe,
                )
        date = datetime.now(UTC).date().isoformat()
        report = report_of(opened.field, answers, commit=await source_commit(), date=date)
    write_outcomes(file, answers.outcomes)
    return msgspec.structs.replace(report, recipe={**report.recipe, **opened.said, **_settings(recipe, source)})


@asynccontextmanager
async def _opened(recipe: EvalRecipe, *, outcomes: Path, resume: bool) -> AsyncIterator[Opened]:
    if recipe.kind == "gym":
        async with plugins.load("tasks", GYM).opened(recipe, outcomes=outcomes, resume=resume) as opened:
            yield opened
    elif recipe.kind == "recorded":
        questions = _recorded_questions(recipe)
        settings = RecordedSettings(seed=recipe.seed)
        about = {
            "pool": recipe.pool,
            "questions": digest(questions.tasks),
            "answers": questions.answers,
            "seed": str(recipe.seed),
            "folds": str(settings.folds),
        }
        field = RecordedField(questions, settings=settings)
        yield Opened(field, recipe.planners or usable_planners(questions), about)
    else:
        async with _live(recipe) as opened:
            yield opened


@asynccontextmanager
async def _live(recipe: EvalRecipe) -> AsyncIterator[Opened]:
    """Benchmarks over a configured pool; the warm start that ships joins if it is named, and local weights are
    fetched."""
    planners = recipe.planners or default_planners("live")
    loaded = with_warm_start(await load(Path(recipe.pool)), planners)
    async with open_runtime(loaded) as runtime:
        await fetch_weights(loaded, unusable=runtime.problems)
        pool, trained = live_pool(runtime, planners)
        fits = any(is_fitted(name, trained=trained) or name == "ceiling" for name in planners)
        unasked = LiveField(Questions(recipe.tasks, []), pool, trained=trained)
        unasked.lineup(planners)  # a wrong name is refused before anything is fetched
        with bringing() as brought:
            questions = await gather(
                recipe.tasks,
                data=Path(recipe.data) if recipe.data else None,
                limit=recipe.limit,
                fit=recipe.fit if fits else 0,
                seed=recipe.seed,
                progress=brought,
            )
        async with grading(questions) as (questions, sandbox):
            for why, count in questions.left_out.items():
                say(f"{count:,} questions are left out: {why}")
            about = {
                "questions": digest(questions.tasks),
                "fit": digest(questions.fit),
                "seed": str(recipe.seed),
                "pool": await asyncio.to_thread(worker_digests, runtime.loaded, pool),
                "max_output_tokens": str(recipe.max_output_tokens),
                **bounds_of(recipe),
            }
            field = LiveField(
                questions,
                pool,
                seed=recipe.seed,
                limits=limits_of(recipe),
                sandbox=sandbox,
                trained=trained,
                weights=shipped_weights(runtime.config, trained),
                pool_name=Path(recipe.pool).name,
            )
            behind = await asyncio.to_thread(planner_digests, runtime.loaded, trained)
            yield Opened(field, planners, about, behind)


def limits_of(recipe: EvalRecipe) -> Limits:
    return Limits(max_steps=recipe.max_steps, max_output_tokens=recipe.max_output_tokens, deadline_s=recipe.deadline_s)


UNSAID = {"max_steps": 5, "deadline_s": 900.0}
"""The limits of a record that does not name them: older records did not."""


def bounds_of(recipe: EvalRecipe) -> dict[str, str]:
    """The limits of a question, as a record names them."""
    return {name: str(value) for name, usual in UNSAID.items() if (value := getattr(recipe, name)) != usual}


LIMITS = ("max_cost", "max_steps", "max_output_tokens", "deadline_s")
SETTINGS = {
    "gym": LIMITS,
    "recorded": ("tasks", "pool", "data", "limit", "max_cost"),
    "live": ("limit", "fit", "pool", "data", *LIMITS),
}
"""The settings that a report names besides those of its field."""


def _settings(recipe: EvalRecipe, source: str) -> dict[str, Any]:
    """The settings that give the report again; `source` is the recipe's file."""
    said = {name: getattr(recipe, name) for name in SETTINGS[recipe.kind]} | {"recipe": source}
    unsaid = (None, "", EvalRecipe().tasks)
    return {name: value for name, value in said.items() if value not in unsaid}


def _recorded_questions(recipe: EvalRecipe) -> RecordedSet:
    """The file's own questions, or those of the named benchmarks that it holds answers to."""
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


@contextmanager
def _resumable(record: Record, file: Path) -> Iterator[None]:
    """Say that nothing is lost if the evaluation is cut."""
    if record.count:
        say(f"{record.count:,} outcomes from before are kept")
    try:
        yield
    except (asyncio.CancelledError, KeyboardInterrupt):
        say(f"cut: {record.count:,} outcomes are kept in {file}; --resume continues from them")
        raise


@asynccontextmanager
async def _keeping(traces: bool) -> AsyncIterator[Keep | None]:
    if not traces:
        yield None
        return
    async with open_store((await load()).config) as store:
        yield store.save
