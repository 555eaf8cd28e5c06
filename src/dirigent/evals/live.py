"""Live pools under evaluation: public benchmarks, asked of whatever workers are configured.

First every worker answers the questions to fit on, alone: that ranks them, and is all that learned planners get to
know. What it costs is told apart from the rows. Then every planner named answers the questions of the test, each run
under the steps and rounds that its method needs. Where a worker answers the test alone anyway, for the oracle or under
a name of its own, `best` and `cheapest` are those same answers and are not paid for twice; nor is the `ceiling` where
its plan is that worker alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.carried_rows import fitted_on
from dirigent.evals.evaluate import Entry, Keep, evaluate
from dirigent.evals.examples import examples
from dirigent.evals.hindsight import CEILING
from dirigent.evals.live_ceiling import MAX_STEPS, Listed, ceiling_of, chosen, search, sought
from dirigent.evals.metrics import ORACLE, by_planner, oracle
from dirigent.evals.origins import Weights
from dirigent.evals.outcome import Outcome
from dirigent.evals.planners import (
    Rollouts,
    by_limits,
    cap_reached,
    check_names,
    chosen_before,
    entry_of,
    examples_of,
    fit_planners,
    is_fitted,
    require_whole,
)
from dirigent.evals.questions import Questions
from dirigent.evals.record import Record, digest
from dirigent.evals.report import Facts, Report, make_report
from dirigent.evals.single_workers import SINGLE
from dirigent.evals.sized import ask_sized
from dirigent.evals.sizing import EQUAL_COST, Sizing
from dirigent.evals.stats import sum_or_none
from dirigent.evals.verdict import BEST
from dirigent.limits import Budget, Limits
from dirigent.messages import Observe, ignore
from dirigent.planners import Fitted, Fitting
from dirigent.planners.given import Alone
from dirigent.planners.spec import PlannerFor, kinds_of
from dirigent.sandbox import Sandbox
from dirigent.tasks.task import Task
from dirigent.version import __version__
from dirigent.workers.pool import Pool

EACH = "each"
SAME_AS_ALONE = (BEST, "cheapest")


async def evaluate_live(
    questions: Questions,
    planners: Sequence[str],
    pool: Pool,
    *,
    seed: int = 1,
    limits: Limits = Limits(),
    record: Record | None = None,
    concurrency: int = 8,
    budget: Budget | None = None,
    sandbox: Sandbox | None = None,
    trained: Mapping[str, PlannerFor] | None = None,
    weights: Mapping[str, Weights] | None = None,
    pool_name: str = "",
    commit: str = "",
    date: str = "",
    keep: Keep | None = None,
    observe: Observe = ignore,
) -> Report:
    """Every planner named, on these questions, over this pool. `trained` gives the planners that are models trained to
    plan; `weights` is what cards say of them, for the report, which also names the walls of the sandbox."""
    names = expanded(planners, pool, trained=trained or {})
    ask = partial(
        evaluate,
        pool_for=lambda task, repeat: pool,
        record=record,
        seed=seed,
        concurrency=concurrency,
        budget=budget,
        sandbox=sandbox,
        keep=keep,
        observe=observe,
    )
    live = _Live(
        questions,
        pool,
        names,
        seed,
        limits,
        trained or {},
        ask,
        record=record or Record(),
        budget=budget or Budget(),
        observe=observe,
    )
    baselines = await live.fitted()
    outcomes, complete = await live.asked(baselines)
    if ORACLE in names:
        outcomes += oracle([o for o in outcomes if o.planner.startswith(SINGLE)])
    recipe = {"tasks": list(questions.names), "planners": list(planners), "seed": seed, "concurrency": concurrency}
    facts = _facts(live, recipe, baselines, outcomes, pool_name=pool_name, commit=commit, date=date)
    walls = msgspec.UNSET if sandbox is None else sandbox.stamp
    facts = msgspec.structs.replace(facts, weights=dict(weights or {}), sandbox=walls)
    return _report(live, outcomes, facts, complete=complete)


def expanded(planners: Sequence[str], pool: Pool, *, trained: Mapping[str, PlannerFor]) -> list[str]:
    """The names, `each` replaced by every worker alone; one that nobody stands behind is refused before any call."""
    found: dict[str, None] = {}
    for name in planners:
        found |= {f"{SINGLE}{worker}": None for worker in pool} if name == EACH else {name: None}
    if not found:
        raise ConfigError("no planner is named; say  --planners best,moa,language")
    if "conductor" not in trained and (ours := [name for name in found if "conductor" in kinds_of([name])]):
        raise ConfigError(
            f'{ours[0]!r} needs a profile of the pool\'s file that says  planner = "conductor"; add one or leave it out'
        )
    check_names(list(found), pool, trained=trained)
    return list(found)


def needs_fitting(planners: Sequence[str]) -> bool:
    """Whether anything is chosen on the training split; then questions for it must be gathered."""
    return bool(_fitted_among(planners))


def _fitted_among(planners: Sequence[str]) -> list[str]:
    return [name for name in planners if is_fitted(name) or name == CEILING]


class _Live(msgspec.Struct):
    """One evaluation as it goes."""

    questions: Questions
    pool: Pool
    names: Sequence[str]
    seed: int
    limits: Limits
    trained: Mapping[str, PlannerFor]
    ask: Callable[..., Awaitable[list[Outcome]]]
    record: Record
    budget: Budget
    observe: Observe
    best_plans: Mapping[str, Listed] = {}
    """The ceiling's, by benchmark."""
    fit_costs_usd: dict[tuple[Any, ...], float | None] = {}
    """By run, None where unknown: one that the record held already was paid once, however often it is asked for."""
    settled: bool = False
    """Somebody who was fitted has answered, so what he was fitted on is not asked again."""
    sizes: dict[str, Sizing] = {}
    """How those came to their samples that were to cost as much as another."""

    async def fitted(self) -> list[Fitted]:
        """The planners, fitted on what each worker does alone with the questions for it."""
        if not needs_fitting(self.names):
            return await fit_planners(self.names, Fitting((), self.pool, self.seed, trained=self.trained))
        if not self.questions.fit:
            raise ConfigError("no questions to choose the best worker on: give  --fit 60  or data with a training part")
        self.settled = chosen_before(self.record, _fitted_among(self.names), self.questions.tasks)
        singles = [_single(worker) for worker in self.pool]
        alone = await self._tried(singles, self.questions.fit)
        require_whole(alone, singles, self.questions.fit, before="the workers were ranked")
        known = examples_of(self.questions.fit, alone)
        rollouts = Rollouts(partial(self._tried, limits=Rollouts.limits(self.limits)), self.questions.fit)
        ceiling = [await self._ceiling(alone)] if CEILING in self.names else []
        fitting = Fitting(known, self.pool, self.seed, rollout=rollouts, trained=self.trained)
        baselines = await fit_planners(self.names, fitting)
        rollouts.require_paid()
        return [*baselines, *ceiling]

    async def _ceiling(self, alone: Sequence[Outcome]) -> Fitted:
        """The best of the plans listed, each tried on the questions for fitting; what that costs is told before."""
        found = search(self.questions.fit, alone)
        expected = sought(found, self.pool, known=lambda name, task: self.record.finished(name, task) is not None)
        self.observe(expected)
        if self.budget.max_cost_usd is not None and expected.cost_usd is not None:
            left_usd = max(0.0, self.budget.max_cost_usd - self.budget.spent_usd)
            if expected.cost_usd > left_usd:
                raise ConfigError(
                    f"trying the ceiling's plans takes about ${expected.cost_usd:.3g}, and ${left_usd:.3g} of the cost "
                    "cap are left; raise --max-cost and --resume, or leave `ceiling` out"
                )
        limits = msgspec.structs.replace(self.limits, max_steps=max(self.limits.max_steps, MAX_STEPS))
        outcomes = await self._tried(found.entries, found.tasks, limits=limits)
        if len(outcomes) < len(found.runs):
            raise cap_reached("the ceiling's plans were tried", leave_out=CEILING)
        self.best_plans = chosen(found, outcomes)
        return ceiling_of(self.best_plans)

    async def asked(self, baselines: Sequence[Fitted]) -> tuple[list[Outcome], bool]:
        """What everybody answered to the questions of the test, and whether nothing is missing. Those that are to cost
        as much as another come last."""
        tasks = self.questions.tasks
        alone = [f"{SINGLE}{worker}" for worker in self.pool] if ORACLE in self.names else []
        alone = list(dict.fromkeys([*alone, *(name for name in self.names if name.startswith(SINGLE))]))
        others = [b for b in baselines if not b.name.startswith(SINGLE)]
        copies = self._copies(others, alone)
        outcomes = await self.ask([_single(name.removeprefix(SINGLE)) for name in alone], tasks, limits=self.limits)
        found = by_planner(outcomes)
        for name, sources in copies.items():
            same = (
                outcome for kind, source in sources.items() for outcome in found.get(source, ()) if outcome.kind == kind
            )
            outcomes += [msgspec.structs.replace(outcome, planner=name) for outcome in same]
        for limits, group in by_limits([b for b in others if b.sampled is None], self.limits).items():
            entries = [_but(entry_of(b, self._pool_for), copies.get(b.name, {})) for b in group]
            outcomes += await self.ask(entries, tasks, limits=limits)
        sized = await ask_sized(
            others,
            outcomes,
            tasks,
            names=self.names,
            ask=self.ask,
            pool_for=self._pool_for,
            limits=self.limits,
            seed=self.seed,
            task_of=lambda task: task.kind,
        )
        self.sizes = sized.sizes
        outcomes += sized.outcomes
        expected = (len(alone) + len(others)) * len(tasks)
        return outcomes, len(outcomes) == expected

    def _copies(self, baselines: Sequence[Fitted], alone: Sequence[str]) -> dict[str, dict[str, str]]:
        """Planner -> benchmark -> the worker alone whose answers there are its own too."""
        kinds = dict.fromkeys(task.kind for task in self.questions.tasks)
        found = {b.name: dict.fromkeys(kinds, f"{SINGLE}{b.note}") for b in baselines if b.name in SAME_AS_ALONE}
        found[CEILING] = {kind: listed.name for kind, listed in self.best_plans.items()}
        return {name: {kind: source for kind, source in of.items() if source in alone} for name, of in found.items()}

    async def _tried(
        self, entries: Sequence[Entry], tasks: Sequence[Task], *, limits: Limits | None = None
    ) -> list[Outcome]:
        """Ask in order to fit; what it costs is told apart."""
        outcomes = await self.ask(entries, tasks, limits=limits or self.limits, lost_stand=self.settled)
        self.fit_costs_usd |= {(*outcome.key, outcome.trace_id): outcome.known_cost_usd for outcome in outcomes}
        return outcomes

    def _pool_for(self, task: Task, repeat: int) -> Pool:
        return self.pool


