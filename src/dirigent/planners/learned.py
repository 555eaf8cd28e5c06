"""Learned: a policy that was fitted on a table of graded answers decides, in milliseconds, whom to ask.

For a question the policy gives an order of workers and a confidence to stop at. The planner writes them as a plan: the
workers in order, then a worker that selects (`workers/reader.py`) or votes. So a learned decision is executed, traced
and priced as any plan is. What a policy is and how it is fitted is in `learn/policy.py`.

A provider reads the beginning of a conversation again at a tenth of the price, so the next turn stays with the worker
that has read it unless another is cheaper even so. A conversation with tools has one worker from start to end.

A question unlike all that the policy was fitted on is planned by another planner, if one is given.

With an exploration rate, that share of questions goes to one measured worker by lot. Each reason then has the chance
with which its first worker was asked first, so that feedback can be weighted (`learn/traffic.py`).

A policy holds for the workers it was fitted on. A worker whose fingerprint differs, or that was never measured, takes
no part. If no worker is left, the dearest worker of the pool answers alone.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

from dirigent.messages import Observe, Usage, asked_text, estimate_tokens, ignore
from dirigent.plan.plan import Plan, Reason, Step
from dirigent.plan.planner import Brief, Draft, Planner
from dirigent.planners.fixed import dearest, question_text, step
from dirigent.workers.worker import Ability, WorkerInfo

UNMEASURED: frozenset[Ability] = frozenset({"tools", "images"})
"""Tables hold answers to questions in words, without tools."""

CHOOSE = "Choose the answer that is most likely right."

Prefer = Literal["cost", "speed"]


class Decision(Protocol):
    """A policy's decision on one question."""

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
        """A sentence for people: the kind of this question, and the table's figures for it."""
        ...

    @property
    def baseline(self) -> str:
        """The best single worker."""
        ...

    @property
    def novel(self) -> bool:
        """The question is unlike anything the policy was fitted on."""
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
        unlike: Planner | None = None,
        explore: float = 0.0,
        rng: random.Random | None = None,
        name: str = "learned",
    ) -> None:
        self.name = name
        self._policy = policy
        self._last = {"select": selector, "vote": counter}
        """The worker of the last step."""
        self._prefer: Prefer = prefer
        self._at = at
        self._unlike = unlike
        """Plans for questions unlike all that the policy was fitted on, and after an answer that failed."""
        self._explore = explore
        self._rng = rng or random.Random()

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        if brief.previous is not None:
            return await self._unlike.draft(brief, observe=observe) if self._unlike else Draft(plan=Plan())
        known = [name for name in measured(self._policy, brief.pool.infos) if self._can(brief, name)]
        missing = tuple(left_out(self._policy, brief.pool.infos, new=self._unlike is None).values())
        if not known:
            return self._without_policy(brief, missing)
        decision = self._policy.plan_for(
            asked_text(brief.question),
            known,
            prefer=self._prefer,
            most_calls=max(1, brief.limits.max_steps - 1),
            at=self._at,
        )
        if brief.needs & UNMEASURED:
            return self._alone(brief, decision, known, missing)
        if decision.novel and self._unlike is not None:
            return await self._unlike.draft(brief, observe=observe)
        order, why, switch_cost_usd = decision.order, decision.why, None
        warm = next((name for name in _warm(brief) if name in known), "")
        if warm and order[0] not in _warm(brief):
            switch_cost_usd = leaving_usd(brief, warm, order[0])
            if switch_cost_usd is None or switch_cost_usd > 0:
                order = (warm,) if decision.end == "last" else (warm, *(name for name in order if name != warm))
                why += f"; stays with {warm}, which has read the conversation{_costs(switch_cost_usd, 'more')}"
            else:
                why += f"; leaves {warm}, which has read the conversation{_costs(-switch_cost_usd, 'less')}"
        propensity = None
        if self._explore and not warm:
            usual = order[0]
            if self._rng.random() < self._explore:
                order = (self._rng.choice(known),)
                why = f"{order[0]} by lot, to measure it: {self._explore:.1%} of questions are asked so"
            propensity = self._explore / len(known) + (1 - self._explore) * (order[0] == usual)
        reason = Reason(
            why=why,
            chosen=order,
            baseline=decision.baseline,
            left_out=missing,
            switch_cost_usd=switch_cost_usd,
            propensity=propensity,
        )
        return Draft(plan=self._plan(brief, order, decision), reason=reason)

    def _can(self, brief: Brief, name: str) -> bool:
        return brief.pool[name].info.abilities >= brief.needs

    def _without_policy(self, brief: Brief, missing: tuple[str, ...]) -> Draft:
        infos = [info for info in brief.pool.infos if not info.reads_results]
        best = dearest([info for info in infos if self._can(brief, info.name)] or infos)
        why = f"{best} alone: the policy was fitted on none of the workers that can answer this, as they are now"
        return Draft(plan=Plan((step(brief, best),)), reason=Reason(why=why, chosen=(best,), left_out=missing))

    def _alone(self, brief: Brief, decision: Decision, known: Sequence[str], missing: tuple[str, ...]) -> Draft:
        """One worker for the whole conversation, if the table has nothing like its question."""
        warm = next((name for name in _warm(brief) if name in known), "")
        strongest = decision.baseline if decision.baseline in known else dearest([brief.pool[n].info for n in known])
        chosen = warm or strongest
        why = f"{chosen} alone: what workers do with {' and '.join(sorted(brief.needs & UNMEASURED))} was not measured"
        if warm:
            why += f"; stays with {warm}, which has read the conversation"
        reason = Reason(why=why, chosen=(chosen,), baseline=decision.baseline, left_out=missing)
        return Draft(plan=Plan((step(brief, chosen),)), reason=reason)

    def _plan(self, brief: Brief, order: Sequence[str], decision: Decision) -> Plan:
        steps = [step(brief, worker) for worker in order[: max(1, brief.limits.max_steps - 1)]]
        if decision.end == "last" or len(steps) == 1:  # nothing to choose from, so the answer can be streamed
            return Plan((steps[0],))
        choose = Step(self._last[decision.end], CHOOSE, tuple(range(len(steps))))
        return Plan((*steps, choose), until=decision.until if decision.end == "select" else None)


