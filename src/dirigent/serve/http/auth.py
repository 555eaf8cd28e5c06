"""The gate: checks a request's key before any route is looked up. Default deny.

If a key was ever made, every path but `/healthz` and `/readyz` needs one, also paths that do not exist. If not, the
server is for the person at this machine: the Host (or the host of the target) and the Origin of a request must be
loopback, so that no web page can talk to it through a browser (by DNS rebinding or a form). The gate knows nothing of
routes.

A browser that signed in to the console (`apis/session.py`) sends a cookie in place of a key. A request that changes
something must then carry the session's CSRF token as well, so that another page cannot make the browser send it.

An address that sends too many wrong keys gets a 429 (`Tries`). Keys cannot be guessed, but looking guesses up costs
work, and a log full of them hides what matters.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.types import Scope

from dirigent.errors import ConfigError, DirigentError
from dirigent.serve.http.console import is_console
from dirigent.serve.http.errors import Problem, problem_of
from dirigent.serve.service import Service
from dirigent.store.keys import LOCAL_ADMIN, Caller, any_keys, authenticate
from dirigent.store.sessions import csrf_token, session_caller

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
COOKIE = "dirigent_session"
CSRF_HEADER = b"x-csrf-token"
MAX_KEY_CHARS = 512
REMEMBERED = 10_000
"""Most addresses, and most right keys, that are remembered."""


class Gate:
    """Finds the caller of a request, or refuses it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tries = Tries(most=service.settings.failed_tries_per_minute)

    async def caller(self, scope: Scope, headers: dict[bytes, bytes]) -> Caller | None:
        """Return the caller, or None on an open path of a server with keys. Raises a `Problem` for all others.

        The target in the scope is a path afterwards.
        """
        target = _split_target(scope)
        is_open = scope["path"] in OPEN_PATHS or is_console(scope["path"])
        try:
            keyed = self._service.settings.keys_required or await any_keys(self._service.store)
            if not keyed:
                _require_loopback(headers, target)
                return LOCAL_ADMIN
            address = scope["client"][0] if scope.get("client") else ""
            return None if is_open else await self._authenticated(scope, headers, address=address)
        except ConfigError as error:
            raise Problem(503, str(error), code="keys_unavailable", retry_after_s=1) from None
        except DirigentError as error:
            if is_open:
                return None  # a store that fails must not hide that the process lives
            raise problem_of(error) from None

    async def _authenticated(self, scope: Scope, headers: dict[bytes, bytes], *, address: str) -> Caller:
        key = _key(headers)
        text = key or _cookie(headers)
        if text and (wait_s := self._tries.begin(address, text)) > 0:
            said = f"too many wrong keys came from your address; try again in {wait_s:.0f} s"
            raise Problem(429, said, code="failed_tries", retry_after_s=wait_s)
        caller, right = None, None
        try:
            if key:
                caller = await authenticate(self._service.store, key)
            elif text:
                caller = await self._signed_in(scope, headers, text)
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

    async def _signed_in(self, scope: Scope, headers: dict[bytes, bytes], cookie: str) -> Caller | None:
        """The caller whose session this is. The scope gets the session, for the routes that show and end it."""
        found = await session_caller(self._service.store, cookie)
        if found is None:
            return None
        caller, expires_at = found
        sent = headers.get(CSRF_HEADER, b"").decode("latin-1")
        if scope["method"] not in ("GET", "HEAD") and not hmac.compare_digest(
            sent.encode(), csrf_token(cookie).encode()
        ):
            raise Problem(403, "the session's token is missing: send it as X-CSRF-Token", code="csrf")
        scope["session"] = (cookie, expires_at)
        return caller


async def still_open(service: Service, headers: dict[bytes, bytes]) -> bool:
    """Return whether the key or session of a request is still valid, for replies that last."""
    store = service.store
    try:
        if key := _key(headers):
            return await authenticate(store, key) is not None
        if cookie := _cookie(headers):
            return await session_caller(store, cookie) is not None
        return not (service.settings.keys_required or await any_keys(store))
    except DirigentError:
        return True  # a store that fails ends no reply


