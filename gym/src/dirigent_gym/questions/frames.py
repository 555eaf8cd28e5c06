"""Word a blueprint as a question, and word the subtasks of its cheapest plan.

Sequential: one clause a sentence, each referring to the one before. Nested: one noun phrase inside another.
Mixed: a nested opening, then sentences. Subtasks are the question's own clauses, direct or referring, so that a
conductor can find their words in the question. `Writer` holds the randomness and records whether any wording is new to
a model that saw only training questions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import asdict

from dirigent_gym.questions.compose import Blueprint, Link
from dirigent_gym.questions.phrasing import (
    LEADS,
    Home,
    Template,
    direct,
    lowered,
    nested,
    references,
    referring,
    templates,
)
from dirigent_gym.questions.training_frames import ClauseFrame, Mood, training_frames


class QuestionText(msgspec.Struct, frozen=True):
    """A question and the subtasks of its plan, in words."""

    question: str
    subtasks: tuple[str, ...]
    """One for each link: first branch, second branch, join, tail."""
    style: str
    new_wording: bool
    """Whether training never shows one of its wordings."""


class _HasHome(Protocol):
    @property
    def home(self) -> Home: ...


T = TypeVar("T", bound=_HasHome)


class SequenceFrame(ClauseFrame, frozen=True):
    """A frame for clauses one after another, and the splits that use it."""

    home: Home = "everywhere"


SEQUENCES = (
    SequenceFrame("noun", "Take {c}.", "order", ("{C}", "Then {c}")),
    SequenceFrame("order", "{C}", "order", ("Then {c}", "After that, {c}")),
    SequenceFrame("noun", "Start with {c}.", "order", ("{C}", "Next, {c}"), "What do you get?"),
    SequenceFrame("order", "First, {c}", "order", ("Next, {c}", "Now {c}")),
    SequenceFrame("ask", "{C}", "ask", ("{C}", "And {c}")),
    SequenceFrame("noun", "Find {c}.", "ask", ("{C}", "Then {c}")),
    SequenceFrame("noun", "Think of {c}.", "order", ("Now {c}", "{C}"), "Give only the result."),
    SequenceFrame("ask", "{C}", "order", ("{C}", "Then {c}"), "Answer with the last value."),
    SequenceFrame("noun", "Begin with {c}.", "order", ("From there, {c}", "{C}"), home="test"),
    SequenceFrame("order", "To start, {c}", "order", ("Afterwards, {c}",), "Report what comes out.", home="test"),
    SequenceFrame("noun", "Consider {c}.", "ask", ("Now, {c}", "{C}"), home="test"),
    *(SequenceFrame(**asdict(own), home=home) for home, found in training_frames().items() for own in found.sequences),
)


class Fan(msgspec.Struct, frozen=True):
    """A frame for two independent parts; the joining clause follows."""

    text: str
    home: Home = "everywhere"


FANS = (
    Fan("Take {a} and {b}."),
    Fan("Find two things: {a}, and {b}."),
    Fan("On one side there is {a}, on the other {b}."),
    Fan("Work out {a}. Separately, work out {b}."),
    Fan("Get {a}; get {b} too."),
    Fan("Consider {a}, as well as {b}.", home="test"),
    Fan("Here are two parts: {a}; {b}.", home="test"),
    *(Fan(text, home) for home, found in training_frames().items() for text in found.fans),
)


class Decoy(msgspec.Struct, frozen=True):
    text: str
    home: Home = "everywhere"


DECOYS = (
    Decoy("This has nothing to do with {w}."),
    Decoy("Never mind {w}."),
    Decoy("{W} can wait."),
    Decoy("Please keep {w} out of it.", home="test"),
    Decoy("My neighbour is fond of {w}.", home="test"),
    *(Decoy(text, home) for home, found in training_frames().items() for text in found.decoys),
)
DECOY_WORDS = {
    "facts": "capitals and currencies",
    "letters": "counting letters",
    "numbers": "adding and multiplying",
    "lists": "sorting lists",
    "dates": "months and weekdays",
    "convert": "binary and feet",
    "roman": "Roman numerals",
    "cipher": "the alphabet",
    "code": "Python code",
}


class Wordings(msgspec.Struct, frozen=True):
    """The wordings that a question may use."""

    known: frozenset[Home]
    """The homes of wordings that training uses too."""
    new: Home | None = None
    """The home of wordings that training never shows."""
    new_share: float = 0.0
    """The share of draws that prefer a new wording."""
    plain_share: float | None = None
    """The share of draws from frames of every split, among the known ones; None draws from all alike."""


PLAIN_WORDINGS = Wordings(frozenset({"everywhere"}))
# Drawn alike, the few plain wordings would drown among the others, and plain ones are what people use and tests ask.
TRAINING_WORDINGS = Wordings(frozenset({"everywhere", "train"}), plain_share=0.5)
DEV_WORDINGS = Wordings(frozenset({"everywhere", "train"}), new="dev", new_share=0.5, plain_share=0.5)
TEST_WORDINGS = Wordings(frozenset({"everywhere"}), new="test", new_share=0.5)


class Writer:
    """Draws wordings, and records whether any was new."""

    def __init__(self, rng: random.Random, wordings: Wordings) -> None:
        self.rng = rng
        self.wordings = wordings
        self.used_new = False

    def pick(self, options: Sequence[T]) -> T:
        new = [option for option in options if option.home == self.wordings.new]
        known = self._known(options)
        wanted = self.rng.random() < self.wordings.new_share
        chosen = self.rng.choice((new if wanted else known) or new or known)
        self.used_new |= chosen.home == self.wordings.new
        return chosen

    def _known(self, options: Sequence[T]) -> list[T]:
        known = [option for option in options if option.home in self.wordings.known]
        if self.wordings.plain_share is None:
            return known
        plain = self.rng.random() < self.wordings.plain_share
        return [option for option in known if (option.home == "everywhere") == plain] or known

    def template(self, link: Link, *, mood: Mood, nests: bool = False) -> Template:
        options = [t for t in templates(link.operation) if t.mood == mood and (t.nests or not nests)]
        return self.pick(options)

    def reference(self, template: Template, *, moved: bool = True) -> str:
        """Words for an earlier result; only plain ones for a subtask that is taken out of a nested phrase."""
        options = references(template)
        wanted = moved and self.rng.random() < self.wordings.new_share and self.wordings.new == "test"
        matching = [(text, held) for text, held in options if held == wanted] or list(options)
        text, held = self.rng.choice(matching)
        self.used_new |= held
        return text


def write_question(blueprint: Blueprint, writer: Writer) -> QuestionText:
    """Put a blueprint into words."""
    writer.used_new = False
    if blueprint.join is None:
        question, subtasks, style = _write_chain((*blueprint.branches[0], *blueprint.tail), writer)
    else:
        question, subtasks, style = _write_fan(blueprint, blueprint.join, writer)
    return QuestionText(question, tuple(subtasks), style, writer.used_new)


def add_decoy(question: str, words: str, *, writer: Writer) -> str:
    """The question with a sentence about something that it does not need."""
    sentence = writer.pick(DECOYS).text.format(w=words, W=words[0].upper() + words[1:])
    return f"{sentence} {question}" if writer.rng.random() < 0.5 else f"{question} {sentence}"


def _write_chain(links: Sequence[Link], writer: Writer) -> tuple[str, list[str], str]:
    draw = writer.rng.random()
    if len(links) == 1 or draw < 0.4:
        question, subtasks = _nest_sentence(links, writer)
        return question, subtasks, "single" if len(links) == 1 else "nested"
    nested_links = 1 if len(links) == 2 or draw < 0.75 else writer.rng.randint(2, len(links) - 1)
    question, subtasks = _sequence(links, writer, nested_links=nested_links)
    return question, subtasks, "sequential" if nested_links == 1 else "mixed"


def _nest_sentence(links: Sequence[Link], writer: Writer) -> tuple[str, list[str]]:
    """All links in one sentence: a lead and a noun phrase, or the last link's order or question around the rest."""
    if writer.rng.random() < 0.5:
        phrase, subtasks = nest(links, writer)
        return writer.pick(LEADS).around(phrase), subtasks
    *inner, last = links
    mood: Mood = writer.rng.choice(("order", "ask"))
    template = writer.template(last, mood=mood, nests=bool(inner))
    if not inner:
        text = direct(template, last.key)
        return text, [text]
    phrase, subtasks = nest(inner, writer, inside=True)
    return nested(template, last.key, [phrase]), [*subtasks, refer(template, last, writer)]


