"""The cost of an evaluation: an estimate before it is paid, and votes that cost as much as another planner.

*The estimate* comes from the calls of a small dry run, prices and assumed lengths. The dry run shows how often each
planner calls which worker; no formula knows that. The lengths of replies cannot be known, so two are assumed: the usual
length and the longest possible one.

*Equal cost*: `vote` and `self-moa` answer with as many samples as another planner's plans cost. The measure is the
first planner of `SIZED_BY` that takes part. Its cost on each task is the money, so a vote costs as much as the measure
on every task, not only in sum. Costs are read, grades never. An eighth of the questions, drawn by lot, is asked with
the number of samples that the training split predicts; then half of the others, again and again, each lot with its
share of the money left, at a forecast corrected by the lots before. Samples are whole numbers, so some questions get
one more than the others.

Lots come from the seed and sizes from recorded costs, so a resumed evaluation finds the same sizes. If nothing can be
sized, the usual number is asked and the sizing gives the reason; if the measure was cut because the money ended,
nothing is asked.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal

import msgspec

from dirigent.evals.metrics import by_planner
from dirigent.evals.record import Outcome
from dirigent.evals.stats import mean, mean_or_none
from dirigent.plan.plan import Step
from dirigent.planners import Fitted
from dirigent.planners.examples import MAX_SAMPLES, SampleCost
from dirigent.planners.spec import Sampled
from dirigent.tasks.task import Task
from dirigent.workers.worker import Price

QUESTION_TOKENS: Mapping[str, int] = {
    "math500": 110, "mmlu": 120, "mmlu_pro": 250, "rlpr": 90, "livecodebench": 600, "aime25": 130, "aime24": 130,
    "bigcodebench": 350, "bigcodebench_hard": 400, "gpqa": 240, "gsm8k": 100, "humaneval": 180, "mbpp": 90, "bbh": 150,
}  # fmt: skip
"""Assumed tokens of a question of the set, at four characters each."""

USUAL_REPLY_TOKENS = 900
"""Assumed: the Conductor paper's Mixture-of-Agents used 11,203 tokens a question in eight calls, so about 1,400 a call,
some 500 of them input."""

AT_HOME = ("conductor", "warm-start")

STEP_TOKENS = 120
"""The tokens of the words around a question and its subtask."""


class Estimate(msgspec.Struct, frozen=True):
    usual_usd: float
    most_usd: float
    calls: float

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.usual_usd + other.usual_usd, self.most_usd + other.most_usd, self.calls + other.calls)

    def times(self, factor: float) -> Estimate:
        return Estimate(self.usual_usd * factor, self.most_usd * factor, self.calls * factor)


def estimate_by_planner(
    outcomes: Sequence[Outcome],
    prices: Mapping[str, Price],
    *,
    questions: Mapping[str, int],
    max_output_tokens: int,
) -> dict[str, Estimate]:
    """Planner -> the cost of so many `questions` of each task, from its calls for a few of them."""
    asked: dict[tuple[str, str], set[str]] = {}
    for outcome in outcomes:
        asked.setdefault((outcome.planner, outcome.kind), set()).add(outcome.task)
    found: dict[str, Estimate] = {}
    for outcome in outcomes:
        share = questions.get(outcome.kind, 0) / len(asked[outcome.planner, outcome.kind])
        run = _run(outcome, prices, max_output_tokens=max_output_tokens).times(share)
        found[outcome.planner] = found.get(outcome.planner, Estimate(0.0, 0.0, 0.0)) + run
    return found


def _run(outcome: Outcome, prices: Mapping[str, Price], *, max_output_tokens: int) -> Estimate:
    """Returns the cost of one run: the mean cost of its steps, times its calls. Earlier rounds and planning count like
    steps; planning by a local model costs nothing."""
    steps = [step for step in outcome.plan.steps if step.worker in prices] if outcome.plan else []
    if not steps:
        return Estimate(0.0, 0.0, float(outcome.calls))
    paid = len(steps) if outcome.planner.startswith(AT_HOME) else outcome.calls
    question = QUESTION_TOKENS.get(outcome.kind, 200)
    usual, most = (
        sum(_step(step, prices, question=question, reply=reply) for step in steps) / len(steps) * paid
        for reply in (USUAL_REPLY_TOKENS, max_output_tokens)
    )
    return Estimate(usual, most, float(outcome.calls))


def _step(step: Step, prices: Mapping[str, Price], *, question: int, reply: int) -> float:
    price = prices[step.worker]
    read = question + STEP_TOKENS + reply * len(step.access)
    return (read * price.input + reply * price.output) / 1e6


# ---- equal cost ------------------------------------------------------------------------------------------


EQUAL_COST = "vote"
"""Self-consistency of the best worker: the row that others are compared with at equal cost."""

SIZED_BY = ("conductor", "conductor:2", "language", "moa", "moa:8")

EQUAL_WITHIN = 0.05
"""Costs that differ by more than this share are not called equal."""

AskPlanner = Callable[[Fitted, Sequence[Task]], Awaitable[list[Outcome]]]
"""Asks a planner these questions; some outcomes are missing if the money ran out."""


class Sizing(msgspec.Struct, frozen=True):
    """The number of samples of a planner, how it was found, and their cost; costs are a question's mean."""

    worker: str
    """The worker that was sampled."""
    measure: str = ""
    """The planner whose cost was to be met; empty if no measure took part."""
    target_usd: float | None = None
    """The measure's cost on these questions."""
    cost_usd: float | None = None
    ratio: float | None = None
    """The cost divided by the target."""
    samples: float | None = None
    bound: Literal["", "least", "most"] = ""
    """Every question had the least number of samples and the cost is still above the target, or the most and below."""
    why_not: str = ""
    """The reason for not sizing it, or an empty string."""
    by_task: dict[str, Sizing] | msgspec.UnsetType = msgspec.UNSET
    """The sizing of each task alone; left out if all questions are one task."""

    @property
    def note(self) -> str:
        """The words beside the planner's name."""
        if self.samples is None:
            return self.worker
        times = "" if self.ratio is None else f", {self.ratio:.2f} x the cost of {self.measure}"
        return f"{self.worker}, {self.samples:.3g} samples{times}"


