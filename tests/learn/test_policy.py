"""Policies: fitting, switching on, and the plan for a question."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from dirigent.errors import ConfigError
from dirigent.learn.policy import Policy, next_version, roll_back
from dirigent.learn.policy_fit import FEWEST_LABELS, HEDGE, Fitted, fit_policy, folds_of, plain_plan, plain_vote
from dirigent.learn.table import Answer, Table, TableWorker
from tests.learn.made_tables import QUICK, two_kinds

POOL = ("cheap", "dear")


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return fit_policy(two_kinds(300), where="here", settings=QUICK)


@pytest.fixture
def policy(fitted: Fitted) -> Policy:
    return fitted.policy


def changed(table: Table, **fields: float | bool) -> Table:
    return msgspec.structs.replace(table, answers=tuple(msgspec.structs.replace(a, **fields) for a in table.answers))


def test_it_costs_less_at_the_same_accuracy_and_is_switched_on(policy: Policy) -> None:
    assert policy.active == "same"
    assert policy.baseline == "dear"
    same = policy.point("same")
    assert same.cost < 0.8 * policy.baseline_cost
    assert same.low > -0.02


def test_fixed_plans_are_measured_on_the_same_questions(policy: Policy) -> None:
    [both] = policy.fixed  # no worker answered three times
    assert (both.name, both.calls) == ("vote of the best 2", 2)
    assert both.cost == pytest.approx(11.0)
    assert both.accuracy == pytest.approx(policy.baseline_accuracy + both.diff)
    assert both.low < both.diff < both.high
    again = Policy(**msgspec.structs.asdict(policy))
    assert again.fixed == policy.fixed


def test_a_worker_that_answered_three_times_is_a_fixed_plan_of_its_own() -> None:
    table = two_kinds(60)
    thrice = tuple(a for a in table.answers if a.worker == "cheap" and a.k == 0)
    more = tuple(msgspec.structs.replace(a, k=2) for a in thrice)
    fitted = fit_policy(msgspec.structs.replace(table, answers=table.answers + more), where="here", settings=QUICK)
    named = {plan.name: plan for plan in fitted.policy.fixed}
    assert set(named) == {"cheap ×3", "vote of the best 2"}
    assert named["cheap ×3"].cost == pytest.approx(3.0)
    assert named["cheap ×3"].accuracy == pytest.approx(0.5)


def test_each_kind_of_question_gets_its_own_order(policy: Policy) -> None:
    sums = policy.plan_for("Add 700 and 701 and give the sum.", POOL)
    riddle = policy.plan_for("Who am I? Riddle 700, 1: I walk at night alone.", POOL)
    assert sums.order[0] == "cheap"
    assert riddle.order[0] == "dear"
    assert (sums.baseline, sums.accuracy is not None, sums.novel) == ("dear", True, False)


def test_a_question_unlike_any_other_gets_the_plain_plan(policy: Policy) -> None:
    found = policy.plan_for("def f(xs: list[int]) -> int: return sum(x * x for x in xs if x % 3)\nassert f([", POOL)
    assert found.novel
    assert found.accuracy is None
    assert found.end in ("last", "vote")
    assert found.until is None


def test_the_plain_plan_of_a_point_may_cost_more_than_it_and_asks_several_workers(fitted: Fitted) -> None:
    table = fitted.table
    assert table is not None
    assert table.workers == ("cheap", "dear")
    assert plain_plan(table, 0.1) == (1,), "one call of the best worker is always allowed"
    # A vote of `cheap` with itself is right most often here, but it is no hedge.
    right = {(0, 0): 0.0, (1, 0): 0.4, (0, 1): 0.3, (2, 0): 0.6, (1, 1): 0.5, (2, 1): 0.5}
    worth = np.array([right[one] for one in map(tuple, table.states.tolist())])
    changed_table = msgspec.structs.replace(table, vote_ties=np.broadcast_to(worth, table.vote_ties.shape))
    assert plain_vote(changed_table, 10.0) == (0, 0)
    assert plain_plan(changed_table, 2.0) == (0,)
    assert plain_plan(changed_table, 11.0 / HEDGE) == (0, 1)


def test_few_questions_get_shallow_trees() -> None:
    deep = msgspec.structs.replace(QUICK, few=200, few_depth=2)
    for count, depth in ((60, 2), (260, 3)):
        selector = fit_policy(two_kinds(count), where="here", settings=deep).selector
        assert selector is not None
        assert selector.features.shape[1] == depth


def test_an_order_skips_a_missing_worker(policy: Policy) -> None:
    found = policy.plan_for("Who am I? Riddle 700, 1: I walk at night alone.", ("cheap",))
    assert set(found.order) == {"cheap"}
    with pytest.raises(ConfigError, match="cheap, dear"):
        policy.plan_for("Add 1 and 2.", ("stranger",))


def test_speed_asks_all_at_once_and_limits_shorten_an_order(policy: Policy) -> None:
    question = "Add 700 and 701 and give the sum."
    assert policy.plan_for(question, POOL, prefer="speed").until is None
    assert len(policy.plan_for(question, POOL, at="price 0", most_calls=1).order) == 1


def test_operating_points_are_names_costs_and_prices(policy: Policy) -> None:
    assert policy.point("max-cost 7").cost <= 7
    assert policy.point("price 1000").cost == min(point.cost for point in policy.points)
    for wrong in ("fast", "max-cost", "max-cost 0.0001", "price x"):
        with pytest.raises(ConfigError):
            policy.point(wrong)


def test_a_saved_policy_decides_the_same(fitted: Fitted, policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path, fitted.selector)
    again = Policy.load(tmp_path)
    for text in ("Add 700 and 701 and give the sum.", "Who am I? Riddle 700, 1: I walk at night alone."):
        assert again.plan_for(text, POOL) == policy.plan_for(text, POOL)
    assert again.fingerprints == {"cheap": "f1", "dear": "f2"}


def test_versions_are_kept_and_come_back(fitted: Fitted, policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path, fitted.selector)
    assert next_version(tmp_path) == 2
    off = policy.switched("off")
    off.save(tmp_path, fitted.selector)
    assert not Policy.load(tmp_path).on
    assert roll_back(tmp_path).active == "same"
    with pytest.raises(ConfigError, match="no earlier version"):
        roll_back(tmp_path)


def test_a_folder_without_a_whole_policy_is_refused(fitted: Fitted, policy: Policy, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dirigent learn"):
        Policy.load(tmp_path)
    policy.save(tmp_path, fitted.selector)
    (tmp_path / "policy.npz").unlink()
    with pytest.raises(ConfigError, match="a part of a policy"):
        Policy.load(tmp_path)
    (tmp_path / "policy.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"policy\.json"):
        Policy.load(tmp_path)


@pytest.mark.parametrize("count", [10, 60])
def test_too_little_evidence_switches_nothing_on_and_names_the_labels_needed(count: int) -> None:
    policy = fit_policy(two_kinds(count), where="here", settings=QUICK).policy
    assert policy.active == "off"
    assert policy.why
    assert policy.more_labels is not None
    assert policy.more_labels > 0
    found = policy.plan_for("Add 1 and 2 and give the sum.", POOL)
    assert (found.order, found.end) == (("dear",), "last")


def test_estimates_alone_switch_nothing_on() -> None:
    policy = fit_policy(changed(two_kinds(300), estimated=True), where="here", settings=QUICK).policy
    assert policy.points
    assert policy.active == "off"
    assert policy.more_labels == FEWEST_LABELS
    with pytest.raises(ConfigError, match="'same'"):
        policy.switched("same")


@pytest.mark.parametrize(("right", "fact"), [(1.0, "every answer is right"), (0.0, "every answer is wrong")])
def test_a_table_with_equal_workers_is_refused(right: float, fact: str) -> None:
    with pytest.raises(ConfigError, match=fact):
        fit_policy(changed(two_kinds(40), right=right), where="here", settings=QUICK)


def test_one_worker_with_one_answer_and_a_table_without_grades_are_refused() -> None:
    table = two_kinds(40)
    one = Table(
        (TableWorker("dear"),), table.questions, tuple(a for a in table.answers if a.worker == "dear"), table.unit
    )
    with pytest.raises(ConfigError, match="nothing to choose"):
        fit_policy(one, where="here", settings=QUICK)
    ungraded = tuple(Answer(a.question, a.worker, a.k) for a in table.answers)
    with pytest.raises(ConfigError, match="no graded answer"):
        fit_policy(msgspec.structs.replace(table, answers=ungraded), where="here", settings=QUICK)


def test_a_policy_that_gains_nothing_stays_off() -> None:
    """Both workers are right at the same rate, at random, and neither is cheaper than needed."""
    table = two_kinds(300)
    rng = np.random.default_rng(1)
    answers = tuple(
        msgspec.structs.replace(a, right=float(rng.random() < (0.3 if a.worker == "cheap" else 0.9)), same=i)
        for i, a in enumerate(table.answers)
    )
    policy = fit_policy(msgspec.structs.replace(table, answers=answers), where="here", settings=QUICK).policy
    assert policy.active == "off"
    assert "dear" in policy.why


def test_equal_texts_share_a_fold() -> None:
    folds = folds_of(["a  b", "a b", "c", "d", "e"], 3, seed=1)
    assert folds[0] == folds[1]
    assert set(folds.tolist()) == {0, 1, 2}
