"""Errors of `/v1/messages` in Anthropic's shape, wherever they come from.

The gate, the router and the rest of the server know one shape of error. A layer before all of them puts what
leaves under this route's paths into the other, so that none of them needs to know of two.
"""

from __future__ import annotations

import secrets
from collections.abc import MutableMapping
from typing import Any

import msgspec

from dirigent.serve.apis.anthropic.wire import THREADS, ErrorCode, MessagesErrorBody, MessagesErrorDetail
from dirigent.serve.http.auth import App, Receive, Scope, Send
from dirigent.serve.http.errors import ErrorBody, Problem
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
"""Anthropic's word for a status; everything else is an `api_error`."""


class MessagesErrors:
    """An ASGI application before the application. Every reply of these paths gets a `request-id`."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == PATH or path.startswith(PATH + "/")):
            await self._app(scope, receive, send)
            return
        scope["request_id"] = f"req_{secrets.token_hex(12)}"
        await self._app(scope, receive, _Translated(send, scope["request_id"]).send)


class _Translated:
    """Passes a reply on. One that is no success is held until it is whole, and put into the other shape."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._id = request_id
        self._held: MutableMapping[str, Any] | None = None
        self._body = bytearray()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"request-id", self._id.encode())]}
            if message["status"] >= 400:
                self._held = message
                return
        elif self._held is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_held(self._held)
            return
        await self._send(message)

    async def _send_held(self, start: MutableMapping[str, Any]) -> None:
        body = _translated(bytes(self._body), start["status"], self._id)
        headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({**start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def _translated(body: bytes, status: int, request_id: str) -> bytes:
    try:
        error = msgspec.json.decode(body, type=ErrorBody).error
    except msgspec.MsgspecError:
        return body  # nothing of ours: the empty body of a reply that nobody reads
    problem = Problem(status, error.message, param=error.param or "", code=error.code or "")
    return error_body(problem, request_id=request_id)


def error_body(problem: Problem, *, request_id: str) -> bytes:
    """Clients of this format show the message alone, so it begins with the field at fault."""
    said = redact(str(problem))
    if problem.param and problem.param not in said:
        said = f"{problem.param}: {said}"
    kind = TYPES.get(problem.status, "api_error")
    details = ErrorCode(THREADS) if problem.code == THREADS else None
    detail = MessagesErrorDetail(kind, said, problem.param or None, problem.code or None, details)
    return msgspec.json.encode(MessagesErrorBody(detail, request_id))
