"""Keys that cannot be shown by accident.

A `Secret` reads as `***` wherever it is printed, formatted or serialised. Only `reveal()` returns the value, and only
the HTTP client calls it. `redact` is the second line: errors, logs and traces pass their text through it, so that a key
that a provider repeats does not reach the disk either.

Knows nothing of where keys come from: `build.py` reads a provider's key from the environment variable that the worker's
settings name; a local model's server gets a new key at each start.
"""

from __future__ import annotations

import json
import re
import weakref
from typing import Any, NoReturn

import msgspec

from dirigent.errors import ConfigError

MASK = "***"

SHORTEST_REDACTED = 8
"""Shorter values are placeholders such as `EMPTY` or `ollama`. To mask them would garble ordinary words."""

_live: set[weakref.ref[Secret]] = set()
"""All live keys. A set of references, since to iterate a weak dictionary takes longer than a whole scan."""


class Secret(str):
    """A key. As a string it *is* `***`: it prints, formats and dumps as that (`msgspec` with `enc_hook=str`)."""

    __slots__ = ("__weakref__", "_value")
    _value: str

    def __new__(cls, value: str) -> Secret:
        value = value.strip()  # keys from files end in a newline, which a header must not hold
        if not value or not value.isprintable():
            raise ConfigError("a key is empty or holds control characters: set it to the provider's key alone")
        secret = super().__new__(cls, MASK)
        secret._value = value
        _live.add(weakref.ref(secret, _live.discard))
        return secret

    def reveal(self) -> str:
        """Return the key itself. Call this only where the key is sent to the provider, and do not store the result."""
        return self._value

    def __repr__(self) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:  # str defines its own
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
"""Shapes of keys, of common providers and ours. None matches beyond the end of a JSON string, so JSON stays valid."""


def redact(text: str) -> str:
    """Return the text with `***` for every live secret's value and for everything else that looks like a key."""
    for value in sorted(_redacted_values(), key=len, reverse=True):
        text = text.replace(value, MASK).replace(_dumped(value), MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def live_values() -> frozenset[str]:
    """Return the exact values that `redact` replaces, also as a provider's JSON writes them."""
    values = _redacted_values()
    escaped = [value for value in values if not value.isascii() or '"' in value or "\\" in value]
    return frozenset(values.union(map(_dumped, escaped)))


def may_hold_key(encoded: str) -> bool:
    """Return whether `redact` could change any text in this JSON. True may be wrong; False never is.

    Most traces hold no key, and this check finds that out at a tenth of the cost. It looks for the parts of each
    pattern that JSON never escapes. An escape can hide the characters before them, so the check does not require those.
    """
    for value in _redacted_values():
        if _in_json(value) in encoded or _in_json(_dumped(value)) in encoded:
            return True
    if _GOOGLES.search(encoded) or _PREFIXED_BY_DASH.search(encoded) or _PREFIXED_BY_LINE.search(encoded):
        return True
    if not encoded.isascii():  # some of these letters have more than two cases
        return _NAMED_KEY.search(encoded) is not None
    lowered = encoded.lower()
    return "bearer" in lowered or _API_KEY.search(lowered) is not None


def _redacted_values() -> set[str]:
    """Return the values of all live secrets. Another thread may add or drop one, so this iterates over a copy."""
    if not _live:
        return set()
    values = [secret.reveal() for found in _live.copy() if (secret := found()) is not None]
    return {value for value in values if len(value) >= SHORTEST_REDACTED}


def _in_json(text: str) -> str:
    """Return the text as msgspec writes it in a JSON string."""
    return msgspec.json.encode(text)[1:-1].decode()


def _dumped(value: str) -> str:
    """Return the value as a provider's JSON, quoted in a text, writes it."""
    return json.dumps(value)[1:-1]


_PREFIXED = r"(?<=[kfgipy].)(?=[A-Za-z0-9_-]{16})(?:(?<=[spr]k.)|(?<=hf.)|(?<=dg.)|(?<=xai.)|(?<=ghp.)|(?<=key.))"
_PREFIXED_BY_DASH, _PREFIXED_BY_LINE = re.compile("-" + _PREFIXED), re.compile("_" + _PREFIXED)
"""Two patterns, each with one rare first character: the search jumps to it, and could not jump to a choice of two. The
letter before that character, the last one of a prefix, excludes most field names at once."""
_GOOGLES = re.compile("AIza")
"""A pattern that begins with a rare letter is searched for in a third of the time that `in` takes."""
_API_KEY = re.compile(r"api[-_]key")
_NAMED_KEY = re.compile(r"(?i)bearer|api[-_]key")
