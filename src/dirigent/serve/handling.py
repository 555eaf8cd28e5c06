"""What every route that runs something does around its run: take the body in, admit, and notice who leaves."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dirigent.serve.gate import Receive
from dirigent.serve.problems import Problem
from dirigent.serve.reading import MAX_BODY_BYTES
from dirigent.serve.service import Service
from dirigent.store.admission import Place, Refusal
from dirigent.store.keys import Caller

CLIENT_GONE = Response(status_code=499)
"""Nobody reads it; the number is what proxies log for it."""


async def read_body(request: Request, *, timeout_s: float) -> bytes:
    """The body, within its bounds in size and time."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, f"the content type is {kind[:60]!r}; send application/json", code="content_type")
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise Problem(413, f"the body is larger than {MAX_BODY_BYTES:,} bytes", code="too_large")
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {timeout_s:g} s", code="slow_body") from None
    return bytes(body)


def admitted(service: Service, caller: Caller) -> Place:
    """A place among the runs under way, or a `Problem` that says when to come again."""
    place = service.admission.enter(caller)
    if isinstance(place, Refusal):
        status = 503 if place.reason == "busy" else 429
        raise Problem(status, place.said, code=place.reason, retry_after_s=place.retry_after_s)
    return place


async def unless_gone(task: asyncio.Future[Any], receive: Receive) -> bool:
    """Wait for the task; a client that goes away first cancels it. Whether it was done."""
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        for each in (gone, task):
            each.cancel()
        await asyncio.gather(gone, task, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    """Returns when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
