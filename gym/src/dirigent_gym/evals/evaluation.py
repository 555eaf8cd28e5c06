"""The gym under evaluation: who can take part in it, by name, and the report that comes of it.

    right       the task's own cheapest plan                                   (reference)
    oracle      the best choice of one worker per question, from each alone    (reference)
    ceiling     the best plan per kind, chosen on the development split        (reference)
    each        every worker alone, on every question: a table of its own, not rows among the planners
    single:NAME this worker answers alone, offered or not
    best, vote, moa, knn, ...    the baselines of `evals/planners.py`, fitted on the training split
    conductor, warm-start, ...   whatever `factories` can plan with

The questions and the pool of each are `gym_pools.py`'s part. The planners that are models come in as functions. Nothing
here knows torch or llama.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.carried_rows import fitted_on
from dirigent.evals.evaluate import Entry, Keep, PoolFor, evaluate
from dirigent.evals.examples import examples
from dirigent.evals.metrics import ORACLE, by_planner, oracle
from dirigent.evals.origins import Weights
from dirigent.evals.outcome import Outcome
from dirigent.evals.planners import (
    FIGURES,
    TRAINED,
    Rollouts,
    by_limits,
    chosen_before,
    entry_of,
    examples_of,
    fit_planners,
    is_fitted,
    require_whole,
)
from dirigent.evals.record import Record, digest
from dirigent.evals.report import Facts, Report, make_report
from dirigent.evals.sized import Answered, ask_sized
from dirigent.evals.sizing import EQUAL_COST, Sizing
from dirigent.evals.verdict import BEST
from dirigent.limits import Budget, Limits
from dirigent.messages import Observe, ignore
from dirigent.plan.planner import Planner
from dirigent.planners import PLANNERS as TABLE
from dirigent.planners import Fitted, Fitting, find_planner, parse_name, unknown_planner
from dirigent.planners.fixed import Fixed
from dirigent.planners.given import Alone
from dirigent.planners.spec import PlannerFor
from dirigent.tasks.task import Task
from dirigent.toml import nearest
from dirigent.version import __version__
from dirigent.workers.pool import Pool
from dirigent_gym.evals.ceiling import WAYS, Kind, Way, choose_ways, plan_by, plans_for, stand_in, way_for
from dirigent_gym.evals.pools import SPLIT_SET, Gym
from dirigent_gym.questions.pools import plan_for, solvable
from dirigent_gym.questions.specialists import ROSTER, Specialist, find_specialist

CEILING, RIGHT, RANDOM, EACH, SINGLE = "ceiling", "right", "random", "each", "single:"
PLANNERS = (RIGHT, ORACLE, CEILING, EACH, *(spec.name for spec in TABLE if spec.name != "single"))
REFERENCES = (ORACLE, CEILING, RIGHT)
"""They know what no planner can; they are there to compare with and cannot win."""


class Ask(Protocol):
    """`evaluate` with everything but the questions settled."""

    def __call__(
        self,
        entries: Sequence[Entry],
        tasks: Sequence[Task],
        *,
        pool_for: PoolFor,
        limits: Limits = ...,
        lost_stand: bool = ...,
    ) -> Awaitable[list[Outcome]]: ...


async def evaluate_gym(
    gym: Gym,
    planners: Sequence[str],
    *,
    workers: str = "",
    factories: Mapping[str, PlannerFor] | None = None,
    weights: Mapping[str, Weights] | None = None,
    limits: Limits = Limits(),
    record: Record | None = None,
    concurrency: int = 8,
    budget: Budget | None = None,
    commit: str = "",
    date: str = "",
    keep: Keep | None = None,
    observe: Observe = ignore,
) -> Report:
    """Every planner named, on the gym's questions. `factories` gives the planners that are models, by name; `weights`
    is what the cards say of them, for the report."""
    factories = factories or {}
    check_planners(planners, factories)
    ask: Ask = partial(
        evaluate,
        record=record,
        seed=gym.settings.seed,
        limits=limits,
        concurrency=concurrency,
        budget=budget,
        inspect=gym.marks,
        keep=keep,
        observe=observe,
    )
    settled = chosen_before(record or Record(), _fitted_among(planners, factories), gym.tasks)
    fit_ask: Ask = partial(ask, lost_stand=settled)
    baselines, fit = await fit_gym(gym, planners, fit_ask, limits=limits, factories=factories)
    ways = await find_ways(gym, fit_ask, limits=limits) if CEILING in planners else {}
    entries = gym_entries(planners, gym, ways=ways, factories=factories)
    answered, complete = await _answers(gym, entries, baselines, ask, limits=limits, planners=planners)
    found = _Found(gym, planners, baselines, fit, ways, answered.outcomes, complete, answered.sizes)
    facts = _facts(found, workers=workers, weights=weights or {}, commit=commit, date=date, concurrency=concurrency)
    return _over_all_sets(_report(found, facts))


def set_name(name: str) -> str:
    """A set as `--tasks` names it."""
    return name if name == SPLIT_SET else f"{SPLIT_SET}:{name}"


async def fit_gym(
    gym: Gym, planners: Sequence[str], ask: Ask, *, limits: Limits, factories: Mapping[str, PlannerFor]
) -> tuple[list[Fitted], dict[str, Any]]:
    """The baselines among the planners, fitted on the training split, and what fitting took."""
    names = [name for name in planners if is_baseline(name) and name not in factories]
    fitting = Fitting((), gym.everybody, gym.settings.seed)
    fitting = msgspec.structs.replace(fitting, trained=factories)
    if not any(is_fitted(name) for name in names):
        return await fit_planners(names, fitting), {}
    tasks = gym.calibration("train")
    costs_usd: dict[tuple[Any, ...], float] = {}  # a run that the record held already was paid once

    async def tried(entries: Sequence[Entry], asked: Sequence[Task], *, limits: Limits = limits) -> list[Outcome]:
        outcomes = await ask(entries, asked, pool_for=gym.pool_for, limits=limits)
        costs_usd.update({(*outcome.key, outcome.trace_id): outcome.cost_usd for outcome in outcomes})
        return outcomes

    singles = [_single(specialist, gym) for specialist in gym.roster]
    alone = await tried(singles, tasks)
    require_whole(alone, singles, tasks, before="the workers were ranked")
    rollouts = Rollouts(partial(tried, limits=Rollouts.limits(limits)), tasks)
    known = msgspec.structs.replace(fitting, examples=examples_of(tasks, alone), rollout=rollouts)
    fitted = await fit_planners(names, known)
    rollouts.require_paid()
    return fitted, {"n": len(tasks), "cost_usd": math.fsum(costs_usd.values()), "ranking": list(known.ranking)}


def _fitted_among(planners: Sequence[str], factories: Mapping[str, PlannerFor]) -> list[str]:
    """Those that the training or the development split settles."""
    fitted = [name for name in planners if is_baseline(name) and name not in factories and name != RANDOM]
    return [*fitted, CEILING] if CEILING in planners else fitted


def is_baseline(name: str) -> bool:
    """Whether `evals/planners.py` stands behind the name; the gym's own references and single workers it does not."""
    kind = parse_name(name).kind
    spec = find_planner(kind)
    return kind not in FIGURES and kind != "single" and spec is not None and spec.fit is not None


