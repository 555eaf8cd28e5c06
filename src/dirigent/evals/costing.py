"""What an evaluation will cost, before it is paid: from the calls of a small dry run, prices and assumed lengths.

A dry run shows who is called how often by each planner, which no formula knows; replies' lengths cannot be known, so
they are assumed, once as they usually are and once as long as they may be. An estimate, and told as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dirigent.evals.outcome import Outcome
from dirigent.plan.plan import Step
from dirigent.workers.worker import Price

QUESTION_TOKENS: Mapping[str, int] = {
    "math500": 110, "mmlu": 120, "mmlu_pro": 250, "rlpr": 90, "livecodebench": 600, "aime25": 130, "aime24": 130,
    "bigcodebench": 350, "bigcodebench_hard": 400, "gpqa": 240, "gsm8k": 100, "humaneval": 180, "mbpp": 90, "bbh": 150,
}  # fmt: skip
"""Assumed: a question of the set in tokens, at four characters each."""

USUAL_REPLY_TOKENS = 900
"""Assumed: the Conductor paper's Mixture-of-Agents used 11,203 tokens a question in eight calls, so about 1,400 a call,
some 500 of them read."""

AT_HOME = ("conductor", "warm-start")

STEP_TOKENS = 120
"""Words around a question and its subtask."""


class Estimate(msgspec.Struct, frozen=True):
    usual_usd: float
    most_usd: float
    calls: float

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.usual_usd + other.usual_usd, self.most_usd + other.most_usd, self.calls + other.calls)

    def times(self, factor: float) -> Estimate:
        return Estimate(self.usual_usd * factor, self.most_usd * factor, self.calls * factor)


def estimate_by_planner(
    outcomes: Sequence[Outcome],
    prices: Mapping[str, Price],
    *,
    questions: Mapping[str, int],
    max_output_tokens: int,
) -> dict[str, Estimate]:
    """Planner -> what asking so many `questions` of each task would cost, by what it did with a few of them."""
    asked: dict[tuple[str, str], set[str]] = {}
    for outcome in outcomes:
        asked.setdefault((outcome.planner, outcome.kind), set()).add(outcome.task)
    found: dict[str, Estimate] = {}
    for outcome in outcomes:
        share = questions.get(outcome.kind, 0) / len(asked[outcome.planner, outcome.kind])
        run = _run(outcome, prices, max_output_tokens=max_output_tokens).times(share)
        found[outcome.planner] = found.get(outcome.planner, Estimate(0.0, 0.0, 0.0)) + run
    return found


def _run(outcome: Outcome, prices: Mapping[str, Price], *, max_output_tokens: int) -> Estimate:
    """One run: the mean cost of its steps, times its calls. Earlier rounds and planning count like steps, but for the
    planning of a model of ours, which runs at home."""
    steps = [step for step in outcome.plan.steps if step.worker in prices] if outcome.plan else []
    if not steps:
        return Estimate(0.0, 0.0, float(outcome.calls))
    paid = len(steps) if outcome.planner.startswith(AT_HOME) else outcome.calls
    question = QUESTION_TOKENS.get(outcome.kind, 200)
    usual, most = (
        sum(_step(step, prices, question=question, reply=reply) for step in steps) / len(steps) * paid
        for reply in (USUAL_REPLY_TOKENS, max_output_tokens)
    )
    return Estimate(usual, most, float(outcome.calls))


def _step(step: Step, prices: Mapping[str, Price], *, question: int, reply: int) -> float:
    price = prices[step.worker]
    read = question + STEP_TOKENS + reply * len(step.access)
    return (read * price.input + reply * price.output) / 1e6
