"""Examples: training questions with the answer of each worker, asked alone. A fitted planner may know nothing else. The
module also computes what follows directly: the best worker, the cheapest, and the cost of several samples of a worker.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from dirigent.errors import ConfigError
from dirigent.messages import Message, estimate_tokens
from dirigent.plan.plan import Plan, Step
from dirigent.run.step_prompt import ANSWER, SYNTHESISE, step_messages
from dirigent.workers.worker import WorkerInfo

Rollout = Callable[[str, Plan], Awaitable[tuple[float, float] | None]]
"""Carry out a plan for a training question: its score and its cost in USD; None if a worker failed,
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
    """Its answer; planners that compare answers without labels read it."""
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
    """Returns the mean cost of a worker's answer, over the questions it was asked."""
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


class SampleCost(msgspec.Struct, frozen=True):
    """The mean cost of several samples of a worker on a question: a straight line, except for one sample alone."""

    alone_usd: float
    """A single sample, with which nothing further is done."""
    each_usd: float
    """One of several, and its input to a synthesis, if there is one."""
    fixed_usd: float = 0.0
    """The cost that is paid once for several samples."""

    def usd_of(self, samples: int) -> float:
        return self.alone_usd if samples == 1 else self.fixed_usd + samples * self.each_usd

    def times(self, factor: float) -> SampleCost:
        return SampleCost(self.alone_usd * factor, self.each_usd * factor, self.fixed_usd * factor)


def vote_cost(examples: Sequence[Example], worker: str) -> SampleCost:
    """A local worker counts, which is free."""
    answer_usd = mean_costs_usd(examples)[worker]
    return SampleCost(answer_usd, answer_usd)


def self_moa_cost(examples: Sequence[Example], info: WorkerInfo) -> SampleCost:
    """The answers, and one synthesis: it reads the question, the answers and the words around them, then writes one.

    Its input is the final prompt, with the answers of the examples, at the usual four characters a token. If tokens or
    their price are unknown, the synthesis counts as one more call.
    """
    answer_usd = mean_costs_usd(examples)[info.name]
    asked = [example for example in examples if info.name in example.tokens]
    if info.price is None or not asked:
        return SampleCost(answer_usd, answer_usd, answer_usd)
    two, three = (_mean([_synthesis_tokens(example, info, samples) for example in asked]) for samples in (2, 3))
    wrote = _mean([example.tokens[info.name][1] for example in asked])
    reading_usd = (three - two) * info.price.input / 1e6
    once_usd = (two * info.price.input + wrote * info.price.output) / 1e6 - 2 * reading_usd
    return SampleCost(answer_usd, answer_usd + reading_usd, once_usd)


def _synthesis_tokens(example: Example, info: WorkerInfo, samples: int) -> float:
    """Input tokens of a synthesis: those of the question, as billed, and an estimate of the rest."""
    asked, told = ANSWER, SYNTHESISE
    if info.subtask_only:  # as `writing.step` has it
        asked, told = example.question, f"{example.question}\n{SYNTHESISE}"
    answers = [Step(info.name, asked) for _ in range(samples)]
    plan = Plan((*answers, Step(info.name, told, tuple(range(samples)))))
    replies = dict.fromkeys(range(samples), example.replies.get(info.name, ""))
    shown = step_messages(
        [Message("user", example.question)], plan, samples, replies, secret="", subtask_only=info.subtask_only
    )
    added = sum(estimate_tokens(message.text) for message in shown) - estimate_tokens(example.question)
    return example.tokens[info.name][0] + added


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
