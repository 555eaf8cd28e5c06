"""Carry out a plan: every step starts as soon as the steps it reads are done.

This module knows nothing of where plans come from or how answers are graded. Retries belong to `workers/wrappers.py`;
here a step whose worker failed for good goes once to a substitute, if the caller allows it. If a step fails, the steps
that read it are skipped. The run ends at once when the last step can no longer be reached, and continues when only a
side branch is lost. Deadline, cost cap and cancellation act inside a step: the call in progress is abandoned and its
connection closed. `step_request.py` makes the request of a step.

A plan with `until` runs its steps in order, one at a time. After each, the last step's worker is asked about the
results so far; once it is sure enough, its reply is the answer and the steps that are left end as skipped. A step that
failed is passed over; the run fails if no result is left.

A step whose worker asks for one of the caller's tools *waits*, and so do the steps that read it; the others continue.
The same plan is continued later from its records (`prior`): steps that have ended are not asked again, and a step that
waited sees its own tool traffic after its messages, and no other step's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from dirigent.errors import DeadlineError, DirigentError, LimitError, StoreError, WorkerError
from dirigent.limits import Ledger, Limits
from dirigent.messages import (
    Attempt,
    Delta,
    Event,
    Message,
    Observe,
    Reply,
    Request,
    Result,
    conversation,
    ignore,
)
from dirigent.plan.plan import EarlierStep, Plan
from dirigent.run.resume import is_final
from dirigent.run.step_request import Terms, late_message, step_deadline, step_request, substitute_for
from dirigent.run.trace import (
    Check,
    StepChecked,
    StepDelta,
    StepEnded,
    StepReassigned,
    StepRecord,
    StepStarted,
    StepStatus,
)
from dirigent.workers.metering import attempts_of, metered
from dirigent.workers.worker import Worker

Journal = Callable[[StepRecord], Awaitable[None]]
"""Stores that a step has ended; the steps that read it start when it returns."""


class Execution(msgspec.Struct, frozen=True):
    """The outcome of a plan: a record for each step, and the error that kept the last step from its reply."""

    steps: tuple[StepRecord, ...]
    error: DirigentError | None = None

    @property
    def reply(self) -> Reply | None:
        """The last step's reply: the answer."""
        return self.steps[-1].reply if self.steps else None

    @property
    def waiting(self) -> bool:
        """Whether the answer needs results of the caller's tools."""
        return self.error is None and any(step.status == "waiting" for step in self.steps)


async def execute(
    plan: Plan,
    workers: Mapping[str, Worker],
    question: str | tuple[Message, ...],
    *,
    earlier: Sequence[EarlierStep] = (),
    limits: Limits = Limits(),
    options: Request | None = None,
    secret: str = "",
    reassign: bool = False,
    ledger: Ledger | None = None,
    started: float | None = None,
    round_number: int = 0,
    observe: Observe = ignore,
    stream: bool = False,
    prior: Sequence[StepRecord] = (),
    journal: Journal | None = None,
) -> Execution:
    """Run the plan's steps over `workers`.

    `earlier` are the steps of the run's earlier rounds, which the plan's steps may read; an earlier step that gave no
    result is not shown.
    `options` carries the caller's sampling settings, tools and schema. `started` is when the run began on the
    monotonic clock: its deadline and the records count from there. With `stream` the observer also gets every
    piece of text as it is written, which costs workers more than a whole reply does. `prior` are the records of
    an earlier execution of the same plan, which this one goes on from.
    """
    terms = Terms(
        plan=plan,
        workers=workers,
        question=conversation(question),
        earlier=tuple(earlier),
        limits=limits,
        options=options or Request(()),
        secret=secret,
        ledger=ledger,
        started=time.monotonic() if started is None else started,
    )
    kept = {record.index: record for record in prior}
    steps = _Steps(
        terms, reassign=reassign, round_number=round_number, observe=observe, stream=stream, prior=kept, journal=journal
    )
    return await steps.run()


