"""`POST /v1/messages` and `/v1/messages/count_tokens`. Of these requests only the trace is stored."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.serve.apis.anthropic.reply import MessagesWriter
from dirigent.serve.apis.anthropic.wire import TokenCount, read, read_count
from dirigent.serve.apis.exchange import Plain, json_reply, respond
from dirigent.serve.http.body import CLIENT_GONE, read_body
from dirigent.serve.service import Service
from dirigent.store.keys import Caller


async def create_message(request: Request) -> Any:
    """A message, whole or as a stream, in Anthropic's format."""
    return await respond(request, lambda body: Plain(read(body), MessagesWriter))


async def count_tokens(request: Request) -> Response:
    """About how many tokens a request is, in Anthropic's format; nobody is asked."""
    service: Service = request.app.state.service
    caller: Caller = request.scope["caller"]
    try:
        body = await read_body(request, timeout_s=service.settings.body_timeout_s)
    except ClientDisconnect:
        return CLIENT_GONE
    model, tokens = read_count(body)
    if service.models.card(model, caller) is None:
        raise service.models.missing(model, caller)
    return json_reply(msgspec.json.encode(TokenCount(tokens)))
