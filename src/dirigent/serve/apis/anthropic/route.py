"""`/v1/messages`: the same runs for those who speak Anthropic's format.

A request is put into chat's words and then travels as every other does (`conducting.py`). Nothing is kept but the
trace.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.serve.apis.anthropic.events import MessagesEvents
from dirigent.serve.apis.anthropic.translate import (
    calls_one_by_one,
    chat_of,
    estimated_tokens,
    message_of,
    renamed,
    told,
)
from dirigent.serve.apis.anthropic.wire import (
    CustomToolParam,
    MessagesRequest,
    TokenCount,
    read_count_request,
    read_messages_request,
)
from dirigent.serve.apis.dirigent_field import with_headers
from dirigent.serve.http.body import CLIENT_GONE, JsonReply, admitted, read_body, unless_gone
from dirigent.serve.http.errors import Problem
from dirigent.serve.policy.serial_tool_calls import one_call_each
from dirigent.serve.runs.start import Ask, conducted, drafted, headers_of, prepare, resumed
from dirigent.serve.runs.stream import EventStream
from dirigent.serve.service import Service
from dirigent.store.admission import Place
from dirigent.store.keys import Caller


async def create_message(request: Request) -> Any:
    """A message, whole or as a stream, in Anthropic's format."""
    began = time.monotonic()
    service: Service = request.app.state.service
    caller: Caller = request.scope["caller"]
    try:
        body = await read_body(request, timeout_s=service.settings.body_timeout_s)
    except ClientDisconnect:
        return CLIENT_GONE
    wanted, tools = read_messages_request(body)
    place = admitted(service, caller)
    try:
        ask = await _prepared(service, request, wanted, tools, caller=caller, began=began)
        return await _answered(service, request, wanted, ask=ask, place=place)
    except BaseException:
        place.leave()
        raise


async def count_tokens(request: Request) -> Response:
    """About how many tokens a request is, in Anthropic's format; nobody is asked."""
    service: Service = request.app.state.service
    caller: Caller = request.scope["caller"]
    try:
        body = await read_body(request, timeout_s=service.settings.body_timeout_s)
    except ClientDisconnect:
        return CLIENT_GONE
    wanted, tools = read_count_request(body)
    if service.models.card(wanted.model, caller) is None:
        raise service.models.missing(wanted.model, caller)
    return _json(TokenCount(estimated_tokens(told(wanted), tools)))


async def _prepared(
    service: Service,
    request: Request,
    wanted: MessagesRequest,
    tools: tuple[CustomToolParam, ...],
    *,
    caller: Caller,
    began: float,
) -> Ask:
    conversation = told(wanted)
    chat = with_headers(chat_of(wanted, conversation, tools), request.scope)
    try:
        ask = prepare(service, chat, caller=caller, began=began)
        if not ask.extension.dry_run:
            ask = await resumed(service, ask)
    except Problem as problem:
        raise renamed(problem, conversation.places) from None
    if calls_one_by_one(wanted):
        ask = msgspec.structs.replace(ask, conductor=one_call_each(ask.conductor))
    return ask


async def _answered(service: Service, request: Request, wanted: MessagesRequest, *, ask: Ask, place: Place) -> Any:
    id = f"msg_{secrets.token_hex(12)}"
    if wanted.stream:
        if ask.extension.dry_run:
            raise Problem(400, "a dry run has nothing to stream", param="dirigent.dry_run")
        events = MessagesEvents(ask, id=id, request_id=request.scope["request_id"])
        return EventStream(service, ask, place, events=events)
    work = _drafted(service, ask) if ask.extension.dry_run else _whole(service, ask, id)
    response = await unless_gone(service, work, request)
    place.leave()
    return CLIENT_GONE if response is None else response


async def _whole(service: Service, ask: Ask, id: str) -> Response:
    trace = await conducted(service, ask)
    report = ask.report(trace)
    message = message_of(trace, id=id, model=ask.chat.model, report=report, before=ask.before)
    return _json(message, headers=headers_of(report))


async def _drafted(service: Service, ask: Ask) -> Response:
    found = await drafted(service, ask)
    return _json(found, headers={"X-Dirigent-Cost-USD": f"{found.cost_usd:.9f}"})


def _json(value: Any, *, headers: dict[str, str] | None = None) -> Response:
    return JsonReply(msgspec.json.encode(value), headers=headers)
