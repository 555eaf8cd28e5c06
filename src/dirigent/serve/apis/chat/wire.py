"""The shapes of `/v1/chat/completions`: the fields of a request, how they are read, and the fields of a reply.

Every field is checked against these structs while it is decoded; `read` checks only how fields go together. A field
that is unknown, or that cannot be honoured, is refused by its name. Fields that client libraries send by habit are
accepted with their neutral value (`n: 1`, `logprobs: false`). So are labels, which change no answer (`user`,
`metadata`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dirigent.messages import Effort, Message, Part, Request, Schema, Text, Tool, ToolCall
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
from dirigent.serve.runs.conversation import cache_names
from dirigent.serve.runs.report import RunReport

# ---- the request ------------------------------------------------------------------------------------------


class TextPart(Strict, frozen=True, tag="text"):
    text: str


class ImageUrl(Strict, frozen=True):
    url: str
    detail: ImageDetail | None = None


class ImagePart(Strict, frozen=True, tag="image_url"):
    image_url: ImageUrl


class FunctionCall(Strict, frozen=True):
    name: str
    arguments: str


class ToolCallPart(Strict, frozen=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatMessage(Strict, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | tuple[TextPart | ImagePart, ...] | None = None
    tool_calls: tuple[ToolCallPart, ...] | None = None
    tool_call_id: str | None = None
    name: Annotated[str, Meta(max_length=64)] | None = None
    refusal: str | None = None
    # OpenAI's own library adds these to a reply that a client sends back as history:
    annotations: tuple[()] | None = None
    audio: None = None
    function_call: None = None


class FunctionDefinition(Strict, frozen=True):
    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Strict, frozen=True):
    function: FunctionDefinition
    type: Literal["function"] = "function"


class NamedFunction(Strict, frozen=True):
    name: str


class NamedTool(Strict, frozen=True):
    function: NamedFunction
    type: Literal["function"] = "function"


class TextFormat(Strict, frozen=True, tag="text"):
    pass


class ObjectFormat(Strict, frozen=True, tag="json_object"):
    pass


class JsonSchema(Strict, frozen=True):
    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    schema: dict[str, Any]
    strict: bool | None = None
    description: str | None = None


class SchemaFormat(Strict, frozen=True, tag="json_schema"):
    json_schema: JsonSchema


class StreamOptions(Strict, frozen=True):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class ChatRequest(Strict, frozen=True):
    """The body of `POST /v1/chat/completions`."""

    model: str
    messages: Annotated[tuple[ChatMessage, ...], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 64)] | None = None
    stop: str | Annotated[tuple[str, ...], Meta(max_length=4)] | None = None
    reasoning_effort: Effort | None = None
    tools: Annotated[tuple[ToolDefinition, ...], Meta(max_length=128)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    response_format: TextFormat | ObjectFormat | SchemaFormat | None = None
    dirigent: Extension | None = None
    prompt_cache_key: str | None = None
    """Names the conversation, as the field `dirigent.conversation` does."""
    # Labels: accepted, without effect on the answer.
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    # Not supported: accepted only at the value that asks for nothing.
    n: Literal[1] | None = None
    parallel_tool_calls: Literal[True] | None = None
    store: Literal[False] | None = None
    logprobs: Literal[False] | None = None
    frequency_penalty: Annotated[float, Meta(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Meta(ge=0, le=0)] | None = None
    service_tier: Literal["auto", "default"] | None = None


def read(body: bytes) -> Asked:
    """The one door from bytes to a chat request; every fault is a 400 that names its field."""
    request = decoded(body, _DECODER)
    free: list[tuple[str, Any]] = [
        (f"tools[{i}].function.parameters", tool.function.parameters) for i, tool in enumerate(request.tools or ())
    ]
    if isinstance(request.response_format, SchemaFormat):
        free.append(("response_format.json_schema.schema", request.response_format.json_schema.schema))
    check_depth(free)
    if request.stream_options is not None and not request.stream:
        raise Problem(400, "stream_options need stream: true", param="stream_options")
    messages = [_message(said, f"messages[{index}]") for index, said in enumerate(request.messages)]
    return Asked(
        model=request.model,
        question=checked_messages(messages, FIELDS, call_id="tool_call_id"),
        options=_options(request),
        dirigent=request.dirigent or NOTHING_MORE,
        metadata=request.metadata or {},
        goes_on_from=cache_names(request.prompt_cache_key),
        user=request.user or request.safety_identifier or "",
        stream=bool(request.stream),
        stream_usage=request.stream_options is not None and bool(request.stream_options.include_usage),
    )


FIELDS = Fields()
_DECODER = msgspec.json.Decoder(ChatRequest)


def _options(request: ChatRequest) -> Request:
    shape = request.response_format
    stop = (request.stop,) if isinstance(request.stop, str) else request.stop or ()
    if "" in stop:
        raise Problem(400, "an empty word in stop would end every answer at once", param="stop")
    most, older_name = request.max_completion_tokens, request.max_tokens
    if older_name is not None and most not in (None, older_name):
        raise Problem(400, "max_tokens and max_completion_tokens differ; give one of them", param="max_tokens")
    tools = tuple(
        Tool(f.name, f.parameters or NO_PARAMETERS, f.description or "", bool(f.strict))
        for f in (tool.function for tool in request.tools or ())
    )
    schema = None
    if isinstance(shape, SchemaFormat):
        asked = shape.json_schema
        schema = Schema(asked.schema, name=asked.name, strict=asked.strict is not False)
    choice = request.tool_choice
    return Request(
        messages=(),
        tools=tools,
        tool_choice=chosen_tool(
            choice.function.name if isinstance(choice, NamedTool) else choice,
            [tool.name for tool in tools],
            param="tools[{}].function.name",
            named=isinstance(choice, NamedTool),
        ),
        schema=schema,
        json_mode=isinstance(shape, ObjectFormat),
        max_output_tokens=older_name if most is None else most,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        stop=stop,
        effort=request.reasoning_effort,
    )


def _message(said: ChatMessage, where: str) -> Message:
    """A message in core types. Fields that belong to another role are refused: nothing is lost silently."""
    if said.tool_calls and said.role != "assistant":
        raise Problem(400, f"only an assistant calls tools, not {said.role}", param=f"{where}.tool_calls")
    if said.tool_call_id is not None and said.role != "tool":
        raise Problem(400, f"tool_call_id belongs to a tool message, not {said.role}", param=f"{where}.tool_call_id")
    if said.content is None and not (said.role == "assistant" and (said.tool_calls or said.refusal)):
        raise Problem(400, f"a {said.role} message needs content", param=f"{where}.content")
    return Message(
        "system" if said.role == "developer" else said.role,
        _content(said, where),
        tool_calls=tuple(ToolCall(c.id, c.function.name, c.function.arguments) for c in said.tool_calls or ()),
        tool_call_id=said.tool_call_id or "",
        name=said.name or "",
    )


def _content(said: ChatMessage, where: str) -> str | tuple[Part, ...]:
    if said.content is None:
        return said.refusal or ""
    if isinstance(said.content, str):
        return said.content
    parts: list[Part] = []
    for index, part in enumerate(said.content):
        if isinstance(part, TextPart):
            parts.append(Text(part.text))
        elif said.role != "user":
            raise Problem(400, f"a {said.role} message cannot hold an image", param=f"{where}.content[{index}]")
        else:
            param = f"{where}.content[{index}].image_url.url"
            parts.append(image_part(part.image_url.url, detail=part.image_url.detail, param=param))
    return message_content(parts, may_show_images=said.role == "user")


# ---- the reply --------------------------------------------------------------------------------------------


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    orchestration_input_tokens: int
    """The part of prompt_tokens that the answering step did not read."""


class OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int
    orchestration_output_tokens: int
    """The part of completion_tokens that the answering step did not write."""


class WireUsage(msgspec.Struct, frozen=True):
    """All billed calls of the run, planning included, so that a client that adds up replies counts right."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: InputDetails
    completion_tokens_details: OutputDetails


class AnswerCall(msgspec.Struct, frozen=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class AnswerMessage(msgspec.Struct, frozen=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: str | None = None
    tool_calls: tuple[AnswerCall, ...] | msgspec.UnsetType = msgspec.UNSET


class Choice(msgspec.Struct, frozen=True):
    message: AnswerMessage
    finish_reason: str
    index: int = 0
    logprobs: None = None


class ChatCompletion(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: WireUsage
    dirigent: RunReport
    object: Literal["chat.completion"] = "chat.completion"


class CallDelta(msgspec.Struct, frozen=True):
    index: int
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ChunkDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    tool_calls: tuple[CallDelta, ...] = ()


class ChunkChoice(msgspec.Struct, frozen=True):
    delta: ChunkDelta
    finish_reason: str | None = None
    index: int = 0
    logprobs: None = None


class ChatChunk(msgspec.Struct, frozen=True):
    """One event of a stream."""

    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: WireUsage | msgspec.UnsetType | None = msgspec.UNSET
    """Only with `stream_options.include_usage`: null until the last chunk."""
    dirigent: RunReport | msgspec.UnsetType = msgspec.UNSET
    """On the chunk with the finish reason."""
