"""A run that has not ended: the state it continues from, and the tool calls it waits for.

When a step's worker asks for one of the caller's tools, the run ends as *waiting*, and its observers get a
`Paused` event with the `RunState`. The caller puts the tools' results into the state and continues the run:

    state = with_results(state, {call.id: Message("tool", "rain") for call in state.trace.tool_calls})
    trace = await conductor.run(state.trace.question, resume=state, options=options)

The plan stays as it was written; steps that are done are neither asked nor paid again; time and money spent
count on. Callers see tool calls under ids of our own that name run and step, because two providers may use the same
id, and because a caller may send only the id back. Pure functions; this module does not know where states are stored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dirigent.errors import ConfigError
from dirigent.limits import Budget, Ledger
from dirigent.messages import Attempt, Event, Message, ToolCall
from dirigent.plan.plan import Plan
from dirigent.run.trace import DraftRecord, Round, StepRecord, Trace, attempts_since, total_usage

REFERENCE = re.compile(r"call_([0-9a-zA-Z]{1,32})_([0-9]{1,3})_[0-9a-f]{12}")
"""A tool call's id as callers see it: the run, the step, and a digest of the provider's own id."""


class RunState(msgspec.Struct, frozen=True):
    """A run so far. It is stored apart from traces, because it holds a secret."""

    trace: Trace
    secret: str
    """The marks around data are derived from it: a step that continues must see the marks it saw before."""


class Paused(Event, frozen=True):
    """The run waits for the caller's tools; its `RunEnded` follows."""

    state: RunState


class PendingCall(msgspec.Struct, frozen=True):
    """A tool call that a step waits for."""

    id: str
    """As the caller sees it."""
    step: int
    call: ToolCall
    """As the worker wrote it."""

    @property
    def shown(self) -> ToolCall:
        return msgspec.structs.replace(self.call, id=self.id)


def pending_calls(run_id: str, rounds: Iterable[Round]) -> tuple[PendingCall, ...]:
    """Every call that a run's steps wait for."""
    found: list[PendingCall] = []
    for number, round in enumerate(rounds):
        for step in round.steps:
            if step.asks_for_tools and step.reply is not None:
                ids = _references(run_id, number, step)
                calls = zip(ids, step.reply.tool_calls, strict=True)
                found.extend(PendingCall(id, step.index, call) for id, call in calls)
    return tuple(found)


def run_of_reference(id: str) -> str | None:
    """The run that a tool call's id refers to; None if the id is not ours."""
    match = REFERENCE.fullmatch(id)
    return match[1] if match else None


def with_results(state: RunState, results: Mapping[str, Message]) -> RunState:
    """The state with the tools' results put in, by the ids that callers see. Every pending call needs a result."""
    trace = state.trace
    missing = [call.id for call in pending_calls(trace.id, trace.rounds) if call.id not in results]
    if missing:
        raise ConfigError(f"results are missing for the tool calls {', '.join(missing)}; send them all at once")
    rounds = []
    for number, round in enumerate(trace.rounds):
        steps = tuple(_answered(trace.id, number, step, results) for step in round.steps)
        rounds.append(msgspec.structs.replace(round, steps=steps))
    return msgspec.structs.replace(
        state, trace=msgspec.structs.replace(trace, rounds=tuple(rounds), tool_calls=(), answer="")
    )


def taken_back(state: RunState, tried: Trace) -> RunState:
    """The state before an attempt to continue that failed, with the cost of that attempt added to its bill."""
    *before, last = state.trace.rounds
    spent = attempts_since(tried, state.trace)
    steps = list(last.steps)
    for place, step in enumerate(steps):
        own = tuple(a for a in spent if a in _attempts_of_step(tried, len(before), step.index))
        steps[place] = msgspec.structs.replace(step, attempts=(*step.attempts, *own))
        spent = tuple(a for a in spent if a not in own)
    if spent:  # calls of a later round, which is dropped with its plan
        steps[-1] = msgspec.structs.replace(steps[-1], attempts=(*steps[-1].attempts, *spent))
    rounds = (*before, msgspec.structs.replace(last, steps=tuple(steps)))
    return msgspec.structs.replace(
        state, trace=msgspec.structs.replace(state.trace, rounds=rounds, seconds=tried.seconds)
    )


