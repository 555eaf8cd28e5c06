"""Planners that only an evaluation needs: one worker alone, a worker drawn by lot, plans written beforehand.

They differ from `planners/fixed.py` in that a worker that never sees the question is given it as its subtask: a
specialist asked alone must at least be asked.
"""

from __future__ import annotations

import random

from dirigent.errors import ConfigError
from dirigent.messages import Observe, ignore
from dirigent.plan import Dialect, Plan, Step, format_plan
from dirigent.planner import Brief, Draft
from dirigent.prompt import ANSWER


class Alone:
    """One worker answers alone: the first of these that the pool has."""

    def __init__(self, *workers: str, name: str = "") -> None:
        if not workers:
            raise ConfigError("a single worker needs a name: write  single:NAME")
        self.name = name or f"single:{workers[0]}"
        self._workers = workers

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        there = [worker for worker in self._workers if worker in brief.pool]
        if not there:
            raise ConfigError(f"the pool has none of {', '.join(self._workers)}; it has {', '.join(brief.pool.names)}")
        return _draft(alone(brief, there[0]), brief)


class RandomWorker:
    """One worker, drawn by lot, answers alone."""

    def __init__(self, *, seed: int) -> None:
        self.name = "random"
        self._seed = seed

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        return _draft(alone(brief, random.Random(self._seed).choice(brief.pool.names)), brief)


class Written:
    """A plan that stands already, as text: what a model wrote for this question in one batch with others."""

    def __init__(self, text: str, *, name: str, dialect: Dialect = "lines") -> None:
        self.name = name
        self._text = text
        self._dialect: Dialect = dialect

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        if brief.previous is not None:
            return _draft(Plan(), brief)
        return Draft(self._text, self._dialect)


def alone(brief: Brief, worker: str) -> Plan:
    """A plan of one step in which the worker is asked the whole question."""
    if not brief.pool[worker].info.subtask_only:
        return Plan((Step(worker, ANSWER),))
    return Plan((Step(worker, "\n".join(message.text for message in brief.question)),))


def _draft(plan: Plan, brief: Brief) -> Draft:
    """Asked for a second round, accept."""
    accepted = Plan() if brief.previous is not None else plan
    return Draft(format_plan(accepted, brief.pool, dialect="json"), "json")
