"""The shapes of the wire: what a chat completion request may hold, and what goes back.

Every field is checked against these structs while it is decoded; there is no second layer of validation. A
field that is not here, or that cannot be honoured, is refused by its name. Fields that a client's library
sends by habit are accepted at the value that asks for nothing (`n: 1`, `logprobs: false`), and so are labels
that change no answer (`user`, `metadata`). Knows nothing of conductors; `translate.py` gives it meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dirigent.messages import Effort
from dirigent.serve.http.json_body import check_depth, decoded


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a request: an unknown field is an error."""


# ---- the request ------------------------------------------------------------------------------------------


class TextPart(Strict, frozen=True, tag="text"):
    text: str


ImageDetail = Literal["auto", "low", "high"]


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
    # What OpenAI's own library puts into a reply that a client sends back as history:
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


class PoolChoice(Strict, frozen=True):
    """Which workers this request may use; it can only narrow what the model and the key allow."""

    allow: tuple[str, ...] | None = None
    """Only these."""
    deny: tuple[str, ...] | None = None
    """None of these."""
    pin: str | None = None
    """This one alone."""


class Extension(Strict, frozen=True):
    """The field `dirigent`: what OpenAI's format has no words for. Limits can only be narrowed."""

    max_cost_usd: Annotated[float, Meta(ge=0)] | None = None
    deadline_s: Annotated[float, Meta(gt=0)] | None = None
    max_steps: Annotated[int, Meta(ge=1, le=32)] | None = None
    max_rounds: Annotated[int, Meta(ge=1, le=8)] | None = None
    pool: PoolChoice | None = None
    region: str | None = None
    """Only workers served from there."""
    dry_run: bool | None = None
    """Plan and estimate, but ask no worker."""
    trace: bool | None = None
    """Add the plan and each step's cost to the reply."""


Tokens = Annotated[int, Meta(ge=1, le=10_000_000)]


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
    # Labels: accepted, and nothing depends on them.
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # Not supported: accepted only where they ask for nothing.
    n: Literal[1] | None = None
    parallel_tool_calls: Literal[True] | None = None
    store: Literal[False] | None = None
    logprobs: Literal[False] | None = None
    frequency_penalty: Annotated[float, Meta(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Meta(ge=0, le=0)] | None = None
    service_tier: Literal["auto", "default"] | None = None


def read_chat(body: bytes) -> ChatRequest:
    """The one door from bytes to a request; every fault is a 400 that names its field."""
    request = decoded(body, _DECODER)
    free: list[tuple[str, Any]] = [
        (f"tools[{i}].function.parameters", tool.function.parameters) for i, tool in enumerate(request.tools or ())
    ]
    if isinstance(request.response_format, SchemaFormat):
        free.append(("response_format.json_schema.schema", request.response_format.json_schema.schema))
    check_depth(free)
    return request


_DECODER = msgspec.json.Decoder(ChatRequest)


# ---- the reply --------------------------------------------------------------------------------------------


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    orchestration_input_tokens: int
    """Part of prompt_tokens: what the answering step did not read."""


class OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int
    orchestration_output_tokens: int
    """Part of completion_tokens: what the answering step did not write."""


class WireUsage(msgspec.Struct, frozen=True):
    """Every billed call of the run, planning included, so that a client that only adds up counts right."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: InputDetails
    completion_tokens_details: OutputDetails


class WireStep(msgspec.Struct, frozen=True):
    worker: str
    subtask: str
    access: tuple[int, ...]
    status: str = "planned"
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0
    planned_worker: str = ""
    error: str = ""


class RunReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The field `dirigent` of a reply."""

    trace_id: str
    cost_usd: float
    overhead_ms: float
    planner: str = ""
    rounds: int = 0
    fallback: bool = False
    steps: tuple[WireStep, ...] = ()
    """Of the round that gave the answer; only where `dirigent.trace` was asked for."""
    notes: tuple[str, ...] = ()
    """What else bore on the run, such as an operator's rule; likewise."""
    resumed: bool | None = None
    """Whether the tool results that were sent let their run go on; only where some were sent."""


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
    """On the chunk that has the finish reason."""


class Estimated(msgspec.Struct, frozen=True):
    low_usd: float
    high_usd: float


class DryRun(msgspec.Struct, frozen=True):
    """What `dirigent.dry_run` gives: the plan and what it may cost; no worker was asked."""

    model: str
    planner: str
    steps: tuple[WireStep, ...]
    critical_path: int
    fallback: bool
    estimate: Estimated | None
    """None where a worker has no price."""
    cost_usd: float
    """What the planning itself cost."""
    object: Literal["dirigent.plan"] = "dirigent.plan"


class ModelCard(msgspec.Struct, frozen=True):
    id: str
    created: int
    about: str
    workers: tuple[str, ...]
    breakers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Each worker's breaker: closed, open or half-open. For admins only."""
    pins: str | msgspec.UnsetType = msgspec.UNSET
    """On a dated name: the floating name that it is the same as today."""
    object: Literal["model"] = "model"
    owned_by: Literal["dirigent"] = "dirigent"


class ModelList(msgspec.Struct, frozen=True):
    data: tuple[ModelCard, ...]
    object: Literal["list"] = "list"
