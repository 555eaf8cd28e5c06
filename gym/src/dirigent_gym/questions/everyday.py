"""Questions in the words in which people ask an assistant: orders in a row, shortened to a word or two.

    Count the letters in the capital of Norway, multiply by 7 and write it in Roman numerals.
    What's the atomic number of oxygen times 4, minus 13?
    How many letters do the capitals of France and Italy have together?

The frames of `frames.py` give every step a clause of its own, and a conductor that knew only those left "and multiply
by 7" in the step before. These wordings are for training alone, and only if a recipe asks for them: no test question is
worded like this. Subtasks are in the plain words of the skills, with their references, because workers know only those:
here a conductor has to write, in a worker's words, the parts that the question leaves out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec

from dirigent.errors import ConfigError
from dirigent_gym.questions.compose import Blueprint, Link, Rules, list_keys, walk
from dirigent_gym.questions.frames import PLAIN_WORDINGS, QuestionText, Writer, nest, refer, write_question
from dirigent_gym.questions.phrasing import direct, lowered, nested
from dirigent_gym.questions.skills import OPERATIONS, Operation
from dirigent_gym.questions.solving import Key
from dirigent_gym.questions.training_frames import Mood

FILE = Path(__file__).with_name("everyday.toml")
STYLE = "everyday"

OPENER_SHARE = 0.08
CLOSER_SHARE = 0.1
TYPED_SHARE = 0.15
"""The share of questions without a capital at their beginning and without the mark at their end."""
TWIN_TRIES = 40
HEAD = 2
"""The most steps in the noun phrase that a question begins with."""
SUFFIXES = 2


class OperationWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The everyday wordings of one operation."""

    start: tuple[str, ...] = ()
    and_: tuple[str, ...] = msgspec.field(default=(), name="and")
    suffix: tuple[str, ...] = ()
    plural: tuple[str, ...] = ()


class Everyday(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    openers: tuple[str, ...]
    closers: tuple[str, ...]
    leads: tuple[str, ...]
    of_two: dict[str, tuple[str, ...]]
    shared: dict[str, tuple[str, ...]]
    operations: dict[str, OperationWords]


@cache
def everyday() -> Everyday:
    """The wordings that ship."""
    return read_everyday(FILE)


def read_everyday(file: Path) -> Everyday:
    """Read such a file. Every operation must be one of the gym's, and every text must have the slots of its kind."""
    try:
        found = msgspec.toml.decode(file.read_bytes(), type=Everyday)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file.name} is no file of everyday words: {error}") from None
    for name, text, wanted in _wanted_slots(found):
        if any(part not in OPERATIONS for part in name.split()):
            raise ConfigError(f"{file.name}: the gym has no operation {name!r}")
        if set(re.findall(r"\{(.*?)\}", text)) != wanted:
            raise ConfigError(f"{file.name}: {text!r} of {name} should have the slots {sorted(wanted)}")
    return found


def _wanted_slots(found: Everyday) -> Iterator[tuple[str, str, set[str]]]:
    for name, texts in found.of_two.items():
        yield from ((name, text, {"pair"}) for text in texts)
    for name, texts in found.shared.items():
        yield from ((name, text, {"both"}) for text in texts)
    for name, said in found.operations.items():
        operation = OPERATIONS.get(name)
        further = {"k"} if operation and any(len(key) > operation.arity for key in operation.table) else set[str]()
        yield from ((name, text, {"x"} | further) for text in said.start)
        yield from ((name, text, further) for text in (*said.and_, *said.suffix))
        yield from ((name, text, {"both"}) for text in said.plural)


def write_everyday_if_possible(blueprint: Blueprint, rules: Rules, writer: Writer) -> tuple[Blueprint, QuestionText]:
    """Word a question in everyday words. A fan becomes a fan with two parts of one kind, if there is one like it.

    The writer's words are used if there are no everyday ones, or if a handwritten question is the same.
    """
    if blueprint.join is not None:
        blueprint = twinned(blueprint, writer.rng, rules) or blueprint
    written = write_everyday(blueprint, writer.rng)
    if written is None or any(text in written.question.casefold() for text in _plain_by_hand()):
        written = write_question(blueprint, writer)
    return blueprint, written


