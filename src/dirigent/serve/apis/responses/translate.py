"""Between `/v1/responses` and the core: a request becomes a chat request, a trace becomes a response.

Pure functions. A response's conversation is its whole chain: the items of every response before it, then its
own. The chat request is the one form in which the rest of the server knows a request, so what can be refused is
refused there, and the field at fault is named here in this route's words.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from dirigent.messages import Event
from dirigent.run.trace import Planned, StepStarted, Trace, usage_since
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
    ObjectFormat,
    RunReport,
    SchemaFormat,
    TextFormat,
    TextPart,
    ToolCallPart,
    ToolDefinition,
)
from dirigent.serve.apis.responses.wire import (
    CallItem,
    CallOutputItem,
    FlatSchemaFormat,
    FunctionTool,
    IncompleteDetails,
    InputImage,
    InputText,
    Item,
    ItemStatus,
    MessageItem,
    NamedFunctionTool,
    OutputText,
    ReasoningItem,
    ReasoningSettings,
    Refusal,
    ResponseError,
    ResponseInputDetails,
    ResponseObject,
    ResponseOutputDetails,
    ResponseRequest,
    ResponseUsage,
    Status,
    SummaryText,
    TextSettings,
)
from dirigent.serve.http.errors import Problem
from dirigent.workers.secret import redact

SHOWN_SUBTASK_CHARS = 500


# ---- in ---------------------------------------------------------------------------------------------------


class Told(msgspec.Struct, frozen=True):
    """A conversation as chat messages, and where in the request each of them came from."""

    messages: tuple[ChatMessage, ...]
    places: tuple[str, ...]


def told(request: ResponseRequest, items: Sequence[Item], *, history: Sequence[Item]) -> Told:
    """Instructions, the chain before, and the request's own items. A previous response's instructions are not kept."""
    messages: list[ChatMessage] = []
    calls: list[list[ToolCallPart]] = []
    """Of each message: what a worker says and the calls it makes in the same reply are one."""
    places: list[str] = []

    def add(message: ChatMessage, place: str) -> None:
        messages.append(message)
        calls.append([])
        places.append(place)

    if request.instructions is not None:
        add(ChatMessage("developer", request.instructions), "instructions")
    placed = [("previous_response_id", item) for item in history]
    placed += [(f"input[{index}]", item) for index, item in enumerate(items)]
    for place, item in placed:
        if isinstance(item, ReasoningItem):
            continue
        if not isinstance(item, CallItem):
            add(_message(item), place)
            continue
        if not messages or messages[-1].role != "assistant":
            add(ChatMessage("assistant"), place)
        calls[-1].append(_call(item))
    whole = (
        msgspec.structs.replace(message, tool_calls=tuple(made)) if made else message
        for message, made in zip(messages, calls, strict=True)
    )
    return Told(tuple(whole), tuple(places))


def chat_of(request: ResponseRequest, conversation: Told) -> ChatRequest:
    """The same request in chat's words."""
    reasoning = request.reasoning or ReasoningSettings()
    return ChatRequest(
        model=request.model,
        messages=conversation.messages,
        max_completion_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        reasoning_effort=reasoning.effort,
        tools=tuple(_tool(tool) for tool in request.tools or () if isinstance(tool, FunctionTool)) or None,
        tool_choice=_tool_choice(request.tool_choice),
        response_format=_format(request.text),
        dirigent=request.dirigent,
        user=request.user,
        metadata=request.metadata,
    )


def renamed(problem: Problem, places: Sequence[str]) -> Problem:
    """A problem of the chat request, with the field in this route's words."""

    def place(number: int, tail: str) -> str:
        return places[number] + (tail if places[number].startswith("input[") else "")

    return problem.in_words(RENAMED, place)


RENAMED = {
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "].function.": "].",
    "].tool_call_id": "].call_id",
    ".image_url.url": ".image_url",
}


def _message(item: MessageItem | CallOutputItem) -> ChatMessage:
    if isinstance(item, CallOutputItem):
        return ChatMessage("tool", _parts(item.output), tool_call_id=item.call_id)
    return ChatMessage(item.role, _parts(item.content))


def _call(item: CallItem) -> ToolCallPart:
    return ToolCallPart(item.call_id, FunctionCall(item.name, item.arguments))


def _parts(
    content: str | Sequence[InputText | InputImage | OutputText | Refusal],
) -> str | tuple[TextPart | ImagePart, ...]:
    if isinstance(content, str):
        return content
    return tuple(_part(part) for part in content)


def _part(part: InputText | InputImage | OutputText | Refusal) -> TextPart | ImagePart:
    if isinstance(part, InputImage):
        return ImagePart(ImageUrl(part.image_url, part.detail))
    return TextPart(part.refusal if isinstance(part, Refusal) else part.text)


def _tool(tool: FunctionTool) -> ToolDefinition:
    return ToolDefinition(FunctionDefinition(tool.name, tool.description, tool.parameters, tool.strict))


def _tool_choice(choice: str | NamedFunctionTool | None) -> NamedTool | None:
    if isinstance(choice, NamedFunctionTool):
        return NamedTool(NamedFunction(choice.name))
    return choice  # type: ignore[return-value]  # the same three words on both routes


def _format(text: TextSettings | None) -> TextFormat | ObjectFormat | SchemaFormat | None:
    shape = None if text is None else text.format
    if isinstance(shape, FlatSchemaFormat):
        return SchemaFormat(JsonSchema(shape.name, shape.schema, shape.strict, shape.description))
    return shape


