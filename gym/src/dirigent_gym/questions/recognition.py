"""Recognise the operation of a subtask: the inverse of `phrasing.py`, with the same templates.

Recognition is exact, so that a policy's plans can be scored and test workers can answer without a model. It ignores
words that a clause brings along from its sentence. It does not read questions of several clauses, nor warm-only skills.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

import msgspec

from dirigent_gym.questions.frames import FANS, SEQUENCES
from dirigent_gym.questions.phrasing import LEADS, Template, is_counted, nested, references, referring, templates
from dirigent_gym.questions.skills import GYM_OPERATIONS, OPERATIONS
from dirigent_gym.questions.solving import Key

CONNECTIVES = (
    *("then", "next", "after that", "now", "finally", "first", "and", "separately", "also"),
    *("take", "start with", "think of", "begin with", "from there", "afterwards", "to start", "consider"),
)
"""Words that a clause may bring along from the sentence that it was taken out of."""


class Reading(msgspec.Struct, frozen=True):
    """The meaning of a subtask: an operation, on written values or on earlier results."""

    operation: str
    key: Key = ()
    """Values and parameter, if the subtask is direct."""
    parameter: str = ""
    refers: bool = False


@lru_cache(maxsize=100_000)
def recognise(text: str) -> tuple[Reading, ...]:
    """Returns every operation that a subtask can mean, more than one only if their answers agree.

    If no template fits in its own words, any reference to an earlier result fits as well: "Shift the result by 4
    places." for "Shift that letter by 4 places." The trained specialists understand them, so exact ones must.
    """
    for patterns in (_patterns, _loose_patterns):
        for core in _cores(text):
            found = {reading: None for pattern in _candidates(core, patterns()) if (reading := _read(pattern, core))}
            if found:
                return tuple(found)
    return ()


class _Pattern(msgspec.Struct, frozen=True):
    operation: str
    regex: re.Pattern[str]
    refers: bool


def _cores(text: str) -> Iterable[str]:
    """The text, then the text with one more leading word removed at a time."""
    core = re.sub(r"\s+", " ", text).strip().strip("\"'").rstrip(".?!;:, ")
    yield core
    while (shorter := _LEADING.sub("", core, count=1)) != core:
        core = shorter
        yield core


def _opening_words() -> Iterable[str]:
    """Words before a clause in the frames of training and development: "Look up", "Having that,"."""
    texts = [text for frame in SEQUENCES if frame.home != "test" for text in (frame.opening, *frame.later)]
    texts += [frame.text for frame in FANS if frame.home != "test"]
    return filter(None, (re.split(r"\{.\}", text, maxsplit=1)[0].rstrip() for text in texts))


_OPENERS = {*CONNECTIVES, *(lead.text for lead in LEADS), *_opening_words()}
_LONGEST_FIRST = sorted(_OPENERS, key=lambda words: (-len(words), words))
_LEADING = re.compile(rf"^(?:{'|'.join(map(re.escape, _LONGEST_FIRST))})[,:]? +", re.IGNORECASE)


_ByWords = dict[tuple[str, ...], tuple[_Pattern, ...]]
"""Patterns by their first words, at most three, before any slot; the key of a pattern that begins with a slot is ()."""
_FILED_WORDS = 3


def _candidates(core: str, by_words: _ByWords) -> Iterable[_Pattern]:
    first = tuple(core.casefold().split(" ", _FILED_WORDS)[:_FILED_WORDS])
    return (pattern for n in range(len(first), -1, -1) for pattern in by_words.get(first[:n], ()))


@cache
def _patterns() -> _ByWords:
    """All templates as patterns, direct and with their own references."""
    found: dict[tuple[str, ...], list[_Pattern]] = {}
    for op in GYM_OPERATIONS:
        for template in templates(op.full_name):
            _file(found, _direct_pattern(template))
            own = "|".join(re.escape(reference) for reference, _ in references(template))
            _file(found, _referring_pattern(template, referring(template, (_K,), _X), own))
    return {words: tuple(patterns) for words, patterns in found.items()}


_NOUN = r"(?: [a-z]+){1,2}"
_ANY_ONE = rf"it|that|this|the result|(?:that|this){_NOUN}"
_ANY_OWNER = rf"its|the result's|(?:that|this){_NOUN}'s"
_ANY_COUNT = "that many|this many|as many"
_ANY_TWO = rf"both|(?:both|the two|these two){_NOUN}"


@cache
def _loose_patterns() -> _ByWords:
    """All templates as patterns with any reference to an earlier result, also in place of a nested noun phrase."""
    found: dict[tuple[str, ...], list[_Pattern]] = {}
    for op in GYM_OPERATIONS:
        for template in templates(op.full_name):
            text = referring(template, (_K,), _X)
            if op.arity == 2:
                _file(found, _referring_pattern(template, text, _ANY_TWO))
                continue
            _file(found, _referring_pattern(template, text, _any_reference(template)))
            if template.nests:
                _file(found, _referring_pattern(template, nested(template, (_K,), [_X]), _ANY_ONE))
    return {words: tuple(patterns) for words, patterns in found.items()}


def _any_reference(template: Template) -> str:
    if "{x's}" in template.text:
        return _ANY_OWNER
    return _ANY_COUNT if is_counted(template) else _ANY_ONE


_K, _X, _Y = "\x00", "\x01", "\x02"
"""Characters that stand for the slots while a template becomes a pattern."""


def _file(by_words: dict[tuple[str, ...], list[_Pattern]], entry: tuple[str, _Pattern]) -> None:
    text, pattern = entry
    before_slot = re.split(f"[{_K}{_X}{_Y}]", text, maxsplit=1)[0]
    words = before_slot.casefold().split(" ")[:-1]  # the last is empty, or part of the word with the slot
    by_words.setdefault(tuple(words[:_FILED_WORDS]), []).append(pattern)


def _direct_pattern(template: Template) -> tuple[str, _Pattern]:
    text = template.text.replace("{x's}", f"{_X}'s").replace(" a {x}", " {a}{x}").replace("{x}", _X)
    text = text.replace("{y}", _Y).replace("{k}", _K)
    source = _source(text).replace(re.escape("{a}"), "an? ").replace(_X, "(?P<x>.+?)").replace(_Y, "(?P<y>.+?)")
    return text, _Pattern(template.operation, re.compile(source, re.IGNORECASE), refers=False)


def _referring_pattern(template: Template, text: str, reference: str) -> tuple[str, _Pattern]:
    source = _source(text).replace(_X, f"(?:{reference})", 1)
    return text, _Pattern(template.operation, re.compile(source, re.IGNORECASE), refers=True)


def _source(text: str) -> str:
    return re.escape(text.rstrip(".?")).replace(_K, "(?P<k>.+?)", 1)


def _read(pattern: _Pattern, core: str) -> Reading | None:
    match = pattern.regex.fullmatch(core)
    if match is None:
        return None
    slots = {name: value.casefold() for name, value in match.groupdict().items()}
    if pattern.refers:
        parameter = _parameters(pattern.operation).get(slots.get("k", ""))
        return None if parameter is None else Reading(pattern.operation, parameter=parameter, refers=True)
    wanted = tuple(slots[name] for name in ("x", "y", "k") if name in slots)
    key = _keys(pattern.operation).get(wanted)
    return None if key is None else Reading(pattern.operation, key=key)


@cache
def _keys(operation: str) -> dict[Key, Key]:
    return {tuple(part.casefold() for part in key): key for key in OPERATIONS[operation].table}


@cache
def _parameters(operation: str) -> dict[str, str]:
    arity = OPERATIONS[operation].arity
    found = {key[arity].casefold(): key[arity] for key in OPERATIONS[operation].table if len(key) > arity}
    return found or {"": ""}
