"""The capacity of a pool, and the estimate of an evaluation's cost, by hand."""

from __future__ import annotations

import pytest

from dirigent.evals.costing import STEP_TOKENS, USUAL_REPLY_TOKENS, estimate_by_planner
from dirigent.evals.metrics import capacity
from dirigent.workers.worker import Price
from tests.evals.samples import outcome


def test_complementarity_is_the_oracle_minus_the_best_worker() -> None:
    found = capacity(
        [
            *(outcome("single:a", str(i), correct=i in (0, 1, 2), cost_usd=0.2) for i in range(5)),
            *(outcome("single:b", str(i), correct=i in (2, 3), cost_usd=0.1) for i in range(5)),
            outcome("moa", "0"),
        ]
    )
    assert found is not None
    assert (found.best, list(found.workers)) == ("a", ["a", "b"])
    assert (found.oracle, found.all_right) == (pytest.approx(0.8), pytest.approx(0.2))
    assert found.complementarity == pytest.approx(0.2)
    assert found.workers["b"].cost_usd_per_question == pytest.approx(0.1)


def test_workers_that_were_asked_different_questions_are_not_compared() -> None:
    apart = [outcome("single:a", str(i)) for i in range(5)] + [outcome("single:b", str(i)) for i in range(3, 9)]
    assert capacity(apart) is None
    assert capacity([outcome("single:a", "0"), outcome("moa", "0")]) is None


def test_an_estimate_scales_the_calls_of_a_dry_run_to_the_real_questions() -> None:
    prices = {"a": Price(1.0, 10.0), "b": Price(0.0, 1.0)}
    runs = [outcome("moa", str(i), workers="ab", kind="gsm8k", calls=2) for i in range(2)]
    found = estimate_by_planner(runs, prices, questions={"gsm8k": 100}, max_output_tokens=4000)["moa"]
    read = 100 + STEP_TOKENS
    usual = (read * 1.0 + USUAL_REPLY_TOKENS * 10.0) / 1e6 + USUAL_REPLY_TOKENS * 1.0 / 1e6
    assert found.calls == 200
    assert found.usual_usd == pytest.approx(100 * usual)
    assert found.most_usd > 4 * found.usual_usd


def test_a_model_of_ours_plans_for_nothing_and_local_counters_cost_nothing() -> None:
    prices = {"a": Price(0.0, 1.0)}
    runs = [outcome("conductor", "0", workers="a", kind="gsm8k", calls=2)]
    found = estimate_by_planner(runs, prices, questions={"gsm8k": 1}, max_output_tokens=4000)["conductor"]
    assert found.usual_usd == pytest.approx(USUAL_REPLY_TOKENS / 1e6)
    counted = [outcome("vote", "0", workers="aac", kind="gsm8k", calls=2)]
    assert estimate_by_planner(counted, prices, questions={"gsm8k": 1}, max_output_tokens=1)["vote"].usual_usd == (
        pytest.approx(2 * USUAL_REPLY_TOKENS / 1e6)
    )
