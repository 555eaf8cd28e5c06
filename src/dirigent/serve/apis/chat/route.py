"""`POST /v1/chat/completions`: read, admit, run, answer."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.run.trace import Trace
from dirigent.serve.apis.chat.translate import completion_of
from dirigent.serve.apis.chat.wire import ChatRequest, DryRun, read_chat
from dirigent.serve.apis.dirigent_field import with_headers
from dirigent.serve.http.body import CLIENT_GONE, JsonReply, admitted, read_body, unless_gone
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.start import Ask, conducted, drafted, headers_of, prepare, resumed
from dirigent.serve.runs.stream import EventStream
from dirigent.serve.service import Service
from dirigent.store.admission import Place
from dirigent.store.keys import Caller


async def chat(request: Request) -> Any:
    """A completion, whole or as a stream."""
    began = time.monotonic()
    service: Service = request.app.state.service
    caller: Caller = request.scope["caller"]
    try:
        body = await read_body(request, timeout_s=service.settings.body_timeout_s)
        wanted = with_headers(read_chat(body), request.scope)
    except ClientDisconnect:
        return CLIENT_GONE
    place = admitted(service, caller)
    try:
        return await _answered(service, request, wanted, caller=caller, place=place, began=began)
    except BaseException:
        place.leave()
        raise


async def _answered(
    service: Service, request: Request, wanted: ChatRequest, *, caller: Caller, place: Place, began: float
) -> Any:
    ask = prepare(service, wanted, caller=caller, began=began)
    streamed = bool(wanted.stream)
    if wanted.stream_options is not None and not streamed:
        raise Problem(400, "stream_options need stream: true", param="stream_options")
    if streamed and ask.extension.dry_run:
        raise Problem(400, "a dry run has nothing to stream", param="dirigent.dry_run")
    if not ask.extension.dry_run:
        ask = await resumed(service, ask)
    if streamed:
        return EventStream(service, ask, place)
    work: Coroutine[Any, Any, DryRun | Trace]
    work = drafted(service, ask) if ask.extension.dry_run else conducted(service, ask)
    found: DryRun | Trace | None = await unless_gone(service, work, request)
    place.leave()
    return CLIENT_GONE if found is None else _response(ask, found)


def _response(ask: Ask, found: Trace | DryRun) -> Response:
    if isinstance(found, DryRun):
        headers = {"X-Dirigent-Cost-USD": f"{found.cost_usd:.9f}"}
        return JsonReply(msgspec.json.encode(found), headers=headers)
    report = ask.report(found)
    body = msgspec.json.encode(completion_of(found, model=ask.chat.model, report=report, before=ask.before))
    return JsonReply(body, headers=headers_of(report))
