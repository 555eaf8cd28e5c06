"""Between the wire and the core: a chat request becomes messages and options, a trace becomes a completion.

Pure functions. What a struct cannot say alone is checked here: which fields go together, and that tool
results answer calls that were made.
"""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec

from dirigent.messages import Finish, Image, Message, Part, Request, Schema, Text, Tool, ToolCall
from dirigent.plan.plan import Plan
from dirigent.run.trace import Round, StepRecord, Trace, attempts_since, usage_since
from dirigent.serve.apis.chat.wire import (
    AnswerCall,
    AnswerMessage,
    ChatCompletion,
    ChatMessage,
    ChatRequest,
    Choice,
    FunctionCall,
    ImagePart,
    ImageUrl,
    InputDetails,
    NamedTool,
    ObjectFormat,
    OutputDetails,
    RunReport,
    SchemaFormat,
    WireStep,
    WireUsage,
)
from dirigent.serve.http.errors import Problem

DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]{1,40});base64,(\s*[A-Za-z0-9+/=][A-Za-z0-9+/=\s]*)\Z", re.IGNORECASE)

FINISH: dict[Finish, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "refused": "content_filter",
}


# ---- in ---------------------------------------------------------------------------------------------------


def question_of(chat: ChatRequest) -> tuple[Message, ...]:
    """The conversation. A developer is a system by another name."""
    called: dict[str, str] = {}
    messages = []
    for index, said in enumerate(chat.messages):
        where = f"messages[{index}]"
        _check_fields(said, where)
        if said.role == "tool":
            messages.append(_tool_result(said, where, called))
            continue
        calls = tuple(ToolCall(c.id, c.function.name, c.function.arguments) for c in said.tool_calls or ())
        called |= {call.id: call.name for call in calls}
        role = "system" if said.role == "developer" else said.role
        messages.append(Message(role, _content(said, where), tool_calls=calls, name=said.name or ""))
    if chat.messages[-1].role not in ("user", "tool"):
        param = f"messages[{len(chat.messages) - 1}].role"
        raise Problem(
            400, f"the last message is from {chat.messages[-1].role}: there is nothing to answer", param=param
        )
    return tuple(messages)


def options_of(chat: ChatRequest) -> Request:
    """Sampling settings, tools and the shape of the answer; deadline and ledger are added by whoever runs it."""
    schema, json_mode = _format(chat)
    stop = (chat.stop,) if isinstance(chat.stop, str) else chat.stop or ()
    if "" in stop:
        raise Problem(400, "an empty word in stop would end every answer at once", param="stop")
    return Request(
        messages=(),
        tools=_tools(chat),
        tool_choice=_tool_choice(chat),
        schema=schema,
        json_mode=json_mode,
        max_output_tokens=_max_output_tokens(chat),
        temperature=chat.temperature,
        top_p=chat.top_p,
        seed=chat.seed,
        stop=stop,
        effort=chat.reasoning_effort,
    )


def _check_fields(said: ChatMessage, where: str) -> None:
    """Fields that belong to another role are refused rather than lost."""
    if said.tool_calls and said.role != "assistant":
        raise Problem(400, f"only an assistant calls tools, not {said.role}", param=f"{where}.tool_calls")
    if said.tool_call_id is not None and said.role != "tool":
        raise Problem(400, f"tool_call_id belongs to a tool message, not {said.role}", param=f"{where}.tool_call_id")
    if said.content is None and not (said.role == "assistant" and (said.tool_calls or said.refusal)):
        raise Problem(400, f"a {said.role} message needs content", param=f"{where}.content")


def _tool_result(said: ChatMessage, where: str, called: dict[str, str]) -> Message:
    id = said.tool_call_id or ""
    if id not in called:
        made = ", ".join(called) or "none"
        raise Problem(
            400, f"{id!r} answers no tool call made before it; there are: {made}", param=f"{where}.tool_call_id"
        )
    if said.name and said.name != called[id]:
        raise Problem(400, f"{id!r} is a call of {called[id]!r}, not of {said.name!r}", param=f"{where}.name")
    return Message("tool", _content(said, where), tool_call_id=id, name=called[id])


def _content(said: ChatMessage, where: str) -> str | tuple[Part, ...]:
    if said.content is None:
        return said.refusal or ""
    if isinstance(said.content, str):
        return said.content
    parts: list[Part] = []
    for index, part in enumerate(said.content):
        if not isinstance(part, ImagePart):
            parts.append(Text(part.text))
        elif said.role != "user":
            raise Problem(400, f"a {said.role} message cannot hold an image", param=f"{where}.content[{index}]")
        else:
            parts.append(_image(part.image_url, f"{where}.content[{index}].image_url.url"))
    if said.role != "user" or not any(isinstance(part, Image) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, Text))
    return tuple(parts)


def _image(image: ImageUrl, param: str) -> Image:
    """Passes the address on unchanged: the server itself fetches no address that a caller names."""
    url = image.url
    detail = image.detail if image.detail in ("low", "high") else ""
    if match := DATA_URL.match(url):
        return Image(data="".join(match[2].split()), media_type=match[1].lower(), detail=detail)
    if not re.match(r"https?://[^/\s]", url, re.IGNORECASE):
        raise Problem(400, "an image is an http(s) URL or data:image/…;base64,…", param=param)
    return Image(url=url, detail=detail)


