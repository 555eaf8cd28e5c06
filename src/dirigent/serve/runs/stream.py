"""A run, watched: the answer as server-sent events, as early as it can be sent.

The last step's words go out as they are written where they cannot be taken back: with a second round, or a
schema to be checked, the answer goes out when it stands. Until the first word the status is held (so that a
failure has its own), then something keeps the connection alive that is never answer text. After the first byte
a failure is one event, and the stream ends. A client that goes away cancels the run.

When to send is decided here; what it looks like on the wire is for the `Events` of each route to say
(`chat_events.py`, `responses_events.py`, `messages_events.py`).
"""

from __future__ import annotations

import asyncio
import io
import itertools
import logging
import time
from collections.abc import Iterable
from typing import Any, Protocol

from dirigent.errors import DirigentError
from dirigent.messages import Event
from dirigent.serve.apis.chat.events import ChatEvents
from dirigent.serve.runs.start import Ask, conducted, resumed_header
from dirigent.serve.http.auth import Receive, Scope, Send, send_problem
from dirigent.serve.http.body import disconnected
from dirigent.serve.http.errors import Problem, mistake, problem_of
from dirigent.serve.service import Service
from dirigent.store.admission import Place
from dirigent.run.trace import Planned, StepDelta, StepReassigned, StepStarted, Trace

log = logging.getLogger(__name__)

HEADERS = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))


class Events(Protocol):
    """How one route tells a run. Every method gives bytes to send; the two that end a stream may wait."""

    opens_early: bool
    """Progress is part of the reply: send from the first sign of work on, not from the first word of the answer."""

    def opening(self) -> bytes: ...
    def progress(self, event: Planned | StepStarted | StepReassigned) -> bytes: ...
    def keep_alive(self) -> bytes: ...
    def text(self, piece: str) -> bytes: ...

    async def closing(self, trace: Trace) -> bytes:
        """After all of the answer's text."""

    async def failed(self, problem: Problem) -> bytes:
        """In place of the closing."""


