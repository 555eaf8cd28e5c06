"""Plans over recorded answers: what the conductor is shown, what it may write, and exactly what a plan is worth.

A plan names workers in order and may end in a worker that chooses among their answers:

    until 70: programmer thinker select      stop asking once the choice is 70% sure
    ask: programmer                          its reply is the answer

Every worker was asked each question several times beforehand, so a plan has an exact value: its mean over all ways to
deal the recorded samples to its steps; a worker that is asked more often repeats itself at full cost. Values are kept
for sets of samples: `right[q, s]` says whether the choice among the samples in set `s` is right, `confidence[q, s]` how
sure the selector is of it. Samples are bits of `s`.

A recorded answer cannot depend on a subtask, so plans hold none: a plan of eight steps is ten tokens, not seventy.
"""

# ruff: noqa: N803, N806

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch

from dirigent.errors import ConfigError, PlanError
from dirigent.learn.base import Base
from dirigent.learn.grpo import Asked, Rollout
from dirigent.learn.imitate import Lesson
from dirigent.learn.values import QWEN_IN_ROLES, RecordedPool
from dirigent.messages import Message
from dirigent.plan.dialects import clipped

FREE = {
    "select": "picks the answer most likely right",
    "vote": "picks the most common answer",
}
NEUTRAL = ("atlas", "brook", "cedar", "delta", "ember", "fjord", "grove", "heron", "iris", "juniper", "kestrel", "lark")
WORKER_PARAMETERS = 1_543_714_304
"""Of Qwen2.5-Coder-1.5B, whose output token is the unit of cost."""

PRICES: dict[str, float] = {"none": 0.0, "tiny": 0.05, "low": 0.1, "medium": 0.2, "high": 0.4, "extreme": 0.8}
"""What 1,000 cost units are worth in right answers, by the word that the conductor reads."""

SYSTEM = "You plan which workers answer a question. You never answer it yourself."
MAX_QUESTION_CHARS = 1500
MOST_ASKS = 10

_PLAN = re.compile(r"(?:ask|until (?P<until>[1-9][0-9]?)):(?P<names>(?: [a-z]+)+)")

End = Literal["last", "select", "vote"]


class TablePlan(msgspec.Struct, frozen=True):
    """A plan as the table can value it."""

    asks: tuple[str, ...]
    """Workers in the order in which they are asked."""
    end: End = "last"
    until: float | None = None
    """Stop asking at this confidence; only with `select`."""


class Seat(msgspec.Struct, frozen=True):
    """One worker of a pool as it was shown: its name there, and the recorded or free worker behind it."""

    name: str
    role: str
    samples: int = 0
    """How often it can be asked; 0 for a free worker."""


class Row(msgspec.Struct, frozen=True):
    """What scoring needs of a question as it was asked."""

    question: int
    pool: tuple[Seat, ...]
    price: str
    prompt_tokens: int
    prefix_tokens: int
    """Of the prompt's part before the question: a server reads it once for all questions about a pool."""


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
    pool: RecordedPool = QWEN_IN_ROLES
    said: list[list[str]] = []
    """Each question's final answers by sample, empty where a reply has none."""

    @classmethod
    def load(cls, folder: Path, *, device: str) -> RecordedQuestions:
        """Read what `dirigent.learn.values` wrote."""
        pool = msgspec.json.decode((folder / "pool.json").read_bytes(), type=RecordedPool)
        rows = [msgspec.json.decode(line) for line in (folder / "questions.jsonl").read_bytes().splitlines()]
        arrays = np.load(folder / "values.npz")
        tensors = {
            name: torch.from_numpy(arrays[name].astype(np.float32)).to(device)
            for name in ("right", "confidence", "vote", "single", "cost")
        }
        return cls(
            ids=[row["id"] for row in rows],
            texts=[row["text"] for row in rows],
            families=[kind_of(row["set"], pool) for row in rows],
            splits=[row["split"] for row in rows],
            folds=[row["fold"] for row in rows],
            pool=pool,
            said=[row.get("said", []) for row in rows],
            **tensors,
        )

    def places(self, split: str) -> list[int]:
        return [i for i, one in enumerate(self.splits) if one == split]


