"""The shapes of `/v1/responses`: what a request may hold, the items of a conversation, and what goes back.

The same policy as `wire.py`: a field that is not here, or that cannot be honoured, is refused by its name;
labels that change no answer are accepted. An item has one struct, whether it comes in or goes out, so that a
reply's output can be sent back as the next request's input. Written after OpenAI's API reference:
https://platform.openai.com/docs/api-reference/responses
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from dirigent.messages import Effort
from dirigent.serve.apis.chat.wire import Extension, ImageDetail, ObjectFormat, RunReport, Strict, TextFormat, Tokens
from dirigent.serve.http.errors import Problem
from dirigent.serve.http.json_body import check_depth, decoded

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


# ---- items ------------------------------------------------------------------------------------------------


class InputText(Strict, frozen=True, tag="input_text"):
    text: str


class InputImage(Strict, frozen=True, tag="input_image"):
    image_url: str
    detail: ImageDetail = "auto"
    file_id: None = None


class OutputText(Strict, frozen=True, tag="output_text", omit_defaults=False):
    text: str
    annotations: tuple[Any, ...] | None = ()
    logprobs: tuple[Any, ...] | None = ()


class Refusal(Strict, frozen=True, tag="refusal"):
    refusal: str


class SummaryText(Strict, frozen=True, tag="summary_text"):
    text: str


class MessageItem(Strict, frozen=True, tag="message"):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | tuple[InputText | InputImage | OutputText | Refusal, ...]
    id: str | None = None
    status: ItemStatus | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class CallItem(Strict, frozen=True, tag="function_call"):
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: ItemStatus | None = None


class CallOutputItem(Strict, frozen=True, tag="function_call_output"):
    call_id: str
    output: str | tuple[InputText | InputImage, ...]
    id: str | None = None
    status: ItemStatus | None = None


class ReasoningItem(Strict, frozen=True, tag="reasoning"):
    """Out: who was asked what on the way to the answer. In: skipped, since no worker may see another's."""

    summary: tuple[SummaryText, ...]
    id: str | None = None
    status: ItemStatus | None = None
    content: Any = None
    encrypted_content: str | None = None


Item = MessageItem | CallItem | CallOutputItem | ReasoningItem


# ---- the request ------------------------------------------------------------------------------------------


class FunctionTool(Strict, frozen=True, tag="function", omit_defaults=False):
    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class CustomTool(Strict, frozen=True, tag="custom"):
    """Refused. It stands here so that a tool's `type` is looked at first, whatever else it holds."""

    name: str


class NamedFunctionTool(Strict, frozen=True, omit_defaults=False):
    name: str
    type: Literal["function"] = "function"


class FlatSchemaFormat(Strict, frozen=True, tag="json_schema"):
    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    schema: dict[str, Any]
    strict: bool | None = None
    description: str | None = None


class TextSettings(Strict, frozen=True):
    format: TextFormat | ObjectFormat | FlatSchemaFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningSettings(Strict, frozen=True, omit_defaults=False):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Accepted; the summary is always there where a plan has several steps, and always the same."""


class ResponseStreamOptions(Strict, frozen=True):
    include_obfuscation: Literal[False] | None = None


Includable = Literal[
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""Accepted: an input's images are always shown, and of the rest there is nothing to include."""

Labels = Annotated[dict[str, str], Meta(max_length=16)]


