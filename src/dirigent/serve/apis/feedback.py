"""`POST /v1/feedback`: a caller's judgement of an answer, once for each run of the caller's own key."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.serve.http.body import CLIENT_GONE, decoded, read_body
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.asked import Strict
from dirigent.serve.service import Service
from dirigent.store.feedback import Verdict, add_feedback
from dirigent.store.keys import Caller

THUMBS = {"up": 1.0, "down": 0.0}
COMPLETION = "chatcmpl-"


class FeedbackRequest(Strict, frozen=True):
    """The body of `POST /v1/feedback`: a score or a thumb."""

    trace_id: Annotated[str, Meta(min_length=1, max_length=80)]
    """The id of the run, from the reply's header or its field `dirigent`; a completion's id is accepted as well."""
    score: Annotated[float, Meta(ge=0, le=1)] | None = None
    """From 0 (useless) to 1 (perfect)."""
    thumb: Literal["up", "down"] | None = None
    comment: Annotated[str, Meta(max_length=4000)] = ""


class FeedbackKept(msgspec.Struct, frozen=True):
    trace_id: str
    score: float
    object: Literal["dirigent.feedback"] = "dirigent.feedback"


async def feedback(request: Request) -> Response:
    """Stores a verdict on an answer, once for each run of the caller's key."""
    service: Service = request.app.state.service
    caller: Caller = request.scope["caller"]
    try:
        said = decoded(await read_body(request, timeout_s=service.settings.body_timeout_s), _DECODER)
    except ClientDisconnect:
        return CLIENT_GONE
    if (said.score is None) == (said.thumb is None):
        raise Problem(400, "give a score from 0 to 1, or a thumb up or down: one of the two", param="score")
    score = said.score if said.score is not None else THUMBS[str(said.thumb)]
    verdict = Verdict(said.trace_id.removeprefix(COMPLETION), caller.key_id, score, said.comment)
    match await add_feedback(service.store, verdict):
        case "unknown":
            # Another key's run does not exist.
            raise Problem(
                404, f"no run of yours has the id {said.trace_id!r}", code="trace_not_found", param="trace_id"
            )
        case "again":
            raise Problem(
                409, f"there is feedback on {said.trace_id!r} already", code="feedback_given", param="trace_id"
            )
    kept = FeedbackKept(verdict.run_id, verdict.score)
    return Response(msgspec.json.encode(kept), media_type="application/json")


_DECODER = msgspec.json.Decoder(FeedbackRequest)
