"""Conductor.run: draft -> plan -> execute -> answer -> trace. Start reading here.

A Conductor is a planner, a pool and limits. Serving, evaluation and training all call `run` and differ in arguments
only: serving repairs drafts, falls back and re-assigns steps, training does none of these. A Conductor is itself a
Worker, so it may be in another Conductor's pool.

An expected failure ends on the trace, not as an exception. A run that is cancelled or meets a bug raises, after its
`RunEnded` event has carried the unfinished trace. A run whose workers ask for the caller's tools ends as `waiting` and
continues from its `RunState` when the results are there (`run/resume.py`). A run whose process died continues in the
same way, from the last state that `journal` stored.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import msgspec

from dirigent.errors import ConfigError, DeadlineError, DirigentError, PlanError, WorkerError
from dirigent.limits import Limits
from dirigent.messages import (
    Delta,
    Event,
    Message,
    Observe,
    Reply,
    Request,
    ToolCall,
    conversation,
    ignore,
)
from dirigent.plan.plan import EarlierStep, Plan
from dirigent.plan.planner import Brief, Draft, LanguagePlanner, Planner, Previous, Shape, read_draft
from dirigent.run.execution import Execution, execute
from dirigent.run.resume import Paused, RunState, budget_left, latest_answer, pending_calls, unfinished_workers
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
from dirigent.workers.metering import attempts_of, note_attempts
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Ability, Price, WorkerInfo, needed

MAX_DEPTH = 2
"""How deeply conductors may be nested in one another's pools."""

Journal = Callable[[RunState], Awaitable[None]]
"""Stores a run's state. The run goes on when it returns; if it raises `StoreError`, the run ends."""

_depth: contextvars.ContextVar[int] = contextvars.ContextVar("dirigent_depth", default=0)


