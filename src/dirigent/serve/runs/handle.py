"""Run: one run of this process as a handle, which any number of observers may watch.

    run = prepare(service, asked, caller=caller, began=began)   # start.py
    run.watch(observe)          # everything that has happened so far, then everything that happens
    trace = await run.wait()    # in the task of its caller: status `done` or `waiting`; else a `Problem`
    task = run.start()          # or in a task of its own, for streams and for runs without a waiting caller
    run.cancel()

This is the one place that calls `Conductor.run`. The two kinds of runs differ in what is stored, and when:

- A foreground run has a caller who waits. Its trace is committed before the caller gets the last byte, so a completed
  run is always retrievable; so is the state of a run that waits for the caller's tools. Nothing else is written. If
  its caller leaves or the grace period ends, it is cancelled, and its steps and costs are stored as `cancelled`; a run
  that had waited for tools then waits again.
- A background run has a purpose instead of a caller. Its state is written after every plan and every step, before the
  next call, so that another process can continue at the first step that had not ended. If its process stops, the run is
  handed over. At its end the function that `service.on_finished` has for its purpose is called.
"""

from __future__ import annotations

import asyncio
import io
import logging
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from dirigent.conduct import Conductor
from dirigent.config.server_settings import Override
from dirigent.errors import ConfigError, DirigentError, StoreError
from dirigent.messages import Event, Observe, Request
from dirigent.run.resume import Paused, RunState, taken_back
from dirigent.run.trace import RunEnded, RunStatus, StepDelta, StepReassigned, Trace
from dirigent.serve.http.errors import Problem, mistake, problem_of, problem_of_run
from dirigent.serve.policy.admission import Place
from dirigent.serve.policy.routing_rules import recorded
from dirigent.serve.runs.asked import Asked
from dirigent.serve.runs.report import RunReport, report_of
from dirigent.serve.runs.resume import Kept, Waiting, kept, take_up
from dirigent.store import run_states
from dirigent.store.keys import Caller
from dirigent.store.ledger import StoreLedger

if TYPE_CHECKING:
    from dirigent.serve.service import Service

log = logging.getLogger(__name__)


