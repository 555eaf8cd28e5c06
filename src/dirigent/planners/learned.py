"""Learned: a policy that was fitted on a table of graded answers decides, in milliseconds, whom to ask.

For a question the policy gives an order of workers and a confidence to stop at. The planner writes them as a plan: the
workers in order, then a worker that selects (`workers/select.py`) or votes. So a learned decision is executed, traced
and priced as any plan is. What a policy is and how it is fitted is in `learn/policy.py`.

A policy holds for the workers it was fitted on. A worker whose fingerprint differs, or that was never measured, takes
no part. If no worker is left, the dearest worker of the pool answers alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

from dirigent.messages import Observe, ignore
from dirigent.plan.plan import Plan, Reason, Step
from dirigent.plan.planner import Brief, Draft
from dirigent.planners.fixed import dearest, once, question_text, step
from dirigent.workers.worker import WorkerInfo

CHOOSE = "Choose the answer that is most likely right."

Prefer = Literal["cost", "speed"]


class Decision(Protocol):
    """What a policy says about one question."""

    @property
    def order(self) -> tuple[str, ...]:
        """The workers to ask, in this order; one may occur several times."""
        ...

    @property
    def end(self) -> Literal["last", "vote", "select"]:
        """`last`: the only call is the answer. Otherwise a last step chooses among the answers."""
        ...

    @property
    def until(self) -> float | None:
        """Stop at this confidence; None: ask all of them."""
        ...

    @property
    def why(self) -> str:
        """A sentence for people: which kind of question this is, and what the table says of it."""
        ...

    @property
    def baseline(self) -> str:
        """The best single worker."""
        ...


class FittedPolicy(Protocol):
    """A policy as `learn/policy.py` loads it from its folder."""

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Of each worker that it was fitted on, as it was when it answered."""
        ...

    def plan_for(
        self, question: str, workers: Collection[str], *, prefer: Prefer, most_calls: int | None, at: str
    ) -> Decision:
        """The decision for this question over these workers, each of which it was fitted on."""
        ...


class Learned:
    """Writes the plan that a fitted policy decides on."""

    def __init__(
        self,
        policy: FittedPolicy,
        *,
        selector: str = "select",
        counter: str = "vote",
        prefer: Prefer = "cost",
        at: str = "",
        name: str = "learned",
    ) -> None:
        self.name = name
        self._policy = policy
        self._last = {"select": selector, "vote": counter}
        """The worker of the last step."""
        self._prefer: Prefer = prefer
        self._at = at

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        if brief.previous is not None:
            return once(Plan(), brief)
        known = measured(self._policy, brief.pool.infos)
        missing = tuple(left_out(self._policy, brief.pool.infos).values())
        if not known:
            best = dearest([info for info in brief.pool.infos if not info.reads_results])
            why = f"{best} alone: the policy was fitted on none of the workers as they are now"
            return Draft(plan=Plan((step(brief, best),)), reason=Reason(why=why, chosen=(best,), left_out=missing))
        decision = self._policy.plan_for(
            question_text(brief),
            known,
            prefer=self._prefer,
            most_calls=max(1, brief.limits.max_steps - 1),
            at=self._at,
        )
        reason = Reason(
            why=decision.why,
            chosen=decision.order,
            baseline=decision.baseline,
            left_out=missing,
        )
        return Draft(plan=self._plan(brief, decision), reason=reason)

    def _plan(self, brief: Brief, decision: Decision) -> Plan:
        steps = [step(brief, worker) for worker in decision.order]
        if decision.end == "last":  # nothing to choose from, so the answer can be streamed
            return Plan((steps[-1],))
        choose = Step(self._last[decision.end], CHOOSE, tuple(range(len(steps))))
        return Plan((*steps, choose), until=decision.until if decision.end == "select" else None)


def measured(policy: FittedPolicy, infos: Sequence[WorkerInfo]) -> tuple[str, ...]:
    """The workers that the policy was fitted on and that have not changed since, in pool order."""
    fingerprints = policy.fingerprints
    return tuple(i.name for i in infos if not i.reads_results and fingerprints.get(i.name) == i.fingerprint)


def left_out(policy: FittedPolicy, infos: Sequence[WorkerInfo]) -> dict[str, str]:
    """Worker -> why the policy does not use it, as a sentence."""
    known = measured(policy, infos)
    fingerprints = policy.fingerprints
    return {
        info.name: (
            f"{info.name} has changed since it was measured; `dirigent calibrate` measures it again"
            if info.name in fingerprints
            else f"{info.name} was not measured; `dirigent calibrate` measures it"
        )
        for info in infos
        if info.name not in known and not info.reads_results
    }
