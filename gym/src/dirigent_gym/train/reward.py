"""What a written plan is worth: carry it out, grade the answer, turn the grade and the cost into a number.

    invalid plan                 0
    valid, wrong answer          0.1
    valid, right answer          1 - lambda * (c - c_min) / c_max

c is the plan's cost in *calls* (below); c_min and c_max are the cheapest and the dearest correct rollout of the same
group. So cost only ranks correct rollouts among themselves: it never moves a group without a correct answer, where it
would be the only difference and teach the policy to write one cheap step about nothing. For the same reason advantages
are not divided by the group's spread unless a setting asks for it: that would cancel lambda.

The arithmetic is pure and knows nothing of models. `score` runs plans over any workers; a worker's fault is not the
policy's, nor is a judge's, so such a rollout gets no reward at all (None) and leaves its group.
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
from dirigent.errors import CostError, GradeError, PlanError
from dirigent.limits import Ledger, Limits
from dirigent.messages import Request, estimate_tokens
from dirigent.plan.plan import Dialect, EarlierStep, Plan, critical_path, parse_plan
from dirigent.run.execution import Execution, execute
from dirigent.sandbox import Sandbox
from dirigent.tasks.graders import judge
from dirigent.workers.worker import Worker
from dirigent_gym.questions.specialists import ROSTER
from dirigent_gym.train.dataset import SECRET, Row

NOISY = frozenset(specialist.name for specialist in ROSTER if specialist.noise)
"""Workers that may answer the same thing differently each time."""


Control = Literal["none", "format", "shuffled"]


class RewardSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    invalid: float = 0.0
    wrong: float = 0.1
    right: float = 1.0
    call_usd: float = 1e-5
    """What counts as the price of one call: about a hundred tokens at the usual specialist's rate."""
    price_weight: float = 1.0
    """Cost of one such price."""
    path_weight: float = 1.0
    """Cost of one step on the critical path: of waiting for one call. Steps side by side count once."""
    control: Control = "none"
    """What a control trains on instead: `format` rewards every valid plan alike, `shuffled` deals the rewards of a
    group out at random."""

    def __post_init__(self) -> None:
        if not self.invalid <= self.wrong < self.right:
            raise ValueError(
                f"rewards must rise: invalid {self.invalid:g} <= wrong {self.wrong:g} < right {self.right:g}"
            )
        if self.call_usd <= 0:
            raise ValueError(f"call_usd must be above 0, not {self.call_usd:g}")


DEFAULT_REWARDS = RewardSettings()

PAPER_REWARDS = RewardSettings(invalid=0.0, wrong=0.5, right=1.0)
"""The Conductor paper's 0 / 0.5 / 1."""


class ScoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rewards: RewardSettings = RewardSettings()
    seed: int = 0
    """Of the unreliable workers' luck."""
    max_steps: int = 5
    dialect: Dialect = "lines"
    """What plans are written in."""
    concurrency: int = 2048
    """Plans carried out at the same time. Large, because workers in memory answer all that is waiting at once."""
    deadline_s: float = 300.0
    """For one plan; one that runs into it is dropped."""


DEFAULT_SCORING = ScoreSettings()


class Scored(msgspec.Struct, frozen=True):
    """What became of one rollout."""

    valid: bool
    correct: bool
    reward_base: float | None
    """Before cost. None: no fault of the policy's, to be left out of its group."""
    cost: float = 0.0
    """In calls: price plus critical path, as the settings weigh them."""
    cost_usd: float = 0.0
    plan: Plan | None = None
    answer: str = ""
    error: str = ""
    tokens: int = 0
    """Tokens of the plan as the policy wrote it."""
    steps: tuple[EarlierStep, ...] = ()
    """The plan's steps with their replies, which a second round may read."""
    unpaid: bool = False
    """Dropped because the run's cost cap refused a call of it."""

    @property
    def dropped(self) -> bool:
        return self.reward_base is None


