"""The table of routes, and the application made from it.

Routing, `/openapi.json` and the test that walks every route all read this table. Every error reply has OpenAI's shape;
a bug is a 500 that tells the caller nothing about it.

`App` takes a request past its bounds (bounds.py) and the gate (auth.py) to its handler, and turns every exception into
a reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from dirigent.errors import DirigentError, StoreError
from dirigent.run.trace import Trace
from dirigent.serve.apis.anthropic.errors import name_errors
from dirigent.serve.apis.anthropic.route import count_tokens, create_message
from dirigent.serve.apis.anthropic.wire import CountRequest, MessageObject, MessagesRequest, TokenCount
from dirigent.serve.apis.chat.route import chat
from dirigent.serve.apis.chat.wire import ChatCompletion, ChatRequest
from dirigent.serve.apis.comparisons import (
    CompareRequest,
    ComparisonList,
    SetList,
    SetQuestionGone,
    SetQuestionRequest,
    SetQuestions,
    VoteRequest,
    add_to_set,
    compare,
    comparison,
    drop_from_set,
    list_comparisons,
    set_questions,
    sets,
    vote,
)
from dirigent.serve.apis.feedback import FeedbackKept, FeedbackRequest, feedback
from dirigent.serve.apis.keys import (
    AuditList,
    KeyList,
    KeyMade,
    KeyRequest,
    KeyShown,
    Policy,
    audit,
    keys,
    make_key,
    policy,
    revoke,
    rotate,
)
from dirigent.serve.apis.learning import Learning, PolicySwitch, learning, switch_policy
from dirigent.serve.apis.pool import PoolList, PoolWorker, Switch, pool, switch_worker
from dirigent.serve.apis.responses.background import KIND, on_finished
from dirigent.serve.apis.responses.route import (
    cancel_response,
    create_response,
    delete_kept_response,
    get_response,
    list_input_items,
)
from dirigent.serve.apis.responses.wire import DeletedResponse, ItemList, ResponseObject, ResponseRequest
from dirigent.serve.apis.runs import RunCancelled, RunStarted, cancel_run, run_events, runs_events, start_run
from dirigent.serve.apis.session import SignedIn, SignedOut, session, sign_in, sign_out
from dirigent.serve.apis.traces import ForkRequest, Replayed, TraceList, fork_trace, replay_trace, trace, traces
from dirigent.serve.apis.usage import UsageReport, usage
from dirigent.serve.http import console
from dirigent.serve.http.auth import Gate
from dirigent.serve.http.body import HEADERS
from dirigent.serve.http.bounds import Exchange, check_header, hops
from dirigent.serve.http.errors import Problem, mistake, problem_of, require_admin, send_problem
from dirigent.serve.http.idempotency import idempotent
from dirigent.serve.http.metrics import breaker_state
from dirigent.serve.http.openapi import Endpoint, openapi
from dirigent.serve.policy.models import ModelCard, ModelList
from dirigent.serve.service import Service
from dirigent.store.comparisons import Comparison
from dirigent.store.keys import Caller
from dirigent.store.sets import SetQuestion
from dirigent.version import __version__
from dirigent.workers.http import after_hops


class Health(msgspec.Struct, frozen=True):
    status: str
    version: str = __version__


class Readiness(msgspec.Struct, frozen=True):
    ready: bool
    workers: dict[str, str]
    """The state of each worker's breaker: closed (in use), open (resting after failures), half-open (on trial)."""


def build_app(service: Service) -> ASGIApp:
    """The whole server as an ASGI application."""
    service.on_finished[KIND] = on_finished
    console.files()  # compressed before the first request
    return App(service)