def equal(cost_usd: float | None, other_usd: float | None) -> bool:
    """Whether two costs may be called equal; unknown costs and costs of 0 never are."""
    return bool(cost_usd and other_usd) and abs((cost_usd or 0.0) / (other_usd or 1.0) - 1) <= EQUAL_WITHIN


async def ask_sized(
    fitted: Sequence[Fitted],
    before: Sequence[Outcome],
    tasks: Sequence[Task],
    *,
    names: Sequence[str],
    best: str,
    ask_planner: AskPlanner,
    seed: int,
    task_of: Callable[[Task], str] | None = None,
) -> tuple[list[Outcome], dict[str, Sizing]]:
    """The answers of the planners with an open number of samples, and their sizes. `before` holds all other answers,
    those of the planner `best` among them; `task_of` says which task a question belongs to."""
    measure = next((name for name in SIZED_BY if name in names), "")
    found = by_planner(before)
    cut = bool(measure) and len(found.get(measure, ())) < len(tasks)
    parts: dict[str, list[Task]] = {}
    for task in tasks:
        parts.setdefault(task_of(task) if task_of else "", []).append(task)
    outcomes: list[Outcome] = []
    sizes: dict[str, Sizing] = {}
    for one in fitted:
        if (sampled := one.sampled) is None:
            continue
        by_task: dict[str, Sizing] = {}
        answered: list[Outcome] = []
        short = False
        for name, own in parts.items():
            ids = {task.id for task in own}
            cost_usd = mean_or_none([o.known_cost_usd for o in found.get(measure, ()) if o.task in ids])
            why_not = _why_not(measure, cost_usd, cut=cut) or sampled.why_not
            there: list[Outcome] = []
            if not short and not cut:
                alone = [o for o in found.get(best, ()) if o.task in ids]
                money_usd = (cost_usd or 0.0) * len(own)
                asked = (
                    ask_planner(one, own)
                    if why_not
                    else _calibrated(one, sampled, (own, alone), money_usd, ask_planner, seed)
                )
                there = await asked
                short = len(there) < len(own)
            why_not = why_not or ("it has not answered everything" if short else "")
            by_task[name] = _sizing(there, sampled.worker, measure, cost_usd, why_not)
            answered += there
        sizes[one.name] = next(iter(by_task.values())) if len(by_task) == 1 else _over_all_tasks(answered, by_task)
        place = {task.id: i for i, task in enumerate(tasks)}
        outcomes += sorted(answered, key=lambda outcome: place[outcome.task])
    return outcomes, sizes


def in_lots(ids: Sequence[str], seed: int) -> list[str]:
    """The questions in an order drawn by the seed and each question's own name."""
    return sorted(ids, key=lambda id: hashlib.blake2b(f"{seed} samples {id}".encode(), digest_size=8).digest())


def sizes_for(
    ids: Sequence[str], cost: SampleCost, money_usd: float, *, weights: Mapping[str, float]
) -> dict[str, int]:
    """Samples for each question that together cost this much: n for all, and one more for the first of them, as many as
    bring the sum closest. One is the least; a question's weight is its cost over an average one's."""
    whole = math.fsum(weights[id] for id in ids)
    n = max((n for n in range(1, MAX_SAMPLES + 1) if cost.usd_of(n) * whole <= money_usd), default=1)
    sizes = dict.fromkeys(ids, n)
    left_usd = money_usd - cost.usd_of(n) * whole
    for id in ids if n < MAX_SAMPLES else ():
        more_usd = (cost.usd_of(n + 1) - cost.usd_of(n)) * weights[id]
        if more_usd / 2 > left_usd:
            break
        sizes[id] = n + 1
        left_usd -= more_usd
    return sizes


