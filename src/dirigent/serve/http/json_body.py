"""Reading: from a body's bytes to a struct of the wire. Every fault is a 400 that names its field.

msgspec checks while it decodes; what it complains of is put here into the words and the places of an error
reply. Knows no route: each names its own struct and says which of its fields are free-form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from dirigent.serve.http.errors import Problem
from dirigent.toml import nearest

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 64

T = TypeVar("T")


def decoded(body: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[T], *, where: str = "") -> T:
    """The struct, or a `Problem`. `where` is the field that holds the body, where it is a part of one."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _refused(str(error), where, getattr(decoder.type, "__struct_fields__", ())) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, f"the body is not JSON: {error}", code="invalid_json", param=where) from None


def check_depth(free: Iterable[tuple[str, Any]]) -> None:
    """Only what is free-form can be deep: the structs end by themselves."""
    for param, value in free:
        if _deeper(value, MAX_DEPTH):
            raise Problem(400, f"{param} is nested deeper than {MAX_DEPTH}", code="too_deep", param=param)


_AT = re.compile(r" - at `\$\.?([^`]*)`\Z")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")


def _refused(said: str, where: str, known: tuple[str, ...]) -> Problem:
    """msgspec's complaint with the field in OpenAI's place for it."""
    at = _AT.search(said)
    path = at[1] if at else ""
    text = said[: at.start()] if at else said
    field = _UNKNOWN.search(text) or _MISSING.search(text)
    param = ".".join(part for part in (where, path, field[1] if field else "") if part).replace(".[", "[")
    if _UNKNOWN.search(text) and not path and field:
        text = f"unknown field {field[1][:60]!r}{nearest(field[1][:60], known)}"
    elif param:
        text = f"{text}: {param}"
    code = "unknown_field" if _UNKNOWN.search(said) else "invalid_value"
    return Problem(400, text, code=code, param=param[:200])


def _deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not inner:
            return False
        level = inner
    return True
