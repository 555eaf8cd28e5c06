"""A run as a response: whole, or as events. A reasoning summary lists the steps on the way to the answer.

Events are numbered, and items follow one another: an item is done before the next is added. A live run
(`ResponseWriter`) and a stored response (`Script.rest`) give the same events, so that a stream that broke off can be
continued after the last number that arrived.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import msgspec

from dirigent.messages import Event, Finish
from dirigent.plan.plan import Plan
from dirigent.run.trace import Planned, StepReassigned, StepStarted, Trace, usage_since
from dirigent.serve.apis.responses.kept import keep
from dirigent.serve.apis.responses.wire import (
    CallItem,
    IncompleteDetails,
    Item,
    ItemStatus,
    MessageItem,
    OutputText,
    ReasoningItem,
    ResponseError,
    ResponseInputDetails,
    ResponseObject,
    ResponseOutputDetails,
    ResponseUsage,
    SummaryText,
)
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.handle import Run
from dirigent.serve.runs.report import RunReport
from dirigent.workers.secret import redact

SHOWN_SUBTASK_CHARS = 500


class ResponseWriter:
    """`stream.Writer` for `/v1/responses`. It stores the response before its last byte goes out, unless told not to."""

    opens_early = True

    def __init__(self, run: Run, response: ResponseObject, items: Sequence[Item]) -> None:
        self._run = run
        self._response = response
        self._items = items
        self._script = Script(response)
        self._progress = Progress(max_rounds=run.conductor.limits.max_rounds)

    async def whole(self, trace: Trace, report: RunReport) -> bytes:
        for event in self._run.events():
            self._progress.line_of(event)
        return msgspec.json.encode(await self._completed(trace, report))

    def opening(self) -> bytes:
        return self._script.begun()

    def progress(self, event: Planned | StepStarted | StepReassigned) -> bytes:
        # An item is done before the next is added, so a step that begins beside the answer's words cannot be shown.
        line = "" if self._script.speaking else self._progress.line_of(event)
        return self._script.reason(line) if line else b""

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def text(self, piece: str) -> bytes:
        return self._script.say(piece)

    async def closing(self, trace: Trace) -> bytes:
        return self._script.rest(await self._completed(trace, self._run.report(trace)))

    async def failed(self, problem: Problem, body: bytes) -> bytes:
        response = failed(self._response, problem, output=self._script.items)
        with contextlib.suppress(Problem):  # if the store is what failed, the caller must hear of it all the same
            await self._keep(response)
        return self._script.ended(response)

    async def _completed(self, trace: Trace, report: RunReport) -> ResponseObject:
        lines, before = self._progress.lines, self._run.before
        response = completed(self._response, trace, report=report, summary=lines, before=before)
        await self._keep(response)
        return response

    async def _keep(self, response: ResponseObject) -> None:
        if response.store:
            run = self._run
            await keep(run.service.store, response, self._items, key_id=run.caller.key_id, run_id=run.id)


# ---- the response -----------------------------------------------------------------------------------------


def completed(
    response: ResponseObject,
    trace: Trace,
    *,
    report: RunReport,
    summary: Sequence[str],
    before: Trace | None = None,
) -> ResponseObject:
    """The response with its answer. Its usage counts from `before`, so that the replies of a resumed run add up."""
    reason = INCOMPLETE.get(trace.finish)
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
    """The response of a run that failed."""
    error = ResponseError("rate_limit_exceeded" if problem.status == 429 else "server_error", redact(str(problem)))
    return msgspec.structs.replace(response, status="failed", output=output, error=error)


INCOMPLETE: dict[Finish, IncompleteDetails] = {
    "length": IncompleteDetails("max_output_tokens"),
    "refused": IncompleteDetails("content_filter"),
}


def output_of(response_id: str, trace: Trace, *, summary: Sequence[str]) -> tuple[Item, ...]:
    items: list[Item] = [*reasoning_items(response_id, summary)]
    if trace.answer or not trace.tool_calls:
        status: ItemStatus = "incomplete" if trace.finish in INCOMPLETE else "completed"
        items.append(message_item(response_id, trace.answer, status))
    for index, call in enumerate(trace.tool_calls):
        id = f"fc_{_own(response_id)}_{index}"
        items.append(CallItem(call.id, call.name, call.arguments, id=id, status="completed"))
    return tuple(items)


def reasoning_items(response_id: str, summary: Sequence[str]) -> tuple[Item, ...]:
    """The summary as output items; empty if it has no line."""
    return (reasoning_item(response_id, summary, "completed"),) if summary else ()


def reasoning_item(response_id: str, summary: Sequence[str], status: ItemStatus) -> ReasoningItem:
    return ReasoningItem(tuple(map(SummaryText, summary)), id=f"rs_{_own(response_id)}", status=status)


def message_item(response_id: str, text: str | None, status: ItemStatus) -> MessageItem:
    """The answer's item; `text` is None before the text begins."""
    content = () if text is None else (OutputText(text),)
    return MessageItem("assistant", content, id=f"msg_{_own(response_id)}", status=status)


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
    """The summary of a running run: a line for each step on the way to the answer.

    The last step of a plan is the answer itself, unless another round may follow.
    """

    def __init__(self, *, max_rounds: int) -> None:
        self.lines: list[str] = []
        self._more_rounds = max_rounds > 1
        self._planned: Planned | None = None

    def line_of(self, event: Event) -> str:
        """The line that this event adds; empty if it adds none."""
        if isinstance(event, Planned):
            self._planned = event
        if not isinstance(event, StepStarted) or self._planned is None:
            return ""
        plan = self._planned.plan
        if event.index == plan.last and not self._more_rounds:
            return ""
        self.lines.append(asking(event.worker, plan.step(event.index).subtask))
        return self.lines[-1]