async def score(
    rows: Sequence[Row],
    texts: Sequence[str],
    workers: Mapping[str, Worker],
    settings: ScoreSettings = DEFAULT_SCORING,
    *,
    tokens: Sequence[int] = (),
    sandbox: Sandbox | None = None,
    ledger: Ledger | None = None,
) -> list[Scored]:
    """Carry out and grade each text as a plan for its row; a row stands once for each of its rollouts.

    Equal plans for one row are carried out once, unless they ask a worker that may answer differently each time.
    `tokens` are the lengths of the texts where the caller has counted; else they are estimated. `sandbox` is where
    answers that are programs are judged, `ledger` where calls are entered.
    """
    counts = tokens or [estimate_tokens(text) for text in texts]
    bound = asyncio.Semaphore(settings.concurrency)
    attempts: Counter[str] = Counter()
    running: dict[tuple[str, Plan], asyncio.Task[Scored]] = {}
    outcomes: list[asyncio.Task[Scored] | Scored] = []
    for row, text in zip(rows, texts, strict=True):
        attempt = attempts[row.id]
        attempts[row.id] += 1
        plan = _parsed(text, row, settings)
        if isinstance(plan, Scored):
            outcomes.append(plan)
        elif _repeatable(plan) and (row.id, plan) in running:
            outcomes.append(running[row.id, plan])
        else:
            task = asyncio.create_task(
                _carried_out(row, plan, workers, settings, attempt=attempt, bound=bound, sandbox=sandbox, ledger=ledger)
            )
            running[row.id, plan] = task
            outcomes.append(task)
    await gather_or_cancel({outcome for outcome in outcomes if isinstance(outcome, asyncio.Task)})
    done = [outcome.result() if isinstance(outcome, asyncio.Task) else outcome for outcome in outcomes]
    return [msgspec.structs.replace(one, tokens=count) for one, count in zip(done, counts, strict=True)]


def rewards(
    scored_PG: Sequence[Sequence[Scored]],  # noqa: N803 -- suffixes name dimensions: prompt, rollout of its group
    lambda_: float,
    settings: RewardSettings = DEFAULT_REWARDS,
) -> list[list[float | None]]:
    """The rewards of each group, with cost weighed by `lambda_` among its correct rollouts."""
    return [_group_rewards(scored_G, lambda_, settings) for scored_G in scored_PG]


def controlled(
    rewards_PG: Sequence[Sequence[float | None]],  # noqa: N803
    scored_PG: Sequence[Sequence[Scored]],  # noqa: N803
    settings: RewardSettings,
    *,
    seed: int,
) -> list[list[float | None]]:
    """The rewards a control is given in place of these. Dropped rollouts stay dropped."""
    if settings.control == "format":
        return [[_format_reward(one, settings) for one in scored_G] for scored_G in scored_PG]
    if settings.control == "shuffled":
        rng = random.Random(f"shuffled {seed}")
        return [_shuffled(rewards_G, rng) for rewards_G in rewards_PG]
    return [list(rewards_G) for rewards_G in rewards_PG]


def _format_reward(one: Scored, settings: RewardSettings) -> float | None:
    if one.dropped:
        return None
    return settings.right if one.valid else settings.invalid


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
    """Each reward less its group's mean; with `floored_std` divided by the group's spread, or `least_std` if larger."""
    return [_group_advantages(rewards_G, scale, least_std) for rewards_G in rewards_PG]


class LambdaSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the weight of cost grows: not at all until the policy mostly knows how, then steadily."""

    most: float = 0.2
    from_share: float = 0.7
    """Share of the ceiling's accuracy, on the development split, at which it begins."""
    rise_steps: int = 30
    """Training steps from nothing to the most."""


DEFAULT_LAMBDA = LambdaSettings()


def lambda_start(
    start_step: int | None, *, step: int, accuracy: float, ceiling: float, settings: LambdaSettings = DEFAULT_LAMBDA
) -> int | None:
    """The step at which cost began to count, once it has; a later setback does not undo it."""
    if start_step is not None:
        return start_step
    return step if ceiling > 0 and accuracy >= settings.from_share * ceiling else None


