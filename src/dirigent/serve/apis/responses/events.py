"""A response as events: what is worked on as a reasoning summary, then the answer, then the whole response.

Each event has the next number, and items come one after the other: an item is done before the next is added.
The same events are told live while a run goes (`ResponseEvents`) and afterwards from a response that was kept
(`Script.rest`), so that a stream that broke off can be taken up after the last number that arrived.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from dirigent.run.trace import Planned, StepReassigned, StepStarted, Trace
from dirigent.serve.apis.responses.translate import Progress, completed, failed, message_item, reasoning_item
from dirigent.serve.apis.responses.wire import (
    CallItem,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ResponseObject,
    SummaryText,
)
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.start import Ask

Keep = Callable[[ResponseObject], Awaitable[None]]
"""Called with a response that has ended, before its last event goes out."""


class ResponseEvents:
    """`stream.Events` for `/v1/responses`."""

    opens_early = True

    def __init__(self, ask: Ask, response: ResponseObject, *, keep: Keep) -> None:
        self._ask = ask
        self._response = response
        self._keep = keep
        self._script = Script(response)
        self._progress = Progress(max_rounds=ask.conductor.limits.max_rounds)

    def opening(self) -> bytes:
        return self._script.begun()

    def progress(self, event: Planned | StepStarted | StepReassigned) -> bytes:
        # An item is done before the next is added: what begins beside the answer's words comes too late to be told.
        line = "" if self._script.speaking else self._progress.line_of(event)
        return self._script.reason(line) if line else b""

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def text(self, piece: str) -> bytes:
        return self._script.say(piece)

    async def closing(self, trace: Trace) -> bytes:
        report, summary = self._ask.report(trace), self._progress.lines
        response = completed(self._response, trace, report=report, summary=summary, before=self._ask.before)
        await self._keep(response)
        return self._script.rest(response)

    async def failed(self, problem: Problem) -> bytes:
        response = failed(self._response, problem, output=self._script.items)
        with contextlib.suppress(Problem):  # where the store is what failed, the caller is told all the same
            await self._keep(response)
        return self._script.ended(response)


KEEP_ALIVE = b": keep-alive\n\n"


class Script:
    """Writes events in their order and numbers them; those up to the number `after` are counted, but not told."""

    def __init__(self, response: ResponseObject, *, after: int = -1) -> None:
        self._id = response.id
        self._opening = response
        self._after = after
        self._number = 0
        self._told: list[Item] = []
        self._summary: list[str] = []
        self._text: list[str] | None = None

    @property
    def items(self) -> tuple[Item, ...]:
        """Those that have been told whole."""
        return tuple(self._told)

    @property
    def speaking(self) -> bool:
        """Whether the answer's text has begun."""
        return self._text is not None

    def begun(self) -> bytes:
        opening = msgspec.structs.replace(
            self._opening,
            status="in_progress",
            output=(),
            error=None,
            incomplete_details=None,
            completed_at=None,
            usage=None,
            dirigent=msgspec.UNSET,
        )
        return self._event("response.created", response=opening) + self._event("response.in_progress", response=opening)

    def reason(self, line: str) -> bytes:
        """One part of the summary."""
        out = b"" if self._summary else self._added(reasoning_item(self._id, (), "in_progress"))
        at = {"item_id": reasoning_item(self._id, (), "in_progress").id, "output_index": len(self._told)}
        at["summary_index"] = len(self._summary)
        self._summary.append(line)
        out += self._event("response.reasoning_summary_part.added", **at, part=SummaryText(""))
        out += self._event("response.reasoning_summary_text.delta", **at, delta=line)
        out += self._event("response.reasoning_summary_text.done", **at, text=line)
        return out + self._event("response.reasoning_summary_part.done", **at, part=SummaryText(line))

    def reason_on(self, lines: Sequence[str]) -> bytes:
        """The parts of the summary that have not been told yet."""
        return b"".join(self.reason(line) for line in lines[len(self._summary) :])

    def say(self, piece: str) -> bytes:
        """A piece of the answer's text."""
        out = b""
        if self._text is None:
            out += self._reasoned()
            self._text = []
            out += self._added(message_item(self._id, None, "in_progress"))
            out += self._text_event("response.content_part.added", part=OutputText(""))
        self._text.append(piece)
        return out + self._text_event("response.output_text.delta", delta=piece, logprobs=())

    def rest(self, response: ResponseObject) -> bytes:
        """Every item of the response that has not been told yet, then the response."""
        left = response.output[len(self._told) :]
        out = b"" if any(isinstance(item, ReasoningItem) for item in left) else self._reasoned()
        for item in left:
            if isinstance(item, ReasoningItem):
                out += self.reason_on([part.text for part in item.summary]) + self._reasoned()
            elif isinstance(item, MessageItem):
                out += self._said(item)
            elif isinstance(item, CallItem):
                out += self._called(item)
        return out + self.ended(response)

    def ended(self, response: ResponseObject) -> bytes:
        """The last event. There is none of its own for a response that was cancelled: it came to nothing."""
        kind = "failed" if response.status == "cancelled" else response.status
        return self._event(f"response.{kind}", response=response)

    def _reasoned(self) -> bytes:
        """Ends the summary, where there is one that has not ended."""
        if not self._summary:
            return b""
        lines, self._summary = self._summary, []
        return self._done(reasoning_item(self._id, lines, "completed"))

    def _said(self, item: MessageItem) -> bytes:
        """What is left of the answer's text, and its end. An answer without a word has its events too."""
        text = "".join(part.text for part in item.content if isinstance(part, OutputText))
        left = text[sum(map(len, self._text or ())) :]
        out = self.say(left) if left or self._text is None else b""
        out += self._text_event("response.output_text.done", text=text, logprobs=())
        out += self._text_event("response.content_part.done", part=OutputText(text))
        return out + self._done(item)

    def _called(self, item: CallItem) -> bytes:
        """A function call, its arguments at once: workers give calls whole."""
        at = {"item_id": item.id, "output_index": len(self._told)}
        out = self._added(msgspec.structs.replace(item, arguments="", status="in_progress"))
        out += self._event("response.function_call_arguments.delta", **at, delta=item.arguments)
        out += self._event("response.function_call_arguments.done", **at, name=item.name, arguments=item.arguments)
        return out + self._done(item)

    def _added(self, item: Item) -> bytes:
        return self._event("response.output_item.added", output_index=len(self._told), item=item)

    def _done(self, item: Item) -> bytes:
        out = self._event("response.output_item.done", output_index=len(self._told), item=item)
        self._told.append(item)
        return out

    def _text_event(self, kind: str, **fields: object) -> bytes:
        id = message_item(self._id, None, "in_progress").id
        return self._event(kind, item_id=id, output_index=len(self._told), content_index=0, **fields)

    def _event(self, kind: str, **fields: object) -> bytes:
        data = {"type": kind, "sequence_number": self._number} | fields
        self._number += 1
        if self._number - 1 <= self._after:
            return b""
        return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"
