"""Voting and escalating: several workers answer side by side, and a local counter decides.

The counter is a worker of the pool (`workers/counting.py`), so a vote is a plan like any other. Escalation is two
rounds: two cheaper workers first; the planner sees what the counter made of them, accepts where they agree and asks the
best worker where they do not.
"""

from __future__ import annotations

from collections.abc import Sequence

from dirigent.errors import ConfigError
from dirigent.messages import Observe, ignore
from dirigent.plan import Plan, Step, format_plan
from dirigent.planner import Brief, Draft
from dirigent.prompt import ANSWER
from dirigent.workers.counting import UNDECIDED

COUNT = "Count equal answers."


class Panel:
    """These workers answer, the counter takes their vote. Put the most trusted first: ties go to the first."""

    def __init__(self, workers: Sequence[str], *, counter: str = "count", name: str = "vote") -> None:
        if not workers:
            raise ConfigError("a vote needs at least one worker")
        self.name = name
        self._workers = tuple(workers)
        self._counter = counter

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        plan = Plan() if brief.previous is not None else ballot(self._workers, counter=self._counter)
        return _written(plan, brief)


class Escalate:
    """Two cheaper workers at once; the best only when they disagree. Needs `max_rounds` of 2."""

    def __init__(self, cheaper: tuple[str, str], best: str, *, counter: str = "agree", name: str = "escalate") -> None:
        self.name = name
        self._cheaper = cheaper
        self._best = best
        self._counter = counter

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        if brief.limits.max_rounds < 2:
            raise ConfigError(f"escalating needs max_rounds of at least 2, not {brief.limits.max_rounds}")
        if brief.previous is None:
            return _written(ballot(self._cheaper, counter=self._counter), brief)
        if brief.previous.answer == UNDECIDED:
            return _written(Plan((Step(self._best, ANSWER),)), brief)
        return _written(Plan(), brief)


def ballot(workers: Sequence[str], *, counter: str) -> Plan:
    """Everybody answers, the counter reads all."""
    return Plan((*(Step(worker, ANSWER) for worker in workers), Step(counter, COUNT, tuple(range(len(workers))))))


def _written(plan: Plan, brief: Brief) -> Draft:
    return Draft(format_plan(plan, brief.pool, dialect="json"), "json")
