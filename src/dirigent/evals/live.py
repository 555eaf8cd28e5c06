"""LiveField: public benchmarks, asked of a configured pool.

Every question is offered every worker. So if a worker answers the test alone anyway, for the oracle or in a row of its
own, `best` and `cheapest` are those same answers and are not paid for twice; nor is the `ceiling` if its plan is that
worker alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.field import Field, Lineup, Trying
from dirigent.evals.footnotes import Weights
from dirigent.evals.live_ceiling import MAX_STEPS, Listed, ceiling_of, chosen, search, sought
from dirigent.evals.outcome import Outcome
from dirigent.evals.planners import CEILING, cap_reached
from dirigent.evals.questions import Questions
from dirigent.evals.record import digest
from dirigent.evals.single_workers import SINGLE
from dirigent.evals.verdict import BEST
from dirigent.limits import Limits
from dirigent.planners import Fitted, PlannerName, PlannerSpec
from dirigent.planners.spec import PlannerFor
from dirigent.sandbox import Sandbox
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool

SAME_AS_ALONE = (BEST, "cheapest")


class LiveField(Field):
    """Benchmarks over a live pool; `trained` are its models that plan, `weights` what their cards say."""

    kind = "live"
    sizes = True

    def __init__(
        self,
        questions: Questions,
        pool: Pool,
        *,
        seed: int = 1,
        limits: Limits = Limits(),
        sandbox: Sandbox | None = None,
        trained: Mapping[str, PlannerFor] | None = None,
        weights: Mapping[str, Weights] | None = None,
        pool_name: str = "",
    ) -> None:
        self.questions = questions
        self.tasks, self.fit_tasks = questions.tasks, questions.fit
        self.pool, self.seed, self.limits, self.sandbox = pool, seed, limits, sandbox
        self.trained, self.weights = trained or {}, weights or {}
        self._pool_name = pool_name
        self._best_plans: Mapping[str, Listed] = {}

    def refused(self, text: str, name: PlannerName, spec: PlannerSpec) -> str:
        if name.kind == "conductor":
            needs = 'a profile of the pool\'s file that says  planner = "conductor"'
            return f"{text!r} needs {needs}; add one or leave it out"
        return super().refused(text, name, spec)

    def same_as(self, fitted: Fitted, task: Task) -> str:
        if fitted.name in SAME_AS_ALONE:
            return fitted.note
        listed = self._best_plans.get(task.kind) if fitted.name == CEILING else None
        return listed.name.removeprefix(SINGLE) if listed is not None and listed.name.startswith(SINGLE) else ""

    def tries_plans(self, lineup: Lineup) -> bool:
        return CEILING in lineup.rows

    async def references(self, lineup: Lineup, trying: Trying) -> list[Fitted]:
        """The ceiling: the best of the plans listed, each tried on the questions to fit on. What trying will cost is
        observed first."""
        if CEILING not in lineup.rows:
            return []
        found = search(self.fit_tasks, trying.alone)
        expected = sought(found, self.pool, known=lambda name, task: trying.record.finished(name, task) is not None)
        trying.observe(expected)
        budget = trying.budget
        if budget.max_cost_usd is not None and expected.cost_usd is not None:
            left_usd = max(0.0, budget.max_cost_usd - budget.spent_usd)
            if expected.cost_usd > left_usd:
                raise ConfigError(
                    f"trying the ceiling's plans takes about ${expected.cost_usd:.3g}, and ${left_usd:.3g} of the cost "
                    "cap are left; raise --max-cost and --resume, or leave `ceiling` out"
                )
        limits = msgspec.structs.replace(self.limits, max_steps=max(self.limits.max_steps, MAX_STEPS))
        outcomes = await trying.tried(found.entries, found.tasks, limits=limits)
        if len(outcomes) < len(found.runs):
            raise cap_reached("the ceiling's plans were tried", leave_out=CEILING)
        self._best_plans = chosen(found, outcomes)
        return [ceiling_of(self._best_plans)]

    def recipe(self, planners: Sequence[str], lineup: Lineup) -> dict[str, Any]:
        return {"tasks": list(self.questions.names), "planners": list(planners), "seed": self.seed}

    def about(self) -> dict[str, Any]:
        return {
            "name": ", ".join(self.questions.names),
            "n": len(self.tasks),
            "by_task": dict(Counter(task.kind for task in self.tasks)),
            "pool": f"{len(self.pool)} workers" + (f" of {self._pool_name}" if self._pool_name else ""),
            "questions": digest(self.tasks),
            "left_out": self.questions.left_out,
        }

    def task_name(self) -> Callable[[Task | Outcome], str]:
        return lambda asked: asked.kind