class Run:
    """One run, from the request that was checked to the trace that is stored."""

    def __init__(
        self,
        service: Service,
        asked: Asked,
        *,
        id: str,
        conductor: Conductor,
        options: Request,
        caller: Caller,
        began: float,
        rule: Override | None = None,
        conversation: tuple[str, ...] = (),
    ) -> None:
        self.service = service
        self.asked = asked
        self.id = id
        self.conductor = conductor
        self.options = options
        self.caller = caller
        self.began = began
        self.rule = rule
        """The operator's rule that applied to it."""
        self.conversation = conversation
        """The names of the conversation that it belongs to."""
        self.state: RunState | None = None
        """The state that it continues from; None if it begins."""
        self.waiting: Waiting | None = None
        """The run that waited for tool results, as it was stored."""
        self.resumed: bool | None = None
        """Whether it continues the run that the tool results belong to; None if there were no results."""
        self.body: Kept | None = None
        """Its last written state, if it is a background run."""
        self.place: Place | None = None
        """The place of a background run's caller, left when the run is over."""
        self.cancelled = False
        """It was cancelled for good. A background run whose task is cancelled without this is handed over."""
        self.ended: Trace | None = None
        self._lost = False
        """Another process has it now."""
        self._cancelled_elsewhere = False
        self._task: asyncio.Task[Any] | None = None
        """The task that carries it out."""
        self._stored = asyncio.Event()
        self._paused: RunState | None = None
        self._watchers: list[Observe] = list(service.observers)
        self._events: list[Event | _Words] = []
        self._words: dict[tuple[int, int], _Words] = {}

    # ---- for all callers ----------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """Every event so far. The words that a step has written are one event."""
        return [event.event if isinstance(event, _Words) else event for event in self._events]

    def watch(self, observe: Observe) -> Callable[[], None]:
        """Show every event to `observe`: those so far at once, later ones as they happen. Returns what ends that."""
        for event in self.events():
            observe(event)
        self._watchers.append(observe)
        return lambda: self._watchers.remove(observe)

    def start(self, *, stream: bool = False) -> asyncio.Task[Trace]:
        """Start the run in a task of its own, whose result is the trace.

        A run that failed or was cancelled (`cancel`) raises a `Problem`. With `stream`, workers write piece
        by piece. A caller that awaits the task and is cancelled cancels the run.
        """
        work = self._for_caller(stream=stream) if self.body is None else self._for_purpose(self.body)
        self._join()
        task = self._task = self.service.own(work)
        task.add_done_callback(self._forget)
        return task

    async def wait(self) -> Trace:
        """Carry the run out in the caller's own task, which saves five turns of the event loop.

        A caller that is cancelled cancels the run.
        """
        self._task = asyncio.current_task()
        self._join()
        try:
            return await self._for_caller(stream=False)
        finally:
            self._forget()

    def cancel(self) -> None:
        self.cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def over(self) -> None:
        """Wait until the run has ended and is stored."""
        if self._task is not None:
            await self._stored.wait()

    @property
    def is_stored(self) -> bool:
        """Whether the store has a row of it while it is carried out."""
        return self.body is not None or self.waiting is not None

    @property
    def is_live(self) -> bool:
        """Whether the last step's words are the answer as soon as they are written."""
        options = self.options
        return self.conductor.limits.max_rounds == 1 and options.schema is None and not options.json_mode

    @property
    def before(self) -> Trace | None:
        """The run when it paused for tools. Replies count tokens and cost from there."""
        return None if self.waiting is None else self.waiting.kept.state.trace

    def report(self, trace: Trace) -> RunReport:
        seconds = time.monotonic() - self.began
        whole = bool(self.asked.dirigent.trace)
        return report_of(trace, seconds=seconds, whole=whole, before=self.before, resumed=self.resumed)

    # ---- carrying it out ----------------------------------------------------------------------------------

    async def _conducted(self, *, stream: bool, journal: Callable[[RunState], Any] | None = None) -> Trace:
        return await self.conductor.run(
            self.asked.question,
            options=self.options,
            observe=self._observe,
            stream=stream,
            run_id=self.id,
            resume=self.state or self._labelled(),
            journal=journal,
        )

    def _labelled(self) -> RunState | None:
        """The beginning of a run whose trace names its conversation; None if it belongs to none."""
        conversation = self.asked.labels.conversation
        if not conversation:
            return None
        fresh = self.conductor.begin(self.asked.question, run_id=self.id)
        return msgspec.structs.replace(fresh, trace=msgspec.structs.replace(fresh.trace, conversation=conversation))

    def _observe(self, event: Event) -> None:
        if isinstance(event, StepDelta):
            where = (event.round, event.index)
            if where not in self._words:
                self._words[where] = _Words(event)
                self._events.append(self._words[where])
            self._words[where].text.write(event.text)
        else:
            self._events.append(event)
        if isinstance(event, RunEnded):
            self.ended = event.trace
            self.service.conversations.note(self.conversation, event.trace, key_id=self.caller.key_id)
        elif isinstance(event, Paused):
            self._paused = event.state
            if self.body is not None:
                self._note(event.state)
        elif isinstance(event, StepReassigned):
            self._words.pop((event.round, event.index), None)
        for look in self._watchers.copy():
            look(event)

    def _join(self) -> None:
        self.service.runs.add(self)
        for look in self.service.run_watchers:
            look(self)

    def _forget(self, task: asyncio.Task[Trace] | None = None) -> None:
        self.service.runs.discard(self)
        self._stored.set()
        for look in self.service.run_watchers:
            look(self)
        if task is not None and not task.cancelled():
            task.exception()  # marks it as read: a client that left reads none

    def _count(self, trace: Trace) -> None:
        seconds = time.monotonic() - self.began
        self.service.metrics.count_run(trace, model=self.asked.model, seconds=seconds, before=self.before)

    # ---- for a caller who waits ---------------------------------------------------------------------------

    async def _for_caller(self, *, stream: bool) -> Trace:
        try:
            if self.rule is not None:
                await recorded(
                    self.service.store, self.rule, caller=self.caller, model=self.asked.model, run_id=self.id
                )
            if self.waiting is not None:
                await take_up(self.service.store, self.waiting)
            try:
                trace = await self._conducted(stream=stream)
            finally:
                if self.ended is not None:
                    self._count(self.ended)
                    # Not in a task of its own: the store writes every piece it was given, also after a cancellation.
                    await self._keep(self.ended)
                elif self.waiting is not None:
                    await to_the_end(run_states.give_back(self.service.store, self.id))
        except asyncio.CancelledError:
            if not self.cancelled or self._task is None or self._task.uncancel():
                raise
            said = f"the run was cancelled (trace {self.id})"
            raise Problem(409, said, code="cancelled", headers={"x-should-retry": "false"}) from None
        except ConfigError as error:
            raise Problem(400, str(error), code="not_possible", param="dirigent.max_cost_usd") from None
        except DirigentError as error:
            raise problem_of(error) from error
        except Problem:
            raise
        except Exception as error:  # a bug
            log.exception("run %s", self.id)
            raise mistake() from error
        if trace.status not in ("done", "waiting"):
            raise problem_of_run(trace, headers=self.report(trace).headers)
        return trace

    async def _keep(self, trace: Trace) -> None:
        """Store the trace, and the state of a run that waits."""
        store, key_id = self.service.store, self.caller.key_id
        if self._paused is not None:
            await run_states.pause(store, trace, key_id=key_id, body=kept(self._paused, self.asked))
        elif self.waiting is None:
            await store.save(trace, key_id=key_id)
        elif trace.status == "done":
            await run_states.end(store, trace)
        else:  # the caller may bring the same results again
            before = self.waiting.kept
            before = msgspec.structs.replace(before, state=taken_back(before.state, trace))
            await run_states.pause(store, trace, key_id=key_id, body=before)
        await settled(self.options)  # usually in the same commit; if it failed, the caller must hear of it

    # ---- for a purpose ------------------------------------------------------------------------------------

    async def _for_purpose(self, body: Kept) -> Trace:
        self.state = body.state
        try:
            await self._conducted(stream=False, journal=self._write_down)
        except asyncio.CancelledError:
            await to_the_end(self._over() if self.cancelled else self._hand_over(self.body or body))
            raise
        except Exception as error:  # a bug: a run that stayed in the store would fail again at every start
            log.exception("background run %s", self.id)
            said = str(error) if isinstance(error, DirigentError) else "the server made a mistake; its log says more"
            self.ended = ended_as(self.ended or body.state.trace, "failed", said)
        finally:
            if self.place is not None:
                self.place.leave()  # before its end is reported: a client that reads of it may ask again at once
        await to_the_end(self._over())
        return self.ended or body.state.trace

    def _note(self, state: RunState) -> Kept:
        assert self.body is not None, "only a background run is written while it runs"
        self.body = msgspec.structs.replace(self.body, state=state)
        return self.body

    async def _write_down(self, state: RunState) -> None:
        try:
            await run_states.journal(self.service.store, self.id, body=self._note(state))
        except StoreError:
            row = await run_states.find(self.service.store, self.id)
            self._lost = row is None or not row.mine
            self._cancelled_elsewhere = row is not None and row.state == "cancelling"
            raise

    async def _hand_over(self, body: Kept) -> None:
        """Hands it over to another process."""
        if self.ended is not None:
            trace = msgspec.structs.replace(self.ended, status="waiting", error="", error_kind="")
            body = self._note(RunState(trace, body.state.secret))
        await run_states.hand_over(self.service.store, self.id, body=body)

    async def _over(self) -> None:
        if self._lost or self.ended is None or self.body is None:
            return
        if self._cancelled_elsewhere:
            self.ended = ended_as(self.ended, "cancelled", "the run was cancelled")
        self._count(self.ended)
        await finish(self.service, self.body, self.ended)