def summary_of(trace: Trace) -> list[str]:
    """The summary from a trace, for a run without an observer: a step is asked once all steps that it reads are done.

    A step of a plan with `until` may never be asked; its line is added once it has ended.

    While the run continues, lines are added only at the end. So they can be sent meanwhile, and sent again unchanged.
    """
    lines: list[tuple[int, float, int, str]] = []
    for number, round in enumerate(trace.rounds):
        done_s = {step.index: step.ended_s for step in round.steps if step.status == "done"}
        asked_s = {step.index: step.started_s for step in round.steps if step.messages}
        plan = round.plan or Plan()
        for index, step in plan.numbered():
            is_answer = index == plan.last and trace.limits.max_rounds == 1
            read = [j for j in step.access if j >= plan.first]  # the others are of earlier rounds, which are over
            if plan.until is not None:
                asked, since_s = index == plan.first or index in asked_s, asked_s.get(index, 0.0)
            else:
                asked = done_s.keys() >= set(read)
                since_s = max((done_s.get(j, 0.0) for j in read), default=0.0)
            if asked and not is_answer:
                lines.append((number, since_s, index, asking(step.worker, step.subtask)))
    return [line for *_, line in sorted(lines)]


def asking(worker: str, subtask: str) -> str:
    shown = subtask if len(subtask) <= SHOWN_SUBTASK_CHARS else subtask[: SHOWN_SUBTASK_CHARS - 1] + "…"
    return f"asking {worker}: {shown}"


# ---- its events --------------------------------------------------------------------------------------------


KEEP_ALIVE = b": keep-alive\n\n"


class Script:
    """Writes events in their order and numbers them. Events up to the number `after` are counted, but not written."""

    def __init__(self, response: ResponseObject, *, after: int = -1) -> None:
        self._id = response.id
        self._opening = response
        self._after = after
        self._number = 0
        self._items: list[Item] = []
        self._summary: list[str] = []
        self._text: list[str] | None = None

    @property
    def items(self) -> tuple[Item, ...]:
        """The items that were written in full."""
        return tuple(self._items)

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
        at = {"item_id": reasoning_item(self._id, (), "in_progress").id, "output_index": len(self._items)}
        at["summary_index"] = len(self._summary)
        self._summary.append(line)
        out += self._event("response.reasoning_summary_part.added", **at, part=SummaryText(""))
        out += self._event("response.reasoning_summary_text.delta", **at, delta=line)
        out += self._event("response.reasoning_summary_text.done", **at, text=line)
        return out + self._event("response.reasoning_summary_part.done", **at, part=SummaryText(line))

    def reason_on(self, lines: Sequence[str]) -> bytes:
        """The parts of the summary that were not written yet."""
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
        """Every item of the response that was not written yet, then the response."""
        left = response.output[len(self._items) :]
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
        """The last event. OpenAI has none for a cancelled response, so it is `response.failed`."""
        kind = "failed" if response.status == "cancelled" else response.status
        return self._event(f"response.{kind}", response=response)

    def _reasoned(self) -> bytes:
        """Ends the summary if it has begun and not ended."""
        if not self._summary:
            return b""
        lines, self._summary = self._summary, []
        return self._done(reasoning_item(self._id, lines, "completed"))

    def _said(self, item: MessageItem) -> bytes:
        """The rest of the answer's text, and its end. An empty answer has its events too."""
        text = "".join(part.text for part in item.content if isinstance(part, OutputText))
        left = text[sum(map(len, self._text or ())) :]
        out = self.say(left) if left or self._text is None else b""
        out += self._text_event("response.output_text.done", text=text, logprobs=())
        out += self._text_event("response.content_part.done", part=OutputText(text))
        return out + self._done(item)

    def _called(self, item: CallItem) -> bytes:
        """A function call with its arguments at once: workers give calls whole."""
        at = {"item_id": item.id, "output_index": len(self._items)}
        out = self._added(msgspec.structs.replace(item, arguments="", status="in_progress"))
        out += self._event("response.function_call_arguments.delta", **at, delta=item.arguments)
        out += self._event("response.function_call_arguments.done", **at, name=item.name, arguments=item.arguments)
        return out + self._done(item)

    def _added(self, item: Item) -> bytes:
        return self._event("response.output_item.added", output_index=len(self._items), item=item)

    def _done(self, item: Item) -> bytes:
        out = self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        return out

    def _text_event(self, kind: str, **fields: object) -> bytes:
        id = message_item(self._id, None, "in_progress").id
        return self._event(kind, item_id=id, output_index=len(self._items), content_index=0, **fields)

    def _event(self, kind: str, **fields: object) -> bytes:
        data = {"type": kind, "sequence_number": self._number} | fields
        self._number += 1
        if self._number - 1 <= self._after:
            return b""
        return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"
