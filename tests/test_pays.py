"""The study of what a learned policy pays: its arithmetic, on small numbers worked by hand."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PROGRAM = Path(__file__).parent.parent / "benchmarks" / "pays.py"


@pytest.fixture(scope="module")
def pays() -> dict[str, Any]:
    return runpy.run_path(str(PROGRAM), run_name="pays")


def test_equal_cost_is_a_mix_of_the_two_settings_around_it(pays: dict[str, Any]) -> None:
    right = np.array([[1.0, 0.0], [1.0, 1.0]])
    cost = np.array([[10.0, 10.0], [30.0, 30.0]])
    assert pays["_at"]((right, cost), 15).tolist() == [1.0, 0.25]
    assert pays["_at"]((right, cost), 5).tolist() == [0.5, 0.0], "half the questions are asked"
    assert pays["_at"]((right, cost), 99).tolist() == [1.0, 1.0]


def test_test_questions_are_those_of_the_datas_readme(pays: dict[str, Any]) -> None:
    assert pays["is_test"]("any", "gsm8k_test")
    assert not pays["is_test"]("any", "math_train")
    bbh = [pays["is_test"](f"bbh-{i}", "bbh") for i in range(600)]
    assert 0.4 < np.mean(bbh) < 0.6


def test_an_operating_point_is_chosen_by_the_other_folds(pays: dict[str, Any]) -> None:
    diff = np.array([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, -1.0, -1.0]])
    share = np.array([[2.0] * 4, [1.0] * 4])
    folds = np.array([0, 0, 1, 1])
    found = pays["_operating"](diff, share, folds, lambda d, c: pays["_cheapest"](d, c, 0.0))
    assert found["gain"][0] == pytest.approx((0 + 0 - 1 - 1) / 4)
    assert found["cost"] == pytest.approx((2 + 2 + 1 + 1) / 4)


def test_a_claim_is_met_only_if_its_condition_holds(pays: dict[str, Any]) -> None:
    claim = pays["write"].__globals__["Claim"]
    assert claim("x", 5, 7, 6.0).met == "must"
    assert claim("x", 5, 7, 7.5).met == "goal"
    assert claim("x", 0.5, 0.4, 0.6, at_most=True).met == "no"
    assert claim("x", 0, None, 1.0, -0.1, 2.0, above_zero=True).met == "no"
