"""A run as the chunks of a chat completion: comments while earlier steps run, then the answer, then `[DONE]`."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from dirigent.run.trace import Planned, StepReassigned, StepStarted, Trace
from dirigent.serve.apis.chat.translate import completion_id, finish_reason, usage_of
from dirigent.serve.apis.chat.wire import CallDelta, ChatChunk, ChunkChoice, ChunkDelta, FunctionCall
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.start import Ask


class ChatEvents:
    """`stream.Events` for `/v1/chat/completions`. A comment is skipped by every client, so none is answer text."""

    opens_early = False

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._created = int(time.time())
        options = ask.chat.stream_options
        self._wants_usage = options is not None and bool(options.include_usage)

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
        """Tool calls, the finish, the usage."""
        out = b""
        if trace.tool_calls:
            calls = enumerate(trace.tool_calls)
            deltas = tuple(CallDelta(i, call.id, FunctionCall(call.name, call.arguments)) for i, call in calls)
            out += self._chunk(ChunkDelta(tool_calls=deltas))
        out += self._chunk(ChunkDelta(), finish=finish_reason(trace), dirigent=self._ask.report(trace))
        if self._wants_usage:
            out += _event(msgspec.structs.replace(self._bare(()), usage=usage_of(trace, before=self._ask.before)))
        return out + b"data: [DONE]\n\n"

    async def failed(self, problem: Problem) -> bytes:
        return b"data: " + problem.body() + b"\n\n"

    def _chunk(self, delta: ChunkDelta, *, finish: str | None = None, **more: Any) -> bytes:
        return _event(msgspec.structs.replace(self._bare((ChunkChoice(delta, finish),)), **more))

    def _bare(self, choices: tuple[ChunkChoice, ...]) -> ChatChunk:
        usage = None if self._wants_usage else msgspec.UNSET
        return ChatChunk(completion_id(self._ask.run_id), self._created, self._ask.chat.model, choices, usage=usage)


def _event(chunk: ChatChunk) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def _comment(text: str) -> bytes:
    return f": {text}\n\n".encode()
