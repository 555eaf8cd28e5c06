"""Handwritten questions, in other words than the generator's: they show whether a conductor reads or matches templates.

`handwritten.jsonl` has one question a line: its text, the operations that answer it, the answer. There are small
stories, questions with the last step named first, indirect descriptions, and sentences that should change nothing. The
words are a person's; the operations are the gym's, so the tables have every answer and every question has its cheapest
plan. The plan's subtasks are in the generator's words, because specialists know those. A conductor that copies the
person's words may write subtasks that its workers do not understand, and that is part of the measurement.

    "starts": [["facts.capital Kenya", "letters.length"]], "then": ["numbers.times 5"]

One start is a chain. Two starts are a fan, which the first operation of `then` joins. A start that is a puzzle is
guessed and checked. The first operation of a chain is followed by its key, a later one by its parameter; `;` divides
the parts. These questions are only reported: no model is trained on them or chosen by them. `handwritten_plain.jsonl`
has others, as people type them to an assistant. They prove nothing, because plain words are near to the generator's
own; they serve the development of a conductor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from dirigent.errors import ConfigError
from dirigent.tasks.task import Task
from dirigent_gym.questions.compose import Blueprint, Link, Shape, sketch_of
from dirigent_gym.questions.phrasing import direct, references, referring, templates
from dirigent_gym.questions.skills import PUZZLE_SKILL, find_operation
from dirigent_gym.questions.solving import Key
from dirigent_gym.questions.split import SplitRules, held_out_combination

Style = Literal["plain", "story", "reversed", "indirect", "distractor"]
Entities = Literal["seen", "held_out", "mixed"]
"""Whether training questions may start from the same values: from all of them, from none, or from some."""

RUN = 5
"""The number of words in a row that no question may share with a training text."""


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the file."""

    question: str
    starts: tuple[tuple[str, ...], ...]
    answer: str
    style: Style
    then: tuple[str, ...] = ()


@cache
def handwritten() -> tuple[Task, ...]:
    """All handwritten questions, in the order of the file."""
    return read_questions(_packaged("handwritten.jsonl"))


@cache
def handwritten_plain() -> tuple[Task, ...]:
    """The plain questions, for development."""
    return read_questions(_packaged("handwritten_plain.jsonl"), split="plain")


def read_questions(text: str, *, split: str = "handwritten") -> tuple[Task, ...]:
    """Reads questions from the text of such a file. Their answers must agree with the tables."""
    tasks: list[Task] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            tasks.append(_task(msgspec.json.decode(line, type=Line), number, split=split))
        except (msgspec.MsgspecError, ConfigError) as error:
            raise ConfigError(f"{split} question, line {number}: {error}") from None
    return tuple(tasks)


def assert_own_words(questions: Iterable[str], training_texts: Iterable[str], *, run: int = RUN) -> None:
    """Raise an error if a question shares that many words in a row with any training text."""
    known = {words for text in training_texts for words in word_runs(text, run=run)}
    for question in questions:
        for words in word_runs(question, run=run):
            if words in known:
                raise ConfigError(f"{' '.join(words)!r} in {question!r} occurs in a training text; use other words")


def word_runs(text: str, *, run: int = RUN) -> set[tuple[str, ...]]:
    """Returns every run of that many words, without case and commas. A slot of a template, or the end of a sentence,
    ends a run."""
    found: set[tuple[str, ...]] = set()
    for piece in re.split(r"\{[^}]*\}|[.?!](?=\s|$)", text):
        words = re.findall(r"\w+", piece.casefold())
        found.update(tuple(words[i : i + run]) for i in range(len(words) - run + 1))
    return found


def _packaged(file: str) -> str:
    return resources.files("dirigent_gym.questions").joinpath(file).read_text(encoding="utf-8")


def _task(line: Line, number: int, *, split: str) -> Task:
    blueprint = _blueprint(line)
    last = find_operation(blueprint.links[-1].operation)
    if blueprint.links[-1].gold != line.answer:
        raise ConfigError(f"the answer is {blueprint.links[-1].gold!r} by the tables, not {line.answer!r}")
    sketch = sketch_of(blueprint, _subtasks(blueprint))
    return Task(
        id=f"{split.removesuffix('written')}-{number:03}",
        question=line.question,
        answer=line.answer,
        grader=last.grader,
        kind=blueprint.kind,
        depth=sketch.depth,
        sketch=sketch,
        tags={
            "split": split,
            "shape": blueprint.shape,
            "style": line.style,
            "combination": "held_out" if any(map(held_out_combination, blueprint.paths)) else "seen",
            "skills": ">".join(sketch.skills),
            "entities": _entities(blueprint),
        },
    )


def _blueprint(line: Line) -> Blueprint:
    if not 1 <= len(line.starts) <= 2 or not all(line.starts) or (len(line.starts) == 2 and not line.then):
        raise ConfigError('"starts" holds one chain, or two that the first of "then" joins')
    branches = tuple(_chain(steps) for steps in line.starts)
    ends = tuple(branch[-1].gold for branch in branches)
    later: list[Link] = []
    for step in line.then:
        later.append(_link(step, ends))
        ends = (later[-1].gold,)
    if len(branches) == 2:
        return Blueprint("fan", branches, later[0], tuple(later[1:]))
    if branches[0][0].skill == PUZZLE_SKILL:
        return Blueprint("check", (branches[0][:1],), tail=(*branches[0][1:], *later))
    shape: Shape = "chain"
    return Blueprint(shape, ((*branches[0], *later),))


def _chain(steps: Sequence[str]) -> tuple[Link, ...]:
    links: list[Link] = []
    for step in steps:
        links.append(_link(step, (links[-1].gold,) if links else ()))
    return tuple(links)


def _link(step: str, results: Key) -> Link:
    """Reads `facts.capital Kenya` as a link of its own, `numbers.times 5` as a link on an earlier result."""
    name, _, written = step.partition(" ")
    operation = find_operation(name)
    key = (*results, *(part.strip() for part in written.split(";") if part.strip()))
    if key not in operation.table:
        raise ConfigError(f"{name} has no answer for {key!r}")
    return Link(name, key)


def _subtasks(blueprint: Blueprint) -> list[str]:
    """One subtask for each link, in words that specialists know: the first with its values, the others with references
    to results."""
    begins = {0, len(blueprint.branches[0])} if blueprint.join else {0}
    found = []
    for i, link in enumerate(blueprint.links):
        template = next(t for t in templates(link.operation) if t.mood == "order")
        if i in begins:
            found.append(direct(template, link.key))
        else:
            found.append(referring(template, link.key, references(template)[0][0]))
    return found


def _entities(blueprint: Blueprint) -> Entities:
    known = {_trained(branch[0]) for branch in blueprint.branches}
    if len(known) == 2:
        return "mixed"
    return "seen" if known == {True} else "held_out"


def _trained(link: Link) -> bool:
    """Whether a training question may start from these values; two written values must both be allowed."""
    operation, rules = find_operation(link.operation), SplitRules("train")
    keys = [link.key] if operation.arity == 1 else [link.key, link.key[::-1]]
    return all(rules.start(operation, key) for key in keys)
