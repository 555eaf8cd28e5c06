"""The field `dirigent` as headers, for clients that cannot add a field to the body.

    X-Dirigent-Max-Cost-USD: 0.05      max_cost_usd
    X-Dirigent-Deadline-S: 20          deadline_s
    X-Dirigent-Max-Steps: 3            max_steps
    X-Dirigent-Max-Rounds: 1           max_rounds
    X-Dirigent-Pool-Allow: a, b        pool.allow   (likewise -Deny)
    X-Dirigent-Pool-Pin: a             pool.pin
    X-Dirigent-Region: eu              region
    X-Dirigent-Dry-Run: true           dry_run
    X-Dirigent-Trace: true             trace
    X-Dirigent-Tag: nightly            tag
    X-Dirigent-Conversation: c1        conversation

If the body has the same field, the body wins. A value that cannot be read is a 400 that names the header.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.asked import Extension, PoolChoice
from dirigent.toml import nearest

PREFIX = "x-dirigent-"

S = TypeVar("S", bound=msgspec.Struct)


def merged(body: Extension, headers: Mapping[str, str]) -> Extension:
    """The extension of the body, with the headers' values for every field that the body leaves open."""
    found: dict[str, Any] = {}
    pool: dict[str, Any] = {}
    for header, value in headers.items():
        header = header.lower()
        if not header.startswith(PREFIX):
            continue
        name = header.removeprefix(PREFIX)
        if name not in FIELDS:
            hint = nearest(_shown(header), [_shown(PREFIX + known) for known in FIELDS])
            raise Problem(400, f"no header is called {_shown(header)[:80]!r}{hint}", param=_shown(header)[:80])
        field, read = FIELDS[name]
        (pool if name.startswith("pool-") else found)[field] = _value(header, value, field, read)
    if pool:
        found["pool"] = _under(body.pool or PoolChoice(), pool)
        body = msgspec.structs.replace(body, pool=None)
    return _under(body, found) if found else body


def _value(header: str, text: str, field: str, read: Callable[[str], Any]) -> Any:
    """The value, within the type and the bounds of the body's field."""
    kind = PoolChoice if header.startswith(PREFIX + "pool-") else Extension
    try:
        return getattr(msgspec.convert({field: read(text.strip())}, kind), field)
    except (ValueError, msgspec.ValidationError) as error:
        said = str(error).partition(" - at ")[0]
        raise Problem(400, f"{_shown(header)}: {text[:60]!r} cannot be read: {said}", param=_shown(header)) from None


def _under(body: S, found: dict[str, Any]) -> S:
    """The struct with these values for fields that are None in it."""
    return msgspec.structs.replace(body, **{name: v for name, v in found.items() if getattr(body, name) is None})


def _finite(text: str) -> float:
    """JSON has no infinity either, so a header cannot say what the body cannot."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("the number must be finite")
    return number


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _yes_or_no(text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in known:
        raise ValueError("say true or false")
    return known[text.lower()]


def _shown(header: str) -> str:
    """The header as the documentation writes it."""
    return "-".join(part.upper() if part in ("usd",) else part.capitalize() for part in header.split("-"))


FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "max-cost-usd": ("max_cost_usd", _finite),
    "deadline-s": ("deadline_s", _finite),
    "max-steps": ("max_steps", int),
    "max-rounds": ("max_rounds", int),
    "pool-allow": ("allow", _names),
    "pool-deny": ("deny", _names),
    "pool-pin": ("pin", str),
    "region": ("region", str),
    "dry-run": ("dry_run", _yes_or_no),
    "trace": ("trace", _yes_or_no),
    "tag": ("tag", str),
    "conversation": ("conversation", str),
}
