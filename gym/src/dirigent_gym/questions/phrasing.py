"""The wordings of each operation.

A clause has a mood (noun phrase, order, question) and a form. Direct: it holds the value ("the capital of Norway").
Referring: the value comes from an earlier result ("Count its letters."). Nested: another noun phrase takes the value's
place. All three forms are one template with its slots filled differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from dirigent.errors import ConfigError
from dirigent_gym.questions.skills import OPERATIONS, PUZZLE_OPERATIONS, RL_OPERATIONS, WARM_SKILLS, Phrases
from dirigent_gym.questions.solving import Key
from dirigent_gym.questions.training_frames import Mood, training_frames

Home = Literal["everywhere", "train", "dev", "test"]
"""The splits that use a wording: every split, training and development, development alone, or the test alone. The
test's wordings are held out. Training's wordings add variety and leave the test unchanged. Development's wordings are
of the same kind but kept from training, so that development shows answers to new wordings without use of the test.
"""


class Template(msgspec.Struct, frozen=True):
    operation: str
    mood: Mood
    text: str
    home: Home = "everywhere"

    @property
    def nests(self) -> bool:
        """Whether a noun phrase in the value's place leaves the text with one meaning only."""
        return "{x's}" not in self.text and not self.text.startswith("{x}")


class Lead(msgspec.Struct, frozen=True):
    """Words before a noun phrase that make it a sentence."""

    text: str
    mood: Mood
    home: Home = "everywhere"

    def around(self, noun: str) -> str:
        return f"{self.text} {noun}{'?' if self.mood == 'ask' else '.'}"


ASKED: frozenset[Home] = frozenset({"everywhere", "test"})
"""The homes of wordings that a test may use."""

T = TypeVar("T")


def training_homes(wordings: Sequence[T], *, for_dev: int) -> Iterator[tuple[T, Home]]:
    """Wordings that no test uses, each with its home. The last few are kept for development."""
    for i, wording in enumerate(wordings):
        yield wording, "dev" if i >= len(wordings) - for_dev else "train"


LEADS = (
    Lead("Give", "order"),
    Lead("Find", "order"),
    Lead("Work out", "order"),
    Lead("Tell me", "order"),
    Lead("I need", "order"),
    Lead("Please find", "order"),
    Lead("What is", "ask"),
    Lead("Can you tell me", "ask"),
    Lead("Determine", "order", home="test"),
    Lead("I would like to know", "order", home="test"),
    Lead("Do you know", "ask", home="test"),
    *(Lead(text, "order", home) for home, found in training_frames().items() for text in found.leads.orders),
    *(Lead(text, "ask", home) for home, found in training_frames().items() for text in found.leads.asks),
)
TEST_LEADS = tuple(lead for lead in LEADS if lead.home in ASKED)
"""Leads that a test question may begin with. Specialists learn these; more variety is for conductors."""

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
"""A value that counts a unit, which "it" could not replace in English."""
_PLACES = "alphabet position|position|place|index|rank|month number|orbit number|number"
_KINDS = f"binary number|Roman numeral|letter|element|list|month|planet|jumble|{_PLACES}"
_SINGLE = re.compile(rf"(?:(?:the |a )?\b(?P<kind>{_KINDS}) |\b(?:a|the) )?\{{x\}}")
"""The value with its kind, which a reference replaces as a whole: "it" for "the Roman numeral XIV"."""
_PLACED = re.compile(rf"(?:the )?\b({_PLACES}) \{{x\}}")
_PAIR = re.compile(r"(?:the (?:letters|months|Roman numerals|paints) )?\{x\} and \{y\}")


@cache
def templates(operation: str) -> tuple[Template, ...]:
    """All wordings of an operation: those of its skill, then those that no test uses.

    In each mood, the last wording of its skill is held out for the test, except for warm-only skills, which no test
    asks. The last of the other wordings in each mood is kept for development.
    """
    keeps_one = OPERATIONS[operation].skill not in WARM_SKILLS
    own = tuple(
        Template(operation, mood, text, "test" if keeps_one and i == len(texts) - 1 else "everywhere")
        for mood, texts in _by_mood(OPERATIONS[operation].phrases)
        for i, text in enumerate(texts)
    )
    further = training_phrases().get(operation, NO_PHRASES)
    return own + tuple(
        Template(operation, mood, text, home)
        for mood, texts in _by_mood(further)
        for text, home in training_homes(texts, for_dev=1)
    )