def with_lost_calls(state: RunState, lost: Sequence[Attempt]) -> RunState:
    """The state with calls added to its bill that its process made and died before it recorded.

    Each call goes to an unfinished step of its worker, else to the first unfinished step. If there was no plan yet, all
    go to a draft without text.
    """
    trace = state.trace
    if not lost:
        return state
    round = trace.rounds[-1] if trace.rounds else Round(())
    if round.plan is None:
        draft = DraftRecord(trace.planner, "", "lists", attempts=tuple(lost), error=lost[0].error)
        round = msgspec.structs.replace(round, drafts=(*round.drafts, draft))
    else:
        steps = {step.index: step for step in round.steps}
        for attempt in lost:
            step = _step_of(attempt, round.plan, steps, number=len(trace.rounds) - 1)
            steps[step.index] = msgspec.structs.replace(step, attempts=(*step.attempts, attempt))
        round = msgspec.structs.replace(round, steps=tuple(steps[i] for i in sorted(steps)))
    rounds = (*trace.rounds[:-1], round)
    return msgspec.structs.replace(state, trace=msgspec.structs.replace(trace, rounds=rounds))


def unfinished_workers(trace: Trace) -> set[str]:
    """The workers that the plan of an unfinished run has yet to ask."""
    if not trace.rounds or trace.rounds[-1].plan is None:
        return set()
    round = trace.rounds[-1]
    assert round.plan is not None
    known = {step.index: step for step in round.steps}
    workers = set()
    for index, planned in round.plan.numbered():
        step = known.get(index)
        if step is None:
            workers.add(planned.worker)
        elif not is_final(step):
            workers.add(step.worker)
    return workers


def budget_left(trace: Trace, *, parent: Ledger | None) -> Ledger | None:
    """The run's budget, less the money and tokens already used; the parent alone if the run has no cap of its own."""
    limits = trace.limits
    if limits.max_cost_usd is None and limits.max_run_output_tokens is None:
        return parent
    budget = Budget(max_cost_usd=limits.max_cost_usd, max_output_tokens=limits.max_run_output_tokens, parent=parent)
    if trace.rounds:
        budget.spent_usd = trace.cost_usd
        budget.spent_tokens = total_usage(trace.attempts).output_tokens
    return budget


def latest_answer(rounds: Sequence[Round]) -> str:
    """The answer of the newest round that is over, or an empty text."""
    for round in reversed(rounds):
        over = round.plan is not None and 0 < len(round.steps) == len(round.plan.steps)
        if over and round.steps[-1].status == "done" and round.steps[-1].reply is not None:
            return round.steps[-1].reply.text
    return ""


def is_final(step: StepRecord) -> bool:
    """Whether the step has ended, so that it is not asked again when its run continues."""
    return step.status in ("done", "failed", "skipped")


def _references(run_id: str, number: int, step: StepRecord) -> list[str]:
    assert step.reply is not None
    ids = []
    for position, call in enumerate(step.reply.tool_calls):
        named = f"{run_id}/{number}/{step.index}/{step.tool_rounds}/{position}/{call.id}"
        digest = hashlib.blake2b(named.encode(errors="replace"), digest_size=6).hexdigest()
        ids.append(f"call_{run_id}_{step.index}_{digest}")
    return ids


def _answered(run_id: str, number: int, step: StepRecord, results: Mapping[str, Message]) -> StepRecord:
    if not step.asks_for_tools or step.reply is None:
        return step
    asked = Message("assistant", step.reply.text, tool_calls=step.reply.tool_calls)
    answers = tuple(
        msgspec.structs.replace(results[id], role="tool", tool_call_id=call.id, name=call.name, tool_calls=())
        for id, call in zip(_references(run_id, number, step), step.reply.tool_calls, strict=True)
    )
    return msgspec.structs.replace(step, reply=None, tool_traffic=(*step.tool_traffic, asked, *answers))


def _attempts_of_step(trace: Trace, number: int, index: int) -> tuple[Attempt, ...]:
    if number >= len(trace.rounds):
        return ()
    return next((step.attempts for step in trace.rounds[number].steps if step.index == index), ())


def _step_of(attempt: Attempt, plan: Plan, steps: Mapping[int, StepRecord], *, number: int) -> StepRecord:
    open_steps = [
        steps.get(index) or StepRecord(index, step.worker, step.subtask, step.access, "cancelled", round=number)
        for index, step in plan.numbered()
        if index not in steps or not is_final(steps[index])
    ]
    own = [step for step in open_steps if step.worker == attempt.worker]
    return (own or open_steps or list(steps.values()))[0]
