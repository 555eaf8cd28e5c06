"""Replies that are looked at before anybody else sees them, and asked for once more where they will not do.

`Checked` holds a reply to the JSON that was asked for, `Answering` to being an answer at all. Only the step that was
asked for JSON is checked for it. A reply that does not follow is shown to the same worker together with the
complaint; if the second is wrong too, the worker has failed, and the step goes where failed steps go. Nothing is
streamed meanwhile: words that may be taken back are not sent.
Schemas come from callers: references outside the schema are never fetched, patterns are matched in linear time, and
how much there is to check is bounded (`schema_work.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import msgspec

from dirigent.errors import WorkerError
from dirigent.messages import Delta, Message, Observe, Reply, Request, Schema, ignore
from dirigent.plan.prompt import ask_again_messages, mend_json_messages
from dirigent.serve.http.errors import Problem
from dirigent.serve.policy.schema_work import foreign_reference, is_too_much, is_too_much_to_explain, pattern_bytes
from dirigent.workers.metering import Watched
from dirigent.workers.worker import Worker, Wrapper

Check = Callable[[str], str]
"""What is wrong with a text; empty: nothing."""

SHOWN_CHARS = 500
TOO_MUCH = "it refers to its own parts so often that checking it takes too long"


def checker(schema: Schema | None) -> Check:
    """A check against the schema, or against being a JSON object at all. A schema that is none is a 400."""
    if schema is None:
        return _object_fault
    if foreign := foreign_reference(schema.schema):
        raise _unusable(f"{foreign} is neither # nor #/…, and only those are followed here")
    if is_too_much(schema.schema):
        raise _unusable(TOO_MUCH)
    bounds = jsonschema_rs.RegexOptions(size_limit=pattern_bytes(schema.schema))
    try:
        validator = jsonschema_rs.validator_for(schema.schema, offline=True, pattern_options=bounds)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise _unusable(str(getattr(error, "message", error)).splitlines()[0][:SHOWN_CHARS]) from None
    return lambda text: _schema_fault(validator, schema, text)


class Checked(Wrapper):
    """A worker around a worker."""

    def __init__(self, worker: Worker, check: Check) -> None:
        super().__init__(worker)
        self._check = check

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        if request.schema is None and not request.json_mode:
            return await self.worker.ask(request, observe=observe)
        reply = await self.worker.ask(request)
        if _may_stay(reply) or not (fault := self._check(reply.text)):
            observe(Delta(reply.text))
            return reply
        mended = await self._mended(request, reply, fault)
        observe(Delta(mended.text))
        return mended

    async def _mended(self, request: Request, reply: Reply, fault: str) -> Reply:
        second = await _asked_again(self.worker, request, reply, mend_json_messages(reply.text, fault))
        if not _may_stay(second) and (fault := self._check(second.text)):
            said = f"{self.info.name} wrote no JSON of the shape that was asked for, twice: {fault}"
            raise WorkerError(said, said=said, worker=self.info.name, fault="reply", attempts=second.attempts)
        return second


class Answering(Wrapper):
    """A worker that is asked once more where it said nothing, or declined.

    A second empty reply fails the step; a second refusal stands, since to decline may be right. Words that were
    already passed on are not taken back: a refusal that was streamed stands too.
    """

    def __init__(self, worker: Worker, *, empty: bool, refusal: bool) -> None:
        super().__init__(worker)
        self._empty = empty
        self._refusal = refusal

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        watched = Watched(observe)
        first = await self.worker.ask(request, observe=watched.observe)
        if first.tool_calls or watched.chars:
            return first
        is_empty = self._empty and not first.text.strip() and first.finish == "stop"
        if not is_empty and not (self._refusal and is_refusal(first)):
            return first
        more = ask_again_messages(first.text, refused=not is_empty)
        second = await _asked_again(self.worker, request, first, more, observe=observe)
        if is_empty and not second.text.strip() and not second.tool_calls:
            said = f"{self.info.name} gave an empty reply, twice"
            raise WorkerError(said, said=said, worker=self.info.name, fault="reply", attempts=second.attempts)
        return second


REFUSAL = re.compile(
    r"\s*(?:I['’]m sorry|I am sorry|Sorry|I apologi[sz]e)?[,.]?\s*(?:but )?"
    r"I (?:can['’]?t|cannot|can not|won['’]?t|am unable to|am not able to|['’]m unable to) "
    r"(?:help|assist|comply|do that|provide|answer|continue|fulfil)",
    re.IGNORECASE,
)


def is_refusal(reply: Reply) -> bool:
    """Said by the provider, or by the first words: a guess, and of English only."""
    return reply.finish == "refused" or (len(reply.text) < 400 and REFUSAL.match(reply.text) is not None)


async def _asked_again(
    worker: Worker, request: Request, first: Reply, more: tuple[Message, ...], *, observe: Observe = ignore
) -> Reply:
    """The second reply, with both on its bill."""
    try:
        again = msgspec.structs.replace(request, messages=(*request.messages, *more))
        second = await worker.ask(again, observe=observe)
    except WorkerError as error:
        error.attempts = (*first.attempts, *error.attempts)
        raise
    return msgspec.structs.replace(
        second,
        usage=first.usage + second.usage,
        cost_usd=first.cost_usd + second.cost_usd,
        attempts=(*first.attempts, *second.attempts),
        seconds=first.seconds + second.seconds,
    )


def _may_stay(reply: Reply) -> bool:
    """Tool calls and refusals are not held to the schema; a cut text is told by its finish reason."""
    return bool(reply.tool_calls) or reply.finish in ("refused", "length")


def _object_fault(text: str) -> str:
    found, fault = _decoded(text)
    return fault or ("" if isinstance(found, dict) else "it is not a JSON object")


def _unusable(said: str) -> Problem:
    param = "response_format.json_schema.schema"
    return Problem(400, f"the schema cannot be used: {said}", code="invalid_schema", param=param)


def _schema_fault(validator: Any, schema: Schema, text: str) -> str:
    found, fault = _decoded(text)
    if fault:
        return fault
    if is_too_much(schema.schema, found):
        return TOO_MUCH
    if validator.is_valid(found):
        return ""
    if is_too_much_to_explain(schema.schema, found):
        return "it does not follow the schema"
    for error in validator.iter_errors(found):
        where = "/".join(str(part) for part in error.instance_path)
        return f"{error.message[:SHOWN_CHARS]} (at /{where})"
    return ""


def _decoded(text: str) -> tuple[Any, str]:
    try:
        return msgspec.json.decode(text), ""
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return None, f"it is not JSON ({error})"
