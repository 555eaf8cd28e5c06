"""The shapes of `/v1/messages`: the fields of a request, how they are read, and the fields of a reply.

A field that is unknown, or that cannot be honoured, is refused by its name, as in the chat API. Marks for caching are
passed on to Anthropic's models, at the ends of messages. Source: https://platform.claude.com/docs/en/api/messages
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from dirigent.messages import (
    Cache,
    Effort,
    Image,
    Message,
    Part,
    Request,
    Schema,
    Text,
    Tool,
    ToolCall,
    estimate_tokens,
)
from dirigent.run.step_prompt import TOOL_FAILED
from dirigent.serve.http.body import check_depth, decoded
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.asked import (
    NOTHING_MORE,
    Asked,
    Extension,
    Fields,
    Strict,
    Tokens,
    checked_messages,
    chosen_tool,
    image_part,
    message_content,
)
from dirigent.serve.runs.report import RunReport

CacheControl = dict[str, Any] | None
"""The end of what Anthropic's models are to keep in their cache; other models are not told."""


# ---- blocks -----------------------------------------------------------------------------------------------


class TextBlock(Strict, frozen=True, tag="text"):
    text: str
    cache_control: CacheControl = None
    citations: Any = None
    """In a reply that a client sends back as history."""


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
    """Skipped, as is `redacted_thinking`: no worker may see another's thinking."""

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
    # Accepted only at the value that asks for nothing.
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
    """Without effect: thinking is never shown again anyway."""

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
    # Labels: accepted, without effect on the answer.
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


EFFORT_OF_BUDGET: tuple[tuple[int, Effort], ...] = ((4096, "low"), (16384, "medium"))
"""Thinking budgets below these are that effort; larger ones are `high`."""

IMAGE_TOKENS = 1500
"""Estimated tokens of an image: about the price of one of a megapixel."""

THREADS = "thread_unsupported_request"
"""Anthropic's code for a request that is not stored as a thread. Their clients then send the whole conversation."""

FIELDS = Fields(response_format="output_config.format", schema="output_config.format.schema", stop="stop_sequences")


def read(body: bytes) -> Asked:
    """The one door from bytes to a request of this API; every fault is a 400 that names its field."""
    try:
        request = decoded(body, _DECODER)
    except Problem as problem:
        if (problem.code, problem.param) != ("unknown_field", "thread"):
            raise
        said = "this server keeps no threads; send the whole conversation without the field 'thread'"
        raise Problem(400, said, code=THREADS, param="thread") from None
    tools = _tools(request)
    placed = _placed(request)
    fields = msgspec.structs.replace(FIELDS, places=tuple(place for place, _ in placed))
    choice = request.tool_choice
    one_call = choice is not None and not isinstance(choice, NoChoice) and bool(choice.disable_parallel_tool_use)
    return Asked(
        model=request.model,
        question=checked_messages([message for _, message in placed], fields, call_id="tool_use_id"),
        options=_options(request, tools),
        dirigent=request.dirigent or NOTHING_MORE,
        user=(request.metadata.user_id or "") if request.metadata is not None else "",
        one_call=one_call,
        stream=bool(request.stream),
        fields=fields,
    )


def read_count(body: bytes) -> tuple[str, int]:
    """The model, and about how many tokens one reading of the request is. A plan's steps may read it several times."""
    request = decoded(body, _COUNT_DECODER)
    tools = _tools(request)
    total = sum(estimate_tokens(msgspec.json.encode(tool.parameters).decode() + tool.name) for tool in tools)
    total += sum(estimate_tokens(tool.description) for tool in tools)
    for _, message in _placed(request):
        parts = (Text(message.content),) if isinstance(message.content, str) else message.content
        total += sum(estimate_tokens(part.text) if isinstance(part, Text) else IMAGE_TOKENS for part in parts)
        total += sum(estimate_tokens(call.arguments) for call in message.tool_calls)
    return request.model, total


class _Kind(msgspec.Struct, frozen=True):
    type: str | None = None


