"""Replay: a recorded run carried out again against its own replies.

Each step of the round that gave the answer gets a worker of its own that says what was said then, so the
same plan is executed by the same code, with no provider, and must come to the same answer. A step that
failed fails again.
"""

from __future__ import annotations

import msgspec

from dirigent.conduct import Conductor
from dirigent.errors import ConfigError, WorkerError
from dirigent.limits import Limits
from dirigent.messages import Observe, Reply, Request, Tool, ignore
from dirigent.plan.plan import Plan, Step
from dirigent.planners.fixed import Fixed
from dirigent.run.trace import StepRecord, Trace
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted
from dirigent.workers.worker import Ability, Price


async def replay(trace: Trace, *, observe: Observe = ignore) -> Trace:
    """The run again, from its record alone. Nobody is asked and nothing is paid."""
    steps = answering_steps(trace)
    workers = [_stand_in(step) for step in steps]
    plan = Plan(
        tuple(Step(worker.info.name, step.subtask, step.access) for worker, step in zip(workers, steps, strict=True))
    )
    limits = Limits(max_steps=len(steps), max_output_tokens=1_000_000)
    conductor = Conductor(
        Fixed(plan, name="replay"), Pool(workers), limits=limits, reassign=False, profile=trace.profile
    )
    return await conductor.run(trace.question, options=Request((), tools=_called_tools(steps)), observe=observe)


def plan_of(trace: Trace) -> Plan:
    """The plan of the round that gave the answer, with the workers it named."""
    return Plan(
        tuple(Step(step.planned_worker or step.worker, step.subtask, step.access) for step in answering_steps(trace))
    )


def answering_steps(trace: Trace) -> tuple[StepRecord, ...]:
    """The steps of the round that gave the answer; of a run that gave none, the last that was carried out."""
    if not trace.steps:
        raise ConfigError(f"trace {trace.id} has no plan that was carried out: {trace.error or 'nothing to replay'}")
    return trace.steps


def same_outcome(one: Trace, other: Trace) -> bool:
    """Whether two runs came to the same: ids of tool calls are each run's own."""
    return _outcome(one) == _outcome(other)


def _outcome(trace: Trace) -> tuple[str, str, list[tuple[str, str]]]:
    return trace.status, trace.answer, [(call.name, call.arguments) for call in trace.tool_calls]


def _called_tools(steps: tuple[StepRecord, ...]) -> tuple[Tool, ...]:
    """The tools that steps still wait for; what they were for is not on record, and nobody is told."""
    calls = [call for step in steps if step.reply is not None for call in step.reply.tool_calls]
    return tuple(Tool(name, {}) for name in sorted({call.name for call in calls}))


def _stand_in(step: StepRecord) -> Scripted:
    """Says what the step's worker said, or fails as it did. The old bill is not paid again."""
    outcome: Reply | WorkerError = WorkerError(step.error or f"step {step.index} was {step.status}", worker=step.worker)
    if step.reply is not None:
        outcome = msgspec.structs.replace(step.reply, attempts=(), cost_usd=0.0)
    abilities: frozenset[Ability] = frozenset({"tools"})
    return Scripted(outcome, name=f"{step.worker[:90]}@{step.index}", price=Price(), abilities=abilities)
