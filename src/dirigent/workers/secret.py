"""Keys that cannot be shown by accident.

A `Secret` reads as `***` wherever it is printed, formatted or serialised; only `reveal()` gives the value,
and only the HTTP client calls it. `redact` is the net below: sinks (errors, logs, traces) pass their text
through it, so that a key which a provider echoes back does not reach disk either.

Knows nothing of where keys come from: `build.py` reads a provider's from the environment variable that its worker's
settings name; a local model's server gets one made for it.
"""

from __future__ import annotations

import json
import logging
import re
import weakref
from typing import Any, NoReturn

import msgspec

from dirigent.errors import ConfigError

MASK = "***"

SHORTEST_REDACTED = 8
"""Shorter values are placeholders such as `EMPTY` or `ollama`: masking them would garble ordinary words."""

_live: set[weakref.ref[Secret]] = set()
"""Every key there is. A set of references, since going through a weak dictionary takes longer than a whole scan."""


class Secret(str):
    """A key. As a string it *is* `***`: so it prints, formats and dumps (`msgspec` with `enc_hook=str`)."""

    __slots__ = ("__weakref__", "_value")
    _value: str

    def __new__(cls, value: str) -> Secret:
        value = value.strip()  # keys read from files end in a newline, which no header may carry
        if not value or not value.isprintable():
            raise ConfigError("a key is empty or holds control characters: set it to the provider's key alone")
        secret = super().__new__(cls, MASK)
        secret._value = value
        _live.add(weakref.ref(secret, _live.discard))
        return secret

    def reveal(self) -> str:
        """The key itself. Call it where it leaves for the provider, and keep it nowhere."""
        return self._value

    def __repr__(self) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:  # str brings its own
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a Secret cannot be pickled or copied: pass the same object on")


_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)\b(bearer\s+)[a-z0-9._~+/=-]{12,}"), r"\1" + MASK),
    (
        re.compile(r"(?i)\b((?:x-api-key|x-goog-api-key|api[-_]key)[\"']?\s*[:=]\s*[\"']?)[\w.~+/=-]{12,}"),
        r"\1" + MASK,
    ),
    (re.compile(r"(?<![A-Za-z0-9])(?:sk|pk|rk|xai|gsk|hf|ghp|key|dg)[-_][A-Za-z0-9_-]{16,}"), MASK),
    (re.compile(r"(?<![A-Za-z0-9])AIza[0-9A-Za-z_-]{30,}"), MASK),
)
"""Shapes of common providers' keys and of ours. None can match across a JSON string's end, so JSON stays JSON."""


def redact(text: str) -> str:
    """The text with every live secret's value, and whatever else looks like a key, replaced by `***`."""
    for value in sorted(_redacted_values(), key=len, reverse=True):
        text = text.replace(value, MASK).replace(_dumped(value), MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def live_values() -> frozenset[str]:
    """The values that `redact` looks for exactly, also as a provider's JSON writes them."""
    values = _redacted_values()
    escaped = [value for value in values if not value.isascii() or '"' in value or "\\" in value]
    return frozenset(values.union(map(_dumped, escaped)))


def may_hold_key(encoded: str) -> bool:
    """Whether `redact` could change any text within this JSON. Says so too often rather than once too seldom.

    Most traces hold no key, and this finds that out at a tenth of the price. It looks for the parts of each pattern
    that no escape of JSON can touch; what stands before them an escape can hide, so that is not asked for.
    """
    for value in _redacted_values():
        if _in_json(value) in encoded or _in_json(_dumped(value)) in encoded:
            return True
    if "AIza" in encoded or _PREFIXED_BY_DASH.search(encoded) or _PREFIXED_BY_LINE.search(encoded):
        return True
    if not encoded.isascii():  # in which letters have more than two cases
        return _NAMED_KEY.search(encoded) is not None
    lowered = encoded.lower()
    return "bearer" in lowered or ("api" in lowered and _NAMED_KEY.search(lowered) is not None)


def _redacted_values() -> set[str]:
    """Of all live secrets; a copy, since one may come or go meanwhile in another thread."""
    values = [secret.reveal() for found in _live.copy() if (secret := found()) is not None]
    return {value for value in values if len(value) >= SHORTEST_REDACTED}


def _in_json(text: str) -> str:
    """As msgspec writes it within a string."""
    return msgspec.json.encode(text)[1:-1].decode()


def _dumped(value: str) -> str:
    """As a provider's JSON, quoted in a text, writes it."""
    return json.dumps(value)[1:-1]


_PREFIXED = r"(?<=[kfgipy].)(?=[A-Za-z0-9_-]{16})(?:(?<=[spr]k.)|(?<=hf.)|(?<=dg.)|(?<=xai.)|(?<=ghp.)|(?<=key.))"
_PREFIXED_BY_DASH, _PREFIXED_BY_LINE = re.compile("-" + _PREFIXED), re.compile("_" + _PREFIXED)
"""Each begins with one rare character, to which the search jumps; a choice of two it would look for one by one. The
letter before it, the last of a prefix, rules most names of fields out at once."""
_NAMED_KEY = re.compile(r"(?i)bearer|api[-_]key")


class RedactingFilter(logging.Filter):
    """Put on a log handler: every record is redacted, its arguments and traceback included."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = redact(record.getMessage())
        record.args = None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = redact(record.exc_text)
        return True
