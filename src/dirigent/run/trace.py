"""Trace: the one record of a run, which serving, evaluation, training and the console all read.

It holds everything needed to understand, bill and replay the run: the pool as it was, every draft, every plan,
and for each step its messages, reply, attempts, tokens, cost, seconds and error. Steps are numbered through the whole
run, and a step of a later round may have read steps of the rounds before it. A trace holds no secret.
Times are seconds since the run began.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import msgspec

from dirigent.errors import WorkerError
from dirigent.limits import Limits
from dirigent.messages import Attempt, Event, Finish, Message, Reply, Result, ToolCall, Usage
from dirigent.plan.plan import Dialect, EarlierStep, Plan, Reason
from dirigent.workers.worker import WorkerInfo

StepStatus = Literal["done", "failed", "skipped", "cancelled", "waiting"]
"""`skipped`: a step that it reads failed, or a plan with `until` was sure enough before it. `cancelled`: the run ended
while the step waited or worked. `waiting`: the step asked for a tool (its reply holds the calls), or it reads a step
that did, and was not started."""

RunStatus = Literal["done", "failed", "cancelled", "waiting"]
"""`waiting`: the run needs results of the caller's tools and continues with them (`resume.py`)."""


class Check(msgspec.Struct, frozen=True):
    """How sure the last worker of a plan with `until` was of an answer after a step, and stopped or went on."""

    after: int
    """The step."""
    confidence: float | None
    """None: it could not say."""


class StepRecord(msgspec.Struct, frozen=True):
    """One step and its outcome."""

    index: int
    """The step's number in the run: the steps of a later round count on."""
    worker: str
    """The worker that was asked last."""
    subtask: str
    access: tuple[int, ...] = ()
    status: StepStatus = "done"
    messages: tuple[Message, ...] = ()
    reply: Reply | None = None
    attempts: tuple[Attempt, ...] = ()
    started_s: float = 0.0
    ended_s: float = 0.0
    error: str = ""
    planned_worker: str = ""
    """The worker that the plan named, if the step was re-assigned."""
    tool_traffic: tuple[Message, ...] = ()
    """Its own tool calls and their results, in order. The worker saw them after `messages`."""
    round: int = 0
    checks: tuple[Check, ...] = ()
    """Of the last step of a plan with `until`: each time that its worker was asked how sure it is, in order."""

    @property
    def tool_rounds(self) -> int:
        """How often it asked for tools and got their results."""
        return sum(message.role == "assistant" for message in self.tool_traffic)

    @property
    def asks_for_tools(self) -> bool:
        """Whether it waits for the results of its own tool calls."""
        return self.status == "waiting" and self.reply is not None

    @property
    def usage(self) -> Usage:
        return total_usage(self.attempts)

    @property
    def cost_usd(self) -> float:
        return sum([attempt.cost_usd for attempt in self.attempts])

    @property
    def seconds(self) -> float:
        return self.ended_s - self.started_s

    @property
    def as_earlier(self) -> EarlierStep:
        """The step as later rounds read it."""
        if self.status != "done" or self.reply is None:
            return EarlierStep(self.worker, self.subtask, self.access)
        ended = self.reply.finish != "length"
        return EarlierStep(self.worker, self.subtask, self.access, self.reply.text, ended, self.reply.ran)

    def result(self, reply: Reply) -> Result:
        """This reply of the step, as the steps that read it get it as data."""
        return Result(self.index, self.worker, self.subtask, reply.text, reply.finish != "length", reply.ran)