async def find_ways(gym: Gym, ask: Ask, *, limits: Limits) -> dict[Kind, Way]:
    """The ceiling's way for each kind, from trying them all on the development split."""
    tasks = gym.calibration("dev")
    plans = {task.id: plans_for(task, gym.offered(task), max_steps=limits.max_steps) for task in tasks}

    def wants(way: Way, task: Task) -> bool:
        return way in plans[task.id] and stand_in(way, plans[task.id]) == way

    entries = [
        Entry(
            f"way: {way.name}",
            lambda task, pool, way=way: Fixed(plans[task.id][way]),  # type: ignore[misc]
            # Only questions with a puzzle, whose guesser is noisy, tell several guesses from one.
            repeats=gym.settings.noise_seeds if way.guesses > 1 else 1,
            wants=partial(wants, way),
        )
        for way in WAYS
    ]
    outcomes = await ask(entries, tasks, pool_for=gym.pool_for)
    require_whole(outcomes, entries, tasks, before="the ceiling's plans were tried", leave_out=CEILING)
    tried = {name: _by_task(found) for name, found in by_planner(outcomes).items()}

    def of(task: Task, way: Way) -> list[Outcome]:
        """Where ways share a plan, its outcomes belong to each of them."""
        return tried.get(f"way: {stand_in(way, plans[task.id]).name}", {}).get(task.id, [])

    return choose_ways((task, {way: of(task, way) for way in plans[task.id]}) for task in tasks)


