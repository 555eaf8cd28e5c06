"""Planners by name: those a configuration can use, and where every baseline of an evaluation is found.

A configuration names planners that need no fitting: `make_planner`. An evaluation names all of these; they are built by
`evals/planners.py`, which knows tasks and graders:

    best, single:NAME, cheapest, random   one worker alone (`fixed.py`, `evals/planners.py`)
    vote, vote:N                          one worker N times, a local counter decides (`fixed.py`)
    self-moa, self-moa:N                  one worker N times, the same one brings the answers together (`fixed.py`)
    moa, moa:8, moa:3x2                   workers side by side in layers, one brings them together (`fixed.py`)
    reflect, reflect:N                    one worker looks at its own answer again (`fixed.py`)
    pipeline                              plan, carry out, review, hard-coded (`fixed.py`)
    escalate                              two cheaper workers, the best only where they differ (`voting.py`)
    panel, panel:N, weighted-vote         the N best workers once each; all, weighted by their accuracy (`voting.py`)
    knn, routerdc                         one worker, chosen by a router fitted on examples (`knn.py`, `routerdc.py`)
    smoothie                              all workers; a local one picks by likeness, without labels (`smoothie.py`)
    masrouter                             mode, roles and workers drawn by a policy fitted on rollouts (`masrouter.py`)
    language, language:NAME               a worker is prompted to plan
    warm-start, conductor, conductor:2    the trained planner; `:2` with two rounds

    oracle, ceiling                       no planners: figures computed from outcomes (`evals/metrics.py`,
                                          `evals/hindsight.py`; the gym and live pools have ceilings of their own,
                                          `dirigent_gym/evals/ceiling.py` and `evals/live_ceiling.py`)

How an evaluation gets them:

    examples = examples_of(training_tasks, outcomes_of_each_worker_alone)            # evals/planners.py
    fitting = Fitting(examples=examples, pool=pool, seed=1)
    baselines = await fit_baselines(names, fitting, rollout=rollout, trained={"conductor": planner_for})
    for limits, group in by_limits(baselines, limits).items():
        outcomes += await evaluate([entry_of(b, pool_for) for b in group], tasks, pool_for=pool_for, limits=limits)

`vote` and `self-moa` take a fixed number of samples so; `evals/sized.py` asks them at another planner's cost instead.
`Baseline.note` says in words what fitting chose, for the report. Learned planners see the training split alone.
"""

from __future__ import annotations

import difflib

from dirigent.errors import ConfigError
from dirigent.plan.plan import Dialect
from dirigent.plan.planner import LanguagePlanner, Planner
from dirigent.planners.fixed import FanOut, Reflect, Single, Vote
from dirigent.workers.pool import Pool

PLANNERS = ("language", "single", "moa", "reflect", "vote")


def make_planner(name: str, *, pool: Pool, worker: str = "", dialect: Dialect = "lists") -> Planner:
    """The planner of that name. `worker` plans for `language`, answers for the others; empty = the pool's first."""
    if worker:
        pool.require(worker)
    match name:
        case "language":
            return LanguagePlanner(pool[worker or pool.names[0]], dialect=dialect)
        case "single":
            return Single(worker)
        case "moa":
            return FanOut(worker)
        case "reflect":
            return Reflect(worker)
        case "vote":
            return Vote(worker)
    near = difflib.get_close_matches(name, PLANNERS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(PLANNERS)}"
    raise ConfigError(f"no planner is called {name!r}{hint}")
