"""The policy first, then the conductor: where the policy stops unsure, a conductor reads the replies and may ask on.

A state is a question with the samples that the policy was dealt, where its order ended and the selector's confidence
stayed under the threshold. The conductor writes `accept`, or a further plan that ends in the worker that selects. It
earns what that adds to stopping:

    right after it - right at the stop - price x (cost of the further answers, its prompt and its plan) / 1000

Given the dealt samples this is exact, as in `table_plans`. Stopping earns 0, so the advantage of a plan is its reward:
the policy's own value is the baseline. The rival is the policy at a lower price, which spends the same money on more
samples without reading them.
"""

# ruff: noqa: N803, N806

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from dirigent.errors import ConfigError, PlanError
from dirigent.learn.base import Base
from dirigent.learn.grpo import Asked, Rollout
from dirigent.learn.imitate import Lesson
from dirigent.learn.table_orders import Grouping, best_plan, searched, weighted
from dirigent.learn.table_plans import (
    PRICES,
    WORKER_PARAMETERS,
    PlanValues,
    RecordedQuestions,
    TablePlan,
    TableTaskSettings,
    front,
    random_plan,
    read_plan,
    whole_pool,
    write_plan,
)
from dirigent.messages import Message

SYSTEM = "Workers answered a question and nobody is sure. You plan whom to ask besides, or accept. You never answer it."
MAX_PROMPT_TOKENS = 700
MAX_REPLY_CHARS = 40
GROUPS = 12
PER_GROUP = 60
DEALS = 4
"""Ways to deal the samples on which an outcome is a mean."""


class Stop(msgspec.Struct, frozen=True):
    """Where the policy ended on one deal of a question's samples."""

    question: int
    price: str
    held: int
    """The set of samples that were dealt."""
    asked: tuple[int, ...]
    """Their bits in the order in which they were asked."""
    cost: float
    unsure: bool
    """Whether the order ended with a confidence under its threshold."""


