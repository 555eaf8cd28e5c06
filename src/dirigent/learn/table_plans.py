"""Plans over recorded answers: what the conductor is shown, what it may write, and exactly what a plan is worth.

A plan names workers in order and may end in a worker that chooses among their answers:

    until 70                      stop asking once the choice is 70% sure
    answer | programmer 1 | -
    answer | thinker 2 | -
    pick | select 0 | all

Every worker was asked each question several times beforehand, so a plan has an exact value: its mean over all ways to
deal the recorded samples to its steps. It is computed over sets of samples: `right[q, s]` says whether the choice
among the samples in set `s` is right, `confidence[q, s]` how sure the selector is of it. Samples are bits of `s`:
two of `direct`, four of `think`, four of `code`.

Subtasks are constant words here, because a recorded answer cannot depend on them.
"""

# ruff: noqa: N803

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch

from dirigent.errors import PlanError
from dirigent.learn.base import Base
from dirigent.learn.grpo import Asked, Rollout
from dirigent.learn.imitate import Lesson
from dirigent.limits import Limits
from dirigent.messages import Message
from dirigent.plan.plan import parse_plan

ROLES = ("direct", "think", "code")
FIRST_BIT = {"direct": 0, "think": 2, "code": 6}
SAMPLES = {"direct": 2, "think": 4, "code": 4}
BITS = 10
SETS = 1 << BITS

NAMES = {"direct": "quick", "think": "thinker", "code": "programmer"}
ABOUT = {
    "direct": "answers at once",
    "think": "thinks step by step",
    "code": "writes a program, which is run",
}
FREE = {
    "select": "picks the answer most likely right",
    "vote": "picks the most common answer",
}
NEUTRAL = ("atlas", "brook", "cedar", "delta", "ember", "fjord", "grove", "heron", "iris", "juniper")
FAMILIES = {"gsm8k": "word problems", "math": "mathematics", "bbh": "puzzles", "crux": "reading code"}

WORKER_PARAMETERS = 1_543_714_304
"""Of the workers' model. A cost unit is one output token of it; an input token is a quarter."""

PRICES: dict[str, float] = {"none": 0.0, "tiny": 0.05, "low": 0.1, "medium": 0.2, "high": 0.4, "extreme": 0.8}
"""What 1,000 cost units are worth in right answers, by the word that the conductor reads."""

SYSTEM = "You plan which workers answer a question. You never answer it yourself."
MAX_QUESTION_CHARS = 1500

End = Literal["last", "select", "vote"]


class TablePlan(msgspec.Struct, frozen=True):
    """A plan as the table can value it."""

    asks: tuple[str, ...]
    """Roles in the order in which they are asked."""
    end: End = "last"
    until: float | None = None
    """Stop asking at this confidence; only with `select`."""


class Seat(msgspec.Struct, frozen=True):
    """One worker of a pool as it was shown: its name, and the role or free worker behind it."""

    name: str
    role: str


class Row(msgspec.Struct, frozen=True):
    """What scoring needs of a question as it was asked."""

    question: int
    pool: tuple[Seat, ...]
    price: str
    prompt_tokens: int


class RecordedQuestions(msgspec.Struct, frozen=True):
    """Questions with the value of every set of recorded samples. Arrays have a row for each question."""

    ids: list[str]
    texts: list[str]
    families: list[str]
    splits: list[str]
    folds: list[int]
    right: torch.Tensor
    confidence: torch.Tensor
    vote: torch.Tensor
    single: torch.Tensor
    cost: torch.Tensor

    @classmethod
    def load(cls, folder: Path, *, device: str) -> RecordedQuestions:
        rows = [msgspec.json.decode(line) for line in (folder / "questions.jsonl").read_bytes().splitlines()]
        arrays = np.load(folder / "values.npz")
        tensors = {
            name: torch.from_numpy(arrays[name].astype(np.float32)).to(device)
            for name in ("right", "confidence", "vote", "single", "cost")
        }
        families = [next(f for f in FAMILIES if row["set"].startswith(f)) for row in rows]
        return cls(
            ids=[row["id"] for row in rows],
            texts=[row["text"] for row in rows],
            families=families,
            splits=[row["split"] for row in rows],
            folds=[row["fold"] for row in rows],
            **tensors,
        )

    def places(self, split: str) -> list[int]:
        return [i for i, one in enumerate(self.splits) if one == split]


