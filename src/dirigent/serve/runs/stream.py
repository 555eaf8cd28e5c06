"""A run as server-sent events, sent as early as they can be.

The last step's words are sent while they are written if nothing can take them back; with a second round, or a schema
to check, the answer is sent when it is final. Until the first word the status is held back, so that a failure has its
own status; then something that is never answer text keeps the connection alive. After the first byte a failure is one
event, and the stream ends. A client that leaves cancels the run.

This module decides when to send. The `Writer` of each API decides which bytes.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import time
from collections.abc import Iterable
from typing import Any, Protocol

from starlette.types import Message, Receive, Scope, Send

from dirigent.messages import Event
from dirigent.run.trace import Planned, StepDelta, StepReassigned, StepStarted, Trace
from dirigent.serve.http.body import disconnected
from dirigent.serve.http.errors import Problem, error_body, send_problem
from dirigent.serve.policy.admission import Place
from dirigent.serve.runs.handle import Run
from dirigent.serve.runs.report import RunReport, resumed_header

HEADERS = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))


class Writer(Protocol):
    """Writes one run in the words of one API. Methods that end a reply may wait for the store."""

    opens_early: bool
    """Progress is part of the reply: send from the first sign of work on, not from the first word of the answer."""

    async def whole(self, trace: Trace, report: RunReport) -> bytes:
        """The reply in one piece."""

    def opening(self) -> bytes: ...
    def progress(self, event: Planned | StepStarted | StepReassigned) -> bytes: ...
    def keep_alive(self) -> bytes: ...
    def text(self, piece: str) -> bytes: ...

    async def closing(self, trace: Trace) -> bytes:
        """The events after all of the answer's text."""

    async def failed(self, problem: Problem, body: bytes) -> bytes:
        """The event that replaces the closing. `body` is the error in the API's form."""


