"""Evaluate: planners compared on the questions of a field. START READING HERE.

    report = await evaluate(field, ["best", "vote", "language", "oracle"])

First every worker answers the questions to fit on, alone: that ranks the workers, and is all that fitted planners know.
Then every planner answers the questions of the test, each run under the steps and rounds that its method needs.
Planners whose number of samples is open come last, at another planner's cost (`costing.py`). The answers are paid
once: `answers_of` asks, `report_of` adds them up, and a resumed evaluation asks only what its record lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.costing import EQUAL_COST, Sizing, ask_sized
from dirigent.evals.entries import Entry, Keep, ask_entries
from dirigent.evals.field import ORACLE_NOTE, REFERENCES, Field, Lineup, Trying
from dirigent.evals.metrics import SINGLE, by_planner
from dirigent.evals.planners import (
    CEILING,
    EACH,
    ORACLE,
    Rollouts,
    by_limits,
    chosen_before,
    entry_of,
    examples_of,
    fit_planners,
    is_fitted,
    require_whole,
)
from dirigent.evals.record import Outcome, Record, fitted_on
from dirigent.evals.report import BEST, Facts, Report, examples, make_report
from dirigent.evals.stats import sum_or_none
from dirigent.limits import Budget, Limits
from dirigent.messages import Observe, ignore
from dirigent.planners import Fitted, Fitting
from dirigent.tasks.task import Task
from dirigent.version import __version__


class Answers(msgspec.Struct, frozen=True):
    """Everything that a report is made of."""

    planners: tuple[str, ...]
    """As they were named."""
    lineup: Lineup
    outcomes: list[Outcome]
    """Of every row, figures among them, and of the workers alone."""
    fittings: tuple[Fitting, ...]
    """The examples for the planners of each part; empty if nothing was fitted."""
    fitted: dict[str, Fitted]
    """By row; of a field with several parts those of all parts as one."""
    sizes: dict[str, Sizing]
    """The planners that were to cost as much as another."""
    fit: dict[str, Any]
    """What choosing and fitting took; empty if nothing was chosen."""
    complete: bool
    """Whether every row answered every question: a budget may end the asking early."""
    concurrency: int


async def evaluate(
    field: Field,
    planners: Sequence[str],
    *,
    record: Record | None = None,
    concurrency: int = 8,
    budget: Budget | None = None,
    commit: str = "",
    date: str = "",
    keep: Keep | None = None,
    observe: Observe = ignore,
) -> Report:
    """The planners named, compared on the field's questions."""
    answers = await answers_of(
        field, planners, record=record, concurrency=concurrency, budget=budget, keep=keep, observe=observe
    )
    return report_of(field, answers, commit=commit, date=date)


