"""Capacity: what a pool could do, before anybody plans. Each worker alone, and the best choice of one per question.

Complementarity is the oracle minus the best single worker: the most that choosing one worker a question could add. It
is told of the questions that every worker answered; computed from outcomes of `single:NAME` alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dirigent.evals.metrics import by_planner, cheap_first, scores
from dirigent.evals.outcome import Outcome
from dirigent.evals.stats import mean, mean_or_none, wilson

SINGLE = "single:"
LEAST_SHARED = 0.9
"""Share of the questions that all workers must have answered: workers asked different ones cannot be compared."""


class Alone(msgspec.Struct, frozen=True):
    """One worker, asked every question by itself."""

    n: int
    accuracy: float
    interval: tuple[float, float]
    cost_usd_per_question: float | None
    """None: no price is known."""
    tokens: float
    seconds: float
    """A question's mean."""


class Capacity(msgspec.Struct, frozen=True):
    n: int
    """Questions that every worker answered."""
    workers: dict[str, Alone]
    """From best to worst."""
    best: str
    oracle: float
    oracle_interval: tuple[float, float]
    complementarity: float
    all_right: float
    """Share of the questions that every worker gets right: there is nothing to choose there."""


def capacity(outcomes: Sequence[Outcome]) -> Capacity | None:
    """From whatever workers did alone; None where fewer than two were tried on the same questions."""
    found = {name.removeprefix(SINGLE): of for name, of in by_planner(outcomes).items() if name.startswith(SINGLE)}
    if len(found) < 2:
        return None
    values = {name: scores(of) for name, of in found.items()}
    both = sorted(set.intersection(*(set(of) for of in values.values())))
    if not both or len(both) < LEAST_SHARED * len(set().union(*values.values())):
        return None
    alone = {name: _alone(of) for name, of in found.items()}
    ranked = sorted(
        alone,
        key=lambda name: (
            -mean([values[name][task] for task in both]),
            *cheap_first(alone[name].cost_usd_per_question),
        ),
    )
    oracle = mean([max(of[task] for of in values.values()) for task in both])
    return Capacity(
        n=len(both),
        workers={name: alone[name] for name in ranked},
        best=ranked[0],
        oracle=oracle,
        oracle_interval=wilson(oracle * len(both), len(both)),
        complementarity=oracle - mean([values[ranked[0]][task] for task in both]),
        all_right=mean([float(min(of[task] for of in values.values()) >= 1.0) for task in both]),
    )


def _alone(outcomes: Sequence[Outcome]) -> Alone:
    n, right = len({o.task for o in outcomes}), mean([o.value for o in outcomes])
    return Alone(
        n=n,
        accuracy=right,
        interval=wilson(right * n, n),
        cost_usd_per_question=mean_or_none([o.known_cost_usd for o in outcomes]),
        tokens=mean([o.tokens for o in outcomes]),
        seconds=mean([o.seconds for o in outcomes]),
    )
