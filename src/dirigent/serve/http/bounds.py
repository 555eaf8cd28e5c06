"""Bounds on one HTTP request, beyond those that uvicorn and h11 keep.

h11 bounds the parts of a request that it has to hold (`h11_max_incomplete_event_size`), and refuses malformed requests.
This module bounds the rest that an ASGI application can see:

    the header, once it is whole   `max_header_bytes`, exactly; a longer one is a 431
    the announced length of a body `MAX_BODY_BYTES`; a longer one is a 413, before the body is awaited
    credentials                    two `Authorization` or two `x-api-key` headers are a 400
    an unread body                 dropped for `LINGER_S` after the reply, then the connection is closed
    servers that it passed         `MAX_HOPS` of this kind; one more is a 400 (`Hops`)

The size of a body without an announced length and the time that a body takes are bounded where it is read (`body.py`).
The time that a header takes cannot be bounded here: that is the task of the proxy in front (`docs/deploy.md`).

`workers/http.py` puts the number of servers into a header of every call. Both servers retry a request that one sends to
the other; a failure therefore says `x-should-retry: false`, so that tries do not multiply from server to server. `Hops`
comes after the gate, so that callers without a key learn nothing from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dirigent.serve.http.body import MAX_BODY_BYTES
from dirigent.serve.http.errors import Problem, send_problem
from dirigent.serve.service import Service
from dirigent.workers.http import HOPS_HEADER, MAX_HOPS, after_hops

LINGER_S = 2.0
"""Seconds for which the rest of an unread body is dropped. Closing a connection with unread bytes resets it, and the
client may then lose the reply."""

_ONCE = frozenset({b"authorization", b"x-api-key"})
_CLOSE = (b"connection", b"close")


def check_header(scope: Scope, *, max_header_bytes: int) -> None:
    """Raise a `Problem` if the header alone shows that the request must be refused."""
    size = len(scope["method"]) + len(scope["raw_path"]) + len("  HTTP/1.1\r\n") + len("\r\n")
    if scope["query_string"]:
        size += 1 + len(scope["query_string"])
    seen = set()
    for name, value in scope["headers"]:
        size += len(name) + len(value) + len(": \r\n")
        if name == b"content-length" and int(value) > MAX_BODY_BYTES:
            raise Problem(413, f"the body is larger than {MAX_BODY_BYTES:,} bytes", code="too_large")
        if name in _ONCE:
            if name in seen:
                said = f"the request has two {name.decode()} headers; send one"
                raise Problem(400, said, code="duplicate_header", param=name.decode())
            seen.add(name)
    if size > max_header_bytes:
        said = f"the header has {size:,} bytes, and {max_header_bytes:,} is the most"
        raise Problem(431, said, code="header_too_large", headers={"Connection": "close"})


class Exchanges:
    """ASGI middleware: counts replies, names them, and ends connections that cannot be used again.

    A reply of the API carries `x-request-id`, which OpenAI's clients show in their errors and logs; `/v1/messages` sets
    its own id under the name that Anthropic's clients expect. A reply to a request whose body has not arrived says
    `connection: close`, as do all replies of a server that stops.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            exchange = _Exchange(self._service, scope, receive, send)
            await self._app(scope, exchange.receive if exchange.unread else receive, exchange.send)
        else:
            await self._app(scope, receive, send)


class _Exchange:
    """One request and its reply."""

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
        self._service = service
        self._scope = scope
        self._receive = receive
        self._send = send
        names = [name for name, _ in scope["headers"]]
        self.unread = b"content-length" in names or b"transfer-encoding" in names
        """The request has a body whose end has not been received."""
        self._asks_first = b"expect" in names
        """The client may wait for `100 Continue`, which uvicorn sends as soon as the body is received."""

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):
            self.unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            # The route's pattern, never the caller's text: the labels of a metric must not grow.
            route = getattr(self._scope.get("route"), "path", "none")
            self._service.metrics.count_request(route, message["status"])
            if self.unread and not self._asks_first:
                await self._drop(0)  # a body that came with its header
            headers = list(message.get("headers", ()))
            if (self.unread or self._service.stopping) and _CLOSE not in headers:
                headers.append(_CLOSE)
            if self._scope["path"].startswith("/v1/") and "request_id" not in self._scope:
                headers.append((b"x-request-id", b"req_" + secrets.token_hex(12).encode()))
            message = {**message, "headers": headers}
        elif self.unread and not message.get("more_body", False):
            await self._send({**message, "more_body": True})  # the client can read the whole reply now
            await self._drop(LINGER_S)
            message = {"type": "http.response.body"}
        await self._send(message)

    async def _drop(self, seconds: float) -> None:
        """Receive the rest of the body and drop it, within bounds in time and size."""
        left = MAX_BODY_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.unread and left > 0:
                    left -= len((await self.receive()).get("body", b""))


# ---- servers that a request has passed -----------------------------------------------------------------------


_NAME = HOPS_HEADER.lower().encode()


class Hops:
    """ASGI middleware that counts hops."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        said = next((value for name, value in scope.get("headers", ()) if name == _NAME), None)
        if said is None:  # from a client, like nearly all requests
            await self._app(scope, receive, send)
            return
        send = _final(send)
        try:
            count = _count(said)
        except Problem as problem:
            await send_problem(problem, send, scope)
            return
        with after_hops(count):
            await self._app(scope, receive, send)


def _count(said: bytes) -> int:
    text = said.decode("latin-1")
    if not text.isascii() or not text.isdecimal():
        raise Problem(400, f"{HOPS_HEADER} must be a number, not {text[:20]!r}", code="hops", param=HOPS_HEADER)
    if int(text[:9]) >= MAX_HOPS:
        raise Problem(
            400,
            f"this request has passed through {int(text[:9])} servers, and {MAX_HOPS} is the most: "
            "a worker's base_url leads back here; remove that worker",
            code="loop",
            param=HOPS_HEADER,
        )
    return int(text[:9])


def _final(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 500:
            message["headers"] = [*message.get("headers", ()), (b"x-should-retry", b"false")]
        await send(message)

    return sending
