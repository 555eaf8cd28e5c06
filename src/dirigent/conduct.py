"""Conductor.run: draft -> plan -> execute -> answer -> trace. Start reading here.

A Conductor is a planner, a pool and limits. Serving, evaluation and training all call `run`; they differ in
arguments only: serving repairs and falls back and re-assigns, training does none of these. It is a Worker
itself, so a Conductor may stand in another's pool.

Expected failures end on the trace, not as exceptions. A cancelled run raises, after its `RunEnded` event has
carried the trace as far as it got.
"""

from __future__ import annotations

import asyncio
import contextvars
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from dirigent.errors import ConfigError, DeadlineError, DirigentError, PlanError, WorkerError
from dirigent.execute import Execution, execute
from dirigent.limits import Budget, Limits
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
from dirigent.plan import Plan, parse_plan
from dirigent.planner import Brief, Draft, Planner, Previous
from dirigent.pool import Pool
from dirigent.trace import (
    Drafted,
    DraftRecord,
    Planned,
    Round,
    RunEnded,
    RunStatus,
    StepDelta,
    StepEnded,
    StepRecord,
    Trace,
    total_usage,
)
from dirigent.version import __version__
from dirigent.worker import Price, WorkerInfo

MAX_DEPTH = 2
"""How deep conductors may stand in one another's pools."""

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
    ) -> Trace:
        """Answer a question. `options` carries sampling settings, tools and schema; its messages are not read.

        `stream` is whether workers write piece by piece; by default they do when anybody watches. `run_id` is
        the trace's id, for callers that must know it before the run ends.
        """
        self._require_prices()
        run = _Run(self, conversation(question), options or Request(()), observe, stream=stream, run_id=run_id)
        try:
            await run.conduct()
        except asyncio.CancelledError:
            run.finish("cancelled", "the run was cancelled")
            raise
        except DirigentError as error:
            return run.finish("failed", str(error), kind=type(error).__name__)
        return run.finish("done")

    async def draft(
        self, question: str | Sequence[Message], *, options: Request | None = None, observe: Observe = ignore
    ) -> Round:
        """Plan without carrying out: no worker but the planner's is called."""
        self._require_prices()
        run = _Run(self, conversation(question), options or Request(()), observe)
        await run.plan_round(0)
        return run.rounds[0]

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        """Answer as a Worker. Where the answer cannot be taken back, it is streamed as it is written."""
        if _depth.get() >= MAX_DEPTH:
            raise WorkerError(f"conductors are nested deeper than {MAX_DEPTH}", worker=self.info.name, fault="request")
        token = _depth.set(_depth.get() + 1)
        try:
            trace = await self.run(request.messages, options=request, observe=_answer_deltas(observe))
        finally:
            _depth.reset(token)
        if trace.status != "done":
            raise WorkerError(trace.error, worker=self.info.name, attempts=trace.attempts)
        return Reply(
            text=trace.answer,
            tool_calls=trace.tool_calls,
            finish="tool_calls" if trace.tool_calls else "stop",
            usage=total_usage(trace.attempts),
            cost_usd=trace.cost_usd,
            attempts=trace.attempts,
            seconds=trace.seconds,
            model=self.info.name,
        )

    def _require_prices(self) -> None:
        if self.limits.max_cost_usd is None and self.limits.max_step_cost_usd is None:
            return
        for info in self.pool.infos:
            if info.price is None:
                raise ConfigError(
                    f'a cost cap needs a price for worker "{info.name}"; '
                    "add  price = { input = 0, output = 0 }  if it is free"
                )


def _answer_deltas(observe: Observe) -> Observe:
    """An observer of a run that passes on the text of each plan's last step."""
    if observe is ignore:
        return ignore
    last_index = -1

    def pass_on(event: Event) -> None:
        nonlocal last_index
        if isinstance(event, Planned):
            last_index = len(event.plan.steps) - 1
        elif isinstance(event, StepDelta) and event.index == last_index and event.round == 0:
            observe(Delta(event.text))

    return pass_on