class EventStream:
    """The response to one streamed request: an ASGI application."""

    broke_off = False
    """The stream ended with a failure, after its status had been sent."""

    def __init__(self, run: Run, place: Place, writer: Writer) -> None:
        self._run = run
        self._place = place
        self._writer = writer
        self._pieces: asyncio.Queue[str | Event | None] = asyncio.Queue()
        """Answer text, progress, and None when the run has ended."""
        self._last_step = -1
        self._sent = io.StringIO()
        """The part of the answer that was sent. A list of a thousand short strings would take ten times its memory."""
        self._begun = False
        """Words of the answer are on their way, and cannot be taken back."""
        self._working = False
        """Some step has begun to write."""
        self._cut = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._run.watch(self._observe)
        task = self._run.start(stream=True)
        task.add_done_callback(lambda _: self._pieces.put_nowait(None))
        try:
            await write_unless_gone(self._write(task, scope, send), receive)
        finally:
            task.cancel()
            await asyncio.wait([task])
            self._place.leave()

    def _observe(self, event: Event) -> None:
        if isinstance(event, StepDelta):
            if event.index == self._last_step and self._run.is_live and not self._cut:
                self._begun = self._begun or bool(event.text)
                self._pieces.put_nowait(event.text)
            elif not self._working:
                self._pieces.put_nowait(event)
            self._working = True
        elif isinstance(event, Planned | StepStarted | StepReassigned):
            self._pieces.put_nowait(event)
        if isinstance(event, Planned):
            self._last_step = event.plan.last
        elif isinstance(event, StepReassigned) and event.index == self._last_step and self._begun:
            self._cut = True  # another worker's answer cannot continue this one, so it is not paid for
            self._run.cancel()

    async def _write(self, task: asyncio.Task[Trace], scope: Scope, send: Send) -> None:
        """Hold the status until the first word; then write everything that comes."""
        held = await self._held()
        if task.done() and not self._opens(held):
            try:
                task.result()
            except Problem as problem:
                self._place.leave()
                await send_problem(problem, send, scope)
                return
        headers = [*HEADERS, (b"x-dirigent-trace-id", self._run.id.encode())]
        said = resumed_header(self._run.resumed)
        headers += [(name.lower().encode(), value.encode()) for name, value in said.items()]
        await send_in_time(send, {"type": "http.response.start", "status": 200, "headers": headers}, self._patience_s)
        await self._body(send, self._writer.opening() + self._written(held))
        while not task.done() or not self._pieces.empty():
            await self._next_piece(send)
        await self._end(task, scope, send)

    async def _held(self) -> list[str | Event | None]:
        held: list[str | Event | None] = []
        give_up_at = time.monotonic() + self._run.service.settings.hold_status_s
        while not self._opens(held) and None not in held:
            try:
                async with asyncio.timeout(max(0.0, give_up_at - time.monotonic())):
                    held.append(await self._pieces.get())
            except TimeoutError:
                break
        return held

    def _opens(self, pieces: list[str | Event | None]) -> bool:
        """Whether these pieces are a reason to send status 200."""
        early = self._writer.opens_early
        return any(piece if isinstance(piece, str) else early and isinstance(piece, StepDelta) for piece in pieces)

    async def _next_piece(self, send: Send) -> None:
        """Write all that has come at once: a write costs more than a word, and under load several words wait."""
        waiting: list[str | Event | None] = []
        if self._pieces.empty():
            try:
                async with asyncio.timeout(self._run.service.settings.keep_alive_s):
                    waiting.append(await self._pieces.get())
            except TimeoutError:
                await self._body(send, self._writer.keep_alive())
                return
        while not self._pieces.empty():
            waiting.append(self._pieces.get_nowait())
        if written := self._written(waiting):
            await self._body(send, written)

    def _written(self, pieces: Iterable[str | Event | None]) -> bytes:
        """Pieces as bytes to send; words that follow one another are one event."""
        out = b""
        for is_text, group in itertools.groupby(pieces, key=lambda piece: isinstance(piece, str)):
            if is_text:
                text = "".join(map(str, group))
                self._sent.write(text)
                out += self._writer.text(text) if text else b""
            else:
                progress = (p for p in group if isinstance(p, Planned | StepStarted | StepReassigned))
                out += b"".join(map(self._writer.progress, progress))
        return out

    async def _end(self, task: asyncio.Task[Trace], scope: Scope, send: Send) -> None:
        """The rest of the answer and the closing events; or the error, and nothing more."""
        try:
            trace = self._uncut(task)
            if rest := trace.answer[self._sent.tell() :]:
                await self._body(send, self._writer.text(rest))
            last = await self._writer.closing(trace)
        except Problem as problem:
            self.broke_off = True
            last = await self._writer.failed(problem, error_body(problem, scope))
        self._place.leave()  # before the last byte: a client that has read it may ask again at once
        await self._body(send, last, more=False)

    def _uncut(self, task: asyncio.Task[Trace]) -> Trace:
        """The trace, if its answer begins with the text that was sent."""
        if not self._cut and not task.cancelled():
            trace = task.result()
            if trace.answer.startswith(self._sent.getvalue()):
                return trace
        raise Problem(502, "the worker failed in the middle of its answer; ask again", code="answer_cut")

    @property
    def _patience_s(self) -> float:
        return self._run.service.settings.send_timeout_s

    async def _body(self, send: Send, body: bytes, *, more: bool = True) -> None:
        await send_in_time(send, {"type": "http.response.body", "body": body, "more_body": more}, self._patience_s)


async def write_unless_gone(writing: Any, receive: Receive) -> None:
    """Write a reply until it ends or its client leaves."""
    gone = asyncio.ensure_future(disconnected(receive))
    task = asyncio.ensure_future(writing)
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    except OSError:
        pass  # the client left while the reply was written
    finally:
        for each in (gone, task):
            each.cancel()
        await asyncio.gather(gone, task, return_exceptions=True)


async def send_in_time(send: Send, message: Message, patience_s: float) -> None:
    """Send a message. A client that does not read its reply counts as gone."""
    try:
        async with asyncio.timeout(patience_s):
            await send(message)
    except TimeoutError as error:
        raise ConnectionError("the client does not read") from error
