"""The gate: who may come in. Default deny, before any route is looked up.

With any key ever made, every path but `/healthz` and `/readyz` needs one, also paths that do not exist. With
none, the server is for the person at this machine: the Host and the Origin of a request must be loopback, so
that no web page can talk to it through a browser (by DNS rebinding or a form). Knows nothing of what routes do.
An address that sends wrong key after wrong key is told 429 (`tries.py`).
"""

from __future__ import annotations

import functools
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote, urlsplit

from dirigent.errors import ConfigError, DirigentError
from dirigent.serve.http.auth_attempts import Tries
from dirigent.serve.http.errors import Problem, problem_of
from dirigent.serve.service import Service
from dirigent.store.keys import LOCAL_ADMIN, Caller, any_keys, authenticate

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
MAX_KEY_CHARS = 512
TARGET_HOST = "dirigent.target_host"
SINGLE_HEADERS = (b"authorization", b"host", b"x-api-key")


class PlainTarget:
    """An ASGI application before the application. A target that is a whole URL becomes its path.

    Its host goes into the scope, so that the gate can compare it with the header `Host`.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "://" in (path := scope.get("path", "")) and not path.startswith("/"):
            scope[TARGET_HOST], slash, rest = path.partition("://")[2].partition("/")
            scope["path"] = slash + rest or "/"
            scope["raw_path"] = quote(scope["path"]).encode()
        await self._app(scope, receive, send)


class Gate:
    """An ASGI application before the application. Puts the `Caller` into the scope."""

    def __init__(self, app: App, service: Service) -> None:
        self._app = app
        self._service = service
        self._tries = Tries(most=service.settings.failed_tries_per_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = self._labelled(scope, send)
        try:
            _require_one_of_each(scope)
            scope["caller"] = await self._caller(scope)
        except Problem as problem:
            await send_problem(problem, send)
            return
        await self._app(scope, receive, send)

    def _labelled(self, scope: Scope, send: Send) -> Send:
        """Counts the reply and adds `x-request-id`, which OpenAI's clients show in their errors and logs.

        `/v1/messages` has set an id of its own, and sends it as Anthropic's clients expect it.
        """
        needs_id = scope["path"].startswith("/v1/") and "request_id" not in scope

        async def labelled(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                # The route's pattern, never the caller's text: labels must not grow.
                route = getattr(scope.get("route"), "path", "none")
                self._service.metrics.count_request(route, message["status"])
                if needs_id:
                    id = b"req_" + secrets.token_hex(12).encode()
                    message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", id)]}
            await send(message)

        return labelled

    async def _caller(self, scope: Scope) -> Caller | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        is_open = scope["path"] in OPEN_PATHS
        try:
            keyed = self._service.settings.keys_required or await any_keys(self._service.store)
            if not keyed:
                _require_loopback(headers)
                return LOCAL_ADMIN
            address = scope["client"][0] if scope.get("client") else ""
            return None if is_open else await self._authenticated(headers, address=address)
        except ConfigError as error:
            raise Problem(503, str(error), code="keys_unavailable", retry_after_s=1) from None
        except DirigentError as error:
            if is_open:
                return None  # a store that fails must not hide that the process lives
            raise problem_of(error) from None

    async def _authenticated(self, headers: dict[bytes, bytes], *, address: str) -> Caller:
        text = _key(headers)
        if text and (wait_s := self._tries.begin(address, text)) > 0:
            said = f"too many wrong keys came from your address; try again in {wait_s:.0f} s"
            raise Problem(429, said, code="failed_tries", retry_after_s=wait_s)
        caller, right = None, None
        try:
            caller = await authenticate(self._service.store, text) if text else None
            right = caller is not None
        finally:
            if text:
                self._tries.end(address, text, right=right)
        if caller is None:
            raise Problem(
                401,
                "a valid key is needed: Authorization: Bearer dg_…  (`dirigent keys create` makes one)",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return caller


@functools.lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether this name or address means this machine alone. Names are not looked up: only `localhost` counts."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


async def send_problem(problem: Problem, send: Send) -> None:
    body = problem.body()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _require_one_of_each(scope: Scope) -> None:
    """Refuses a request with two hosts or two keys: a proxy before this server may have read the other one."""
    names = [name for name, _ in scope["headers"]]
    for name in SINGLE_HEADERS:
        if names.count(name) > 1:
            shown = name.decode().title()
            raise Problem(400, f"the request has {names.count(name)} {shown} headers; send one", param=shown)
    target, host = scope.get(TARGET_HOST), dict(scope["headers"]).get(b"host", b"").decode("latin-1")
    if target is not None and target.lower() != host.lower():
        raise Problem(400, f"the target names the host {target[:80]!r}, and Host is {host[:80]!r}", param="Host")


def _key(headers: dict[bytes, bytes]) -> str:
    """From `Authorization: Bearer`, or from `x-api-key` as Anthropic's clients send it."""
    scheme, _, text = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() != "bearer":
        text = headers.get(b"x-api-key", b"").decode("latin-1")
    text = text.strip()
    return text if len(text) <= MAX_KEY_CHARS else ""


def _require_loopback(headers: dict[bytes, bytes]) -> None:
    host = headers.get(b"host", b"")
    if not _leads_to_loopback(b"//" + host):
        said = f"without keys this server answers to loopback names only, not {host.decode('latin-1')[:80]!r}"
        raise Problem(403, said, code="host")
    origin = headers.get(b"origin", b"")
    if origin and not _leads_to_loopback(origin):
        said = f"without keys this server takes no requests from {origin.decode('latin-1')[:80]!r}"
        raise Problem(403, said, code="origin")


@functools.lru_cache(maxsize=256)
def _leads_to_loopback(url: bytes) -> bool:
    try:
        return is_loopback(urlsplit(url.decode("latin-1")).hostname or "")
    except ValueError:
        return False