def lambda_at(step: int, start_step: int | None, settings: LambdaSettings = DEFAULT_LAMBDA) -> float:
    """The weight of cost at a step."""
    if start_step is None:
        return 0.0
    risen = (step - start_step) / max(1, settings.rise_steps)
    return settings.most * min(1.0, max(0.0, risen))


def plan_cost(plan: Plan, cost_usd: float, settings: RewardSettings = DEFAULT_REWARDS) -> float:
    """What a plan took, in calls: the price of its calls and the length of its critical path."""
    return settings.price_weight * cost_usd / settings.call_usd + settings.path_weight * critical_path(plan)


def grouped(rows: Sequence[Row], scored: Sequence[Scored]) -> list[list[Scored]]:
    """Rollouts by row, rows in the order they first stand."""
    groups: dict[str, list[Scored]] = {}
    for row, one in zip(rows, scored, strict=True):
        groups.setdefault(row.id, []).append(one)
    return list(groups.values())


def _parsed(text: str, row: Row, settings: ScoreSettings) -> Plan | Scored:
    limits = Limits(max_steps=settings.max_steps)
    try:
        return row.as_meant(
            parse_plan(
                text,
                row.shown,
                limits,
                dialect=settings.dialect,
                may_accept=row.earlier_answer is not None,
                earlier=len(row.earlier),
            )
        )
    except PlanError as error:
        return Scored(False, False, settings.rewards.invalid, error=str(error))


def _repeatable(plan: Plan) -> bool:
    return not any(step.worker in NOISY for step in plan.steps)


async def _carried_out(
    row: Row,
    plan: Plan,
    workers: Mapping[str, Worker],
    settings: ScoreSettings,
    *,
    attempt: int,
    bound: asyncio.Semaphore,
    sandbox: Sandbox | None,
    ledger: Ledger | None,
) -> Scored:
    if not plan.steps:
        return await _judged(row, plan, row.earlier_answer or "", settings=settings, sandbox=sandbox)
    async with bound:
        execution = await execute(
            plan,
            {name: workers[name] for name in row.names},
            row.task.question,
            earlier=row.earlier,
            limits=Limits(max_steps=settings.max_steps, deadline_s=settings.deadline_s),
            options=Request((), seed=attempt_seed(settings.seed, _luck_of(row), attempt)),
            secret=SECRET,
            ledger=ledger,
        )
    if execution.error is not None or execution.reply is None:
        unpaid = isinstance(execution.error, CostError)
        return Scored(True, False, None, plan=plan, error=str(execution.error), unpaid=unpaid)
    paid = _paid_usd(execution)
    scored = await _judged(row, plan, execution.reply.text, cost_usd=paid, settings=settings, sandbox=sandbox)
    return msgspec.structs.replace(scored, steps=tuple(step.as_earlier for step in execution.steps))


def _luck_of(row: Row) -> str:
    """A question's luck is the same under other cards, so that only the cards differ; a second round has its own."""
    return row.task.id if row.earlier_answer is None else row.id


def attempt_seed(seed: int, asked: str, attempt: int) -> int:
    """A seed of its own for each attempt at what is asked. Far apart, since each step adds its position to it."""
    digest = hashlib.blake2b(f"{seed} {asked} {attempt}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")


async def _judged(
    row: Row, plan: Plan, answer: str, *, cost_usd: float = 0.0, settings: ScoreSettings, sandbox: Sandbox | None
) -> Scored:
    try:
        correct = (await judge(row.task, answer, sandbox=sandbox)).correct
    except GradeError as error:
        return Scored(True, False, None, plan=plan, answer=answer, error=str(error))
    return Scored(
        True,
        correct,
        settings.rewards.right if correct else settings.rewards.wrong,
        cost=plan_cost(plan, cost_usd, settings.rewards),
        cost_usd=cost_usd,
        plan=plan,
        answer=answer,
    )


def _paid_usd(execution: Execution) -> float:
    return sum(record.cost_usd for record in execution.steps)


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
