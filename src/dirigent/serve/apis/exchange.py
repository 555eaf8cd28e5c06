"""The one way of a request through any API: body, admission, run, reply.

An API reads its body into an `Asked` and writes a run in its own words (`stream.Writer`). Everything between the two is
here and in `runs/`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.serve.apis.dirigent_field import PREFIX, merged
from dirigent.serve.http.body import CLIENT_GONE, HEADERS, admitted, read_body, unless_gone
from dirigent.serve.http.errors import Problem
from dirigent.serve.policy.admission import Place
from dirigent.serve.runs.asked import Asked
from dirigent.serve.runs.handle import Run
from dirigent.serve.runs.start import drafted, prepare, resume
from dirigent.serve.runs.stream import EventStream, Writer
from dirigent.serve.service import Service
from dirigent.store.keys import Caller

_IS_WISH = re.compile(PREFIX.encode()).match


class Unfinished(Protocol):
    """A body that is a request only together with the store's data."""

    async def asked(self, service: Service, caller: Caller) -> Asked:
        """The whole request. Its caller was admitted before the store is read."""


async def respond(
    request: Request,
    read: Callable[[bytes], Asked | Unfinished],
    writer: Callable[[Run], Writer],
    *,
    begin: Callable[[Run, Place], Awaitable[Any]] | None = None,
) -> Any:
    """Read the body, admit the caller, choose the conductor, run, and reply.

    `begin` starts a background run and returns the reply; it is needed by APIs that have such runs.
    """
    began = time.monotonic()
    service: Service = request.app.service
    caller: Caller = request.scope["caller"]
    try:
        found = read(await read_body(request, timeout_s=service.settings.body_timeout_s))
    except ClientDisconnect:
        return CLIENT_GONE
    place = admitted(service, caller)
    try:
        asked = found if isinstance(found, Asked) else await found.asked(service, caller)
        if any(map(_IS_WISH, request.scope[HEADERS])):
            asked = msgspec.structs.replace(asked, dirigent=merged(asked.dirigent, request.headers))
        run = prepare(service, asked, caller=caller, began=began)
        if not asked.dirigent.dry_run:
            await resume(run)
        elif asked.background:
            said = "dirigent.dry_run does not go with background: true: a dry run is quick"
            raise Problem(400, said, param="dirigent.dry_run")
        elif asked.stream:
            raise Problem(400, "a dry run has nothing to stream", param="dirigent.dry_run")
        if asked.background and begin is not None:
            return await begin(run, place)
        if asked.stream:
            return EventStream(run, place, writer(run))
        response = await unless_gone(service, _whole(run, writer(run)), request)
    except BaseException:
        place.leave()
        raise
    place.leave()
    return CLIENT_GONE if response is None else response


async def _whole(run: Run, writer: Writer) -> Response:
    if run.asked.dirigent.dry_run:
        plan = await drafted(run)
        headers = {"X-Dirigent-Cost-USD": f"{plan.cost_usd:.9f}"}
        return Response(msgspec.json.encode(plan), media_type="application/json", headers=headers)
    trace = await run.wait()
    report = run.report(trace)
    return Response(await writer.whole(trace, report), media_type="application/json", headers=report.headers)
