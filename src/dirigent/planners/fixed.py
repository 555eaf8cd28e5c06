"""Planners that write the same shape for every question: the plain baselines, and the serving fallback.

Each writes its plan as a draft like any other planner, so execution, limits, cost and traces are the same code.
Asked for a second round, they accept.
"""

from __future__ import annotations

from typing import Protocol

from dirigent.errors import ConfigError
from dirigent.messages import Observe, ignore
from dirigent.plan import Plan, Step, format_plan
from dirigent.planner import Brief, Draft
from dirigent.pool import Pool
from dirigent.prompt import AGREE, ANSWER, REVIEW, SYNTHESISE


class _Shape(Protocol):
    def plan(self, pool: Pool, max_steps: int) -> Plan: ...


async def _draft(shape: _Shape, brief: Brief) -> Draft:
    plan = Plan() if brief.previous is not None else shape.plan(brief.pool, brief.limits.max_steps)
    return Draft(format_plan(plan, brief.pool, dialect="json"), "json")


class Fixed:
    """Always this plan: one written by hand, or taken from a trace."""

    def __init__(self, plan: Plan, *, name: str = "fixed") -> None:
        self.name = name
        self._plan = plan

    def plan(self, pool: Pool, max_steps: int) -> Plan:
        return self._plan

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        return await _draft(self, brief)


class Single:
    """One worker answers alone: the pool's first, or the one named."""

    def __init__(self, worker: str = "") -> None:
        self.name = f"single:{worker}" if worker else "single"
        self._worker = worker

    def plan(self, pool: Pool, max_steps: int) -> Plan:
        return Plan((Step(_named(pool, self._worker), ANSWER),))

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        return await _draft(self, brief)


class FanOut:
    """Mixture-of-Agents in its plainest form: workers answer side by side, one brings the answers together.

    Uses as many proposers, in pool order, as the step limit leaves room for.
    """

    def __init__(self, synthesiser: str = "", *, proposers: int | None = None) -> None:
        self.name = "moa"
        self._synthesiser = synthesiser
        self._proposers = proposers

    def plan(self, pool: Pool, max_steps: int) -> Plan:
        if max_steps < 2:
            raise ConfigError(f"moa needs max_steps of at least 2, not {max_steps}")
        wanted = self._proposers or len(pool)
        count = max(1, min(wanted, max_steps - 1))
        steps = tuple(Step(pool.names[i % len(pool)], ANSWER) for i in range(count))
        last = Step(_named(pool, self._synthesiser), SYNTHESISE, tuple(range(count)))
        return Plan((*steps, last))

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        return await _draft(self, brief)


class Reflect:
    """One worker answers, then looks at its own answer again and again. `turns` counts its calls."""

    def __init__(self, worker: str = "", *, turns: int = 5) -> None:
        self.name = "reflect"
        self._worker = worker
        self._turns = turns

    def plan(self, pool: Pool, max_steps: int) -> Plan:
        worker = _named(pool, self._worker)
        turns = min(self._turns, max_steps)
        reviews = tuple(Step(worker, REVIEW, (i - 1,)) for i in range(1, turns))
        return Plan((Step(worker, ANSWER), *reviews))

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        return await _draft(self, brief)


class Vote:
    """Self-consistency: one worker answers several times, and the answer most of them give is returned.

    Asked for another sampling temperature than 0, or the samples will be one answer repeated. `counter` is the
    worker that counts; without one the answering worker is asked to name the most frequent answer.
    """

    def __init__(self, worker: str = "", *, samples: int = 5, counter: str = "") -> None:
        self.name = "vote"
        self._worker = worker
        self._samples = samples
        self._counter = counter

    def plan(self, pool: Pool, max_steps: int) -> Plan:
        worker = _named(pool, self._worker)
        count = max(1, min(self._samples, max_steps - 1))
        if count == 1:
            return Plan((Step(worker, ANSWER),))
        samples = tuple(Step(worker, ANSWER) for _ in range(count))
        return Plan((*samples, Step(_named(pool, self._counter or worker), AGREE, tuple(range(count)))))

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        return await _draft(self, brief)


def _named(pool: Pool, worker: str) -> str:
    return pool.require(worker) if worker else pool.names[0]
