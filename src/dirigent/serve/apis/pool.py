"""`/v1/pool`: the workers that a caller may use, how they have done lately, and an admin's switch for each."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import Connection, select
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.learn.cards import Share
from dirigent.serve.http.body import CLIENT_GONE, decoded, read_body
from dirigent.serve.http.errors import Problem, require_admin
from dirigent.serve.http.metrics import breaker_state
from dirigent.serve.runs.asked import Strict
from dirigent.serve.service import Service
from dirigent.store.keys import Caller
from dirigent.store.switches import switch_worker as switch
from dirigent.store.tables import attempts, now, utc_text
from dirigent.toml import nearest
from dirigent.workers.worker import Price, WorkerInfo

DAYS = 7
MOST_CALLS = 20_000
"""The newest calls that are looked at."""


class PoolWorker(msgspec.Struct, frozen=True):
    """A worker: its card, and the figures of its calls in the last week."""

    name: str
    about: str
    kind: str
    model: str
    region: str
    price: Price | None
    """USD per million tokens; None: unknown."""
    abilities: tuple[str, ...]
    skills: tuple[str, ...]
    context_tokens: int | None
    breaker: str
    on: bool
    """False: an admin switched it off; no new run uses it."""
    calls: int = 0
    failed: int = 0
    """Calls that ended without having written anything."""
    cost_usd: float = 0.0
    output_tokens: int = 0
    p50_s: float | None = None
    """Half of the calls that wrote something took at most this long."""
    p95_s: float | None = None
    right: Share | None = None
    """How often it was right in calibration, on all graded questions."""
    kinds: tuple[Share, ...] = ()
    """The same by kind of question."""
    calibrated_usd: float | None = None
    """Mean cost of an answer in calibration; None if it was not measured in dollars."""


class PoolList(msgspec.Struct, frozen=True):
    data: tuple[PoolWorker, ...]
    days: int = DAYS
    object: str = "list"


class Switch(Strict, frozen=True):
    """The body of `POST /v1/pool/{name}`."""

    on: bool


async def pool(request: Request) -> Response:
    """The workers that the caller may use, with the figures of the last seven days: its own, an admin's of all keys."""
    service, caller = _parts(request)
    return _json(PoolList(await _workers(service, caller)))


async def switch_worker(request: Request) -> Response:
    """Switch a worker off or on, for admins, at every server over the store. Runs under way are left alone."""
    service, caller = _parts(request)
    require_admin(request)
    try:
        wanted = decoded(await read_body(request, timeout_s=service.settings.body_timeout_s), _SWITCH)
    except ClientDisconnect:
        return CLIENT_GONE
    name = request.path_params["id"]
    names = service.runtime.pool.names
    if name not in names:
        raise Problem(404, f"no worker is called {name[:80]!r}{nearest(name[:80], names)}", code="worker_not_found")
    await switch(service.store, name, on=wanted.on, actor=caller.key_id)
    await service.read_switches()
    return _json(next(worker for worker in await _workers(service, caller) if worker.name == name))


async def _workers(service: Service, caller: Caller) -> tuple[PoolWorker, ...]:
    usable = {name for card in service.models.cards(caller) for name in card.workers}
    key_id = None if caller.role == "admin" else caller.key_id
    since = now() - timedelta(days=DAYS)
    figures = await service.store.read(lambda connection: _figures(connection, key_id, utc_text(since)))
    found = []
    for info in service.runtime.pool.infos:
        if caller.role == "admin" or info.name in usable:
            on = service.models.is_on(info.name)
            state = breaker_state(service.runtime.pool[info.name])
            worker = _worker(info, state, on=on, calls=figures.get(info.name, []))
            if (card := service.runtime.cards.get(info.name)) is not None:
                cost = card.cost if card.unit == "usd" else None
                worker = msgspec.structs.replace(worker, right=card.right, kinds=card.kinds, calibrated_usd=cost)
            found.append(worker)
    return tuple(found)


class _Call(msgspec.Struct, frozen=True):
    seconds: float
    cost_nusd: int
    output_tokens: int


def _figures(connection: Connection, key_id: str | None, since: str) -> dict[str, list[_Call]]:
    columns = ("worker", "reserved_at", "settled_at", "cost_nusd", "output_tokens")
    query = (
        select(*(attempts.c[name] for name in columns))
        .where(attempts.c.state == "settled", attempts.c.reserved_at >= since)
        .order_by(attempts.c.id.desc())
        .limit(MOST_CALLS)
    )
    if key_id is not None:
        query = query.where(attempts.c.key_id == key_id)
    found: dict[str, list[_Call]] = {}
    for worker, began, ended, cost, tokens in connection.execute(query):
        seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
        found.setdefault(worker, []).append(_Call(seconds, cost or 0, tokens or 0))
    return found


def _worker(info: WorkerInfo, breaker: str, *, on: bool, calls: list[_Call]) -> PoolWorker:
    times = sorted(call.seconds for call in calls if call.output_tokens)
    return PoolWorker(
        name=info.name,
        about=info.about,
        kind=info.kind,
        model=info.model,
        region=info.region,
        price=info.price,
        abilities=tuple(sorted(info.abilities)),
        skills=info.skills,
        context_tokens=info.context_tokens,
        breaker=breaker,
        on=on,
        calls=len(calls),
        failed=sum(not call.output_tokens for call in calls),
        cost_usd=sum(call.cost_nusd for call in calls) / 1e9,
        output_tokens=sum(call.output_tokens for call in calls),
        p50_s=_share(times, 0.5),
        p95_s=_share(times, 0.95),
    )


def _share(times: list[float], share: float) -> float | None:
    """The least time within which this share of the calls ended."""
    return times[max(0, math.ceil(share * len(times)) - 1)] if times else None


_SWITCH = msgspec.json.Decoder(Switch)


def _parts(request: Request) -> tuple[Service, Caller]:
    return request.app.service, request.scope["caller"]


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
