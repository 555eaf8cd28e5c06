"""End loops: refuse a request that has passed through too many servers of this kind, and make its failures final.

`workers/http.py` puts the number of servers into a header of every call. Both servers retry a request that one sends to
the other; a failure therefore says `x-should-retry: false`, so that tries do not multiply from server to server. The
guard comes after the gate, so that callers without a key learn nothing from it.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dirigent.serve.http.errors import Problem, send_problem
from dirigent.workers.http import HOPS_HEADER, MAX_HOPS, after_hops

_NAME = HOPS_HEADER.lower().encode()


class Hops:
    """ASGI middleware that counts hops."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        said = next((value for name, value in scope.get("headers", ()) if name == _NAME), None)
        if said is None:  # from a client, like nearly all requests
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
        raise Problem(400, f"{HOPS_HEADER} must be a number, not {text[:20]!r}", code="hops", param=HOPS_HEADER)
    if int(text[:9]) >= MAX_HOPS:
        raise Problem(
            400,
            f"this request has passed through {int(text[:9])} servers, and {MAX_HOPS} is the most: "
            "a worker's base_url leads back here; remove that worker",
            code="loop",
            param=HOPS_HEADER,
        )
    return int(text[:9])


def _final(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 500:
            message["headers"] = [*message.get("headers", ()), (b"x-should-retry", b"false")]
        await send(message)

    return sending
