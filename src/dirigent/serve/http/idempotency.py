"""Idempotency-Key: a request that is sent twice is carried out once, and its reply is replayed byte for byte.

A handler wrapped in `idempotent` does nothing else if the header is missing. If it is there:

    the same key and body                 the first reply again, with `Idempotent-Replayed: true`; a stream in one piece
    while the first is being carried out  409 with Retry-After
    the same key, another body            422
    the same key of another caller        another request
    the first one's process died          carried out again, once; its calls are charged (see `store/ledger.py`)
    the same, and its run continues       the current response of that run; no second run begins (`claim_of`)

A reply is stored before its last byte is sent, so a caller that got it gets the same again, after a restart too and
from any process over the same store. Final replies are stored: no failure of the server (5xx), no refusal before any
work was done, no reply whose caller left. A reply that is longer than `MAX_KEPT_BYTES`, or holds text that looks like a
secret, is marked as sent but not stored: asking again gets a 409 that says so. A background run outlives its process
and its caller: a second request finds it and does not begin it again. Replies are forgotten after a day, or when their
run is deleted.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from dirigent.config.file import BUILT_IN_PROFILES
from dirigent.errors import StoreError
from dirigent.serve.http.body import CLIENT_GONE, HEADERS, read_body
from dirigent.serve.http.errors import Problem, problem_of, send_problem
from dirigent.serve.service import Service
from dirigent.store.idempotency import Claimed, Differs, GivenUp, Kept, Running, claim, finish, leave, release
from dirigent.store.keys import Caller
from dirigent.store.ledger import reconcile
from dirigent.workers.secret import redact

HEADER = b"idempotency-key"
MAX_NAME_CHARS = 255
MAX_KEPT_BYTES = 4 * 1024 * 1024
TRACE_HEADER = "X-Dirigent-Trace-Id"
COST_HEADER = "X-Dirigent-Cost-USD"
MARGIN_S = 60.0
"""A claim is abandoned when it is older than the longest possible run by this much."""

Handler = Callable[[Request], Awaitable[Any]]


def idempotent(handler: Handler) -> Handler:
    """Return the handler, carried out once for each Idempotency-Key of a caller."""

    @functools.wraps(handler)
    async def wrapped(request: Request) -> Any:
        if (said := request.scope[HEADERS].get(HEADER)) is None:
            return await handler(request)
        name = said.decode("latin-1")
        if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isascii() or not name.isprintable():
            said = f"an Idempotency-Key is 1 to {MAX_NAME_CHARS} printable ASCII characters, not {name[:40]!r}"
            raise Problem(400, said, code="idempotency_key", param="Idempotency-Key")
        return await _Once(handler, request, name).response()

    return wrapped


def claim_of(request: Request) -> Claimed | None:
    """Return the claim of a request with an Idempotency-Key.

    If the claim has `begun`, the handler answers from that run. A handler that begins a run which outlives the request
    notes it in the store (`Begun`).
    """
    claimed: Claimed | None = request.scope.get("claimed")
    return claimed


class _Once:
    """One request with an Idempotency-Key, from its body to its stored reply."""

    def __init__(self, handler: Handler, request: Request, name: str) -> None:
        self._handler = handler
        self._request = request
        self._name = name
        self._service: Service = request.app.service
        self._caller: Caller = request.scope["caller"]

    async def response(self) -> Any:
        try:
            body = await read_body(self._request, timeout_s=self._service.settings.body_timeout_s)
        except ClientDisconnect:
            return CLIENT_GONE
        outcome = await claim(
            self._service.store,
            key_id=self._caller.key_id,
            name=self._name,
            digest=_digest(self._request, body),
            longest_s=_longest_s(self._service) + MARGIN_S,
        )
        if not isinstance(outcome, Claimed):
            return _Replay(_kept(outcome))
        if outcome.again:
            await reconcile(self._service.store)
        return await self._carried_out(outcome, body)

    async def _carried_out(self, claimed: Claimed, body: bytes) -> Any:
        self._request.scope["claimed"] = claimed
        request = Request(self._request.scope, _replaying(body, self._request.receive))
        try:
            response = await self._handler(request)
        except Problem as problem:
            if _is_final(problem.status, problem.headers):
                return _Recording(self._service, claimed, _said(problem))
            await leave(self._service.store, claimed)
            raise
        except BaseException:
            await leave(self._service.store, claimed)
            raise
        return _Recording(self._service, claimed, response)


class _Recording:
    """A response that is stored as it is sent: the last piece goes out when the whole reply is committed."""

    def __init__(self, service: Service, claimed: Claimed, response: Any) -> None:
        self._service = service
        self._claimed = claimed
        self._response = response
        self._start: MutableMapping[str, Any] | None = None
        self._begun = False
        self._closed = False
        """The claim has its end: the reply is stored, or others may carry the request out."""
        self._pieces: list[bytes] = []
        self._size = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: MutableMapping[str, Any]) -> None:
            await self._take(message, send)

        try:
            await self._response(scope, receive, sending)
        except StoreError as error:
            if self._begun:
                raise  # the connection breaks off: a reply that cannot be replayed must not look complete
            await send_problem(problem_of(error), send, scope)
        finally:
            if not self._closed:  # the caller left, or the reply broke off
                await leave(self._service.store, self._claimed)

    async def _take(self, message: MutableMapping[str, Any], send: Send) -> None:
        """Send the status with the first piece, so that a store that fails before it can still have its own status."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        piece = message.get("body", b"")
        self._size += len(piece)
        if self._size <= MAX_KEPT_BYTES:
            self._pieces.append(piece)
        if not message.get("more_body", False):
            await self._keep()
        if not self._begun and self._start is not None:
            self._begun = True
            await send(self._start)
        await send(message)

    async def _keep(self) -> None:
        assert self._start is not None, "a body without a status"
        status = int(self._start["status"])
        headers = tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in self._start.get("headers", ()))
        if _is_final(status, dict(headers)) and not getattr(self._response, "broke_off", False):
            run_id = _said_in(dict(headers), TRACE_HEADER)
            await finish(self._service.store, self._claimed, Kept(status, headers, self._body(), run_id))
        else:
            await release(self._service.store, self._claimed)
        self._closed = True

    def _body(self) -> bytes | None:
        """Return the sent body; None if it is too long or would bring a secret to the disk."""
        if self._size > MAX_KEPT_BYTES:
            return None
        body = b"".join(self._pieces)
        text = body.decode(errors="replace")
        return body if redact(text) == text else None


