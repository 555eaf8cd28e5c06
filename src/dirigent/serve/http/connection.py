"""One connection of a client: uvicorn's, with bounds on what comes before a request is whole.

uvicorn waits without end for a header that comes byte by byte, and keeps headers of any length. Here a header is
bounded in time and size, from the first byte of the connection or of the next request on it. While it comes, bytes
are counted; when it is whole, its own length is, whatever else came in the same read. Time and size of the body are
bounded where it is read (`handling.py`), idle time between requests by uvicorn. What is left of a body when its request
has been refused is dropped, so that the caller can send it and read why; it is bounded as a header is in time and by
`MAX_DROPPED_BYTES` in size, and once it is whole the connection is idle again. A client that does not take its reply is
cut off rather than waited for.

A body in chunks may have bytes beside its content: extensions of a chunk's size, and trailers behind the last chunk.
httptools drops the first and keeps the second (60 MB of short trailers took 950 MB). Together they are bounded as a
header is, to within one read; trailers alone exactly.

A connection that is closed with something unread is reset, and what was said last may be lost with it. Whoever is
refused here (408, 431) is told so, then the server's half is closed, and for `LAST_WORD_S` what still comes is dropped.

When the server stops, uvicorn closes every connection without a request. One that was taken a moment ago has its
request on the way as a rule, and closing would reset it: here it may still ask, for `LAST_REQUEST_S`. No connection is
closed for its silence before a last look: a busy server may not have read yet what has arrived.

Many clients of the JVM ask for HTTP/2 with every request (`Upgrade: h2c`), and take HTTP/1.1 as well. httptools stops
at the end of such a header, so that the body would be lost: it is given the same header without that wish.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Any, Literal, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dirigent.serve.http.auth import App
from dirigent.serve.http.json_body import MAX_BODY_BYTES
from dirigent.serve.http.replying import InOnePiece

MAX_DROPPED_BYTES = 2 * MAX_BODY_BYTES
"""Of a refused request's body: enough for a client that sends a body somewhat too large before it reads."""

LAST_REQUEST_S = 1.0
LAST_LOOK_S = 0.01
"""Enough for one turn of the event loop, in which it reads before it looks at the time; 0 would skip the reading."""
LAST_WORD_S = 1.0
"""How long a client that was refused may go on sending before it looks up."""

LEAVING = "dirigent.leaving"
"""Under this name a request's scope has the `Leaving` of its connection, among its extensions."""

_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def bounded_connection(*, header_timeout_s: float, max_header_bytes: int) -> type[Connection]:
    """The kind of connection that uvicorn is to make: it makes them itself, and takes a class."""
    bounds = {"header_timeout_s": header_timeout_s, "max_header_bytes": max_header_bytes}
    return type("BoundedConnection", (Connection,), bounds)


class Leaving:
    """Tells when the client of a connection goes away: a call, where the usual way (`receive`) takes a task."""

    def __init__(self) -> None:
        self.gone = False
        self.tell: set[Callable[[], object]] = set()
        """Who wants to know."""

    def now(self) -> None:
        self.gone = True
        for tell in list(self.tell):
            tell()


