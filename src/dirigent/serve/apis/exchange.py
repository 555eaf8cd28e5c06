"""The one way of a request through any API: body, admission, run, reply.

An API says how its body is read (`Incoming.asked`) and how a run is written in its words (`stream.Writer`). Everything
between the two is here and in `runs/`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.serve.apis.dirigent_field import with_headers
from dirigent.serve.http.body import CLIENT_GONE, admitted, read_body, unless_gone
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.asked import Asked
from dirigent.serve.runs.handle import Run
from dirigent.serve.runs.start import drafted, prepare, resume
from dirigent.serve.runs.stream import EventStream, Writer
from dirigent.serve.service import Service
from dirigent.store.admission import Place
from dirigent.store.keys import Caller


class Incoming(Protocol):
    """A body that was read, in the words of its API."""

    async def asked(self, service: Service, caller: Caller) -> Asked:
        """The request in core types. The caller has a place by now, so this may read the store."""

    async def reply(self, request: Request, run: Run, place: Place) -> Any:
        """Start the run and return its reply."""


class Plain:
    """A request that its body says in full."""

    def __init__(self, asked: Asked, writer: Callable[[Run], Writer]) -> None:
        self._asked = asked
        self._writer = writer

    async def asked(self, service: Service, caller: Caller) -> Asked:
        return self._asked

    async def reply(self, request: Request, run: Run, place: Place) -> Any:
        return await answer(request, run, place, self._writer(run))


async def respond(request: Request, read: Callable[[bytes], Incoming]) -> Any:
    """Read the body, admit the caller, choose the conductor, and reply."""
    began = time.monotonic()
    service: Service = request.app.state.service
    caller: Caller = request.scope["caller"]
    try:
        incoming = read(await read_body(request, timeout_s=service.settings.body_timeout_s))
    except ClientDisconnect:
        return CLIENT_GONE
    place = admitted(service, caller)
    try:
        asked = with_headers(await incoming.asked(service, caller), request.scope)
        run = prepare(service, asked, caller=caller, began=began)
        if asked.dirigent.dry_run and asked.stream:
            raise Problem(400, "a dry run has nothing to stream", param="dirigent.dry_run")
        if not asked.dirigent.dry_run:
            await resume(run)
        return await incoming.reply(request, run, place)
    except BaseException:
        place.leave()
        raise


async def answer(request: Request, run: Run, place: Place, writer: Writer) -> Any:
    """Start a run that its caller waits for, and reply: as a stream, whole, or with the plan of a dry run."""
    if run.asked.stream:
        return EventStream(run, place, writer)
    response = await unless_gone(run.service, _whole(run, writer), request)
    place.leave()
    return CLIENT_GONE if response is None else response


async def _whole(run: Run, writer: Writer) -> Response:
    if run.asked.dirigent.dry_run:
        plan = await drafted(run)
        return json_reply(msgspec.json.encode(plan), {"X-Dirigent-Cost-USD": f"{plan.cost_usd:.9f}"})
    trace = await run.start()
    report = run.report(trace)
    return json_reply(await writer.whole(trace, report), report.headers)


def json_reply(body: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(body, media_type="application/json", headers=headers)
