"""One connection of a client: uvicorn's, with bounds on what comes before a request is whole.

uvicorn waits without end for a header that comes byte by byte, and keeps headers of any length. Here a header has
`HEADER_S` seconds and `MAX_HEADER_BYTES`, from the first byte of the connection or of the next request on it. Time
and size of the body are bounded where it is read (`handling.py`), idle time between requests by uvicorn. A client
that does not take its reply is cut off rather than waited for.

When the server stops, uvicorn closes every connection without a request. One that was taken a moment ago has its
request on the way as a rule, and closing would reset it: here it may still ask, for `LAST_REQUEST_S`.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_S = 10.0
MAX_HEADER_BYTES = 64 * 1024
LAST_REQUEST_S = 1.0

_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connection(HttpToolsProtocol):
    """A header that arrives in one piece, as nearly all do, costs no timer."""

    _waiting: asyncio.TimerHandle | None = None
    """Runs while a header is awaited."""
    _header_bytes = 0
    _stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting = self.loop.call_later(HEADER_S, self._refuse, _TOO_LATE)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._under_way() or self.transport.is_closing():
            return
        if self._waiting is None:
            self._waiting = self.loop.call_later(HEADER_S, self._refuse, _TOO_LATE)
        self._header_bytes += len(data)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(_TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()
        if self._stopping and self.cycle is not None:
            self.cycle.keep_alive = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self._stopping = True
        if self._waiting is None:
            super().shutdown()
        else:
            self._stop_waiting()
            self._waiting = self.loop.call_later(LAST_REQUEST_S, self.transport.close)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # it does not read: closing would wait for it
        super().timeout_keep_alive_handler()

    def _under_way(self) -> bool:
        """Whether a request is being answered, so that its own time-outs hold."""
        return self.cycle is not None and not self.cycle.response_complete

    def _stop_waiting(self) -> None:
        self._header_bytes = 0
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _refuse(self, said: bytes) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.write(said)
            self.transport.close()