def _tools(chat: ChatRequest) -> tuple[Tool, ...]:
    if not chat.tools:
        return ()
    names = [tool.function.name for tool in chat.tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise Problem(400, f"two tools are called {name!r}", param=f"tools[{index}].function.name")
    empty: dict[str, Any] = {"type": "object", "properties": {}}
    return tuple(
        Tool(f.name, f.parameters or empty, f.description or "", bool(f.strict))
        for f in (tool.function for tool in chat.tools)
    )


def _tool_choice(chat: ChatRequest) -> str:
    choice = chat.tool_choice
    if choice is None or (choice in ("auto", "none") and not chat.tools):
        return "auto"
    name = choice.function.name if isinstance(choice, NamedTool) else choice
    names = [tool.function.name for tool in chat.tools or ()]
    if not names:
        raise Problem(400, f"tool_choice asks for {name!r}, but there are no tools", param="tool_choice")
    if isinstance(choice, NamedTool) and name not in names:
        raise Problem(400, f"no tool is called {name!r}; there are: {', '.join(names)}", param="tool_choice")
    return name


def _format(chat: ChatRequest) -> tuple[Schema | None, bool]:
    shape = chat.response_format
    if isinstance(shape, SchemaFormat):
        asked = shape.json_schema
        return Schema(asked.schema, name=asked.name, strict=asked.strict is not False), False
    return None, isinstance(shape, ObjectFormat)


def _max_output_tokens(chat: ChatRequest) -> int | None:
    if chat.max_tokens is not None and chat.max_completion_tokens not in (None, chat.max_tokens):
        raise Problem(400, "max_tokens and max_completion_tokens differ; give one of them", param="max_tokens")
    return chat.max_tokens if chat.max_completion_tokens is None else chat.max_completion_tokens


# ---- out --------------------------------------------------------------------------------------------------


def completion_id(trace_id: str) -> str:
    return f"chatcmpl-{trace_id}"


def completion_of(trace: Trace, *, model: str, report: RunReport, before: Trace | None = None) -> ChatCompletion:
    """The reply; of a run that was resumed, its usage counts from `before`, so that replies add up."""
    calls = tuple(AnswerCall(c.id, FunctionCall(c.name, c.arguments)) for c in trace.tool_calls)
    message = AnswerMessage(
        content=trace.answer if trace.answer or not calls else None,
        tool_calls=calls or msgspec.UNSET,
    )
    return ChatCompletion(
        id=completion_id(trace.id),
        created=int(time.time()),
        model=model,
        choices=(Choice(message, finish_reason(trace)),),
        usage=usage_of(trace, before=before),
        dirigent=report,
    )


def finish_reason(trace: Trace) -> str:
    """Why the answering step ended."""
    if trace.tool_calls:
        return "tool_calls"
    reply = trace.steps[-1].reply if trace.steps else None
    return FINISH[reply.finish] if reply is not None and reply.finish != "tool_calls" else "stop"


def usage_of(trace: Trace, *, before: Trace | None = None) -> WireUsage:
    usage = usage_since(trace, before)
    return WireUsage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        prompt_tokens_details=InputDetails(usage.cached_input_tokens, usage.orchestration_input_tokens),
        completion_tokens_details=OutputDetails(usage.reasoning_tokens, usage.orchestration_output_tokens),
    )


def report_of(
    trace: Trace, *, seconds: float, whole: bool, before: Trace | None = None, resumed: bool | None = None
) -> RunReport:
    """What the reply says of its run since `before`; `whole` adds the plan and each step's cost, of all of it."""
    report = RunReport(
        trace_id=trace.id,
        cost_usd=sum([attempt.cost_usd for attempt in attempts_since(trace, before)]),
        overhead_ms=round(1000 * max(0.0, seconds - upstream_s(trace, before=before)), 3),
        resumed=resumed,
    )
    if not whole:
        return report
    return msgspec.structs.replace(
        report,
        planner=trace.planner,
        rounds=len(trace.rounds),
        fallback=any(r.fallback for r in trace.rounds),
        steps=tuple(_step(step) for step in trace.steps),
        notes=trace.notes,
    )


def planned_steps(plan: Plan) -> tuple[WireStep, ...]:
    return tuple(WireStep(step.worker, step.subtask, step.access) for step in plan.steps)


def upstream_s(trace: Trace, *, before: Trace | None = None) -> float:
    """Seconds that the run could only wait: for planners, and along the longest chain of steps."""
    waited_s = sum([_upstream_s_of_round(r) for r in trace.rounds])
    return waited_s - upstream_s(before) if before is not None else waited_s


def _upstream_s_of_round(round: Round) -> float:
    planning_s = sum([attempt.seconds for draft in round.drafts for attempt in draft.attempts])
    if len(round.steps) == 1:  # as for most requests, each of which asks twice
        return planning_s + _waited_s(round.steps[0])
    ends: dict[int, float] = {}
    for step in round.steps:
        ends[step.index] = _waited_s(step) + max((ends.get(j, 0.0) for j in step.access), default=0.0)
    return planning_s + max(ends.values(), default=0.0)


def _waited_s(step: StepRecord) -> float:
    if step.tool_traffic:  # between its calls it waited for tools and other steps
        return sum(attempt.seconds for attempt in step.attempts)
    # Several attempts: the pauses between them are waiting too. One: the book-keeping around it is ours.
    return step.attempts[0].seconds if len(step.attempts) == 1 else step.seconds


def _step(step: StepRecord) -> WireStep:
    usage = step.usage
    return WireStep(
        worker=step.worker,
        subtask=step.subtask,
        access=step.access,
        status=step.status,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost_usd=step.cost_usd,
        seconds=round(step.seconds, 6),
        planned_worker=step.planned_worker,
        error=_STEP_ERRORS.get(step.status, step.error),
    )


_STEP_ERRORS = {"failed": "it failed; its trace says why", "cancelled": "the run ended before it did"}
"""In our own words: the text of the record may quote what a provider wrote."""
