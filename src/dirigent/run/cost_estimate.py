"""What a plan will cost, before any call is paid: a low and a high figure, and its critical path in steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from dirigent.errors import ConfigError
from dirigent.limits import Limits
from dirigent.messages import Message, conversation, estimate_tokens
from dirigent.plan.plan import Plan, critical_path
from dirigent.run.step_prompt import step_messages
from dirigent.workers.worker import Worker

LOW_OUTPUT_TOKENS = 150
"""Length of a short reply. The low figure assumes that every reply is short."""


class StepEstimate(msgspec.Struct, frozen=True):
    """What one step will cost."""

    low_usd: float
    high_usd: float


class Estimate(msgspec.Struct, frozen=True):
    low_usd: float
    """If every reply is short, and a plan with `until` stops after its first step."""
    high_usd: float
    """If every reply is as long as the limits allow, and no step is spared. Planning, retries and further rounds are
    not included."""
    critical_path: int
    """Steps that must follow one another."""
    steps: tuple[StepEstimate, ...] = ()
    """Each step's share."""


def estimate(
    plan: Plan, workers: Mapping[str, Worker], question: str | Sequence[Message], *, limits: Limits = Limits()
) -> Estimate:
    """Prices the plan by the tokens of its prompts and the lengths its replies may have."""
    steps = range(plan.first, plan.first + len(plan.steps))
    least = steps if plan.until is None else (plan.first, plan.last)
    short = min(LOW_OUTPUT_TOKENS, limits.max_output_tokens)
    low = _costs(plan, workers, question, reply_tokens=short, asked=least)
    high = _costs(plan, workers, question, reply_tokens=limits.max_output_tokens, asked=steps)
    shares = tuple(StepEstimate(*each) for each in zip(low, high, strict=True))
    return Estimate(sum(low), sum(high), critical_path(plan), shares)


def _costs(
    plan: Plan,
    workers: Mapping[str, Worker],
    question: str | Sequence[Message],
    *,
    reply_tokens: int,
    asked: Collection[int],
) -> list[float]:
    """The cost of each step; 0 for a step that is not asked."""
    messages = conversation(question)
    costs = []
    for index, step in plan.numbered():
        info = workers[step.worker].info
        if info.price is None:
            raise ConfigError(f'the price of worker "{info.name}" is unknown; add  price = {{ input = …, output = … }}')
        read = [j for j in step.access if j < plan.first or j in asked]
        prompt = step_messages(messages, plan, index, {}, secret="", subtask_only=info.subtask_only)
        input_tokens = sum(estimate_tokens(m.text) for m in prompt) + reply_tokens * len(read)
        output_tokens = min(reply_tokens, info.output_tokens or reply_tokens)
        usd = (input_tokens * info.price.input + output_tokens * info.price.output) / 1e6
        costs.append(usd if index in asked else 0.0)
    return costs