_DECODER = msgspec.json.Decoder(MessagesRequest)
_COUNT_DECODER = msgspec.json.Decoder(CountRequest)
_KIND = msgspec.json.Decoder(_Kind)
_TOOL = msgspec.json.Decoder(CustomToolParam)


def _tools(request: CountRequest) -> tuple[Tool, ...]:
    """The request's tools. Free-form parts of the request may not be nested too deep."""
    tools = [_tool(raw, f"tools[{index}]") for index, raw in enumerate(request.tools or ())]
    free: list[tuple[str, Any]] = [(f"tools[{i}].input_schema", tool.parameters) for i, tool in enumerate(tools)]
    if request.output_config is not None and request.output_config.format is not None:
        free.append((FIELDS.schema, request.output_config.format.schema))
    for i, message in enumerate(request.messages):
        if not isinstance(message.content, str):
            blocks = enumerate(message.content)
            free += [(f"messages[{i}].content[{j}].input", b.input) for j, b in blocks if isinstance(b, ToolUseBlock)]
    check_depth(free)
    return tuple(tools)


def _tool(raw: Raw, where: str) -> Tool:
    """A tool. Its `type` is read first: if Anthropic's own servers carry it out, nothing else matters."""
    kind = decoded(raw, _KIND, where=where).type
    if kind not in (None, "custom"):
        said = f"{where}.type is {kind[:60]!r}: only tools of your own, with an input_schema, can be used here"
        raise Problem(400, said, code="invalid_value", param=f"{where}.type")
    tool = decoded(raw, _TOOL, where=where)
    return Tool(tool.name, tool.input_schema, tool.description or "", bool(tool.strict), _cache(tool.cache_control))


def _options(request: MessagesRequest, tools: tuple[Tool, ...]) -> Request:
    if "" in (request.stop_sequences or ()):
        said = "an empty word in stop_sequences would end every answer at once"
        raise Problem(400, said, param="stop_sequences")
    config, thinking, choice = request.output_config or OutputConfig(), request.thinking, request.tool_choice
    effort: Effort | None = config.effort
    if effort is None and isinstance(thinking, ThinkingEnabled):
        effort = next((effort for below, effort in EFFORT_OF_BUDGET if thinking.budget_tokens < below), "high")
    words = {AutoChoice: "auto", AnyChoice: "required", NoChoice: "none", type(None): None}
    return Request(
        messages=(),
        tools=tools,
        tool_choice=chosen_tool(
            choice.name if isinstance(choice, ToolChoice) else words[type(choice)],
            [tool.name for tool in tools],
            param="tools[{}].name",
            named=isinstance(choice, ToolChoice),
        ),
        schema=None if config.format is None else Schema(config.format.schema),
        max_output_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        stop=request.stop_sequences or (),
        effort=effort,
    )


def _placed(request: CountRequest) -> list[tuple[str, Message]]:
    """The messages, each with the field that it came from. Tool results are messages of their own.

    A system message that follows a user's turn is put before it. So a conversation ends with the turn that is to be
    answered, and tool results stay behind the message that called the tools, as other wires require.
    """
    placed: list[tuple[str, Message]] = []
    turn: list[tuple[str, Message]] = []
    has_results = False
    if request.system:
        blocks = (TextBlock(request.system),) if isinstance(request.system, str) else request.system
        system = "\n".join(block.text for block in blocks)
        placed.append(("system", Message("system", system, cache=_last_cache(blocks))))
    for index, message in enumerate(request.messages):
        found = _messages(message, f"messages[{index}]")
        if message.role == "user":
            turn += found
            has_results = has_results or found[0][1].role == "tool"
        elif message.role == "assistant":
            placed += turn + found
            turn, has_results = [], False
        else:
            at = len(placed) - (1 if has_results and placed else 0)
            placed[at:at] = found
    placed += turn
    if request.cache_control is not None:  # of the whole request: everything up to its end
        where, last = placed[-1]
        placed[-1] = (where, msgspec.structs.replace(last, cache=_cache(request.cache_control)))
    return placed


def _cache(control: CacheControl) -> Cache:
    if control is None:
        return ""
    return "1h" if control.get("ttl") == "1h" else "5m"