def kind_of(name: str, pool: RecordedPool) -> str:
    """The kind that a set of questions belongs to, such as gsm8k for gsm8k_train."""
    return next((kind for kind in pool.kinds if name.startswith(kind)), name)


# ---- what a plan is worth -----------------------------------------------------------------------------------


class PlanValues:
    """Exact expected accuracy, cost and number of calls of plans, many at a time."""

    def __init__(self, recorded: RecordedQuestions) -> None:
        self.recorded = recorded
        device = recorded.cost.device
        self._names = [worker.name for worker in recorded.pool.workers]
        self._alone = torch.stack([recorded.single[:, recorded.pool.bits(name)].mean(1) for name in self._names], dim=1)
        width = len(recorded.pool.slots)
        held = torch.arange(1 << width)
        self._draws: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._next: dict[str, torch.Tensor] = {}
        for name in self._names:
            bits = recorded.pool.bits(name)
            left = sum((1 - (held >> bit & 1) for bit in bits), torch.zeros_like(held))
            # The chance that each sample is the next one of its worker, given the samples that are held.
            weight = torch.stack([(1 - (held >> bit & 1)) / left.clamp(min=1) for bit in range(width)])
            weight[[bit for bit in range(width) if bit not in bits]] = 0.0
            self._next[name] = weight.to(device)
            lacking = [held[(held >> bit & 1) == 0] for bit in bits]
            self._draws[name] = [
                (some.to(device), (some | 1 << bit).to(device)) for bit, some in zip(bits, lacking, strict=True)
            ]

    def of(
        self, questions: Sequence[int], plans: Sequence[TablePlan], *, held: Sequence[int] = ()
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(right, cost, calls) of each plan for its question, as means over all ways to deal samples to steps.

        `held` are sets of samples that were dealt before: they are paid already, and the choice is among them as well.
        """
        recorded = self.recorded
        device = recorded.cost.device
        if not plans:
            return (torch.zeros(0), torch.zeros(0), torch.zeros(0))
        at = torch.tensor(list(questions), device=device, dtype=torch.long)
        rows = len(plans)
        chance = torch.zeros(rows, recorded.right.shape[1], device=device)
        start = torch.tensor(list(held) or [0] * rows, device=device)
        chance[torch.arange(rows, device=device), start] = 1.0
        threshold = torch.tensor([2.0 if p.until is None else p.until for p in plans], device=device)
        asking = recorded.confidence[at] < threshold[:, None]
        asking[:, 0] = True
        cost = torch.zeros(rows, device=device)
        calls = torch.zeros(rows, device=device)
        for turn in range(max((len(plan.asks) for plan in plans), default=0)):
            for name in self._names:
                these = [i for i, plan in enumerate(plans) if turn < len(plan.asks) and plan.asks[turn] == name]
                if not these:
                    continue
                r = torch.tensor(these, device=device)
                going = chance[r] * asking[r]
                drawn = going @ self._next[name].T
                cost[r] += (drawn * recorded.cost[at[r]]).sum(1)
                calls[r] += going.sum(1)
                moved = chance[r] - going
                for bit, (lacking, holding) in zip(recorded.pool.bits(name), self._draws[name], strict=True):
                    moved[:, holding] += going[:, lacking] * self._next[name][bit, lacking]
                # A worker that has no sample left repeats one of its answers, and is paid for it.
                spent = going * (self._next[name].sum(0) == 0)
                cost[r] += spent.sum(1) * recorded.cost[at[r]][:, recorded.pool.bits(name)].mean(1)
                chance[r] = moved + spent
        # The last step's sample is any of its worker's, so a worker's mean is what its reply is worth alone.
        last = torch.tensor([self._names.index(plan.asks[-1]) for plan in plans], device=device, dtype=torch.long)
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
    """The plan in the text; raises PlanError if the text is no plan, or asks for what was not recorded."""
    found = _PLAN.fullmatch(text.strip())
    if found is None:
        raise PlanError(f"{clipped(text, 80)!r} is no plan; write `ask: NAME …` or `until 70: NAME … NAME`")
    roles = {seat.name: seat.role for seat in pool}
    names = found["names"].split()
    if unknown := [name for name in names if name not in roles]:
        raise PlanError(f"there is no worker {clipped(unknown[0], 40)!r}; there are: {', '.join(roles)}")
    asks = [roles[name] for name in names]
    end: End = "last"
    if asks[-1] in FREE:
        end = "select" if asks.pop() == "select" else "vote"
    if not asks:
        raise PlanError(f"{names[-1]} has no answer to choose from; name a worker that answers before it")
    if early := [name for name, role in zip(names, asks, strict=False) if role in FREE]:
        raise PlanError(f"{early[0]} chooses among answers, so it can only come last")
    if len(asks) > MOST_ASKS:
        raise PlanError(f"the plan asks {len(asks)} times; at most {MOST_ASKS} are allowed")
    until = None if found["until"] is None else int(found["until"]) / 100
    if until is not None and end != "select":
        raise PlanError("until needs a last step by the worker that selects")
    return TablePlan(tuple(asks), end, until)


def write_plan(plan: TablePlan, pool: Sequence[Seat]) -> str:
    """The plan as the conductor writes it."""
    names = {seat.role: seat.name for seat in pool}
    order = [names[role] for role in plan.asks] + ([names[plan.end]] if plan.end != "last" else [])
    opening = "ask" if plan.until is None else f"until {round(plan.until * 100)}"
    return f"{opening}: {' '.join(order)}"


def random_plan(pool: Sequence[Seat], rng: random.Random) -> TablePlan:
    """Any valid plan over the pool, without a look at the question."""
    available = [seat.role for seat in pool for _ in range(seat.samples)]
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
    """What a text that is no plan earns, added to the worst plan of its group if that earned less than 0. Without that,
    saying nothing would beat a costly wrong plan at the higher prices."""
    price_whole: float = 0.0
    """Share of the steps after which the price counts in full. While it does not, dear plans win for every price word,
    and a small model has stopped trying others by the time it counts."""
    neutral_names: float = 0.15
    """Share of the questions whose workers have names that say nothing."""
    smaller_pools: float = 0.25
    """Share of the questions with a part of the pool only."""
    kind_weights: dict[str, float] = {}
    """Share of the questions of each kind; without it, every training question is as likely."""
    steps: int = 300
    """Of the run, which the shares above are of."""
    without_worker: str = ""
    """A worker that no training pool has: to measure what a card alone is worth."""
    learner: Literal["reward", "imitation", "format", "shuffled"] = "reward"
    """What is learned from: rewards; imitation of the best plan of each group; or, as controls, every valid plan
    alike, and rewards dealt out at random within a group."""


class TableTask:
    """Questions with recorded answers as a task for `grpo.train`."""

    def __init__(
        self,
        recorded: RecordedQuestions,
        base: Base,
        settings: TableTaskSettings,
        *,
        cards: Mapping[str, str] | None = None,
    ) -> None:
        """`cards` describe the workers; without them they are measured on training questions."""
        self.recorded = recorded
        self.base = base
        self.settings = settings
        self.values = PlanValues(recorded)
        price = recorded.pool.plan_token_cost
        self._token_cost = base.parameters / WORKER_PARAMETERS if price is None else price
        train = recorded.places("train")
        self._train = {kind: [i for i in train if recorded.families[i] == kind] for kind in recorded.pool.kinds}
        self._train = {kind: some for kind, some in self._train.items() if some}
        if unknown := set(settings.kind_weights) - set(recorded.pool.kinds):
            raise ConfigError(f"kind_weights name {sorted(unknown)}; the kinds are {sorted(recorded.pool.kinds)}")
        self._weights = [
            settings.kind_weights.get(kind, 0.0) if settings.kind_weights else len(some)
            for kind, some in self._train.items()
        ]
        folds = sorted({*recorded.folds, -1})
        self._cards = {fold: dict(cards) if cards is not None else self._measured(fold) for fold in folds}
        self._lengths: dict[str, int] = {}

    @property
    def cards(self) -> dict[str, str]:
        """The cards of every worker as questions outside training see them."""
        return self._cards[-1]

    def draw(self, count: int, *, step: int, rng: random.Random) -> list[Asked]:
        kinds = rng.choices(list(self._train), self._weights, k=count)
        return [
            self.asked(rng.choice(self._train[kind]), price=rng.choice(list(PRICES)), pool=self._pool(rng))
            for kind in kinds
        ]

    def lessons(self, count: int, rng: random.Random) -> list[Lesson]:
        """Random valid plans for training questions: the language, and no hint which plan suits which question."""
        asked = self.draw(count, step=0, rng=rng)
        plans = [write_plan(random_plan(one.extra.pool, rng), one.extra.pool) for one in asked]
        return [Lesson(one.prompt, f" {plan}", one.opening) for one, plan in zip(asked, plans, strict=True)]

    def asked(self, question: int, *, price: str, pool: Sequence[Seat] | None = None) -> Asked:
        """The question as the conductor reads it; the whole pool under its own names unless another is given."""
        recorded = self.recorded
        seats = tuple(pool or whole_pool(recorded.pool))
        training = recorded.splits[question] == "train"
        cards = self._cards[recorded.folds[question] if training else -1]
        shown = "\n".join(f"{seat.name}: {cards[seat.role]}" for seat in seats)
        text = recorded.texts[question]
        if len(text) > MAX_QUESTION_CHARS:
            half = MAX_QUESTION_CHARS // 2
            text = f"{text[:half]} […] {text[-half:]}"
        # Workers first, so that their part can be cached. The price is the word after which the reply goes on, so that
        # the first choice of a plan comes right after it.
        workers = f"Workers:\n{shown}\nQuestion:\n"
        prompt = (Message("system", SYSTEM), Message("user", f"{workers}{text}"))
        opening = f"Price: {price}"
        length = len(self.base.prompt_ids(prompt, opening))
        row = Row(question, seats, price, length, length - self._length(f"{text}{opening}"))
        return Asked(recorded.ids[question], prompt, row, opening)

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
            facts_G = [next(found) for _ in group]
            price = scale * PRICES[one.extra.price] / 1000
            rewards = [facts["right"] - price * facts["cost"] for facts in facts_G]
            worst = min((r for r, facts in zip(rewards, facts_G, strict=True) if facts["valid"]), default=0.0)
            nothing = self.settings.invalid + min(0.0, worst)
            rewards = [r if facts["valid"] else nothing for r, facts in zip(rewards, facts_G, strict=True)]
            if self.settings.learner == "format":
                rewards = [1.0 if facts["valid"] else nothing for facts in facts_G]
            if self.settings.learner == "shuffled":
                rng.shuffle(rewards)
            best = max(rewards) if len(set(rewards)) > 1 else math.inf
            for facts in facts_G:
                # Sampled cost by price: it must fall as the price rises, or the price's word is not read.
                facts |= {f"cost_at_{one.extra.price}": facts["cost"]} if facts["valid"] else {}
            groups.append(
                [
                    Rollout(r, facts, float(r == best) if self.settings.learner == "imitation" else None)
                    for r, facts in zip(rewards, facts_G, strict=True)
                ]
            )
        return groups

    def valued(self, texts: Sequence[tuple[Row, str]]) -> list[dict[str, float]]:
        """What each text is worth as a plan for its row. The cost includes what writing the plan costs.

        A text that is no plan is wrong, at the cost of writing it.
        """
        plans: list[TablePlan | None] = []
        for row, text in texts:
            try:
                plans.append(read_plan(text, row.pool))
            except PlanError:
                plans.append(None)
        good = [i for i, plan in enumerate(plans) if plan is not None]
        kept = [plan for plan in plans if plan is not None]
        right, cost, calls = (t.tolist() for t in self.values.of([texts[i][0].question for i in good], kept))
        facts: list[dict[str, float]] = []
        for row, text in texts:
            own = self._token_cost * (row.prompt_tokens / 4 + self._length(text))
            saved = self._token_cost * row.prefix_tokens / 4
            facts.append({"valid": 0.0, "right": 0.0, "cost": own, "own_cost": own, "saved_by_prefix": saved})
        for place, plan, r, c, n in zip(good, kept, right, cost, calls, strict=True):
            own = facts[place]["own_cost"]
            facts[place] |= {"valid": 1.0, "right": r, "cost": c + own, "calls": n, **_form(plan)}
        return facts

    def measure(self, write: Callable[[Sequence[Asked]], list[str]]) -> dict[str, float]:
        """Greedy plans for every development question at every price, and for as many training questions."""
        facts = front(self.outcomes(write, self.recorded.places("dev")))
        facts["train_utility"] = front(self.outcomes(write, self.some_training()))["utility"]
        return facts

    def some_training(self) -> list[int]:
        """As many training questions as there are development questions, the same in every run."""
        train = self.recorded.places("train")
        return random.Random(0).sample(train, min(len(train), len(self.recorded.places("dev"))))

    def outcomes(
        self,
        write: Callable[[Sequence[Asked]], list[str]],
        questions: Sequence[int],
        *,
        without_worker: str = "",
    ) -> list[dict[str, Any]]:
        """Every question at every price: the greedy plan and what it is worth."""
        seats = [seat for seat in whole_pool(self.recorded.pool) if seat.name != without_worker]
        asked = [self.asked(q, price=price, pool=seats) for price in PRICES for q in questions]
        plans = write(asked)
        found = self.valued([(one.extra, text) for one, text in zip(asked, plans, strict=True)])
        return [
            {"id": one.id, "price": one.extra.price, "plan": text, **facts}
            for one, text, facts in zip(asked, plans, found, strict=True)
        ]

    def _pool(self, rng: random.Random) -> tuple[Seat, ...]:
        seats = [seat for seat in whole_pool(self.recorded.pool) if seat.name != self.settings.without_worker]
        if rng.random() < self.settings.smaller_pools:
            recorded = [seat for seat in seats if seat.samples]
            some = rng.sample(recorded, rng.randint(1, len(recorded)))
            free = [seat for seat in seats if not seat.samples and rng.random() < 0.7]
            seats = some + (free if len(some) + len(free) > 1 else [Seat("select", "select")])
        rng.shuffle(seats)
        if rng.random() < self.settings.neutral_names:
            names = rng.sample(NEUTRAL, len(seats))
            seats = [msgspec.structs.replace(seat, name=name) for seat, name in zip(seats, names, strict=True)]
        return tuple(seats)

    def _measured(self, but_fold: int) -> dict[str, str]:
        """Cards, measured on training questions of every fold but one."""
        recorded = self.recorded
        cards = {role: f"{about}. free" for role, about in FREE.items()}
        for worker in recorded.pool.workers:
            bits = recorded.pool.bits(worker.name)
            parts = []
            costs = []
            for kind, places in self._train.items():
                rows = [i for i in places if recorded.folds[i] != but_fold]
                if not rows:
                    continue
                parts.append(f"{recorded.pool.kinds[kind]} {100 * float(recorded.single[rows][:, bits].mean()):.0f}%")
                costs.append(float(recorded.cost[rows][:, bits].mean()))
            about = f"{worker.about}. " if worker.about else ""
            cards[worker.name] = f"{about}{', '.join(parts)}. {_rounded(float(np.mean(costs)))} units"
        return cards

    def _price_scale(self, step: int) -> float:
        return min(1.0, (step + 1) / max(1.0, self.settings.price_whole * self.settings.steps))

    def _length(self, text: str) -> int:
        if text not in self._lengths:
            self._lengths[text] = len(self.base.reply_ids(text))
        return self._lengths[text]


def front(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Accuracy, cost, validity and calls at every price, and the mean utility over prices."""
    facts: dict[str, float] = {}
    utilities = []
    for price, worth in PRICES.items():
        own = [one for one in outcomes if one["price"] == price]
        mean = {
            name: float(np.mean([one.get(name, 0.0) for one in own])) for name in ("right", "cost", "valid", "calls")
        }
        utilities.append(mean["right"] - worth * mean["cost"] / 1000)
        facts |= {f"{price}/{name}": value for name, value in mean.items()}
    return facts | {"utility": float(np.mean(utilities))}


def whole_pool(pool: RecordedPool) -> tuple[Seat, ...]:
    """Every recorded and free worker under its own name, in one order."""
    return (*(Seat(one.name, one.name, one.samples) for one in pool.workers), *(Seat(one, one) for one in FREE))


def _rounded(cost: float) -> str:
    """Two digits are enough for a reader, and few tokens."""
    return f"{float(f'{cost:.2g}'):g}"


def _form(plan: TablePlan) -> Mapping[str, float]:
    facts = {
        "asks": float(len(plan.asks)),
        "until": float(plan.until is not None),
        "select": float(plan.end == "select"),
        "last": float(plan.end == "last"),
    }
    return facts | {name: float(plan.asks.count(name)) for name in set(plan.asks)}