class App:
    """Takes each request from its header to its reply."""

    def __init__(self, service: Service) -> None:
        self.service = service
        """For the handlers, as `request.app.service`."""
        self._gate = Gate(service)
        routes = [Route(e.path, _Handled(e.handler), methods=[e.method]) for e in ENDPOINTS]
        # A path that is not in the table is a 404.
        self._router = Router([*routes, *console.ROUTES], redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        headers: dict[bytes, bytes] = dict(scope["headers"])
        scope[HEADERS] = headers
        exchange = Exchange(self.service, scope, headers, receive, send)
        name_errors(scope)
        try:
            check_header(scope, headers, max_header_bytes=self.service.settings.max_header_bytes)
            scope["caller"] = await self._gate.caller(scope, headers)
            passed = hops(headers)
            with after_hops(passed) if passed else nullcontext():
                await self._router(scope, exchange.receive, exchange.send)
        except Exception as error:
            problem, begun = _problem(error, scope), exchange.begun
            if not begun:
                await send_problem(problem or mistake(), exchange.send, scope)
            if begun or problem is None:
                raise  # uvicorn logs it, and closes the connection if the reply has begun


class _Handled:
    """A handler as Starlette's router calls it: exceptions pass through to `App`, which replies to all of them."""

    def __init__(self, handler: Callable[[Request], Awaitable[Any]]) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._handler(Request(scope, receive, send))
        await response(scope, receive, send)


def _problem(error: Exception, scope: Scope) -> Problem | None:
    """The reply to an expected failure; None for a bug."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, DirigentError):
        return problem_of(error)
    if isinstance(error, HTTPException):  # of the router
        said = {404: f"there is no {scope['path'][:80]!r} here", 405: f"{scope['method']} is not allowed here"}
        return Problem(error.status_code, said.get(error.status_code, error.detail), headers=dict(error.headers or {}))
    return None


async def healthz(request: Request) -> Response:
    """The process lives."""
    return _json(Health("ok"))


async def readyz(request: Request) -> Response:
    """Whether to send requests here: the store answers, a worker is not resting, and the server is not stopping."""
    service = _service(request)
    states = {name: breaker_state(worker) for name, worker in service.runtime.pool.items()}
    try:
        async with asyncio.timeout(5):
            await service.store.list(limit=1)
        ready = not service.stopping and any(state != "open" for state in states.values())
    except (StoreError, TimeoutError):
        ready = False
    # The names of the workers are for callers with a key.
    shown = states if request.scope["caller"] is not None else {}
    return _json(Readiness(ready, shown), status=200 if ready else 503)


async def metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    require_admin(request)
    return Response(_service(request).metrics.page(), media_type="text/plain; version=0.0.4")


async def models(request: Request) -> Response:
    """Every model that the caller may use."""
    return _json(ModelList(_service(request).models.cards(_caller(request))))


async def model(request: Request) -> Response:
    """One model."""
    id = request.path_params["id"]
    card = _service(request).models.card(id, _caller(request))
    if card is None:
        raise _service(request).models.missing(id, _caller(request))
    return _json(card)


async def describe(request: Request) -> Response:
    """This description."""
    return Response(_DESCRIPTION(), media_type="application/json")


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", "/v1/chat/completions", idempotent(chat), takes=ChatRequest, gives=ChatCompletion),
    Endpoint("POST", "/v1/feedback", feedback, takes=FeedbackRequest, gives=FeedbackKept),
    Endpoint("GET", "/v1/usage", usage, gives=UsageReport),
    Endpoint("POST", "/v1/responses", idempotent(create_response), takes=ResponseRequest, gives=ResponseObject),
    Endpoint("GET", "/v1/responses/{id}", get_response, gives=ResponseObject),
    Endpoint("DELETE", "/v1/responses/{id}", delete_kept_response, gives=DeletedResponse),
    Endpoint("POST", "/v1/responses/{id}/cancel", cancel_response, gives=ResponseObject),
    Endpoint("GET", "/v1/responses/{id}/input_items", list_input_items, gives=ItemList),
    Endpoint("POST", "/v1/messages", idempotent(create_message), takes=MessagesRequest, gives=MessageObject),
    Endpoint("POST", "/v1/messages/count_tokens", count_tokens, takes=CountRequest, gives=TokenCount),
    Endpoint("GET", "/v1/models", models, gives=ModelList),
    Endpoint("GET", "/v1/models/{id:path}", model, gives=ModelCard),
    Endpoint("GET", "/v1/traces", traces, gives=TraceList),
    Endpoint("GET", "/v1/traces/{id}", trace, gives=Trace),
    Endpoint("POST", "/v1/traces/{id}/replay", replay_trace, gives=Replayed),
    Endpoint("POST", "/v1/traces/{id}/fork", fork_trace, takes=ForkRequest, gives=RunStarted, status=202),
    Endpoint("POST", "/v1/runs", start_run, takes=ChatRequest, gives=RunStarted, status=202),
    Endpoint("GET", "/v1/runs/events", runs_events),
    Endpoint("GET", "/v1/runs/{id}/events", run_events),
    Endpoint("POST", "/v1/runs/{id}/cancel", cancel_run, gives=RunCancelled),
    Endpoint("GET", "/v1/pool", pool, gives=PoolList),
    Endpoint("POST", "/v1/pool/{id:path}", switch_worker, takes=Switch, gives=PoolWorker),
    Endpoint("POST", "/v1/comparisons", compare, takes=CompareRequest, gives=Comparison, status=202),
    Endpoint("GET", "/v1/comparisons", list_comparisons, gives=ComparisonList),
    Endpoint("GET", "/v1/comparisons/{id}", comparison, gives=Comparison),
    Endpoint("POST", "/v1/comparisons/{id}/vote", vote, takes=VoteRequest, gives=Comparison),
    Endpoint("GET", "/v1/sets", sets, gives=SetList),
    Endpoint("GET", "/v1/sets/{name}", set_questions, gives=SetQuestions),
    Endpoint("POST", "/v1/sets/{name}", add_to_set, takes=SetQuestionRequest, gives=SetQuestion),
    Endpoint("DELETE", "/v1/sets/{name}/{id}", drop_from_set, gives=SetQuestionGone),
    Endpoint("GET", "/v1/learning", learning, gives=Learning),
    Endpoint("POST", "/v1/learning/{id}", switch_policy, takes=PolicySwitch, gives=Learning),
    Endpoint("GET", "/v1/keys", keys, gives=KeyList),
    Endpoint("POST", "/v1/keys", make_key, takes=KeyRequest, gives=KeyMade),
    Endpoint("POST", "/v1/keys/{id}/revoke", revoke, gives=KeyShown),
    Endpoint("POST", "/v1/keys/{id}/rotate", rotate, gives=KeyMade),
    Endpoint("GET", "/v1/audit", audit, gives=AuditList),
    Endpoint("GET", "/v1/policy", policy, gives=Policy),
    Endpoint("POST", "/v1/session", sign_in, gives=SignedIn),
    Endpoint("GET", "/v1/session", session, gives=SignedIn),
    Endpoint("DELETE", "/v1/session", sign_out, gives=SignedOut),
    Endpoint("GET", "/healthz", healthz, gives=Health, open=True),
    Endpoint("GET", "/readyz", readyz, gives=Readiness, open=True),
    Endpoint("GET", "/metrics", metrics),
    Endpoint("GET", "/openapi.json", describe),
)


def _described() -> Callable[[], bytes]:
    made: list[bytes] = []

    def description() -> bytes:
        if not made:
            made.append(msgspec.json.encode(openapi(ENDPOINTS)))
        return made[0]

    return description


_DESCRIPTION = _described()


def _service(request: Request) -> Service:
    service: Service = request.app.service
    return service


def _caller(request: Request) -> Caller:
    caller: Caller = request.scope["caller"]
    return caller


def _json(value: Any, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
