"""The many ways to say one operation, and how to recognise them again.

A clause has a mood (noun phrase, order, question) and a form. Direct: the value stands in it ("the capital of Norway").
Referring: the value comes from an earlier result ("Count its letters."). Nested: another noun phrase stands in the
value's place. All three are one template with its slots filled differently.

`recognise` is the inverse, by the same templates: exact, so that what a policy wrote can be scored and test
workers can answer without a model. It knows nothing of questions made of several clauses, nor of warm-only skills.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Literal

import msgspec

from dirigent.tasks.gym.operation import Key, Phrases
from dirigent.tasks.gym.skills import GYM_OPERATIONS, OPERATIONS, WARM_SKILLS
from dirigent.tasks.gym.training_phrases import NONE, training_phrases

Mood = Literal["noun", "order", "ask"]


class Template(msgspec.Struct, frozen=True):
    operation: str
    mood: Mood
    text: str
    held_out: bool
    training: bool = False
    """Met in training only, and never asked in a test."""

    @property
    def nests(self) -> bool:
        """Whether a noun phrase can stand in the value's place and still be read one way only."""
        return "{x's}" not in self.text and not self.text.startswith("{x}")


class Lead(msgspec.Struct, frozen=True):
    """Words before a noun phrase that make a sentence of it."""

    text: str
    mood: Mood
    held_out: bool = False
    training: bool = False
    """Met in training only, and never asked in a test."""

    def around(self, noun: str) -> str:
        return f"{self.text} {noun}{'?' if self.mood == 'ask' else '.'}"


TRAINING_LEADS: dict[Mood, tuple[str, ...]] = {
    "order": (
        *("Compute", "Figure out", "Look for", "Show me", "Return", "State", "Calculate", "I am looking for", "Get me"),
        *("Let me hear", "Write down", "Send me", "We need", "Kindly give", "Just tell me", "Quickly give", "Provide"),
        *("The question is", "Our task is to find", "Help me find", "Answer with"),
    ),
    "ask": (
        "What might be",
        "Could you find",
        "May I ask for",
        "Will you work out",
        "What do you get for",
    ),
}

LEADS = (
    Lead("Give", "order"),
    Lead("Find", "order"),
    Lead("Work out", "order"),
    Lead("Tell me", "order"),
    Lead("I need", "order"),
    Lead("Please find", "order"),
    Lead("What is", "ask"),
    Lead("Can you tell me", "ask"),
    Lead("Determine", "order", held_out=True),
    Lead("I would like to know", "order", held_out=True),
    Lead("Do you know", "ask", held_out=True),
    *(Lead(text, mood, training=True) for mood, texts in TRAINING_LEADS.items() for text in texts),
)
TEST_LEADS = tuple(lead for lead in LEADS if not lead.training)
"""What a question of the test may begin with. Specialists learn these: more variety is for conductors."""

CONNECTIVES = (
    *("then", "next", "after that", "now", "finally", "first", "and", "separately", "also"),
    *("take", "start with", "think of", "begin with", "from there", "afterwards", "to start", "consider"),
)
"""Words a clause may carry over from the sentence it was taken out of."""

TYPE_NAMES = {
    "capital": "city",
    "binary": "binary number",
    "roman": "Roman numeral",
    "jumble": "jumble",
    "square": "number",
}

_UNITS = (
    "hours|weeks|feet|days|sides"
    "|pegs|rungs|barrels|coins|turns|rows|sacks|laps|stops|miles|jars|panes|beads|knots|steps"
)
_COUNTED = re.compile(rf"\{{x\}} ({_UNITS})\b")
"""Where the value counts a unit, and "it" would be no English."""
_PLACES = "alphabet position|position|place|index|rank|month number|orbit number|number"
_KINDS = f"binary number|Roman numeral|letter|element|list|month|planet|jumble|{_PLACES}"
_SINGLE = re.compile(rf"(?:(?:the |a )?\b(?P<kind>{_KINDS}) |\b(?:a|the) )?\{{x\}}")
"""The value with the word for what it is, which a reference replaces as a whole: "the Roman numeral XIV", "it"."""
_PLACED = re.compile(rf"(?:the )?\b({_PLACES}) \{{x\}}")
_PAIR = re.compile(r"(?:the (?:letters|months|Roman numerals|paints) )?\{x\} and \{y\}")


@cache
def templates(operation: str) -> tuple[Template, ...]:
    """Every way to say an operation: those of its skill, then those that only training uses.

    The last of its skill's in each mood is held out, but for warm-only ones: no test asks them.
    """
    keeps_one = OPERATIONS[operation].skill not in WARM_SKILLS
    own = tuple(
        Template(operation, mood, text, held_out=keeps_one and i == len(texts) - 1)
        for mood, texts in _by_mood(OPERATIONS[operation].phrases)
        for i, text in enumerate(texts)
    )
    further = training_phrases().get(operation, NONE)
    return own + tuple(
        Template(operation, mood, text, held_out=False, training=True)
        for mood, texts in _by_mood(further)
        for text in texts
    )