def gym_entries(
    planners: Sequence[str],
    gym: Gym,
    *,
    ways: Mapping[Kind, Way] | None = None,
    factories: Mapping[str, PlannerFor] | None = None,
) -> list[Entry]:
    """Who takes part under these names, baselines apart. The oracle, a figure, takes each worker offered, alone."""
    built_in = {
        RIGHT: Entry(RIGHT, partial(_right, gym)),
        CEILING: Entry(CEILING, partial(_ceiling, gym, ways or {}), repeats=gym.settings.noise_seeds),
    } | {name: Entry(name, factory) for name, factory in (factories or {}).items()}
    found: dict[str, Entry] = {}
    if ORACLE in planners or EACH in planners:
        only_offered = EACH not in planners
        found |= {f"{SINGLE}{s.name}": _single(s, gym, only_offered=only_offered) for s in gym.roster}
    for name in planners:
        if name.startswith(SINGLE):
            found[name] = _single(find_specialist(name.removeprefix(SINGLE)), gym)
        elif name in built_in:
            found[name] = built_in[name]
    return list(found.values())


def check_planners(planners: Sequence[str], factories: Mapping[str, PlannerFor]) -> None:
    """Refuse, before anything is asked, a name that nobody stands behind."""
    if not planners:
        raise ConfigError(f"no planner is named; say  --planners {BEST},{ORACLE},{CEILING}")
    twice = [name for i, name in enumerate(planners) if name in planners[:i]]
    if twice:
        raise ConfigError(f"the planner {twice[0]!r} is named twice")
    for name in planners:
        kind = parse_name(name).kind
        if name in factories or name in (RIGHT, ORACLE, CEILING, EACH):
            continue
        if name.startswith(SINGLE):
            worker, known = name.removeprefix(SINGLE), [s.name for s in ROSTER]
            if worker not in known:
                raise ConfigError(f"no worker of the gym is called {worker!r}{nearest(worker, known)}")
        elif kind in (*TRAINED, "language") and kind not in factories:
            raise ConfigError(f"the planner {name!r} is a model, and none was given; leave it out")
        elif not is_baseline(name):
            raise unknown_planner(name, list(dict.fromkeys([*PLANNERS, "single:NAME", *factories])))


def _single(specialist: Specialist, gym: Gym, *, only_offered: bool = False) -> Entry:
    wants = (lambda task: specialist in gym.offered(task)) if only_offered else (lambda task: True)
    return Entry(
        f"{SINGLE}{specialist.name}",
        lambda task, pool: Alone(specialist.name),
        pool_for=gym.only(specialist),
        wants=wants,
    )


def _right(gym: Gym, task: Task, pool: Pool) -> Planner:
    offered = gym.offered(task)
    return Fixed(plan_for(task, offered), name=RIGHT) if solvable(task, offered) else Alone(*pool.names, name=RIGHT)


def _ceiling(gym: Gym, ways: Mapping[Kind, Way], task: Task, pool: Pool) -> Planner:
    """Where the pool lacks somebody, the plan that is left; where it cannot answer, anybody alone."""
    offered = gym.offered(task)
    plan = plan_by(way_for(task, ways), task, offered) or plan_by(Way(1, dear=False), task, offered)
    return Alone(*pool.names, name=CEILING) if plan is None else Fixed(plan, name=CEILING)


def _by_task(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.task, []).append(outcome)
    return found


async def _answers(
    gym: Gym,
    entries: Sequence[Entry],
    baselines: Sequence[Fitted],
    ask: Ask,
    *,
    limits: Limits,
    planners: Sequence[str],
) -> tuple[Answered, bool]:
    """What everybody answered, baselines under the limits of their methods, and whether nothing is missing. Those that
    are to cost as much as another come last."""
    outcomes = await ask(entries, gym.tasks, pool_for=gym.pool_for)
    asked = list(entries)
    for own, group in by_limits([b for b in baselines if b.sampled is None], limits).items():
        joining = [entry_of(baseline, gym.pool_for) for baseline in group]
        asked += joining
        outcomes += await ask(joining, gym.tasks, pool_for=gym.pool_for, limits=own)
    sized = await ask_sized(
        baselines,
        outcomes,
        gym.tasks,
        names=planners,
        ask=partial(ask, pool_for=gym.pool_for),
        pool_for=gym.pool_for,
        limits=limits,
        seed=gym.settings.seed,
    )
    expected = sum(entry.repeats for entry in asked for task in gym.tasks if entry.wants(task))
    found = Answered([*outcomes, *sized.outcomes], sized.sizes)
    return found, len(found.outcomes) == expected + len(sized.sizes) * len(gym.tasks)