def nest(links: Sequence[Link], writer: Writer, *, inside: bool = False) -> tuple[str, list[str]]:
    """A noun phrase around a noun phrase, and the subtasks of its parts.

    A nested phrase must not begin with its value: "4 more than 19 times 2" has two meanings.
    """
    template = writer.template(links[0], mood="noun", nests=inside or len(links) > 1)
    phrase = direct(template, links[0].key)
    subtasks = [phrase]
    for link in links[1:]:
        template = writer.template(link, mood="noun", nests=True)
        phrase = nested(template, link.key, [phrase])
        subtasks.append(refer(template, link, writer))
    return phrase, subtasks


def refer(template: Template, link: Link, writer: Writer) -> str:
    return referring(template, link.key, writer.reference(template, moved=False))


def _sequence(links: Sequence[Link], writer: Writer, *, nested_links: int) -> tuple[str, list[str]]:
    frame = writer.pick(SEQUENCES)
    if nested_links == 1 and frame.opening_mood != "noun":
        opening = direct(writer.template(links[0], mood=frame.opening_mood), links[0].key)
        subtasks = [opening]
        sentences = [_placed(frame.opening, opening)]
    else:
        phrase, subtasks = nest(links[:nested_links], writer)
        pattern = frame.opening if frame.opening_mood == "noun" else "Take {c}."
        sentences = [pattern.format(c=phrase)]
    for link in links[nested_links:]:
        clause = _later_clause(link, writer, mood=frame.later_mood)
        subtasks.append(clause)
        sentences.append(_placed(writer.rng.choice(frame.later), clause))
    if frame.closing:
        sentences.append(frame.closing)
    return " ".join(sentences), subtasks