class EventStream:
    """The response to one streamed request: an ASGI application."""

    def __init__(self, service: Service, ask: Ask, place: Place, *, events: Events | None = None) -> None:
        self._service = service
        self._ask = ask
        self._place = place
        self._events = events or ChatEvents(ask)
        self._pieces: asyncio.Queue[str | Event | None] = asyncio.Queue()
        """Answer text, progress, and None when the run has ended."""
        self._live = is_live(ask)
        self._last_step = -1
        self._said = io.StringIO()
        """What was sent of the answer. A buffer: a thousand short strings would take ten times its memory."""
        self._begun = False
        """Words of the answer are on their way, and cannot be taken back."""
        self._working = False
        """Some step has begun to write."""
        self._cut = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        run = self._task = self._service.own(self._run())
        gone = asyncio.ensure_future(disconnected(receive))
        writing = asyncio.ensure_future(self._write(run, send))
        try:
            await asyncio.wait((writing, gone), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        except OSError:
            pass  # the client went away while it was written to
        finally:
            for task in (gone, writing, run):
                task.cancel()
            await asyncio.gather(gone, writing, run, return_exceptions=True)
            self._place.leave()

    async def _run(self) -> Trace:
        try:
            return await conducted(self._service, self._ask, observe=self._observe, stream=True)
        except Problem:
            raise
        except DirigentError as error:
            raise problem_of(error) from error
        except Exception as error:  # a bug, which has a status too, or an event of its own
            log.exception("run %s", self._ask.run_id)
            raise mistake() from error
        finally:
            self._pieces.put_nowait(None)

    def _observe(self, event: Event) -> None:
        if isinstance(event, StepDelta):
            self._observe_words(event)
        elif isinstance(event, Planned | StepStarted | StepReassigned):
            self._pieces.put_nowait(event)
        if isinstance(event, Planned):
            self._last_step = event.plan.last
        elif isinstance(event, StepReassigned) and event.index == self._last_step and self._begun:
            self._cut = True  # another's answer cannot continue this one: nobody is paid for it
            self._task.cancel()

    def _observe_words(self, event: StepDelta) -> None:
        if event.index == self._last_step and self._live and not self._cut:
            self._begun = self._begun or bool(event.text)
            self._pieces.put_nowait(event.text)
        elif not self._working:
            self._pieces.put_nowait(event)
        self._working = True

    async def _write(self, run: asyncio.Future[Trace], send: Send) -> None:
        """Hold the status for the first word; then write whatever comes."""
        held = await self._held()
        if run.done() and not self._opens(held):
            try:
                run.result()
            except Problem as problem:
                self._place.leave()
                await send_problem(problem, send)
                return
        headers = [*HEADERS, (b"x-dirigent-trace-id", self._ask.run_id.encode())]
        said = resumed_header(self._ask.resumed)
        headers += [(name.lower().encode(), value.encode()) for name, value in said.items()]
        await send_in_time(send, {"type": "http.response.start", "status": 200, "headers": headers}, self._patience_s)
        await self._body(send, self._events.opening() + self._told(held))
        while not run.done() or not self._pieces.empty():
            await self._next_piece(send)
        await self._end(run, send)

    async def _held(self) -> list[str | Event | None]:
        held: list[str | Event | None] = []
        give_up_at = time.monotonic() + self._service.settings.hold_status_s
        while not self._opens(held) and None not in held:
            try:
                async with asyncio.timeout(max(0.0, give_up_at - time.monotonic())):
                    held.append(await self._pieces.get())
            except TimeoutError:
                break
        return held

    def _opens(self, pieces: list[str | Event | None]) -> bool:
        """Whether these are worth saying 200 for."""
        early = self._events.opens_early
        return any(piece if isinstance(piece, str) else early and isinstance(piece, StepDelta) for piece in pieces)

    async def _next_piece(self, send: Send) -> None:
        """Write what has come, all of it at once: a write costs more than a word, and under load several wait."""
        try:
            if self._pieces.empty():
                async with asyncio.timeout(self._service.settings.keep_alive_s):
                    waiting = [await self._pieces.get()]
            else:
                waiting = []
        except TimeoutError:
            await self._body(send, self._events.keep_alive())
            return
        while not self._pieces.empty():
            waiting.append(self._pieces.get_nowait())
        if told := self._told(waiting):
            await self._body(send, told)

    def _told(self, pieces: Iterable[str | Event | None]) -> bytes:
        """Pieces as bytes to send; words that follow one another are one event."""
        out = b""
        for is_text, group in itertools.groupby(pieces, key=lambda piece: isinstance(piece, str)):
            if is_text:
                text = "".join(map(str, group))
                self._said.write(text)
                out += self._events.text(text) if text else b""
            else:
                progress = (p for p in group if isinstance(p, Planned | StepStarted | StepReassigned))
                out += b"".join(map(self._events.progress, progress))
        return out

    async def _end(self, run: asyncio.Future[Trace], send: Send) -> None:
        """What is left of the answer, and what comes after it; or the error, and nothing more."""
        try:
            trace = await self._uncut(run)
            if rest := trace.answer[self._said.tell() :]:
                await self._body(send, self._events.text(rest))
            last = await self._events.closing(trace)
        except Problem as problem:
            last = await self._events.failed(problem)
        self._place.leave()  # before the last byte: whoever has read it may ask again at once
        await self._body(send, last, more=False)

    async def _uncut(self, run: asyncio.Future[Trace]) -> Trace:
        """The trace, if what was sent is the beginning of its answer."""
        await asyncio.wait([run])
        if not self._cut and not run.cancelled():
            trace = run.result()
            if trace.answer.startswith(self._said.getvalue()):
                return trace
        raise Problem(502, "the worker failed in the middle of its answer; ask again", code="answer_cut")

    @property
    def _patience_s(self) -> float:
        return self._service.settings.send_timeout_s

    async def _body(self, send: Send, body: bytes, *, more: bool = True) -> None:
        await send_in_time(send, {"type": "http.response.body", "body": body, "more_body": more}, self._patience_s)


def is_live(ask: Ask) -> bool:
    """Whether the last step's words are the answer as soon as they are written."""
    return ask.conductor.limits.max_rounds == 1 and ask.options.schema is None and not ask.options.json_mode


async def send_in_time(send: Send, message: dict[str, Any], patience_s: float) -> None:
    """A client that does not take what it asked for is treated as gone."""
    try:
        async with asyncio.timeout(patience_s):
            await send(message)
    except TimeoutError as error:
        raise ConnectionError("the client does not read") from error
