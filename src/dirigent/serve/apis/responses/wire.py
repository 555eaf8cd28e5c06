"""The shapes of `/v1/responses`: the fields of a request, how they are read, and the fields of a reply.

A field that is unknown, or that cannot be honoured, is refused by its name, as in the chat API; labels that change no
answer are accepted. An item has the same struct in requests and replies, so that a reply's output can be sent back as
the next request's input. Source: https://platform.openai.com/docs/api-reference/responses
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from dirigent.messages import Effort, Message, Part, Request, Role, Schema, Text, Tool, ToolCall
from dirigent.serve.apis.chat.wire import ObjectFormat, TextFormat
from dirigent.serve.http.body import check_depth, decoded
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.asked import (
    NO_PARAMETERS,
    NOTHING_MORE,
    Asked,
    Extension,
    Fields,
    ImageDetail,
    Strict,
    Tokens,
    checked_messages,
    chosen_tool,
    image_part,
    message_content,
)
from dirigent.serve.runs.conversation import cache_names, run_name
from dirigent.serve.runs.report import RunReport

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
    """In a reply: which worker was asked for what on the way to the answer. In a request it is skipped, since no worker
    may see another's reasoning."""

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
    """Refused. It has a struct so that a tool's `type` is checked before its other fields."""

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
    """Accepted without effect: a plan with several steps always has a summary, and always the same."""


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
"""Accepted without effect: an input's images are always shown, and there is nothing else to include."""

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
    prompt_cache_key: str | None = None
    """Names the conversation, as the field `dirigent.conversation` does."""
    # Labels: accepted, without effect on the answer.
    metadata: Labels | None = None
    user: str | None = None
    safety_identifier: str | None = None
    client_metadata: dict[str, Any] | None = None
    """Codex's own."""
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    """For built-in tools; there are none here."""
    # Not supported: accepted only at the value that asks for nothing.
    truncation: Literal["disabled"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    top_logprobs: Literal[0] | None = None


class Wanted(msgspec.Struct, frozen=True):
    """A body that was read. It becomes a request once the conversation before it is read as well (`asked_of`)."""

    request: ResponseRequest
    items: tuple[Item, ...]


FIELDS = Fields(messages="input", response_format="text.format", schema="text.format.schema")


def read(body: bytes) -> Wanted:
    """The one door from bytes to a request of this API; every fault is a 400 that names its field."""
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
        free.append((FIELDS.schema, request.text.format.schema))
    check_depth(free)
    if request.stream_options is not None and not request.stream:
        raise Problem(400, "stream_options need stream: true", param="stream_options")
    if request.background and request.store is False:
        said = "store does not go with background: true: a response that is not kept cannot be found again"
        raise Problem(400, said, param="store")
    if request.background and request.parallel_tool_calls is False:
        said = "parallel_tool_calls does not go with background: true: it cannot be false"
        raise Problem(400, said, param="parallel_tool_calls")
    if isinstance(request.input, str):
        return Wanted(request, (MessageItem("user", (InputText(request.input),)),))
    if not request.input and request.previous_response_id is None:
        raise Problem(400, "input holds no item: there is nothing to answer", param="input")
    return Wanted(request, tuple(_item(raw, f"input[{index}]") for index, raw in enumerate(request.input)))


def asked_of(wanted: Wanted, *, history: Sequence[Item], run_before: str = "") -> Asked:
    """The request after the conversation that it continues, and the run of its last response.

    A previous response's instructions do not count.
    """
    request = wanted.request
    messages, places = _placed(wanted, history)
    if not messages:
        raise Problem(400, "input holds nothing to answer", param="input")
    fields = msgspec.structs.replace(FIELDS, places=places)
    return Asked(
        model=request.model,
        question=checked_messages(messages, fields, call_id="call_id"),
        options=_options(request),
        dirigent=request.dirigent or NOTHING_MORE,
        metadata=request.metadata or {},
        user=request.user or "",
        one_call=request.parallel_tool_calls is False,
        goes_on_from=(*((run_name(run_before),) if run_before else ()), *cache_names(request.prompt_cache_key)),
        background=bool(request.background),
        stream=bool(request.stream),
        fields=fields,
    )


def _options(request: ResponseRequest) -> Request:
    tools = tuple(
        Tool(tool.name, tool.parameters or NO_PARAMETERS, tool.description or "", bool(tool.strict))
        for tool in request.tools or ()
        if isinstance(tool, FunctionTool)
    )
    choice, shape = request.tool_choice, None if request.text is None else request.text.format
    schema = None
    if isinstance(shape, FlatSchemaFormat):
        schema = Schema(shape.schema, name=shape.name, strict=shape.strict is not False)
    return Request(
        messages=(),
        tools=tools,
        tool_choice=chosen_tool(
            choice.name if isinstance(choice, NamedFunctionTool) else choice,
            [tool.name for tool in tools],
            param="tools[{}].name",
            named=isinstance(choice, NamedFunctionTool),
        ),
        schema=schema,
        json_mode=isinstance(shape, ObjectFormat),
        max_output_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        effort=None if request.reasoning is None else request.reasoning.effort,
    )


def _placed(wanted: Wanted, history: Sequence[Item]) -> tuple[list[Message], tuple[str, ...]]:
    """The messages, and the field that each came from. A worker's text and the calls of the same reply are one."""
    messages: list[Message] = []
    places: list[str] = []
    calls: list[list[ToolCall]] = []

    def add(message: Message, place: str) -> None:
        messages.append(message)
        places.append(place)
        calls.append([])

    if wanted.request.instructions is not None:
        add(Message("system", wanted.request.instructions), "instructions")
    placed = [("previous_response_id", item) for item in history]
    placed += [(f"input[{index}]", item) for index, item in enumerate(wanted.items)]
    for place, item in placed:
        if isinstance(item, MessageItem):
            role: Role = "system" if item.role == "developer" else item.role
            add(Message(role, _content(item.role, item.content, f"{place}.content")), place)
        elif isinstance(item, CallOutputItem):
            add(Message("tool", _content("tool", item.output, f"{place}.output"), tool_call_id=item.call_id), place)
        elif isinstance(item, CallItem):
            if not messages or messages[-1].role != "assistant":
                add(Message("assistant"), place)
            calls[-1].append(ToolCall(item.call_id, item.name, item.arguments))
    for index, made in enumerate(calls):
        if made:
            messages[index] = msgspec.structs.replace(messages[index], tool_calls=tuple(made))
    return messages, tuple(places)


def _content(
    role: str, said: str | Sequence[InputText | InputImage | OutputText | Refusal], where: str
) -> str | tuple[Part, ...]:
    if isinstance(said, str):
        return said
    parts: list[Part] = []
    for index, part in enumerate(said):
        if not isinstance(part, InputImage):
            parts.append(Text(part.refusal if isinstance(part, Refusal) else part.text))
        elif role != "user":
            raise Problem(400, f"a {role} message cannot hold an image", param=f"{where}[{index}]")
        else:
            parts.append(image_part(part.image_url, detail=part.detail, param=f"{where}[{index}].image_url"))
    return message_content(parts, may_show_images=role == "user")


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
        parts = enumerate(item.content)
        # These come back with a reply that is sent as history, and are stored with it.
        check_depth(
            (f"{where}.content[{index}].{name}", list(getattr(part, name) or ()))
            for index, part in parts
            if isinstance(part, OutputText)
            for name in ("annotations", "logprobs")
        )
    return item


# ---- the reply --------------------------------------------------------------------------------------------


class ResponseInputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    orchestration_input_tokens: int
    """The part of input_tokens that the answering step did not read."""
    cache_write_tokens: int = 0
    """OpenAI's clients require it; responses that were stored before it was added have none."""


class ResponseOutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int
    orchestration_output_tokens: int
    """The part of output_tokens that the answering step did not write."""


class ResponseUsage(msgspec.Struct, frozen=True):
    """All billed calls of the run, planning included, so that a client that adds up replies counts right."""

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
    """A response in its present state. Settings that the request left open are null."""

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
    """Unset until the run has ended."""


def opened(request: ResponseRequest, id: str) -> ResponseObject:
    """The response before anything of its answer is known."""
    return ResponseObject(
        id=id,
        created_at=int(time.time()),
        status="in_progress",
        model=request.model,
        output=(),
        tools=request.tools or (),
        tool_choice=request.tool_choice or "auto",
        text=request.text if request.text and request.text.format else TextSettings(TextFormat()),
        reasoning=request.reasoning or ReasoningSettings(),
        metadata=request.metadata or {},
        parallel_tool_calls=request.parallel_tool_calls is not False,
        background=bool(request.background),
        store=request.store is not False,
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        previous_response_id=request.previous_response_id,
        prompt_cache_key=request.prompt_cache_key,
        safety_identifier=request.safety_identifier,
        temperature=request.temperature,
        top_p=request.top_p,
        user=request.user,
    )


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
