"""`/v1/comparisons` and `/v1/sets`: one question to several models, with a vote; and questions put aside in sets.

The runs of a comparison are runs like any other: watched by their events, paid by the key, bounded by its limits. A
vote is kept as feedback on each of them. Sets belong to a key.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.serve.apis.chat.wire import read
from dirigent.serve.apis.runs import launch
from dirigent.serve.http.body import CLIENT_GONE, decoded, read_body
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.asked import Strict
from dirigent.serve.service import Service
from dirigent.store import comparisons as kept
from dirigent.store import sets as kept_sets
from dirigent.store.comparisons import Comparison, Side
from dirigent.store.keys import Caller
from dirigent.store.sets import SetQuestion, SetRow
from dirigent.store.traces import run_keys

MOST_LISTED = 100


class CompareRequest(Strict, frozen=True):
    """The body of `POST /v1/comparisons`."""

    models: Annotated[tuple[str, ...], Meta(min_length=2, max_length=6)]
    """Models of `GET /v1/models`: profiles, planners, workers."""
    request: msgspec.Raw
    """The body of a chat completion, without its model."""


class VoteRequest(Strict, frozen=True):
    """The body of `POST /v1/comparisons/{id}/vote`."""

    better: Annotated[str, Meta(max_length=64)]
    """The id of the better run; `tie`: all are good; `none`: none is."""


class ComparisonList(msgspec.Struct, frozen=True):
    data: tuple[Comparison, ...]
    object: str = "list"


class SetList(msgspec.Struct, frozen=True):
    data: tuple[SetRow, ...]
    object: str = "list"


class SetQuestions(msgspec.Struct, frozen=True):
    name: str
    data: tuple[SetQuestion, ...]
    object: str = "list"


class SetQuestionRequest(Strict, frozen=True):
    """The body of `POST /v1/sets/{name}`."""

    question: Annotated[str, Meta(min_length=1, max_length=200_000)]
    answer: Annotated[str, Meta(max_length=200_000)] = ""
    """The right answer, if it is known."""
    run_id: Annotated[str, Meta(max_length=64)] | None = None


class SetQuestionGone(msgspec.Struct, frozen=True):
    id: str
    object: str = "dirigent.set.question.deleted"


async def compare(request: Request) -> Response:
    """Ask several models the same, side by side. Each side is a run that is watched by its events."""
    began = time.monotonic()
    service, caller = _parts(request)
    try:
        wanted = decoded(await read_body(request, timeout_s=service.settings.body_timeout_s), _COMPARE)
    except ClientDisconnect:
        return CLIENT_GONE
    if len(set(wanted.models)) < len(wanted.models):
        raise Problem(400, "two sides have the same model", param="models")
    for model in wanted.models:
        if service.models.card(model, caller) is None:
            raise service.models.missing(model, caller)
    asked = read(_body(wanted))
    runs = []
    for model in wanted.models:
        one = msgspec.structs.replace(asked, model=model)
        started = await launch(service, one, caller=caller, began=began)
        runs.append(Side(model, started.id))
    question = next((message.text for message in reversed(asked.question) if message.role == "user"), "")
    return _json(await kept.add_comparison(service.store, key_id=caller.key_id, question=question, runs=runs), 202)


async def list_comparisons(request: Request) -> Response:
    """The newest comparisons, of the caller's key or, for an admin, of all keys."""
    service, caller = _parts(request)
    found = await kept.list_comparisons(service.store, key_id=_whose(caller), limit=MOST_LISTED)
    return _json(ComparisonList(tuple(found)))


async def comparison(request: Request) -> Response:
    """One comparison: its sides and the vote."""
    service, caller = _parts(request)
    found = await kept.find_comparison(service.store, request.path_params["id"], key_id=_whose(caller))
    return _json(_there(found, request))