# ---- out --------------------------------------------------------------------------------------------------


def opened(request: ResponseRequest, id: str, *, status: Status) -> ResponseObject:
    """The response before anything is known of its answer."""
    return ResponseObject(
        id=id,
        created_at=int(time.time()),
        status=status,
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


def completed(
    response: ResponseObject,
    trace: Trace,
    *,
    report: RunReport,
    summary: Sequence[str],
    before: Trace | None = None,
) -> ResponseObject:
    """The response with its answer; of a run that was resumed, its usage counts from `before`."""
    reason = INCOMPLETE.get(finish_reason(trace))
    return msgspec.structs.replace(
        response,
        status="completed" if reason is None else "incomplete",
        output=output_of(response.id, trace, summary=summary),
        incomplete_details=reason,
        completed_at=int(time.time()) if reason is None else None,
        usage=usage_of(trace, before=before),
        dirigent=report,
    )


def failed(response: ResponseObject, problem: Problem, *, output: tuple[Item, ...] = ()) -> ResponseObject:
    """The response of a run that came to nothing."""
    error = ResponseError("rate_limit_exceeded" if problem.status == 429 else "server_error", redact(str(problem)))
    return msgspec.structs.replace(response, status="failed", output=output, error=error)


INCOMPLETE: dict[str, IncompleteDetails] = {
    "length": IncompleteDetails("max_output_tokens"),
    "content_filter": IncompleteDetails("content_filter"),
}


def output_of(response_id: str, trace: Trace, *, summary: Sequence[str]) -> tuple[Item, ...]:
    items: list[Item] = [*reasoning_items(response_id, summary)]
    if trace.answer or not trace.tool_calls:
        status: ItemStatus = "incomplete" if finish_reason(trace) in INCOMPLETE else "completed"
        items.append(message_item(response_id, trace.answer, status))
    for index, call in enumerate(trace.tool_calls):
        id = call_item_id(response_id, index)
        items.append(CallItem(call.id, call.name, call.arguments, id=id, status="completed"))
    return tuple(items)


def reasoning_items(response_id: str, summary: Sequence[str]) -> tuple[Item, ...]:
    """The summary as output; nothing where there is none."""
    return (reasoning_item(response_id, summary, "completed"),) if summary else ()


def reasoning_item(response_id: str, summary: Sequence[str], status: ItemStatus) -> ReasoningItem:
    return ReasoningItem(tuple(map(SummaryText, summary)), id=f"rs_{_own(response_id)}", status=status)


def message_item(response_id: str, text: str | None, status: ItemStatus) -> MessageItem:
    """None: no text has begun yet."""
    content = () if text is None else (OutputText(text),)
    return MessageItem("assistant", content, id=f"msg_{_own(response_id)}", status=status)


def call_item_id(response_id: str, index: int) -> str:
    return f"fc_{_own(response_id)}_{index}"


def _own(response_id: str) -> str:
    return response_id.removeprefix("resp_")


def usage_of(trace: Trace, *, before: Trace | None = None) -> ResponseUsage:
    usage = usage_since(trace, before)
    return ResponseUsage(
        input_tokens=usage.input_tokens,
        input_tokens_details=ResponseInputDetails(
            cached_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_write_input_tokens,
            orchestration_input_tokens=usage.orchestration_input_tokens,
        ),
        output_tokens=usage.output_tokens,
        output_tokens_details=ResponseOutputDetails(usage.reasoning_tokens, usage.orchestration_output_tokens),
        total_tokens=usage.input_tokens + usage.output_tokens,
    )


class Progress:
    """The summary of a run as it goes: a line for each step on the way to the answer.

    The last step of a plan is the answer itself, unless another round may follow it.
    """

    def __init__(self, *, max_rounds: int) -> None:
        self.lines: list[str] = []
        self._more_rounds = max_rounds > 1
        self._planned: Planned | None = None

    def observe(self, event: Event) -> None:
        """For those who only want the lines in the end."""
        self.line_of(event)

    def line_of(self, event: Event) -> str:
        """The line this event adds; empty where it adds none."""
        if isinstance(event, Planned):
            self._planned = event
        if not isinstance(event, StepStarted) or self._planned is None:
            return ""
        steps = self._planned.plan.steps
        if event.index == len(steps) - 1 and not self._more_rounds:
            return ""
        self.lines.append(asking(event.worker, steps[event.index].subtask))
        return self.lines[-1]


def summary_of(trace: Trace) -> list[str]:
    """Lines of a run that nobody watched, from its trace: a step is asked once all that it reads is done.

    As the run goes on, lines are only added at the end: so they can be told while it does, and told again the same.
    """
    lines: list[tuple[int, float, int, str]] = []
    for number, round in enumerate(trace.rounds):
        done_s = {step.index: step.ended_s for step in round.steps if step.status == "done"}
        steps = round.plan.steps if round.plan is not None else ()
        for index, step in enumerate(steps):
            is_answer = index == len(steps) - 1 and trace.limits.max_rounds == 1
            if not is_answer and done_s.keys() >= set(step.access):
                since_s = max((done_s[j] for j in step.access), default=0.0)
                lines.append((number, since_s, index, asking(step.worker, step.subtask)))
    return [line for *_, line in sorted(lines)]


def asking(worker: str, subtask: str) -> str:
    shown = subtask if len(subtask) <= SHOWN_SUBTASK_CHARS else subtask[: SHOWN_SUBTASK_CHARS - 1] + "…"
    return f"asking {worker}: {shown}"
