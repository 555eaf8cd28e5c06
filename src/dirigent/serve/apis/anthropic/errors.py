"""Errors of `/v1/messages` in Anthropic's form, wherever in the server they are raised."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.types import Scope

from dirigent.serve.apis.anthropic.wire import THREADS, ErrorCode, MessagesErrorBody, MessagesErrorDetail
from dirigent.serve.http.errors import ERROR_FORM, Problem, request_id
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


def name_errors(scope: Scope) -> None:
    """Give a request under `PATH` its form of errors, and its reply a `request-id`; change no other request."""
    path: str = scope["path"]
    if not path.startswith("/"):  # a whole URL, which the gate will reduce to its path
        path = "/" + path.partition("://")[2].partition("/")[2]
    if path == PATH or path.startswith(PATH + "/"):
        scope["request_id"] = request_id()
        scope[ERROR_FORM] = partial(error_body, request_id=scope["request_id"])


def error_body(problem: Problem, *, request_id: str) -> bytes:
    """Clients of this API show the message alone, so it begins with the field at fault."""
    said = redact(str(problem))
    if problem.param and problem.param not in said:
        said = f"{problem.param}: {said}"
    kind = TYPES.get(problem.status, "api_error")
    details = ErrorCode(THREADS) if problem.code == THREADS else None
    detail = MessagesErrorDetail(kind, said, problem.param or None, problem.code or None, details)
    return msgspec.json.encode(MessagesErrorBody(detail, request_id))