def _single(worker: str) -> Entry:
    return Entry(f"{SINGLE}{worker}", lambda task, pool: Alone(worker))


def _but(entry: Entry, kinds: Collection[str]) -> Entry:
    """The same without the questions of these benchmarks."""
    return msgspec.structs.replace(entry, wants=lambda task: task.kind not in kinds)


def _facts(
    live: _Live,
    recipe: dict[str, Any],
    baselines: Sequence[Fitted],
    outcomes: Sequence[Outcome],
    *,
    pool_name: str,
    commit: str,
    date: str,
) -> Facts:
    questions, pool = live.questions, live.pool
    return Facts(
        recipe={**recipe, **({"fitted_on": fitted_on(questions.fit)} if questions.fit else {})},
        commit=commit,
        seed=live.seed,
        date=date,
        version=__version__,
        tasks=_told(questions, pool, pool_name),
        workers="",
        prices={info.name: info.price for info in pool.infos},
        fit={"n": len(questions.fit), "cost_usd": sum_or_none([*live.fit_costs_usd.values()])} if questions.fit else {},
        notes=_notes(baselines, live.names) | {name: sizing.note for name, sizing in live.sizes.items()},
        sizes=live.sizes,
        examples=examples(outcomes, questions.tasks, [n for n in live.names if not n.startswith(SINGLE)]),
    )


def _told(questions: Questions, pool: Pool, pool_name: str) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for task in questions.tasks:
        counts[task.kind] = counts.get(task.kind, 0) + 1
    return {
        "name": ", ".join(questions.names),
        "n": len(questions.tasks),
        "by_task": counts,
        "pool": f"{len(pool)} workers" + (f" of {pool_name}" if pool_name else ""),
        "questions": digest(questions.tasks),
        "left_out": questions.left_out,
    }


def _notes(baselines: Sequence[Fitted], names: Sequence[str]) -> dict[str, str]:
    """What is said beside a planner's name."""
    notes = {b.name: b.note for b in baselines if b.note and b.name in names}
    return notes | ({ORACLE: "one worker per question"} if ORACLE in names else {})


def _report(live: _Live, outcomes: Sequence[Outcome], facts: Facts, *, complete: bool) -> Report:
    names = live.names
    return make_report(
        outcomes,
        names,
        facts=facts,
        references=(ORACLE, CEILING, *(name for name in names if name.startswith(SINGLE))),
        complete=complete,
        task_of=lambda outcome: outcome.kind,
        equal_cost=EQUAL_COST if EQUAL_COST in names else "",
    )
