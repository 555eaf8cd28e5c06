"""Every operation is a closed table, and every wording of it is unambiguous."""

from __future__ import annotations

import random

import pytest

from dirigent.errors import ConfigError
from dirigent_gym.questions.phrasing import (
    LEADS,
    direct,
    lowered,
    nested,
    references,
    referring,
    templates,
)
from dirigent_gym.questions.recognition import Reading, recognise
from dirigent_gym.questions.skills import (
    GYM_OPERATIONS,
    OPERATIONS,
    RL_OPERATIONS,
    RL_SKILLS,
    WARM_OPERATIONS,
    WARM_SKILLS,
    Operation,
    find_operation,
)

ALL = [pytest.param(op, id=name) for name, op in OPERATIONS.items()]
GYM = [pytest.param(op, id=op.full_name) for op in GYM_OPERATIONS]


def test_there_are_enough_skills_of_each_part() -> None:
    assert len(RL_SKILLS) >= 9
    assert len(WARM_SKILLS) >= 4
    assert not set(RL_SKILLS) & set(WARM_SKILLS)


def test_warm_only_skills_share_no_entity_with_the_gym() -> None:
    def words(operations: tuple[Operation, ...]) -> set[str]:
        parts = {part for op in operations for key in op.table for part in key}
        return {part.casefold() for part in parts if not part.isdigit()}

    assert not words(WARM_OPERATIONS) & words(GYM_OPERATIONS)


@pytest.mark.parametrize("op", ALL)
def test_the_domain_is_closed_and_small(op: Operation) -> None:
    assert 2 <= len(op.table) <= 3_000
    assert all(answer.strip() for answer in op.table.values())
    assert all(len(key) - op.arity in (0, 1) for key in op.table)


def test_numbers_stay_small() -> None:
    results = [int(v) for op in RL_OPERATIONS if op.gives == "number" for v in op.table.values()]
    assert max(results) <= 999


@pytest.mark.parametrize("op", GYM)
def test_there_are_many_phrasings_in_every_mood_and_one_of_each_is_held_out(op: Operation) -> None:
    found = templates(op.full_name)
    with_leads = [t for t in found if t.mood == "noun"] * len(LEADS) + [t for t in found if t.mood != "noun"]
    assert len(with_leads) >= 12
    for mood in ("noun", "order", "ask"):
        assert sum(t.home == "test" for t in found if t.mood == mood) == 1
        assert any(t.home != "test" and t.nests for t in found if t.mood == mood)


@pytest.mark.parametrize("op", GYM)
def test_every_wording_is_read_as_its_own_operation(op: Operation) -> None:
    rng = random.Random(op.full_name)
    keys = list(op.table)
    for template in templates(op.full_name):
        key = rng.choice(keys)
        lead = rng.choice(LEADS)
        text = direct(template, key)
        for said in (text, f"Then {lowered(text)}", *([lead.around(text)] if template.mood == "noun" else [])):
            readings = recognise(said)
            assert Reading(op.full_name, key=key) in readings, said
            for reading in readings:
                assert OPERATIONS[reading.operation].table[reading.key] == op.table[key], said
        parameter = key[-1] if len(key) > op.arity else ""
        for reference, _ in references(template):
            said = referring(template, key, reference)
            wanted = (Reading(op.full_name, parameter=parameter, refers=True),)
            assert recognise(said) == wanted, said
            assert recognise(f"After that, {lowered(said)}") == wanted, said


@pytest.mark.parametrize("op", GYM)
def test_any_key_can_be_asked_for(op: Operation) -> None:
    template = templates(op.full_name)[0]
    keys = random.Random(1).sample(list(op.table), min(150, len(op.table)))
    assert all(Reading(op.full_name, key=key) in recognise(direct(template, key)) for key in keys)


def test_a_value_outside_the_table_is_not_recognised() -> None:
    assert recognise("the capital of Atlantis") == ()
    assert recognise("Add 21 to 5.") == ()


@pytest.mark.parametrize(
    ("said", "operation", "parameter"),
    [
        ("Shift the result by 12 places.", "cipher.shift", "12"),
        ("Which letter stands at the position given by the result of the alphabet?", "cipher.letter", ""),
        ("Convert as many feet as it to inches.", "convert.inches", ""),
        ("Are both results the same or different?", "letters.same", ""),
        ("Then count that name's letters.", "letters.length", ""),
    ],
)
def test_other_words_for_an_earlier_result_are_understood(said: str, operation: str, parameter: str) -> None:
    assert Reading(operation, parameter=parameter, refers=True) in recognise(said)


def test_words_that_point_at_nothing_are_not_understood() -> None:
    assert recognise("Shift by 12 places.") == ()
    assert recognise("Are they the same or different?") == ()


@pytest.mark.parametrize("op", [pytest.param(op, id=op.full_name) for op in WARM_OPERATIONS])
def test_warm_only_wordings_are_whole_and_no_gym_operation(op: Operation) -> None:
    key = next(iter(op.table))
    for template in templates(op.full_name):
        assert template.home != "test"
        said = [direct(template, key), *(referring(template, key, reference) for reference, _ in references(template))]
        if template.nests:
            said.append(nested(template, key, ["the first thing", "the second thing"][: op.arity]))
        for text in said:
            assert "{" not in text.replace("`", ""), text
            assert recognise(text) == ()


def test_two_operations_in_one_clause_are_not_recognised() -> None:
    assert recognise("the number of letters in the capital of Norway") == ()


def test_an_example_of_each_form() -> None:
    noun = next(t for t in templates("letters.length") if t.mood == "noun")
    assert direct(noun, ("Oslo",)) == "the number of letters in Oslo"
    assert referring(noun, ("Oslo",), "that word") == "the number of letters in that word"
    assert nested(noun, ("Oslo",), ["the capital of Norway"]) == "the number of letters in the capital of Norway"


def test_a_counted_unit_nests_as_good_english() -> None:
    order = next(t for t in templates("convert.minutes") if t.mood == "order")
    said = nested(order, ("4",), ["the letter count of Oslo"])
    assert said == "Convert as many hours as the letter count of Oslo to minutes."


def test_an_unknown_operation_is_named_in_the_error() -> None:
    with pytest.raises(ConfigError, match=r"facts\.river"):
        find_operation("facts.river")
