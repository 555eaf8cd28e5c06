"""Workers whose replies are checked, and asked for once more if they are wrong.

`Checked` requires the JSON that was asked for, `Answering` requires an answer at all. Only the step that was asked for
JSON is checked for it. A wrong reply is shown to the same worker with the complaint; if the second is wrong too, the
worker has failed, as in any failed step. Nothing is streamed meanwhile: words that may be taken back are not sent.

Schemas come from callers, so references outside a schema are never fetched, patterns are matched in linear time, and
the work of a check is measured before it is done. A schema of forty lines can refer to its own parts so that each
doubles the work of the one before (`"a": {"allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}`). Checking the
shortest text against it takes years, in one call that nothing can end and that blocks all other requests. The second
half of this file walks through a check first, and gives up if that takes too long. It also walks branches that a
validator would skip. The walk must find what the validator finds, so references are `#` and `#/…` within one schema
whose parts have no address of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
import msgspec

from dirigent.errors import WorkerError
from dirigent.messages import Delta, Message, Observe, Reply, Request, Schema, ignore
from dirigent.run.step_prompt import ask_again_messages, mend_json_messages
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.asked import Fields
from dirigent.workers.metering import Watched
from dirigent.workers.worker import Worker, Wrapper

Check = Callable[[str], str]
"""Returns what is wrong with a text, or an empty string."""

SHOWN_CHARS = 500
TOO_MUCH = "it refers to its own parts so often that checking it takes too long"


def checker(schema: Schema | None, *, param: str = Fields().schema) -> Check:
    """A check against the schema, or only for a JSON object if there is none.

    A schema that cannot be used is a 400 that names `param`, the field it came from.
    """
    if schema is None:
        return _object_fault
    if foreign := foreign_reference(schema.schema):
        raise _unusable(param, f"{foreign} is neither # nor #/…, and only those are followed here")
    if is_too_much(schema.schema):
        raise _unusable(param, TOO_MUCH)
    bounds = jsonschema_rs.RegexOptions(size_limit=pattern_bytes(schema.schema))
    try:
        validator = jsonschema_rs.validator_for(schema.schema, offline=True, pattern_options=bounds)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise _unusable(param, str(getattr(error, "message", error)).splitlines()[0][:SHOWN_CHARS]) from None
    return lambda text: _schema_fault(validator, schema, text)


class Checked(Wrapper):
    """A worker whose JSON is checked."""

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
    """A worker that is asked once more if its reply is empty or a refusal.

    A second empty reply fails the step; a second refusal is accepted, since it may be right. So is a refusal that was
    streamed: words that were passed on are not taken back.
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
    """Whether the provider says so, or the first words do. The words are a guess, and English only."""
    return reply.finish == "refused" or (len(reply.text) < 400 and REFUSAL.match(reply.text) is not None)


async def _asked_again(
    worker: Worker, request: Request, first: Reply, more: tuple[Message, ...], *, observe: Observe = ignore
) -> Reply:
    """The second reply, with the cost of both."""
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
    """Whether the schema does not apply: to tool calls, refusals and cut texts, which their finish reason shows."""
    return bool(reply.tool_calls) or reply.finish in ("refused", "length")


def _object_fault(text: str) -> str:
    found, fault = _decoded(text)
    return fault or ("" if isinstance(found, dict) else "it is not a JSON object")


def _unusable(param: str, said: str) -> Problem:
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


# ---- how much work a check is -------------------------------------------------------------------------------

MOST_WORK = 50_000_000
"""Entries compared or characters matched: about half a second."""
LOOK_WORK = 100
"""The work of reaching a part of the schema. It bounds the walk itself."""
PATTERN_BYTES = 64 * 1024 * 1024
"""Memory for all compiled patterns of a schema."""
MOST_PATTERN_BYTES = 10 * 1024 * 1024
"""Memory for one compiled pattern."""


def foreign_reference(schema: dict[str, Any]) -> str:
    """A reference or address that the walk does not follow; empty if there is none."""
    address = "id" if "draft-04" in str(schema.get("$schema", "")) else "$id"
    for part in _parts(schema):
        reference = part.get("$ref", "#")
        if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
            return f"$ref {reference[:80]!r}"
        for name in ("$dynamicRef", "$recursiveRef", address):
            if isinstance(part.get(name), str) and not (name == address and part is schema):
                return f"{name} {part[name][:80]!r}"
    return ""


