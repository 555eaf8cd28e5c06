"""What follows from examples: who is best, who is cheapest, and how many samples a cost buys; worked by hand."""

from __future__ import annotations

from functools import partial

import pytest

from dirigent.errors import ConfigError
from dirigent.planners.examples import (
    Example,
    accuracies,
    cheapest,
    closest_samples,
    mean_costs_usd,
    ranked,
    self_moa_cost_usd,
    vote_cost_usd,
)
from dirigent.worker import Price

EXAMPLES = [
    Example("one", {"a": 1.0, "b": 0.0, "c": 1.0}, {"a": 0.004, "b": 0.001, "c": 0.002}, tokens={"a": (100, 40)}),
    Example("two", {"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 0.006, "b": 0.001, "c": 0.002}, tokens={"a": (300, 60)}),
    Example("three", {"a": 0.0, "b": 1.0, "c": 0.0}, {"a": 0.005, "b": 0.001, "c": 0.002}, tokens={"a": (200, 50)}),
    Example("four", {"b": 0.0, "c": 0.0}, {"b": 0.001, "c": 0.002}),
]


def test_a_question_that_a_worker_was_not_asked_counts_as_wrong() -> None:
    assert accuracies(EXAMPLES) == {"a": 0.5, "b": 0.5, "c": 0.5}
    assert mean_costs_usd(EXAMPLES) == pytest.approx({"a": 0.005, "b": 0.001, "c": 0.002})


def test_equals_are_ranked_by_cost() -> None:
    assert ranked(EXAMPLES) == ("b", "c", "a")
    assert cheapest(EXAMPLES) == ("b", "c", "a")
    assert ranked(EXAMPLES[:1]) == ("c", "a", "b")


def test_a_vote_of_three_costs_three_answers() -> None:
    assert vote_cost_usd(EXAMPLES, "a", 3) == pytest.approx(0.015)


def test_a_self_moa_also_pays_for_reading_all_answers_and_writing_one() -> None:
    # 2 answers at 0.005; the synthesis reads 200 + 2 * 50 tokens at $10 and writes 50 at $20 a million
    cost_usd = self_moa_cost_usd(EXAMPLES, "a", 2, price=Price(10.0, 20.0))
    assert cost_usd == pytest.approx(0.010 + 300 * 10e-6 + 50 * 20e-6)
    with pytest.raises(ConfigError, match="tokens of b"):
        self_moa_cost_usd(EXAMPLES, "b", 2, price=Price(1.0, 1.0))


@pytest.mark.parametrize(("target_usd", "samples"), [(0.015, 3), (0.0176, 4), (0.0174, 3), (0.0001, 1), (9.0, 31)])
def test_the_closest_number_of_samples_is_taken(target_usd: float, samples: int) -> None:
    sizing = closest_samples(partial(vote_cost_usd, EXAMPLES, "a"), target_usd)
    assert sizing.samples == samples
    assert sizing.cost_usd == pytest.approx(samples * 0.005)
    assert sizing.note.startswith(f"{samples} samples, $")


def test_of_two_numbers_that_are_as_close_the_smaller_is_taken() -> None:
    assert closest_samples(lambda n: float(n), 2.5).samples == 2


def test_nothing_to_fit_on_and_a_cost_of_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to fit on"):
        ranked([])
    with pytest.raises(ConfigError, match="above 0, not 0"):
        closest_samples(lambda n: float(n), 0)
