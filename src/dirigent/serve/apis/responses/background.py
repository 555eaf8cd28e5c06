"""Background responses: begun, read, cancelled, and sent as events from what is stored of them.

The run outlives its process (`runs/takeover.py`). The response is stored before its run begins, and gets its end when
the run is over, in whichever process that is. If the process dies between the two, the response gets its end when a
caller asks for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import msgspec
from starlette.types import Receive, Scope, Send

from dirigent.errors import StoreError
from dirigent.run.trace import Trace
from dirigent.serve.apis.responses.kept import finish, keep, missing, read
from dirigent.serve.apis.responses.reply import (
    KEEP_ALIVE,
    Script,
    completed,
    failed,
    reasoning_items,
    summary_of,
    usage_of,
)
from dirigent.serve.apis.responses.wire import Item, ResponseObject
from dirigent.serve.http.errors import Problem, problem_of_run
from dirigent.serve.policy.admission import Place
from dirigent.serve.runs import start, takeover
from dirigent.serve.runs.handle import Run
from dirigent.serve.runs.report import report_of
from dirigent.serve.runs.resume import Kept
from dirigent.serve.runs.stream import HEADERS, send_in_time, write_unless_gone
from dirigent.serve.service import Service
from dirigent.store import run_states
from dirigent.store.idempotency import Begun, Claimed
from dirigent.store.responses import UNFINISHED, KeptResponse, find_response
from dirigent.store.run_states import RunRow

KIND = "response"
LOOK_EVERY_S = 0.25
"""Seconds between two looks at the store: the run may be in another process."""


async def begin(
    run: Run, response: ResponseObject, items: Sequence[Item], *, place: Place, claimed: Claimed | None = None
) -> KeptResponse:
    """Store the response and start its run, which leaves `place` when it is over.

    The same request, sent again under the `claimed` Idempotency-Key, finds both.
    """
    kept = await keep(run.service.store, response, items, key_id=run.caller.key_id, run_id=run.id)
    purpose = {"kind": KIND, "response_id": response.id, "key_id": run.caller.key_id}
    if run.asked.dirigent.trace:
        purpose["trace"] = "whole"
    begun = None if claimed is None else Begun(claimed, run.id, response.id)
    try:
        await start.begin(run, purpose=purpose, place=place, begun=begun)
    except Problem as problem:
        await finish(run.service.store, kept, failed(response, problem))
        raise
    return kept


async def on_finished(service: Service, purpose: Mapping[str, str], trace: Trace) -> None:
    """`service.on_finished["response"]`: give the response its end. A second call changes nothing."""
    kept = await find_response(service.store, purpose["response_id"], key_id=purpose["key_id"])
    if kept is not None:
        await finish(service.store, kept, ended(read(kept), trace, whole="trace" in purpose))


async def up_to_date(service: Service, kept: KeptResponse) -> KeptResponse:
    """Returns the stored response. A response whose process died before it got its end gets it first."""
    return (await _looked_at(service, kept))[0]


async def _looked_at(service: Service, kept: KeptResponse) -> tuple[KeptResponse, RunRow | None]:
    """The stored response, and the row of its run while a process carries that out."""
    if kept.status not in UNFINISHED:
        return kept, None
    row = await run_states.find(service.store, kept.run_id)
    if row is not None and row.state != "waiting":
        return kept, row
    await finish(service.store, kept, await _found_end(service, kept, row))
    return await _again(service, kept.id, kept.key_id), None


async def _found_end(service: Service, kept: KeptResponse, row: RunRow | None) -> ResponseObject:
    """The end of a response whose run no process carries out. A waiting run may belong to another response."""
    try:
        old = None if row is None else row.salvage(Kept)  # a row of another format waits no more, but says for whom
        purpose = {} if old is None else old.purpose
        if row is None or purpose.get("response_id") == kept.id:
            return ended(read(kept), await service.store.get(kept.run_id), whole="trace" in purpose)
    except StoreError:
        pass  # no trace of it, or one of another version
    return failed(read(kept), Problem(503, "the server stopped before the run ended; ask again", code="lost"))


async def cancelled(service: Service, kept: KeptResponse) -> KeptResponse:
    """The response after its run was cancelled; a response that had ended stays as it was."""
    if kept.status not in UNFINISHED:
        return kept
    row = await run_states.find(service.store, kept.run_id)
    await takeover.cancel(service, kept.run_id, key_id=kept.key_id)
    stopped = msgspec.structs.replace(read(kept), status="cancelled", output=reasoning_items(kept.id, _lines_of(row)))
    await finish(service.store, kept, stopped)  # changes nothing if the run gave it its end meanwhile
    return await _again(service, kept.id, kept.key_id)


def ended(response: ResponseObject, trace: Trace, *, whole: bool = False) -> ResponseObject:
    """The response with the end of its run."""
    report = report_of(trace, seconds=trace.seconds, whole=whole)
    if trace.status in ("done", "waiting"):
        return completed(response, trace, report=report, summary=summary_of(trace))
    told = reasoning_items(response.id, summary_of(trace))
    end = msgspec.structs.replace(response, usage=usage_of(trace), dirigent=report, output=told)
    if trace.status == "cancelled":
        return msgspec.structs.replace(end, status="cancelled")
    return failed(end, problem_of_run(trace, headers={}), output=told)


def _lines_of(row: RunRow | None) -> list[str]:
    """The steps so far of a running run, from its last written state."""
    try:
        return [] if row is None else summary_of(row.read(Kept).state.trace)
    except StoreError:
        return []  # stored by another version, which will give the response its end


class ResponseReplay:
    """A background response as a stream of events: an ASGI application.

    While the run continues, here or in another process, its steps are sent as they are written to the store; its text
    is
    sent at the end. The numbers of events follow from what is stored, so a client that comes again with the last number
    it saw gets the missing events. A client that leaves does not change the run.
    """

    broke_off = False
    """The stream ended with a failure, after its status had been sent."""

    def __init__(self, service: Service, kept: KeptResponse, *, after: int = -1) -> None:
        self._service = service
        self._kept = kept
        self._script = Script(read(kept), after=after)
        self._seen = ""
        """When the state was written that was sent last."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await write_unless_gone(self._write(send), receive)

    async def _write(self, send: Send) -> None:
        headers = [*HEADERS, (b"x-dirigent-trace-id", self._kept.run_id.encode())]
        patience_s = self._service.settings.send_timeout_s
        await send_in_time(send, {"type": "http.response.start", "status": 200, "headers": headers}, patience_s)
        await self._body(send, self._script.begun())
        try:
            response = await self._its_end(send)
            last = self._script.rest(response)
        except Problem as problem:
            response = failed(read(self._kept), problem)
            last = self._script.ended(response)
        self.broke_off = response.status in ("failed", "cancelled")
        await self._body(send, last, more=False)

    async def _its_end(self, send: Send) -> ResponseObject:
        """Wait until the response has ended; send its steps, and keep the connection alive, meanwhile."""
        spoke_at = time.monotonic()
        while self._kept.status in UNFINISHED:
            self._kept, row = await _looked_at(self._service, self._kept)
            out = b""
            if row is not None and row.updated_at != self._seen:  # reading a state takes longer than looking for it
                self._seen = row.updated_at
                out = self._script.reason_on(_lines_of(row))
            if not out and time.monotonic() - spoke_at > self._service.settings.keep_alive_s:
                out = KEEP_ALIVE
            if out:
                spoke_at = time.monotonic()
                await self._body(send, out)
            if row is not None:
                await asyncio.sleep(LOOK_EVERY_S)
                self._kept = await _again(self._service, self._kept.id, self._kept.key_id)
        return read(self._kept)

    async def _body(self, send: Send, body: bytes, *, more: bool = True) -> None:
        message = {"type": "http.response.body", "body": body, "more_body": more}
        await send_in_time(send, message, self._service.settings.send_timeout_s)


async def _again(service: Service, id: str, key_id: str) -> KeptResponse:
    """The response as it is in the store now."""
    kept = await find_response(service.store, id, key_id=key_id)
    if kept is None:
        raise missing(id)
    return kept
