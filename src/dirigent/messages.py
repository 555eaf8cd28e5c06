"""What is said to a model and what comes back: messages, tools, requests, replies, usage.

Plain frozen data with no behaviour beyond small sums; wire formats live in `workers/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from dirigent.limits import Ledger

Role = Literal["system", "user", "assistant", "tool"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Finish = Literal["stop", "length", "tool_calls", "refused"]
"""Why a reply ended. A reply that ended in any other way is a `WorkerError`, never a reply."""


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class Image(msgspec.Struct, frozen=True, tag="image", omit_defaults=True):
    """An image by URL (passed on, never fetched by us) or as base64 data with its media type."""

    url: str = ""
    data: str = ""
    media_type: str = ""
    detail: Literal["", "low", "high"] = ""
    """How closely a model should look. A hint: wires without such a field leave it out."""


Part = Text | Image


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str
    """A JSON object, as text."""
    signature: str = ""
    """Opaque provider state that must travel back with the call (Gemini's thought signature)."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    role: Role
    content: str | tuple[Part, ...] = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """On a `tool` message: the call it answers."""
    name: str = ""
    """On a `tool` message: the tool that was called. On others: which of several speakers it is from, where the wire
    can say so."""

    @property
    def text(self) -> str:
        """The message's words, without its images."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, Text))

    @property
    def images(self) -> tuple[Image, ...]:
        if isinstance(self.content, str):
            return ()
        return tuple(part for part in self.content if isinstance(part, Image))


def conversation(question: str | Sequence[Message]) -> tuple[Message, ...]:
    """A question as messages: a bare string is one user message."""
    if isinstance(question, str):
        return (Message("user", question),)
    return tuple(question)


CHARS_PER_TOKEN = 4
"""Of ordinary text, where nobody has counted."""


def estimate_tokens(text: str) -> int:
    """Tokens of a text where nobody has counted: a quarter of its characters, rounded up."""
    return -(-len(text) // CHARS_PER_TOKEN)


def well_formed(text: str) -> str:
    """The text as UTF-8 can hold it: halves of a character that meet are joined, and one alone becomes a mark."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Tool(msgspec.Struct, frozen=True):
    name: str
    parameters: dict[str, Any]
    """JSON schema of the arguments."""
    description: str = ""
    strict: bool = False


class Schema(msgspec.Struct, frozen=True):
    """The JSON schema a reply must follow."""

    schema: dict[str, Any]
    name: str = "answer"
    strict: bool = True


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one call or a sum of calls. The counts of caches and of reasoning are *parts* of the totals."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_input_tokens: int = 0
    """Input that a provider put into its cache and asks more for (Anthropic)."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cache_write_input_tokens + other.cache_write_input_tokens,
        )


class Attempt(msgspec.Struct, frozen=True):
    """One call that left for a worker, whether or not it came back. The sum of attempts is the bill."""

    worker: str
    seconds: float
    usage: Usage = Usage()
    cost_usd: float = 0.0
    error: str = ""
    cached: bool = False
    """Answered from a cache: nothing was sent or paid."""
    overran: bool = False
    """It wrote or cost more than was set aside for it: its provider does not keep to `max_output_tokens`."""


class Request(msgspec.Struct, frozen=True):
    """What a worker is asked. Fields a worker cannot honour make it raise, never silently ignore."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or the name of one tool."""
    schema: Schema | None = None
    json_mode: bool = False
    """Any JSON object, without a schema."""
    grammar: str = ""
    """GBNF, for workers that decode under a grammar."""
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    effort: Effort | None = None
    deadline: float | None = None
    """On the event loop's monotonic clock (`time.monotonic`)."""
    ledger: Ledger | None = None
    """Where every attempt is reserved before it is made and settled after it."""
    tenant: str = ""
    """Whose request it is. What is kept of one tenant's replies is given to no other; no provider sees it."""

    @property
    def may_call(self) -> bool:
        """Whether a reply may call a tool: some models do where they were offered none, or told not to."""
        return bool(self.tools) and self.tool_choice != "none"


class Reply(msgspec.Struct, frozen=True):
    """A worker's whole answer. Streaming is an observer's matter; the reply is always complete."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"
    usage: Usage = Usage()
    cost_usd: float = 0.0
    attempts: tuple[Attempt, ...] = ()
    seconds: float = 0.0
    model: str = ""
    """The model that the provider says answered."""
    reasoning: str = ""
    """Reasoning text or summary, where the provider shows one. Never passed to other workers."""


class Event(msgspec.Struct, frozen=True):
    """Something an observer may want to see. Subclasses live beside what they describe."""


class Delta(Event, frozen=True):
    """A piece of a reply's text, as it is written."""

    text: str


Observe = Callable[[Event], None]
"""Watches a run. An observer never gates: it returns at once and must not raise."""


def ignore(event: Event) -> None:
    """The observer that looks away. Workers may skip streaming when they see it."""
