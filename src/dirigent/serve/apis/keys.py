"""`/v1/keys`, `/v1/audit` and `/v1/policy`: for admins, the same as `dirigent keys` and `dirigent audit`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import select
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.config.server_settings import Guardrails, Override
from dirigent.errors import ConfigError, StoreError
from dirigent.serve.http.body import CLIENT_GONE, decoded, read_body
from dirigent.serve.http.errors import Problem, require_admin
from dirigent.serve.runs.asked import Strict
from dirigent.serve.service import Service
from dirigent.store.audit import AuditRow, verify
from dirigent.store.keys import Caller, KeyRow, NewKey, Period, Role, create_key, list_keys, revoke_key, rotate_key
from dirigent.store.ledger import lefts, usage
from dirigent.store.tables import audit as audit_table
from dirigent.store.tables import now, utc_text

MOST_ROWS = 200
Money = Annotated[float, Meta(ge=0, le=1e9)]


class KeyShown(msgspec.Struct, frozen=True):
    """A key with its bounds and spending, without its text."""

    id: str
    label: str
    role: Role
    last4: str
    status: str
    """active, revoked or expired"""
    created_at: str
    expires_at: str | None
    caller: Caller
    """All bounds that are set."""
    spent_usd: float
    calls: int
    left_usd: dict[Period, float] = {}
    """What is left of each budget; less than 0 if calls cost more than was held for them."""


class KeyList(msgspec.Struct, frozen=True):
    data: tuple[KeyShown, ...]
    object: str = "list"


class KeyRequest(Strict, frozen=True):
    """The body of `POST /v1/keys`."""

    label: Annotated[str, Meta(min_length=1, max_length=200)]
    role: Role = "inference"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    region: str = ""
    budget_day_usd: Money | None = None
    budget_month_usd: Money | None = None
    budget_total_usd: Money | None = None
    user_day_usd: Money | None = None
    tag_day_usd: Money | None = None
    requests_per_minute: Annotated[int, Meta(ge=1)] | None = None
    concurrency: Annotated[int, Meta(ge=1)] | None = None
    retention_days: Annotated[int, Meta(ge=1)] | None = None
    expires_days: Annotated[float, Meta(gt=0, le=36_500)] | None = None


class KeyMade(msgspec.Struct, frozen=True):
    key: str
    """The key itself: shown now, and stored nowhere."""
    id: str
    label: str
    object: str = "dirigent.key"


class AuditList(msgspec.Struct, frozen=True):
    data: tuple[AuditRow, ...]
    """The newest first."""
    whole: bool
    """The chain of hashes is unbroken."""
    head: str
    """`NUMBER:HASH` of the last row that is in order: note it elsewhere."""
    problem: str = ""
    object: str = "list"


class Policy(msgspec.Struct, frozen=True):
    """The operator's rules and guardrails, from the configuration."""

    overrides: tuple[Override, ...]
    guardrails: Guardrails
    object: str = "dirigent.policy"


async def keys(request: Request) -> Response:
    """Every key with its bounds and spending, for admins."""
    require_admin(request)
    store = _service(request).store
    rows = await list_keys(store)
    shown = []
    for row in rows:
        spent = await usage(store, row.caller.key_id)
        left_usd = {one.period: one.usd for one in await lefts(store, row.caller)}
        shown.append(msgspec.structs.replace(_shown(row, spent.cost_usd, spent.calls), left_usd=left_usd))
    return _json(KeyList(tuple(shown)))


async def make_key(request: Request) -> Response:
    """Make a key, for admins. Its text is in the reply and nowhere else."""
    require_admin(request)
    service = _service(request)
    try:
        wanted = decoded(await read_body(request, timeout_s=service.settings.body_timeout_s), _KEY)
    except ClientDisconnect:
        return CLIENT_GONE
    bounds = msgspec.structs.asdict(wanted)
    days = bounds.pop("expires_days")
    expires_at = None if days is None else now() + timedelta(days=days)
    try:
        made = await create_key(service.store, Caller(**bounds), expires_at=expires_at, actor=_actor(request))
    except ConfigError as error:
        raise Problem(400, str(error), code="not_possible") from None
    return _made(made)


async def revoke(request: Request) -> Response:
    """Close a key for good, for admins; its sessions end with it."""
    require_admin(request)
    store = _service(request).store
    try:
        row = await revoke_key(store, _key_id(request), actor=_actor(request))
    except StoreError:
        raise _missing(request) from None
    spent = await usage(store, row.caller.key_id)
    return _json(_shown(row, spent.cost_usd, spent.calls))


async def rotate(request: Request) -> Response:
    """Give a key another text, for admins; the old one opens nothing from now on."""
    require_admin(request)
    try:
        return _made(await rotate_key(_service(request).store, _key_id(request), actor=_actor(request)))
    except StoreError:
        raise _missing(request) from None


async def audit(request: Request) -> Response:
    """The newest rows of the audit log, for admins, and whether its chain is whole; `before` a row: older ones."""
    require_admin(request)
    store = _service(request).store
    before = request.query_params.get("before", "")
    if before and not (before.isascii() and before.isdecimal() and len(before) < 19):
        raise Problem(400, f"before must be a row's number, not {before[:40]!r}", param="before")
    columns = [audit_table.c[name] for name in AuditRow.__struct_fields__]
    query = select(*columns).order_by(audit_table.c.number.desc()).limit(MOST_ROWS)
    if before:
        query = query.where(audit_table.c.number < int(before))
    rows = await store.read(lambda connection: tuple(AuditRow(*row) for row in connection.execute(query)))
    verdict = await verify(store)
    return _json(AuditList(rows, not verdict.problem, str(verdict.head), verdict.problem))


async def policy(request: Request) -> Response:
    """The operator's rules and guardrails, for admins."""
    require_admin(request)
    config = _service(request).runtime.config
    return _json(Policy(tuple(config.override), config.guardrails))


def _shown(row: KeyRow, spent_usd: float, calls: int) -> KeyShown:
    status = "revoked" if row.revoked_at is not None else "active" if row.usable(utc_text(now())) else "expired"
    return KeyShown(
        id=row.caller.key_id,
        label=row.caller.label,
        role=row.caller.role,
        last4=row.last4,
        status=status,
        created_at=row.created_at,
        expires_at=row.expires_at,
        caller=row.caller,
        spent_usd=spent_usd,
        calls=calls,
    )


def _made(made: NewKey) -> Response:
    return _json(KeyMade(made.text, made.row.caller.key_id, made.row.caller.label), {"Cache-Control": "no-store"})


def _key_id(request: Request) -> str:
    """The whole id of a key: here its beginning is not enough."""
    id: str = request.path_params["id"]
    if len(id) != 16:
        raise _missing(request)
    return id


def _missing(request: Request) -> Problem:
    return Problem(
        404, f"no key that can be changed has the id {request.path_params['id'][:40]!r}", code="key_not_found"
    )


_KEY = msgspec.json.Decoder(KeyRequest)


def _service(request: Request) -> Service:
    service: Service = request.app.service
    return service


def _actor(request: Request) -> str:
    caller: Caller = request.scope["caller"]
    return caller.key_id


def _json(value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json", headers=headers)
