"""Mask secrets in what the store is about to write: the last point before the disk.

Traces, responses and the states of runs pass through here. `dirigent.workers.secret` knows the secrets.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dirigent.workers.secret import SHORTEST_REDACTED, may_hold_key, redact


def clean_json(value: Any) -> bytes | None:
    """Returns the value as JSON, or None if it must be masked first.

    Nearly every value is clean, and one search over the JSON shows it. A value that UTF-8 cannot hold (half a
    surrogate pair, as some providers cut their streams) is not clean either: `masked` mends it.
    """
    try:
        encoded = msgspec.json.encode(value)
        return None if may_hold_key(encoded.decode()) else encoded
    except UnicodeEncodeError:
        return None


def masked(value: Any) -> Any:
    """Returns plain data with the secrets in its strings masked.

    Masks string by string, not in the JSON: there, an escaped line break can hide where a key begins.
    """
    if isinstance(value, str):
        return _masked_text(value)
    if isinstance(value, dict):
        return {name: masked(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return value


def _masked_text(text: str) -> str:
    if text.isascii():
        return text if len(text) < SHORTEST_REDACTED else redact(text)
    return redact(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
