"""`/v1/session`: sign in to the console with a key, see the signed-in key, sign out.

Signing in is a request with a key like any other; its reply sets a cookie that the browser sends in place of the key
from then on, so that no script ever holds the key. On a server without keys every caller on this machine is signed in.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dirigent.serve.http.auth import COOKIE
from dirigent.serve.service import Service
from dirigent.store.keys import LOCAL_ADMIN, Caller, Role
from dirigent.store.ledger import left
from dirigent.store.sessions import SESSION_HOURS, begin_session, csrf_token, end_session


class SignedIn(msgspec.Struct, frozen=True):
    """As whom the caller calls."""

    key_id: str
    label: str
    role: Role
    csrf_token: str = ""
    """To be sent as `X-CSRF-Token` with every request that changes something. Empty without a session."""
    expires_at: str | None = None
    """When the session ends, UTC."""
    budget_left_usd: float | None = None
    """The money that the key may still spend, by the budget that runs out first; None without a budget."""
    open: bool = False
    """The server has no keys: no sign-in is needed."""
    object: str = "dirigent.session"


class SignedOut(msgspec.Struct, frozen=True):
    object: str = "dirigent.session.ended"


async def sign_in(request: Request) -> Response:
    """Begin a session of the key that the request carries; the reply sets its cookie, which scripts cannot read."""
    service, caller = _parts(request)
    if caller == LOCAL_ADMIN or "session" in request.scope:
        return _json(await _signed_in(request))
    session = await begin_session(service.store, caller.key_id)
    request.scope["session"] = (session.cookie, session.expires_at)
    response = _json(await _signed_in(request))
    response.set_cookie(COOKIE, session.cookie, max_age=int(SESSION_HOURS * 3600), **_cookie(request))
    return response


async def session(request: Request) -> Response:
    """Returns the caller's key and the money that it may still spend."""
    return _json(await _signed_in(request))


async def sign_out(request: Request) -> Response:
    """End the session. Its cookie opens nothing from now on."""
    service, _ = _parts(request)
    if (found := request.scope.get("session")) is not None:
        await end_session(service.store, found[0])
    response = _json(SignedOut())
    response.delete_cookie(COOKIE, **_cookie(request))
    return response


async def _signed_in(request: Request) -> SignedIn:
    service, caller = _parts(request)
    cookie, expires_at = request.scope.get("session", ("", None))
    budget = await left(service.store, caller)
    return SignedIn(
        caller.key_id,
        caller.label,
        caller.role,
        csrf_token=csrf_token(cookie) if cookie else "",
        expires_at=expires_at,
        budget_left_usd=None if budget is None else budget.usd,
        open=caller == LOCAL_ADMIN,
    )


def _cookie(request: Request) -> dict[str, Any]:
    # Behind a proxy only its header says that the browser came by https. One that lies harms its own cookie alone.
    https = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", ""))
    return {"path": "/", "httponly": True, "samesite": "strict", "secure": https}


def _parts(request: Request) -> tuple[Service, Caller]:
    return request.app.service, request.scope["caller"]


def _json(value: msgspec.Struct) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(msgspec.json.encode(value), media_type="application/json", headers=headers)
