"""Between `/v1/messages` and the core: a request becomes a chat request, a trace becomes a message.

Pure functions. The chat request is the one form in which the rest of the server knows a request, so what can be
refused is refused there, and the field at fault is named here in this route's words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dirigent.messages import Effort, ToolCall, estimate_tokens
from dirigent.run.step_prompt import TOOL_FAILED
from dirigent.run.trace import Trace, usage_since
from dirigent.serve.apis.anthropic.wire import (
    AnswerText,
    AnswerToolUse,
    AnyChoice,
    AutoChoice,
    Base64Source,
    CountRequest,
    CustomToolParam,
    ImageBlock,
    MessageObject,
    MessageParam,
    MessagesRequest,
    MessageUsage,
    NoChoice,
    StopReason,
    TextBlock,
    ThinkingEnabled,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from dirigent.serve.apis.chat.translate import finish_reason
from dirigent.serve.apis.chat.wire import (
    ChatMessage,
    ChatRequest,
    FunctionCall,
    FunctionDefinition,
    ImagePart,
    ImageUrl,
    JsonSchema,
    NamedFunction,
    NamedTool,
    RunReport,
    SchemaFormat,
    TextPart,
    ToolCallPart,
    ToolDefinition,
)
from dirigent.serve.http.errors import Problem

IMAGE_TOKENS = 1500
"""What an image is taken for in an estimate: about what one of a megapixel costs."""

EFFORT_OF_BUDGET: tuple[tuple[int, Effort], ...] = ((4096, "low"), (16384, "medium"))
"""Thinking budgets below these are that effort; larger ones are `high`."""


# ---- in ---------------------------------------------------------------------------------------------------


class Told(msgspec.Struct, frozen=True):
    """A conversation as chat messages, and where in the request each of them came from."""

    messages: tuple[ChatMessage, ...]
    places: tuple[str, ...]


def told(request: CountRequest) -> Told:
    """The system text, then the messages. Results of tools come out of the user's message that holds them.

    A system message that follows a user's turn is said before it. So a conversation ends with the turn that is to be
    answered, and results of tools stay behind the message that called them, as other wires want it.
    """
    placed: list[tuple[str, ChatMessage]] = []
    turn: list[tuple[str, ChatMessage]] = []
    has_results = False
    if request.system:
        system = request.system if isinstance(request.system, str) else tuple(TextPart(b.text) for b in request.system)
        placed.append(("system", ChatMessage("system", system)))
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
    return Told(tuple(message for _, message in placed), tuple(place for place, _ in placed))


def chat_of(request: MessagesRequest, conversation: Told, tools: Sequence[CustomToolParam]) -> ChatRequest:
    """The same request in chat's words."""
    return ChatRequest(
        model=request.model,
        messages=conversation.messages,
        max_completion_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        stop=request.stop_sequences or None,
        reasoning_effort=_effort(request),
        tools=tuple(_tool(tool) for tool in tools) or None,
        tool_choice=_tool_choice(request),
        response_format=_format(request),
        dirigent=request.dirigent,
        user=request.metadata.user_id if request.metadata else None,
    )


def calls_one_by_one(request: MessagesRequest) -> bool:
    choice = request.tool_choice
    return choice is not None and not isinstance(choice, NoChoice) and bool(choice.disable_parallel_tool_use)


def renamed(problem: Problem, places: Sequence[str]) -> Problem:
    """A problem of the chat request, with the field in this route's words."""

    def place(number: int, tail: str) -> str:
        return places[number] + (".tool_use_id" if tail == ".tool_call_id" else "")

    return problem.in_words(RENAMED, place)


RENAMED = {
    "response_format.json_schema.schema": "output_config.format.schema",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "stop": "stop_sequences",
    "].function.": "].",
}


def _messages(message: MessageParam, where: str) -> list[tuple[str, ChatMessage]]:
    if isinstance(message.content, str):
        return [(where, ChatMessage(message.role, message.content))]
    if message.role == "assistant":
        return [(where, _assistant(message, where))]
    results: list[tuple[str, ChatMessage]] = []
    parts: list[TextPart | ImagePart] = []
    for index, block in enumerate(message.content):
        if isinstance(block, ToolResultBlock):
            results.append((f"{where}.content[{index}]", _tool_result(block)))
            # Results are text on every other wire: an image in one is shown right after it.
            parts += [_image(part) for part in block.content or () if isinstance(part, ImageBlock)]
        elif isinstance(block, TextBlock):
            parts.append(TextPart(block.text))
        elif isinstance(block, ImageBlock):
            parts.append(_image(block))
        elif isinstance(block, ToolUseBlock):
            raise Problem(400, f"only an assistant uses tools, not {message.role}", param=f"{where}.content[{index}]")
    if parts or not results:
        results.append((where, ChatMessage(message.role, tuple(parts))))
    return results


