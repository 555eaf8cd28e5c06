"""`POST /v1/messages` and `/v1/messages/count_tokens`: a run as an Anthropic message, whole or as events.

A message begins, its blocks follow one another, it ends. While earlier steps run there are `ping`s, which clients skip.
Of these requests only the trace is stored.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.messages import Finish, ToolCall
from dirigent.run.trace import Planned, StepReassigned, StepStarted, Trace, usage_since
from dirigent.serve.apis.anthropic.wire import (
    AnswerText,
    AnswerToolUse,
    MessageObject,
    MessageUsage,
    StopReason,
    TokenCount,
    read,
    read_count,
)
from dirigent.serve.apis.exchange import respond
from dirigent.serve.http.body import CLIENT_GONE, read_body
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.handle import Run
from dirigent.serve.runs.report import RunReport
from dirigent.serve.service import Service
from dirigent.store.keys import Caller


async def create_message(request: Request) -> Any:
    """A message, whole or as a stream, in Anthropic's format."""
    return await respond(request, read, MessagesWriter)


async def count_tokens(request: Request) -> Response:
    """Estimates the tokens of a request, in Anthropic's format; no worker is asked."""
    service: Service = request.app.service
    caller: Caller = request.scope["caller"]
    try:
        body = await read_body(request, timeout_s=service.settings.body_timeout_s)
    except ClientDisconnect:
        return CLIENT_GONE
    model, tokens = read_count(body)
    if service.models.card(model, caller) is None:
        raise service.models.missing(model, caller)
    return Response(msgspec.json.encode(TokenCount(tokens)), media_type="application/json")


class MessagesWriter:
    """`stream.Writer` for `/v1/messages`."""

    opens_early = False

    def __init__(self, run: Run) -> None:
        self._run = run
        self._id = f"msg_{secrets.token_hex(12)}"
        self._speaking = False

    async def whole(self, trace: Trace, report: RunReport) -> bytes:
        return msgspec.json.encode(self._message(trace, report))

    def opening(self) -> bytes:
        """The usage is 0 until the end of the run, where it becomes known."""
        message = MessageObject(self._id, self._run.asked.model, (), MessageUsage(0, 0))
        return _event("message_start", message=message)

    def progress(self, event: Planned | StepStarted | StepReassigned) -> bytes:
        return _event("ping")

    def keep_alive(self) -> bytes:
        return _event("ping")

    def text(self, piece: str) -> bytes:
        out = b"" if self._speaking else _event("content_block_start", index=0, content_block=AnswerText(""))
        self._speaking = True
        return out + _event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})

    async def closing(self, trace: Trace) -> bytes:
        message = self._message(trace, self._run.report(trace))
        out = _event("content_block_stop", index=0) if self._speaking else b""
        calls = [block for block in message.content if isinstance(block, AnswerToolUse)]
        for index, block in enumerate(calls, start=int(self._speaking)):
            # A call's input comes at once: workers give calls whole.
            written = msgspec.json.encode(block.input).decode()
            out += _event("content_block_start", index=index, content_block=msgspec.structs.replace(block, input={}))
            delta = {"type": "input_json_delta", "partial_json": written}
            out += _event("content_block_delta", index=index, delta=delta)
            out += _event("content_block_stop", index=index)
        ending = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        out += _event("message_delta", delta=ending, usage=message.usage, dirigent=message.dirigent)
        return out + _event("message_stop")

    async def failed(self, problem: Problem, body: bytes) -> bytes:
        return b"event: error\ndata: " + body + b"\n\n"

    def _message(self, trace: Trace, report: RunReport) -> MessageObject:
        text = (AnswerText(trace.answer),) if trace.answer else ()
        calls = tuple(AnswerToolUse(call.id, call.name, input_of(call)) for call in trace.tool_calls)
        return MessageObject(
            self._id,
            self._run.asked.model,
            (*text, *calls),
            usage_of(trace, before=self._run.before),
            stop_reason=STOP_REASONS[trace.finish],
            dirigent=report,
        )


STOP_REASONS: dict[Finish, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "refused": "refusal",
}
"""Workers do not say which stop sequence ended a text, so `stop_sequence` is never used."""


def input_of(call: ToolCall) -> dict[str, Any]:
    """A call's arguments as the object that this API sends."""
    try:
        found = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        said = f"a worker called {call.name!r} with arguments that are no JSON object; ask again"
        raise Problem(502, said, code="bad_arguments")
    return found


def usage_of(trace: Trace, *, before: Trace | None = None) -> MessageUsage:
    """The usage since `before`, so that the replies of a resumed run add up."""
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


def _event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode({"type": kind} | fields) + b"\n\n"