@cache
def asked_templates(operation: str) -> tuple[Template, ...]:
    """Those a question of the test may use. Specialists learn these: more variety is for conductors."""
    return tuple(template for template in templates(operation) if not template.training)


def _by_mood(phrases: Phrases) -> tuple[tuple[Mood, tuple[str, ...]], ...]:
    return ("noun", phrases.nouns), ("order", phrases.orders), ("ask", phrases.asks)


def direct(template: Template, key: Key) -> str:
    """The clause with its values in it."""
    return _fill(template, values=key[: OPERATIONS[template.operation].arity], key=key)


def nested(template: Template, key: Key, phrases: Iterable[str]) -> str:
    """The clause with noun phrases where its values go; they bring their own articles."""
    text = _COUNTED.sub(r"as many \1 as {x}", template.text)
    if text == template.text:
        text = _PLACED.sub(r"the \1 given by {x}", _PAIR.sub("{x} and {y}", text))
    if text == template.text:
        text = _SINGLE.sub("{x}", text)
    bare = msgspec.structs.replace(template, text=text)
    return _fill(bare, values=tuple(phrases), key=key)


def referring(template: Template, key: Key, reference: str) -> str:
    """The clause with a reference, one of `references(template)`, where its values go."""
    operation = OPERATIONS[template.operation]
    if operation.arity == 2:
        text = _PAIR.sub(reference, template.text)
    elif "{x's}" in template.text:
        text = template.text.replace("{x's}", reference)
    elif _COUNTED.search(template.text):
        text = template.text.replace("{x}", reference)
    else:
        text = _SINGLE.sub(reference, template.text)
    return _capital(text.replace("{k}", key[-1]), template)


@cache
def references(template: Template) -> tuple[tuple[str, bool], ...]:
    """What may stand for the value, each with whether it is held out."""
    operation = OPERATIONS[template.operation]
    name = TYPE_NAMES.get(operation.takes[0], operation.takes[0])
    if operation.arity == 2:
        pair = [(f"the two {name}s", False), (f"both {name}s", False), (f"these two {name}s", True)]
        if name == "number":
            pair += [("the two results", False), ("both results", False)]
        return tuple(pair)
    if "{x's}" in template.text:
        return (("its", False), (f"that {name}'s", False), (f"this {name}'s", True))
    if _COUNTED.search(template.text):
        return (("that many", False), ("this many", True))
    match = _SINGLE.search(template.text)
    kind = match["kind"] if match else None
    typed = ((f"that {kind or name}", False), (f"this {kind or name}", True))
    if match and f"that {match[0]}" in template.text:
        return ((f"this {kind}", False),) if kind else (("it", False), ("the result", False), typed[1])
    return typed if kind else (*typed, ("it", False), ("that", False), ("the result", False))


class Reading(msgspec.Struct, frozen=True):
    """What a subtask asks: an operation, on written values or on earlier results."""

    operation: str
    key: Key = ()
    """Values and parameter, where the subtask is direct."""
    parameter: str = ""
    refers: bool = False


@lru_cache(maxsize=100_000)
def recognise(text: str) -> tuple[Reading, ...]:
    """Every operation a subtask can be read as; more than one only where their answers agree.

    Where no template's own words fit, others that point at an earlier result do as well: "Shift the result by 4
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
    """The text as it is, then with one more leading word taken off at a time."""
    core = re.sub(r"\s+", " ", text).strip().strip("\"'").rstrip(".?!;:, ")
    yield core
    while (shorter := _LEADING.sub("", core, count=1)) != core:
        core = shorter
        yield core


_OPENERS = sorted((*CONNECTIVES, *(lead.text for lead in LEADS)), key=len, reverse=True)
_LEADING = re.compile(rf"^(?:{'|'.join(_OPENERS)})\b[,:]? +", re.IGNORECASE)


_ByWords = dict[tuple[str, ...], tuple[_Pattern, ...]]
"""Patterns by their first words, at most three, before any slot; those that begin with a slot stand under none."""
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
    """All templates with anything that may point at an earlier result, also where a noun phrase would stand."""
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
    return _ANY_COUNT if _COUNTED.search(template.text) else _ANY_ONE


_K, _X, _Y = "\x00", "\x01", "\x02"
"""Stand for the slots while a template becomes a pattern."""


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


def _fill(template: Template, *, values: tuple[str, ...], key: Key) -> str:
    text = template.text.replace("{x's}", "{x}'s")
    if values[0][0].lower() in "aeiou":
        text = text.replace(" a {x}", " an {x}")
    text = text.replace("{x}", values[0]).replace("{k}", key[-1])
    if "{y}" in text:
        text = text.replace("{y}", values[1])
    return _capital(text, template)


def _capital(text: str, template: Template) -> str:
    return text if template.mood == "noun" else text[0].upper() + text[1:]


def lowered(clause: str) -> str:
    """A clause as it reads after "Then": its first word small."""
    return clause[0].lower() + clause[1:]