class _Joining:
    """A transport that sends a stream's header together with what follows it in the same turn of the event loop: each
    write is a call of the system and a packet. Replies that are known whole come in one piece (`replying.py`)."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._header = b""

    def write(self, data: bytes) -> None:
        if not data:  # as one of several lines, asyncio from Python 3.12 on tries without end to send it
            return
        if self._header:
            header, self._header = self._header, b""
            self._transport.writelines((header, data))
        elif data.startswith(b"HTTP/") and data.endswith(b"\r\n\r\n"):
            self._header = data
            self._loop.call_soon(self._send_header)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._send_header()
        self._transport.close()

    def write_eof(self) -> None:
        self._send_header()
        self._transport.write_eof()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _send_header(self) -> None:
        header, self._header = self._header, b""
        if header and not self._transport.is_closing():
            self._transport.write(header)


class Connection(HttpToolsProtocol):
    """A header that arrives in one piece, as nearly all do, costs no timer."""

    header_timeout_s: float
    max_header_bytes: int
    _waiting: asyncio.TimerHandle | None = None
    """Runs while a header is awaited, or what is left of a body; at the end, while a last request may come, or while a
    refusal is read."""
    _part: Literal["", "header", "body"] = ""
    """What of a request came last, if not all of it."""
    _received = 0
    """Bytes of a header, or of what is left of a body, or of what comes after a refusal."""
    _begun = False
    """Whether a request began in what came last."""
    _beside = 0
    """Bytes of a body that are neither content nor what chunks need."""
    _refused = False
    _stopping = False
    _wish_ends = 0
    """Where the header ends, in what came last, that asks for another protocol; 0 where none does."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, _Joining(transport, self.loop)))
        self._leaving = Leaving()
        self._waiting = self.loop.call_later(self.header_timeout_s, self._look_again)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._received += len(data)
            if self._received > MAX_BODY_BYTES:
                self._close_idle()
            return
        before, self._begun = self._part, False
        self._beside += len(data)
        super().data_received(data)
        while self._wish_ends:
            data, self._wish_ends = self._without_wish() + data[self._wish_ends :], 0
            super().data_received(data)
        if self._refused or self.transport.is_closing():
            return
        if before != "body" or self._begun or self._beside < 0:  # what of it is this body's is not known, or content
            self._beside = 0
        elif self._beside > self.max_header_bytes:
            self._refuse_body()
            return
        if self._under_way():
            if before == self._part == "header" and not self._begun:  # of the next request, before this one is answered
                self._count(len(data))
            return
        if before and not self._part:  # the rest of a body whose request was answered before
            self._rest()
            return
        if self._waiting is None:
            self._waiting = self.loop.call_later(self.header_timeout_s, self._look_again)
        if before in ("", self._part):  # else it holds the end of a body as well
            self._count(len(data))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._part, self._received, self._begun = "header", 0, True
        cast(dict[str, Any], self.scope)["extensions"] = {LEAVING: self._leaving}

    def on_headers_complete(self) -> None:
        if self._header_bytes() > self.max_header_bytes:
            self._refuse_as_too_large()
            raise ValueError("the header is too long")  # no more of it is parsed
        if self._wishes():
            return
        self._stop_waiting()
        self._part = "body"
        super().on_headers_complete()
        if b"://" in self.url and not self.url.startswith(b"/"):
            self.scope["path"] = unquote(self.url.partition(b"?")[0].decode("ascii"))  # uvicorn drops the target's host
        self.headers = []  # what comes behind a body is no header of its request
        if self._stopping and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        size = len(body)
        self._beside -= size + (size.bit_length() + 3) // 4 + 4  # a chunk needs its size in hex, and two line ends
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._wishes():
            return
        if self.headers and _size(self.headers) > self.max_header_bytes:  # those behind the body
            self._refuse_body()
            raise ValueError("the trailers are too long")
        self._part = ""
        if not self._stopping:
            self._stop_waiting()  # what follows is another request, with time of its own
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, cast(Any, InOnePiece(cast(App, app))))

    def send_400_response(self, msg: str) -> None:
        if not self._refused and not self.transport.is_closing():
            super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)
        self._leaving.now()

    def shutdown(self) -> None:
        self._stopping = True
        if self._under_way():
            super().shutdown()
            return
        something_comes = self._waiting is not None or self._part == "body"
        self._stop_waiting()
        self._waiting = self.loop.call_later(LAST_REQUEST_S if something_comes else LAST_LOOK_S, self.transport.close)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(LAST_LOOK_S, self._close_idle)

    def _close_idle(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # it does not read: closing would wait for it
        super().timeout_keep_alive_handler()

    def _wishes(self) -> bool:
        """Whether this header asks for another protocol. CONNECT does so too, and means it."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _unsupported_upgrade_warning(self) -> None:
        """Called by uvicorn while it handles httptools' exception, which says where the header ends."""
        error = sys.exception()
        if isinstance(error, httptools.HttpParserUpgrade) and self._wishes():
            self._wish_ends = error.args[0]

    def _without_wish(self) -> bytes:
        """The last header without the wish for another protocol."""
        first = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        lines = [b"%b: %b" % pair for pair in self.headers if pair[0] != b"upgrade"]
        return b"\r\n".join((first, *lines, b"", b""))

    def _rest(self) -> None:
        """Wait for the next request as uvicorn does after a reply, which it gave up when the body came."""
        if not self._stopping:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _under_way(self) -> bool:
        """Whether a request is being answered, so that its own time-outs hold."""
        return self.cycle is not None and not self.cycle.response_complete

    def _count(self, size: int) -> None:
        self._received += size
        if self._received > (MAX_DROPPED_BYTES if self._part == "body" else self.max_header_bytes):
            self._refuse_as_too_large()

    def _header_bytes(self) -> int:
        """Of a header that is whole, with one blank where it may have more: those are not kept."""
        first = len(self.parser.get_method()) + len(self.url) + len("  HTTP/1.1\r\n")
        return first + _size(self.headers) + 2

    def _refuse_as_too_large(self) -> None:
        """Nothing can be said within the reply to another request, or after this one's own."""
        self._refuse(b"" if self._part == "body" or self._under_way() else _TOO_LARGE)

    def _refuse_body(self) -> None:
        """For what is beside it. Nothing can be said before the reply to another request, or within this one's own."""
        self._refuse(b"" if self.pipeline or self.cycle.response_started else _TOO_LARGE)
        self.cycle.disconnected = True  # else it might still be carried out

    def _stop_waiting(self) -> None:
        self._received = 0
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _look_again(self) -> None:
        self._waiting = self.loop.call_later(LAST_LOOK_S, self._give_up)

    def _give_up(self) -> None:
        self._refuse(b"" if self._part == "body" else _TOO_LATE)

    def _refuse(self, said: bytes) -> None:
        self._stop_waiting()
        if self.transport.is_closing():
            return
        if not said:
            self.transport.close()
            return
        self._refused = True
        self.transport.write(said)
        with contextlib.suppress(OSError):  # it may have gone this moment
            self.transport.write_eof()
        self.flow.resume_reading()
        self._waiting = self.loop.call_later(LAST_WORD_S, self._close_idle)


def _size(headers: list[tuple[bytes, bytes]]) -> int:
    return sum([len(name) + len(value) + 4 for name, value in headers])
