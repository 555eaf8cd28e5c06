"""The part that all wire formats share: protocol, event streams, and checks of a provider's data.

A wire turns a `Request` into an `HttpCall` and bytes into a `Reply`, as pure functions: no socket, no clock, no key.
`http.py` makes the calls. If a wire cannot carry a request or read a reply, it raises a `WorkerError`: no request is
cut silently, and no broken reply passes as an answer.

`EventParser` reads server-sent events, independent of how the network cuts them, by the rules of the WHATWG HTML
standard, section 9.2.6: lines end in LF, CR or CRLF, one leading byte-order mark is dropped, lines that start with a
colon are comments, several `data` lines are joined by newlines, and an event without a blank line after it is dropped.
Two rules are stricter, since a provider is not trusted: bytes that are not UTF-8 and lines above 1 MiB are errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Protocol, TypeVar

import msgspec

from dirigent.errors import WorkerError
from dirigent.messages import Finish, Image, Message, Reply, Request, ToolCall, Usage
from dirigent.workers.metering import MOST_TOKENS
from dirigent.workers.secret import redact
from dirigent.workers.worker import WorkerInfo

# ---- server-sent events --------------------------------------------------------------------------------------


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
                break  # the line continues in the next chunk
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


T = TypeVar("T")

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
"""Tokens as a provider reports them. A negative count would pay the caller; a huge one is an error as well."""

QUOTE_CHARS = 300
"""The most characters of a provider's text that an error repeats."""


class HttpCall(msgspec.Struct, frozen=True):
    """One POST, complete except for the key."""

    url: str
    body: bytes
    headers: dict[str, str] = {}


class Decoder(Protocol):
    """Reads one streamed reply. `done` is true after its last event: nothing more needs to be read."""

    done: bool
    written_chars: int
    """Characters of everything that the model wrote and is paid for: text, reasoning, arguments of tool calls."""

    def feed(self, event: ServerEvent) -> str:
        """Return the text that this event adds to the reply; it may be empty."""
        ...

    def finish(self) -> Reply:
        """Return the whole reply. Raise `WorkerError` if the stream ended before the reply was complete."""
        ...


class Wire(Protocol):
    """A provider's format."""

    def build(self, request: Request, *, info: WorkerInfo, base_url: str, stream: bool) -> HttpCall:
        """Return the call that sends this request to `info.model`."""
        ...

    def key_headers(self, key: str) -> Mapping[str, str]:
        """Return the header that carries the key. URLs never hold keys."""
        ...

    def parse(self, body: bytes) -> Reply:
        """Return the whole reply, without cost, attempts and seconds."""
        ...

    def decoder(self) -> Decoder:
        """Return a new reader for one streamed reply."""
        ...


def decode(body: bytes | str, shape: type[T]) -> T:
    """Decode strict JSON of this shape. Unknown fields are ignored; NaN and deep nesting are faults of the reply."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = body if isinstance(body, str) else body.decode(errors="replace")
        raise unreadable(f"the reply is not what this provider documents ({error}): {quote(text)}") from None


def unreadable(message: str) -> WorkerError:
    return WorkerError(message, fault="reply")


def unusable(message: str, usage: Usage) -> WorkerError:
    """Return the error of a reply that came whole but cannot be used. Its usage is billed."""
    error = unreadable(message)
    error.usage = usage
    return error


def uncarried(field: str, why: str) -> WorkerError:
    """Return the error of a request with a field that this wire cannot carry."""
    return WorkerError(f"{field}: {why}", said=f"{field}: {why}", fault="request")


def quote(text: str) -> str:
    """Return a provider's text for an error message: one short line without keys."""
    line = redact(" ".join(text.split()))  # redacted before the cut, since half a key would not be found
    return line if len(line) <= QUOTE_CHARS else line[: QUOTE_CHARS - 1] + "…"


def error_text(body: bytes | str) -> str:
    """Return the message of an error body; the beginning of the body if it has no usual shape."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return quote(body if isinstance(body, str) else body.decode(errors="replace"))
    return quote(_message_in(found))


def _message_in(found: Any) -> str:
    if isinstance(found, list) and found:
        return _message_in(found[0])
    if isinstance(found, dict):
        for name in ("error", "message", "detail"):
            if found.get(name):
                return _message_in(found[name])
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()


def refuse_error(error: Any) -> None:
    """Raise if a reply with status 200, or an event of a stream, holds an error."""
    if error:
        raise unreadable(f"the provider answered with an error: {quote(_message_in(error))}")


def finish_of(
    reason: str | None, known: Mapping[str, Finish], tool_calls: tuple[ToolCall, ...], usage: Usage
) -> Finish:
    """Map a provider's finish reason to ours. Unknown reasons are faults; tool calls override a plain stop."""
    finish = known.get(reason or "")
    if finish is None:
        raise unusable(f"the reply ended for an unknown reason: {quote(str(reason))}", usage)
    if finish == "tool_calls" and not tool_calls:
        raise unusable(f"the reply ended with {reason!r} but holds no tool call", usage)
    return "tool_calls" if finish == "stop" and tool_calls else finish


def named_tool(request: Request) -> str | None:
    """Return the tool that must be called; None for `auto`, `none` and `required`."""
    choice = request.tool_choice
    if choice in ("auto", "none"):
        return None
    if not request.tools:
        raise uncarried("tool_choice", f"{choice!r} needs tools, but the request has none")
    if choice == "required":
        return None
    names = [tool.name for tool in request.tools]
    if choice not in names:
        raise uncarried("tool_choice", f"no tool is called {choice!r}; there are: {', '.join(names)}")
    return choice


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """Return a call's arguments as an object, for wires that need one."""
    try:
        return msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise uncarried("tool_calls", f"the arguments of {call.name!r} are not a JSON object: {error}") from None


def system_text(messages: Iterable[Message]) -> str:
    """Join all system messages, for wires that send them apart from the conversation."""
    return "\n\n".join(message.text for message in messages if message.role == "system")


_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,", re.ASCII)


def inline(image: Image) -> Image:
    """Return the image with a `data:` URL split into media type and bytes; other URLs stay."""
    if image.data:
        if not image.media_type:
            raise uncarried("messages", "an image has data but no media_type (such as image/png)")
        return image
    match = _DATA_URL.match(image.url)
    if match:
        return Image(data=image.url[match.end() :], media_type=match[1], detail=image.detail)
    if not image.url.startswith(("http://", "https://", "gs://")):
        raise uncarried("messages", f"an image needs an http(s) URL or base64 data, not {image.url[:40]!r}")
    return image


def only_text(message: Message) -> str:
    """Return the text of a message. Raise if it holds images, which its role cannot carry on this wire."""
    if message.images:
        raise uncarried("messages", f"images in a {message.role} message cannot be sent to this provider")
    return message.text
