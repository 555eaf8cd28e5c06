"""What every route that runs something does around its run: take the body in, admit, and notice who leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.limits import within
from dirigent.serve.http.auth import Receive
from dirigent.serve.http.connection import LEAVING
from dirigent.serve.http.errors import Problem
from dirigent.serve.http.json_body import MAX_BODY_BYTES
from dirigent.serve.service import Service
from dirigent.store.admission import Place, Refusal
from dirigent.store.keys import Caller

T = TypeVar("T")

CLIENT_GONE = Response(status_code=499)
"""Nobody reads it; the number is what proxies log for it."""


class JsonReply(Response):
    """A reply that is whole and JSON. Starlette's own way to make one looks at every header several times."""

    def __init__(self, body: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        self.status_code, self.background, self.body = 200, None, body
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        if headers:
            self.raw_headers += [(name.lower().encode(), value.encode()) for name, value in headers.items()]


async def read_body(request: Request, *, timeout_s: float) -> bytes:
    """The body, within its bounds in size and time. A length that is announced as too large is refused unread."""
    kind = (header(request, b"content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, f"the content type is {kind[:60]!r}; send application/json", code="content_type")
    if int(header(request, b"content-length") or 0) > MAX_BODY_BYTES:  # its digits were checked with the header
        raise _too_large()
    try:
        return await within(timeout_s, _whole_body(request.receive))
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {timeout_s:g} s", code="slow_body") from None


def header(request: Request, name: bytes) -> str | None:
    """A header by its name in lower case. Starlette's own mapping is made anew for each request, at three times the
    price."""
    for known, value in request.scope["headers"]:
        if known == name:
            said: str = value.decode("latin-1")
            return said
    return None


async def _whole_body(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > MAX_BODY_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return b"".join(pieces)


def _too_large() -> Problem:
    return Problem(413, f"the body is larger than {MAX_BODY_BYTES:,} bytes", code="too_large")


def admitted(service: Service, caller: Caller) -> Place:
    """A place among the runs under way, or a `Problem` that says when to come again."""
    place = service.admission.enter(caller)
    if isinstance(place, Refusal):
        status = 503 if place.reason == "busy" else 429
        raise Problem(status, place.said, code=place.reason, retry_after_s=place.retry_after_s)
    return place


async def unless_gone(service: Service, work: Coroutine[Any, Any, T], request: Request) -> T | None:
    """Do the work; a client that goes away first cancels it, and there is None.

    The work is done in the request's own task: one more would cost five turns of the event loop on its way in and out.
    """
    task = asyncio.current_task()
    assert task is not None
    working, gone = True, False

    def give_up(*_: object) -> None:
        nonlocal gone
        if working:
            gone = True
            task.cancel()

    look_away = _watch(request, give_up)
    service.running.add(task)
    try:
        return await work
    except asyncio.CancelledError:
        if gone and not task.uncancel():
            return None
        raise
    finally:
        working = False
        service.running.discard(task)
        look_away()


def _watch(request: Request, give_up: Callable[..., None]) -> Callable[[], object]:
    """Have `give_up` called when the client goes away; gives what ends that."""
    leaving = request.scope.get("extensions", {}).get(LEAVING)
    if leaving is None or leaving.gone:  # behind another server, or too late to be told
        gone = asyncio.ensure_future(disconnected(request.receive))
        gone.add_done_callback(give_up)
        return gone.cancel
    leaving.tell.add(give_up)
    return lambda: leaving.tell.discard(give_up)


async def disconnected(receive: Receive) -> None:
    """Returns when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