async def vote(request: Request) -> Response:
    """Say which side is better. The vote is kept as feedback on each run."""
    service, caller = _parts(request)
    try:
        wanted = decoded(await read_body(request, timeout_s=service.settings.body_timeout_s), _VOTE)
    except ClientDisconnect:
        return CLIENT_GONE
    id = request.path_params["id"]
    found = _there(await kept.find_comparison(service.store, id, key_id=caller.key_id), request)
    sides = [side.run_id for side in found.runs]
    if wanted.better not in (*sides, "tie", "none"):
        raise Problem(400, f"better must be tie, none or one of {', '.join(sides)}", param="better")
    return _json(_there(await kept.vote(service.store, id, wanted.better, key_id=caller.key_id), request))


async def sets(request: Request) -> Response:
    """The caller's sets of questions."""
    service, caller = _parts(request)
    return _json(SetList(tuple(await kept_sets.list_sets(service.store, key_id=caller.key_id))))


async def set_questions(request: Request) -> Response:
    """The questions of a set; with `format=jsonl` one object a line, `question` and `answer`, for evaluations."""
    service, caller = _parts(request)
    name = _set_name(request)
    found = await kept_sets.questions_of(service.store, key_id=caller.key_id, name=name)
    if request.query_params.get("format") == "jsonl":
        lines = [msgspec.json.encode({"id": q.id, "question": q.question, "answer": q.answer}) + b"\n" for q in found]
        headers = {"Content-Disposition": 'attachment; filename="set.jsonl"'}
        return Response(b"".join(lines), media_type="application/jsonl", headers=headers)
    return _json(SetQuestions(name, tuple(found)))


async def add_to_set(request: Request) -> Response:
    """Adds a question to a set, with its right answer if that is known. The first question creates the set."""
    service, caller = _parts(request)
    try:
        wanted = decoded(await read_body(request, timeout_s=service.settings.body_timeout_s), _QUESTION)
    except ClientDisconnect:
        return CLIENT_GONE
    if wanted.run_id is not None and caller.key_id not in await run_keys(service.store, wanted.run_id):
        raise Problem(404, f"no run of yours has the id {wanted.run_id[:80]!r}", param="run_id", code="trace_not_found")
    added = await kept_sets.add_question(
        service.store,
        key_id=caller.key_id,
        name=_set_name(request),
        question=wanted.question,
        answer=wanted.answer,
        run_id=wanted.run_id,
    )
    return _json(added)


async def drop_from_set(request: Request) -> Response:
    """Take a question out of a set."""
    service, caller = _parts(request)
    id = request.path_params["id"]
    if not await kept_sets.drop_question(service.store, key_id=caller.key_id, name=_set_name(request), id=id):
        raise Problem(404, f"the set has no question with the id {id[:80]!r}", code="question_not_found")
    return _json(SetQuestionGone(id))


def _body(wanted: CompareRequest) -> bytes:
    try:
        body = msgspec.json.decode(wanted.request, type=dict[str, Any])
    except msgspec.ValidationError as error:
        raise Problem(400, str(error), param="request") from None
    if "model" in body:
        raise Problem(400, "the models stand beside the request, not in it", param="request.model")
    return msgspec.json.encode(body | {"model": wanted.models[0]})


def _set_name(request: Request) -> str:
    name: str = request.path_params["name"]
    if len(name) > 100 or not name.isprintable():
        raise Problem(400, "a set's name has at most 100 characters, all of them printable", param="name")
    return name


def _there(found: Comparison | None, request: Request) -> Comparison:
    if found is None:
        id = request.path_params["id"]
        raise Problem(404, f"no comparison has the id {id[:80]!r}", code="comparison_not_found")
    return found


def _whose(caller: Caller) -> str | None:
    return None if caller.role == "admin" else caller.key_id


_COMPARE = msgspec.json.Decoder(CompareRequest)
_VOTE = msgspec.json.Decoder(VoteRequest)
_QUESTION = msgspec.json.Decoder(SetQuestionRequest)


def _parts(request: Request) -> tuple[Service, Caller]:
    return request.app.service, request.scope["caller"]


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
