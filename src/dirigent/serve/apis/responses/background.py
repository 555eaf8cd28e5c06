"""Responses that nobody waits for: begun, looked at, cancelled, and told as events from what is kept of them.

The run itself is `background.py`'s, and outlives the process. Here is what it is for: the response is kept before
its run begins, and given its end when the run is over, whichever process that is in. A response whose run is no
longer known (its process died between the two) gets its end when somebody asks for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import msgspec

from dirigent.errors import StoreError
from dirigent.run.trace import Trace
from dirigent.serve.apis.chat.translate import report_of
from dirigent.serve.apis.responses.events import KEEP_ALIVE, Script
from dirigent.serve.apis.responses.kept import finish, keep, missing, read
from dirigent.serve.apis.responses.translate import completed, failed, reasoning_items, summary_of, usage_of
from dirigent.serve.apis.responses.wire import Item, ResponseObject
from dirigent.serve.http.auth import Receive, Scope, Send
from dirigent.serve.http.body import disconnected
from dirigent.serve.http.errors import Problem, problem_of_run
from dirigent.serve.runs import background
from dirigent.serve.runs.resume import Kept
from dirigent.serve.runs.start import Ask
from dirigent.serve.runs.stream import HEADERS, send_in_time
from dirigent.serve.service import Service
from dirigent.store import run_states
from dirigent.store.admission import Place
from dirigent.store.idempotency import Begun, Claimed
from dirigent.store.responses import UNFINISHED, KeptResponse, find_response
from dirigent.store.run_states import RunRow

KIND = "response"
LOOK_EVERY_S = 0.25
"""How often a stream looks whether its response has ended: the run may be in another process."""


async def begin(
    service: Service,
    ask: Ask,
    response: ResponseObject,
    items: Sequence[Item],
    *,
    place: Place,
    claimed: Claimed | None = None,
) -> KeptResponse:
    """Keep the response as it stands and start its run, which leaves its place when it is over. Both are found again
    by whoever sends the request that was `claimed` once more."""
    kept = await keep(service.store, response, items, key_id=ask.caller.key_id, run_id=ask.run_id)
    purpose = {"kind": KIND, "response_id": response.id, "key_id": ask.caller.key_id}
    if ask.extension.trace:
        purpose["trace"] = "whole"
    begun = None if claimed is None else Begun(claimed, ask.run_id, response.id)
    try:
        await background.start(service, ask, purpose=purpose, place=place, begun=begun)
    except Problem as problem:
        await finish(service.store, kept, failed(response, problem))
        raise
    return kept


async def on_finished(service: Service, purpose: Mapping[str, str], trace: Trace) -> None:
    """`service.on_finished["response"]`: give the response its end. Told twice, the second changes nothing."""
    kept = await find_response(service.store, purpose["response_id"], key_id=purpose["key_id"])
    if kept is not None:
        await finish(service.store, kept, ended(read(kept), trace, whole="trace" in purpose))


async def up_to_date(service: Service, kept: KeptResponse) -> KeptResponse:
    """The response as it stands, also where whoever should have given it its end died before that."""
    return (await _looked_at(service, kept))[0]


async def _looked_at(service: Service, kept: KeptResponse) -> tuple[KeptResponse, RunRow | None]:
    """The response as it stands, and the state of its run while somebody carries that out."""
    if kept.status not in UNFINISHED:
        return kept, None
    row = await run_states.find(service.store, kept.run_id)
    if row is not None and row.state != "waiting":
        return kept, row
    await finish(service.store, kept, await _found_end(service, kept, row))
    return await _again(service, kept.id, kept.key_id), None


async def _found_end(service: Service, kept: KeptResponse, row: RunRow | None) -> ResponseObject:
    """What became of a response whose run nobody carries out. A run that waits may not have been taken up for it."""
    try:
        old = None if row is None else row.salvage(Kept)  # a row of another format waits no more, but says for whom
        purpose = {} if old is None else old.purpose
        if row is None or purpose.get("response_id") == kept.id:
            return ended(read(kept), await service.store.get(kept.run_id), whole="trace" in purpose)
    except StoreError:
        pass  # no trace of it, or one of another version
    return failed(read(kept), Problem(503, "the server stopped before the run began; ask again", code="lost"))


async def cancelled(service: Service, kept: KeptResponse) -> KeptResponse:
    """The response after its run was cancelled, or as it was where it had ended."""
    if kept.status not in UNFINISHED:
        return kept
    row = await run_states.find(service.store, kept.run_id)
    await background.cancel(service, kept.run_id, key_id=kept.key_id)
    stopped = msgspec.structs.replace(read(kept), status="cancelled", output=reasoning_items(kept.id, _lines_of(row)))
    await finish(service.store, kept, stopped)  # changes nothing where the run gave it its end meanwhile
    return await _again(service, kept.id, kept.key_id)


def ended(response: ResponseObject, trace: Trace, *, whole: bool = False) -> ResponseObject:
    """The response with the end its run came to."""
    report = report_of(trace, seconds=trace.seconds, whole=whole)
    if trace.status in ("done", "waiting"):
        return completed(response, trace, report=report, summary=summary_of(trace))
    told = reasoning_items(response.id, summary_of(trace))
    end = msgspec.structs.replace(response, usage=usage_of(trace), dirigent=report, output=told)
    if trace.status == "cancelled":
        return msgspec.structs.replace(end, status="cancelled")
    return failed(end, problem_of_run(trace, headers={}), output=told)


def _lines_of(row: RunRow | None) -> list[str]:
    """What a run that goes on has done so far, as its state was last written down."""
    try:
        return [] if row is None else summary_of(row.read(Kept).state.trace)
    except StoreError:
        return []  # kept by another version, which will tell it in the end


class ResponseReplay:
    """A response of the background as a stream of events: an ASGI application.

    While the run goes on, here or in another process, its steps are told as they are written down; its text when it
    has ended. The numbers of the events follow from what is kept, so whoever comes again with the last number they
    saw gets what is missing. A client that goes away leaves the run as it is.
    """

    def __init__(self, service: Service, kept: KeptResponse, *, after: int = -1) -> None:
        self._service = service
        self._kept = kept
        self._script = Script(read(kept), after=after)
        self._seen = ""
        """When the run's state was written that was told last."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(disconnected(receive))
        writing = asyncio.ensure_future(self._write(send))
        try:
            await asyncio.wait((writing, gone), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        except OSError:
            pass  # the client went away while it was written to
        finally:
            for task in (gone, writing):
                task.cancel()
            await asyncio.gather(gone, writing, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        headers = [*HEADERS, (b"x-dirigent-trace-id", self._kept.run_id.encode())]
        patience_s = self._service.settings.send_timeout_s
        await send_in_time(send, {"type": "http.response.start", "status": 200, "headers": headers}, patience_s)
        await self._body(send, self._script.begun())
        try:
            last = self._script.rest(await self._its_end(send))
        except Problem as problem:
            last = self._script.ended(failed(read(self._kept), problem))
        await self._body(send, last, more=False)

    async def _its_end(self, send: Send) -> ResponseObject:
        """Waits until the response has ended; tells its steps, and keeps the connection alive, meanwhile."""
        spoke_at = time.monotonic()
        while self._kept.status in UNFINISHED:
            self._kept, row = await _looked_at(self._service, self._kept)
            out = self._script.reason_on(self._news(row))
            if not out and time.monotonic() - spoke_at > self._service.settings.keep_alive_s:
                out = KEEP_ALIVE
            if out:
                spoke_at = time.monotonic()
                await self._body(send, out)
            if row is not None:
                await asyncio.sleep(LOOK_EVERY_S)
                self._kept = await _again(self._service, self._kept.id, self._kept.key_id)
        return read(self._kept)

    def _news(self, row: RunRow | None) -> list[str]:
        """The run's lines, where its state was written since the last look: reading one takes longer than looking."""
        if row is None or row.updated_at == self._seen:
            return []
        self._seen = row.updated_at
        return _lines_of(row)

    async def _body(self, send: Send, body: bytes, *, more: bool = True) -> None:
        message = {"type": "http.response.body", "body": body, "more_body": more}
        await send_in_time(send, message, self._service.settings.send_timeout_s)


async def _again(service: Service, id: str, key_id: str) -> KeptResponse:
    """The response as the store has it now."""
    kept = await find_response(service.store, id, key_id=key_id)
    if kept is None:
        raise missing(id)
    return kept