async def answers_of(
    field: Field,
    planners: Sequence[str],
    *,
    record: Record | None = None,
    concurrency: int = 8,
    budget: Budget | None = None,
    keep: Keep | None = None,
    observe: Observe = ignore,
) -> Answers:
    """Asks every planner every question; `record` has the earlier answers."""
    lineup = field.lineup(planners)
    record, budget = record or Record(), budget or Budget()
    ask = partial(
        ask_entries,
        pool_for=field.pool_for,
        record=record,
        seed=field.seed,
        concurrency=concurrency,
        budget=budget,
        sandbox=field.sandbox,
        inspect=field.inspect,
        keep=keep,
        observe=observe,
    )
    fit_costs_usd: dict[tuple[Any, ...], float | None] = {}
    settled = chosen_before(record, _chosen_rows(field, lineup), field.tasks)

    async def tried(entries: Sequence[Entry], tasks: Sequence[Task], *, limits: Limits | None = None) -> list[Outcome]:
        """Asks in order to choose. A run is paid once, however often it is asked for. Once a chosen planner has
        answered, a lost run stays lost: asked again, it might lead to another choice."""
        found = await ask(entries, tasks, limits=limits or field.limits, keep_lost=settled)
        fit_costs_usd.update({(*outcome.key, outcome.trace_id): outcome.known_cost_usd for outcome in found})
        return found

    # Fit and choose.
    fittings: tuple[Fitting, ...] = ()
    known: list[Outcome] = []
    unfitted = Fitting((), field.pool, field.seed, field.neighbours, trained=field.trained)
    if _chosen_rows(field, lineup) or field.fits_on_test:
        if not field.fit_tasks:
            raise ConfigError("no questions to choose the best worker on: give  --fit 60  or data with a training part")
        singles = [field.alone(worker, for_row=True) for worker in field.workers]
        known = await tried(singles, field.fit_tasks)
        require_whole(known, singles, field.fit_tasks, before="the workers were ranked")
        for part in range(field.parts):
            # Planners for a part are fitted on the other parts.
            others = [task for task in field.fit_tasks if field.parts == 1 or field.part_of(task) != part]
            fittings = (*fittings, msgspec.structs.replace(unfitted, examples=examples_of(others, known)))
    rollouts = Rollouts(partial(tried, limits=Rollouts.limits(field.limits)), field.fit_tasks)
    if len(fittings) == 1:
        fittings = (msgspec.structs.replace(fittings[0], rollout=rollouts),)
    fitted = await _fitted(field, lineup, fittings or (unfitted,))
    rollouts.require_paid()
    trying = Trying(tried, known, record, budget, observe)
    fitted |= {one.name: one for one in await field.references(lineup, trying)}

    # Ask: workers alone, then planners by their limits, then those at another's cost.
    alone = [
        field.alone(worker, for_row=EACH in planners or f"{SINGLE}{worker}" in lineup.rows) for worker in lineup.alone
    ]
    outcomes = known if field.fits_on_test else await ask(alone, field.tasks, limits=field.limits)
    outcomes, copied = _with_copies(field, fitted, lineup, outcomes)
    open_sizes = [one for one in fitted.values() if field.sizes and one.sampled is not None]
    settled_sizes = [one for one in fitted.values() if one not in open_sizes]
    for limits, group in by_limits(settled_sizes, field.limits).items():
        entries = [_without(entry_of(one, field.pool_for), copied[one.name]) for one in group]
        outcomes += await ask(entries, field.tasks, limits=limits)

    async def ask_planner(one: Fitted, tasks: Sequence[Task]) -> list[Outcome]:
        ((limits, _),) = by_limits([one], field.limits).items()
        entry = msgspec.structs.replace(entry_of(one, field.pool_for), runs=len(field.tasks))
        return await ask([entry], tasks, limits=limits)

    sized, sizes = await ask_sized(
        open_sizes,
        outcomes,
        field.tasks,
        names=lineup.rows,
        best=BEST,
        ask_planner=ask_planner,
        seed=field.seed,
        task_of=field.task_name(),
    )
    outcomes = [*outcomes, *sized]
    expected = sum(entry.repeats * sum(map(entry.wants, field.tasks)) for entry in alone)
    expected += sum(one.repeats for one in fitted.values()) * len(field.tasks)
    complete = len(outcomes) == expected
    fit: dict[str, Any] = {}
    if fittings and not field.fits_on_test:
        fit = {
            "n": len({task for _, task, *_ in fit_costs_usd}),
            "cost_usd": sum_or_none([*fit_costs_usd.values()]),
            "ranking": list(fittings[0].ranking),
        }
    return Answers(
        planners=tuple(planners),
        lineup=lineup,
        outcomes=[*outcomes, *field.figures(lineup, outcomes)],
        fittings=fittings,
        fitted=fitted,
        sizes=sizes,
        fit=fit,
        complete=complete,
        concurrency=concurrency,
    )


