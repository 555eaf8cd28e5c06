"""Conductor.run: draft -> plan -> execute -> answer -> trace. Start reading here.

A Conductor is a planner, a pool and limits. Serving, evaluation and training all call `run`; they differ in
arguments only: serving repairs and falls back and re-assigns, training does none of these. It is a Worker
itself, so a Conductor may stand in another's pool.

Expected failures end on the trace, not as exceptions. A run that is cancelled or meets a bug raises, after its
`RunEnded` event has carried the trace as far as it got. A run whose workers ask for the caller's tools ends as
`waiting`, and goes on from its `RunState` when the results are there (`resume.py`); so does a run whose process
died, from the state that `journal` was last given.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import msgspec

from dirigent.errors import ConfigError, DirigentError, PlanError, WorkerError
from dirigent.limits import Limits
from dirigent.messages import (
    Delta,
    Event,
    Finish,
    Message,
    Observe,
    Reply,
    Request,
    ToolCall,
    conversation,
    ignore,
)
from dirigent.plan.plan import Plan
from dirigent.plan.planner import Brief, LanguagePlanner, Planner, Previous
from dirigent.run.execution import Execution, execute
from dirigent.run.plan_request import drafted_plan
from dirigent.run.resume import Paused, RunState, budget_left, pending_calls, standing_answer, unfinished_workers
from dirigent.run.trace import (
    Drafted,
    DraftRecord,
    Planned,
    Round,
    RunEnded,
    RunStatus,
    StepDelta,
    StepEnded,
    StepReassigned,
    StepRecord,
    Trace,
    total_usage,
)
from dirigent.version import __version__
from dirigent.workers.metering import note_attempts
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Price, WorkerInfo

MAX_DEPTH = 2
"""How deep conductors may stand in one another's pools."""

Journal = Callable[[RunState], Awaitable[None]]
"""Writes a run's state down. What comes next is started when it returns; its `StoreError` ends the run."""

_depth: contextvars.ContextVar[int] = contextvars.ContextVar("dirigent_depth", default=0)


class Conductor:
    """A planner, a pool and limits; answers questions, and is itself a Worker."""

    keeps_book = True
    """Its workers are metered one by one; metering it as a whole would bill them twice."""

    def __init__(
        self,
        planner: Planner,
        pool: Pool,
        *,
        limits: Limits = Limits(),
        fallback: Planner | None = None,
        repairs: int = 1,
        reassign: bool = True,
        profile: str = "",
        name: str = "dirigent",
        notes: tuple[str, ...] = (),
    ) -> None:
        if not pool:
            raise ConfigError("the pool is empty: a conductor needs at least one worker")
        self.planner = planner
        self.pool = pool
        self.limits = limits
        self.fallback = fallback
        """Plans when the planner gives no valid plan; None (training) lets the run fail instead."""
        self.repairs = repairs
        """How often a planner may mend a draft that was no plan."""
        self.reassign = reassign
        self.profile = profile
        self.notes = notes
        """What every trace of it says besides."""
        self.info = WorkerInfo(
            name=name,
            about=f"plans and answers with {len(pool)} workers",
            kind="conductor",
            price=Price(),  # what it costs is what its workers cost, and they are entered one by one
        )

    async def run(
        self,
        question: str | Sequence[Message],
        *,
        options: Request | None = None,
        observe: Observe = ignore,
        stream: bool | None = None,
        run_id: str = "",
        resume: RunState | None = None,
        journal: Journal | None = None,
    ) -> Trace:
        """Answer a question. `options` carries sampling settings, tools and schema; its messages are not read.

        `stream` is whether workers write piece by piece; by default they do when anybody watches. `run_id` is
        the trace's id, for callers that must know it before the run ends. `resume` lets a run go on: its id,
        question, plan and limits are the state's. `journal` gets the state after every plan and every step.
        """
        self._require_prices()
        state = resume or self.begin(question, run_id=run_id)
        run = _Run(self, state, options or Request(()), observe, stream=stream, journal=journal)
        try:
            await run.conduct()
        except asyncio.CancelledError as cancelled:
            note_attempts(cancelled, run.finish("cancelled", "the run was cancelled").attempts)
            raise
        except DirigentError as error:
            return run.finish("failed", str(error), cause=error)
        except Exception as bug:
            note_attempts(bug, run.finish("failed", f"a bug ended the run: {type(bug).__name__}").attempts)
            raise
        return run.finish("waiting" if run.tool_calls else "done")

    def begin(self, question: str | Sequence[Message], *, run_id: str = "") -> RunState:
        """The state of a run before anything was done: what `run` goes on from."""
        asked = conversation(question)
        if not asked:
            raise ConfigError("there is no question: the conversation has no message")
        trace = Trace(
            id=run_id or os.urandom(8).hex(),
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            question=asked,
            pool=self.pool.infos,
            limits=self.limits,
            planner=self.planner.name,
            profile=self.profile,
            version=__version__,
            notes=self.notes,
        )
        return RunState(trace, os.urandom(16).hex())

    async def draft(
        self, question: str | Sequence[Message], *, options: Request | None = None, observe: Observe = ignore
    ) -> Round:
        """Plan without carrying out: no worker but the planner's is called."""
        self._require_prices()
        run = _Run(self, self.begin(question), options or Request(()), observe)
        await run.plan_round(0)
        return run.rounds[0]

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        """Answer as a Worker. It is streamed as it is written where no later round can take it back, else whole."""
        if _depth.get() >= MAX_DEPTH:
            said = f"conductors are nested deeper than {MAX_DEPTH}"
            raise WorkerError(said, said=said, worker=self.info.name, fault="request")
        token = _depth.set(_depth.get() + 1)
        words = _AnswerWords(observe)
        live = observe is not ignore and self.limits.max_rounds == 1
        try:
            trace = await self.run(request.messages, options=request, observe=words if live else ignore)
        finally:
            _depth.reset(token)
        if words.taken_back:
            said = "its answer broke off, and another's cannot continue it; ask again"
            raise WorkerError(said, said=said, worker=self.info.name, fault="reply", attempts=trace.attempts)
        if trace.status not in ("done", "waiting"):
            said = trace.error_for_caller
            raise WorkerError(trace.error, said=said, worker=self.info.name, attempts=trace.attempts)
        if trace.answer and not live:
            observe(Delta(trace.answer))
        return Reply(
            text=trace.answer,
            tool_calls=trace.tool_calls,
            finish=_finish(trace),
            usage=total_usage(trace.attempts),
            cost_usd=trace.cost_usd,
            attempts=trace.attempts,
            seconds=trace.seconds,
            model=self.info.name,
        )

    def _require_prices(self) -> None:
        if self.limits.max_cost_usd is None and self.limits.max_step_cost_usd is None:
            return
        asked = [self.planner.worker.info] if isinstance(self.planner, LanguagePlanner) else []
        for info in (*self.pool.infos, *asked):
            if info.price is None:
                raise ConfigError(
                    f'a cost cap needs a price for worker "{info.name}"; '
                    "add  price = { input = 0, output = 0 }  if it is free"
                )