class _Found(msgspec.Struct, frozen=True):
    """All that a report is made of."""

    gym: Gym
    planners: Sequence[str]
    baselines: Sequence[Fitted]
    fit: dict[str, Any]
    """What fitting took; empty where nothing was fitted."""
    ways: Mapping[Kind, Way]
    """The ceiling's; empty where it is not asked for."""
    outcomes: Sequence[Outcome]
    complete: bool
    """Whether everybody answered everything: a budget may end the asking early."""
    sizes: dict[str, Sizing]
    """How those came to their samples that were to cost as much as another."""


def _facts(
    found: _Found, *, workers: str, weights: Mapping[str, Weights], commit: str, date: str, concurrency: int
) -> Facts:
    settings = found.gym.settings
    return Facts(
        recipe={
            "tasks": [set_name(name) for name in settings.sets],
            "planners": list(found.planners),
            "workers": workers,
            **msgspec.structs.asdict(settings),
            "concurrency": concurrency,
            **({"fitted_on": fitted_on(found.gym.calibration("train"))} if found.fit else {}),
        },
        commit=commit,
        seed=settings.seed,
        date=date,
        version=__version__,
        tasks=_told(found.gym),
        workers=workers,
        prices={specialist.name: specialist.price for specialist in found.gym.roster},
        chosen=_choices(found),
        fit=found.fit,
        notes=_notes(found),
        sizes=found.sizes,
        weights=dict(weights),
        examples=examples(found.outcomes, found.gym.tasks, found.planners),
    )


def _told(gym: Gym) -> dict[str, Any]:
    """What was asked, and over which pools."""
    settings = gym.settings
    low, high = settings.pool_sizes
    plain = settings.sets == (SPLIT_SET,)
    solved = sum(solvable(task, gym.offered(task)) for task in gym.tasks)
    return {
        "name": f"gym {settings.split}" if plain else ", ".join(set_name(name) for name in settings.sets),
        "n": len(gym.tasks),
        "pool": f"pools of {low}–{high}",
        "solvable": solved / len(gym.tasks),
        "questions": digest(gym.tasks),
    }


def _choices(found: _Found) -> dict[str, Any]:
    """What was settled on the other splits before the test began."""
    chosen: dict[str, Any] = {}
    if found.ways:
        chosen[CEILING] = {f"{shape} {depth}": way.name for (shape, depth), way in sorted(found.ways.items())}
    if BEST in found.planners:
        chosen[BEST] = found.fit["ranking"]
    return chosen


def _notes(found: _Found) -> dict[str, str]:
    """What is said beside a planner's name."""
    notes = {ORACLE: "one worker per question", CEILING: "best plan per kind", RIGHT: "the task's own plan"}
    notes |= {baseline.name: baseline.note for baseline in found.baselines if baseline.note}
    notes |= {name: sizing.note for name, sizing in found.sizes.items()}
    return {name: note for name, note in notes.items() if name in found.planners}


def _report(found: _Found, facts: Facts) -> Report:
    gym, planners, outcomes = found.gym, found.planners, found.outcomes
    several = len(gym.settings.sets) > 1
    return make_report(
        [*outcomes, *(oracle(_alone(outcomes, gym)) if ORACLE in planners else ())],
        [name for name in planners if name != EACH],
        facts=facts,
        references=(*REFERENCES, *(name for name in planners if name.startswith(SINGLE))),
        complete=found.complete,
        task_of=(lambda outcome: set_name(gym.set_of(outcome.task))) if several else None,
        equal_cost=EQUAL_COST if EQUAL_COST in planners else "",
    )


def _alone(outcomes: Sequence[Outcome], gym: Gym) -> list[Outcome]:
    """What each worker did alone on the questions that it was offered for."""
    offered = {task.id: {s.name for s in gym.offered(task)} for task in gym.tasks}
    return [o for o in outcomes if o.planner.startswith(SINGLE) and o.planner[len(SINGLE) :] in offered[o.task]]


def _over_all_sets(report: Report) -> Report:
    """What is right about plans, over several sets, is told only where it can be told of each of them."""
    if not report.by_task:
        return report

    def common(planner: str) -> set[str]:
        return set.intersection(*(set(rows[planner].marks) for rows in report.by_task.values() if rows[planner].marks))

    rows = {
        planner: msgspec.structs.replace(
            row, marks={mark: x for mark, x in row.marks.items() if mark in common(planner)} if row.marks else {}
        )
        for planner, row in report.planners.items()
    }
    return msgspec.structs.replace(report, planners=rows)
