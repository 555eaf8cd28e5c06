"""Voting and escalating: several workers answer side by side, and a local counter decides.

The counter is a worker of the pool (`planners/vote_counter.py`), so a vote is a plan like any other. Escalation is two
rounds: two cheaper workers first; the planner sees the counter's result, accepts if they agree and asks the best worker
if they do not.
"""

from __future__ import annotations

from collections.abc import Sequence

from dirigent.errors import ConfigError
from dirigent.messages import Observe, ignore
from dirigent.plan.plan import Plan, Step
from dirigent.plan.planner import Brief, Draft, Shape
from dirigent.planners.fixed import step
from dirigent.planners.vote_counter import UNDECIDED

COUNT = "Count equal answers."


class Panel(Shape):
    """These workers answer, the counter takes their vote. Put the most trusted first: ties go to the first.

    Of more than `size` workers, the first so many that the pool has take part.
    """

    def __init__(
        self, workers: Sequence[str], *, size: int | None = None, counter: str = "count", name: str = "vote"
    ) -> None:
        if not workers:
            raise ConfigError("a vote needs at least one worker")
        self.name = name
        self._workers = tuple(workers)
        self._size = size
        self._counter = counter

    def plan(self, brief: Brief) -> Plan:
        there = [worker for worker in self._workers if worker in brief.pool][: self._size]
        if not there:
            raise ConfigError(f"the pool has none of {', '.join(self._workers)}; it has {', '.join(brief.pool.names)}")
        return ballot(brief, there, counter=self._counter)


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
            return Draft(plan=ballot(brief, self._cheaper, counter=self._counter))
        if brief.previous.answer == UNDECIDED:
            return Draft(plan=Plan((step(brief, self._best),)))
        return Draft(plan=Plan())


def ballot(brief: Brief, workers: Sequence[str], *, counter: str) -> Plan:
    """All workers answer, and the counter reads all replies."""
    answers = [step(brief, worker) for worker in workers]
    return Plan((*answers, Step(brief.pool.require(counter), COUNT, tuple(range(len(answers))))))
