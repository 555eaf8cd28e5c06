"""Equal cost: what the planner to be beaten costs, so that votes of one worker can be made to cost as much.

Measured on the questions for fitting, never on the test. Whoever takes part first in `SIZED_BY` is the measure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from dirigent.evals.baselines import Fitting
from dirigent.evals.evaluate import PlannerFor, PoolFor
from dirigent.evals.outcome import Outcome
from dirigent.evals.planners import by_limits, entry_of, fit_baselines
from dirigent.evals.stats import mean_or_none
from dirigent.limits import Limits
from dirigent.tasks.task import Task

EQUAL_COST = "vote"
"""Self-consistency of the best worker: what a report compares everybody with at equal cost."""
SIZED = ("vote", "self-moa")
SIZED_BY = ("conductor", "conductor:2", "language", "moa", "moa:8")

Tried = Callable[..., Awaitable[list[Outcome]]]
"""Asks entries some questions, under limits, in order to fit."""


QUESTIONS = 60
"""Of the training split, to learn what the measure costs: a mean, and a trained planner on a CPU takes seconds each."""


async def equal_cost_usd(
    names: Sequence[str],
    fitting: Fitting,
    tried: Tried,
    tasks: Sequence[Task],
    *,
    pool_for: PoolFor,
    limits: Limits,
    trained: Mapping[str, PlannerFor],
) -> float | None:
    """A question's mean cost under the measure; None where nobody is to be sized, or there is no measure, or its
    cost is unknown."""
    measure = next((name for name in SIZED_BY if name in names), None)
    if measure is None or not any(name in SIZED for name in names):
        return None
    (baseline,) = await fit_baselines([measure], fitting, trained=trained)
    ((own, _),) = by_limits([baseline], limits).items()
    outcomes = await tried([entry_of(baseline, pool_for)], tasks[:QUESTIONS], limits=own)
    return mean_or_none([outcome.known_cost_usd for outcome in outcomes]) or None
