"""What routes do around a run: read the body and decode it, take a place, and notice a client that leaves.

msgspec checks a body while it decodes it. Every fault is a 400 that names the field, in the words of an error reply.
This module knows no route: each route passes its own struct, and names those of its fields that are free-form.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from dirigent.serve.http.errors import Problem
from dirigent.serve.policy.admission import Place, Refusal
from dirigent.store.keys import Caller
from dirigent.toml import nearest

if TYPE_CHECKING:  # which imports this module in turn
    from dirigent.serve.service import Service

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 64

T = TypeVar("T")

HEADERS = "dirigent.headers"
"""Where the ASGI scope has the request's headers by name, as bytes. Of two with one name it has the last."""

WATCH_AFTER_S = 0.1
"""Seconds of work after which the client is watched; a client that leaves earlier is noticed then. The watching task
costs 6% of the CPU of a request. Calls of models take longer than this; a busy server's own work does not."""

CLIENT_GONE = Response(status_code=499)
"""The reply to a client that has left. No client reads it; proxies log this number for it."""


async def read_body(request: Request, *, timeout_s: float) -> bytes:
    """Return the whole body, or raise a `Problem` if it is no JSON, too large, or late.

    As many bodies are read at once as there may be runs (`max_in_flight`); one more is a 503.
    """
    kind = request.scope[HEADERS].get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, f"the content type is {kind[:60]!r}; send application/json", code="content_type")
    service: Service = request.app.service
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


def decoded(body: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[T], *, where: str = "") -> T:
    """Return the struct, or raise a `Problem`. `where` is the field that holds the body if it is a part of one."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _refused(str(error), where, getattr(decoder.type, "__struct_fields__", ())) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, f"the body is not JSON: {error}", code="invalid_json", param=where) from None


_AT = re.compile(r" - at `\$\.?([^`]*)`\Z")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")


def _refused(said: str, where: str, known: tuple[str, ...]) -> Problem:
    """Return msgspec's complaint as a problem, with the field in `param`."""
    at = _AT.search(said)
    path = at[1] if at else ""
    text = said[: at.start()] if at else said
    field = _UNKNOWN.search(text) or _MISSING.search(text)
    param = ".".join(part for part in (where, path, field[1] if field else "") if part).replace(".[", "[")
    if _UNKNOWN.search(text) and not path and field:
        text = f"unknown field {field[1][:60]!r}{nearest(field[1][:60], known)}"
    elif param:
        text = f"{text}: {param}"
    code = "unknown_field" if _UNKNOWN.search(said) else "invalid_value"
    return Problem(400, text, code=code, param=param[:200])


def check_depth(free: Iterable[tuple[str, Any]]) -> None:
    """Raise a `Problem` if a free-form field is nested too deeply. Structs cannot be."""
    for param, value in free:
        if _deeper(value, MAX_DEPTH):
            raise Problem(400, f"{param} is nested deeper than {MAX_DEPTH}", code="too_deep", param=param)


def _deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not inner:
            return False
        level = inner
    return True


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

    watches: list[asyncio.Task[None]] = []

    def give_up(_: object) -> None:
        nonlocal gone
        if working:
            gone = True
            task.cancel()

    def watch() -> None:
        watches.append(asyncio.ensure_future(disconnected(request.receive)))
        watches[0].add_done_callback(give_up)

    timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, watch)
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
        timer.cancel()
        for watching in watches:
            watching.cancel()


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