@functools.lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Return whether a name or address means this machine alone. Names are not looked up: only `localhost` counts."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _split_target(scope: Scope) -> bytes:
    """Reduce a target such as `http://host/path` to its path, and return `http://host`; b"" if it is a path already.

    h11 passes the target on as it was sent. Every server must accept this form (RFC 9112, 3.2.2).
    """
    raw: bytes = scope["raw_path"]
    if raw.startswith(b"/"):
        return b""
    if b"://" not in raw:
        said = f"the target of a request is a path, not {raw.decode('latin-1')[:80]!r}"
        raise Problem(400, said, code="target", headers={"Connection": "close"})
    scheme, _, rest = raw.partition(b"://")
    host, slash, path = rest.partition(b"/")
    scope["raw_path"] = slash + path or b"/"
    scope["path"] = unquote(scope["raw_path"].decode("ascii"))
    return scheme + b"://" + host


def _key(headers: dict[bytes, bytes]) -> str:
    """Return the key from `Authorization: Bearer`, or from `x-api-key` as Anthropic's clients send it; else ""."""
    scheme, _, text = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() != "bearer":
        text = headers.get(b"x-api-key", b"").decode("latin-1")
    text = text.strip()
    return text if len(text) <= MAX_KEY_CHARS else ""


def _cookie(headers: dict[bytes, bytes]) -> str:
    """Return the value of the session's cookie; or an empty text."""
    for pair in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == COOKIE and len(value) <= MAX_KEY_CHARS:
            return value
    return ""


def _require_loopback(headers: dict[bytes, bytes], target: bytes) -> None:
    if target and not _leads_to_loopback(target):
        said = f"without keys this server answers to loopback names only, not {target.decode('latin-1')[:80]!r}"
        raise Problem(400, said, code="host")
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


class Tries:
    """Counts wrong keys by address: `most` may come at once, and as many in every minute.

    A key that was right before stays welcome from a blocked address, because many callers may share one (a proxy, an
    office). The counts are in memory and bounded; with several servers each counts for itself. One event loop uses
    them, so they need no lock.
    """

    def __init__(self, *, most: int = 100, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._wrong: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """For each address the number of tries, and the time of that number."""
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._trying: dict[tuple[str, bytes], int] = {}
        """For each key that is being looked up, the number of requests that wait for it."""

    def begin(self, address: str, key: str) -> float:
        """Take a try and return 0, or return the seconds until the address has one.

        A try counts as wrong until `end` corrects it, so that sending many at once is no way around the bound. The same
        key many times at once is one try until it is known to be wrong: a program that was just given a key begins so.
        """
        mark = _fingerprint(key)
        if mark in self._right:
            return 0.0
        address = _group(address)
        if (address, mark) not in self._trying:
            count = self._count(address)
            if count + 1 > self._most:
                return (count + 1 - self._most) * 60 / self._most
            self._set(address, count + 1)
        self._trying[address, mark] = self._trying.get((address, mark), 0) + 1
        return 0.0

    def end(self, address: str, key: str, *, right: bool | None) -> None:
        """Record the result of a try. With None the look-up failed, and the try does not count."""
        mark, address = _fingerprint(key), _group(address)
        under_way = self._trying.pop((address, mark), 0)
        if under_way > 1:
            self._trying[address, mark] = under_way - 1
        if right is None:
            self._set(address, self._count(address) - (under_way == 1))
        elif not right:
            self._right.pop(mark, None)
            self._set(address, self._count(address) + (under_way > 1))  # `begin` counted one for all of them
        elif mark not in self._right:
            self._right[mark] = None
            _bound(self._right)
            self._set(address, self._count(address) - 1)

    def _count(self, address: str) -> float:
        count, at = self._wrong.get(address, (0.0, 0.0))
        return max(0.0, count - (self._clock() - at) * self._most / 60)

    def _set(self, address: str, count: float) -> None:
        self._wrong.pop(address, None)
        if count > 0:
            self._wrong[address] = (count, self._clock())
            _bound(self._wrong)


def _fingerprint(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def _group(address: str) -> str:
    """Return the address or, for IPv6, its network: one customer holds a whole /64."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address


def _bound(remembered: OrderedDict[Any, Any]) -> None:
    while len(remembered) > REMEMBERED:
        remembered.popitem(last=False)
