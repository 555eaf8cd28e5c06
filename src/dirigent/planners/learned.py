"""Learned: a policy that was fitted on a table of graded answers decides, in milliseconds, whom to ask.

For a question the policy gives an order of workers and a confidence to stop at. The planner writes them as a plan: the
workers in order, then a worker that selects (`workers/reader.py`). So a learned decision is executed, traced and priced
as any plan is. What a policy is and how it is fitted is in `learn/policy.py`.

A policy holds for the workers it was fitted on. A worker whose fingerprint differs, or that was never measured, takes
no part. If no worker is left, the best single worker of the pool answers alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from dirigent.messages import Observe, ignore
from dirigent.plan.plan import Plan, Reason, Step
from dirigent.plan.planner import Brief, Draft
from dirigent.planners.fixed import answering, question_text, step
from dirigent.workers.reader import Chooses, Select
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
    def until(self) -> float | None:
        """Stop at this confidence; None: ask all of them."""
        ...

    @property
    def why(self) -> str:
        """One sentence for people: which kind of question this is, and what the table says of it."""
        ...

    @property
    def point(self) -> str:
        """The operating point, such as `same`."""
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

    @property
    def selector(self) -> Chooses: ...

    def plan_for(self, question: str, names: Sequence[str]) -> Decision:
        """The decision for this question over these workers, each of which it was fitted on."""
        ...


class Learned:
    """Writes the plan that a fitted policy decides on."""

    def __init__(
        self,
        policy: FittedPolicy,
        *,
        selector: str = "select",
        prefer: Prefer = "cost",
        name: str = "learned",
    ) -> None:
        self.name = name
        self._policy = policy
        self._selector = selector
        self._prefer = prefer

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        if brief.previous is not None:
            return Draft(plan=Plan())
        known = measured(self._policy, brief.pool.infos)
        if not known:
            best = answering(brief.pool)[0]
            why = f"{best} alone: the policy was fitted on none of the workers as they are now"
            return Draft(plan=Plan((step(brief, best),)), reason=Reason(why=why, left_out=self._left_out(brief)))
        decision = self._policy.plan_for(question_text(brief), known)
        order = decision.order[: max(1, brief.limits.max_steps - 1)]
        why = decision.why
        if len(order) < len(decision.order):
            why += f"; max_steps = {brief.limits.max_steps} leaves the last {len(decision.order) - len(order)} out"
        reason = Reason(
            why=why,
            chosen=order,
            point=decision.point,
            baseline=decision.baseline,
            left_out=self._left_out(brief),
        )
        return Draft(plan=self._plan(brief, order, decision.until), reason=reason)

    def _plan(self, brief: Brief, order: Sequence[str], until: float | None) -> Plan:
        steps = [step(brief, worker) for worker in order]
        if len(steps) == 1:  # nothing to choose from, and the answer can be streamed
            return Plan((steps[0],))
        choose = Step(self._selector, CHOOSE, tuple(range(len(steps))))
        return Plan((*steps, choose), until=until if self._prefer == "cost" else None)

    def _left_out(self, brief: Brief) -> tuple[str, ...]:
        return tuple(left_out(self._policy, brief.pool.infos).values())


def selector_of(policy: FittedPolicy, *, name: str = "select") -> Select:
    """The worker in which the policy's plans end."""
    return Select(policy.selector, name=name)


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