def report_of(field: Field, answers: Answers, *, commit: str = "", date: str = "") -> Report:
    """The report of these answers."""
    lineup, task_name = answers.lineup, field.task_name()
    notes = field.notes(answers) | {name: sizing.note for name, sizing in answers.sizes.items()}
    if ORACLE in lineup.rows:
        notes.setdefault(ORACLE, ORACLE_NOTE)
    facts = Facts(
        recipe={
            **field.recipe(answers.planners, lineup),
            "concurrency": answers.concurrency,
            **({"fitted_on": fitted_on(field.fit_tasks)} if answers.fit else {}),
        },
        commit=commit,
        seed=field.seed,
        date=date,
        version=__version__,
        tasks=field.about(),
        workers=field.workers_label,
        prices=field.prices,
        chosen=field.chosen(answers),
        fit=answers.fit,
        notes={name: note for name, note in notes.items() if name in lineup.rows},
        sizes=answers.sizes,
        weights=dict(field.weights),
        sandbox=msgspec.UNSET if field.sandbox is None else field.sandbox.stamp,
        examples=examples(answers.outcomes, field.tasks, [n for n in lineup.rows if not n.startswith(SINGLE)]),
        columns=field.columns,
    )
    report = make_report(
        answers.outcomes,
        lineup.rows,
        facts=facts,
        references=(*REFERENCES, *field.reference_rows, *(name for name in lineup.rows if name.startswith(SINGLE))),
        complete=answers.complete,
        task_of=task_name,
        equal_cost=EQUAL_COST if field.sizes and EQUAL_COST in lineup.rows else "",
    )
    return field.finished(report, answers)


def _chosen_rows(field: Field, lineup: Lineup) -> list[str]:
    """The rows that the questions to fit on settle."""
    own = {spec.name for spec in field.own if not spec.learns_from}
    rows = [name for name in lineup.fitted if is_fitted(name, trained=field.trained) and name not in own]
    return [*rows, CEILING] if field.tries_plans(lineup) else rows


async def _fitted(field: Field, lineup: Lineup, fittings: Sequence[Fitting]) -> dict[str, Fitted]:
    """Each row's planner. With several parts, a question gets the planner that was fitted without its part."""
    asked = [field.planner_of_row(name) for name in lineup.fitted]
    by_part = [await fit_planners(asked, fitting, own=field.own) for fitting in fittings]
    return {
        name: msgspec.structs.replace(_over_parts(field, fits), name=name)
        for name, *fits in zip(lineup.fitted, *by_part, strict=True)
    }


def _over_parts(field: Field, fits: Sequence[Fitted]) -> Fitted:
    if len(fits) == 1:
        return fits[0]
    return Fitted(
        fits[0].name,
        lambda task, pool: fits[field.part_of(task)].planner_for(task, pool),
        (lambda task, pool: _helpers(fits[field.part_of(task)], task, pool)) if fits[0].helpers_for else None,
        max_steps=max(one.max_steps for one in fits),
        max_rounds=max(one.max_rounds for one in fits),
        note=", ".join(dict.fromkeys(one.note for one in fits)),
    )


def _helpers(fitted: Fitted, task: Task, pool: Any) -> list[Any]:
    return fitted.helpers_for(task, pool) if fitted.helpers_for is not None else []


def _with_copies(
    field: Field, fitted: Mapping[str, Fitted], lineup: Lineup, alone: Sequence[Outcome]
) -> tuple[list[Outcome], dict[str, set[str]]]:
    """The outcomes with those of planners whose answer to a question is that of a worker alone, and the ids of these
    questions by planner."""
    by_worker = {name: {o.task: o for o in of} for name, of in by_planner(alone).items()}
    outcomes, copied = list(alone), {name: set[str]() for name in fitted}
    for name, one in fitted.items():
        for task in field.tasks:
            worker = field.same_as(one, task)
            if worker not in lineup.alone:
                continue
            copied[name].add(task.id)
            if (same := by_worker.get(f"{SINGLE}{worker}", {}).get(task.id)) is not None:
                outcomes.append(msgspec.structs.replace(same, planner=name))
    return outcomes, copied


def _without(entry: Entry, ids: set[str]) -> Entry:
    """The entry without these questions."""
    return msgspec.structs.replace(entry, wants=lambda task: task.id not in ids) if ids else entry