@cache
def _plain_by_hand() -> tuple[str, ...]:
    from dirigent_gym.questions.handwritten import handwritten_plain  # imports the split, which imports this module

    return tuple(task.question.casefold().rstrip(".?") for task in handwritten_plain())


def write_everyday(blueprint: Blueprint, rng: random.Random) -> QuestionText | None:
    """Word a blueprint in everyday words; None if that is impossible."""
    writer = Writer(rng, PLAIN_WORDINGS)
    parts = _chain(blueprint, writer) if blueprint.join is None else _twins(blueprint, blueprint.join, writer)
    if parts is None:
        return None
    question, subtasks = parts
    return QuestionText(_as_typed(question, rng), tuple(subtasks), STYLE, new_wording=False)


def twinned(blueprint: Blueprint, rng: random.Random, rules: Rules) -> Blueprint | None:
    """The same fan with two parts of one kind: its first part, and that part again for another value."""
    first, join = blueprint.branches[0], blueprint.join
    if join is None:
        return None
    keys = list_keys(first[0].operation)
    for key in (rng.choice(keys) for _ in range(TWIN_TRIES)):
        fits = key != first[0].key and key[1:] == first[0].key[1:] and rules.start(OPERATIONS[first[0].operation], key)
        second = walk(key[:1], _steps(first)) if fits else None
        after = second and walk((first[-1].gold, second[-1].gold), _steps((join, *blueprint.tail)))
        if second and after:
            return Blueprint("fan", (first, second), after[0], after[1:])
    return None


def _steps(links: Sequence[Link]) -> list[tuple[Operation, Key]]:
    """The operations and parameters of the links, without the values."""
    operations = [OPERATIONS[link.operation] for link in links]
    return [(operation, link.key[operation.arity :]) for operation, link in zip(operations, links, strict=True)]


QuestionParts = tuple[str, list[str]]


def _chain(blueprint: Blueprint, writer: Writer) -> QuestionParts | None:
    links = (*blueprint.branches[0], *blueprint.tail)
    ways = [
        (head, suffixes)
        for head in range(1, min(HEAD, len(links)) + 1)
        for suffixes in range(min(SUFFIXES, len(links) - head) + 1)
        if all(_words_of(link).suffix for link in links[head : head + suffixes])
        and all(_words_of(link).and_ for link in links[head + suffixes :])
    ]
    if not ways:
        return None
    head, suffixes = writer.rng.choice(ways)
    clause, subtasks = _head(links[:head], writer, goes_on=bool(suffixes))
    question = _with_orders(clause, links[head:], writer, suffixes=suffixes)
    return question, [*subtasks, *(_subtask(link, writer) for link in links[head:])]


def _head(links: Sequence[Link], writer: Writer, *, goes_on: bool) -> QuestionParts:
    """The first steps in one clause with its mark: a lead and a noun phrase, or a question, or an order. An order is
    ruled out if words follow it, because "Count the letters in Oslo times 7." has two meanings."""
    rng = writer.rng
    starts = _words_of(links[0]).start
    if len(links) == 1 and starts and rng.random() < 0.6:
        return _with_lead(_fill(rng.choice(starts), links[0]), writer), [_subtask(links[0], writer, begins=True)]
    if rng.random() < 0.4:
        phrase, subtasks = nest(links, writer)
        return _with_lead(phrase, writer), subtasks
    *inner, last = links
    mood: Mood = "ask" if goes_on else rng.choice(("order", "ask"))
    template = writer.template(last, mood=mood, nests=bool(inner))
    if not inner:
        text = _subtask(last, writer, begins=True, mood=mood)
        return text, [text]
    phrase, subtasks = nest(inner, writer, inside=True)
    return nested(template, last.key, [phrase]), [*subtasks, refer(template, last, writer)]