class ResponseRequest(Strict, frozen=True):
    """The body of `POST /v1/responses`."""

    model: str
    input: str | tuple[Raw, ...]
    """Text, or items: message, function_call, function_call_output, reasoning."""
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None
    tools: Annotated[tuple[FunctionTool | CustomTool, ...], Meta(max_length=128)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedFunctionTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    max_output_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    include: tuple[Includable, ...] | None = None
    stream_options: ResponseStreamOptions | None = None
    dirigent: Extension | None = None
    # Labels: accepted, and nothing depends on them.
    metadata: Labels | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    client_metadata: dict[str, Any] | None = None
    """Codex's own."""
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    """Of built-in tools, of which there are none."""
    # Not supported: accepted only where they ask for nothing.
    truncation: Literal["disabled"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    top_logprobs: Literal[0] | None = None


def read_response_request(body: bytes) -> tuple[ResponseRequest, tuple[Item, ...]]:
    """The one door from bytes to a request and its items; every fault is a 400 that names its field."""
    try:
        request = decoded(body, _DECODER)
    except Problem as problem:
        if problem.param.startswith("tools[") and problem.param.endswith("].type"):
            raise Problem(400, f"{problem}; only function tools can be used here", param=problem.param) from None
        raise
    free: list[tuple[str, Any]] = []
    for index, tool in enumerate(request.tools or ()):
        if isinstance(tool, CustomTool):
            where = f"tools[{index}].type"
            raise Problem(400, f"{where} is 'custom': only function tools can be used here", param=where)
        free.append((f"tools[{index}].parameters", tool.parameters))
    if request.text is not None and isinstance(request.text.format, FlatSchemaFormat):
        free.append(("text.format.schema", request.text.format.schema))
    check_depth(free)
    if isinstance(request.input, str):
        return request, (MessageItem("user", (InputText(request.input),)),)
    if not request.input and request.previous_response_id is None:
        raise Problem(400, "input holds no item: there is nothing to answer", param="input")
    return request, tuple(_item(raw, f"input[{index}]") for index, raw in enumerate(request.input))


class _Kind(msgspec.Struct, frozen=True):
    type: str = "message"


_DECODER = msgspec.json.Decoder(ResponseRequest)
_KIND = msgspec.json.Decoder(_Kind)
_ITEMS: dict[str, msgspec.json.Decoder[Any]] = {
    "message": msgspec.json.Decoder(MessageItem),  # the one kind whose `type` may be left out
    "function_call": msgspec.json.Decoder(CallItem),
    "function_call_output": msgspec.json.Decoder(CallOutputItem),
    "reasoning": msgspec.json.Decoder(ReasoningItem),
}


def _item(raw: Raw, where: str) -> Item:
    kind = decoded(raw, _KIND, where=where).type
    if kind not in _ITEMS:
        raise Problem(
            400,
            f"{where}.type is {kind[:60]!r}; known here: {', '.join(_ITEMS)}",
            code="invalid_value",
            param=f"{where}.type",
        )
    item: Item = decoded(raw, _ITEMS[kind], where=where)
    if isinstance(item, MessageItem) and not isinstance(item.content, str):
        check_depth(_free_form(item.content, f"{where}.content"))
    return item


def _free_form(parts: tuple[Any, ...], where: str) -> Iterator[tuple[str, Any]]:
    """What comes back with a reply that is sent as history, and is kept with it."""
    for index, part in enumerate(parts):
        if isinstance(part, OutputText):
            yield f"{where}[{index}].annotations", list(part.annotations or ())
            yield f"{where}[{index}].logprobs", list(part.logprobs or ())


# ---- the reply --------------------------------------------------------------------------------------------


class ResponseInputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    orchestration_input_tokens: int
    """Part of input_tokens: what the answering step did not read."""
    cache_write_tokens: int = 0
    """OpenAI's clients require it; responses that were stored before it was added have none."""


class ResponseOutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int
    orchestration_output_tokens: int
    """Part of output_tokens: what the answering step did not write."""


class ResponseUsage(msgspec.Struct, frozen=True):
    """Every billed call of the run, planning included, so that a client that only adds up counts right."""

    input_tokens: int
    input_tokens_details: ResponseInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int


class ResponseError(msgspec.Struct, frozen=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: Literal["max_output_tokens", "content_filter"]


class ResponseObject(msgspec.Struct, frozen=True):
    """A response as it stands. What the request left open is null."""

    id: str
    created_at: int
    status: Status
    model: str
    output: tuple[Item, ...]
    tools: tuple[FunctionTool | CustomTool, ...]
    tool_choice: str | NamedFunctionTool
    text: TextSettings
    reasoning: ReasoningSettings
    metadata: dict[str, str]
    parallel_tool_calls: bool
    background: bool
    store: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    completed_at: int | None = None
    usage: ResponseUsage | None = None
    service_tier: Literal["default"] = "default"
    truncation: Literal["disabled"] = "disabled"
    object: Literal["response"] = "response"
    dirigent: RunReport | msgspec.UnsetType = msgspec.UNSET
    """Once the run has ended."""


class ItemList(msgspec.Struct, frozen=True):
    data: tuple[Item, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class DeletedResponse(msgspec.Struct, frozen=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True