def pattern_bytes(schema: dict[str, Any]) -> int:
    """Memory for each compiled pattern of this schema."""
    count = 0
    for part in _parts(schema):
        count += "pattern" in part
        by_pattern = part.get("patternProperties")
        count += len(by_pattern) if isinstance(by_pattern, dict) else 0
    return min(MOST_PATTERN_BYTES, PATTERN_BYTES // max(1, count))


def is_too_much(schema: dict[str, Any], value: Any = None) -> bool:
    """Whether checking the value is too much work. Without a value: whether checking any value is."""
    return _exceeds(schema, value, done=set())


def is_too_much_to_explain(schema: dict[str, Any], value: Any) -> bool:
    """Whether finding out what is wrong is too much work: for that, a validator repeats its steps."""
    return _exceeds(schema, value, done=None)


def _exceeds(schema: dict[str, Any], value: Any, *, done: set[tuple[str, int]] | None) -> bool:
    """`done` has the parts that came back to themselves, with their values. A validator remembers those results."""
    work, targets = 0, {"#": schema}
    waiting: list[tuple[Any, Any, frozenset[str]]] = [(schema, value, frozenset({"#"}))]
    while waiting:
        part, at, within = waiting.pop()
        if not isinstance(part, dict):
            continue
        work += _entries(at) + sum(_entries(inner) for inner in part.values() if isinstance(inner, dict | list))
        for reference, inner, held_against in _looks(part, at):
            work += LOOK_WORK + len(within)
            if work > MOST_WORK:
                return True
            if not reference:
                waiting.append((inner, held_against, within))
                continue
            if reference not in targets:
                targets[reference] = _target(schema, reference)
            if reference not in within:
                waiting.append((targets[reference], at, within | {reference}))
            elif done is None or (reference, id(at)) not in done:
                # It came back to itself: its target is walked once more with this value, in full.
                waiting.append((targets[reference], at, frozenset({reference})))
                if done is not None:
                    done.add((reference, id(at)))
    return work > MOST_WORK


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every object within the schema, in any role."""
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _looks(part: dict[str, Any], at: Any) -> Iterator[tuple[str, Any, Any]]:
    """The parts that a part of the schema refers to or contains, each with the value it is checked against."""
    for word, inner in part.items():
        if word == "$ref" and isinstance(inner, str):
            yield inner, None, at
        elif word in ("not", "if", "then", "else"):
            yield "", inner, at
        elif word in ("allOf", "anyOf", "oneOf") and isinstance(inner, list):
            yield from (("", one, at) for one in inner)
        elif word in ("dependentSchemas", "dependencies") and isinstance(inner, dict):
            yield from (("", one, at) for one in inner.values())
        elif isinstance(at, dict):
            yield from (("", one, value) for one, value in _looks_at_members(word, inner, at))
        elif isinstance(at, list):
            yield from (("", one, value) for one, value in _looks_at_items(word, inner, at))


def _looks_at_members(word: str, inner: Any, at: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    if word == "properties" and isinstance(inner, dict):
        yield from ((inner[name], at[name]) for name in inner if name in at)
    elif word == "patternProperties" and isinstance(inner, dict):
        yield from ((sub, value) for sub in inner.values() for value in at.values())
    elif word in ("additionalProperties", "unevaluatedProperties"):
        yield from zip(repeat(inner), at.values())
    elif word == "propertyNames":
        yield from zip(repeat(inner), at)


def _looks_at_items(word: str, inner: Any, at: list[Any]) -> Iterator[tuple[Any, Any]]:
    if word in ("items", "prefixItems") and isinstance(inner, list):
        yield from zip(inner, at, strict=False)
    elif word in ("items", "additionalItems", "unevaluatedItems", "contains"):
        yield from zip(repeat(inner), at)


def _entries(value: Any) -> int:
    return len(value) if isinstance(value, str | list | dict) else 0


def _target(schema: dict[str, Any], reference: str) -> Any:
    """The target of a JSON pointer; None if it has none, which the validator reports."""
    found: Any = schema
    for name in unquote(reference).removeprefix("#/").split("/"):
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and int(name[:9]) < len(found):
            found = found[int(name[:9])]
        else:
            return None
    return found
