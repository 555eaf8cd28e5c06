"""Bounds on one HTTP request, beyond those that uvicorn and h11 keep.

h11 bounds the parts of a request that it has to hold (`h11_max_incomplete_event_size`), and refuses malformed requests.
This module bounds the rest that an ASGI application can see:

    the header, once it is whole   `max_header_bytes`, exactly; a longer one is a 431
    the announced length of a body `MAX_BODY_BYTES`; a longer one is a 413, before the body is awaited
    credentials                    two `Authorization` or two `x-api-key` headers are a 400
    an unread body                 dropped for `LINGER_S` after the reply, then the connection is closed
    servers that it passed         `MAX_HOPS` of this kind; one more is a 400 (`hops`)

The size of a body without an announced length and the time that a body takes are bounded where it is read (`body.py`).
The time that a header takes cannot be bounded here: that is the task of the proxy in front (`docs/deploy.md`).

`workers/http.py` puts the number of servers into a header of every call. Both servers retry a request that one sends to
the other; a failure therefore says `x-should-retry: false`, so that tries do not multiply from server to server. Hops
are counted after the gate, so that callers without a key learn nothing from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping

from starlette.types import Message, Receive, Scope, Send

from dirigent.serve.http.body import MAX_BODY_BYTES
from dirigent.serve.http.errors import Problem, request_id
from dirigent.serve.service import Service
from dirigent.workers.http import HOPS_HEADER, MAX_HOPS

LINGER_S = 2.0
"""Seconds for which the rest of an unread body is dropped. Closing a connection with unread bytes resets it, and the
client may then lose the reply."""

_ONCE = (b"authorization", b"x-api-key")
_CLOSE = (b"connection", b"close")
_HOPS = HOPS_HEADER.lower().encode()


def check_header(scope: Scope, headers: Mapping[bytes, bytes], *, max_header_bytes: int) -> None:
    """Raise a `Problem` if the header alone shows that the request must be refused."""
    lines: list[tuple[bytes, bytes]] = scope["headers"]
    if int(headers.get(b"content-length", 0)) > MAX_BODY_BYTES:
        raise Problem(413, f"the body is larger than {MAX_BODY_BYTES:,} bytes", code="too_large")
    if len(headers) < len(lines):
        names = [name for name, _ in lines]
        for name in _ONCE:
            if names.count(name) > 1:
                said = f"the request has two {name.decode()} headers; send one"
                raise Problem(400, said, code="duplicate_header", param=name.decode())
    size = len(scope["method"]) + len(scope["raw_path"]) + len("  HTTP/1.1\r\n") + len("\r\n")
    if scope["query_string"]:
        size += 1 + len(scope["query_string"])
    size += sum(map(len, itertools.chain.from_iterable(lines))) + len(": \r\n") * len(lines)
    if size > max_header_bytes:
        said = f"the header has {size:,} bytes, and {max_header_bytes:,} is the most"
        raise Problem(431, said, code="header_too_large", headers={"Connection": "close"})


def hops(headers: Mapping[bytes, bytes]) -> int:
    """Return how many servers the request has passed; raise a `Problem` if they are too many."""
    said = headers.get(_HOPS)
    if said is None:  # from a client, like nearly all requests
        return 0
    text = said.decode("latin-1")
    if not text.isascii() or not text.isdecimal():
        raise Problem(400, f"{HOPS_HEADER} must be a number, not {text[:20]!r}", code="hops", param=HOPS_HEADER)
    count = int(text[:9])
    if count >= MAX_HOPS:
        raise Problem(
            400,
            f"this request has passed through {count} servers, and {MAX_HOPS} is the most: "
            "a worker's base_url leads back here; remove that worker",
            code="loop",
            param=HOPS_HEADER,
        )
    return count


class Exchange:
    """One request and its reply: counts and names the reply, and ends a connection that cannot be used again.

    A reply of the API carries `x-request-id`, which OpenAI's clients show in their errors and logs; `/v1/messages` has
    its own id under the name that Anthropic's clients expect. A reply to a request whose body has not arrived says
    `connection: close`, as do all replies of a server that stops.
    """

    def __init__(
        self, service: Service, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        self.begun = False
        """The reply has its status: no error can take its place."""
        self._service = service
        self._scope = scope
        self._receive = receive
        self._send = send
        self._unread = b"content-length" in headers or b"transfer-encoding" in headers
        """The request has a body whose end has not been received."""
        self._asks_first = b"expect" in headers
        """The client may wait for `100 Continue`, which uvicorn sends as soon as the body is received."""
        self._from_server = _HOPS in headers

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            # The route's pattern, never the caller's text: the labels of a metric must not grow.
            route = getattr(self._scope.get("route"), "path", "none")
            self._service.metrics.count_request(route, message["status"])
            if self._unread and not self._asks_first:
                await self._drop(0)  # a body that came with its header
            headers = list(message.get("headers", ()))
            if (self._unread or self._service.stopping) and _CLOSE not in headers:
                headers.append(_CLOSE)
            if "request_id" in self._scope:
                headers.append((b"request-id", self._scope["request_id"].encode()))
            elif self._scope["path"].startswith("/v1/"):
                headers.append((b"x-request-id", request_id().encode()))
            if self._from_server and message["status"] >= 500:
                headers.append((b"x-should-retry", b"false"))
            message = {**message, "headers": headers}
        elif self._unread and not message.get("more_body", False):
            await self._send({**message, "more_body": True})  # the client can read the whole reply now
            await self._drop(LINGER_S)
            message = {"type": "http.response.body"}
        await self._send(message)

    async def _drop(self, seconds: float) -> None:
        """Receive the rest of the body and drop it, within bounds in time and size."""
        left = MAX_BODY_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._unread and left > 0:
                    left -= len((await self.receive()).get("body", b""))
