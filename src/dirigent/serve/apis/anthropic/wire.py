"""The shapes of `/v1/messages`: what a request may hold, and what goes back.

The same policy as `wire.py`: a field that is not here, or that cannot be honoured, is refused by its name. Marks
for caching are accepted and ignored: they change no answer, and workers cache as they do. Written after
Anthropic's API reference: https://platform.claude.com/docs/en/api/messages
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from dirigent.serve.apis.chat.wire import Extension, RunReport, Strict, Tokens
from dirigent.serve.http.errors import Problem
from dirigent.serve.http.json_body import check_depth, decoded

CacheControl = dict[str, Any] | None


# ---- blocks -----------------------------------------------------------------------------------------------


class TextBlock(Strict, frozen=True, tag="text"):
    text: str
    cache_control: CacheControl = None
    citations: Any = None
    """Comes back with a reply that is sent as history."""


class Base64Source(Strict, frozen=True, tag="base64"):
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class UrlSource(Strict, frozen=True, tag="url"):
    url: str


class ImageBlock(Strict, frozen=True, tag="image"):
    source: Base64Source | UrlSource
    cache_control: CacheControl = None


class ToolUseBlock(Strict, frozen=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl = None
    caller: Any = None


class ToolResultBlock(Strict, frozen=True, tag="tool_result"):
    tool_use_id: str
    content: str | tuple[TextBlock | ImageBlock, ...] | None = None
    is_error: bool | None = None
    cache_control: CacheControl = None


class ThinkingBlock(Strict, frozen=True, tag="thinking"):
    """Skipped, as `redacted_thinking` is: no worker may see another's."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Strict, frozen=True, tag="redacted_thinking"):
    data: str


Block = TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock


# ---- the request ------------------------------------------------------------------------------------------


class MessageParam(Strict, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | tuple[Block, ...]


class CustomToolParam(Strict, frozen=True):
    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,128}$")]
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: CacheControl = None
    # Accepted where they ask for nothing.
    eager_input_streaming: bool | None = None
    defer_loading: Literal[False] | None = None
    allowed_callers: tuple[Literal["direct"], ...] | None = None


class AutoChoice(Strict, frozen=True, tag="auto"):
    disable_parallel_tool_use: bool | None = None


class AnyChoice(Strict, frozen=True, tag="any"):
    disable_parallel_tool_use: bool | None = None


class ToolChoice(Strict, frozen=True, tag="tool"):
    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(Strict, frozen=True, tag="none"):
    pass


class ThinkingEnabled(Strict, frozen=True, tag="enabled"):
    budget_tokens: Tokens
    display: Literal["summarized", "omitted"] | None = None


class ThinkingAdaptive(Strict, frozen=True, tag="adaptive"):
    display: Literal["summarized", "omitted"] | None = None


class ThinkingDisabled(Strict, frozen=True, tag="disabled"):
    pass


