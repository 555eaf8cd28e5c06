"""The reward of a written plan: carry the plan out, grade the answer, turn the grade and the cost into a number.

    invalid plan                 0
    valid, wrong answer          0.1
    valid, right answer          1 - lambda * (c - c_min) / c_max

c is the plan's cost in *calls* (see `plan_cost`); c_min and c_max are the cheapest and the dearest correct rollout of
the same group. So cost only ranks correct rollouts among themselves. In a group without a correct answer, cost would be
the only difference, and the policy would learn to write one cheap step about nothing. For the same reason advantages
are not divided by the group's spread unless a setting asks for it: the division would cancel lambda.

The arithmetic is pure and knows nothing of models. `score` carries plans out with `dirigent.learn.live_plans`. The
policy does not pay for a fault of a worker or a judge: such a rollout gets no reward (None) and leaves its group.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from dirigent.concurrency import gather_or_cancel
from dirigent.learn.live_plans import carry_out
from dirigent.limits import Ledger, Limits
from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.plan.plan import EarlierStep, Plan, critical_path
from dirigent.sandbox import Sandbox
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Worker, WorkerInfo
from dirigent_gym.questions.specialists import ROSTER
from dirigent_gym.train.dataset import Row

CALL_USD = 1e-5
"""The price of one call, the unit of cost: about a hundred tokens at the usual specialist's rate."""

NOISY = frozenset(specialist.name for specialist in ROSTER if specialist.noise)
"""Workers that may answer the same subtask differently each time."""


Control = Literal["none", "format", "shuffled"]


class RewardSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    invalid: float = 0.0
    wrong: float = 0.1
    right: float = 1.0
    control: Control = "none"
    """The reward of a control: `format` rewards every valid plan alike, `shuffled` deals the rewards of a group out at
    random."""

    def __post_init__(self) -> None:
        if not self.invalid <= self.wrong < self.right:
            raise ValueError(
                f"rewards must rise: invalid {self.invalid:g} <= wrong {self.wrong:g} < right {self.right:g}"
            )


DEFAULT_REWARDS = RewardSettings()


class ScoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rewards: RewardSettings = RewardSettings()
    seed: int = 0
    """The seed of the unreliable workers' luck."""
    max_steps: int = 5
    concurrency: int = 2048
    """Plans carried out at the same time. Large, because workers in memory answer all waiting requests at once."""
    deadline_s: float = 300.0
    """For one plan; a plan that takes longer is dropped."""


DEFAULT_SCORING = ScoreSettings()


class Scored(msgspec.Struct, frozen=True):
    """The score of one rollout."""

    valid: bool
    correct: bool
    reward_base: float | None
    """The reward before cost; None if a fault that is not the policy's removes the rollout from its group."""
    cost: float = 0.0
    """In calls: the price plus the length of the critical path."""
    cost_usd: float = 0.0
    plan: Plan | None = None
    answer: str = ""
    error: str = ""
    steps: tuple[EarlierStep, ...] = ()
    """The plan's steps with their replies; a second round may read them."""
    unpaid: bool = False
    """Whether the rollout was dropped because the run's cost cap refused one of its calls."""

    @property
    def dropped(self) -> bool:
        return self.reward_base is None


async def score(
    rows: Sequence[Row],
    texts: Sequence[str],
    workers: Mapping[str, Worker],
    settings: ScoreSettings = DEFAULT_SCORING,
    *,
    then: Sequence[str] = (),
    sandbox: Sandbox | None = None,
    ledger: Ledger | None = None,
) -> list[Scored]:
    """Carry out and grade each text as a plan for its row. A row appears once for each of its rollouts.

    Equal plans for one row are carried out once, unless they ask a worker that may answer differently each time.
    `then` are plans of a second round. `sandbox` judges answers that are programs; `ledger` records the calls.
    """
    scoring = _Scoring(settings, asyncio.Semaphore(settings.concurrency), sandbox, ledger)
    attempts: Counter[str] = Counter()
    pools: dict[str, Pool] = {}
    running: dict[tuple[str, str, str], asyncio.Task[Scored]] = {}
    tasks: list[asyncio.Task[Scored]] = []
    for row, text, later in zip(rows, texts, then or [""] * len(texts), strict=True):
        attempt = attempts[row.id]
        attempts[row.id] += 1
        if row.id not in pools:
            pools[row.id] = shown_pool(row, workers)
        noisy = any(name in NOISY and card.name in text for name, card in zip(row.names, row.infos, strict=True))
        same = None if noisy else running.get((row.id, text, later))
        if same is None:
            same = asyncio.create_task(_score_plan(row, text, later, pools[row.id], scoring, attempt=attempt))
            running[row.id, text, later] = same
        tasks.append(same)
    await gather_or_cancel(set(tasks))
    return [task.result() for task in tasks]