class FollowUpTask:
    """States in which the policy stopped unsure, as a task for `grpo.train`."""

    def __init__(self, recorded: RecordedQuestions, base: Base, settings: TableTaskSettings) -> None:
        if any(not answers for answers in recorded.said):
            raise ConfigError("these values hold no replies to read; write them anew with dirigent.learn.values")
        self.recorded = recorded
        self.base = base
        self.settings = settings
        self.values = PlanValues(recorded)
        self.seats = [seat for seat in whole_pool(recorded.pool) if seat.role != "vote"]
        price = recorded.pool.plan_token_cost
        self._token_cost = base.parameters / WORKER_PARAMETERS if price is None else price
        self.orders, self._group = policy_orders(recorded)
        rng = random.Random("states")
        train = [self.stop(q, price, rng) for q in recorded.places("train") for price in PRICES]
        self._unsure = [state for state in train if state.unsure]
        if not self._unsure:
            raise ConfigError("the policy is sure of every training question; there is nothing to plan on for")

    def stop(self, question: int, price: str, rng: random.Random) -> Stop:
        """Where the policy ends on a deal of the question's samples."""
        plan = self.orders[price][self._group[question]]
        left = {name: rng.sample(bits, len(bits)) for name in set(plan.asks) if (bits := self.recorded.pool.bits(name))}
        held, asked, cost = 0, [], 0.0
        threshold = 0.0 if plan.until is None else plan.until
        for name in plan.asks:
            bit = left[name].pop()
            held |= 1 << bit
            asked.append(bit)
            cost += float(self.recorded.cost[question, bit])
            if plan.until is not None and self.recorded.confidence[question, held] >= threshold:
                break
        unsure = bool(self.recorded.confidence[question, held] < threshold)
        return Stop(question, price, held, tuple(asked), cost, unsure)

    def draw(self, count: int, *, step: int, rng: random.Random) -> list[Asked]:
        return [self.asked(rng.choice(self._unsure)) for _ in range(count)]

    def lessons(self, count: int, rng: random.Random) -> list[Lesson]:
        """Random further plans, and `accept` as one of four: the language, and no hint when to use which."""
        lessons = []
        for one in self.draw(count, step=0, rng=rng):
            plan = random_plan(self.seats, rng)
            while plan.end != "select":
                plan = random_plan(self.seats, rng)
            text = "accept" if rng.random() < 0.25 else write_plan(plan, self.seats)
            lessons.append(Lesson(one.prompt, f" {text}", one.opening))
        return lessons

    def asked(self, state: Stop) -> Asked:
        """The state as the conductor reads it. A long question is shortened until the prompt fits."""
        recorded = self.recorded
        slots = recorded.pool.slots
        said = recorded.said[state.question]
        replies = "\n".join(f"{slots[bit][0]}: {_short(said[bit])}" for bit in state.asked)
        sure = float(recorded.confidence[state.question, state.held])
        workers = ", ".join(seat.name for seat in self.seats)
        text = recorded.texts[state.question]
        opening = f"Price: {state.price}"
        while True:
            asked = f"Workers: {workers}\nQuestion:\n{text}\nReplies:\n{replies}\nSure: {100 * sure:.0f}%"
            prompt = (Message("system", SYSTEM), Message("user", asked))
            length = len(self.base.prompt_ids(prompt, opening))
            if length <= MAX_PROMPT_TOKENS or len(text) < 100:
                return Asked(recorded.ids[state.question], prompt, (state, length), opening)
            half = len(text) // 3
            text = f"{text[:half]} […] {text[-half:]}"

    async def score(
        self, asked: Sequence[Asked], plans_PG: Sequence[Sequence[str]], *, step: int
    ) -> list[list[Rollout]]:
        scale = min(1.0, (step + 1) / max(1.0, self.settings.price_whole * self.settings.steps))
        flat = [(one.extra, text) for one, group in zip(asked, plans_PG, strict=True) for text in group]
        found = iter(self.valued(flat))
        groups = []
        for one, group in zip(asked, plans_PG, strict=True):
            price = scale * PRICES[one.extra[0].price] / 1000
            facts_G = [next(found) for _ in group]
            rewards = [f["gain"] - price * f["cost"] if f["valid"] else None for f in facts_G]
            worst = min((reward for reward in rewards if reward is not None), default=0.0)
            nothing = self.settings.invalid + min(0.0, worst)
            whole = [nothing if reward is None else reward for reward in rewards]
            groups.append([Rollout(r, facts, advantage=r) for r, facts in zip(whole, facts_G, strict=True)])
        return groups

    def valued(self, texts: Sequence[tuple[tuple[Stop, int], str]]) -> list[dict[str, float]]:
        """What each text adds to stopping at its state: right answers, and the cost of plan and answers."""
        plans: list[TablePlan | None] = []
        facts: list[dict[str, float]] = []
        for (_, length), text in texts:
            own = self._token_cost * (length / 4 + len(self.base.reply_ids(text)))
            fact = {"valid": 1.0, "accept": 0.0, "gain": 0.0, "cost": own, "own_cost": own, "calls": 0.0}
            plan = None
            if text.strip() == "accept":
                fact["accept"] = 1.0
            else:
                try:
                    plan = read_plan(text, self.seats)
                    if plan.end != "select":
                        raise PlanError("a further plan ends in the worker that selects")
                except PlanError:
                    fact["valid"], plan = 0.0, None
            plans.append(plan)
            facts.append(fact)
        good = [i for i, plan in enumerate(plans) if plan is not None]
        kept = [plan for plan in plans if plan is not None]
        states = [texts[i][0][0] for i in good]
        found = self.values.of([s.question for s in states], kept, held=[s.held for s in states])
        for i, state, r, c, n in zip(good, states, *(one.tolist() for one in found), strict=True):
            facts[i]["gain"] = r - float(self.recorded.right[state.question, state.held])
            facts[i]["cost"] += c
            facts[i]["calls"] = n
        return facts

    def measure(self, write: Callable[[Sequence[Asked]], list[str]]) -> dict[str, float]:
        facts = front(self.outcomes(write, self.recorded.places("dev")))
        facts["train_utility"] = front(self.outcomes(write, self.some_training()))["utility"]
        return facts

    def some_training(self) -> list[int]:
        train = self.recorded.places("train")
        return random.Random(0).sample(train, min(len(train), len(self.recorded.places("dev"))))

    def outcomes(self, write: Callable[[Sequence[Asked]], list[str]], questions: Sequence[int]) -> list[dict[str, Any]]:
        """Every question at every price: policy and conductor together, as means over a few deals.

        `alone_right` and `alone_cost` are the policy's without the conductor, on the same deals.
        """
        states = [
            [self.stop(q, price, random.Random(f"{self.recorded.ids[q]} {price} {deal}")) for deal in range(DEALS)]
            for price in PRICES
            for q in questions
        ]
        unsure = list(dict.fromkeys(state for own in states for state in own if state.unsure))
        asked = [self.asked(state) for state in unsure]
        texts = write(asked) if asked else []
        worth = self.valued([(one.extra, text) for one, text in zip(asked, texts, strict=True)])
        added = dict(zip(unsure, zip(texts, worth, strict=True), strict=True))
        return [self._row(own, added) for own in states]

    def _row(self, states: Sequence[Stop], added: Mapping[Stop, tuple[str, Mapping[str, float]]]) -> dict[str, Any]:
        rows = []
        for state in states:
            _, fact = added.get(state, ("", {}))
            right = float(self.recorded.right[state.question, state.held])
            rows.append(
                {
                    "alone_right": right,
                    "alone_cost": state.cost,
                    "right": right + fact.get("gain", 0.0),
                    "cost": state.cost + fact.get("cost", 0.0),
                    "own_cost": fact.get("own_cost", 0.0),
                    "calls": len(state.asked) + fact.get("calls", 0.0),
                    "valid": fact.get("valid", 1.0),
                    "unsure": float(state.unsure),
                    "accept": fact.get("accept", 0.0),
                }
            )
        first = states[0]
        plans = [added[state][0].strip() for state in states if state in added]
        means = {name: math.fsum(row[name] for row in rows) / len(rows) for name in rows[0]}
        return {"id": self.recorded.ids[first.question], "price": first.price, "plan": "; ".join(plans), **means}


def policy_orders(recorded: RecordedQuestions) -> tuple[dict[str, list[TablePlan]], list[int]]:
    """For every price the policy's order in each group of questions, and the group of every question.

    Groups and orders are fitted on training questions alone.
    """
    train = recorded.places("train")
    kinds = [recorded.families[q] for q in train]
    weights = np.array([1 / kinds.count(kind) for kind in kinds])
    found = searched(recorded, train, weights)
    count = min(GROUPS, max(1, len(train) // PER_GROUP))
    grouping = Grouping.fitted([recorded.texts[q] for q in train], count)
    group = grouping.of(recorded.texts)
    own = group[np.array(train)]
    parts = [weighted(found, weights * (own == g)) if (own == g).any() else found for g in range(count)]
    orders = {name: [best_plan(part, price) for part in parts] for name, price in PRICES.items()}
    return orders, group.tolist()


def _short(reply: str) -> str:
    text = " ".join(reply.split())
    return (text if len(text) <= MAX_REPLY_CHARS else f"{text[: MAX_REPLY_CHARS - 1]}…") or "nothing"
