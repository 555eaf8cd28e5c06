"""Fork: a finished run carried on from one of its steps, with that step changed.

The step may get another worker, another subtask or another access list. Every step that does not read it, directly or
through others, keeps its recorded reply and is not paid again; the step itself and all that read it are asked anew.

    fork = fork_of(trace, StepChange(1, worker="beta"))
    trace = await fork_run(conductor, trace, fork)
"""

from __future__ import annotations

import msgspec

from dirigent.conduct import Conductor
from dirigent.errors import ConfigError
from dirigent.plan.plan import Plan, Step, check_plan
from dirigent.planners.fixed import Fixed
from dirigent.replay import answering_steps
from dirigent.run.resume import RunState
from dirigent.run.trace import Round, StepRecord, Trace


class StepChange(msgspec.Struct, frozen=True):
    """The changes of a fork. None leaves a part as it was; without any change, the step is asked once more."""

    step: int
    """The step's number in the fork's plan: of the steps that gave the answer, counted from 0 (`replay.plan_of`)."""
    worker: str | None = None
    subtask: str | None = None
    access: tuple[int, ...] | None = None


class Fork(msgspec.Struct, frozen=True):
    """A changed plan, and the records that it starts with."""

    plan: Plan
    kept: tuple[StepRecord, ...]
    note: str


def fork_of(trace: Trace, change: StepChange) -> Fork:
    """The plan of a run's answer with one step changed, and the steps whose results stay."""
    steps = answering_steps(trace)
    if not 0 <= change.step < len(steps):
        numbers = f"0 to {len(steps) - 1}" if len(steps) > 1 else "0"
        raise ConfigError(f"trace {trace.id} has no step {change.step}; its steps are {numbers}")
    planned = [Step(step.worker, step.subtask, step.access) for step in steps]
    old = planned[change.step]
    planned[change.step] = Step(
        old.worker if change.worker is None else change.worker,
        old.subtask if change.subtask is None else change.subtask,
        old.access if change.access is None else change.access,
    )
    anew: set[int] = set()
    for index, step in enumerate(planned):
        if index == change.step or anew & set(step.access) or steps[index].status != "done":
            anew.add(index)
    kept = tuple(_kept(step) for step in steps if step.index not in anew)
    until = trace.plan.until if trace.plan is not None else None
    return Fork(Plan(tuple(planned), until=until), kept, f"forked from run {trace.id} at step {change.step}")


def fork_conductor(conductor: Conductor, fork: Fork) -> Conductor:
    """The conductor that carries a fork out: it has the plan already, and plans no further round."""
    limits = conductor.limits
    limits = msgspec.structs.replace(limits, max_rounds=1, max_steps=max(limits.max_steps, len(fork.plan.steps)))
    gone = {step.worker for step in fork.kept} - set(conductor.pool.names)  # their results are here all the same
    plan = check_plan(fork.plan, (*conductor.pool.names, *sorted(gone)) if gone else conductor.pool, limits)
    kept = {step.index for step in fork.kept}
    for index, step in plan.numbered():
        if index not in kept:
            conductor.pool.require(step.worker)
    return Conductor(
        Fixed(plan, name="fork"),
        conductor.pool,
        limits=limits,
        repairs=0,
        reassign=conductor.reassign,
        profile=conductor.profile,
        notes=(*conductor.notes, fork.note),
    )


def fork_state(conductor: Conductor, trace: Trace, fork: Fork, *, run_id: str = "") -> RunState:
    """The state that a fork continues from. `conductor` is that of `fork_conductor`."""
    state = conductor.begin(trace.question, run_id=run_id)
    round = Round((), plan=fork.plan, steps=fork.kept)
    return msgspec.structs.replace(state, trace=msgspec.structs.replace(state.trace, rounds=(round,)))


def _kept(step: StepRecord) -> StepRecord:
    """The record as the fork has it: its reply, without its calls, which the earlier run has paid."""
    reply = None if step.reply is None else msgspec.structs.replace(step.reply, attempts=(), cost_usd=0.0)
    return msgspec.structs.replace(
        step, attempts=(), reply=reply, started_s=0.0, ended_s=0.0, round=0, planned_worker="", tool_traffic=()
    )
