"""The lessons of specialists: their whole table, in every wording, and "unknown" for everything else."""

from __future__ import annotations

from collections import Counter

import pytest

from dirigent.errors import ConfigError
from dirigent.messages import Message, Request
from dirigent_gym.questions import (
    RL_ROSTER,
    ROSTER,
    UNKNOWN,
    ExactSpecialist,
    Specialist,
    answer,
    examples,
    find_specialist,
)
from dirigent_gym.questions.oracle import distractors
from dirigent_gym.questions.recognition import recognise
from dirigent_gym.questions.skills import OPERATIONS, RL_SKILLS
from dirigent_gym.questions.specialists import operations_of

EACH = [pytest.param(s, id=s.name) for s in ROSTER]


def test_the_roster_covers_every_skill_and_keeps_the_held_out_one_from_training() -> None:
    assert set(RL_SKILLS) <= {skill for s in RL_ROSTER for skill in s.skills}
    assert len(RL_ROSTER) >= 9
    assert [s.name for s in ROSTER if s not in RL_ROSTER] == ["planets"]


@pytest.mark.parametrize("specialist", EACH)
def test_a_card_has_thirty_wordings_and_some_held_out(specialist: Specialist) -> None:
    assert len(set(specialist.abouts)) >= 30
    assert len(specialist.held_out_abouts) >= 5
    assert not set(specialist.abouts) & set(specialist.held_out_abouts)


def test_the_guessers_card_calls_it_unreliable() -> None:
    assert all(
        "70%" in about or "30%" in about or "3 times in 10" in about for about in find_specialist("guesser").abouts
    )


def test_the_cheap_twin_costs_a_tenth() -> None:
    assert find_specialist("sums").price.output * 10 == pytest.approx(find_specialist("numbers").price.output)


@pytest.mark.parametrize("specialist", EACH)
def test_examples_are_the_same_for_a_seed_and_a_tenth_is_others_work(specialist: Specialist) -> None:
    found = examples(specialist, 1_000, seed=1)
    assert found[:50] == examples(specialist, 50, seed=1)
    off = [example for example in found if not example.operation]
    assert 0.06 < len(off) / len(found) < 0.14
    assert {example.answer for example in off} == {UNKNOWN}


@pytest.mark.parametrize(
    "specialist", [s for s in ROSTER if not s.noise and s.small_only is None and s.role == "solver"]
)
def test_examples_are_right_and_unknown_only_where_nothing_can_be_read(specialist: Specialist) -> None:
    own = [example for example in examples(specialist, 1_500, seed=2) if example.operation]
    golds = {name: set(OPERATIONS[name].table.values()) for name in operations_of(specialist)}
    unknown = [example for example in own if example.answer == UNKNOWN]
    assert len(unknown) / len(own) < 0.08
    assert all(recognise(example.subtask)[0].refers for example in unknown)
    assert all(example.answer in golds[example.operation] for example in own if example.answer != UNKNOWN)


@pytest.mark.parametrize("specialist", EACH)
def test_examples_show_every_operation_directly_and_with_results(specialist: Specialist) -> None:
    own = [example for example in examples(specialist, 1_500, seed=3) if example.operation]
    assert {example.operation for example in own} == set(operations_of(specialist))
    assert any(example.results for example in own)
    assert any(not example.results for example in own)


def test_the_whole_table_is_gone_through() -> None:
    specialist = find_specialist("facts")
    asked = {(e.operation, *r.key) for e in examples(specialist, 2_000, seed=1) for r in recognise(e.subtask) if r.key}
    for name in operations_of(specialist):
        assert len({key for key in asked if key[0] == name}) / len(OPERATIONS[name].table) > 0.95


def test_the_guesser_is_right_seven_times_in_ten() -> None:
    own = [example for example in examples(find_specialist("guesser"), 6_000, seed=1) if example.operation]
    right = sum(
        example.answer == OPERATIONS[reading.operation].table[reading.key]
        for example in own
        for reading in recognise(example.subtask)
    )
    assert right / len(own) == pytest.approx(0.7, abs=0.03)


def test_wrong_answers_are_plausible_and_always_the_same_three() -> None:
    wrong = distractors("puzzles.root", ("1369",))
    assert wrong == distractors("puzzles.root", ("1369",))
    assert len(set(wrong)) == 3
    assert "37" not in wrong
    assert all(text.isdigit() for text in wrong)


def test_where_an_answer_has_one_alternative_that_one_is_the_wrong_answer() -> None:
    assert distractors("letters.same", ("Q", "Q")) == ("different",)


def test_the_checker_selects_and_never_solves() -> None:
    checker = find_specialist("checker")
    subtask = "the square root of 1369"
    assert answer(checker, subtask) == UNKNOWN
    assert answer(checker, subtask, [(subtask, "36"), (subtask, "37")]) == "37"
    assert answer(checker, subtask, [(subtask, "36"), (subtask, "38")]) == UNKNOWN
    assert answer(checker, "the capital of Norway", [("x", "Oslo")]) == UNKNOWN


def test_the_cheap_twin_is_wrong_on_large_numbers_only() -> None:
    sums = find_specialist("sums")
    assert answer(sums, "Add 5 to 12.") == "17"
    assert answer(sums, "Add 5 to 62.") != "67"
    assert answer(find_specialist("numbers"), "Add 5 to 62.") == "67"


def test_a_reference_means_the_latest_result_that_fits() -> None:
    letters = find_specialist("letters")
    results = [("the capital of Norway", "Oslo"), ("the capital of Peru", "Lima."), ("Count its vowels.", "2")]
    assert answer(letters, "Take its first letter.", results) == "L"
    assert answer(letters, "Take its first letter.") == UNKNOWN


def test_two_references_mean_the_two_latest_results_that_fit() -> None:
    results = [("a", "3"), ("b", "Oslo"), ("c", "9"), ("d", "12")]
    assert answer(find_specialist("numbers"), "the sum of both numbers", results) == "21"
    assert answer(find_specialist("numbers"), "the sum of both numbers", results[:2]) == UNKNOWN


def test_a_specialist_does_not_know_other_skills() -> None:
    knows = Counter(s.name for s in ROSTER if answer(s, "the capital of Norway") != UNKNOWN)
    assert knows == {"facts": 1}


async def test_an_exact_specialist_is_a_worker() -> None:
    worker = ExactSpecialist(find_specialist("facts"))
    reply = await worker.ask(Request((Message("user", "the capital of Norway"),)))
    assert reply.text == "Oslo"
    assert worker.info.subtask_only


def test_an_unknown_specialist_is_named_in_the_error() -> None:
    with pytest.raises(ConfigError, match="rivers"):
        find_specialist("rivers")
