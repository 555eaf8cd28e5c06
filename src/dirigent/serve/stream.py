"""A run, watched: the answer as server-sent events, as early as it can be sent.

The last step's words go out as they are written where they cannot be taken back: with a second round, or a
schema to be checked, the answer goes out when it stands. Until the first word the status is held (so that a
failure has its own), then comments keep the connection alive; a comment is never answer text. After the first
byte a failure is one `error` event, and no `[DONE]`. A client that goes away cancels the run.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from dirigent.messages import Event
from dirigent.serve.conducting import Ask, conducted
from dirigent.serve.gate import Receive, Scope, Send, send_problem
from dirigent.serve.problems import Problem
from dirigent.serve.service import Service
from dirigent.serve.translate import completion_id, finish_reason, usage_of
from dirigent.serve.wire import CallDelta, ChatChunk, ChunkChoice, ChunkDelta, FunctionCall
from dirigent.store.admission import Place
from dirigent.trace import Planned, StepDelta, StepReassigned, StepStarted, Trace

HEADERS = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))


class EventStream:
    """The response to one streamed request: an ASGI application."""

    def __init__(self, service: Service, ask: Ask, place: Place) -> None:
        self._service = service
        self._ask = ask
        self._place = place
        self._pieces: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        """Answer text, comments as bytes, and None when the run has ended."""
        self._live = ask.conductor.limits.max_rounds == 1 and ask.options.schema is None and not ask.options.json_mode
        self._last_step = -1
        self._said: list[str] = []
        self._begun = False
        """Words of the answer are on their way, and cannot be taken back."""
        self._cut = False
        self._created = int(time.time())

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
        finally:
            self._pieces.put_nowait(None)

    def _observe(self, event: Event) -> None:
        if isinstance(event, Planned):
            self._last_step = len(event.plan.steps) - 1
            self._pieces.put_nowait(_comment(f"round {event.round}: {len(event.plan.steps)} steps planned"))
        elif isinstance(event, StepStarted):
            self._pieces.put_nowait(_comment(f"step {event.index}: {event.worker}"))
        elif isinstance(event, StepDelta) and event.index == self._last_step and self._live and not self._cut:
            self._begun = self._begun or bool(event.text)
            self._pieces.put_nowait(event.text)
        elif isinstance(event, StepReassigned):
            self._pieces.put_nowait(_comment(f"step {event.index}: {event.worker} failed, {event.to} takes over"))
            if event.index == self._last_step and self._begun:
                self._cut = True  # another's answer cannot continue this one: nobody is paid for it
                self._task.cancel()

    async def _write(self, run: asyncio.Future[Trace], send: Send) -> None:
        """Hold the status for the first word; then write whatever comes."""
        held = await self._held()
        if run.done() and not self._said_any(held):
            try:
                run.result()
            except Problem as problem:
                await send_problem(problem, send)
                return
        headers = [*HEADERS, (b"x-dirigent-trace-id", self._ask.run_id.encode())]
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": headers})
        await self._body(send, self._chunk(ChunkDelta(role="assistant", content="")))
        for piece in held:
            await self._piece(send, piece)
        while not run.done() or not self._pieces.empty():
            await self._piece(send, await self._next())
        await self._end(run, send)

    async def _held(self) -> list[str | bytes | None]:
        held: list[str | bytes | None] = []
        give_up_at = time.monotonic() + self._service.settings.hold_status_s
        while not self._said_any(held) and None not in held:
            try:
                async with asyncio.timeout(max(0.0, give_up_at - time.monotonic())):
                    held.append(await self._pieces.get())
            except TimeoutError:
                break
        return held

    def _said_any(self, pieces: list[str | bytes | None]) -> bool:
        return any(isinstance(piece, str) and piece for piece in pieces)

    async def _next(self) -> str | bytes | None:
        try:
            async with asyncio.timeout(self._service.settings.keep_alive_s):
                return await self._pieces.get()
        except TimeoutError:
            return _comment("keep-alive")

    async def _piece(self, send: Send, piece: str | bytes | None) -> None:
        if isinstance(piece, bytes):
            await self._body(send, piece)
        elif piece:
            self._said.append(piece)
            await self._body(send, self._chunk(ChunkDelta(content=piece)))

    async def _end(self, run: asyncio.Future[Trace], send: Send) -> None:
        """What is left of the answer, its finish, its usage; or the error, and no `[DONE]`."""
        try:
            trace = await self._uncut(run)
        except Problem as problem:
            await self._body(send, b"data: " + problem.body() + b"\n\n", more=False)
            return
        if rest := trace.answer[sum(map(len, self._said)) :]:
            await self._body(send, self._chunk(ChunkDelta(content=rest)))
        await self._body(send, self._closing(trace), more=False)

    async def _uncut(self, run: asyncio.Future[Trace]) -> Trace:
        """The trace, if what was sent is the beginning of its answer."""
        await asyncio.wait([run])
        if not self._cut and not run.cancelled():
            trace = run.result()
            if trace.answer.startswith("".join(self._said)):
                return trace
        raise Problem(502, "the worker failed in the middle of its answer; ask again", code="answer_cut")

    def _closing(self, trace: Trace) -> bytes:
        out = b""
        if trace.tool_calls:
            calls = enumerate(trace.tool_calls)
            deltas = tuple(CallDelta(i, call.id, FunctionCall(call.name, call.arguments)) for i, call in calls)
            out += self._chunk(ChunkDelta(tool_calls=deltas))
        out += self._chunk(ChunkDelta(), finish=finish_reason(trace), dirigent=self._ask.report(trace))
        if self._wants_usage:
            out += _event(msgspec.structs.replace(self._bare(()), usage=usage_of(trace)))
        return out + b"data: [DONE]\n\n"

    @property
    def _wants_usage(self) -> bool:
        options = self._ask.chat.stream_options
        return options is not None and bool(options.include_usage)

    def _chunk(self, delta: ChunkDelta, *, finish: str | None = None, **more: Any) -> bytes:
        return _event(msgspec.structs.replace(self._bare((ChunkChoice(delta, finish),)), **more))

    def _bare(self, choices: tuple[ChunkChoice, ...]) -> ChatChunk:
        usage = None if self._wants_usage else msgspec.UNSET
        return ChatChunk(completion_id(self._ask.run_id), self._created, self._ask.chat.model, choices, usage=usage)

    async def _body(self, send: Send, body: bytes, *, more: bool = True) -> None:
        await self._send(send, {"type": "http.response.body", "body": body, "more_body": more})

    async def _send(self, send: Send, message: dict[str, Any]) -> None:
        """A client that does not take what it asked for is treated as gone."""
        try:
            async with asyncio.timeout(self._service.settings.send_timeout_s):
                await send(message)
        except TimeoutError as error:
            raise ConnectionError("the client does not read") from error


async def disconnected(receive: Receive) -> None:
    """Returns when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(chunk: ChatChunk) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def _comment(text: str) -> bytes:
    return f": {text}\n\n".encode()
