"""The policy first, then the conductor: where it stops, what the conductor reads, and what going on is worth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dirigent.errors import ConfigError
from dirigent.learn import table_follow_up
from dirigent.learn.grpo import Asked
from dirigent.learn.table_follow_up import FollowUpTask, Stop, policy_orders
from dirigent.learn.table_plans import PRICES, TablePlan, TableTaskSettings, read_plan
from tests.learn.recorded import CHEAP_RIGHT, CHEAP_WRONG, recorded_questions
from tests.learn.tiny_base import tiny_base

RIGHT_AND_UNSURE = Stop(0, "extreme", CHEAP_RIGHT, (0,), 10.0, unsure=True)
WRONG_AND_UNSURE = Stop(0, "extreme", CHEAP_WRONG, (1,), 20.0, unsure=True)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> FollowUpTask:
    """The policy asks `cheap` once; the selector is sure of neither sample."""
    count = 24
    orders = {price: [TablePlan(("cheap",), "select", 0.7)] for price in PRICES}
    monkeypatch.setattr(table_follow_up, "policy_orders", lambda recorded: (orders, [0] * count))
    settings = TableTaskSettings(price_whole=0.0, steps=10)
    return FollowUpTask(recorded_questions(count), tiny_base(), settings)


def test_the_policy_stops_where_its_order_ends_or_it_is_sure(task: FollowUpTask) -> None:
    stops = {task.stop(0, "low", random.Random(seed)) for seed in range(20)}
    assert stops == {
        Stop(0, "low", CHEAP_RIGHT, (0,), 10.0, unsure=True),
        Stop(0, "low", CHEAP_WRONG, (1,), 20.0, unsure=True),
    }
    task.orders["low"] = [TablePlan(("cheap", "dear"), "select", 0.5)]
    sure = {task.stop(0, "low", random.Random(seed)) for seed in range(20)}
    assert Stop(0, "low", CHEAP_WRONG, (1,), 20.0, unsure=False) in sure, "0.6 is sure enough: dear is not asked"
    assert {stop.held for stop in sure} == {CHEAP_WRONG, CHEAP_RIGHT | 0b100}


def test_going_on_is_worth_what_it_adds_to_stopping(task: FollowUpTask) -> None:
    states = [(WRONG_AND_UNSURE, 40), (RIGHT_AND_UNSURE, 40), (RIGHT_AND_UNSURE, 40), (WRONG_AND_UNSURE, 40)]
    texts = [" ask: dear select", " ask: dear select", " ask: cheap select", " accept"]
    mended, confirmed, spoiled, left = task.valued(list(zip(states, texts, strict=True)))
    # After the wrong sample dear is believed; after both samples of cheap the wrong one is.
    assert (mended["gain"], confirmed["gain"], spoiled["gain"], left["gain"]) == (1.0, 0.0, -1.0, 0.0)
    assert [fact["cost"] - fact["own_cost"] for fact in (mended, spoiled, left)] == pytest.approx([100, 20, 0])
    assert left["accept"] == 1.0
    assert left["own_cost"] > 0


async def test_the_policys_value_is_the_baseline(task: FollowUpTask) -> None:
    asked = task.asked(WRONG_AND_UNSURE)
    (group,) = await task.score([asked], [[" ask: dear select", " accept", " ask: dear", "hello"]], step=5)
    mended, left, not_chosen, nothing = group
    assert mended.advantage == mended.reward == pytest.approx(1.0 - 0.8 * mended.facts["cost"] / 1000)
    assert left.advantage == pytest.approx(-0.8 * left.facts["own_cost"] / 1000)
    assert not_chosen.facts["valid"] == nothing.facts["valid"] == 0.0
    assert nothing.reward == not_chosen.reward == pytest.approx(-0.1 + (left.reward or 0.0))


def test_the_conductor_reads_the_replies_and_how_sure_the_selector_is(task: FollowUpTask) -> None:
    asked = task.asked(msgspec.structs.replace(WRONG_AND_UNSURE, held=0b11, asked=(1, 0)))
    text = asked.prompt[-1].text
    assert "Replies:\ncheap: 5\ncheap: 4\nSure: 60%" in text
    assert asked.opening == "Price: extreme"


def test_a_long_question_is_shortened_until_the_prompt_fits(task: FollowUpTask) -> None:
    task.recorded.texts[0] = "long " * 400
    task.recorded.said[0][1] = "x" * 200
    asked = task.asked(WRONG_AND_UNSURE)
    assert len(task.base.prompt_ids(asked.prompt, asked.opening)) <= table_follow_up.MAX_PROMPT_TOKENS
    assert "[…]" in asked.prompt[-1].text
    assert "x" * 39 + "…" in asked.prompt[-1].text


def test_lessons_are_further_plans_or_acceptance(task: FollowUpTask) -> None:
    replies = [lesson.reply.strip() for lesson in task.lessons(60, random.Random(1))]
    assert 5 < replies.count("accept") < 30
    assert {read_plan(reply, task.seats).end for reply in replies if reply != "accept"} == {"select"}


def test_outcomes_are_the_policy_and_the_conductor_together(task: FollowUpTask) -> None:
    def always(text: str) -> Any:
        def write(asked: Sequence[Asked]) -> list[str]:
            return [text] * len(asked)

        return write

    accepted = task.outcomes(always(" accept"), [0])[0]
    assert accepted["right"] == accepted["alone_right"]
    assert accepted["cost"] == pytest.approx(accepted["alone_cost"] + accepted["own_cost"])
    asked_on = task.outcomes(always(" ask: dear select"), [0])[0]
    assert asked_on["right"] == 1.0
    assert asked_on["cost"] == pytest.approx(asked_on["alone_cost"] + asked_on["own_cost"] + 100)


def test_orders_are_fitted_for_every_price_and_group() -> None:
    orders, group = policy_orders(recorded_questions(24))
    assert set(orders) == set(PRICES)
    assert len(group) == 24
    assert orders["none"][0].asks[0] == "dear"


def test_nothing_to_read_and_nothing_to_plan_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = msgspec.structs.replace(recorded_questions(12), said=[[]] * 12)
    with pytest.raises(ConfigError, match="no replies to read"):
        FollowUpTask(silent, tiny_base(), TableTaskSettings())
    sure = {price: [TablePlan(("dear",), "select", 0.5)] for price in PRICES}
    monkeypatch.setattr(table_follow_up, "policy_orders", lambda recorded: (sure, [0] * 12))
    with pytest.raises(ConfigError, match="sure of every training question"):
        FollowUpTask(recorded_questions(12), tiny_base(), TableTaskSettings())
