"""`/v1/runs`: a run that continues without its client, watched by callers with its key.

    POST /v1/runs                 starts a run from the body of a chat completion and returns its id at once
    GET  /v1/runs/events          the runs under way, then every run that begins or ends, as server-sent events
    GET  /v1/runs/{id}/events     everything that has happened, then everything that happens, as server-sent events
    POST /v1/runs/{id}/cancel     ends it

A client that loses its connection asks for the events again: they begin with the state so far, so nothing is lost. The
end of a run is in the store before its last event is sent. A run is watched at the server that carries it out; when it
has ended, every server has its end. Streams end within seconds of the key or session that opened them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dirigent.errors import StoreError
from dirigent.messages import Event
from dirigent.plan.plan import Plan
from dirigent.run.trace import (
    Check,
    Drafted,
    Planned,
    StepChecked,
    StepDelta,
    StepEnded,
    StepReassigned,
    StepRecord,
    StepStarted,
    Trace,
)
from dirigent.serve.apis.chat.wire import read
from dirigent.serve.apis.dirigent_field import PREFIX, merged
from dirigent.serve.http.auth import still_open
from dirigent.serve.http.body import CLIENT_GONE, admitted, read_body
from dirigent.serve.http.errors import Problem
from dirigent.serve.policy.admission import Place
from dirigent.serve.runs.asked import Asked
from dirigent.serve.runs.handle import Run
from dirigent.serve.runs.report import WireStep, wire_step
from dirigent.serve.runs.start import prepare, resume
from dirigent.serve.runs.stream import HEADERS, send_in_time, write_unless_gone
from dirigent.serve.service import Service
from dirigent.store.keys import Caller
from dirigent.store.traces import TraceFilter, run_keys

FAILS_AT_ONCE_S = 0.05
"""Seconds in which a run that cannot begin has said so, and gets a status of its own."""
KEY_S = 2.0
"""Seconds after which a stream looks again whether its key still holds."""
QUESTION_CHARS = 300


class RunStarted(msgspec.Struct, frozen=True):
    """The reply of a request that started a run."""

    id: str
    """Also the id of its trace, which is there when the run has ended."""
    model: str
    kept: tuple[int, ...] = ()
    """Steps whose results were taken from an earlier run, and are not paid again."""
    object: str = "dirigent.run"


class RunCancelled(msgspec.Struct, frozen=True):
    id: str
    object: str = "dirigent.run.cancelled"


async def start_run(request: Request) -> Response:
    """Starts a run from the body of a chat completion. It continues when the client leaves; watch it by its events."""
    began = time.monotonic()
    service, caller = _parts(request)
    try:
        asked = read(await read_body(request, timeout_s=service.settings.body_timeout_s))
    except ClientDisconnect:
        return CLIENT_GONE
    if any(name.startswith(PREFIX) for name in request.headers):
        asked = msgspec.structs.replace(asked, dirigent=merged(asked.dirigent, request.headers))
    started = await launch(service, asked, caller=caller, began=began)
    return Response(msgspec.json.encode(started), 202, media_type="application/json")


async def launch(
    service: Service, asked: Asked, *, caller: Caller, began: float, place: Place | None = None, run: Run | None = None
) -> RunStarted:
    """Starts a run without a waiting caller. A run that cannot begin raises its `Problem`."""
    if asked.dirigent.dry_run:
        said = "a dry run starts no run: ask POST /v1/chat/completions for the plan"
        raise Problem(400, said, param="dirigent.dry_run")
    place = place or admitted(service, caller)
    try:
        if run is None:
            run = prepare(service, asked, caller=caller, began=began)
            await resume(run)
        task = run.start(stream=True)
    except BaseException:
        place.leave()
        raise
    task.add_done_callback(lambda _: place.leave())
    await asyncio.wait([task], timeout=FAILS_AT_ONCE_S)
    if task.done() and run.ended is None:
        task.result()  # raises the reason
    kept = () if run.state is None else tuple(step.index for step in _kept_steps(run))
    return RunStarted(run.id, asked.model, kept)


async def run_events(request: Request) -> Any:
    """The events of a run: those so far at once, then those to come. Of a run that has ended, those of its trace."""
    service, caller = _parts(request)
    id = request.path_params["id"]
    run = _own_run(service, caller, id)
    if run is not None:
        return _OneRun(request, run)
    if caller.role == "admin" or caller.key_id in await run_keys(service.store, id):
        try:
            trace = await service.store.get(id)
        except StoreError:
            trace = None
        if trace is not None and trace.id == id:
            return Response(_of_trace(trace), headers=_NO_STORE, media_type="text/event-stream")
    raise Problem(404, f"no run has the id {id[:80]!r}", code="run_not_found")


async def cancel_run(request: Request) -> Response:
    """Cancels a run. Its trace keeps the steps and the cost so far."""
    service, caller = _parts(request)
    id = request.path_params["id"]
    run = _own_run(service, caller, id)
    if run is None:
        raise Problem(404, f"no run with the id {id[:80]!r} is under way here", code="run_not_found")
    run.cancel()
    await run.over()
    return Response(msgspec.json.encode(RunCancelled(id)), media_type="application/json")


async def runs_events(request: Request) -> Any:
    """The caller's runs under way, an admin's of all keys; then each that begins or ends, here or elsewhere."""
    return _AllRuns(request)


class _Stream:
    """A reply of server-sent events: an ASGI application. It ends with the key or session that opened it."""

    def __init__(self, request: Request) -> None:
        self._service, self._caller = _parts(request)
        self._headers = dict(request.scope["headers"])
        self._news: asyncio.Queue[Any] = asyncio.Queue()
        self._number = 0

    def _begin(self) -> Callable[[], None]:
        """Start to put news into the queue. Returns what ends that."""
        raise NotImplementedError

    async def _opening(self) -> bytes:
        raise NotImplementedError

    def _written(self, news: list[Any]) -> tuple[bytes, bool]:
        """The news as events, and whether more will follow."""
        raise NotImplementedError

    async def _idle(self) -> bytes:
        """What is sent when there was no news for long."""
        return b": keep-alive\n\n"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        end = self._begin()
        try:
            await write_unless_gone(self._write(send), receive)
        finally:
            end()

    async def _write(self, send: Send) -> None:
        settings = self._service.settings
        start = {"type": "http.response.start", "status": 200, "headers": list(HEADERS)}
        await send_in_time(send, start, settings.send_timeout_s)
        out, more = await self._opening(), True
        looked_at = sent_at = time.monotonic()
        while True:
            if out or not more:
                body = {"type": "http.response.body", "body": out, "more_body": more}
                await send_in_time(send, body, settings.send_timeout_s)
                sent_at = time.monotonic()
            if not more:
                return
            news: list[Any] = []
            with suppress(TimeoutError):
                async with asyncio.timeout(min(KEY_S, settings.keep_alive_s)):
                    news.append(await self._news.get())
            while not self._news.empty():
                news.append(self._news.get_nowait())
            out, more = self._written(news)
            if not out and time.monotonic() - sent_at >= settings.keep_alive_s:
                out = await self._idle()
            if time.monotonic() - looked_at >= KEY_S:
                looked_at = time.monotonic()
                more = more and await still_open(self._service, self._headers)

    def _said(self, kind: str, data: Any) -> bytes:
        self._number += 1
        return _event(self._number, kind, data)


class _OneRun(_Stream):
    """The reply to `GET /v1/runs/{id}/events` of a running run."""

    def __init__(self, request: Request, run: Run) -> None:
        super().__init__(request)
        self._run = run

    def _begin(self) -> Callable[[], None]:
        unwatch = self._run.watch(self._news.put_nowait)
        over = asyncio.ensure_future(self._run.over())
        over.add_done_callback(lambda _: self._news.put_nowait(None))

        def end() -> None:
            over.cancel()
            unwatch()

        return end

    async def _opening(self) -> bytes:
        return self._said("run", _opening(self._run))

    def _written(self, news: list[Event | None]) -> tuple[bytes, bool]:
        told = [_told(event) for event in _joined(news)]
        out = b"".join(self._said(*one) for one in told if one is not None)
        if None not in news:
            return out, True
        trace = self._run.ended
        return out + self._said("ended", None if trace is None else _ended(trace)), False


class RunUnderWay(msgspec.Struct, frozen=True):
    """A run that has begun and not ended, as the events of all runs show it."""

    id: str
    model: str
    question: str
    """Its beginning."""
    seconds: float
    """Since it began."""
    key_id: str


class _AllRuns(_Stream):
    """The reply to `GET /v1/runs/events`."""

    _newest = ""
    """The newest run in the store, when it was looked at last."""

    def _begin(self) -> Callable[[], None]:
        watchers = self._service.run_watchers
        watchers.append(self._news.put_nowait)
        return lambda: watchers.remove(self._news.put_nowait)

    async def _opening(self) -> bytes:
        self._newest = await self._newest_stored()
        under_way = [_under_way(run) for run in self._service.runs if _may_see(self._caller, run)]
        return self._said("runs", {"under_way": under_way})

    def _written(self, news: list[Run]) -> tuple[bytes, bool]:
        out = b""
        for run in news:
            if not _may_see(self._caller, run):
                continue
            under_way = run in self._service.runs
            out += self._said("began", _under_way(run)) if under_way else self._said("ended", {"id": run.id})
        return out, True

    async def _idle(self) -> bytes:
        # Another process over the same store may have ended runs; this one is not notified of them.
        before, self._newest = self._newest, await self._newest_stored()
        return self._said("changed", None) if self._newest != before else await super()._idle()

    async def _newest_stored(self) -> str:
        own = TraceFilter(key_id=None if self._caller.role == "admin" else self._caller.key_id)
        try:
            found = await self._service.store.find(own, limit=1)
        except StoreError:
            return self._newest
        return found[0].id if found else ""


def _under_way(run: Run) -> RunUnderWay:
    said = next((message.text for message in reversed(run.asked.question) if message.role == "user"), "")
    return RunUnderWay(run.id, run.asked.model, said[:QUESTION_CHARS], time.monotonic() - run.began, run.caller.key_id)


def _may_see(caller: Caller, run: Run) -> bool:
    return caller.role == "admin" or run.caller.key_id == caller.key_id


def _told(event: Event) -> tuple[str, Any] | None:
    """An event of a run as the stream has it; None if it is not shown."""
    match event:
        case Planned(round, plan, fallback):
            return "planned", {"round": round, "fallback": fallback} | _plan(plan)
        case Drafted(round, draft):
            told = {"planner": draft.planner, "error": draft.error, "seconds": draft.ended_s - draft.started_s}
            return "drafted", {"round": round, "cost_usd": sum(a.cost_usd for a in draft.attempts)} | told
        case StepStarted(round, index, worker):
            return "step_started", {"round": round, "index": index, "worker": worker}
        case StepDelta(round, index, text):
            return "step_delta", {"round": round, "index": index, "text": text}
        case StepChecked(round, index, check):
            return "step_checked", {
                "round": round,
                "index": index,
                "after": check.after,
                "confidence": check.confidence,
            }
        case StepReassigned(round, index, worker, to, _):
            told = {"worker": worker, "to": to, "error": f"{worker} failed"}
            return "step_reassigned", {"round": round, "index": index} | told
        case StepEnded(round, step):
            return "step_ended", {"round": round, "step": _shown(step)}
    return None


def _of_trace(trace: Trace) -> bytes:
    """The events of a run that has ended, without the words as they were written."""
    events: list[Event] = []
    for number, round in enumerate(trace.rounds):
        events += [Drafted(number, draft) for draft in round.drafts]
        events += [] if round.plan is None else [Planned(number, round.plan, round.fallback)]
        events += [StepEnded(number, step) for step in round.steps]
    opening = {"id": trace.id, "model": trace.profile, "planner": trace.planner, "kept": []}
    told = [("run", opening), *filter(None, map(_told, events)), ("ended", _ended(trace))]
    return b"".join(_event(number, *one) for number, one in enumerate(told, 1))


class ShownStep(msgspec.Struct, frozen=True):
    """A step that has ended, as events show it."""

    index: int
    step: WireStep
    started_s: float
    ended_s: float
    text: str
    attempts: int
    cached_input_tokens: int = 0
    checks: tuple[Check, ...] = ()


def _shown(step: StepRecord) -> ShownStep:
    text = step.reply.text if step.reply is not None else ""
    cached = step.usage.cached_input_tokens
    times = (step.started_s, step.ended_s)
    return ShownStep(step.index, wire_step(step), *times, text, len(step.attempts), cached, step.checks)


def _opening(run: Run) -> dict[str, Any]:
    """The state that a watcher needs before the events."""
    kept = [_shown(step) for step in _kept_steps(run)]
    return {"id": run.id, "model": run.asked.model, "planner": run.conductor.planner.name, "kept": kept}


def _kept_steps(run: Run) -> list[StepRecord]:
    """The steps that were done before this run began: of the run that it was forked from, or before it paused."""
    return [] if run.state is None else [step for round in run.state.trace.rounds for step in round.steps]


def _plan(plan: Plan) -> dict[str, Any]:
    steps = [{"index": i, "worker": s.worker, "subtask": s.subtask, "access": s.access} for i, s in plan.numbered()]
    return {"first": plan.first, "steps": steps, "until": plan.until}


def _ended(trace: Trace) -> dict[str, Any]:
    return {
        "trace_id": trace.id,
        "status": trace.status,
        "answer": trace.answer,
        "error": trace.error_for_caller,
        "cost_usd": trace.cost_usd,
        "seconds": trace.seconds,
    }


def _joined(events: list[Event | None]) -> list[Event]:
    """The same events; pieces of one step that follow one another are one."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, StepDelta) and isinstance(last, StepDelta) and last.index == event.index:
            joined[-1] = StepDelta(event.round, event.index, last.text + event.text)
        elif event is not None:
            joined.append(event)
    return joined


def _event(number: int, kind: str, data: Any) -> bytes:
    return f"id: {number}\nevent: {kind}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


_NO_STORE = {"Cache-Control": "no-store"}


def _own_run(service: Service, caller: Caller, id: str) -> Run | None:
    """The run under way with this id, if the caller may see it."""
    for run in service.runs:
        if run.id == id and _may_see(caller, run):
            return run
    return None


def _parts(request: Request) -> tuple[Service, Caller]:
    return request.app.service, request.scope["caller"]