def _warm(brief: Brief) -> tuple[str, ...]:
    return brief.warm.workers if brief.warm is not None else ()


def _costs(usd: float | None, word: str) -> str:
    return "" if usd is None else f": leaving costs ${usd:.2g} {word}"


REPLY_TOKENS = 300
"""The length of a reply for which leaving a worker is priced."""


def leaving_usd(brief: Brief, warm: str, other: str) -> float | None:
    """The extra cost of the other worker's reply over that of the worker that has read the conversation.

    The other one has to read all of it afresh. None if a price is unknown.
    """
    prices = [brief.pool[name].info.price for name in (warm, other)]
    if brief.warm is None or prices[0] is None or prices[1] is None:
        return None
    tokens = max(brief.warm.tokens, estimate_tokens(question_text(brief)))
    staying = prices[0].of(Usage(tokens, REPLY_TOKENS, cached_input_tokens=brief.warm.tokens))
    return prices[1].of(Usage(tokens, REPLY_TOKENS)) - staying


def measured(policy: FittedPolicy, infos: Sequence[WorkerInfo]) -> tuple[str, ...]:
    """The workers that the policy was fitted on and that have not changed since, in pool order."""
    fingerprints = policy.fingerprints
    return tuple(i.name for i in infos if not i.reads_results and fingerprints.get(i.name) == i.fingerprint)


def left_out(policy: FittedPolicy, infos: Sequence[WorkerInfo], *, new: bool = True) -> dict[str, str]:
    """Worker -> why the policy does not use it, as a sentence; without `new` of those alone that have changed."""
    known = measured(policy, infos)
    fingerprints = policy.fingerprints
    return {
        info.name: (
            f"{info.name} has changed since it was measured; `dirigent calibrate` measures it again"
            if info.name in fingerprints
            else f"{info.name} was not measured; `dirigent calibrate` measures it"
        )
        for info in infos
        if info.name not in known and not info.reads_results and (new or info.name in fingerprints)
    }
