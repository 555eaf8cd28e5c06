"""Replay: a recorded run carried out again against its own replies.

The steps of the round that gave the answer, and the steps of earlier rounds that they read, become one plan. Each step
gets a worker of its own that repeats the recorded reply. So the same code executes the plan, with no provider, and must
come to the same answer. A step that failed fails again.
"""

from __future__ import annotations

import msgspec

from dirigent.conduct import Conductor
from dirigent.errors import ConfigError, WorkerError
from dirigent.limits import HARD_MAX_STEPS, Limits
from dirigent.messages import Observe, Reply, Request, Tool, ignore
from dirigent.plan.plan import Plan, Step
from dirigent.planners.fixed import Fixed
from dirigent.run.trace import StepRecord, Trace
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted
from dirigent.workers.worker import Ability, Price


async def replay(trace: Trace, *, observe: Observe = ignore) -> Trace:
    """Carries the run out again from its record alone. No provider is asked and nothing is paid."""
    steps = answering_steps(trace)
    until = trace.plan.until if trace.plan is not None else None
    workers = [_stand_in(step) for step in steps]
    if until is not None:
        workers[-1] = _stand_in_selector(steps[-1], until)
    plan = Plan(
        tuple(Step(worker.info.name, step.subtask, step.access) for worker, step in zip(workers, steps, strict=True)),
        until=until,
    )
    limits = Limits(max_steps=len(steps), max_output_tokens=1_000_000)
    conductor = Conductor(
        Fixed(plan, name="replay"), Pool(workers), limits=limits, reassign=False, profile=trace.profile
    )
    return await conductor.run(trace.question, options=Request((), tools=_called_tools(steps)), observe=observe)


def plan_of(trace: Trace) -> Plan:
    """The steps that gave the answer as one plan, with the workers that the run's plans named."""
    return Plan(
        tuple(Step(step.planned_worker or step.worker, step.subtask, step.access) for step in answering_steps(trace)),
        until=trace.plan.until if trace.plan is not None else None,
    )


def answering_steps(trace: Trace) -> tuple[StepRecord, ...]:
    """The steps of the round that gave the answer and the earlier steps that they read, numbered from 0.

    A run without an answer has the steps of its last round. An earlier step that gave no result is left out, because
    its readers saw nothing of it.
    """
    if not trace.steps:
        raise ConfigError(f"trace {trace.id} has no plan that was carried out: {trace.error or 'nothing to replay'}")
    answering = trace.steps[-1]
    last = next(n for n, round in enumerate(trace.rounds) if any(step is answering for step in round.steps))
    own = {step.index: step for step in trace.rounds[last].steps}
    before = {step.index: step for round in trace.rounds[:last] for step in round.steps if step.status == "done"}
    found = {**before, **own}  # traces of old count each round's steps from 0, and read nothing of other rounds
    needed, waiting = set(own), list(own)
    while waiting:
        read = set(found[waiting.pop()].access) & found.keys() - needed
        needed |= read
        waiting += read
    if len(needed) > HARD_MAX_STEPS:
        raise ConfigError(f"the answer of trace {trace.id} took {len(needed)} steps; at most {HARD_MAX_STEPS} replay")
    position = {index: i for i, index in enumerate(sorted(needed))}
    plan = trace.rounds[last].plan
    if plan is not None and plan.until is not None:  # its last step reads every step, those of earlier rounds too
        found[answering.index] = msgspec.structs.replace(answering, access=tuple(sorted(needed - {answering.index})))
    return tuple(
        msgspec.structs.replace(
            found[index], index=i, access=tuple(position[j] for j in found[index].access if j in position)
        )
        for index, i in position.items()
    )


def same_outcome(one: Trace, other: Trace) -> bool:
    """Whether two runs ended alike. The ids of tool calls do not count: each run has its own."""
    return _outcome(one) == _outcome(other)


def _outcome(trace: Trace) -> tuple[str, str, list[tuple[str, str]]]:
    return trace.status, trace.answer, [(call.name, call.arguments) for call in trace.tool_calls]


def _called_tools(steps: tuple[StepRecord, ...]) -> tuple[Tool, ...]:
    """The tools that steps still wait for. Their descriptions are not on record, and no model reads them here."""
    calls = [call for step in steps if step.reply is not None for call in step.reply.tool_calls]
    return tuple(Tool(name, {}) for name in sorted({call.name for call in calls}))


def _stand_in(step: StepRecord) -> Scripted:
    """Repeats the recorded reply, or fails as the step's worker did. Nothing is paid again."""
    abilities: frozenset[Ability] = frozenset({"tools"})
    return Scripted(_recorded(step), name=f"{step.worker[:90]}@{step.index}", price=Price(), abilities=abilities)


def _stand_in_selector(step: StepRecord, until: float) -> Scripted:
    """Is as sure of the results so far as the recorded worker was, and repeats its reply in the end."""
    unsure = [Reply("", confidence=check.confidence) for check in step.checks if (check.confidence or 0.0) < until]
    name = f"{step.worker[:90]}@{step.index}"
    return Scripted(*unsure, _recorded(step), name=name, price=Price(), selects=True)


def _recorded(step: StepRecord) -> Reply | WorkerError:
    if step.reply is None:
        return WorkerError(step.error or f"step {step.index} was {step.status}", worker=step.worker)
    return msgspec.structs.replace(step.reply, attempts=(), cost_usd=0.0)
