"""`/v1/responses`: answers that are kept, found again, and gone on from.

A request is put into chat's words together with the conversation it goes on from, and then travels as every
other does (`conducting.py`). What is its own: the response is kept when it ends (unless `store` is false), before
its last byte goes out; and with `background` nobody waits for it (`responses_background.py`).
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.serve.apis.chat.wire import DryRun
from dirigent.serve.apis.dirigent_field import with_headers
from dirigent.serve.apis.responses.background import ResponseReplay, begin, cancelled, up_to_date
from dirigent.serve.apis.responses.events import ResponseEvents
from dirigent.serve.apis.responses.kept import found, items_before, items_used, keep, missing, read
from dirigent.serve.apis.responses.translate import Progress, chat_of, completed, opened, renamed, told
from dirigent.serve.apis.responses.wire import (
    DeletedResponse,
    Item,
    ItemList,
    ResponseObject,
    ResponseRequest,
    read_response_request,
)
from dirigent.serve.http.body import CLIENT_GONE, JsonReply, admitted, read_body, unless_gone
from dirigent.serve.http.errors import Problem
from dirigent.serve.http.idempotency import claim_of
from dirigent.serve.policy.serial_tool_calls import one_call_each
from dirigent.serve.runs.start import Ask, conducted, drafted, headers_of, prepare, resumed
from dirigent.serve.runs.stream import EventStream
from dirigent.serve.service import Service
from dirigent.store.admission import Place
from dirigent.store.keys import Caller
from dirigent.store.responses import UNFINISHED, KeptResponse, delete_response

MAX_ITEMS = 100


class Wanted(msgspec.Struct, frozen=True):
    """A request to `/v1/responses` that was read."""

    request: ResponseRequest
    items: tuple[Item, ...]
    response: ResponseObject
    """As it stands before anyone is asked."""


async def create_response(request: Request) -> Any:
    """A response: whole, as a stream, or in the background."""
    began = time.monotonic()
    service, caller = _service(request), _caller(request)
    try:
        body = await read_body(request, timeout_s=service.settings.body_timeout_s)
    except ClientDisconnect:
        return CLIENT_GONE
    wanted, claimed = _wanted(body), claim_of(request)
    if claimed is not None and claimed.begun:
        kept = await found(service.store, claimed.begun, caller)
        return _told(service, wanted, await up_to_date(service, kept))
    place = admitted(service, caller)
    try:
        ask = await _prepared(service, request, wanted, caller=caller, began=began)
        return await _answered(service, request, wanted, ask=ask, place=place)
    except BaseException:
        place.leave()
        raise


async def get_response(request: Request) -> Any:
    """A response that was kept; `stream=true` tells one of the background as events, `starting_after` a number."""
    service, caller = _service(request), _caller(request)
    query = _query(request, {"stream", "starting_after", "include", "include_obfuscation"})
    kept = await up_to_date(service, await found(service.store, request.path_params["id"], caller))
    if query.get("stream", "false").lower() != "true":
        if "starting_after" in query:
            raise Problem(400, "starting_after needs stream=true", param="starting_after")
        return Response(kept.response, media_type="application/json")
    if not read(kept).background:
        raise Problem(400, "only responses of the background can be streamed again", param="stream")
    after = _number(query.get("starting_after"), "starting_after", least=0, most=10**9, default=-1)
    return ResponseReplay(service, kept, after=after)


async def delete_kept_response(request: Request) -> Response:
    """Forget a response. One that still runs is cancelled first."""
    service, caller, id = _service(request), _caller(request), request.path_params["id"]
    kept = await found(service.store, id, caller)
    if kept.status in UNFINISHED:
        await cancelled(service, kept)
    if not await delete_response(service.store, id, key_id=caller.key_id):
        raise missing(id)
    return _json(DeletedResponse(id))


async def cancel_response(request: Request) -> Response:
    """Cancel a response of the background. One that has ended stays as it is."""
    service, caller = _service(request), _caller(request)
    kept = await found(service.store, request.path_params["id"], caller)
    if not read(kept).background:
        raise Problem(400, "only responses of the background can be cancelled", code="not_background")
    kept = await cancelled(service, kept)
    return Response(kept.response, media_type="application/json")


async def list_input_items(request: Request) -> Response:
    """What a response was made from, the conversation before it included; the newest first."""
    query = _query(request, {"after", "limit", "order", "include"})
    limit = _number(query.get("limit"), "limit", least=1, most=MAX_ITEMS, default=20)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise Problem(400, f"order must be asc or desc, not {order[:20]!r}", param="order")
    items = list(await items_used(_service(request).store, request.path_params["id"], _caller(request)))
    items = items if order == "asc" else items[::-1]
    if (after := query.get("after")) is not None:
        ids = [item.id for item in items]
        if after not in ids:
            raise Problem(400, f"no item has the id {after[:80]!r}", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return _json(ItemList(tuple(page), first, last, has_more=len(items) > limit))


def _wanted(body: bytes) -> Wanted:
    """What cannot go together is refused here."""
    request, items = read_response_request(body)
    if request.stream_options is not None and not request.stream:
        raise Problem(400, "stream_options need stream: true", param="stream_options")
    if request.background:
        dry_run = request.dirigent is not None and request.dirigent.dry_run
        for param, why in (
            ("store", "a response that is not kept cannot be found again" if request.store is False else ""),
            ("dirigent.dry_run", "a dry run is quick" if dry_run else ""),
            ("parallel_tool_calls", "it cannot be false" if request.parallel_tool_calls is False else ""),
        ):
            if why:
                raise Problem(400, f"{param} does not go with background: true: {why}", param=param)
    response = opened(request, f"resp_{secrets.token_hex(16)}", status="in_progress")
    return Wanted(request, items, response)


async def _prepared(service: Service, request: Request, wanted: Wanted, *, caller: Caller, began: float) -> Ask:
    previous = wanted.request.previous_response_id
    history = () if previous is None else await items_before(service.store, previous, caller)
    conversation = told(wanted.request, wanted.items, history=history)
    if not conversation.messages:
        raise Problem(400, "input holds nothing to answer", param="input")
    chat = with_headers(chat_of(wanted.request, conversation), request.scope)
    try:
        ask = prepare(service, chat, caller=caller, began=began)
        if not ask.extension.dry_run:
            ask = await resumed(service, ask)
    except Problem as problem:
        raise renamed(problem, conversation.places) from None
    if wanted.request.parallel_tool_calls is False:
        ask = msgspec.structs.replace(ask, conductor=one_call_each(ask.conductor))
    return ask


async def _answered(service: Service, request: Request, wanted: Wanted, *, ask: Ask, place: Place) -> Any:
    streamed = bool(wanted.request.stream)
    if streamed and ask.extension.dry_run:
        raise Problem(400, "a dry run has nothing to stream", param="dirigent.dry_run")
    if wanted.request.background:
        claimed = claim_of(request)
        kept = await begin(service, ask, wanted.response, wanted.items, place=place, claimed=claimed)
        return _told(service, wanted, kept)
    if streamed:
        events = ResponseEvents(ask, wanted.response, keep=_keeper(service, wanted, ask))
        return EventStream(service, ask, place, events=events)
    work = _drafted(service, ask) if ask.extension.dry_run else _whole(service, wanted, ask)
    response = await unless_gone(service, work, request)
    place.leave()
    return CLIENT_GONE if response is None else response


def _told(service: Service, wanted: Wanted, kept: KeptResponse) -> Any:
    """What is said of a response of the background."""
    if wanted.request.stream:
        return ResponseReplay(service, kept)
    return JsonReply(kept.response, headers={"X-Dirigent-Trace-Id": kept.run_id})


async def _whole(service: Service, wanted: Wanted, ask: Ask) -> Response:
    progress = Progress(max_rounds=ask.conductor.limits.max_rounds)
    trace = await conducted(service, ask, observe=progress.observe)
    report = ask.report(trace)
    response = completed(wanted.response, trace, report=report, summary=progress.lines, before=ask.before)
    await _keeper(service, wanted, ask)(response)
    return _json(response, headers=headers_of(report))


async def _drafted(service: Service, ask: Ask) -> Response:
    found: DryRun = await drafted(service, ask)
    return _json(found, headers={"X-Dirigent-Cost-USD": f"{found.cost_usd:.9f}"})


def _keeper(service: Service, wanted: Wanted, ask: Ask) -> Any:
    async def keep_it(response: ResponseObject) -> None:
        if response.store:
            await keep(service.store, response, wanted.items, key_id=ask.caller.key_id, run_id=ask.run_id)

    return keep_it


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _caller(request: Request) -> Caller:
    caller: Caller = request.scope["caller"]
    return caller


def _query(request: Request, known: set[str]) -> dict[str, str]:
    """The parameters after the `?`; lists come as `include[]=…` or `include[0]=…`."""
    query = {name.partition("[")[0]: value for name, value in request.query_params.items()}
    for name in sorted(query.keys() - known):
        raise Problem(400, f"unknown parameter {name[:60]!r}", param=name[:60])
    return query


def _number(text: str | None, name: str, *, least: int, most: int, default: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or not least <= int(text[:12]) <= most:
        raise Problem(400, f"{name} must be {least} to {most}, not {text[:20]!r}", param=name)
    return int(text[:12])


def _json(value: Any, *, headers: dict[str, str] | None = None) -> Response:
    return JsonReply(msgspec.json.encode(value), headers=headers)
