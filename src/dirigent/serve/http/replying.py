"""A reply that is known whole goes out in one piece: its header and body put together once, and written once.

uvicorn takes header and body in two messages, looks at every header with two patterns and makes a write of each
message. Nearly all replies are short JSON whose length is known from the start: such a header is held until its body
comes, which it does at once. Everything else (streams, an unusual header, a client that does not read) is left to
uvicorn, in its order. Works on the parts of uvicorn's `RequestResponseCycle`, as `connection.py` does; knows nothing of
routes.
"""

from __future__ import annotations

from collections.abc import Coroutine, MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from dirigent.serve.http.auth import App, Receive, Scope, Send

_FOR_UVICORN = frozenset({b"connection", b"transfer-encoding"})
"""Headers that change what uvicorn does with the connection or the body."""


class InOnePiece:
    """The application, its replies put together. Not a coroutine of its own: that would cost a frame at every turn."""

    def __init__(self, app: App) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        cycle: RequestResponseCycle = send.__self__  # type: ignore[attr-defined]
        return self._app(scope, receive, _Reply(cycle).send)  # type: ignore[return-value]


class _Reply:
    """One reply on its way to uvicorn."""

    __slots__ = ("_cycle", "_held")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._held: MutableMapping[str, Any] | None = None
        """The beginning of a reply whose body has not come yet."""

    async def send(self, message: MutableMapping[str, Any]) -> None:
        cycle: Any = self._cycle  # whose messages are typed dictionaries
        held, self._held = self._held, None
        if held is None:
            if message["type"] == "http.response.start" and not cycle.response_started and _says_length(message):
                self._held = message
            else:
                await cycle.send(message)
        elif cycle.disconnected:
            return
        elif not cycle.flow.write_paused and (whole := _whole(cycle, held, message)):
            _write(cycle, whole)
        else:
            await cycle.send(held)
            await cycle.send(message)


def _says_length(start: MutableMapping[str, Any]) -> bool:
    names = [name for name, _ in start["headers"]]
    return b"content-length" in names and _FOR_UVICORN.isdisjoint(names)


def _whole(cycle: RequestResponseCycle, start: MutableMapping[str, Any], message: MutableMapping[str, Any]) -> bytes:
    """The reply as it goes over the wire; empty where uvicorn must see to it, or to what is wrong with it."""
    body = message.get("body", b"")
    if message["type"] != "http.response.body" or message.get("more_body") or cycle.scope["method"] == "HEAD":
        return b""
    headers = [*cycle.default_headers, *start["headers"]]
    header = b"".join([b"%b: %b\r\n" % pair for pair in headers])
    if header.count(b"\n") + header.count(b"\r") != 2 * len(headers) or b"\0" in header:
        return b""
    if (b"content-length", b"%d" % len(body)) not in headers:
        return b""
    closing = b"" if cycle.keep_alive else b"connection: close\r\n"
    return b"%b%b%b\r\n%b" % (STATUS_LINE[start["status"]], header, closing, body)


def _write(cycle: RequestResponseCycle, whole: bytes) -> None:
    """What uvicorn does at the beginning and at the end of a reply."""
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write(whole)
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
