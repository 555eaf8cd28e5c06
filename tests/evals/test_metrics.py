"""A report's figures, worked by hand from a handful of outcomes."""

from __future__ import annotations

import pytest

from dirigent.evals.metrics import figures, oracle, scores, versus
from dirigent.evals.record import Outcome
from dirigent.evals.stats import wilson
from tests.evals.samples import outcome


def test_accuracy_validity_and_their_relation() -> None:
    row = figures(
        [
            outcome("p", "1"),
            outcome("p", "2", correct=False),
            outcome("p", "3"),
            outcome("p", "4", correct=False, valid=False, plan=None, calls=0),
        ]
    )
    assert (row.n, row.accuracy, row.valid) == (4, 0.5, 0.75)
    assert row.interval == wilson(2, 4)
    assert row.accuracy_given_valid == pytest.approx(2 / 3)


def test_a_question_asked_five_times_is_one_question() -> None:
    row = figures([outcome("p", "1", correct=i < 4, repeat=i, cost_usd=0.01) for i in range(5)])
    assert (row.n, row.accuracy) == (1, 0.8)
    assert row.interval == wilson(0.8, 1)
    assert row.cost_usd == pytest.approx(0.01)
    assert scores([outcome("p", "1", correct=i < 4, repeat=i) for i in range(5)]) == {"1": 0.8}


def test_tokens_calls_cost_and_time() -> None:
    row = figures(
        [
            outcome("p", "1", workers="ab", input_tokens=100, output_tokens=10, cost_usd=0.02, seconds=1.0),
            outcome("p", "2", input_tokens=40, output_tokens=10, orchestration_input_tokens=6, seconds=3.0),
        ]
    )
    assert (row.tokens, row.input_tokens, row.output_tokens, row.orchestration_tokens) == (80, 70, 10, 3)
    assert (row.calls, row.steps, row.cost_usd, row.cost_usd_per_question) == (1.5, 1.5, 0.02, 0.01)
    assert (row.seconds_p50, row.steps_histogram) == (2.0, {"1": 1, "2": 1})


def test_steps_over_minimal_counts_right_answers_and_no_shortcut_hides_padding() -> None:
    found = [
        outcome("p", "padded", workers="abc", minimal_steps=2),
        outcome("p", "exact", workers="ab", minimal_steps=2),
        outcome("p", "lucky", workers="a", minimal_steps=4),
        outcome("p", "wrong", workers="aaaaa", minimal_steps=1, correct=False),
    ]
    assert figures(found).steps_over_minimal == pytest.approx((3 + 2 + 4) / (2 + 2 + 4))
    assert figures([outcome("p", "unknown")]).steps_over_minimal is None


def test_one_step_questions_planned_in_one_step() -> None:
    found = [outcome("p", "1", minimal_steps=1), outcome("p", "2", workers="ab", minimal_steps=1)]
    assert figures(found).one_step_in_one == 0.5


def test_fans_planned_in_parallel_among_the_right_ones() -> None:
    fan = {"shape": "fan"}
    found = [
        outcome("p", "1", tags=fan, marks={"parallel": True}),
        outcome("p", "2", tags=fan, marks={"parallel": False}),
        outcome("p", "3", tags=fan, marks={"parallel": False}, correct=False),
        outcome("p", "4", tags={"shape": "chain"}, marks={"parallel": False}),
    ]
    row = figures(found)
    assert row.parallel_fans == 0.5
    assert row.marks == {"parallel": 0.25}


def test_groups_by_kind_depth_shape_and_combination() -> None:
    found = [
        outcome("p", "1", depth=1, tags={"shape": "chain", "combination": "seen"}),
        outcome("p", "2", depth=2, tags={"shape": "chain", "combination": "seen"}, correct=False),
        outcome("p", "3", depth=2, tags={"shape": "fan", "combination": "held_out", "pair_kind": "swap"}),
    ]
    row = figures(found)
    assert {name: group.accuracy for name, group in row.by_kind.items()} == {"chain 1": 1, "chain 2": 0, "fan 2": 1}
    assert {name: group.n for name, group in row.by_depth.items()} == {"1": 1, "2": 2}
    assert row.by_shape["chain"].interval == wilson(1, 2)
    # A question of depth 1 has no combination that could be held out.
    assert {name: group.n for name, group in row.by_combination.items()} == {"seen": 1, "held_out": 1}
    assert list(row.by_pair) == ["swap"]
    assert figures([outcome("p", "1", kind="algebra")]).by_kind["algebra"].n == 1


def test_worker_shares_count_steps_of_valid_plans() -> None:
    row = figures([outcome("p", "1", workers="aab"), outcome("p", "2", workers="b")])
    assert row.worker_shares == {"a": 0.5, "b": 0.5}


def test_worker_shares_count_the_rounds_before_the_answering_one() -> None:
    row = figures([outcome("p", "1", workers="c", asked_before=("a", "b")), outcome("p", "2", workers="b")])
    assert row.worker_shares == {"a": 0.25, "b": 0.5, "c": 0.25}
    assert row.steps == 1


def test_the_oracle_takes_the_cheapest_right_worker_else_the_cheapest() -> None:
    alone = [
        outcome("single:a", "1", correct=True, cost_usd=5),
        outcome("single:b", "1", correct=True, cost_usd=2),
        outcome("single:c", "1", correct=False, cost_usd=1),
        outcome("single:a", "2", correct=False, cost_usd=5),
        outcome("single:b", "2", correct=False, cost_usd=2),
    ]
    found = oracle(alone)
    assert [(o.planner, o.task, o.correct, o.cost_usd) for o in found] == [
        ("oracle", "1", True, 2),
        ("oracle", "2", False, 2),
    ]


def test_a_comparison_is_over_the_questions_both_were_asked() -> None:
    mine = [outcome("p", "1"), outcome("p", "2"), outcome("p", "3", correct=False)]
    best = [outcome("best", "1", correct=False), outcome("best", "2")]
    found = versus(mine, best, seed=1)
    assert (found.n, found.mean) == (2, 0.5)


def test_no_outcomes_give_an_empty_row_rather_than_an_error() -> None:
    row = figures([])
    assert (row.n, row.accuracy, row.steps, row.by_kind) == (0, 0.0, 0.0, {})


def test_a_minimal_pair_counts_as_one_draw() -> None:
    def row(pair: str) -> list[Outcome]:
        tags = [{"pair": f"{pair}{i // 2}"} if pair else {} for i in range(40)]
        return [outcome("a", f"t{i}", correct=i % 4 < 2, tags=tags[i]) for i in range(40)]

    apart, paired = figures(row("")), figures(row("p"))
    assert paired.accuracy == apart.accuracy == 0.5
    assert paired.interval[0] < apart.interval[0]
    none = [outcome("best", f"t{i}", correct=False) for i in range(40)]
    assert versus(row("p"), none, seed=1).interval[0] < versus(row(""), none, seed=1).interval[0]