def _finish(trace: Trace) -> Finish:
    """Why the answering step ended; a tool that the answer did not wait for is no reason."""
    if trace.tool_calls:
        return "tool_calls"
    reply = trace.steps[-1].reply if trace.steps else None
    return "stop" if reply is None or reply.finish == "tool_calls" else reply.finish


class _AnswerWords:
    """An observer of a run of one round that passes on the text of its last step."""

    def __init__(self, observe: Observe) -> None:
        self.taken_back = False
        """Whether another worker began the step anew after words of it had been passed on."""
        self._observe = observe
        self._last_index = -1
        self._begun = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, Planned):
            self._last_index = len(event.plan.steps) - 1
        elif isinstance(event, StepReassigned) and event.index == self._last_index:
            self.taken_back = self._begun
        elif isinstance(event, StepDelta) and event.index == self._last_index and not self.taken_back:
            self._begun = True
            self._observe(Delta(event.text))


class _Run:
    """One run as it goes: what has been written and done so far, so that a trace can be made at any moment."""

    def __init__(
        self,
        conductor: Conductor,
        state: RunState,
        options: Request,
        observe: Observe,
        *,
        stream: bool | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.conductor = conductor
        self.begun = state.trace
        self.secret = state.secret
        self.question = state.trace.question
        self.limits = state.trace.limits
        self.options = options
        self.observe = observe
        self.stream = observe is not ignore if stream is None else stream
        self.journal = journal
        self.started = time.monotonic() - state.trace.seconds
        self.deadline = min(self.started + self.limits.deadline_s, options.deadline or float("inf"))
        self.budget = budget_left(state.trace, parent=options.ledger)
        self.rounds: list[Round] = list(state.trace.rounds)
        self.answer = standing_answer(self.rounds)
        self.tool_calls: tuple[ToolCall, ...] = ()

    async def conduct(self) -> None:
        """Plan and carry out, round by round, until the planner accepts or its rounds are used up."""
        self._require_workers()
        for number in range(max(len(self.rounds) - 1, 0), self.limits.max_rounds):
            try:
                plan = self._planned(number) or await self.plan_round(number)
                if not plan.steps:
                    return
                execution = await self._execute_round(number, plan)
            except DirigentError:
                if number == 0:
                    raise
                return  # a later round that came to nothing leaves the answer before it standing
            self.answer = execution.reply.text if execution.reply is not None else ""
            if execution.waiting:  # the caller's tools come next
                self.tool_calls = tuple(call.shown for call in pending_calls(self.begun.id, self.rounds))
                return

    def _require_workers(self) -> None:
        if gone := sorted(unfinished_workers(self.begun) - set(self.conductor.pool.names)):
            raise ConfigError(f"the run cannot go on: its plan needs {', '.join(gone)}, which the pool no longer has")

    def _planned(self, number: int) -> Plan | None:
        """The plan that this round was given before the run paused. Observers are told again: they may be new."""
        round = self.rounds[number] if number < len(self.rounds) else None
        if round is None or round.plan is None:
            return None
        self.observe(Planned(number, round.plan, round.fallback))
        return round.plan

    async def plan_round(self, number: int) -> Plan:
        """A valid plan for this round: the planner's, mended if need be, else the fallback's."""
        if number == len(self.rounds):
            self.rounds.append(Round(()))
        brief = self._brief(number)
        try:
            plan = await self._planned_by(self.conductor.planner, brief, tries=1 + self.conductor.repairs)
            fell_back = False
        except (PlanError, WorkerError):
            if self.conductor.fallback is None or number > 0:
                raise
            plan = await self._planned_by(self.conductor.fallback, brief, tries=1)
            fell_back = True
        self._amend(plan=plan, fallback=fell_back)
        self.observe(Planned(number, plan, fell_back))
        await self._write_down()
        return plan

    def _brief(self, number: int) -> Brief:
        previous = None
        if number > 0:
            before = self.rounds[number - 1]
            previous = Previous(before.drafts[-1].text, self.answer, before.plan or Plan())
        return Brief(
            question=self.question,
            pool=self.conductor.pool,
            limits=self.limits,
            secret=self._secret(number),
            previous=previous,
            deadline=self.deadline,
            ledger=self.budget,
            tenant=self.options.tenant,
        )

    async def _planned_by(self, planner: Planner, brief: Brief, *, tries: int) -> Plan:
        return await drafted_plan(planner, brief, tries=tries, started=self.started, keep=self._keep_draft)

    def _keep_draft(self, record: DraftRecord) -> None:
        self._amend(drafts=(*self.rounds[-1].drafts, record))
        self.observe(Drafted(len(self.rounds) - 1, record))

    async def _execute_round(self, number: int, plan: Plan) -> Execution:
        prior = self.rounds[number].steps
        ended = {step.index: step for step in prior}

        def watch(event: Event) -> None:
            if isinstance(event, StepEnded):
                ended[event.step.index] = event.step
            self.observe(event)

        async def write_down(step: StepRecord) -> None:
            self._amend(steps=tuple(ended[i] for i in sorted(ended)))
            await self._write_down()

        try:
            execution: Execution = await execute(
                plan,
                self.conductor.pool,
                self.question,
                limits=self.limits,
                options=self.options,
                secret=self._secret(number),
                reassign=self.conductor.reassign,
                ledger=self.budget,
                started=self.started,
                round_number=number,
                observe=watch,
                stream=self.stream,
                prior=prior,
                journal=write_down if self.journal is not None else None,
            )
        except BaseException:  # cancelled, or an error that no step may have: what was done is on record
            self._amend(steps=tuple(ended[i] for i in sorted(ended)))
            raise
        self._amend(steps=execution.steps)
        if execution.error is not None:
            raise execution.error
        if execution.reply is None and not execution.waiting:
            raise WorkerError(f"the last step gave no result: {execution.steps[-1].error}")
        return execution

    async def _write_down(self) -> None:
        if self.journal is not None:
            await self.journal(self.state("waiting"))

    def finish(self, status: RunStatus, error: str = "", *, cause: DirigentError | None = None) -> Trace:
        state = self.state(status, error, cause=cause)
        if status == "waiting":
            self.observe(Paused(state))
        self.observe(RunEnded(state.trace))
        return state.trace

    def state(self, status: RunStatus, error: str = "", *, cause: DirigentError | None = None) -> RunState:
        """The run as it stands."""
        trace = msgspec.structs.replace(
            self.begun,
            rounds=tuple(self.rounds),
            status=status,
            answer=self.answer,
            tool_calls=self.tool_calls,
            error=error,
            error_kind="" if cause is None else type(cause).__name__,
            error_said=cause.for_caller if isinstance(cause, WorkerError) else "",
            error_fault=cause.fault if isinstance(cause, WorkerError) else "",
            seconds=self._now_s(),
        )
        return RunState(trace, self.secret)

    def _amend(self, **changes: object) -> None:
        self.rounds[-1] = msgspec.structs.replace(self.rounds[-1], **changes)

    def _secret(self, number: int) -> str:
        return f"{self.secret}:{number}"

    def _now_s(self) -> float:
        return time.monotonic() - self.started
