"""Errors of `/v1/messages` in Anthropic's form, wherever in the server they are raised."""

from __future__ import annotations

import secrets
from functools import partial

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dirigent.serve.apis.anthropic.wire import THREADS, ErrorCode, MessagesErrorBody, MessagesErrorDetail
from dirigent.serve.http.errors import ERROR_FORM, Problem
from dirigent.workers.secret import redact

PATH = "/v1/messages"

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's word for a status; every other status is an `api_error`."""


class MessagesErrors:
    """ASGI middleware that gives requests under `PATH` their form of errors, and their replies a `request-id`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if not path.startswith("/"):  # a whole URL, which the gate will reduce to its path
            path = "/" + path.partition("://")[2].partition("/")[2]
        if scope["type"] != "http" or not (path == PATH or path.startswith(PATH + "/")):
            await self._app(scope, receive, send)
            return
        id = scope["request_id"] = f"req_{secrets.token_hex(12)}"
        scope[ERROR_FORM] = partial(error_body, request_id=id)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"request-id", id.encode())]}
            await send(message)

        await self._app(scope, receive, sending)


def error_body(problem: Problem, *, request_id: str) -> bytes:
    """Clients of this API show the message alone, so it begins with the field at fault."""
    said = redact(str(problem))
    if problem.param and problem.param not in said:
        said = f"{problem.param}: {said}"
    kind = TYPES.get(problem.status, "api_error")
    details = ErrorCode(THREADS) if problem.code == THREADS else None
    detail = MessagesErrorDetail(kind, said, problem.param or None, problem.code or None, details)
    return msgspec.json.encode(MessagesErrorBody(detail, request_id))