def _later_clause(link: Link, writer: Writer, *, mood: Mood) -> str:
    template = writer.template(link, mood=mood)
    return referring(template, link.key, writer.reference(template))


def _placed(pattern: str, clause: str) -> str:
    return pattern.format(c=lowered(clause), C=clause)


def _write_fan(blueprint: Blueprint, join: Link, writer: Writer) -> tuple[str, list[str], str]:
    phrases, subtasks = [], []
    for branch in blueprint.branches:
        phrase, parts = nest(branch, writer, inside=True)
        phrases.append(phrase)
        subtasks.extend(parts)
    if writer.rng.random() < 0.4:
        return _fan_nested(blueprint, join, phrases, subtasks, writer)
    mood: Mood = writer.rng.choice(("order", "ask"))
    clause = _later_clause(join, writer, mood=mood)
    sentences = [writer.pick(FANS).text.format(a=phrases[0], b=phrases[1]), clause]
    subtasks.append(clause)
    for link in blueprint.tail:
        clause = _later_clause(link, writer, mood="order")
        subtasks.append(clause)
        sentences.append(_placed(writer.rng.choice(("Then {c}", "{C}", "After that, {c}")), clause))
    return " ".join(sentences), subtasks, "sequential"


def _fan_nested(
    blueprint: Blueprint, join: Link, phrases: list[str], subtasks: list[str], writer: Writer
) -> tuple[str, list[str], str]:
    mood: Mood = "noun" if blueprint.tail else writer.rng.choice(("noun", "order", "ask"))
    template = writer.template(join, mood=mood, nests=True)
    text = nested(template, join.key, phrases)
    subtasks.append(refer(template, join, writer))
    for link in blueprint.tail:
        template = writer.template(link, mood="noun", nests=True)
        text = nested(template, link.key, [text])
        subtasks.append(refer(template, link, writer))
    return (writer.pick(LEADS).around(text) if mood == "noun" else text), subtasks, "nested"
