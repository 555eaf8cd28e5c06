"""Runs that nobody waits on: they survive the death of their process, and are carried on by the next one.

    run_id = await background.start(service, ask, purpose={"kind": "response", "response_id": id})
    await background.cancel(service, run_id, key_id=caller.key_id)  # wherever it runs; False: there is none

`start` returns once the run is in the store. Its state is written down after every plan and every step, before
the next call is made, so that whoever takes over goes on at the first step that had not ended. A process that is
told to stop hands its runs over; those of one that was killed are found when a server starts (`resume_all`), or
by another server of the same store, when they have been silent for a minute.

What is to happen when such a run is over cannot be a closure, since it must outlive the process. It is a
function of the service, by the `kind` of the run's purpose, registered before the server takes requests:

    service.on_finished["response"] = store_outcome   # async (service, purpose, trace) -> None

`purpose` is a flat dict of strings, kept with the run and given back as it was. The function is called when the
trace is in the store, with status `done`, `failed`, `cancelled` or `waiting` (the caller's tools come next; the
run goes on when a later request brings their results, see `resume.py`). It may be called twice if its process
dies in the middle, so it must come to the same the second time. After a `StoreError` it is called again a minute
later; anything else that it raises is logged, and that was it.

A run that waits does so before anybody is told, since whoever reads of it may bring the results at once. If its
process dies between the two, or there is a `StoreError`, nobody is told: what is left is its row, which waits and
has the purpose.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

import msgspec

from dirigent.errors import DirigentError, StoreError
from dirigent.messages import Attempt, Event, Usage
from dirigent.run.resume import Paused, RunState, with_lost_calls
from dirigent.serve.runs.start import Ask, prepare, to_the_end
from dirigent.serve.policy.routing_rules import recorded
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.resume import KEPT_S, Kept, kept, take_up
from dirigent.serve.service import BackgroundRun, Service
from dirigent.store import run_states
from dirigent.store.admission import Place
from dirigent.store.idempotency import Begun
from dirigent.store.keys import LOCAL_ADMIN, Caller, list_keys
from dirigent.store.ledger import NUSD, reconcile, to_nusd
from dirigent.store.timestamps import now, utc_text
from dirigent.store.run_states import LEASE_S, Paid, RunRow
from dirigent.run.trace import RunEnded, RunStatus, Trace

log = logging.getLogger(__name__)

BEAT_S = LEASE_S / 4
"""How often a server says that it lives, and looks for runs that others have left."""


async def start(
    service: Service,
    ask: Ask,
    *,
    purpose: Mapping[str, str],
    place: Place | None = None,
    begun: Begun | None = None,
) -> str:
    """Carry out a run that nobody waits on; its id. It is in the store when this returns.

    `place` is the caller's place among the requests under way, left when the run is over. An ask that goes on
    with a waiting run (`conducting.resumed`) takes it over from here. `begun` says which claim on an
    Idempotency-Key it is begun for: from here on, whoever sends that again finds it.
    """
    state = ask.state or ask.conductor.begin(ask.question, run_id=ask.run_id)
    body = _body(state, ask, purpose)
    if ask.rule is not None:
        await recorded(service.store, ask.rule, caller=ask.caller, model=ask.chat.model, run_id=ask.run_id)
    if ask.waiting is not None:
        await take_up(service.store, ask.waiting)
        await run_states.keep_trace(service.store, state.trace)  # a try that failed since is not its end
        await run_states.journal(service.store, ask.run_id, body=body, begun=begun)
    else:
        await run_states.begin(service.store, ask.run_id, key_id=ask.caller.key_id, body=body, begun=begun)
    _carry_out(service, ask, body, place=place)
    return ask.run_id


async def cancel(service: Service, run_id: str, *, key_id: str) -> bool:
    """Cancel a run, here or where it is carried out; returns when it is over if that is here.

    False where this key has no such run under way.
    """
    if not await run_states.cancel(service.store, run_id, key_id=key_id):
        return False
    await _cancel_here(service, run_id)
    return True


async def resume_all(service: Service) -> int:
    """Take over what others left, and look for more from now on; how many runs there were to go on with."""
    await run_states.prune(service.store, older_than_s=KEPT_S)
    count = await take_over(service)
    service.own(_keep_watch(service))
    return count


async def take_over(service: Service) -> int:
    """Go on with the runs that nobody carries out any more; how many there were."""
    left = await run_states.orphans(service.store)
    if left:
        await reconcile(service.store)  # so that the calls that were cut short are in the book
    count = 0
    for row in left:
        if await run_states.take(service.store, row):
            count += 1
            try:
                await _go_on(service, row)
            except Exception:  # one run that cannot be carried on must not keep the others, or the server, down
                log.exception("background run %s could not be carried on", row.run_id)
    return count


async def _keep_watch(service: Service) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        try:
            await look_after(service)
        except DirigentError as error:
            log.warning("runs could not be looked after: %s", error)


async def look_after(service: Service) -> None:
    """Say which runs this process is at, stop those that were cancelled elsewhere, and take over what was left."""
    for run_id in await run_states.beat(service.store, {*service.background, *service.resuming}):
        await _cancel_here(service, run_id)
    await take_over(service)
    await run_states.prune(service.store, older_than_s=KEPT_S)


async def _cancel_here(service: Service, run_id: str) -> None:
    running = service.background.get(run_id)
    if running is not None:
        running.cancelled = True
        running.task.cancel()
        await asyncio.wait([running.task])


async def _go_on(service: Service, row: RunRow) -> None:
    """Carry a run on that another process had begun."""
    try:
        found = row.read(Kept)
    except StoreError as error:
        log.error("a run that was left cannot be carried on: %s", error)
        old = row.salvage(Kept)
        if old is None:
            await run_states.forget(service.store, row.run_id)
        else:
            await _finish(service, old, _ended(old.state.trace, "failed", str(error)))
        return
    chat = found.chat
    if chat is None:  # its caller was there and will ask again
        await run_states.give_back(service.store, row.run_id)
        return
    if (over := await _trace_of_ended(service, row.run_id)) is not None:
        await _finish(service, found, over)
        return
    lost = _lost_calls(await run_states.paid_calls(service.store, row.run_id), found.state.trace.attempts)
    found = msgspec.structs.replace(found, state=with_lost_calls(found.state, lost))
    if row.state == "cancelling":
        await _finish(service, found, _ended(found.state.trace, "cancelled", "the run was cancelled"))
        return
    try:
        caller = await _caller(service, row.key_id)
        ask = prepare(service, chat, caller=caller, began=time.monotonic(), run_id=row.run_id)
    except Problem as problem:
        await _finish(service, found, _ended(found.state.trace, "failed", str(problem)))
        return
    _carry_out(service, ask, found)


async def _trace_of_ended(service: Service, run_id: str) -> Trace | None:
    """The trace of a run that was over, and whose process died before it had told so."""
    try:
        trace = await service.store.get(run_id)
    except StoreError:
        return None
    return trace if trace.id == run_id and trace.status != "waiting" else None


def _lost_calls(paid: Sequence[Paid], known: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """Calls that are in the book and not in the state: made after it was last written down."""
    left = [(attempt.worker, to_nusd(attempt.cost_usd)) for attempt in known]
    lost = []
    for call in paid:
        if (call.worker, call.cost_nusd) in left:
            left.remove((call.worker, call.cost_nusd))
        else:
            said = "its process died before the reply was kept"
            lost.append(Attempt(call.worker, 0.0, Usage(0, call.output_tokens), call.cost_nusd / NUSD, said))
    return tuple(lost)


async def _caller(service: Service, key_id: str) -> Caller:
    if key_id == LOCAL_ADMIN.key_id:
        return LOCAL_ADMIN
    at = utc_text(now())
    for row in await list_keys(service.store):
        if row.caller.key_id == key_id and row.usable(at):
            return row.caller
    raise Problem(401, "the key that asked for this run is closed", code="invalid_api_key")


def _carry_out(service: Service, ask: Ask, body: Kept, *, place: Place | None = None) -> None:
    async def work() -> None:
        try:
            await _Background(service, ask, body, place).run()
        finally:
            service.background.pop(ask.run_id, None)
            if place is not None:
                place.leave()

    service.background[ask.run_id] = BackgroundRun(service.own(work()))


class _Background:
    """One run as this process carries it out: what was last written down of it."""

    def __init__(self, service: Service, ask: Ask, body: Kept, place: Place | None) -> None:
        self._service = service
        self._ask = ask
        self._body = body
        self._place = place
        self._ended: Trace | None = None
        self._lost = False
        """It is no longer this process's."""
        self._cancelled = False
        """It was cancelled from another process."""

    async def run(self) -> None:
        ask = self._ask
        try:
            await ask.conductor.run(
                ask.question,
                options=ask.options,
                observe=self._watch,
                stream=False,
                resume=self._body.state,
                journal=self._journal,
            )
        except asyncio.CancelledError:
            await to_the_end(self._interrupted())
            raise
        except Exception as error:  # a bug: the run must not stay behind, to fail again at every start
            log.exception("background run %s", ask.run_id)
            said = str(error) if isinstance(error, DirigentError) else "the server made a mistake; its log says more"
            self._ended = _ended(self._ended or self._body.state.trace, "failed", said)
        await to_the_end(self._over())

    def _watch(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            self._ended = event.trace
        elif isinstance(event, Paused):
            self._keep_in_mind(event.state)
        for look in self._service.observers:
            look(event)

    async def _journal(self, state: RunState) -> None:
        self._keep_in_mind(state)
        try:
            await run_states.journal(self._service.store, self._ask.run_id, body=self._body)
        except StoreError:
            row = await run_states.find(self._service.store, self._ask.run_id)
            self._lost = row is None or not row.mine
            self._cancelled = row is not None and row.state == "cancelling"
            raise

    def _keep_in_mind(self, state: RunState) -> None:
        self._body = msgspec.structs.replace(self._body, state=state)

    async def _interrupted(self) -> None:
        """Cancelled for good, or because this process stops: then the run goes on elsewhere."""
        running = self._service.background.get(self._ask.run_id)
        if running is not None and running.cancelled:
            await self._over()
        elif self._ended is not None:
            trace = msgspec.structs.replace(self._ended, status="waiting", error="", error_kind="")
            self._keep_in_mind(RunState(trace, self._body.state.secret))
            await run_states.hand_over(self._service.store, self._ask.run_id, body=self._body)
        else:  # it had not begun
            await run_states.hand_over(self._service.store, self._ask.run_id, body=self._body)

    async def _over(self) -> None:
        if self._lost or self._ended is None:
            return
        if self._place is not None:
            self._place.leave()  # before its end is told: whoever has read that may ask again at once
        if self._cancelled:
            self._ended = _ended(self._ended, "cancelled", "the run was cancelled")
        seconds = time.monotonic() - self._ask.began
        self._service.metrics.count_run(
            self._ended, model=self._ask.chat.model, seconds=seconds, before=self._ask.before
        )
        await _finish(self._service, self._body, self._ended)


async def _finish(service: Service, body: Kept, trace: Trace) -> None:
    """Keep the trace, tell whoever the run was for, and only then forget the state. One that waits can be gone on with
    before its end is told."""
    await run_states.keep_trace(service.store, trace)
    if trace.status == "waiting":
        await run_states.let_wait(service.store, trace.id, body=body)
    try:
        await _tell(service, body.purpose, trace)
    except StoreError as error:
        log.error("the end of background run %s is told later: %s", trace.id, error)
        return
    except Exception:  # a bug, which would come again
        log.exception("the end of background run %s could not be told", trace.id)
    if trace.status != "waiting":
        await run_states.forget(service.store, trace.id)


async def _tell(service: Service, purpose: Mapping[str, str], trace: Trace) -> None:
    kind = purpose.get("kind")
    if kind is None:
        return
    if kind not in service.on_finished:
        raise StoreError(f"nothing is registered for runs of kind {kind!r} in service.on_finished")
    await service.on_finished[kind](service, purpose, trace)


def _ended(trace: Trace, status: RunStatus, error: str) -> Trace:
    return msgspec.structs.replace(trace, status=status, error=error, error_kind="")


def _body(state: RunState, ask: Ask, purpose: Mapping[str, str]) -> Kept:
    chat = msgspec.structs.replace(ask.chat, stream=None, stream_options=None)
    bare = kept(state, model=ask.chat.model, question=ask.question)
    return msgspec.structs.replace(bare, chat=chat, purpose=dict(purpose))
