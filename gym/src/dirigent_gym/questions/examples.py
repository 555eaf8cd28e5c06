"""Training examples of a specialist: subtasks, the results it may read, and the bare answer.

The examples cover all tables of the specialist, in every mood and in every wording that the test may use, including
held-out ones: the split is for the conductor, not for the specialists. One example in ten is outside the skill and is
answered "unknown". Some examples show extra results that do not fit, because a plan may let a step read more than it
needs. A specialist of small numbers gets mostly small ones, which it must master, and enough large ones to learn that
it fails there.
"""

from __future__ import annotations

import random
from functools import cache

import msgspec

from dirigent_gym.questions.compose import Link
from dirigent_gym.questions.oracle import Result, answer, distractors
from dirigent_gym.questions.phrasing import (
    TEST_LEADS,
    asked_templates,
    direct,
    lowered,
    references,
    referring,
)
from dirigent_gym.questions.skills import GYM_OPERATIONS, OPERATIONS, Operation, fits
from dirigent_gym.questions.solving import Key
from dirigent_gym.questions.specialists import UNKNOWN, Specialist, beyond, operations_of

OFF_SKILL_SHARE = 0.1
REFERRING_SHARE = 0.5
EMPTY_REFERENCE_SHARE = 0.04
"""The share of references without a result to read; the answer is "unknown"."""
EXTRA_SHARE = 0.25
SMALL_SHARE = 0.75
"""The share of examples without a number above the limit, for a specialist of small numbers."""


class Example(msgspec.Struct, frozen=True):
    subtask: str
    results: tuple[Result, ...]
    answer: str
    operation: str
    """The operation's name; empty if the subtask is outside the skill."""
    key: Key = ()
    """The operation's input."""


def examples(specialist: Specialist, n: int, *, seed: int) -> list[Example]:
    """`n` examples; every table of the specialist is used up once before a key repeats."""
    rng = random.Random(f"{specialist.name} {seed}")
    operations = [OPERATIONS[name] for name in operations_of(specialist)]
    weights = [len(op.table) ** 0.5 for op in operations]
    decks: dict[Deck, list[Key]] = {}
    found = []
    for i in range(n):
        if rng.random() < OFF_SKILL_SHARE:
            found.append(_off_skill(rng, specialist))
            continue
        op = rng.choices(operations, weights)[0]
        key = _deal(rng, specialist, op, decks)
        make = candidates_example if specialist.role == "checker" else _own_example
        found.append(make(rng, specialist, op, key, f"{seed} {i}"))
    return found


Deck = tuple[str, bool]
"""An operation, and whether the deck holds only keys within the specialist's limit."""


def _deal(rng: random.Random, specialist: Specialist, op: Operation, decks: dict[Deck, list[Key]]) -> Key:
    small = specialist.small_only is not None and rng.random() < SMALL_SHARE
    deck = (op.full_name, small)
    if not decks.get(deck):
        keys = [key for key in op.table if not (small and beyond(specialist, key))]
        decks[deck] = rng.sample(keys, len(keys))
    return decks[deck].pop()


def _own_example(rng: random.Random, specialist: Specialist, op: Operation, key: Key, seed: str) -> Example:
    subtask, results = ask(rng, op, key)
    if results and rng.random() < EMPTY_REFERENCE_SHARE / REFERRING_SHARE:
        results = ()
    if rng.random() < EXTRA_SHARE:
        results = _with_extra(rng, op, results)
    return Example(subtask, results, answer(specialist, subtask, results, seed=seed), op.full_name, key)


def candidates_example(rng: random.Random, specialist: Specialist, op: Operation, key: Key, seed: str) -> Example:
    """An example with candidates as the guesser would give them; without any, the checker must not solve."""
    subtask = wording(rng, op, key)
    count = rng.choice((0, 1, 2, 2, 3, 3, 3))
    wrong = distractors(op.full_name, key)
    replies = [op.table[key] if rng.random() < 0.6 else rng.choice(wrong) for _ in range(count)]
    results = tuple((subtask, reply) for reply in replies)
    return Example(subtask, results, answer(specialist, subtask, results), op.full_name, key)


def _off_skill(rng: random.Random, specialist: Specialist) -> Example:
    own = set(operations_of(specialist))
    op = rng.choice([op for op in GYM_OPERATIONS if op.full_name not in own])
    subtask, results = ask(rng, op, rng.choice(list(op.table)))
    return Example(subtask, results, UNKNOWN, "")


def ask(rng: random.Random, op: Operation, key: Key) -> tuple[str, tuple[Result, ...]]:
    """A subtask for a key, direct, or referring to results that supply its values."""
    results = [_produced(rng, op.takes[i], key[i]) for i in range(op.arity)]
    if rng.random() >= REFERRING_SHARE or None in results:
        return wording(rng, op, key), ()
    return wording(rng, op, key, refers=True), tuple(result for result in results if result)


def wording(rng: random.Random, op: Operation, key: Key, *, refers: bool = False) -> str:
    """Returns a wording of the operation, with words that a clause may carry over from its sentence."""
    template = rng.choice(asked_templates(op.full_name))
    text = referring(template, key, rng.choice(references(template))[0]) if refers else direct(template, key)
    bare_noun = template.mood == "noun" and rng.random() < 0.5
    if template.mood == "noun" and not bare_noun:
        text = rng.choice(TEST_LEADS).around(text)
    draw = rng.random()
    if draw < 0.1:
        return f"{rng.choice(('Then', 'Next,', 'After that,', 'Now', 'Finally,', 'And'))} {lowered(text)}"
    if draw < 0.2 and bare_noun:
        return f"{rng.choice(('Take', 'Start with', 'Think of'))} {lowered(text)}"
    return text.rstrip(".") if draw > 0.9 else text


def _produced(rng: random.Random, takes: str, value: str) -> Result | None:
    """An earlier step whose result is this value; None if no operation has that result."""
    links = _producers().get(value, ())
    fitting = [link for link in links if fits(OPERATIONS[link.operation].gives, takes=takes)]
    if not fitting:
        return None
    link = rng.choice(fitting)
    op = OPERATIONS[link.operation]
    has_past = rng.random() < 0.3
    return wording(rng, op, link.key, refers=has_past), value


def _with_extra(rng: random.Random, op: Operation, results: tuple[Result, ...]) -> tuple[Result, ...]:
    """Add one result that the operation cannot use, before or after the others."""
    usable = {part for key in op.table for part in key[: op.arity]}
    other = rng.choice(GYM_OPERATIONS)
    key = rng.choice(list(other.table))
    if other.table[key] in usable or len(results) > 2:
        return results
    extra = (wording(rng, other, key), other.table[key])
    return (extra, *results) if rng.random() < 0.6 else (*results, extra)


@cache
def _producers() -> dict[str, tuple[Link, ...]]:
    """Value -> a few operations and keys that have it as their result."""
    rng = random.Random(5)
    found: dict[str, list[Link]] = {}
    for op in GYM_OPERATIONS:
        for key, value in rng.sample(sorted(op.table.items()), len(op.table)):
            links = found.setdefault(value, [])
            if sum(link.operation == op.full_name for link in links) < 5:
                links.append(Link(op.full_name, key))
    return {value: tuple(links) for value, links in found.items()}
