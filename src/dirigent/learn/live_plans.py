"""Carry out written plans over workers that are really asked, and judge their answers.

A plan runs through `Conductor.run`, so limits, faults, costs and traces are those of serving. A text that is no plan is
the policy's fault. A worker, a judge or a cost cap that fails is not: such a run is dropped and teaches nothing.
"""

from __future__ import annotations

import msgspec

from dirigent.conduct import Conductor
from dirigent.errors import GradeError
from dirigent.limits import Ledger, Limits
from dirigent.messages import Request
from dirigent.plan.plan import Dialect, Plan
from dirigent.planners.fixed import Written
from dirigent.run.trace import Trace
from dirigent.sandbox import Sandbox
from dirigent.tasks.graders import judge
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool


class Outcome(msgspec.Struct, frozen=True):
    """What became of one plan."""

    trace: Trace
    valid: bool
    correct: bool = False
    dropped: str = ""
    """The fault that was not the plan's; empty if there was none."""

    @property
    def plan(self) -> Plan | None:
        """The plan of the first round; None if the text was no plan."""
        return self.trace.rounds[0].plan if self.trace.rounds else None

    @property
    def unpaid(self) -> bool:
        """Whether a cost cap refused one of its calls."""
        return self.trace.error_kind == "CostError"


async def carry_out(
    text: str,
    task: Task,
    pool: Pool,
    *,
    limits: Limits,
    dialect: Dialect,
    seed: int | None = None,
    then: str = "",
    ledger: Ledger | None = None,
    sandbox: Sandbox | None = None,
) -> Outcome:
    """Run a plan for a task and judge its answer. `then` is the plan of a second round; without it there is none."""
    limits = msgspec.structs.replace(limits, max_rounds=2) if then else limits
    planner = Written(text, name="policy", dialect=dialect, then=then)
    conductor = Conductor(planner, pool, limits=limits, repairs=0, reassign=False)
    trace = await conductor.run(task.question, options=Request((), seed=seed, ledger=ledger))
    if trace.error_kind == "PlanError":
        return Outcome(trace, valid=False)
    if trace.status != "done":
        return Outcome(trace, valid=True, dropped=trace.error)
    try:
        verdict = await judge(task, trace.answer, sandbox=sandbox)
    except GradeError as error:
        return Outcome(trace, valid=True, dropped=str(error))
    return Outcome(trace, valid=True, correct=verdict.correct)