def shown_pool(row: Row, workers: Mapping[str, Worker]) -> Pool:
    """The row's workers under the names and cards that the planner sees."""
    shown: list[Worker] = []
    for name, card in zip(row.names, row.infos, strict=True):
        worker = workers[name]
        same = (card.name, card.about) == (worker.info.name, worker.info.about)
        shown.append(worker if same else _Renamed(worker, card))
    return Pool(shown)


class _Renamed:
    """A worker under another name and card."""

    def __init__(self, worker: Worker, card: WorkerInfo) -> None:
        self.worker = worker
        self.info = msgspec.structs.replace(worker.info, name=card.name, about=card.about)

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        return await self.worker.ask(request, observe=observe)


def rewards(
    scored_PG: Sequence[Sequence[Scored]],  # noqa: N803 -- suffixes name dimensions: prompt, rollout of its group
    lambda_: float,
    settings: RewardSettings = DEFAULT_REWARDS,
) -> list[list[float | None]]:
    """The rewards of each group; `lambda_` weighs the cost of its correct rollouts."""
    return [_group_rewards(scored_G, lambda_, settings) for scored_G in scored_PG]


def controlled(
    rewards_PG: Sequence[Sequence[float | None]],  # noqa: N803
    scored_PG: Sequence[Sequence[Scored]],  # noqa: N803
    settings: RewardSettings,
    *,
    seed: int,
) -> list[list[float | None]]:
    """The rewards that a control trains on in place of these. Dropped rollouts stay dropped."""
    if settings.control == "format":
        by_validity = {True: settings.right, False: settings.invalid}
        return [[None if one.dropped else by_validity[one.valid] for one in scored_G] for scored_G in scored_PG]
    if settings.control == "shuffled":
        rng = random.Random(f"shuffled {seed}")
        return [_shuffled(rewards_G, rng) for rewards_G in rewards_PG]
    return [list(rewards_G) for rewards_G in rewards_PG]


def _shuffled(rewards_G: Sequence[float | None], rng: random.Random) -> list[float | None]:  # noqa: N803
    given = [reward for reward in rewards_G if reward is not None]
    rng.shuffle(given)
    dealt = iter(given)
    return [None if reward is None else next(dealt) for reward in rewards_G]


Scale = Literal["none", "floored_std"]


def advantages(
    rewards_PG: Sequence[Sequence[float | None]],  # noqa: N803
    *,
    scale: Scale = "none",
    least_std: float = 0.1,
) -> list[list[float | None]]:
    """Each reward minus its group's mean; `floored_std` divides it by the group's spread, at least `least_std`."""
    return [_group_advantages(rewards_G, scale, least_std) for rewards_G in rewards_PG]


class LambdaSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the weight of cost grows: it is 0 until the policy is mostly right, then it rises steadily."""

    most: float = 0.2
    from_share: float = 0.7
    """The share of the ceiling's accuracy, on the development split, at which the weight begins to rise."""
    rise_steps: int = 30
    """Training steps from 0 to the largest weight."""


DEFAULT_LAMBDA = LambdaSettings()


def lambda_start(
    start_step: int | None, *, step: int, accuracy: float, ceiling: float, settings: LambdaSettings = DEFAULT_LAMBDA
) -> int | None:
    """The step at which cost began to count, or None before that. A later setback does not undo it."""
    if start_step is not None:
        return start_step
    return step if ceiling > 0 and accuracy >= settings.from_share * ceiling else None


