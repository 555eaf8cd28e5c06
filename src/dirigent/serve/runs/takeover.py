"""Background runs survive the death of their process: the next one continues them.

`start.begin` starts such a run, and `handle.py` writes its state down after every plan and every step. A process that
stops hands its runs over. The runs of a process that was killed are found when a server starts (`resume_all`), or by
another server of the same store once they have been silent for a minute.

The work at the end of such a run cannot be a closure, since it must outlive the process. It is a function
of the service for the `kind` of the run's purpose, registered before the server takes requests:

    service.on_finished["response"] = store_outcome   # async (service, purpose, trace) -> None

`purpose` is a flat dict of strings, stored with the run. The function is called once the trace is in the store, with
status `done`, `failed`, `cancelled` or `waiting` (the caller's tools come next; a later request brings their results,
see `resume.py`). It may be called twice if its process dies in between, so its effect must be the same the second time.
After a `StoreError` it is called again a minute later; any other error is logged, and it is not called again.

A waiting run waits before the function is called, since a caller that reads of it may bring the results at once. If its
process dies between the two, or the store fails, the function is not called: the row remains, with the purpose.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

import msgspec

from dirigent.errors import DirigentError, StoreError
from dirigent.messages import Attempt, Usage
from dirigent.run.resume import with_lost_calls
from dirigent.run.trace import Trace
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.handle import ended_as, finish
from dirigent.serve.runs.resume import KEPT_S, Kept
from dirigent.serve.runs.start import prepare
from dirigent.serve.service import Service
from dirigent.store import run_states
from dirigent.store.keys import LOCAL_ADMIN, Caller, list_keys
from dirigent.store.ledger import NUSD, reconcile, to_nusd
from dirigent.store.run_states import LEASE_S, Paid, RunRow
from dirigent.store.tables import now, utc_text

log = logging.getLogger(__name__)

BEAT_S = LEASE_S / 4
"""Seconds between two signs of life of a server, which also looks for runs that others have left."""


async def cancel(service: Service, run_id: str, *, key_id: str) -> bool:
    """Cancel a background run in whichever process it is; one of this process is over when this returns.

    Returns False if this key has no such run under way.
    """
    if not await run_states.cancel(service.store, run_id, key_id=key_id):
        return False
    await _cancel_here(service, run_id)
    return True


async def resume_all(service: Service) -> int:
    """Take over the runs that others left, and look for more from now on. Returns how many there were."""
    await run_states.prune(service.store, older_than_s=KEPT_S)
    count = await take_over(service)
    service.own(_keep_watch(service))
    return count


async def take_over(service: Service) -> int:
    """Continues the runs that no process carries out any more. Returns their number."""
    left = await run_states.orphans(service.store)
    if left:
        await reconcile(service.store)  # so that the ledger has the calls that were cut short
    count = 0
    for row in left:
        if await run_states.take(service.store, row):
            count += 1
            try:
                await _go_on(service, row)
            except Exception:  # one broken run must not stop the others, or the server
                log.exception("background run %s could not be carried on", row.run_id)
    return count


async def look_after(service: Service) -> None:
    """Give a sign of life for this process's runs, stop those that were cancelled elsewhere, and take over others."""
    for run_id in await run_states.beat(service.store, {run.id for run in service.runs if run.is_stored}):
        await _cancel_here(service, run_id)
    await take_over(service)
    await run_states.prune(service.store, older_than_s=KEPT_S)


async def _keep_watch(service: Service) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        try:
            await look_after(service)
        except DirigentError as error:
            log.warning("runs could not be looked after: %s", error)


async def _cancel_here(service: Service, run_id: str) -> None:
    for run in [run for run in service.runs if run.id == run_id and run.body is not None]:
        run.cancel()
        await run.over()


async def _go_on(service: Service, row: RunRow) -> None:
    """Continues a run that another process began."""
    try:
        found = row.read(Kept)
    except StoreError as error:
        log.error("a run that was left cannot be carried on: %s", error)
        old = row.salvage(Kept)
        if old is None:
            await run_states.forget(service.store, row.run_id)
        else:
            await finish(service, old, ended_as(old.state.trace, "failed", str(error)))
        return
    asked = found.asked
    if asked is None:  # a foreground run, whose caller will ask again
        await run_states.give_back(service.store, row.run_id)
        return
    if (over := await _trace_of_ended(service, row.run_id)) is not None:
        await finish(service, found, over)
        return
    lost = _lost_calls(await run_states.paid_calls(service.store, row.run_id), found.state.trace.attempts)
    found = msgspec.structs.replace(found, state=with_lost_calls(found.state, lost))
    if row.state == "cancelling":
        await finish(service, found, ended_as(found.state.trace, "cancelled", "the run was cancelled"))
        return
    try:
        caller = await _caller(service, row.key_id)
        run = prepare(service, asked, caller=caller, began=time.monotonic(), run_id=row.run_id)
    except Problem as problem:
        await finish(service, found, ended_as(found.state.trace, "failed", str(problem)))
        return
    run.body = found
    run.start()


async def _trace_of_ended(service: Service, run_id: str) -> Trace | None:
    """The trace of a run that was over when its process died, before the end was reported."""
    try:
        trace = await service.store.get(run_id)
    except StoreError:
        return None
    return trace if trace.id == run_id and trace.status != "waiting" else None


def _lost_calls(paid: Sequence[Paid], known: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """Calls that the ledger has and the state has not: they were made after the state was last written."""
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
