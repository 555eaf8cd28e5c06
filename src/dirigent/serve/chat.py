"""`POST /v1/chat/completions`: read, admit, run, answer."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.serve.conducting import Ask, conducted, drafted, headers_of, prepare
from dirigent.serve.gate import Receive
from dirigent.serve.problems import Problem
from dirigent.serve.service import Service
from dirigent.serve.stream import EventStream, disconnected
from dirigent.serve.translate import completion_of
from dirigent.serve.wire import MAX_BODY_BYTES, ChatRequest, DryRun, read_chat
from dirigent.store.admission import Place, Refusal
from dirigent.store.keys import Caller
from dirigent.trace import Trace

CLIENT_GONE = Response(status_code=499)
"""Nobody reads it; the number is what proxies log for it."""


async def chat(request: Request) -> Any:
    """A completion, whole or as a stream."""
    began = time.monotonic()
    service: Service = request.app.state.service
    caller: Caller = request.scope["caller"]
    try:
        wanted = read_chat(await read_body(request, timeout_s=service.settings.body_timeout_s))
    except ClientDisconnect:
        return CLIENT_GONE
    place = _admitted(service, caller)
    try:
        return await _answered(service, request, wanted, caller=caller, place=place, began=began)
    except BaseException:
        place.leave()
        raise


async def read_body(request: Request, *, timeout_s: float) -> bytes:
    """The body, within its bounds in size and time."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, f"the content type is {kind[:60]!r}; send application/json", code="content_type")
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise Problem(413, f"the body is larger than {MAX_BODY_BYTES:,} bytes", code="too_large")
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {timeout_s:g} s", code="slow_body") from None
    return bytes(body)


def _admitted(service: Service, caller: Caller) -> Place:
    place = service.admission.enter(caller)
    if isinstance(place, Refusal):
        status = 503 if place.reason == "busy" else 429
        raise Problem(status, place.said, code=place.reason, retry_after_s=place.retry_after_s)
    return place


async def _answered(
    service: Service, request: Request, wanted: ChatRequest, *, caller: Caller, place: Place, began: float
) -> Any:
    ask = prepare(service, wanted, caller=caller, began=began)
    streamed = bool(wanted.stream)
    if wanted.stream_options is not None and not streamed:
        raise Problem(400, "stream_options need stream: true", param="stream_options")
    if streamed and ask.extension.dry_run:
        raise Problem(400, "a dry run has nothing to stream", param="dirigent.dry_run")
    if streamed:
        return EventStream(service, ask, place)
    task: asyncio.Future[DryRun] | asyncio.Future[Trace]
    task = service.own(drafted(service, ask)) if ask.extension.dry_run else service.own(conducted(service, ask))
    done = await _unless_gone(task, request.receive)
    place.leave()
    return _response(ask, task.result()) if done else CLIENT_GONE


async def _unless_gone(task: asyncio.Future[Any], receive: Receive) -> bool:
    """Wait for the task; a client that goes away first cancels it. Whether it was done."""
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        for each in (gone, task):
            each.cancel()
        await asyncio.gather(gone, task, return_exceptions=True)


def _response(ask: Ask, found: Trace | DryRun) -> Response:
    if isinstance(found, DryRun):
        headers = {"X-Dirigent-Cost-USD": f"{found.cost_usd:.9f}"}
        return Response(msgspec.json.encode(found), media_type="application/json", headers=headers)
    report = ask.report(found)
    body = msgspec.json.encode(completion_of(found, model=ask.chat.model, report=report))
    return Response(body, media_type="application/json", headers=headers_of(report))