def _with_lead(phrase: str, writer: Writer) -> str:
    lead = writer.rng.choice((*everyday().leads, ""))
    if not lead:
        phrase = phrase.removeprefix("the ")
        return f"{phrase[0].upper()}{phrase[1:]}?"
    return f"{lead} {phrase}{'?' if lead.startswith('What') else '.'}"


def _with_orders(clause: str, links: Sequence[Link], writer: Writer, *, suffixes: int) -> str:
    """The clause with its suffixes, and the orders that follow it."""
    rng = writer.rng
    text, mark = clause.rstrip(".?"), clause[-1]
    for i, link in enumerate(links[:suffixes]):
        comma = i or (mark == "?" and rng.random() < 0.5)
        text += (", " if comma else " ") + _fill(rng.choice(_words_of(link).suffix), link)
    orders = [_fill(rng.choice(_words_of(link).and_), link) for link in links[suffixes:]]
    if not orders:
        return text + mark
    if mark == "?":
        return f"{text}? {_join_orders([orders[0][0].upper() + orders[0][1:], *orders[1:]], rng)}."
    question = f"{_join_orders([text, *orders], rng)}."
    return f"{question} {rng.choice(everyday().closers)}" if rng.random() < CLOSER_SHARE else question


def _join_orders(parts: Sequence[str], rng: random.Random) -> str:
    if len(parts) == 1:
        return parts[0]
    last = rng.choice((" and ", ", and ", ", then ", " and then "))
    return ", ".join(parts[:-1]) + last + parts[-1]


def _twins(blueprint: Blueprint, join: Link, writer: Writer) -> QuestionParts | None:
    """A fan of two parts of one kind, with one verb or one noun for both."""
    first, second = blueprint.branches
    if [link.operation for link in first] != [link.operation for link in second]:
        return None
    rng, both = writer.rng, f"{first[0].key[0]} and {second[0].key[0]}"
    for link in first[:-1]:
        if not _words_of(link).plural:
            return None
        both = rng.choice(_words_of(link).plural).format(both=both)
    ways = [text.format(both=both) for text in everyday().shared.get(f"{first[-1].operation} {join.operation}", ())]
    for plural in _words_of(first[-1]).plural:
        pair = plural.format(both=both)
        ways += [text.format(pair=pair) for text in everyday().of_two.get(join.operation, ())]
    tail = blueprint.tail
    if not ways or not all(_words_of(link).and_ for link in tail):
        return None
    clause = rng.choice(ways)
    suffixes = int(bool(tail and _words_of(tail[0]).suffix) and clause.endswith("?") and rng.random() < 0.5)
    parts = [subtask for branch in (first, second) for subtask in nest(branch, writer, inside=True)[1]]
    return (
        _with_orders(clause, tail, writer, suffixes=suffixes),
        [*parts, *(_subtask(link, writer) for link in (join, *tail))],
    )


def _subtask(link: Link, writer: Writer, *, begins: bool = False, mood: Mood = "order") -> str:
    """One step in the plain words of its skill: with its values at the beginning of a chain, later with a reference to
    results."""
    template = writer.template(link, mood=mood)
    return direct(template, link.key) if begins else refer(template, link, writer)


def _words_of(link: Link) -> OperationWords:
    return everyday().operations.get(link.operation, _NO_WORDS)


_NO_WORDS = OperationWords()


def _fill(text: str, link: Link) -> str:
    return text.format(x=link.key[0], k=link.key[-1])


def _as_typed(question: str, rng: random.Random) -> str:
    """The question as people type it: some with a greeting, some in haste."""
    if rng.random() < OPENER_SHARE:
        return f"{rng.choice(everyday().openers)} {question}"
    return lowered(question).rstrip(".?") if rng.random() < TYPED_SHARE else question
