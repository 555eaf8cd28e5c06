"""Schema work: how much it takes to hold a value to a caller's schema, found out before it is done.

A schema of forty lines can refer to parts of itself so that each doubles the work of the one before it
(`"a": {"allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}`). Checking the shortest text against it takes years,
within one call that nothing can end and that keeps everybody else waiting. So the check is first walked through here,
and given up where that takes too long. Branches that a validator would spare itself are walked too.

A walk must find what the validator finds, so references are `#` and `#/…` within one schema without parts that have an
address of their own. Knows nothing of what makes a value right.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any
from urllib.parse import unquote

MOST_WORK = 50_000_000
"""About as many entries compared, or characters matched, as take half a second."""
LOOK_WORK = 100
"""What it takes to come to a part of the schema at all: the walk itself bounds these."""
PATTERN_BYTES = 64 * 1024 * 1024
"""What all patterns of a schema may take together when they are compiled."""
MOST_PATTERN_BYTES = 10 * 1024 * 1024
"""What one may."""


def foreign_reference(schema: dict[str, Any]) -> str:
    """A reference, or an address, that the walk does not follow; empty where there is none."""
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
    """What each pattern of this schema may take when it is compiled."""
    count = 0
    for part in _parts(schema):
        count += "pattern" in part
        by_pattern = part.get("patternProperties")
        count += len(by_pattern) if isinstance(by_pattern, dict) else 0
    return min(MOST_PATTERN_BYTES, PATTERN_BYTES // max(1, count))


def is_too_much(schema: dict[str, Any], value: Any = None) -> bool:
    """Whether finding out if the value is right takes too much; without one, already what any value takes."""
    return _exceeds(schema, value, done=set())


def is_too_much_to_explain(schema: dict[str, Any], value: Any) -> bool:
    """The same of finding out what is wrong, for which a validator does what it has done again and again."""
    return _exceeds(schema, value, done=None)


def _exceeds(schema: dict[str, Any], value: Any, *, done: set[tuple[str, int]] | None) -> bool:
    """`done`: parts that came back to themselves, and with which values. A validator remembers what came of those."""
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
                # It came back to itself. What it refers to is done once more with this value, all of it.
                waiting.append((targets[reference], at, frozenset({reference})))
                if done is not None:
                    done.add((reference, id(at)))
    return work > MOST_WORK


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every object within the schema, whatever it is there."""
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _looks(part: dict[str, Any], at: Any) -> Iterator[tuple[str, Any, Any]]:
    """What a part of the schema refers to, or what stands within it; and what each is held against."""
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
    """What a JSON pointer leads to; None where it leads nowhere, which the validator complains of."""
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
