"""Intervals, paired differences and percentiles, against numbers worked by hand."""

from __future__ import annotations

import pytest

from dirigent.errors import ConfigError
from dirigent.evals.stats import (
    Difference,
    mean,
    mean_or_none,
    paired_difference,
    percentile,
    share_interval,
    sign_test,
    sum_or_none,
    wilson,
)
from tests.facts import facts


def test_wilson_by_hand() -> None:
    # 8 of 10: middle 0.8 + 3.8415/20, half 1.96 * sqrt(0.16/10 + 3.8415/400), both over 1 + 3.8415/10.
    assert wilson(8, 10) == pytest.approx((0.49016, 0.94331), abs=1e-5)


def test_wilson_stays_inside_0_and_1_and_never_claims_certainty() -> None:
    assert wilson(0, 10) == pytest.approx((0.0, 0.27753), abs=1e-5)
    assert wilson(10, 10) == pytest.approx((0.72247, 1.0), abs=1e-5)


def test_wilson_takes_a_mean_of_several_seeds_and_knows_nothing_of_no_questions() -> None:
    low, high = wilson(7.4, 10)
    assert wilson(7, 10)[0] < low < 0.74 < high < wilson(8, 10)[1]
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_planner_that_is_always_better_is_better_beyond_doubt() -> None:
    found = paired_difference([1.0] * 10, [0.0] * 10, seed=1, resamples=999)
    assert (found.mean, found.interval, found.n) == (1.0, (1.0, 1.0), 10)
    assert found.p == pytest.approx(2 / 1000)  # never 0: 999 resamples cannot show less
    assert found.significant


def test_equal_planners_do_not_differ() -> None:
    found = paired_difference([1.0, 0.0, 1.0], [1.0, 0.0, 1.0], seed=1)
    assert (found.mean, found.p, found.significant) == (0.0, 1.0, False)


def test_p_by_hand() -> None:
    # 14 gains and 6 losses: 2 * (1 + 20 + 190 + 1140 + 4845 + 15504 + 38760) / 2**20.
    found = paired_difference([1.0] * 14 + [0.0] * 6, [0.0] * 14 + [1.0] * 6, seed=7)
    assert found.p == pytest.approx(120_920 / 2**20)


@pytest.mark.parametrize(
    ("gains", "losses", "of", "p"),
    [
        (1, 0, 1, 1.0),  # one coin falls somehow
        (4, 0, 200, 0.125),  # 2 / 2**4
        (6, 0, 200, 0.03125),  # 2 / 2**6
        (0, 6, 200, 0.03125),
        (7, 1, 200, 0.0703125),  # 2 * (1 + 8) / 2**8
        (3, 3, 6, 1.0),
        (0, 0, 5, 1.0),
    ],
)
def test_few_questions_that_differ_prove_little_however_many_were_asked(
    gains: int, losses: int, of: int, p: float
) -> None:
    differences = [1.0] * gains + [-1.0] * losses + [0.0] * (of - gains - losses)
    assert sign_test(differences) == p
    found = paired_difference(differences, [0.0] * of, seed=1)
    assert found.p >= p
    assert found.significant == (p < 0.05)


def test_of_thousands_the_exact_test_is_still_a_number() -> None:
    assert 0.0 <= sign_test([1.0] * 4000 + [-1.0] * 1000) < 1e-300
    assert sign_test([1.0] * 2500 + [-1.0] * 2500) == 1.0
    assert sign_test([0.1 + 0.2 - 0.3] * 50) == 1.0  # sums that are not exact are no differences


def test_gain_and_loss_that_cancel_out_are_no_difference_though_both_answered_differently() -> None:
    found = paired_difference([1.0, 0.0] * 50, [0.0, 1.0] * 50, seed=1)
    assert found.mean == 0.0
    assert found.interval[0] < 0 < found.interval[1]
    assert not found.significant


def test_the_same_seed_gives_the_same_interval() -> None:
    first, second = [1.0, 0.0, 1.0, 1.0, 0.0] * 4, [0.0, 0.0, 1.0, 0.0, 1.0] * 4
    assert paired_difference(first, second, seed=3) == paired_difference(first, second, seed=3)
    assert paired_difference(first, second, seed=3).p == pytest.approx(
        paired_difference(second, first, seed=3).p, abs=0.05
    )


def test_scores_of_other_questions_cannot_be_paired() -> None:
    with pytest.raises(ConfigError, match=facts("3 2")):
        paired_difference([1.0, 1.0, 1.0], [1.0, 1.0], seed=1)


def test_nothing_to_compare_is_no_difference() -> None:
    assert paired_difference([], [], seed=1).p == 1.0


def test_percentiles_lie_between_neighbours() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([1.0, 2.0, 3.0], 0.95) == pytest.approx(2.9)
    assert percentile([5.0], 0.95) == 5.0
    assert percentile([], 0.5) == mean([]) == 0.0


def test_scores_in_between_are_judged_by_how_much_not_by_how_many() -> None:
    gains, losses, same = [1.0] * 40, [-0.1] * 60, [0.0] * 900
    found = paired_difference([*gains, *losses, *same], [0.0] * 1000, seed=1)
    assert found.mean == pytest.approx(0.034)
    assert found.significant


def test_a_sum_or_mean_with_something_unknown_in_it_is_unknown() -> None:
    assert (sum_or_none([1.0, 2.0]), mean_or_none([1.0, 2.0])) == (3.0, 1.5)
    assert (sum_or_none([1.0, None]), mean_or_none([1.0, None])) == (None, None)
    assert (sum_or_none([]), mean_or_none([])) == (0.0, 0.0)


def test_a_difference_is_significant_only_below_a_twentieth() -> None:
    assert not Difference(0.1, (0.0, 0.2), 0.05, 10).significant
    assert Difference(0.1, (0.0, 0.2), 0.049, 10).significant


def test_questions_of_a_pair_are_resampled_together() -> None:
    """Twenty pairs, of which both questions gain or neither does: as uncertain as twenty questions."""
    alike = [1.0] * 12 + [0.0] * 28
    groups = [i // 2 for i in range(40)]
    apart = paired_difference(alike, [0.0] * 40, seed=1)
    together = paired_difference(alike, [0.0] * 40, seed=1, groups=groups)
    halves = paired_difference(alike[::2], [0.0] * 20, seed=1)
    assert together.mean == apart.mean == halves.mean
    assert together.interval[1] - together.interval[0] > apart.interval[1] - apart.interval[0]
    assert together.interval == pytest.approx(halves.interval, abs=0.06)
    assert together.p == halves.p == sign_test([1.0] * 6)


def test_groups_of_one_question_change_nothing() -> None:
    scores = [float(i % 3 == 0) for i in range(30)]
    assert paired_difference(scores, [0.0] * 30, seed=2, groups=list(range(30))) == paired_difference(
        scores, [0.0] * 30, seed=2
    )
    assert share_interval(scores, list(range(30))) == wilson(10, 30)


def test_pairs_that_are_answered_alike_widen_the_interval_of_a_share_as_half_the_questions_would() -> None:
    scores = [1.0, 1.0, 0.0, 0.0] * 10
    assert share_interval(scores, [i // 2 for i in range(40)]) == pytest.approx(wilson(10, 20))
    unlike = [1.0, 0.0] * 20
    assert share_interval(unlike, [i // 2 for i in range(40)]) == wilson(20, 40), "never narrower"
