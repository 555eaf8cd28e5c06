"""`POST /v1/feedback`: a caller's judgement of an answer, once for each run of the caller's own key."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.errors import StoreError
from dirigent.learn.traffic import label_score
from dirigent.serve.http.body import CLIENT_GONE, decoded, read_body
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.asked import Strict
from dirigent.serve.service import Service
from dirigent.store.feedback import Verdict, add_feedback
from dirigent.store.keys import Caller
from dirigent.store.traces import run_keys

THUMBS = {"up": 1.0, "down": 0.0}
COMPLETION = "chatcmpl-"


class FeedbackRequest(Strict, frozen=True):
    """The body of `POST /v1/feedback`: a score, a thumb, or the right answer."""

    trace_id: Annotated[str, Meta(min_length=1, max_length=80)]
    """The id of the run, from the reply's header or its field `dirigent`; a completion's id is accepted as well."""
    score: Annotated[float, Meta(ge=0, le=1)] | None = None
    """From 0 (useless) to 1 (perfect)."""
    thumb: Literal["up", "down"] | None = None
    label: Annotated[str, Meta(min_length=1, max_length=4000)] | None = None
    """The right answer: the score is whether the run's answer is the same."""
    comment: Annotated[str, Meta(max_length=4000)] = ""


class FeedbackKept(msgspec.Struct, frozen=True):
    trace_id: str
    score: float
    object: Literal["dirigent.feedback"] = "dirigent.feedback"


async def feedback(request: Request) -> Response:
    """Stores a verdict on an answer, once for each run of the caller's key."""
    service: Service = request.app.service
    caller: Caller = request.scope["caller"]
    try:
        said = decoded(await read_body(request, timeout_s=service.settings.body_timeout_s), _DECODER)
    except ClientDisconnect:
        return CLIENT_GONE
    if sum(given is not None for given in (said.score, said.thumb, said.label)) != 1:
        raise Problem(400, "give a score from 0 to 1, a thumb up or down, or a label: one of the three", param="score")
    run_id = said.trace_id.removeprefix(COMPLETION)
    score = await _score(said, service, run_id, caller)
    verdict = Verdict(run_id, caller.key_id, score, said.comment, label=said.label)
    match await add_feedback(service.store, verdict):
        case "unknown":
            raise _unknown(said)
        case "again":
            raise Problem(
                409, f"there is feedback on {said.trace_id!r} already", code="feedback_given", param="trace_id"
            )
    kept = FeedbackKept(verdict.run_id, verdict.score)
    return Response(msgspec.json.encode(kept), media_type="application/json")


async def _score(said: FeedbackRequest, service: Service, run_id: str, caller: Caller) -> float:
    if said.score is not None:
        return said.score
    if said.thumb is not None:
        return THUMBS[said.thumb]
    if caller.key_id not in await run_keys(service.store, run_id):
        raise _unknown(said)
    try:
        trace = await service.store.get(run_id)
    except StoreError:  # its trace was deleted, or is not written yet
        raise _unknown(said) from None
    return await label_score(trace, str(said.label))


def _unknown(said: FeedbackRequest) -> Problem:
    """Another key's run does not exist."""
    return Problem(404, f"no run of yours has the id {said.trace_id!r}", code="trace_not_found", param="trace_id")


_DECODER = msgspec.json.Decoder(FeedbackRequest)
