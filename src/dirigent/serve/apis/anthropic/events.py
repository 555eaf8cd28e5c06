"""A run as Anthropic's events: a message begins, its blocks come one after the other, the message ends.

While earlier steps run there are `ping`s, which clients skip.
"""

from __future__ import annotations

import msgspec

from dirigent.run.trace import Planned, StepReassigned, StepStarted, Trace
from dirigent.serve.apis.anthropic.errors import error_body
from dirigent.serve.apis.anthropic.translate import message_of
from dirigent.serve.apis.anthropic.wire import AnswerText, AnswerToolUse, MessageObject, MessageUsage
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.start import Ask


class MessagesEvents:
    """`stream.Events` for `/v1/messages`."""

    opens_early = False

    def __init__(self, ask: Ask, *, id: str, request_id: str) -> None:
        self._ask = ask
        self._id = id
        self._request_id = request_id
        self._speaking = False

    def opening(self) -> bytes:
        """What the run used is known at its end alone: until then it is 0."""
        message = MessageObject(self._id, self._ask.chat.model, (), MessageUsage(0, 0))
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
        report = self._ask.report(trace)
        message = message_of(trace, id=self._id, model=self._ask.chat.model, report=report, before=self._ask.before)
        out = _event("content_block_stop", index=0) if self._speaking else b""
        calls = [block for block in message.content if isinstance(block, AnswerToolUse)]
        for index, block in enumerate(calls, start=int(self._speaking)):
            out += _tool_use(index, block)
        ending = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        out += _event("message_delta", delta=ending, usage=message.usage, dirigent=report)
        return out + _event("message_stop")

    async def failed(self, problem: Problem) -> bytes:
        return b"event: error\ndata: " + error_body(problem, request_id=self._request_id) + b"\n\n"


def _tool_use(index: int, block: AnswerToolUse) -> bytes:
    """A call, its input at once: workers give calls whole."""
    written = msgspec.json.encode(block.input).decode()
    empty = msgspec.structs.replace(block, input={})
    out = _event("content_block_start", index=index, content_block=empty)
    out += _event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": written})
    return out + _event("content_block_stop", index=index)


def _event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode({"type": kind} | fields) + b"\n\n"
