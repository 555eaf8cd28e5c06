"""The data that goes to a model and comes back: messages, tools, requests, replies, usage.

Plain frozen data with no behaviour beyond small sums; wire formats live in `workers/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from dirigent.limits import Ledger
else:
    Ledger = Any  # so that msgspec can decode a stored `Request`, which has no ledger

Role = Literal["system", "user", "assistant", "tool"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Finish = Literal["stop", "length", "tool_calls", "refused"]
"""Why a reply ended. Any other end is a `WorkerError`."""


Cache = Literal["", "5m", "1h"]
"""How long a provider is asked to keep a prompt in its cache (Anthropic)."""


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
    """On a `tool` message: the tool that was called. On others: the speaker, if there are several and the wire can name
    them."""
    cache: Cache = ""
    """The caller wants its provider to cache the prompt up to the end of this message, for so long."""

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


def asked_text(question: Sequence[Message]) -> str:
    """The text that a conversation wants an answer to: its last user message."""
    return next((message.text for message in reversed(question) if message.role == "user"), "")


CHARS_PER_TOKEN = 4
"""For ordinary text whose tokens are not counted."""


def estimate_tokens(text: str) -> int:
    """An estimate of a text's tokens: a quarter of its characters, rounded up."""
    return -(-len(text) // CHARS_PER_TOKEN)


def well_formed(text: str) -> str:
    """The text as UTF-8 can hold it: pairs of surrogates are joined, and a single one is replaced."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Tool(msgspec.Struct, frozen=True):
    name: str
    parameters: dict[str, Any]
    """JSON schema of the arguments."""
    description: str = ""
    strict: bool = False
    cache: Cache = ""
    """The caller wants its provider to cache the tools up to this one."""


class Warm(msgspec.Struct, frozen=True):
    """The state in which a conversation's last turn left the prompt caches of providers."""

    workers: tuple[str, ...]
    """The workers that read the conversation, the one that answered first."""
    tokens: int
    """What it read."""


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
    """Input that a provider wrote to its cache, at a higher price (Anthropic)."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cache_write_input_tokens + other.cache_write_input_tokens,
        )


class Attempt(msgspec.Struct, frozen=True):
    """One call that was sent to a worker, with or without a reply. The sum of attempts is the bill."""

    worker: str
    seconds: float
    usage: Usage = Usage()
    cost_usd: float = 0.0
    error: str = ""
    cached: bool = False
    """Answered from a cache: nothing was sent or paid."""
    overran: bool = False
    """It wrote or cost more than was reserved for it: its provider does not respect `max_output_tokens`."""


class Ran(msgspec.Struct, frozen=True):
    """A program that a worker wrote and that was run."""

    program: str
    exit_code: int | None
    """None: it was stopped at its limit of time or memory."""
    output: str = ""
    """The end of its standard output."""
    error: str = ""
    """The end of its standard error."""
    confined_by: str = ""
    """The walls that confined it, such as `bubblewrap` or `landlock`."""

    @property
    def printed(self) -> bool:
        """Whether it ended well and printed something."""
        return self.exit_code == 0 and bool(self.output.strip())


class Choice(msgspec.Struct, frozen=True):
    """The result that a local worker repeats as its reply, and how many results agree with it."""

    step: int
    votes: int
    """How many results gave this answer."""
    of: int
    """How many results gave any answer."""


class Result(msgspec.Struct, frozen=True):
    """An earlier step's reply, as data."""

    step: int
    worker: str
    subtask: str
    text: str
    ended: bool = True
    """False if the reply was cut at its limit of tokens."""
    ran: Ran | None = None


class Request(msgspec.Struct, frozen=True):
    """A request to a worker. A worker raises for a field that it cannot honour; it never ignores one."""

    messages: tuple[Message, ...]
    question: str = ""
    """The caller's last question, for local workers that choose among results. Models read it in `messages`."""
    results: tuple[Result, ...] = ()
    """The results on the step's access list. Models read them in `messages`; local workers that count or choose among
    results read them here."""
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
    """The ledger in which every attempt is reserved before it is made and settled after it."""
    tenant: str = ""
    """The tenant that sent the request. No tenant gets a stored reply of another; no provider sees this field."""
    warm: Warm | None = None
    """The workers that read the beginning of this conversation a short time ago. Planners read it; no provider does."""
    goes_on: bool = False
    """The messages are a conversation as its next turn will repeat it, so all of it is worth a place in a cache."""
    drafts: bool = False
    """The reply is a planner's draft: `max_output_tokens` counts as it is, not the limit on the worker's answers."""

    @property
    def may_call(self) -> bool:
        """Whether a reply may call a tool. Some models call tools without an offer, or against instructions."""
        return bool(self.tools) and self.tool_choice != "none"


class Reply(msgspec.Struct, frozen=True):
    """A worker's whole answer. Streaming goes through the observer; the reply is always complete."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"
    usage: Usage = Usage()
    cost_usd: float = 0.0
    attempts: tuple[Attempt, ...] = ()
    seconds: float = 0.0
    model: str = ""
    """The model that answered, as the provider names it."""
    reasoning: str = ""
    """Reasoning text or summary, if the provider returns one. Never passed to other workers."""
    ran: Ran | None = None
    """The program whose output is the text, if the worker ran one."""
    confidence: float | None = None
    """The chance that the text is right, from 0 to 1, if the worker measured one. Nothing is said without a measure."""
    chosen: Choice | None = None
    """The result that the text repeats, if the worker chose among results."""


class Event(msgspec.Struct, frozen=True):
    """Something that an observer may want to see. Each subclass is defined beside the thing it describes."""


class Delta(Event, frozen=True):
    """A piece of a reply's text, as it is written."""

    text: str


Observe = Callable[[Event], None]
"""Watches a run. An observer never gates: it returns at once and must not raise."""


def ignore(event: Event) -> None:
    """The observer that does nothing. Workers may skip streaming when they get it."""
