"""What a plan over recorded answers says, what it is worth, and what the conductor is shown."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dirigent.errors import ConfigError, PlanError
from dirigent.learn.grpo import Asked
from dirigent.learn.table_orders import Grouping, best_plan, searched, utilities, weighted
from dirigent.learn.table_plans import (
    PRICES,
    PlanValues,
    Seat,
    TablePlan,
    TableTask,
    TableTaskSettings,
    front,
    random_plan,
    read_plan,
    whole_pool,
    write_plan,
)
from tests.learn.recorded import POOL, recorded_questions
from tests.learn.tiny_base import tiny_base

SEATS = whole_pool(POOL)


# ---- the language -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("ask: cheap", TablePlan(("cheap",))),
        ("ask: cheap dear vote", TablePlan(("cheap", "dear"), "vote")),
        ("until 70: dear cheap select", TablePlan(("dear", "cheap"), "select", 0.7)),
    ],
)
def test_a_plan_is_read_and_written(text: str, plan: TablePlan) -> None:
    assert read_plan(text, SEATS) == plan
    assert write_plan(plan, SEATS) == text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is no plan"),
        ("ask cheap", "is no plan"),
        ("until 70 cheap select", "is no plan"),
        ("ask: nobody", "no worker 'nobody'"),
        ("ask: select", "no answer to choose from"),
        ("ask: cheap select dear", "can only come last"),
        ("until 70: cheap dear", "until needs a last step"),
        ("ask: " + "cheap " * 10 + "cheap", "at most 10"),
    ],
)
def test_what_is_no_plan_is_refused_with_its_fault(text: str, fault: str) -> None:
    with pytest.raises(PlanError, match=fault):
        read_plan(text, SEATS)


def test_random_plans_are_valid_for_every_pool() -> None:
    rng = random.Random(1)
    for pool in (SEATS, (Seat("atlas", "cheap", 2), Seat("brook", "select"))):
        for _ in range(200):
            plan = random_plan(pool, rng)
            assert read_plan(write_plan(plan, pool), pool) == plan


# ---- values -------------------------------------------------------------------------------------------------


def test_a_plan_is_worth_its_mean_over_all_deals() -> None:
    """`cheap` has one right and one wrong sample, at 10 and 20 units; the selector believes the wrong one."""
    values = PlanValues(recorded_questions())
    plans = [
        TablePlan(("cheap",)),
        TablePlan(("cheap", "cheap"), "select"),
        TablePlan(("cheap", "dear"), "select", 0.5),
    ]
    right, cost, calls = values.of([0, 0, 0], plans)
    assert right[0].item() == 0.5
    assert cost[:2].tolist() == [15, 30]
    # Both samples: the selector picks the wrong one. Sure after a wrong sample (0.6), not after a right one (0.4):
    # half of the deals stop at the wrong answer, the others pay `dear`, and the selector believes it.
    assert right[1].item() == 0.0
    assert right[2].item() == 0.5
    assert (cost[2].item(), calls[2].item()) == (15 + 0.5 * 100, 1.5)


def test_a_worker_that_is_asked_too_often_repeats_itself_at_full_cost() -> None:
    values = PlanValues(recorded_questions())
    twice, thrice = TablePlan(("dear",), "select"), TablePlan(("dear", "dear", "dear"), "select")
    right, cost, _ = values.of([0, 0], [twice, thrice])
    assert right.tolist() == [1.0, 1.0]
    assert cost.tolist() == [100, 300]


# ---- the task -----------------------------------------------------------------------------------------------


def task(**settings: Any) -> TableTask:
    return TableTask(recorded_questions(24), tiny_base(), TableTaskSettings(**settings))


def test_the_reply_opens_with_the_price_and_the_workers_come_first() -> None:
    made = task()
    asked = made.asked(0, price="extreme")
    user = asked.prompt[-1].text
    assert user.startswith("Workers:\ncheap: a cheap one. sums 50%")
    assert user.endswith("Add 0 and 0")
    assert made.base.text(made.base.prompt_ids(asked.prompt, asked.opening)).endswith("Price: extreme")
    assert 0 < asked.extra.prefix_tokens < asked.extra.prompt_tokens


def test_cards_show_a_training_question_nothing_of_its_own_fold() -> None:
    recorded = recorded_questions(24)
    recorded.single[[i for i, fold in enumerate(recorded.folds) if fold == 0]] = 1.0
    shown = TableTask(recorded, tiny_base(), TableTaskSettings())
    in_fold = recorded.folds.index(0)
    outside = recorded.folds.index(1)
    assert "sums 50%" in shown.asked(in_fold, price="none").prompt[-1].text
    assert "sums 50%" not in shown.asked(outside, price="none").prompt[-1].text


async def test_the_reward_is_right_less_price_times_cost() -> None:
    made = task(price_whole=0.0, steps=10)
    asked = made.asked(0, price="extreme")
    ((cheap, nothing),) = await made.score([asked], [["ask: cheap", "hello"]], step=5)
    assert cheap.facts["cost"] == pytest.approx(15 + cheap.facts["own_cost"])
    assert cheap.reward == pytest.approx(0.5 - 0.8 * cheap.facts["cost"] / 1000)
    assert nothing.reward == -0.1
    assert cheap.facts["cost_at_extreme"] == cheap.facts["cost"]


async def test_no_text_beats_a_plan_by_being_no_plan() -> None:
    recorded = recorded_questions(24)
    recorded.cost[:] = 3000.0
    made = TableTask(recorded, tiny_base(), TableTaskSettings(price_whole=0.0, steps=10))
    ((costly, nothing),) = await made.score([made.asked(0, price="extreme")], [["ask: dear", "hello"]], step=5)
    assert costly.reward is not None
    assert nothing.reward is not None
    assert nothing.reward < costly.reward < -0.1


async def test_imitation_copies_the_best_plan_of_a_group_and_no_other() -> None:
    made = task(learner="imitation", price_whole=0.0, steps=10)
    ((dear, nothing),) = await made.score([made.asked(0, price="none")], [["ask: dear", "hello"]], step=5)
    assert (dear.advantage, nothing.advantage) == (1.0, 0.0)
    ((one, other),) = await made.score([made.asked(0, price="none")], [["ask: dear", "ask: dear"]], step=5)
    assert (one.advantage, other.advantage) == (0.0, 0.0)


async def test_controls_learn_from_form_alone_or_from_rewards_dealt_out() -> None:
    plans = [["ask: dear", "ask: cheap", "hello"]]
    made = task(learner="format")
    (format_only,) = await made.score([made.asked(0, price="none")], plans, step=5)
    assert [one.reward for one in format_only] == [1.0, 1.0, -0.1]
    made = task(learner="shuffled")
    (dealt,) = await made.score([made.asked(0, price="none")], plans, step=4)
    assert sorted(one.reward or 0.0 for one in dealt) == [-0.1, 0.5, 1.0]


def test_a_worker_that_training_never_meets_is_in_no_pool_of_it() -> None:
    made = task(without_worker="dear", smaller_pools=0.5)
    rng = random.Random(1)
    assert all(seat.role != "dear" for one in made.draw(40, step=0, rng=rng) for seat in one.extra.pool)
    assert any(seat.role == "dear" for seat in made.asked(0, price="low").extra.pool)


def test_outcomes_hold_every_question_at_every_price() -> None:
    made = task()
    rows = made.outcomes(written("ask: cheap"), [0, 1])
    assert [(row["id"], row["price"]) for row in rows] == [(f"q{q}", price) for price in PRICES for q in (0, 1)]
    facts = front(rows)
    assert facts["none/right"] == 0.5
    assert facts["none/cost"] == pytest.approx(np.mean([row["cost"] for row in rows if row["price"] == "none"]))
    wrong = made.outcomes(written("nonsense"), [0])
    assert wrong[0]["right"] == 0.0
    assert wrong[0]["cost"] == wrong[0]["own_cost"] > 0


def test_weights_of_an_unknown_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="poems"):
        task(kind_weights={"poems": 1.0})


# ---- orders -------------------------------------------------------------------------------------------------


def test_the_best_order_depends_on_the_price() -> None:
    recorded = recorded_questions(24)
    places = recorded.places("train")
    found = searched(recorded, places, np.ones(len(places)))
    assert best_plan(found, 0.0).asks[0] == "dear"
    assert best_plan(found, 20.0).asks == ("cheap",)


def test_a_replay_over_deals_agrees_with_the_exact_value() -> None:
    recorded = recorded_questions(24)
    places = recorded.places("train")
    found = searched(recorded, places, np.ones(len(places)))
    plan = TablePlan(("dear", "cheap"), "select", 0.95)
    right, cost, _ = PlanValues(recorded).of(places, [plan] * len(places))
    exact = (right - 0.4 * cost / 1000).mean().item()
    assert utilities(found, plan, 0.4).mean() == pytest.approx(exact, abs=0.01)
    half = weighted(found, np.arange(len(places)) % 2 * 1.0)
    assert len(half.questions) == len(places) // 2


def test_texts_of_like_words_fall_into_one_group() -> None:
    sums = [f"Add {i} and {i + 1} and give the sum" for i in range(10)]
    riddles = ["Who walks at night alone under the moon" for _ in range(10)]
    groups = Grouping.fitted(sums + riddles, 2).of(["Add 7 and 9 and give the sum", riddles[0]])
    assert groups[0] != groups[1]


def written(text: str) -> Any:
    def write(asked: Sequence[Asked]) -> list[str]:
        return [text] * len(asked)

    return write
