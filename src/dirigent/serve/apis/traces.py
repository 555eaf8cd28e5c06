"""`/v1/traces`: runs that have ended: found, read, and carried on from one of their steps.

A key sees its own runs; an admin sees all of them.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.errors import ConfigError, DirigentError, StoreError
from dirigent.fork import StepChange, fork_conductor, fork_of, fork_state
from dirigent.messages import Request as Options
from dirigent.replay import replay, same_outcome
from dirigent.run.trace import Trace
from dirigent.serve.apis.runs import launch
from dirigent.serve.http.body import CLIENT_GONE, admitted, decoded, read_body
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.asked import NOTHING_MORE, Asked, Extension, Strict
from dirigent.serve.runs.handle import Run
from dirigent.serve.runs.start import prepare
from dirigent.serve.service import Service
from dirigent.store.keys import Caller
from dirigent.store.traces import TraceFilter, TraceRow, run_keys
from dirigent.toml import nearest

MAX_LISTED = 200
STATUSES = ("done", "failed", "cancelled", "waiting")
FEEDBACK = ("up", "down", "none")
PARAMETERS = (
    "limit",
    "status",
    "profile",
    "since",
    "until",
    "search",
    "key",
    "worker",
    "user",
    "tag",
    "conversation",
    "least_usd",
    "least_s",
    "feedback",
    "before",
)


class TraceList(msgspec.Struct, frozen=True):
    data: list[TraceRow]
    object: str = "list"


class ForkRequest(Strict, frozen=True):
    """The body of `POST /v1/traces/{id}/fork`. A field that is left out does not change."""

    step: Annotated[int, Meta(ge=0, le=31)]
    """The step that is asked anew: of the steps that gave the answer, counted from 0."""
    worker: str | None = None
    subtask: Annotated[str, Meta(min_length=1)] | None = None
    access: tuple[Annotated[int, Meta(ge=0)], ...] | None = None
    """The earlier steps that it reads."""
    model: str | None = None
    """Whose pool and limits apply; default: those of the run, if the caller may use them."""
    dirigent: Extension | None = None
    """Limits of the fork, as for any run."""


class Replayed(msgspec.Struct, frozen=True):
    """The reply of `POST /v1/traces/{id}/replay`."""

    same_answer: bool
    trace: Trace
    """The run as it was carried out again; it is not stored."""


async def traces(request: Request) -> Response:
    """The newest runs, of the caller's key or, for an admin, of all keys; every parameter narrows the list."""
    service, caller = _parts(request)
    query = dict(request.query_params)
    if unknown := sorted(query.keys() - set(PARAMETERS)):
        hint = nearest(unknown[0][:60], PARAMETERS)
        raise Problem(400, f"unknown parameter {unknown[0][:60]!r}{hint}", param=unknown[0][:60])
    filter = TraceFilter(
        status=_one_of(query, "status", STATUSES),
        profile=query.get("profile"),
        since=_moment(query, "since"),
        search=query.get("search", ""),
        until=_moment(query, "until"),
        key_id=query.get("key") if caller.role == "admin" else caller.key_id,
        worker=query.get("worker"),
        end_user=query.get("user"),
        tag=query.get("tag"),
        conversation=query.get("conversation"),
        least_usd=_amount(query, "least_usd"),
        least_s=_amount(query, "least_s"),
        feedback=_one_of(query, "feedback", FEEDBACK),
        before=query.get("before", ""),
    )
    if caller.role != "admin" and query.get("key") not in (None, caller.key_id):
        raise Problem(403, "another key's runs need a key with the role admin", code="role", param="key")
    rows = await service.store.find(filter, limit=_number(query.get("limit", "20")))
    return _json(TraceList(rows))


async def trace(request: Request) -> Response:
    """The trace of one run. Another key's run is a 404."""
    return _json(await _own_trace(request))


