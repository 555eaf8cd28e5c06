"""Planners that are handed their decision: one worker, a lot, a plan as it stands.

For evaluations; a configuration has no use for them.
"""

from __future__ import annotations

import random

from dirigent.errors import ConfigError
from dirigent.messages import Observe, ignore
from dirigent.plan.plan import Dialect, Plan
from dirigent.plan.planner import Brief, Draft
from dirigent.planners.writing import answering, named, once, step


class Alone:
    """One worker answers alone: the first of these that the pool has."""

    def __init__(self, *workers: str, name: str = "") -> None:
        if not workers:
            raise ConfigError("a single worker needs a name: write  single:NAME")
        self.name = name or f"single:{workers[0]}"
        self._workers = workers

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        return once(Plan((step(brief, named(brief.pool, self._workers)),)), brief)


class RandomWorker:
    """One worker, drawn by lot, answers alone."""

    def __init__(self, *, seed: int) -> None:
        self.name = "random"
        self._seed = seed

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        drawn = random.Random(self._seed).choice(answering(brief.pool))
        return once(Plan((step(brief, drawn),)), brief)


class Adapted:
    """A plan made without looking at the pool; a worker that never sees the question gets it in its subtask."""

    def __init__(self, plan: Plan, *, name: str = "adapted") -> None:
        self.name = name
        self._plan = plan

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        return once(Plan(tuple(step(brief, s.worker, s.subtask, s.access) for s in self._plan.steps)), brief)


class Written:
    """A plan that a model wrote beforehand, in one batch with others. `then` is its plan of the second round."""

    def __init__(self, text: str, *, name: str, dialect: Dialect = "lines", then: str = "") -> None:
        self.name = name
        self._text = text
        self._then = then
        self._dialect: Dialect = dialect

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        if brief.previous is None:
            return Draft(self._text, self._dialect)
        return Draft(self._then, self._dialect) if self._then else Draft(plan=Plan())