@dataclass
class _Steps:
    """The state of one execution: which steps have ended, and their results."""

    terms: Terms
    reassign: bool
    round_number: int
    observe: Observe
    stream: bool
    prior: Mapping[int, StepRecord]
    journal: Journal | None
    records: dict[int, StepRecord] = field(default_factory=dict)
    results: dict[int, Result] = field(default_factory=dict)
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    error: DirigentError | None = None
    bug: str = ""
    """An exception that is no expected failure. It ends the run."""
    checked: StepRecord | None = None
    """The last step of a plan with `until`, as its worker's latest check left it."""
    lost: DirigentError | None = None
    """Why the first step failed that a plan with `until` passed over."""

    @property
    def plan(self) -> Plan:
        return self.terms.plan

    async def run(self) -> Execution:
        done = {i: asyncio.Event() for i, _ in self.plan.numbered()}
        self._restore(done)
        todo = [i for i in done if i not in self.records]
        try:
            if self.error is None:
                if self.plan.until is not None:
                    await self._run_until(self.plan.until, done)
                else:
                    await (self._run_only(todo[0], done) if len(todo) == 1 else self._run_tasks(todo, done))
        finally:
            self._cancel_the_rest()
        return Execution(tuple(self.records[i] for i in done), self.error)

    async def _run_only(self, index: int, done: Mapping[int, asyncio.Event]) -> None:
        """Runs the only step without a task of its own, which would cost three turns of the event loop."""
        try:
            await self._carry_out(index, done)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # otherwise the worker gave up by itself, and the run was not cancelled

    async def _run_until(self, until: float, done: Mapping[int, asyncio.Event]) -> None:
        """Runs the steps in order until the last step's worker is sure of an answer, or all of them have run."""
        *before, last = done
        for index in before:
            if index not in self.records and self.results and time.monotonic() >= step_deadline(self.terms, index):
                self._end(self._record(index), "skipped", error="no time was left for it")
                done[index].set()
            if index not in self.records:
                await self._run_only(index, done)
            if self.error is not None:
                return
            if self.records[index].status == "waiting":
                for left in range(index + 1, last + 1):
                    self.records[left] = msgspec.structs.replace(self._record(left), status="waiting")
                return
            following = self.records.get(index + 1) or self.prior.get(index + 1)
            went_on = following is not None and (following.messages or is_final(following))  # an earlier execution did
            undecided = index in self.results and index + 1 < last and not went_on
            if undecided and (await self._ended_by_choice(index, until) or self.error is not None):
                return
        if not self._readable(last):
            self._stop(self.lost or WorkerError("no step gave a result to choose from"))
        elif last not in self.records:
            await self._run_only(last, done)

    async def _ended_by_choice(self, after: int, until: float) -> bool:
        """Asks the last step's worker about the results so far. If it is sure enough, its reply is the answer.

        Only the reply that is the answer is streamed.
        """
        last = self.plan.last
        record = self._record(last)
        worker = metered(self.terms.workers[record.worker])
        request = step_request(
            self.terms, record, worker.info, results=self.results, deadline=step_deadline(self.terms, last)
        )
        record = msgspec.structs.replace(record, started_s=self._now_s(), messages=request.messages)
        try:
            reply = await self._within_deadline(worker, request, last, observe=ignore)
        except WorkerError as error:  # it is not sure of anything; at the end it is asked again
            reply = Reply("", attempts=error.attempts)
        except LimitError as error:
            self._end(record, "failed", attempts=record.attempts + error.attempts, error=str(error))
            self._stop(error)
            return False
        except BaseException as error:  # cancelled, or a bug
            status: StepStatus = "cancelled" if isinstance(error, asyncio.CancelledError) else "failed"
            self._end(record, status, attempts=record.attempts + attempts_of(error), error=self._why_cancelled())
            raise
        check = Check(after, reply.confidence)
        self.observe(StepChecked(self.round_number, last, check))
        record = msgspec.structs.replace(
            record, checks=(*record.checks, check), attempts=record.attempts + reply.attempts
        )
        if reply.confidence is None or reply.confidence < until:
            self.checked = record
            return False
        for index in range(after + 1, last):
            why = f"{record.worker} was {reply.confidence:.0%} sure after step {after}, and until is {until:.0%}"
            self._end(self._record(index), "skipped", error=why)
        self.observe(StepStarted(self.round_number, last, record.worker))
        self._deltas(last)(Delta(reply.text))
        self._answered(record, request, record.attempts, reply)
        if self.journal is not None:
            try:
                await self.journal(self.records[last])
            except StoreError as error:
                self._stop(error)
        return True

    def _readable(self, index: int) -> bool:
        """Whether the step has any result to read, of this round or an earlier one."""
        return any(
            self.terms.earlier[j].reply.strip() if j < self.plan.first else j in self.results
            for j in self.plan.step(index).access
        )

    async def _run_tasks(self, todo: Sequence[int], done: Mapping[int, asyncio.Event]) -> None:
        """Runs every step as a task of its own. When this returns or raises, all of them have ended.

        A bug in one step ends the others, because nothing will read their replies.
        """
        self.tasks = {i: asyncio.ensure_future(self._carry_out(i, done)) for i in todo}
        tasks = self.tasks.values()
        try:
            if tasks:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled() and (bug := task.exception()) is not None:
                raise bug

    def _restore(self, done: Mapping[int, asyncio.Event]) -> None:
        """Restores what an earlier execution settled: steps that ended, and steps that still wait for their tools."""
        for index, record in self.prior.items():
            if is_final(record) or record.asks_for_tools:
                self.records[index] = record
                done[index].set()
            if record.status == "done" and record.reply is not None:
                self.results[index] = record.result(record.reply)
            elif record.status == "failed" and index in _needed_for_last(self.plan):
                self._fail(index, WorkerError(record.error))

    async def _carry_out(self, index: int, done: Mapping[int, asyncio.Event]) -> None:
        try:
            read = [j for j in self.plan.step(index).access if j in done]  # the others are of earlier rounds
            for j in read:
                await done[j].wait()
            statuses = {j: self.records[j].status for j in read}
            lost = [j for j, status in statuses.items() if status not in ("done", "waiting")]
            if lost and not self._passes_over(index):
                error = f"step {lost[0]}, which it reads, gave no result"
                self._end(self._record(index), "skipped", error=error)
            elif "waiting" in statuses.values():
                self.records[index] = msgspec.structs.replace(self._record(index), status="waiting")
                return
            else:
                await self._ask(self._record(index))
            if self.journal is not None:
                await self.journal(self.records[index])
        except StoreError as error:  # no step may build on a result that could not be stored
            self._stop(error)
        except Exception as bug:
            self.bug = self.bug or f"step {index} ended with {type(bug).__name__}: {bug}"
            raise
        finally:
            done[index].set()

    async def _ask(self, record: StepRecord) -> None:
        """Asks the step's worker and, after a failure, one substitute."""
        attempts = record.attempts
        tried = [name for name in (record.planned_worker, record.worker) if name]
        record = msgspec.structs.replace(record, started_s=record.started_s or self._now_s())
        deadline = step_deadline(self.terms, record.index)
        while True:
            name = tried[-1]
            worker = metered(self.terms.workers[name])
            request = step_request(self.terms, record, worker.info, results=self.results, deadline=deadline)
            base = request.messages[: len(request.messages) - len(record.tool_traffic)]
            record = msgspec.structs.replace(record, worker=name, messages=base)
            try:
                self.observe(StepStarted(self.round_number, record.index, name))
                reply = await self._within_deadline(worker, request, record.index, observe=self._deltas(record.index))
                self._check_tool_rounds(record, reply)
                if request.may_call:
                    _check_whole_calls(record, reply)
            except asyncio.CancelledError as cancelled:
                attempts += attempts_of(cancelled)
                self._end(record, "cancelled", attempts=attempts, error=self._why_cancelled())
                raise
            except (WorkerError, LimitError) as error:
                attempts += error.attempts
                if to := self._substitute(error, tried, record.index, request):
                    self.observe(StepReassigned(self.round_number, record.index, name, to, str(error)))
                    record = msgspec.structs.replace(
                        record, planned_worker=record.planned_worker or name, attempts=attempts
                    )
                    tried.append(to)
                    continue
                self._end(record, "failed", attempts=attempts, error=str(error))
                self._fail(record.index, error)
                return
            except Exception as error:  # from the store, or a bug: no substitute would help
                said = f"{type(error).__name__}: {error}"
                self._end(record, "failed", attempts=attempts + attempts_of(error), error=said)
                raise
            attempts += reply.attempts
            self._answered(record, request, attempts, reply)
            return

    def _answered(self, record: StepRecord, request: Request, attempts: tuple[Attempt, ...], reply: Reply) -> None:
        if not (request.may_call and reply.tool_calls):
            self.results[record.index] = record.result(reply)
            self._end(record, "done", attempts=attempts, reply=reply)
        elif record.index in _needed_for_last(self.plan):
            self._end(record, "waiting", attempts=attempts, reply=reply)
        else:
            error = "it asked for a tool, and the answer does not need it"
            self._end(record, "skipped", attempts=attempts, reply=reply, error=error)

    def _check_tool_rounds(self, record: StepRecord, reply: Reply) -> None:
        most = self.terms.limits.max_tool_rounds
        if reply.tool_calls and record.tool_rounds >= most:
            error = LimitError(
                f"step {record.index} ({record.worker}) asked for tools more than {most} times; raise max_tool_rounds"
            )
            error.attempts = reply.attempts
            raise error

    async def _within_deadline(self, worker: Worker, request: Request, index: int, *, observe: Observe) -> Reply:
        """One call, held to the step's deadline."""
        assert request.deadline is not None
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, request.deadline - began)) as scope:
                return await worker.ask(request, observe=observe)
        except TimeoutError as timeout:
            if not scope.expired():
                raise  # a TimeoutError of the worker's own: the deadline has not passed
            error = DeadlineError(late_message(self.terms, index, worker.info.name, deadline=request.deadline))
            error.attempts = attempts_of(timeout) or attempts_of(timeout.__cause__)
            raise error from timeout

    def _deltas(self, index: int) -> Observe:
        if not self.stream:
            return ignore

        def pass_on(event: Event) -> None:
            if isinstance(event, Delta):
                self.observe(StepDelta(self.round_number, index, event.text))

        return pass_on

    def _substitute(self, error: DirigentError, tried: list[str], index: int, request: Request) -> str | None:
        if not self.reassign or len(tried) > 1 or not isinstance(error, WorkerError):
            return None
        if self._passes_over(self.plan.last) and index != self.plan.last:
            if self.results or index + 1 < self.plan.last:
                return None  # the plan's next step is the substitute
            tried = [*tried, *(record.worker for record in self.records.values() if record.status == "failed")]
        return substitute_for(self.terms, index, request, tried=tried)

    def _end(
        self,
        record: StepRecord,
        status: StepStatus,
        *,
        attempts: tuple[Attempt, ...] | None = None,
        reply: Reply | None = None,
        error: str = "",
    ) -> None:
        """Records the end of a step. Without `attempts` it was not asked now, and keeps those it had."""
        now = self._now_s()
        ended = msgspec.structs.replace(
            record,
            status=status,
            reply=reply,
            attempts=record.attempts if attempts is None else attempts,
            error=error,
            started_s=record.started_s or now,
            ended_s=now,
        )
        self.records[record.index] = ended
        self.observe(StepEnded(self.round_number, ended))

    def _cancel_the_rest(self) -> None:
        """Cancels steps that were never started when the run ended, and waiting steps of a run that failed."""
        for index, _ in self.plan.numbered():
            record = self.records.get(index)
            if record is None:
                self._end(self._record(index), "cancelled", error=self._why_cancelled())
            elif record.status == "waiting" and self.error is not None:
                self.records[index] = msgspec.structs.replace(record, status="cancelled", error=self._why_cancelled())

    def _record(self, index: int) -> StepRecord:
        """The step's record before it is asked: a new one, or the one of an earlier execution that broke off."""
        if self.checked is not None and index == self.plan.last:
            return self.checked
        if (before := self.prior.get(index)) is not None:
            return msgspec.structs.replace(before, status="cancelled", reply=None, error="")
        step = self.plan.step(index)
        return StepRecord(index, step.worker, step.subtask, step.access, round=self.round_number)

    def _why_cancelled(self) -> str:
        why = self.bug or self.error
        return f"the run had ended: {why}" if why else "the run was cancelled"

    def _fail(self, index: int, error: DirigentError) -> None:
        """A step failed for good. If the last step needs it, the run ends, so that nothing more is paid."""
        if self._passes_over(self.plan.last) and index != self.plan.last:
            self.lost = self.lost or error
        elif index in _needed_for_last(self.plan):
            self._stop(error)

    def _passes_over(self, index: int) -> bool:
        """Whether this step chooses among the results that there are: the last step of a plan with `until`."""
        return self.plan.until is not None and index == self.plan.last

    def _stop(self, error: DirigentError) -> None:
        self.error = self.error or error
        for index, task in self.tasks.items():
            if index not in self.records:
                task.cancel()

    def _now_s(self) -> float:
        return time.monotonic() - self.terms.started


def _check_whole_calls(record: StepRecord, reply: Reply) -> None:
    """Refuses a tool call that was cut off at the length limit: its arguments are not whole."""
    for call in reply.tool_calls if reply.finish == "length" else ():
        try:
            msgspec.json.decode(call.arguments or "{}", type=dict[str, object])
        except (msgspec.MsgspecError, RecursionError):
            said = f"step {record.index} ({record.worker}) was cut within a tool call; raise max_output_tokens"
            raise WorkerError(said, said=said, worker=record.worker, attempts=reply.attempts) from None


def _needed_for_last(plan: Plan) -> set[int]:
    """The last step and everything in the plan that it reads, directly or through others."""
    needed: set[int] = set()
    waiting = [plan.last]
    while waiting:
        index = waiting.pop()
        if index not in needed and index >= plan.first:
            needed.add(index)
            waiting.extend(plan.step(index).access)
    return needed
