"""The end of loops: a request that has passed through too many servers is refused, and its failures are final.

What a call brings along is in `workers/hops.py`. A request that another server of this kind sent has that server's
retries behind it, and this one's own: a failure is therefore given back with `x-should-retry: false`, so that tries do
not multiply from server to server. Stands behind the gate, so that who may not come in learns nothing.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from dirigent.serve.http.auth import App, Receive, Scope, Send, send_problem
from dirigent.serve.http.errors import Problem
from dirigent.workers.hops import HEADER, MAX_HOPS, after_hops

_NAME = HEADER.lower().encode()


class Hops:
    """An ASGI application before the application."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        said = next((value for name, value in scope.get("headers", ()) if name == _NAME), None)
        if said is None:  # from a client, as nearly all are
            await self._app(scope, receive, send)
            return
        send = _final(send)
        try:
            count = _count(said)
        except Problem as problem:
            await send_problem(problem, send, scope)
            return
        with after_hops(count):
            await self._app(scope, receive, send)


def _count(said: bytes) -> int:
    text = said.decode("latin-1")
    if not text.isascii() or not text.isdecimal():
        raise Problem(400, f"{HEADER} must be a number, not {text[:20]!r}", code="hops", param=HEADER)
    if int(text[:9]) >= MAX_HOPS:
        raise Problem(
            400,
            f"this request has passed through {int(text[:9])} servers, and {MAX_HOPS} is the most: "
            "a worker's base_url leads back here; remove that worker",
            code="loop",
            param=HEADER,
        )
    return int(text[:9])


def _final(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 500:
            message["headers"] = [*message.get("headers", ()), (b"x-should-retry", b"false")]
        await send(message)

    return sending