@cache
def asked_templates(operation: str) -> tuple[Template, ...]:
    """The wordings that a question of the test may use. Specialists learn these; more variety is for conductors."""
    return tuple(template for template in templates(operation) if template.home in ASKED)


def _by_mood(phrases: Phrases) -> tuple[tuple[Mood, tuple[str, ...]], ...]:
    return ("noun", phrases.nouns), ("order", phrases.orders), ("ask", phrases.asks)


def is_counted(template: Template) -> bool:
    """Returns whether the value counts a unit, so that "that many" can replace it."""
    return _COUNTED.search(template.text) is not None


def direct(template: Template, key: Key) -> str:
    """The clause with its values in the slots."""
    return _fill(template, values=key[: OPERATIONS[template.operation].arity], key=key)


def nested(template: Template, key: Key, phrases: Iterable[str]) -> str:
    """The clause with noun phrases in place of its values; the phrases bring their own articles."""
    text = _COUNTED.sub(r"as many \1 as {x}", template.text)
    if text == template.text:
        text = _PLACED.sub(r"the \1 given by {x}", _PAIR.sub("{x} and {y}", text))
    if text == template.text:
        text = _SINGLE.sub("{x}", text)
    bare = msgspec.structs.replace(template, text=text)
    return _fill(bare, values=tuple(phrases), key=key)


def referring(template: Template, key: Key, reference: str) -> str:
    """The clause with a reference, one of `references(template)`, in place of its values."""
    operation = OPERATIONS[template.operation]
    if operation.arity == 2:
        text = _PAIR.sub(reference, template.text)
    elif "{x's}" in template.text:
        text = template.text.replace("{x's}", reference)
    elif is_counted(template):
        text = template.text.replace("{x}", reference)
    else:
        text = _SINGLE.sub(reference, template.text)
    return _capital(text.replace("{k}", key[-1]), template)


@cache
def references(template: Template) -> tuple[tuple[str, bool], ...]:
    """Words that may replace the value, each with a flag for held-out words."""
    operation = OPERATIONS[template.operation]
    name = TYPE_NAMES.get(operation.takes[0], operation.takes[0])
    if operation.arity == 2:
        pair = [(f"the two {name}s", False), (f"both {name}s", False), (f"these two {name}s", True)]
        if name == "number":
            pair += [("the two results", False), ("both results", False)]
        return tuple(pair)
    if "{x's}" in template.text:
        return (("its", False), (f"that {name}'s", False), (f"this {name}'s", True))
    if is_counted(template):
        return (("that many", False), ("this many", True))
    match = _SINGLE.search(template.text)
    kind = match["kind"] if match else None
    typed = ((f"that {kind or name}", False), (f"this {kind or name}", True))
    if match and f"that {match[0]}" in template.text:
        return ((f"this {kind}", False),) if kind else (("it", False), ("the result", False), typed[1])
    return typed if kind else (*typed, ("it", False), ("that", False), ("the result", False))


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
    """A clause as it reads after "Then": with a small first letter."""
    return clause[0].lower() + clause[1:]


# ---- wordings that only training uses
#
# A model can memorise the few wordings of a skill instead of reading them; it cannot memorise many wordings of another
# structure. They are kept apart from the skills because no test asks them and no specialist learns them, so adding more
# changes neither.

TRAINING_FILE = Path(__file__).with_name("training_phrases.toml")

NO_PHRASES = Phrases((), (), ())


@cache
def training_phrases() -> Mapping[str, Phrases]:
    """The shipped phrases, by the full name of their operation."""
    return read_phrases(TRAINING_FILE)


def read_phrases(file: Path) -> dict[str, Phrases]:
    """Read such a file. Every table must belong to an operation that training asks about."""
    try:
        found = msgspec.toml.decode(file.read_bytes(), type=dict[str, Phrases])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file.name} is not a file of phrases: {error}") from None
    asked = {op.full_name for op in (*RL_OPERATIONS, *PUZZLE_OPERATIONS)}
    if unknown := [name for name in found if name not in asked]:
        raise ConfigError(f"{file.name}: training never asks about {unknown[0]!r}; remove its table")
    return found