class OutputSchema(Strict, frozen=True):
    schema: dict[str, Any]
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(Strict, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputSchema | None = None


class ClearThinking(Strict, frozen=True, tag="clear_thinking_20251015"):
    """Asks for what is always done here: thinking is never shown again."""

    keep: Any = None


class ContextManagement(Strict, frozen=True):
    edits: tuple[ClearThinking, ...] = ()


class RequestMetadata(Strict, frozen=True):
    user_id: str | None = None


class CountRequest(Strict, frozen=True):
    """The body of `POST /v1/messages/count_tokens`."""

    model: str
    messages: Annotated[tuple[MessageParam, ...], Meta(min_length=1)]
    system: str | tuple[TextBlock, ...] | None = None
    tools: Annotated[tuple[Raw, ...], Meta(max_length=512)] | None = None
    tool_choice: AutoChoice | AnyChoice | ToolChoice | NoChoice | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl = None
    context_management: ContextManagement | None = None
    speed: Literal["standard"] | None = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/messages`."""

    max_tokens: Tokens
    stream: bool | None = None
    stop_sequences: Annotated[tuple[str, ...], Meta(max_length=4)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    dirigent: Extension | None = None
    # Labels: accepted, and nothing depends on them.
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


THREADS = "thread_unsupported_request"
"""Anthropic's word for a request that it will not keep as a thread. Their clients then send the whole conversation."""


def read_messages_request(body: bytes) -> tuple[MessagesRequest, tuple[CustomToolParam, ...]]:
    """The one door from bytes to a request and its tools; every fault is a 400 that names its field."""
    try:
        request = decoded(body, _DECODER)
    except Problem as problem:
        if (problem.code, problem.param) != ("unknown_field", "thread"):
            raise
        said = "this server keeps no threads; send the whole conversation without the field 'thread'"
        raise Problem(400, said, code=THREADS, param="thread") from None
    return request, _checked_tools(request)


def read_count_request(body: bytes) -> tuple[CountRequest, tuple[CustomToolParam, ...]]:
    request = decoded(body, _COUNT_DECODER)
    return request, _checked_tools(request)


def _checked_tools(request: CountRequest) -> tuple[CustomToolParam, ...]:
    tools = tuple(_tool(raw, f"tools[{index}]") for index, raw in enumerate(request.tools or ()))
    free: list[tuple[str, Any]] = [(f"tools[{i}].input_schema", tool.input_schema) for i, tool in enumerate(tools)]
    if request.output_config is not None and request.output_config.format is not None:
        free.append(("output_config.format.schema", request.output_config.format.schema))
    for i, message in enumerate(request.messages):
        if not isinstance(message.content, str):
            blocks = enumerate(message.content)
            free += [(f"messages[{i}].content[{j}].input", b.input) for j, b in blocks if isinstance(b, ToolUseBlock)]
    check_depth(free)
    return tools


class _Kind(msgspec.Struct, frozen=True):
    type: str | None = None


_DECODER = msgspec.json.Decoder(MessagesRequest)
_COUNT_DECODER = msgspec.json.Decoder(CountRequest)
_KIND = msgspec.json.Decoder(_Kind)
_TOOL = msgspec.json.Decoder(CustomToolParam)


def _tool(raw: Raw, where: str) -> CustomToolParam:
    """A tool's `type` is looked at first: of one that only Anthropic's servers carry out nothing else matters."""
    kind = decoded(raw, _KIND, where=where).type
    if kind not in (None, "custom"):
        said = f"{where}.type is {kind[:60]!r}: only tools of your own, with an input_schema, can be used here"
        raise Problem(400, said, code="invalid_value", param=f"{where}.type")
    return decoded(raw, _TOOL, where=where)


# ---- the reply --------------------------------------------------------------------------------------------


class AnswerText(msgspec.Struct, frozen=True, tag="text"):
    text: str
    citations: None = None


class AnswerToolUse(msgspec.Struct, frozen=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(msgspec.Struct, frozen=True):
    """Every billed call of the run, planning included. What a cache gave or took is no part of `input_tokens`."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    orchestration_input_tokens: int | msgspec.UnsetType = msgspec.UNSET
    """What the answering step did not read, cached or not. Not there before the run has ended."""
    orchestration_output_tokens: int | msgspec.UnsetType = msgspec.UNSET
    """What the answering step did not write."""


StopReason = Literal["end_turn", "max_tokens", "tool_use", "refusal"]


class MessageObject(msgspec.Struct, frozen=True):
    id: str
    model: str
    content: tuple[AnswerText | AnswerToolUse, ...]
    usage: MessageUsage
    stop_reason: StopReason | None = None
    stop_sequence: None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    dirigent: RunReport | msgspec.UnsetType = msgspec.UNSET
    """Once the run has ended."""


class TokenCount(msgspec.Struct, frozen=True):
    input_tokens: int
    """Estimated from the text's length: workers count in their own ways."""
    estimated: Literal[True] = True


class ErrorCode(msgspec.Struct, frozen=True):
    error_code: str


class MessagesErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    message: str
    param: str | None = None
    """The field of the request that is at fault; this and `code` are beyond Anthropic's shape."""
    code: str | None = None
    details: ErrorCode | None = None
    """Only for a request that asks for a thread: Anthropic's clients decide by it whether to go on without one."""


class MessagesErrorBody(msgspec.Struct, frozen=True):
    """The body of every reply on this route that is no success, and the `error` event of a stream."""

    error: MessagesErrorDetail
    request_id: str
    type: Literal["error"] = "error"
