"""Wordings that only training uses: many, each for one operation only, and none that reveals a held-out wording."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from tests.facts import facts

from dirigent.errors import ConfigError
from dirigent_gym.questions import ROSTER, generate
from dirigent_gym.questions.examples import examples
from dirigent_gym.questions.frames import SEQUENCES
from dirigent_gym.questions.phrasing import (
    LEADS,
    Template,
    asked_templates,
    direct,
    nested,
    read_phrases,
    references,
    referring,
    templates,
)
from dirigent_gym.questions.recognition import recognise
from dirigent_gym.questions.skills import (
    HELD_OUT_OPERATIONS,
    OPERATIONS,
    PUZZLE_OPERATIONS,
    RL_OPERATIONS,
    WARM_OPERATIONS,
    Operation,
)

ASKED = [pytest.param(op, id=op.full_name) for op in (*RL_OPERATIONS, *PUZZLE_OPERATIONS)]

_KINDS = "binary number|Roman numeral|letter|element|list|month|jumble|alphabet position|position|place|month number"
_SLOT = re.compile(
    r"`[^`]*`"
    r"|(?:the (?:letters|months|Roman numerals) )?\{x\} and \{y\}"
    rf"|(?:(?:the )?(?:{_KINDS}) )?\{{[xyk](?:'s)?\}}"
)
"""A value with the word for its kind, or a piece of code: a reference replaces it whole, so it counts as one word."""


def only_training(op: Operation) -> list[Template]:
    return [template for template in templates(op.full_name) if template.home in ("train", "dev")]


def threes(text: str) -> set[tuple[str, ...]]:
    slots = {"`": "<code>", "y": "<both>", "k": "<k>", "x": "<x>"}
    marked = _SLOT.sub(lambda found: next(mark for sign, mark in slots.items() if sign in _sign(found[0])), text)
    words = re.findall(r"<\w+>|[\w'=-]+", marked.casefold())
    return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}


def _sign(slot: str) -> str:
    return "`" if slot.startswith("`") else "".join(re.findall(r"\{(.)", slot))


@pytest.mark.parametrize("op", ASKED)
def test_there_are_many_in_every_mood_and_most_can_hold_another_phrase(op: Operation) -> None:
    found = only_training(op)
    moods = {mood: [t for t in found if t.mood == mood] for mood in ("noun", "order", "ask")}
    assert len(moods["noun"]) >= 7
    assert min(len(moods["order"]), len(moods["ask"])) >= 6
    assert all(sum(t.nests for t in some) >= 5 for some in moods.values())
    assert sum(not re.search(r"\{[xy]\}\W*$", t.text) for t in found) >= 6, "too few go on after their value"


@pytest.mark.parametrize("op", ASKED)
def test_each_has_every_slot_once_and_ends_as_its_mood_does(op: Operation) -> None:
    parameters = len(next(iter(op.table))) - op.arity
    for template in only_training(op):
        text = template.text.replace("{x's}", "{x}")
        assert sorted(re.findall(r"\{(.*?)\}", text)) == ["k"] * parameters + ["x", "y"][: op.arity], text
        assert op.arity == 1 or "{x} and {y}" in text
        assert text[-1] == {"order": ".", "ask": "?"}.get(template.mood, text[-1])
        assert template.mood == "noun" or text[0].isupper(), "a value first would lose its capital in a later clause"


KINDS = {
    "list": {"list"},
    "letter": {"letter"},
    "month": {"month"},
    "element": {"element"},
    "jumble": {"jumble"},
    "roman": {"Roman numeral"},
    "binary": {"binary number"},
    "number": {"position", "place", "index", "number", "month number"},
}


@pytest.mark.parametrize("op", ASKED)
def test_no_other_word_before_a_value_is_taken_for_its_kind(op: Operation) -> None:
    """ "which letter {x} means" would become "which this letter means"."""
    many = {"convert.minutes", "convert.days", "convert.inches", "dates.weekday"}
    for template in only_training(op) if op.arity == 1 else ():
        names = {reference for reference, _ in references(template)}
        assert ("that many" in names) == (op.full_name in many), template.text
        if not names & {"it", "its", "that many"}:
            kinds = KINDS.get(op.takes[0], set())
            assert names <= {f"{word} {kind}" for word in ("that", "this") for kind in kinds}, template.text


def test_none_is_said_twice() -> None:
    said = [template.text.casefold().rstrip(".?") for name in OPERATIONS for template in templates(name)]
    new = {t.text.casefold().rstrip(".?") for op in (*RL_OPERATIONS, *PUZZLE_OPERATIONS) for t in only_training(op)}
    assert [text for text in new if said.count(text) > 1] == []


@pytest.mark.parametrize("op", ASKED)
def test_none_shares_three_words_in_a_row_with_a_held_out_one(op: Operation) -> None:
    held_out = {words for t in templates(op.full_name) if t.home == "test" for words in threes(t.text)}
    shared = {t.text: found for t in only_training(op) if (found := threes(t.text) & held_out)}
    assert shared == {}


def test_none_begins_like_a_lead_or_a_frame_that_is_held_out() -> None:
    held_out = [lead.text for lead in LEADS if lead.home == "test"]
    held_out += [frame.opening.split("{")[0].strip() for frame in SEQUENCES if frame.home == "test"]
    assert "Determine" in held_out
    found = [t.text for op in (*RL_OPERATIONS, *PUZZLE_OPERATIONS) for t in only_training(op)]
    assert [text for text in found if text.startswith(tuple(held_out))] == []


def test_three_words_in_a_row_count_a_value_with_its_kind_as_one_word() -> None:
    assert threes("the sum of the list {x}") == {("the", "sum", "of"), ("sum", "of", "<x>")}
    assert threes("Run `n % {k}` if n = {x}.") == {("run", "<code>", "if"), ("<code>", "if", "n"), ("if", "n", "=")} | {
        ("n", "=", "<x>")
    }
    assert threes("Are the letters {x} and {y} equal?") == {("are", "<both>", "equal")}


@pytest.mark.parametrize("op", ASKED)
def test_each_is_read_as_its_operation_whatever_points_at_the_result(op: Operation) -> None:
    rng = random.Random(op.full_name)
    for template in only_training(op):
        for said in _pointing(template, rng.choice(list(op.table))):
            assert {reading.operation for reading in recognise(said)} == {op.full_name}, said


def _pointing(template: Template, key: tuple[str, ...]) -> list[str]:
    if OPERATIONS[template.operation].arity == 2:
        return [referring(template, key, words) for words in ("both", "the two values")]
    if "{x's}" in template.text:
        return [referring(template, key, words) for words in ("its", "the result's", "that value's")]
    found = [nested(template, key, [words]) for words in ("it", "that value", "the result") if template.nests]
    counted = references(template)[0][0] == "that many"
    return found + [referring(template, key, words) for words in (("as many",) if counted else ("it", "this value"))]


@pytest.mark.parametrize("op", ASKED)
def test_none_can_be_read_in_two_ways_with_any_key(op: Operation) -> None:
    rng = random.Random(op.full_name)
    for template in only_training(op):
        for key in rng.sample(sorted(op.table), min(6, len(op.table))):
            said = direct(template, key)
            assert {OPERATIONS[r.operation].table[r.key] for r in recognise(said)} == {op.table[key]}, said


def test_the_held_out_skill_and_warm_only_ones_have_none() -> None:
    assert not [t for op in (*HELD_OUT_OPERATIONS, *WARM_OPERATIONS) for t in only_training(op)]


def test_no_test_question_or_subtask_has_one() -> None:
    tasks = [*generate("test", 300, seed=3), *generate("novel", 60, seed=3)]
    for task in tasks:
        for step in task.sketch.steps if task.sketch else ():
            assert any(_says(t, step.key, step.subtask) for t in asked_templates(step.operation)), step.subtask


def test_training_and_development_questions_have_many_and_plain_ones_too() -> None:
    for split in ("train", "dev"):
        steps = [step for task in generate(split, 300, seed=3) if task.sketch for step in task.sketch.steps]
        new = [s for s in steps if not any(_says(t, s.key, s.subtask) for t in asked_templates(s.operation))]
        assert 0.4 < len(new) / len(steps) < {"train": 0.6, "dev": 0.85}[split]


def _says(template: Template, key: tuple[str, ...], subtask: str) -> bool:
    return subtask == direct(template, key) or any(
        subtask == referring(template, key, reference) for reference, _ in references(template)
    )


def test_no_specialist_learns_one() -> None:
    for specialist in ROSTER:
        for example in examples(specialist, 60, seed=5):
            if example.operation:
                words = example.subtask.casefold().rstrip(".")
                texts = [text for t in asked_templates(example.operation) for text in _texts(t, example.key)]
                assert any(words.endswith(text.casefold().rstrip(".")) or text in example.subtask for text in texts)


def _texts(template: Template, key: tuple[str, ...]) -> list[str]:
    return [direct(template, key), *(referring(template, key, reference) for reference, _ in references(template))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["planets.place"]\nnouns = []\norders = []\nasks = []', "phrases.toml planets.place"),
        ('["letters.length"]\nnouns = "one"\norders = []\nasks = []', "phrases.toml nouns"),
        ("[", "phrases.toml"),
    ],
)
def test_a_file_that_is_not_right_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "phrases.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=facts(message)):
        read_phrases(file)