class Conductor:
    """Answers questions with a planner, a pool and limits. It is itself a Worker."""

    keeps_book = True
    """Its workers are metered one by one; metering the conductor too would bill them twice."""

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
        """How often a planner may correct a draft that was no valid plan."""
        self.reassign = reassign
        self.profile = profile
        self.notes = notes
        """Notes added to every trace."""
        self.info = WorkerInfo(
            name=name,
            about=f"plans and answers with {len(pool)} workers",
            kind="conductor",
            price=Price(),  # its workers are billed one by one
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
        """Answers a question. `options` carries sampling settings, tools and schema; its messages are not read.

        With `stream`, workers write piece by piece; the default is to stream if there is an observer. `run_id` is
        the trace's id, for callers that must know it before the run ends. `resume` continues a run with the id,
        question, plan and limits of that state. `journal` gets the state after every plan and every step.
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
        """The state of a run that has done nothing yet; `run` can continue from it."""
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
        """Plans without executing: only the planner's worker is called."""
        self._require_prices()
        run = _Run(self, self.begin(question), options or Request(()), observe)
        await run.plan_round(0)
        return run.rounds[0]

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        """Answers as a Worker. The answer is streamed if no later round can replace it, and sent whole otherwise."""
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
            said = "its answer broke off, and another worker cannot continue it; ask again"
            raise WorkerError(said, said=said, worker=self.info.name, fault="reply", attempts=trace.attempts)
        if trace.status not in ("done", "waiting"):
            said = trace.error_for_caller
            raise WorkerError(trace.error, said=said, worker=self.info.name, attempts=trace.attempts)
        if trace.answer and not live:
            observe(Delta(trace.answer))
        return Reply(
            text=trace.answer,
            tool_calls=trace.tool_calls,
            finish=trace.finish,
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


class _AnswerWords:
    """Observes a run of one round and passes on the text of its last step."""

    def __init__(self, observe: Observe) -> None:
        self.taken_back = False
        """Another worker started the step again after some of its text had been passed on."""
        self._observe = observe
        self._last_index = -1
        self._begun = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, Planned):
            self._last_index = event.plan.last
        elif isinstance(event, StepReassigned) and event.index == self._last_index:
            self.taken_back = self._begun
        elif isinstance(event, StepDelta) and event.index == self._last_index and not self.taken_back:
            self._begun = True
            self._observe(Delta(event.text))


class _Run:
    """One run in progress. It holds all that has happened so far, so that a trace can be made at any moment."""

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
        self.answer = latest_answer(self.rounds)
        self.tool_calls: tuple[ToolCall, ...] = ()

    async def conduct(self) -> None:
        """Plans and executes, round by round, until the planner accepts or its rounds are used up."""
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
                return  # a later round failed: the answer of the round before it stays the answer
            self.answer = execution.reply.text if execution.reply is not None else ""
            if execution.waiting:  # the caller's tools come next
                self.tool_calls = tuple(call.shown for call in pending_calls(self.begun.id, self.rounds))
                return

    def _require_workers(self) -> None:
        if gone := sorted(unfinished_workers(self.begun) - set(self.conductor.pool.names)):
            raise ConfigError(
                f"the run cannot continue: the pool no longer has {', '.join(gone)}, which its plan needs"
            )

    def _planned(self, number: int) -> Plan | None:
        """The plan that this round got before the run paused. Observers hear of it again: they may be new."""
        round = self.rounds[number] if number < len(self.rounds) else None
        if round is None or round.plan is None:
            return None
        self.observe(Planned(number, round.plan, round.fallback))
        return round.plan

    async def plan_round(self, number: int) -> Plan:
        """Returns a valid plan for this round: the planner's, after repairs if needed, else the fallback's."""
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
        self._update_round(plan=plan, fallback=fell_back)
        self.observe(Planned(number, plan, fell_back))
        await self._store_state()
        return plan

    def _brief(self, number: int) -> Brief:
        previous = None
        if number > 0:
            before = self.rounds[number - 1]
            previous = Previous(before.drafts[-1].text, self.answer, before.plan or Plan(), self._earlier(number))
        return Brief(
            question=self.question,
            pool=self.conductor.pool,
            limits=self.limits,
            secret=self._secret(number),
            previous=previous,
            deadline=self.deadline,
            ledger=self.budget,
            tenant=self.options.tenant,
            needs=self._needs(),
            warm=self.options.warm,
        )

    def _needs(self) -> frozenset[Ability]:
        tools = self.options.tools if self.options.may_call else ()
        return frozenset(needed(msgspec.structs.replace(self.options, messages=self.question, tools=tools)))

    def _earlier(self, number: int) -> tuple[EarlierStep, ...]:
        """Every step of the rounds before this one."""
        return tuple(step.as_earlier for round in self.rounds[:number] for step in round.steps)

    async def _planned_by(self, planner: Planner, brief: Brief, *, tries: int) -> Plan:
        """The planner's plan. A draft that holds none goes back to it with the reason; after the last try it raises."""
        for left in reversed(range(tries)):
            began_s = self._now_s()
            draft = await self._drafted(planner, brief, began_s)
            try:
                plan = read_draft(draft, brief)
            except PlanError as error:
                self._keep_draft(planner, draft, began_s, str(error))
                if not left:
                    raise
                brief = msgspec.structs.replace(brief, refused=draft.text, fault=str(error))
            else:
                self._keep_draft(planner, draft, began_s)
                return plan
        raise AssertionError("unreachable: the last try returns or raises")

    async def _drafted(self, planner: Planner, brief: Brief, began_s: float) -> Draft:
        """The planner's draft, within the deadline. Without a draft, the record says why there is none."""
        scope = asyncio.timeout(max(0.0, self.deadline - time.monotonic()))
        try:
            if isinstance(planner, Shape):  # nothing to wait for
                return planner.at_once(brief)
            async with scope:
                return await planner.draft(brief)
        except asyncio.CancelledError as cancelled:
            self._keep_draft(planner, Draft(attempts=attempts_of(cancelled)), began_s, "the run was cancelled")
            raise
        except DirigentError as error:
            self._keep_draft(planner, Draft(attempts=error.attempts), began_s, str(error))
            raise
        except Exception as error:
            if not (isinstance(error, TimeoutError) and scope.expired()):  # a bug of the planner's
                said = f"{type(error).__name__}: {error}"
                self._keep_draft(planner, Draft(attempts=attempts_of(error)), began_s, said)
                raise
            paid = attempts_of(error) or attempts_of(error.__cause__)
            self._keep_draft(planner, Draft(attempts=paid), began_s, "ran out of time")
            limit_s = self.limits.deadline_s
            ours = self.deadline == self.started + limit_s
            whose = f"the deadline of {limit_s:g} s" if ours else "the caller's deadline"
            raise DeadlineError(f"{whose} passed while {planner.name} planned") from error

    def _keep_draft(self, planner: Planner, draft: Draft, began_s: float, error: str = "") -> None:
        record = DraftRecord(
            planner=planner.name,
            text=draft.text,
            dialect=draft.dialect,
            messages=draft.messages,
            attempts=draft.attempts,
            started_s=began_s,
            ended_s=self._now_s(),
            error=error,
            reason=draft.reason,
        )
        self._update_round(drafts=(*self.rounds[-1].drafts, record))
        self.observe(Drafted(len(self.rounds) - 1, record))

    async def _execute_round(self, number: int, plan: Plan) -> Execution:
        prior = self.rounds[number].steps
        ended = {step.index: step for step in prior}

        def watch(event: Event) -> None:
            if isinstance(event, StepEnded):
                ended[event.step.index] = event.step
            self.observe(event)

        async def store_step(step: StepRecord) -> None:
            self._update_round(steps=tuple(ended[i] for i in sorted(ended)))
            await self._store_state()

        try:
            execution: Execution = await execute(
                plan,
                self.conductor.pool,
                self.question,
                earlier=self._earlier(number),
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
                journal=store_step if self.journal is not None else None,
            )
        except BaseException:  # cancelled, or a bug: the trace keeps every step that ended
            self._update_round(steps=tuple(ended[i] for i in sorted(ended)))
            raise
        self._update_round(steps=execution.steps)
        if execution.error is not None:
            raise execution.error
        if execution.reply is None and not execution.waiting:
            raise WorkerError(f"the last step gave no result: {execution.steps[-1].error}")
        return execution

    async def _store_state(self) -> None:
        if self.journal is not None:
            await self.journal(self.state("waiting"))

    def finish(self, status: RunStatus, error: str = "", *, cause: DirigentError | None = None) -> Trace:
        state = self.state(status, error, cause=cause)
        if status == "waiting":
            self.observe(Paused(state))
        self.observe(RunEnded(state.trace))
        return state.trace

    def state(self, status: RunStatus, error: str = "", *, cause: DirigentError | None = None) -> RunState:
        """The run so far."""
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

    def _update_round(self, **changes: object) -> None:
        self.rounds[-1] = msgspec.structs.replace(self.rounds[-1], **changes)

    def _secret(self, number: int) -> str:
        return f"{self.secret}:{number}"

    def _now_s(self) -> float:
        return time.monotonic() - self.started