class _Replay:
    """A stored reply that is sent again."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._kept.headers]
        headers.append((b"idempotent-replayed", b"true"))
        await send({"type": "http.response.start", "status": self._kept.status, "headers": headers})
        await send({"type": "http.response.body", "body": self._kept.body or b""})


def _kept(outcome: Kept | Running | GivenUp | Differs) -> Kept:
    """Return the reply to replay, or raise a `Problem` that says why there is none."""
    match outcome:
        case Running():
            said = "a request with this Idempotency-Key is being carried out; its reply will be here when it has ended"
            raise Problem(409, said, code="idempotency_running", param="Idempotency-Key", retry_after_s=1)
        case GivenUp():
            said = "the server ended twice while it carried out this request; send it under another Idempotency-Key"
            raise Problem(409, said, code="idempotency_given_up", param="Idempotency-Key")
        case Differs():
            said = "this Idempotency-Key was used for another request; send this one under a key of its own"
            raise Problem(422, said, code="idempotency_differs", param="Idempotency-Key")
        case Kept(body=None):
            said = f"this request was taken, but its reply was not kept; its trace is {outcome.run_id or 'none'}"
            raise Problem(409, said, code="idempotency_not_kept", param="Idempotency-Key")
    return outcome


def _is_final(status: int, headers: Mapping[str, str]) -> bool:
    """Return whether a reply is final: a success, or a run that was carried out and failed because of the request.

    A budget that did not allow the first call may allow it another day.
    """
    if status == 402 and float(_said_in(headers, COST_HEADER) or 0) == 0:
        return False
    return 200 <= status < 300 or (bool(_said_in(headers, TRACE_HEADER)) and status < 499)


def _said_in(headers: Mapping[str, str], wanted: str) -> str:
    return next((value for name, value in headers.items() if name.lower() == wanted.lower()), "")


def _digest(request: Request, body: bytes) -> str:
    """Hash everything that decides what a request does: route, body, and the headers that change it."""
    said = sorted((n, v) for n, v in request.headers.items() if n.startswith("x-dirigent-") or n == "content-type")
    parts = [request.method, request.url.path, *(part for pair in said for part in pair)]
    digest = hashlib.sha256("\0".join(parts).encode())
    digest.update(b"\0\0" + body)
    return digest.hexdigest()


def _longest_s(service: Service) -> float:
    """Return the longest time that a run of this configuration can take."""
    profiles = service.runtime.config.profile or BUILT_IN_PROFILES
    return max(profile.deadline_s for profile in profiles.values())


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body once more, and then the messages of the connection."""
    read = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal read
        if not read:
            read = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


def _said(problem: Problem) -> ASGIApp:
    async def response(scope: Scope, receive: Receive, send: Send) -> None:
        await send_problem(problem, send, scope)

    return response
