"""What routes do around a run: read the body, take a place, and notice a client that leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from dirigent.serve.http.errors import Problem
from dirigent.serve.http.json_body import MAX_BODY_BYTES
from dirigent.serve.service import Service
from dirigent.store.admission import Place, Refusal
from dirigent.store.keys import Caller

T = TypeVar("T")

CLIENT_GONE = Response(status_code=499)
"""The reply to a client that has left. Nobody reads it; proxies log this number for it."""


class JsonReply(Response):
    """A successful reply whose body is JSON already."""

    media_type = "application/json"

    def __init__(self, body: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(body, headers=headers)


async def read_body(request: Request, *, timeout_s: float) -> bytes:
    """Return the whole body, or raise a `Problem` if it is no JSON, too large, or late.

    As many bodies are read at once as there may be runs (`max_in_flight`); one more is a 503.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, f"the content type is {kind[:60]!r}; send application/json", code="content_type")
    service: Service = request.app.state.service
    if service.bodies >= service.settings.max_in_flight:
        said = f"{service.bodies} requests are being read, which is the most; try again"
        raise Problem(503, said, code="busy", retry_after_s=1)
    service.bodies += 1
    try:
        async with asyncio.timeout(timeout_s):
            return await _whole_body(request.receive)
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {timeout_s:g} s", code="slow_body") from None
    finally:
        service.bodies -= 1


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
            raise Problem(413, f"the body is larger than {MAX_BODY_BYTES:,} bytes", code="too_large")
        if not message.get("more_body", False):
            return b"".join(pieces)


def admitted(service: Service, caller: Caller) -> Place:
    """Return a place among the runs under way, or raise a `Problem` that says when to come again."""
    place = service.admission.enter(caller)
    if isinstance(place, Refusal):
        status = 503 if place.reason == "busy" else 429
        raise Problem(status, place.said, code=place.reason, retry_after_s=place.retry_after_s)
    return place


async def unless_gone(service: Service, work: Coroutine[Any, Any, T], request: Request) -> T | None:
    """Do the work and return its result. Returns None if the client leaves first, which cancels the work.

    The work runs in the request's own task, so that a server that stops can cancel both at once.
    """
    task = asyncio.current_task()
    assert task is not None
    working, gone = True, False

    def give_up(_: object) -> None:
        nonlocal gone
        if working:
            gone = True
            task.cancel()

    watch = asyncio.ensure_future(disconnected(request.receive))
    watch.add_done_callback(give_up)
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
        watch.cancel()


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
