"""What the three wire formats share: their protocol, and the rules for trusting nothing that comes back.

A wire turns a `Request` into an `HttpCall` and bytes back into a `Reply`, as pure functions: no socket, no
clock, no key. `http.py` does the calling. What a wire cannot carry, or cannot read, is a `WorkerError`
here, so that no request is silently cut and no broken reply passes for an answer.
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
from dirigent.workers.sse import ServerEvent
from dirigent.workers.worker import WorkerInfo

T = TypeVar("T")

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
"""Tokens as a provider reports them: a negative count would be money back, and too many are none either."""

QUOTE_CHARS = 300
"""How much of a provider's own words an error repeats."""


class HttpCall(msgspec.Struct, frozen=True):
    """One POST, ready but for the key."""

    url: str
    body: bytes
    headers: dict[str, str] = {}


class Decoder(Protocol):
    """Reads one streamed reply. `done` = its terminal event was seen: nothing more needs reading."""

    done: bool
    written_chars: int
    """Of all that the model wrote and is paid for: text, reasoning, arguments of tool calls."""

    def feed(self, event: ServerEvent) -> str:
        """The piece of the reply's text that this event adds, maybe empty."""
        ...

    def finish(self) -> Reply:
        """The whole reply; a `WorkerError` when the stream ended before it was complete."""
        ...


class Wire(Protocol):
    """A provider's format."""

    def build(self, request: Request, *, info: WorkerInfo, base_url: str, stream: bool) -> HttpCall:
        """The call that asks this request of `info.model`."""
        ...

    def key_headers(self, key: str) -> Mapping[str, str]:
        """The header that carries the key. Keys never stand in URLs."""
        ...

    def parse(self, body: bytes) -> Reply:
        """A whole reply, without cost, attempts and seconds."""
        ...

    def decoder(self) -> Decoder:
        """A fresh reader for one streamed reply."""
        ...


def decode(body: bytes | str, shape: type[T]) -> T:
    """Strict JSON of this shape (unknown fields aside), or a reply fault; NaN and deep nesting are faults."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = body if isinstance(body, str) else body.decode(errors="replace")
        raise unreadable(f"the reply is not what this provider documents ({error}): {quote(text)}") from None


def unreadable(message: str) -> WorkerError:
    return WorkerError(message, fault="reply")


def unusable(message: str, usage: Usage) -> WorkerError:
    """A reply that came whole: what it used is billed."""
    error = unreadable(message)
    error.usage = usage
    return error


def uncarried(field: str, why: str) -> WorkerError:
    """A request that this wire cannot carry, by the name of its field."""
    return WorkerError(f"{field}: {why}", said=f"{field}: {why}", fault="request")


def quote(text: str) -> str:
    """A provider's words for an error: on one line, short, without keys."""
    line = redact(" ".join(text.split()))  # redacted before it is cut, since half a key matches nothing
    return line if len(line) <= QUOTE_CHARS else line[: QUOTE_CHARS - 1] + "…"


def error_text(body: bytes | str) -> str:
    """What an error body says: its message where it has the usual shape, else its beginning."""
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
    """An error that came with status 200, in a body or in the middle of a stream."""
    if error:
        raise unreadable(f"the provider answered with an error: {quote(_message_in(error))}")


def finish_of(
    reason: str | None, known: Mapping[str, Finish], tool_calls: tuple[ToolCall, ...], usage: Usage
) -> Finish:
    """Our word for a provider's reason. Unknown reasons are faults; calls count even under a plain stop."""
    finish = known.get(reason or "")
    if finish is None:
        raise unusable(f"the reply ended for an unknown reason: {quote(str(reason))}", usage)
    if finish == "tool_calls" and not tool_calls:
        raise unusable(f"the reply ended with {reason!r} but holds no tool call", usage)
    return "tool_calls" if finish == "stop" and tool_calls else finish


def named_tool(request: Request) -> str | None:
    """The one tool that must be called, or None for `auto`, `none` and `required`."""
    choice = request.tool_choice
    if choice in ("auto", "none"):
        return None
    if not request.tools:
        raise uncarried("tool_choice", f"{choice!r} was asked for, but there are no tools")
    if choice == "required":
        return None
    names = [tool.name for tool in request.tools]
    if choice not in names:
        raise uncarried("tool_choice", f"no tool is called {choice!r}; there are: {', '.join(names)}")
    return choice


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """A call's arguments, for wires that carry them as an object."""
    try:
        return msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise uncarried("tool_calls", f"the arguments of {call.name!r} are no JSON object: {error}") from None


def system_text(messages: Iterable[Message]) -> str:
    """All system messages as one text, for wires that take it apart from the conversation."""
    return "\n\n".join(message.text for message in messages if message.role == "system")


_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,", re.ASCII)


def inline(image: Image) -> Image:
    """An image with its `data:` URL taken apart, so that wires tell only links from bytes."""
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
    """The text of a message whose role takes no images on this wire."""
    if message.images:
        raise uncarried("messages", f"images in a {message.role} message cannot be sent to this provider")
    return message.text
