"""`POST /v1/chat/completions`: a run as a chat completion, whole, or as chunks after comments that show progress."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from starlette.requests import Request

from dirigent.messages import Finish
from dirigent.run.trace import Planned, StepReassigned, StepStarted, Trace, usage_since
from dirigent.serve.apis.chat.wire import (
    AnswerCall,
    AnswerMessage,
    CallDelta,
    ChatChunk,
    ChatCompletion,
    Choice,
    ChunkChoice,
    ChunkDelta,
    FunctionCall,
    InputDetails,
    OutputDetails,
    WireUsage,
    read,
)
from dirigent.serve.apis.exchange import respond
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.handle import Run
from dirigent.serve.runs.report import RunReport


async def chat(request: Request) -> Any:
    """A completion, whole or as a stream."""
    return await respond(request, read, ChatWriter)


class ChatWriter:
    """`stream.Writer` for `/v1/chat/completions`. Comments are never answer text: every client skips them."""

    opens_early = False

    def __init__(self, run: Run) -> None:
        self._run = run
        self._id = f"chatcmpl-{run.id}"
        self._created = int(time.time())
        self._wants_usage = run.asked.stream_usage

    async def whole(self, trace: Trace, report: RunReport) -> bytes:
        calls = tuple(AnswerCall(c.id, FunctionCall(c.name, c.arguments)) for c in trace.tool_calls)
        message = AnswerMessage(
            content=trace.answer if trace.answer or not calls else None,
            tool_calls=calls or msgspec.UNSET,
        )
        completion = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._run.asked.model,
            choices=(Choice(message, FINISH[trace.finish]),),
            usage=usage_of(trace, before=self._run.before),
            dirigent=report,
        )
        return msgspec.json.encode(completion)

    def opening(self) -> bytes:
        return self._chunk(ChunkDelta(role="assistant", content=""))

    def progress(self, event: Planned | StepStarted | StepReassigned) -> bytes:
        if isinstance(event, Planned):
            n = len(event.plan.steps)
            return _comment(f"round {event.round}: {n} step{'' if n == 1 else 's'} planned")
        if isinstance(event, StepStarted):
            return _comment(f"step {event.index}: {event.worker}")
        return _comment(f"step {event.index}: {event.worker} failed, {event.to} takes over")

    def keep_alive(self) -> bytes:
        return _comment("keep-alive")

    def text(self, piece: str) -> bytes:
        return self._chunk(ChunkDelta(content=piece))

    async def closing(self, trace: Trace) -> bytes:
        """Tool calls, the finish reason and the usage."""
        out = b""
        if trace.tool_calls:
            calls = enumerate(trace.tool_calls)
            deltas = tuple(CallDelta(i, call.id, FunctionCall(call.name, call.arguments)) for i, call in calls)
            out += self._chunk(ChunkDelta(tool_calls=deltas))
        out += self._chunk(ChunkDelta(), finish=FINISH[trace.finish], dirigent=self._run.report(trace))
        if self._wants_usage:
            out += _event(msgspec.structs.replace(self._bare(()), usage=usage_of(trace, before=self._run.before)))
        return out + b"data: [DONE]\n\n"

    async def failed(self, problem: Problem, body: bytes) -> bytes:
        return b"data: " + body + b"\n\n"

    def _chunk(self, delta: ChunkDelta, *, finish: str | None = None, **more: Any) -> bytes:
        return _event(msgspec.structs.replace(self._bare((ChunkChoice(delta, finish),)), **more))

    def _bare(self, choices: tuple[ChunkChoice, ...]) -> ChatChunk:
        usage = None if self._wants_usage else msgspec.UNSET
        return ChatChunk(self._id, self._created, self._run.asked.model, choices, usage=usage)


FINISH: dict[Finish, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "refused": "content_filter",
}


def usage_of(trace: Trace, *, before: Trace | None = None) -> WireUsage:
    """The usage since `before`, so that the replies of a resumed run add up."""
    usage = usage_since(trace, before)
    return WireUsage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        prompt_tokens_details=InputDetails(usage.cached_input_tokens, usage.orchestration_input_tokens),
        completion_tokens_details=OutputDetails(usage.reasoning_tokens, usage.orchestration_output_tokens),
    )


def _event(chunk: ChatChunk) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def _comment(text: str) -> bytes:
    return f": {text}\n\n".encode()