def _last_cache(blocks: Iterable[Block]) -> Cache:
    """The cache that the last marked one of these blocks asks for. They become one message, so its end is the mark."""
    found: Cache = ""
    for block in blocks:
        if not isinstance(block, ThinkingBlock | RedactedThinkingBlock):
            found = _cache(block.cache_control) or found
    return found


def _messages(message: MessageParam, where: str) -> list[tuple[str, Message]]:
    if isinstance(message.content, str):
        return [(where, Message(message.role, message.content))]
    results: list[tuple[str, Message]] = []
    parts: list[Part] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(message.content):
        at = f"{where}.content[{index}]"
        if isinstance(block, TextBlock):
            parts.append(Text(block.text))
        elif isinstance(block, ToolUseBlock):
            if message.role != "assistant":
                raise Problem(400, f"only an assistant uses tools, not {message.role}", param=at)
            calls.append(ToolCall(block.id, block.name, msgspec.json.encode(block.input).decode()))
        elif isinstance(block, ImageBlock | ToolResultBlock) and message.role == "assistant":
            raise Problem(400, "an assistant's message holds text and tool_use", param=at)
        elif isinstance(block, ImageBlock):
            if message.role != "user":
                raise Problem(400, f"a {message.role} message cannot hold an image", param=at)
            parts.append(_image(block, at))
        elif isinstance(block, ToolResultBlock):
            inner = (TextBlock(block.content),) if isinstance(block.content, str) else block.content or ()
            text = "\n".join(part.text for part in inner if isinstance(part, TextBlock))
            said = TOOL_FAILED + text if block.is_error else text
            mark = _cache(block.cache_control)
            results.append((at, Message("tool", said, tool_call_id=block.tool_use_id, cache=mark)))
            # Results are text on every other wire, so an image in one is shown right after it.
            images = [(f"{at}.content[{j}]", part) for j, part in enumerate(inner) if isinstance(part, ImageBlock)]
            parts += [_image(part, place) for place, part in images]
    if parts or calls or not results:
        said_in_parts = message_content(parts, may_show_images=message.role == "user")
        own = _last_cache(block for block in message.content if not isinstance(block, ToolResultBlock))
        results.append((where, Message(message.role, said_in_parts, tool_calls=tuple(calls), cache=own)))
    return results


def _image(block: ImageBlock, where: str) -> Image:
    source = block.source
    if isinstance(source, Base64Source):
        return image_part(f"data:{source.media_type};base64,{source.data}", param=f"{where}.source.data")
    return image_part(source.url, param=f"{where}.source.url")


# ---- the reply --------------------------------------------------------------------------------------------


class AnswerText(msgspec.Struct, frozen=True, tag="text"):
    text: str
    citations: None = None


class AnswerToolUse(msgspec.Struct, frozen=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(msgspec.Struct, frozen=True):
    """All billed calls of the run, planning included. `input_tokens` does not count tokens read from or written to a
    cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    orchestration_input_tokens: int | msgspec.UnsetType = msgspec.UNSET
    """Tokens that the answering step did not read, cached or not. Unset until the run has ended."""
    orchestration_output_tokens: int | msgspec.UnsetType = msgspec.UNSET
    """Tokens that the answering step did not write."""


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
    """Unset until the run has ended."""


class TokenCount(msgspec.Struct, frozen=True):
    input_tokens: int
    """Estimated from the text's length: each worker counts in its own way."""
    estimated: Literal[True] = True


class ErrorCode(msgspec.Struct, frozen=True):
    error_code: str


class MessagesErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    message: str
    param: str | None = None
    """The field of the request that is at fault. Anthropic's own errors have neither this nor `code`."""
    code: str | None = None
    details: ErrorCode | None = None
    """Only if the request asks for a thread: Anthropic's clients then continue without one."""


class MessagesErrorBody(msgspec.Struct, frozen=True):
    """The body of every error reply of this API, and the `error` event of a stream."""

    error: MessagesErrorDetail
    request_id: str
    type: Literal["error"] = "error"