class _Words:
    """The words of one step so far, in a buffer: a thousand short strings would take ten times its memory."""

    def __init__(self, first: StepDelta) -> None:
        self._first = first
        self.text = io.StringIO()

    @property
    def event(self) -> StepDelta:
        return StepDelta(self._first.round, self._first.index, self.text.getvalue())


async def finish(service: Service, body: Kept, trace: Trace) -> None:
    """Stores a background run's trace, calls the function for its purpose, and only then forgets its state. A run that
    waits for tools does so before that call: a client that reads of it may bring the results at once.
    """
    await run_states.keep_trace(service.store, trace)
    if trace.status == "waiting":
        await run_states.let_wait(service.store, trace.id, body=body)
    try:
        if (kind := body.purpose.get("kind")) is not None:
            if kind not in service.on_finished:
                raise StoreError(f"nothing is registered for runs of kind {kind!r} in service.on_finished")
            await service.on_finished[kind](service, body.purpose, trace)
    except StoreError as error:
        log.error("the end of background run %s will be reported later: %s", trace.id, error)
        return
    except Exception:  # a bug, which would come again
        log.exception("the end of background run %s could not be reported", trace.id)
    if trace.status != "waiting":
        await run_states.forget(service.store, trace.id)


def ended_as(trace: Trace, status: RunStatus, error: str) -> Trace:
    return msgspec.structs.replace(trace, status=status, error=error, error_kind="")


async def settled(options: Request) -> None:
    """Waits until the costs of all calls are committed: after that, a kill charges no call at its worst case."""
    if isinstance(options.ledger, StoreLedger):
        await options.ledger.settled()


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await work that must not be left half done when its caller is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