def lambda_at(step: int, start_step: int | None, settings: LambdaSettings = DEFAULT_LAMBDA) -> float:
    """The weight of cost at a step."""
    if start_step is None:
        return 0.0
    risen = (step - start_step) / max(1, settings.rise_steps)
    return settings.most * min(1.0, max(0.0, risen))


def plan_cost(plan: Plan, cost_usd: float) -> float:
    """The cost of a plan in calls: the price of its calls plus the length of its critical path."""
    return cost_usd / CALL_USD + critical_path(plan)


def grouped(rows: Sequence[Row], scored: Sequence[Scored]) -> list[list[Scored]]:
    """Rollouts by row, in the order of each row's first rollout."""
    groups: dict[str, list[Scored]] = {}
    for row, one in zip(rows, scored, strict=True):
        groups.setdefault(row.id, []).append(one)
    return list(groups.values())


class _Scoring(msgspec.Struct, frozen=True):
    """The settings and resources that all plans of one call of `score` share."""

    settings: ScoreSettings
    bound: asyncio.Semaphore
    sandbox: Sandbox | None
    ledger: Ledger | None


async def _score_plan(row: Row, text: str, then: str, pool: Pool, scoring: _Scoring, *, attempt: int) -> Scored:
    settings = scoring.settings
    async with scoring.bound:
        ran = await carry_out(
            text,
            row.task,
            pool,
            limits=Limits(max_steps=settings.max_steps, deadline_s=settings.deadline_s),
            dialect="lines",
            # The seed is the same under other cards, so that only the cards differ.
            seed=attempt_seed(settings.seed, row.task.id, attempt),
            then=then,
            ledger=scoring.ledger,
            sandbox=scoring.sandbox,
        )
    if not ran.valid:
        return Scored(False, False, settings.rewards.invalid, error=ran.trace.error)
    plan = None if ran.plan is None else row.with_worker_names(ran.plan)
    if ran.dropped or plan is None:
        return Scored(True, False, None, plan=plan, error=ran.dropped, unpaid=ran.unpaid)
    return Scored(
        True,
        ran.correct,
        settings.rewards.right if ran.correct else settings.rewards.wrong,
        cost=plan_cost(plan, ran.trace.cost_usd),
        cost_usd=ran.trace.cost_usd,
        plan=plan,
        answer=ran.trace.answer,
        steps=tuple(step.as_earlier for step in ran.trace.steps),
    )


def attempt_seed(seed: int, asked: str, attempt: int) -> int:
    """A seed of its own for each attempt. Seeds are far apart, because each step adds its position to its seed."""
    digest = hashlib.blake2b(f"{seed} {asked} {attempt}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")


def _group_rewards(
    scored_G: Sequence[Scored],  # noqa: N803
    lambda_: float,
    settings: RewardSettings,
) -> list[float | None]:
    costs = [one.cost for one in scored_G if one.correct and not one.dropped]
    cheapest, dearest = min(costs, default=0.0), max(costs, default=0.0)
    return [_reward(one, lambda_, cheapest, dearest, settings) for one in scored_G]


def _reward(one: Scored, lambda_: float, cheapest: float, dearest: float, settings: RewardSettings) -> float | None:
    if one.dropped:
        return None
    if not one.valid:
        return settings.invalid
    if not one.correct:
        return settings.wrong
    return settings.right - (lambda_ * (one.cost - cheapest) / dearest if dearest > 0 else 0.0)


def _group_advantages(
    rewards_G: Sequence[float | None],  # noqa: N803
    scale: Scale,
    least_std: float,
) -> list[float | None]:
    given = [reward for reward in rewards_G if reward is not None]
    mean = _mean(given)
    std = _mean((reward - mean) ** 2 for reward in given) ** 0.5
    divisor = max(std, least_std) if scale == "floored_std" else 1.0
    return [None if reward is None else (reward - mean) / divisor for reward in rewards_G]


def _mean(values: Iterable[float]) -> float:
    counted = list(values)
    return sum(counted) / len(counted) if counted else 0.0