class DraftRecord(msgspec.Struct, frozen=True):
    """One draft of a planner, and why it was refused if it was. `text` is empty if the draft carried a plan."""

    planner: str
    text: str
    dialect: Dialect
    messages: tuple[Message, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    started_s: float = 0.0
    ended_s: float = 0.0
    error: str = ""
    reason: Reason | None = None
    """Why the planner wrote it, if it said so."""


class Round(msgspec.Struct, frozen=True):
    """One plan and its execution. An empty plan accepts the answer of the round before it."""

    drafts: tuple[DraftRecord, ...]
    plan: Plan | None = None
    steps: tuple[StepRecord, ...] = ()
    fallback: bool = False
    """The planner gave no valid plan, so the profile's fixed planner planned."""

    @property
    def accepted(self) -> bool:
        return self.plan is not None and not self.plan.steps


class RunUsage(msgspec.Struct, frozen=True):
    """Tokens and calls of the whole run. The orchestration part is all but those of the step that wrote the answer."""

    input_tokens: int = 0
    output_tokens: int = 0
    orchestration_input_tokens: int = 0
    orchestration_output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    calls: int = 0
    cache_write_input_tokens: int = 0


class Trace(msgspec.Struct, frozen=True):
    """One whole run."""

    id: str
    created_at: str
    """UTC, ISO 8601."""
    question: tuple[Message, ...]
    pool: tuple[WorkerInfo, ...]
    limits: Limits
    planner: str
    profile: str = ""
    """The profile it ran under; in a server also a dated one, `worker/NAME` or `planner/NAME`."""
    rounds: tuple[Round, ...] = ()
    status: RunStatus = "done"
    answer: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls that a waiting run needs results for, of all its waiting steps, under our own ids (`resume.py`)."""
    error: str = ""
    error_kind: str = ""
    """Class of the error: PlanError, WorkerError, DeadlineError, CostError."""
    error_said: str = ""
    """The text of a `WorkerError` that the caller may read; `error` may quote a provider."""
    error_fault: str = ""
    """How the worker failed, if one did: `errors.Fault`."""
    seconds: float = 0.0
    version: str = ""
    conversation: str = ""
    """The conversation that the run belongs to, in its caller's words."""
    notes: tuple[str, ...] = ()
    """Other facts about the run, such as an operator's rule that overrode the conductor."""

    @property
    def error_for_caller(self) -> str:
        """The error text that the caller may read: our own words if the original may quote a provider."""
        if self.error_kind != WorkerError.__name__:
            return self.error
        return self.error_said or WorkerError("").for_caller

    @property
    def plan(self) -> Plan | None:
        """The plan whose last step gave the answer."""
        return self._answering([r for r in self.rounds if r.plan is not None and r.plan.steps]).plan

    @property
    def reason(self) -> Reason | None:
        """Why the plan that gave the answer was written, if its planner said so."""
        answering = self._answering([r for r in self.rounds if r.plan is not None and r.plan.steps])
        return answering.drafts[-1].reason if answering.drafts else None

    @property
    def answered_by(self) -> str:
        """The worker that wrote the answer."""
        written = self.writing_step
        return "" if written is None else written.worker

    @property
    def writing_step(self) -> StepRecord | None:
        """The step that wrote the answer: of a choice among results, the one whose result was chosen."""
        steps = self.steps
        if not steps:
            return None
        last = steps[-1]
        if last.reply is None or (chosen := last.reply.chosen) is None:
            return last
        return next((step for step in steps if step.index == chosen.step), last)

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """Every step up to the round that gave the answer; without an answer, up to the last round that has steps.

        The last of them is the answering step.
        """
        if len(self.rounds) == 1:  # nearly always
            return self.rounds[0].steps
        answering = self._answering([r for r in self.rounds if r.steps])
        before = itertools.takewhile(lambda r: r is not answering, self.rounds)
        return (*itertools.chain.from_iterable(r.steps for r in before), *answering.steps)

    def _answering(self, rounds: Sequence[Round]) -> Round:
        """The last of these rounds; in a run that is done, the last one that gave an answer."""
        if len(rounds) == 1:
            return rounds[0]
        answered = [r for r in rounds if r.steps and r.steps[-1].status == "done"] if self.status == "done" else ()
        return (answered or rounds or (Round(()),))[-1]

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Every call of the run, by planners and workers, in the order they were recorded."""
        found: list[Attempt] = []
        for r in self.rounds:
            for draft in r.drafts:
                found.extend(draft.attempts)
            for step in r.steps:
                found.extend(step.attempts)
        return tuple(found)

    @property
    def finish(self) -> Finish:
        """Why the answering step ended. A tool call that the answer did not wait for does not count."""
        if self.tool_calls:
            return "tool_calls"
        steps = self.steps
        reply = steps[-1].reply if steps else None
        return "stop" if reply is None or reply.finish == "tool_calls" else reply.finish

    @property
    def cost_usd(self) -> float:
        return sum([attempt.cost_usd for attempt in self.attempts])

    @property
    def notional_usd(self) -> float:
        """The part of the cost that no provider bills: local models have prices so that plans can be compared."""
        local = {info.name for info in self.pool if info.kind == "local"}
        return sum(attempt.cost_usd for attempt in self.attempts if attempt.worker in local)

    @property
    def usage(self) -> RunUsage:
        attempts, written = self.attempts, self.writing_step
        total = total_usage(attempts)
        answering = Usage() if written is None else written.usage
        return RunUsage(
            input_tokens=total.input_tokens,
            output_tokens=total.output_tokens,
            orchestration_input_tokens=total.input_tokens - answering.input_tokens,
            orchestration_output_tokens=total.output_tokens - answering.output_tokens,
            cached_input_tokens=total.cached_input_tokens,
            reasoning_tokens=total.reasoning_tokens,
            calls=len(attempts),
            cache_write_input_tokens=total.cache_write_input_tokens,
        )


def total_usage(attempts: Sequence[Attempt]) -> Usage:
    if len(attempts) == 1:  # the usual case
        return attempts[0].usage
    return sum((attempt.usage for attempt in attempts), Usage())


def saved_usd_estimate(trace: Trace) -> float | None:
    """The cost of the best single worker alone, less the cost of the run; None if either is unknown.

    If that worker was asked, its call is the cost. Otherwise its price is that of the run's first call with as many
    tokens out as the calls of the run had on average.
    """
    reason = trace.reason
    price = next((info.price for info in trace.pool if reason is not None and info.name == reason.baseline), None)
    asked = [step for step in trace.steps if step.status == "done" and step.usage.input_tokens]
    if reason is None or price is None or not asked:
        return None
    own = [step.cost_usd for step in asked if step.worker == reason.baseline]
    if own:
        return own[0] - trace.cost_usd
    output_tokens = sum(step.usage.output_tokens for step in asked) / len(asked)
    alone = price.of(Usage(asked[0].usage.input_tokens, round(output_tokens)))
    return alone - trace.cost_usd


def attempts_since(trace: Trace, before: Trace | None) -> tuple[Attempt, ...]:
    """The calls of a run that an earlier state of it did not have."""
    if before is None:
        return trace.attempts
    left = list(before.attempts)
    since: list[Attempt] = []
    for attempt in trace.attempts:
        if attempt in left:
            left.remove(attempt)
        else:
            since.append(attempt)
    return tuple(since)


def usage_since(trace: Trace, before: Trace | None) -> RunUsage:
    """The usage of a run since an earlier state of it."""
    now = trace.usage
    if before is None:
        return now
    then = before.usage
    used = RunUsage(*(getattr(now, name) - getattr(then, name) for name in RunUsage.__struct_fields__))
    return msgspec.structs.replace(  # the answering step may be another one now
        used,
        orchestration_input_tokens=max(0, min(used.orchestration_input_tokens, used.input_tokens)),
        orchestration_output_tokens=max(0, min(used.orchestration_output_tokens, used.output_tokens)),
    )


def critical_path_s(steps: Sequence[StepRecord], plan: Plan | None = None) -> float:
    """Seconds of the longest chain of steps that must follow one another: the least time that these steps can take."""
    if plan is not None and plan.until is not None:  # one at a time
        return sum(step.seconds for step in steps)
    ends: dict[int, float] = {}
    for step in steps:  # a cancelled run may lack steps that others read
        ends[step.index] = step.seconds + max((ends.get(j, 0.0) for j in step.access), default=0.0)
    return max(ends.values(), default=0.0)


class Drafted(Event, frozen=True):
    """A planner has written a draft. It is valid if its error is empty."""

    round: int
    draft: DraftRecord


class Planned(Event, frozen=True):
    """A round has its plan; its steps start now."""

    round: int
    plan: Plan
    fallback: bool = False


class StepStarted(Event, frozen=True):
    round: int
    index: int
    worker: str


class StepChecked(Event, frozen=True):
    """The last worker of a plan with `until` said how sure it is of the answer so far."""

    round: int
    index: int
    """The last step."""
    check: Check


class StepDelta(Event, frozen=True):
    """A piece of a step's reply."""

    round: int
    index: int
    text: str


class StepReassigned(Event, frozen=True):
    round: int
    index: int
    worker: str
    to: str
    error: str


class StepEnded(Event, frozen=True):
    round: int
    step: StepRecord


class RunEnded(Event, frozen=True):
    """The last event of every run, also of a run that was cancelled or met a bug."""

    trace: Trace