async def fork_trace(request: Request) -> Response:
    """Carry a finished run on from one of its steps; steps that do not read it keep their results, unpaid."""
    began = time.monotonic()
    service, caller = _parts(request)
    try:
        wanted = decoded(await read_body(request, timeout_s=service.settings.body_timeout_s), _FORK)
    except ClientDisconnect:
        return CLIENT_GONE
    old = await _own_trace(request)
    place = admitted(service, caller)
    try:
        run, asked = _forked(service, caller, old, wanted, began=began)
    except BaseException:
        place.leave()
        raise
    started = await launch(service, asked, caller=caller, began=began, place=place, run=run)
    return Response(msgspec.json.encode(started), 202, media_type="application/json")


async def replay_trace(request: Request) -> Response:
    """Carry a finished run out again on its recorded replies. Nothing is asked or paid; the answer must be the same."""
    old = await _own_trace(request)
    try:
        new = await replay(old)
    except ConfigError as error:
        raise Problem(400, str(error), code="not_possible") from None
    return _json(Replayed(same_outcome(new, old), new))


def _forked(service: Service, caller: Caller, old: Trace, wanted: ForkRequest, *, began: float) -> tuple[Run, Asked]:
    extension = wanted.dirigent or NOTHING_MORE
    if extension.plan is not None:
        raise Problem(400, "a fork has the plan of its run; change one step of it", param="dirigent.plan")
    model = wanted.model or _model_of(service, caller, old)
    asked = Asked(model=model, question=old.question, options=Options(()), dirigent=extension)
    run = prepare(service, asked, caller=caller, began=began, run_id=os.urandom(8).hex())
    change = StepChange(wanted.step, wanted.worker, wanted.subtask, wanted.access)
    try:
        fork = fork_of(old, change)
        run.conductor = fork_conductor(run.conductor, fork)
    except DirigentError as error:
        raise Problem(400, str(error), code="fork", param="step") from None
    run.state = fork_state(run.conductor, old, fork, run_id=run.id)
    return run, asked


def _model_of(service: Service, caller: Caller, old: Trace) -> str:
    """The model whose pool a fork uses. A run of one worker by name is forked to any worker of the default profile."""
    known = [card.id for card in service.models.cards(caller)]
    if old.profile in known and not old.profile.startswith("worker/"):
        return old.profile
    return "dirigent-ultra"


async def _own_trace(request: Request) -> Trace:
    service, caller = _parts(request)
    id = request.path_params["id"]
    missing = Problem(404, f"no trace has the id {id[:80]!r}", code="trace_not_found")
    if caller.role != "admin" and caller.key_id not in await run_keys(service.store, id):
        raise missing
    try:
        found = await service.store.get(id)
    except StoreError:
        raise missing from None
    if found.id != id and caller.role != "admin":
        raise missing
    return found


_FORK = msgspec.json.Decoder(ForkRequest)


def _parts(request: Request) -> tuple[Service, Caller]:
    return request.app.service, request.scope["caller"]


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= MAX_LISTED:
        raise Problem(400, f"limit must be 1 to {MAX_LISTED}, not {text[:20]!r}", param="limit")
    return int(text[:9])


def _amount(query: dict[str, str], name: str) -> float | None:
    text = query.get(name)
    try:
        amount = None if text is None else float(text)
    except ValueError:
        amount = -1.0
    if amount is not None and not 0 <= amount < 1e9:
        raise Problem(400, f"{name} must be a number of 0 or more, not {text!r:.40}", param=name)
    return amount


def _one_of(query: dict[str, str], name: str, known: tuple[str, ...]) -> Any:
    text = query.get(name)
    if text is not None and text not in known:
        raise Problem(400, f"{name} must be one of {', '.join(known)}, not {text[:20]!r}", param=name)
    return text


def _moment(query: dict[str, str], name: str) -> datetime | None:
    text = query.get(name)
    try:
        return None if text is None else _in_utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise Problem(
            400, f"{name} must be a time such as 2026-01-31T12:00:00Z, not {text!r:.40}", param=name
        ) from None


def _in_utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC) if moment.tzinfo is not None else moment