def _why_not(measure: str, cost_usd: float | None, *, cut: bool) -> str:
    """Why the measure's cost cannot size anything; empty if it can."""
    if not measure:
        return f"no planner with a cost to equal takes part ({', '.join(SIZED_BY)})"
    if cut:
        return f"{measure} has not answered everything"
    return f"the cost of {measure} is unknown" if cost_usd is None else "" if cost_usd else f"{measure} cost nothing"


async def _calibrated(
    one: Fitted,
    sampled: Sampled,
    part: tuple[Sequence[Task], Sequence[Outcome]],
    money_usd: float,
    ask_planner: AskPlanner,
    seed: int,
) -> list[Outcome]:
    """The answers lot by lot, each at a better forecast. `part` is the questions of a task, and the best worker's own
    answers to them."""
    tasks, alone = part
    by_id = {task.id: task for task in tasks}
    lots = in_lots(list(by_id), seed)
    # A question's weight: half its one known call of the best worker, which is one draw, and half the mean of them.
    known = {o.task: o.cost_usd for o in alone if not o.failed and o.known_cost_usd is not None}
    mean_usd = mean(list(known.values()))
    weights = {id: (known[id] + mean_usd) / 2 / sampled.call_usd if id in known else 1.0 for id in lots}
    outcomes: list[Outcome] = []
    left_usd, spent_usd, foretold_usd = money_usd, 0.0, 0.0
    prior_usd = money_usd / 8  # a first lot of few questions is no better than the forecast, and counts as much
    while lots:
        count = max(math.ceil(len(lots) / (2 if outcomes else 8)), math.ceil(len(by_id) / 32))
        ids, share = lots[:count], _sum(weights, lots[:count]) / (_sum(weights, lots) or 1.0)
        lots = lots[count:]
        cost = sampled.cost.times((spent_usd + prior_usd) / (foretold_usd + prior_usd))
        sizes = sizes_for(ids, cost, left_usd * share, weights=weights)
        planners = {n: sampled.planner_of(n) for n in set(sizes.values())}
        sized = msgspec.structs.replace(
            one,
            planner_for=lambda task, pool, sizes=sizes, planners=planners: planners[sizes[task.id]],
            max_steps=max(sizes.values()) + 1,
        )
        found = await ask_planner(sized, [by_id[id] for id in ids])
        outcomes += found
        if len(found) < len(ids):
            break
        spent_usd += math.fsum(outcome.cost_usd for outcome in found)
        foretold_usd += math.fsum(sampled.cost.usd_of(sizes[id]) * weights[id] for id in ids)
        left_usd = money_usd - spent_usd
    return outcomes


def _sizing(outcomes: Sequence[Outcome], worker: str, measure: str, target_usd: float | None, why_not: str) -> Sizing:
    """Adds the real cost of the samples; there is no ratio if nothing was sized or the cost is unknown."""
    if not outcomes:
        return Sizing(worker, measure, why_not=why_not)
    samples = [max(1, outcome.steps - 1) for outcome in outcomes]  # the last step counts, or brings together
    cost_usd = mean_or_none([outcome.known_cost_usd for outcome in outcomes])
    found = Sizing(worker, measure, cost_usd=cost_usd, samples=mean([float(n) for n in samples]))
    if why_not or cost_usd is None or not target_usd:
        return msgspec.structs.replace(found, why_not=why_not or f"the cost of a call of {worker} is unknown")
    bound = ""
    if not equal(cost_usd, target_usd):
        bound = "least" if max(samples) == 1 else "most" if min(samples) == MAX_SAMPLES else ""
    return msgspec.structs.replace(found, target_usd=target_usd, ratio=cost_usd / target_usd, bound=bound)


def _over_all_tasks(outcomes: Sequence[Outcome], by_task: Mapping[str, Sizing]) -> Sizing:
    """All tasks together, with each alone. A reason that is not the same for all tasks names those it holds for."""
    tasks: dict[str, list[str]] = {}
    for task, sizing in by_task.items():
        tasks.setdefault(sizing.why_not, []).append(task)
    said = [f"{why_not} ({', '.join(of)})" for why_not, of in tasks.items() if why_not]
    first = next(iter(by_task.values()))
    counts = by_planner(msgspec.structs.replace(o, planner=o.kind) for o in outcomes)
    targets = [s.target_usd for s in by_task.values()]
    known = [usd * len(counts.get(task, ())) for task, usd in zip(by_task, targets, strict=True) if usd is not None]
    target_usd = math.fsum(known) / len(outcomes) if outcomes and len(known) == len(targets) else None
    why_not = next(iter(tasks)) if len(tasks) == 1 else "; ".join(said)
    whole = _sizing(outcomes, first.worker, first.measure, target_usd, why_not)
    return msgspec.structs.replace(whole, by_task=dict(by_task))


def _sum(weights: Mapping[str, float], ids: Sequence[str]) -> float:
    return math.fsum(weights[id] for id in ids)