# ---- what a plan is worth -----------------------------------------------------------------------------------


class PlanValues:
    """Exact expected accuracy, cost and number of calls of plans, many at a time."""

    def __init__(self, recorded: RecordedQuestions) -> None:
        self.recorded = recorded
        device = recorded.cost.device
        self._moves = {}
        self._next = {}
        self._alone = torch.stack(
            [recorded.single[:, FIRST_BIT[r] : FIRST_BIT[r] + SAMPLES[r]].mean(1) for r in ROLES], dim=1
        )
        for role in ROLES:
            bits = range(FIRST_BIT[role], FIRST_BIT[role] + SAMPLES[role])
            move = torch.zeros(SETS, SETS)
            weight = torch.zeros(BITS, SETS)
            for held in range(SETS):
                left = [bit for bit in bits if not held >> bit & 1]
                for bit in left:
                    move[held, held | 1 << bit] = 1 / len(left)
                    weight[bit, held] = 1 / len(left)
            self._moves[role] = move.to(device)
            self._next[role] = weight.to(device)

    def of(
        self, questions: Sequence[int], plans: Sequence[TablePlan]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(right, cost, calls) of each plan for its question, as means over all ways to deal samples to steps."""
        recorded = self.recorded
        device = recorded.cost.device
        if not plans:
            return (torch.zeros(0), torch.zeros(0), torch.zeros(0))
        at = torch.tensor(list(questions), device=device, dtype=torch.long)
        rows = len(plans)
        chance = torch.zeros(rows, SETS, device=device)
        chance[:, 0] = 1.0
        threshold = torch.tensor([2.0 if p.until is None else p.until for p in plans], device=device)
        asking = recorded.confidence[at] < threshold[:, None]
        asking[:, 0] = True
        cost = torch.zeros(rows, device=device)
        calls = torch.zeros(rows, device=device)
        for turn in range(max((len(plan.asks) for plan in plans), default=0)):
            for role in ROLES:
                these = [i for i, plan in enumerate(plans) if turn < len(plan.asks) and plan.asks[turn] == role]
                if not these:
                    continue
                r = torch.tensor(these, device=device)
                going = chance[r] * asking[r]
                cost[r] += (going * (recorded.cost[at[r]] @ self._next[role])).sum(1)
                calls[r] += going.sum(1)
                chance[r] = chance[r] - going + going @ self._moves[role]
        # The last step's sample is any of its role's, so the mean of a role is what its reply is worth alone.
        last = torch.tensor([ROLES.index(plan.asks[-1]) for plan in plans], device=device, dtype=torch.long)
        worth = {
            "last": self._alone[at, last],
            "select": (chance * recorded.right[at]).sum(1),
            "vote": (chance * recorded.vote[at]).sum(1),
        }
        right = torch.zeros(rows, device=device)
        for end, values in worth.items():
            right = torch.where(torch.tensor([plan.end == end for plan in plans], device=device), values, right)
        return right, cost, calls


# ---- the language of plans ----------------------------------------------------------------------------------


def read_plan(text: str, pool: Sequence[Seat]) -> TablePlan:
    """The plan in the text; raises PlanError where the text is no plan, or asks for what was not recorded."""
    roles = {seat.name: seat.role for seat in pool}
    plan = parse_plan(text, [seat.name for seat in pool], Limits(max_steps=BITS + 1), dialect="lines")
    *before, last = plan.steps
    end: End = "last"
    if (choice := roles[last.worker]) in FREE:
        if last.access != tuple(range(len(before))) or not before:
            raise PlanError(f"{last.worker} must read every step before it")
        end = "select" if choice == "select" else "vote"
    else:
        before.append(last)
    asks = []
    for index, step in enumerate(before):
        role = roles[step.worker]
        if role in FREE or step.access:
            raise PlanError(f"step {index}: {step.worker} reading {list(step.access)} was not recorded")
        asks.append(role)
    for role in ROLES:
        if asks.count(role) > SAMPLES[role]:
            raise PlanError(f"{role} is asked {asks.count(role)} times; {SAMPLES[role]} samples were recorded")
    if plan.until is not None and end != "select":
        raise PlanError("until needs a last step by the worker that selects")
    return TablePlan(tuple(asks), end, plan.until)


def write_plan(plan: TablePlan, pool: Sequence[Seat]) -> str:
    """The plan as the conductor writes it."""
    place = {seat.role: f"{seat.name} {i}" for i, seat in enumerate(pool)}
    lines = [] if plan.until is None else [f"until {round(plan.until * 100)}"]
    lines += [f"answer | {place[role]} | -" for role in plan.asks]
    if plan.end != "last":
        lines.append(f"pick | {place[plan.end]} | all")
    return "\n".join(lines)


def random_plan(pool: Sequence[Seat], rng: random.Random) -> TablePlan:
    """Any valid plan over the pool, without a look at the question."""
    available = [seat.role for seat in pool if seat.role in ROLES for _ in range(SAMPLES[seat.role])]
    count = rng.randint(1, min(8, len(available)))
    asks = tuple(rng.sample(available, count))
    ends: list[End] = ["last"]
    free = {seat.role for seat in pool} & set(FREE)
    if "select" in free:
        ends += ["select"] * (1 if count == 1 else 5)
    if "vote" in free and count > 1:
        ends.append("vote")
    end = rng.choice(ends)
    until = rng.randrange(20, 100, 5) / 100 if end == "select" and count > 1 and rng.random() < 0.7 else None
    return TablePlan(asks, end, until)


# ---- the task -----------------------------------------------------------------------------------------------


class TableTaskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    invalid: float = -0.1
    price_whole: float = 0.1
    """Share of the steps after which it counts in full."""
    neutral_names: float = 0.15
    """Share of the questions whose workers have names that say nothing."""
    smaller_pools: float = 0.25
    """Share of the questions with a part of the pool only."""
    family_weights: dict[str, float] = msgspec.field(
        default_factory=lambda: {"gsm8k": 0.3, "math": 0.3, "bbh": 0.2, "crux": 0.2}
    )
    steps: int = 300
    """Of the run, which the shares above are of."""
    control: Literal["none", "format", "shuffled"] = "none"
    """What a control learns from: every valid plan alike, or rewards dealt out at random within a group."""


class TableTask:
    """Questions with recorded answers as a task for `grpo.train`."""

    def __init__(self, recorded: RecordedQuestions, base: Base, settings: TableTaskSettings) -> None:
        self.recorded = recorded
        self.base = base
        self.settings = settings
        self.values = PlanValues(recorded)
        self._price_share = base.parameters / WORKER_PARAMETERS
        self._train = {f: [i for i in recorded.places("train") if recorded.families[i] == f] for f in FAMILIES}
        self._cards = {fold: self._measured(fold) for fold in sorted({*recorded.folds, -1})}
        self._lengths: dict[str, int] = {}

    def draw(self, count: int, *, step: int, rng: random.Random) -> list[Asked]:
        families = rng.choices(list(FAMILIES), [self.settings.family_weights[f] for f in FAMILIES], k=count)
        return [
            self.asked(rng.choice(self._train[f]), price=rng.choice(list(PRICES)), pool=self._pool(rng))
            for f in families
        ]

    def lessons(self, count: int, rng: random.Random) -> list[Lesson]:
        """Random valid plans for training questions: the language, and no hint which plan suits which question."""
        asked = self.draw(count, step=0, rng=rng)
        return [Lesson(a.prompt, write_plan(random_plan(a.extra.pool, rng), a.extra.pool)) for a in asked]

    def asked(self, question: int, *, price: str, pool: Sequence[Seat] | None = None) -> Asked:
        """The question as the conductor reads it; the whole pool under its own names unless another is given."""
        seats = tuple(pool or whole_pool())
        recorded = self.recorded
        training = recorded.splits[question] == "train"
        cards = self._cards[recorded.folds[question] if training else -1]
        shown = "\n".join(f"{i} {seat.name}: {cards[seat.role]}" for i, seat in enumerate(seats))
        text = recorded.texts[question]
        if len(text) > MAX_QUESTION_CHARS:
            half = MAX_QUESTION_CHARS // 2
            text = f"{text[:half]} […] {text[-half:]}"
        # Workers first, so that their part can be cached; the price last, where a small model looks first.
        user = f"Workers:\n{shown}\nQuestion:\n{text}\nPrice: {price}"
        prompt = (Message("system", SYSTEM), Message("user", user))
        row = Row(question, seats, price, len(self.base.prompt_ids(prompt)))
        return Asked(recorded.ids[question], prompt, row)

    async def score(
        self, asked: Sequence[Asked], plans_PG: Sequence[Sequence[str]], *, step: int
    ) -> list[list[Rollout]]:
        scale = self._price_scale(step)
        found = iter(
            self.valued([(one.extra, text) for one, group in zip(asked, plans_PG, strict=True) for text in group])
        )
        rng = random.Random(step)
        groups = []
        for one, group in zip(asked, plans_PG, strict=True):
            rollouts = []
            for _ in group:
                facts = next(found)
                reward = self.settings.invalid
                if facts["valid"]:
                    reward = facts["right"] - scale * PRICES[one.extra.price] * facts["cost"] / 1000
                    # Sampled cost by price: it must fall as the price rises, or the price's word is not read.
                    facts[f"cost_at_{one.extra.price}"] = facts["cost"]
                    if self.settings.control == "format":
                        reward = 1.0
                rollouts.append(Rollout(reward, facts))
            if self.settings.control == "shuffled":
                rewards = [rollout.reward for rollout in rollouts]
                rng.shuffle(rewards)
                rollouts = [msgspec.structs.replace(r, reward=w) for r, w in zip(rollouts, rewards, strict=True)]
            groups.append(rollouts)
        return groups

    def valued(self, texts: Sequence[tuple[Row, str]]) -> list[dict[str, float]]:
        """What each text is worth as a plan for its row. The cost includes what writing the plan costs."""
        plans: list[TablePlan | None] = []
        for row, text in texts:
            try:
                plans.append(read_plan(text, row.pool))
            except PlanError:
                plans.append(None)
        good = [i for i, plan in enumerate(plans) if plan is not None]
        kept = [plan for plan in plans if plan is not None]
        right, cost, calls = (t.tolist() for t in self.values.of([texts[i][0].question for i in good], kept))
        facts: list[dict[str, float]] = [{"valid": 0.0} for _ in texts]
        for place, plan, r, c, n in zip(good, kept, right, cost, calls, strict=True):
            row, text = texts[place]
            own = self._price_share * (row.prompt_tokens / 4 + self._length(text))
            facts[place] = {"valid": 1.0, "right": r, "cost": c + own, "own_cost": own, "calls": n, **_form(plan)}
        return facts

    def measure(self, write: Callable[[Sequence[Asked]], list[str]]) -> dict[str, float]:
        """Greedy plans for every development question at every price, and for as many training questions."""
        development = self.recorded.places("dev")
        facts = self.front(write, development)
        some = random.Random(0).sample(self.recorded.places("train"), min(len(development), 150))
        facts["train_utility"] = self.front(write, some)["utility"]
        return facts

    def outcomes(self, write: Callable[[Sequence[Asked]], list[str]], questions: Sequence[int]) -> list[dict[str, Any]]:
        """Every question at every price: the greedy plan and what it is worth."""
        asked = [self.asked(q, price=price) for price in PRICES for q in questions]
        plans = write(asked)
        found = self.valued([(one.extra, text) for one, text in zip(asked, plans, strict=True)])
        return [
            {"id": one.id, "price": one.extra.price, "plan": text, **facts}
            for one, text, facts in zip(asked, plans, found, strict=True)
        ]

    def front(self, write: Callable[[Sequence[Asked]], list[str]], questions: Sequence[int]) -> dict[str, float]:
        facts: dict[str, float] = {}
        utilities = []
        for price, worth in PRICES.items():
            asked = [self.asked(q, price=price) for q in questions]
            found = self.valued([(one.extra, text) for one, text in zip(asked, write(asked), strict=True)])
            right = float(np.mean([f.get("right", 0.0) for f in found]))
            cost = float(np.mean([f.get("cost", 0.0) for f in found]))
            utilities.append(right - worth * cost / 1000)
            facts |= {f"{price}/right": right, f"{price}/cost": cost}
            facts[f"{price}/valid"] = float(np.mean([f["valid"] for f in found]))
            facts[f"{price}/calls"] = float(np.mean([f.get("calls", 0.0) for f in found]))
        facts["utility"] = float(np.mean(utilities))
        return facts

    def _pool(self, rng: random.Random) -> tuple[Seat, ...]:
        roles: list[str] = list(ROLES)
        free = list(FREE)
        if rng.random() < self.settings.smaller_pools:
            roles = rng.sample(roles, rng.randint(1, len(roles)))
            free = [one for one in free if rng.random() < 0.7]
            if len(roles) + len(free) < 2:
                free = ["select"]
        everybody = roles + free
        rng.shuffle(everybody)
        if rng.random() < self.settings.neutral_names:
            return tuple(
                Seat(name, role) for name, role in zip(rng.sample(NEUTRAL, len(everybody)), everybody, strict=True)
            )
        return tuple(Seat(NAMES.get(role, role), role) for role in everybody)

    def _measured(self, but_fold: int) -> dict[str, str]:
        """Cards, measured on training questions of every fold but one."""
        recorded = self.recorded
        cards = {role: f"{about}. free" for role, about in FREE.items()}
        for role in ROLES:
            bits = slice(FIRST_BIT[role], FIRST_BIT[role] + SAMPLES[role])
            parts = []
            costs = []
            for family, name in FAMILIES.items():
                rows = [i for i in self._train[family] if recorded.folds[i] != but_fold]
                parts.append(f"{name} {100 * float(recorded.single[rows, bits].mean()):.0f}%")
                costs.append(float(recorded.cost[rows, bits].mean()))
            cards[role] = f"{ABOUT[role]}. {', '.join(parts)}. {round(float(np.mean(costs)), -1):.0f} units"
        return cards

    def _price_scale(self, step: int) -> float:
        return min(1.0, step / max(1.0, self.settings.price_whole * self.settings.steps))

    def _length(self, text: str) -> int:
        if text not in self._lengths:
            self._lengths[text] = len(self.base.reply_ids(text))
        return self._lengths[text]


def whole_pool() -> tuple[Seat, ...]:
    """Every role and free worker under its own name, in one order."""
    return tuple(Seat(NAMES.get(role, role), role) for role in (*ROLES, *FREE))


def _form(plan: TablePlan) -> Mapping[str, Any]:
    return {
        "asks": float(len(plan.asks)),
        "until": float(plan.until is not None),
        "select": float(plan.end == "select"),
        "last": float(plan.end == "last"),
        "direct": float(plan.asks.count("direct")),
        "think": float(plan.asks.count("think")),
        "code": float(plan.asks.count("code")),
    }
