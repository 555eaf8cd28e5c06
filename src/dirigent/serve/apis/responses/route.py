"""`/v1/responses`: answers that are stored, found again, and continued.

A response is stored when it ends (unless `store` is false), before its last byte goes out. With `background` no caller
waits for it (`background.py`).
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.serve.apis.exchange import respond
from dirigent.serve.apis.responses.background import ResponseReplay, begin, cancelled, up_to_date
from dirigent.serve.apis.responses.kept import conversation_before, found, items_used, missing
from dirigent.serve.apis.responses.kept import read as read_kept
from dirigent.serve.apis.responses.reply import ResponseWriter
from dirigent.serve.apis.responses.wire import DeletedResponse, ItemList, ResponseObject, Wanted, asked_of, opened, read
from dirigent.serve.http.body import CLIENT_GONE, read_body
from dirigent.serve.http.errors import Problem
from dirigent.serve.http.idempotency import claim_of
from dirigent.serve.policy.admission import Place
from dirigent.serve.runs.asked import Asked
from dirigent.serve.runs.handle import Run
from dirigent.serve.service import Service
from dirigent.store.idempotency import Claimed
from dirigent.store.keys import Caller
from dirigent.store.responses import UNFINISHED, KeptResponse, delete_response

MAX_ITEMS = 100


async def create_response(request: Request) -> Any:
    """A response: whole, as a stream, or in the background."""
    service, caller, claimed = _service(request), _caller(request), claim_of(request)
    if claimed is not None and claimed.begun:
        try:
            wanted = read(await read_body(request, timeout_s=service.settings.body_timeout_s))
        except ClientDisconnect:
            return CLIENT_GONE
        kept = await up_to_date(service, await found(service.store, claimed.begun, caller))
        return _background_reply(service, kept, stream=bool(wanted.request.stream))
    incoming = _Incoming(claimed)
    return await respond(request, incoming.read, incoming.writer, begin=incoming.begin)


class _Incoming:
    """A request to make a response, which asks for something only together with the conversation before it."""

    _wanted: Wanted

    def __init__(self, claimed: Claimed | None) -> None:
        self._claimed = claimed

    def read(self, body: bytes) -> _Incoming:
        self._wanted = read(body)
        return self

    async def asked(self, service: Service, caller: Caller) -> Asked:
        previous = self._wanted.request.previous_response_id
        if previous is None:
            return asked_of(self._wanted, history=())
        history, run_before = await conversation_before(service.store, previous, caller)
        return asked_of(self._wanted, history=history, run_before=run_before)

    def writer(self, run: Run) -> ResponseWriter:
        return ResponseWriter(run, self._opened(), self._wanted.items)

    async def begin(self, run: Run, place: Place) -> Any:
        kept = await begin(run, self._opened(), self._wanted.items, place=place, claimed=self._claimed)
        return _background_reply(run.service, kept, stream=run.asked.stream)

    def _opened(self) -> ResponseObject:
        return opened(self._wanted.request, f"resp_{secrets.token_hex(16)}")


def _background_reply(service: Service, kept: KeptResponse, *, stream: bool) -> Any:
    return ResponseReplay(service, kept) if stream else _json(kept.response, {"X-Dirigent-Trace-Id": kept.run_id})


async def get_response(request: Request) -> Any:
    """Returns a stored response; `stream=true` sends a background one as events, those after `starting_after`."""
    service, caller = _service(request), _caller(request)
    query = _query(request, {"stream", "starting_after", "include", "include_obfuscation"})
    kept = await up_to_date(service, await found(service.store, request.path_params["id"], caller))
    if query.get("stream", "false").lower() != "true":
        if "starting_after" in query:
            raise Problem(400, "starting_after needs stream=true", param="starting_after")
        return _json(kept.response)
    if not read_kept(kept).background:
        raise Problem(400, "only responses of the background can be streamed again", param="stream")
    after = _number(query.get("starting_after"), "starting_after", least=0, most=10**9, default=-1)
    return ResponseReplay(service, kept, after=after)


async def delete_kept_response(request: Request) -> Response:
    """Deletes a response. A running one is cancelled first."""
    service, caller, id = _service(request), _caller(request), request.path_params["id"]
    kept = await found(service.store, id, caller)
    if kept.status in UNFINISHED:
        await cancelled(service, kept)
    if not await delete_response(service.store, id, key_id=caller.key_id):
        raise missing(id)
    return _json(msgspec.json.encode(DeletedResponse(id)))


async def cancel_response(request: Request) -> Response:
    """Cancels a background response. One that has ended does not change."""
    service, caller = _service(request), _caller(request)
    kept = await found(service.store, request.path_params["id"], caller)
    if not read_kept(kept).background:
        raise Problem(400, "only responses of the background can be cancelled", code="not_background")
    return _json((await cancelled(service, kept)).response)


async def list_input_items(request: Request) -> Response:
    """Returns the input of a response, with the conversation before it; the newest first."""
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
    return _json(msgspec.json.encode(ItemList(tuple(page), first, last, has_more=len(items) > limit)))


def _service(request: Request) -> Service:
    service: Service = request.app.service
    return service


def _caller(request: Request) -> Caller:
    caller: Caller = request.scope["caller"]
    return caller


def _query(request: Request, known: set[str]) -> dict[str, str]:
    """The parameters after the `?`. Lists come as `include[]=…` or `include[0]=…`."""
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


def _json(body: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(body, media_type="application/json", headers=headers)