def _assistant(message: MessageParam, where: str) -> ChatMessage:
    texts: list[TextPart] = []
    calls: list[ToolCallPart] = []
    for index, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            texts.append(TextPart(block.text))
        elif isinstance(block, ToolUseBlock):
            arguments = msgspec.json.encode(block.input).decode()
            calls.append(ToolCallPart(block.id, FunctionCall(block.name, arguments)))
        elif isinstance(block, ImageBlock | ToolResultBlock):
            raise Problem(400, "an assistant's message holds text and tool_use", param=f"{where}.content[{index}]")
    content = tuple(texts) if texts or not calls else None
    return ChatMessage("assistant", content, tool_calls=tuple(calls) or None)


def _tool_result(block: ToolResultBlock) -> ChatMessage:
    content = block.content or ""
    text = (
        content if isinstance(content, str) else "\n".join(part.text for part in content if isinstance(part, TextBlock))
    )
    return ChatMessage("tool", TOOL_FAILED + text if block.is_error else text, tool_call_id=block.tool_use_id)


def _image(block: Any) -> ImagePart:
    source = block.source
    if isinstance(source, Base64Source):
        return ImagePart(ImageUrl(f"data:{source.media_type};base64,{source.data}"))
    return ImagePart(ImageUrl(source.url))


def _effort(request: MessagesRequest) -> Effort | None:
    """A budget of thinking tokens as the effort it stands for. What is left open is left to the workers."""
    if request.output_config is not None and request.output_config.effort is not None:
        return request.output_config.effort
    if not isinstance(request.thinking, ThinkingEnabled):
        return None
    budget = request.thinking.budget_tokens
    return next((effort for below, effort in EFFORT_OF_BUDGET if budget < below), "high")


def _tool(tool: CustomToolParam) -> ToolDefinition:
    return ToolDefinition(FunctionDefinition(tool.name, tool.description, tool.input_schema, tool.strict))


def _tool_choice(request: MessagesRequest) -> Any:
    choice = request.tool_choice
    if isinstance(choice, ToolChoice):
        return NamedTool(NamedFunction(choice.name))
    return {AutoChoice: "auto", AnyChoice: "required", NoChoice: "none", type(None): None}[type(choice)]


def _format(request: MessagesRequest) -> SchemaFormat | None:
    config = request.output_config
    if config is None or config.format is None:
        return None
    return SchemaFormat(JsonSchema("answer", config.format.schema, True))


# ---- out --------------------------------------------------------------------------------------------------


def message_of(trace: Trace, *, id: str, model: str, report: RunReport, before: Trace | None = None) -> MessageObject:
    """The reply; of a run that was resumed, its usage counts from `before`, so that replies add up."""
    text = (AnswerText(trace.answer),) if trace.answer else ()
    calls = tuple(AnswerToolUse(call.id, call.name, input_of(call)) for call in trace.tool_calls)
    return MessageObject(
        id,
        model,
        (*text, *calls),
        usage_of(trace, before=before),
        stop_reason=STOP_REASONS[finish_reason(trace)],
        dirigent=report,
    )


STOP_REASONS: dict[str, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
"""Which of several stop sequences ended a text is not known here: all of them are `end_turn`."""


def input_of(call: ToolCall) -> dict[str, Any]:
    """A call's arguments, which this wire sends as an object."""
    try:
        found = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        said = f"a worker called {call.name!r} with arguments that are no JSON object; ask again"
        raise Problem(502, said, code="bad_arguments")
    return found


def usage_of(trace: Trace, *, before: Trace | None = None) -> MessageUsage:
    usage = usage_since(trace, before)
    read, written = usage.cached_input_tokens, usage.cache_write_input_tokens
    return MessageUsage(
        input_tokens=usage.input_tokens - read - written,
        output_tokens=usage.output_tokens,
        cache_read_input_tokens=read,
        cache_creation_input_tokens=written,
        orchestration_input_tokens=usage.orchestration_input_tokens,
        orchestration_output_tokens=usage.orchestration_output_tokens,
    )


def estimated_tokens(conversation: Told, tools: Sequence[CustomToolParam]) -> int:
    """What a worker may count for this conversation, read once. A plan's steps may read it several times."""
    total = sum(estimate_tokens(msgspec.json.encode(tool.input_schema).decode() + tool.name) for tool in tools)
    total += sum(estimate_tokens(tool.description or "") for tool in tools)
    for message in conversation.messages:
        parts = (TextPart(message.content),) if isinstance(message.content, str) else message.content or ()
        total += sum(estimate_tokens(part.text) if isinstance(part, TextPart) else IMAGE_TOKENS for part in parts)
        total += sum(estimate_tokens(call.function.arguments) for call in message.tool_calls or ())
    return total
