"""Sized: `vote` and `self-moa` answer the questions at another planner's cost, after everybody else has answered.

How many samples a question gets is `sizing.py`'s arithmetic; here the rounds are asked and their costs looked at. Where
nothing can be sized (no measure, a cost unknown or of nothing) they are asked with their usual number of samples, and
the sizing says why. Where the measure has not answered everything, because the money ran out, they are not asked at
all: a resumed evaluation will, at the right size.

Where there are several tasks, each is sized by what the measure cost on it: a sum made equal over all would leave a
vote dearer than the measure on one and cheaper on the next, and no task on which the two may be compared.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from dirigent.evals.evaluate import PoolFor
from dirigent.evals.metrics import by_planner
from dirigent.evals.outcome import Outcome
from dirigent.evals.planners import by_limits, entry_of
from dirigent.evals.sizing import FIRST, SIZED_BY, Sizing, equal, in_lots, rounds_of, sizes_for
from dirigent.evals.stats import mean, mean_or_none
from dirigent.evals.verdict import BEST
from dirigent.limits import Limits
from dirigent.planners import Fitted
from dirigent.planners.examples import MAX_SAMPLES
from dirigent.planners.spec import Sampled
from dirigent.tasks.task import Task

Ask = Callable[..., Awaitable[list[Outcome]]]
"""`evaluate` with all but entries, tasks and limits settled."""


class Answered(msgspec.Struct, frozen=True):
    outcomes: list[Outcome] = []
    sizes: dict[str, Sizing] = {}
    """By planner."""


async def ask_sized(
    baselines: Sequence[Fitted],
    before: Sequence[Outcome],
    tasks: Sequence[Task],
    *,
    names: Sequence[str],
    ask: Ask,
    pool_for: PoolFor,
    limits: Limits,
    seed: int,
    task_of: Callable[[Task], str] = lambda task: "",
) -> Answered:
    """What the planners of several samples answered, and their sizes. `before` is what all others answered, `names` who
    takes part; whoever of `baselines` has a settled number of samples is passed over. `task_of` says which task a
    question belongs to; without it all are one."""
    own = _Asking(ask, pool_for, limits, seed, len(tasks))
    parts = _parts(names, by_planner(before), tasks, task_of)
    place = {task.id: i for i, task in enumerate(tasks)}
    outcomes: list[Outcome] = []
    sizes: dict[str, Sizing] = {}
    for baseline in baselines:
        if baseline.sampled is not None:
            found, sizes[baseline.name] = await _one(baseline, baseline.sampled, parts, own)
            outcomes += sorted(found, key=lambda outcome: place[outcome.task])
    return Answered(outcomes, sizes)


class _Money(msgspec.Struct, frozen=True):
    """What there is to spend, and whose cost that was."""

    measure: str
    usd: float = 0.0
    """On all questions of the task together."""
    why_not: str = ""
    cut: bool = False
    """The measure has not answered everything."""


class _Part(msgspec.Struct, frozen=True):
    """One task: its questions, what there is to spend on them, and what the best worker alone did there."""

    name: str
    tasks: Sequence[Task]
    money: _Money
    best: Sequence[Outcome]


def _parts(
    names: Sequence[str],
    before: Mapping[str, Sequence[Outcome]],
    tasks: Sequence[Task],
    task_of: Callable[[Task], str],
) -> list[_Part]:
    """The tasks in the order met. A measure that was cut on one of them is cut: the money is at its end."""
    measure = next((name for name in SIZED_BY if name in names), "")
    cut = bool(measure) and len(before.get(measure, ())) < len(tasks)
    by_name: dict[str, list[Task]] = {}
    for task in tasks:
        by_name.setdefault(task_of(task), []).append(task)
    found: list[_Part] = []
    for name, own in by_name.items():
        ids = {task.id for task in own}
        spent, best = ([o for o in before.get(planner, ()) if o.task in ids] for planner in (measure, BEST))
        found.append(_Part(name, own, _money(measure, spent, len(own), cut=cut), best))
    return found


def _money(measure: str, outcomes: Sequence[Outcome], questions: int, *, cut: bool) -> _Money:
    """Costs alone are looked at."""
    if not measure:
        return _Money("", why_not=f"none of {', '.join(SIZED_BY)} takes part")
    if cut:
        return _Money(measure, why_not=f"{measure} has not answered everything", cut=True)
    mean_usd = mean_or_none([outcome.known_cost_usd for outcome in outcomes])
    if mean_usd is None:
        return _Money(measure, why_not=f"what {measure} cost is unknown")
    if not mean_usd:
        return _Money(measure, why_not=f"{measure} cost nothing")
    return _Money(measure, mean_usd * questions)


def _weights(sampled: Sampled, best: Sequence[Outcome]) -> dict[str, float]:
    """Question -> what a call of the best worker costs on it, over what one was to cost: some are long, and on some
    somebody else stands in, at another price. One call that was made is one draw, so it counts half, and their mean the
    other half."""
    known = {o.task: o.cost_usd for o in best if not o.failed and o.known_cost_usd is not None}
    mean_usd = mean(list(known.values()))
    return {task: (cost_usd + mean_usd) / 2 / sampled.call_usd for task, cost_usd in known.items()}


class _Asking(msgspec.Struct, frozen=True):
    """How questions are put, the same for every planner."""

    ask: Ask
    pool_for: PoolFor
    limits: Limits
    seed: int
    runs: int
    """Questions in all."""

    async def put(self, baseline: Fitted, tasks: Sequence[Task]) -> list[Outcome]:
        """Some of the questions; whoever watches is told of how many in all."""
        ((own, _),) = by_limits([baseline], self.limits).items()
        entry = msgspec.structs.replace(entry_of(baseline, self.pool_for), runs=self.runs)
        return await self.ask([entry], tasks, limits=own)


async def _one(
    baseline: Fitted, sampled: Sampled, parts: Sequence[_Part], own: _Asking
) -> tuple[list[Outcome], Sizing]:
    """One planner's answers and how it came to its samples, task by task. Once the money of the evaluation has run out,
    no further task begins."""
    outcomes: list[Outcome] = []
    sizes: dict[str, Sizing] = {}
    short = False
    for part in parts:
        found = [] if short else await _part(baseline, sampled, part, own)
        short = len(found) < len(part.tasks)
        why_not = part.money.why_not or sampled.why_not or ("it has not answered everything" if short else "")
        sizes[part.name] = _sizing(found, sampled.worker, part.money, why_not=why_not)
        outcomes += found
    if len(parts) == 1:
        return outcomes, sizes[parts[0].name]
    money = _Money(parts[0].money.measure, math.fsum(part.money.usd for part in parts)) if parts else _Money("")
    whole = _sizing(outcomes, sampled.worker, money, why_not=_why_not(sizes))
    return outcomes, msgspec.structs.replace(whole, by_task=sizes)


async def _part(baseline: Fitted, sampled: Sampled, part: _Part, own: _Asking) -> list[Outcome]:
    """The answers to one task: sized where that can be done, else with the usual samples."""
    if part.money.cut:
        return []
    if part.money.why_not or sampled.why_not:
        return await own.put(baseline, part.tasks)
    return await _in_rounds(baseline, sampled, part, own)


def _why_not(sizes: Mapping[str, Sizing]) -> str:
    """Why not all tasks were sized: in a word where it is the same for all, else with the tasks it is so for."""
    tasks: dict[str, list[str]] = {}
    for task, sizing in sizes.items():
        tasks.setdefault(sizing.why_not, []).append(task)
    if len(tasks) == 1:
        return next(iter(tasks))
    return "; ".join(f"{why_not} ({', '.join(of)})" for why_not, of in tasks.items() if why_not)


async def _in_rounds(baseline: Fitted, sampled: Sampled, part: _Part, own: _Asking) -> list[Outcome]:
    """Round after round, each with its share of the money that is left, at a forecast that the rounds before have
    corrected. Where the money of the evaluation runs out, no further round begins."""
    by_id = {task.id: task for task in part.tasks}
    left = in_lots(list(by_id), own.seed)
    known = _weights(sampled, part.best)
    weights = {id: known.get(id, 1.0) for id in left}
    outcomes: list[Outcome] = []
    money_usd, spent_usd, foretold_usd = part.money.usd, 0.0, 0.0
    prior_usd = money_usd / FIRST  # a first round of few questions is no better than the forecast, and counts as much
    for ids in rounds_of(left):
        corrected = sampled.cost.times((spent_usd + prior_usd) / (foretold_usd + prior_usd))
        share = _sum(weights, ids) / (_sum(weights, left) or 1.0)
        sizes = sizes_for(ids, corrected, (money_usd - spent_usd) * share, weights=weights)
        found = await own.put(_with(baseline, sampled, sizes), [by_id[id] for id in ids])
        outcomes += found
        if len(found) < len(ids):
            break
        spent_usd += math.fsum(outcome.cost_usd for outcome in found)
        foretold_usd += math.fsum(sampled.cost.usd_of(sizes[id]) * weights[id] for id in ids)
        left = left[len(ids) :]
    return outcomes


def _with(baseline: Fitted, sampled: Sampled, sizes: Mapping[str, int]) -> Fitted:
    """The planner with so many samples for each question."""
    planners = {n: sampled.planner_of(n) for n in sizes.values()}
    return msgspec.structs.replace(
        baseline, planner_for=lambda task, pool: planners[sizes[task.id]], max_steps=max(sizes.values()) + 1
    )


def _sizing(outcomes: Sequence[Outcome], worker: str, money: _Money, *, why_not: str) -> Sizing:
    """What came of it; no ratio where it was not sized, or what it cost is unknown after all."""
    if not outcomes:
        return Sizing(worker, money.measure, why_not=why_not)
    samples = [max(1, outcome.steps - 1) for outcome in outcomes]  # the last step counts, or brings together
    cost_usd = mean_or_none([outcome.known_cost_usd for outcome in outcomes])
    found = Sizing(worker, money.measure, cost_usd=cost_usd, samples=mean([float(n) for n in samples]))
    if why_not or cost_usd is None:
        return msgspec.structs.replace(found, why_not=why_not or f"what a call of {worker} costs is unknown")
    target_usd = money.usd / len(outcomes)
    bound = ""
    if not equal(cost_usd, target_usd):
        bound = "least" if max(samples) == 1 else "most" if min(samples) == MAX_SAMPLES else ""
    return msgspec.structs.replace(found, target_usd=target_usd, ratio=cost_usd / target_usd, bound=bound)


def _sum(weights: Mapping[str, float], ids: Sequence[str]) -> float:
    return math.fsum(weights[id] for id in ids)
