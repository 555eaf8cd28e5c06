"""Examples: training questions with what each worker, asked alone, made of them. All that a fitted planner may know.

Also the plain things that follow from them: who is best, who is cheapest, and how many samples of the best worker cost
as much as something else.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from dirigent.errors import ConfigError
from dirigent.plan import Plan
from dirigent.worker import Price

Rollout = Callable[[str, Plan], Awaitable[tuple[float, float] | None]]
"""Carry out a plan for a training question: its score and its cost in USD; None where a worker failed,
which teaches nothing."""

MAX_SAMPLES = 31
"""Most samples of a vote or a Self-MoA: the longest plan has 32 steps, and one of them decides."""


class Example(msgspec.Struct, frozen=True):
    """One training question; everything else is by worker."""

    question: str
    scores: dict[str, float]
    """How right the worker was, between 0 and 1."""
    costs_usd: dict[str, float] = {}
    replies: dict[str, str] = {}
    """What it answered; planners that compare answers without labels read these."""
    tokens: dict[str, tuple[float, float]] = {}
    """Input and output tokens of its call."""


def workers_of(examples: Sequence[Example]) -> tuple[str, ...]:
    """Every worker that was asked, in the order met."""
    return tuple(dict.fromkeys(worker for example in examples for worker in example.scores))


def accuracies(examples: Sequence[Example]) -> dict[str, float]:
    """A worker's mean score; a question it was not asked counts as wrong, so that a lucky few do not rank first."""
    if not examples:
        raise ConfigError("nothing to fit on: no training question was asked")
    return {
        worker: math.fsum(example.scores.get(worker, 0.0) for example in examples) / len(examples)
        for worker in workers_of(examples)
    }


def mean_costs_usd(examples: Sequence[Example]) -> dict[str, float]:
    """What a worker's answer cost on average, over the questions it was asked."""
    return {
        worker: _mean([example.costs_usd[worker] for example in examples if worker in example.costs_usd])
        for worker in workers_of(examples)
    }


def ranked(examples: Sequence[Example]) -> tuple[str, ...]:
    """Workers from best to worst; the cheaper first where two tie."""
    accuracy, cost_usd = accuracies(examples), mean_costs_usd(examples)
    return tuple(sorted(accuracy, key=lambda name: (-accuracy[name], cost_usd[name])))


def cheapest(examples: Sequence[Example]) -> tuple[str, ...]:
    """Workers from the cheapest to the dearest; the better first where two cost the same."""
    order = ranked(examples)
    cost_usd = mean_costs_usd(examples)
    return tuple(sorted(order, key=lambda name: cost_usd[name]))


class Sizing(msgspec.Struct, frozen=True):
    """How many samples come closest to a cost."""

    samples: int
    cost_usd: float
    """Expected of one question, on the training split."""
    target_usd: float

    @property
    def note(self) -> str:
        return f"{self.samples} samples, ${self.cost_usd:.3g} a question for a target of ${self.target_usd:.3g}"


def closest_samples(cost_usd_of: Callable[[int], float], target_usd: float, *, most: int = MAX_SAMPLES) -> Sizing:
    """The number of samples whose cost is closest to the target; the smaller of two equals."""
    if target_usd <= 0:
        raise ConfigError(f"an equal cost must be above 0, not {target_usd}")
    samples = min(range(1, most + 1), key=lambda n: (abs(cost_usd_of(n) - target_usd), n))
    return Sizing(samples, cost_usd_of(samples), target_usd)


def vote_cost_usd(examples: Sequence[Example], worker: str, samples: int) -> float:
    """So many answers; a local worker counts, which is free."""
    return samples * mean_costs_usd(examples)[worker]


def self_moa_cost_usd(examples: Sequence[Example], worker: str, samples: int, *, price: Price) -> float:
    """So many answers and one synthesis, which reads the question and all of them and writes one more.

    The words around them are not counted: they are a few dozen tokens.
    """
    asked = [example.tokens[worker] for example in examples if worker in example.tokens]
    if not asked:
        raise ConfigError(f"the tokens of {worker} on the training split are not known, so self-moa cannot be sized")
    read, wrote = _mean([i for i, _ in asked]), _mean([o for _, o in asked])
    synthesis = ((read + samples * wrote) * price.input + wrote * price.output) / 1e6
    return vote_cost_usd(examples, worker, samples) + synthesis


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
