"""Server-sent events from bytes, independent of how the network cuts them.

The rules are those of the WHATWG HTML standard, section 9.2.6: lines end in LF, CR or CRLF, one leading byte-order mark
is dropped, lines that start with a colon are comments, several `data` lines are joined by newlines, and an event
without a blank line after it is dropped. Two rules are stricter, since a provider is not trusted: bytes that are not
UTF-8 and lines above 1 MiB are errors.

Knows nothing of sockets or of the meaning of events.
"""

from __future__ import annotations

import msgspec

from dirigent.errors import WorkerError

MAX_LINE_BYTES = 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class ServerEvent(msgspec.Struct, frozen=True):
    data: str
    event: str = "message"


class EventParser:
    """Turns bytes into the events that they complete. The chunking of the bytes does not matter."""

    def __init__(self, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._line = bytearray()
        self._data: list[str] = []
        self._event = ""
        self._first_line = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        if not chunk:
            return []
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")  # the second half of a CRLF that was cut
        events = []
        for piece in chunk.splitlines(keepends=True):
            line = piece.rstrip(b"\r\n")
            self._line += line
            if len(self._line) > self._max_line_bytes:
                raise WorkerError(
                    f"a line of the event stream is longer than {self._max_line_bytes} bytes", fault="reply"
                )
            if len(line) == len(piece):
                break  # the line goes on in the next chunk
            event = self._end_line()
            if event is not None:
                events.append(event)
        self._after_cr = chunk.endswith(b"\r")
        return events

    def _end_line(self) -> ServerEvent | None:
        raw, self._line = bytes(self._line), bytearray()
        if self._first_line:
            raw = raw.removeprefix(_BOM)
            self._first_line = False
        if not raw:
            return self._dispatch()
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            raise WorkerError(f"the event stream is not UTF-8: {error}", fault="reply") from None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        return None

    def _dispatch(self) -> ServerEvent | None:
        data, event = self._data, self._event
        self._data, self._event = [], ""
        return ServerEvent("\n".join(data), event or "message") if data else None