class _Run:
    """One run as it goes: what has been written and done so far, so that a trace can be made at any moment."""

    def __init__(
        self,
        conductor: Conductor,
        question: tuple[Message, ...],
        options: Request,
        observe: Observe,
        *,
        stream: bool | None = None,
        run_id: str = "",
    ) -> None:
        self.conductor = conductor
        self.question = question
        self.options = options
        self.observe = observe
        self.stream = observe is not ignore if stream is None else stream
        self.id = run_id or secrets.token_hex(8)
        self.secret = secrets.token_hex(16)
        self.created_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.started = time.monotonic()
        limits = conductor.limits
        self.deadline = min(self.started + limits.deadline_s, options.deadline or float("inf"))
        self.budget = Budget(
            max_cost_usd=limits.max_cost_usd,
            max_output_tokens=limits.max_run_output_tokens,
            parent=options.ledger,
        )
        self.rounds: list[Round] = []
        self.answer = ""
        self.tool_calls: tuple[ToolCall, ...] = ()

    async def conduct(self) -> None:
        """Plan and carry out, round by round, until the planner accepts or its rounds are used up."""
        for number in range(self.conductor.limits.max_rounds):
            try:
                plan = await self.plan_round(number)
                if not plan.steps:
                    return
                reply = await self._execute_round(number, plan)
            except DirigentError:
                if number == 0:
                    raise
                return  # a later round that came to nothing leaves the answer before it standing
            self.answer, self.tool_calls = reply.text, reply.tool_calls
            if self.tool_calls:
                return  # the caller's tool comes next, not another round

    async def plan_round(self, number: int) -> Plan:
        """A valid plan for this round: the planner's, mended if need be, else the fallback's."""
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
        return plan

    def _brief(self, number: int) -> Brief:
        previous = None
        if number > 0:
            previous = Previous(self.rounds[number - 1].drafts[-1].text, self.answer)
        return Brief(
            question=self.question,
            pool=self.conductor.pool,
            limits=self.conductor.limits,
            secret=self._secret(number),
            previous=previous,
            deadline=self.deadline,
            ledger=self.budget,
        )

    async def _planned_by(self, planner: Planner, brief: Brief, *, tries: int) -> Plan:
        for left in range(tries - 1, -1, -1):
            began = self._now_s()
            draft = await self._drafted(planner, brief, began)
            try:
                plan = parse_plan(
                    draft.text,
                    brief.pool,
                    brief.limits,
                    dialect=draft.dialect,
                    may_accept=brief.previous is not None,
                )
            except PlanError as error:
                self._record_draft(planner, draft, began, error=str(error))
                if not left:
                    raise
                brief = msgspec.structs.replace(brief, refused=draft.text, fault=str(error))
            else:
                self._record_draft(planner, draft, began)
                return plan
        raise AssertionError("unreachable: the last try returns or raises")

    async def _drafted(self, planner: Planner, brief: Brief, began: float) -> Draft:
        try:
            async with asyncio.timeout(max(0.0, self.deadline - time.monotonic())):
                return await planner.draft(brief)
        except TimeoutError as timeout:
            self._record_draft(planner, Draft("", "lists"), began, error="ran out of time")
            limit = self.conductor.limits.deadline_s
            raise DeadlineError(f"the deadline of {limit:g} s passed while {planner.name} planned") from timeout
        except DirigentError as error:
            self._record_draft(planner, Draft("", "lists", attempts=error.attempts), began, error=str(error))
            raise

    def _record_draft(self, planner: Planner, draft: Draft, began: float, *, error: str = "") -> None:
        record = DraftRecord(
            planner=planner.name,
            text=draft.text,
            dialect=draft.dialect,
            messages=draft.messages,
            attempts=draft.attempts,
            started_s=began,
            ended_s=self._now_s(),
            error=error,
        )
        self._amend(drafts=(*self.rounds[-1].drafts, record))
        self.observe(Drafted(len(self.rounds) - 1, record))

    async def _execute_round(self, number: int, plan: Plan) -> Reply:
        ended: dict[int, StepRecord] = {}

        def watch(event: Event) -> None:
            if isinstance(event, StepEnded):
                ended[event.step.index] = event.step
            self.observe(event)

        try:
            execution: Execution = await execute(
                plan,
                self.conductor.pool,
                self.question,
                limits=self.conductor.limits,
                options=self.options,
                secret=self._secret(number),
                reassign=self.conductor.reassign,
                ledger=self.budget,
                started=self.started,
                round_number=number,
                observe=watch,
                stream=self.stream,
            )
        except asyncio.CancelledError:
            self._amend(steps=tuple(ended[i] for i in sorted(ended)))
            raise
        self._amend(steps=execution.steps)
        if execution.error is not None:
            raise execution.error
        if execution.reply is None:
            raise WorkerError(f"the last step gave no result: {execution.steps[-1].error}")
        return execution.reply

    def finish(self, status: RunStatus, error: str = "", *, kind: str = "") -> Trace:
        trace = Trace(
            id=self.id,
            created_at=self.created_at,
            question=self.question,
            pool=self.conductor.pool.infos,
            limits=self.conductor.limits,
            planner=self.conductor.planner.name,
            profile=self.conductor.profile,
            rounds=tuple(self.rounds),
            status=status,
            answer=self.answer,
            tool_calls=self.tool_calls,
            error=error,
            error_kind=kind,
            seconds=self._now_s(),
            version=__version__,
        )
        self.observe(RunEnded(trace))
        return trace

    def _amend(self, **changes: object) -> None:
        self.rounds[-1] = msgspec.structs.replace(self.rounds[-1], **changes)

    def _secret(self, number: int) -> str:
        return f"{self.secret}:{number}"

    def _now_s(self) -> float:
        return time.monotonic() - self.started
