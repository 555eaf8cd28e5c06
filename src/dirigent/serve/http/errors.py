"""Error replies: OpenAI's shape, and one status for each kind of error.

Statuses are chosen by what a client should do next. Client libraries try 408, 409, 429 and 5xx again, so an exhausted
budget is 402 rather than 429, and a request that can never work is 4xx, also if a worker refused it.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Mapping

import msgspec
from starlette.requests import Request
from starlette.types import Scope, Send

from dirigent.errors import (
    ConfigError,
    CostError,
    DeadlineError,
    DirigentError,
    LimitError,
    PlanError,
    StoreError,
    WorkerError,
)
from dirigent.run.trace import Trace
from dirigent.workers.secret import redact

log = logging.getLogger(__name__)


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None = None
    """The faulty field of the request."""
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error reply."""

    error: ErrorDetail


class Problem(Exception):
    """An error reply, raised anywhere in `serve/`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str = "",
        param: str = "",
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))

    def body(self) -> bytes:
        """Return the body of the reply. Secrets are redacted here, last before the caller."""
        kind = TYPES.get(self.status, "server_error")
        detail = ErrorDetail(redact(str(self)), kind, self.param or None, self.code or None)
        return msgspec.json.encode(ErrorBody(detail))


TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}
"""OpenAI's error type for a status; every other status is a `server_error`."""

STATUS_OF: Mapping[str, tuple[int, str]] = {
    ConfigError.__name__: (400, "not_possible"),
    PlanError.__name__: (502, "no_plan"),
    WorkerError.__name__: (503, "worker_failed"),
    DeadlineError.__name__: (504, "deadline"),
    CostError.__name__: (402, "cost_cap"),
    LimitError.__name__: (400, "limit"),
    StoreError.__name__: (503, "store_failed"),
}


REFUSED = (400, "worker_refused")
"""For a worker that would refuse the same request again: a client should not try once more."""


ERROR_FORM = "dirigent.error_form"
"""Where the ASGI scope has an API's own form of errors: a function from a `Problem` to its body."""


def error_body(problem: Problem, scope: Scope) -> bytes:
    """Return the body of an error reply in the form of the API that was asked."""
    form: Callable[[Problem], bytes] = scope.get(ERROR_FORM, Problem.body)
    return form(problem)


def request_id() -> str:
    """Return a new name for a reply, which clients show in their errors and logs."""
    return f"req_{secrets.token_hex(12)}"


def mistake() -> Problem:
    """Return the reply to a request that met a bug."""
    return Problem(500, "the server made a mistake; its log says more", code="bug")


def problem_of(error: DirigentError) -> Problem:
    """Return the reply for an expected failure."""
    return _problem(type(error).__name__, error.for_caller, {}, fault=getattr(error, "fault", ""))


def problem_of_run(trace: Trace, *, headers: Mapping[str, str]) -> Problem:
    """Return the reply for a failed run. The provider's own words are in the trace only, which its owner can read."""
    said = trace.error_for_caller
    if trace.error_kind == WorkerError.__name__:
        said += f" (trace {trace.id})"
    return _problem(trace.error_kind, said, headers, fault=trace.error_fault)


def _problem(kind: str, message: str, headers: Mapping[str, str], *, fault: str) -> Problem:
    status, code = REFUSED if fault == "request" else STATUS_OF.get(kind, (500, "failed"))
    if kind == StoreError.__name__:  # the message names the database: only the operator may see it
        log.error("%s", message)
        message = "the store does not answer as it should; try again later (the server's log says more)"
    return Problem(status, message, code=code, retry_after_s=1 if status == 503 else None, headers=headers)


def require_admin(request: Request) -> None:
    """Raise a `Problem` unless the caller's key has the role admin."""
    if request.scope["caller"].role != "admin":
        raise Problem(403, "this needs a key with the role admin", code="role")


async def send_problem(problem: Problem, send: Send, scope: Scope) -> None:
    """Send a problem as the reply."""
    body = error_body(problem, scope)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
