"""How each baseline is made of what the training split taught: one function a name.

Knows the rules (who is best, what a vote costs, which workers escalate) and no evaluation: `evals/planners.py` checks
the names, puts the planners to work and is where to start reading.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.evaluate import PlannerFor, noise_seed
from dirigent.plan.plan import Plan
from dirigent.plan.planner import LanguagePlanner, Planner
from dirigent.planners.examples import (
    MAX_SAMPLES,
    Example,
    Rollout,
    SampleCost,
    accuracies,
    cheapest,
    mean_costs_usd,
    ranked,
    self_moa_cost,
    vote_cost,
)
from dirigent.planners.fixed import FanOut, Pipeline, Reflect, SelfMoa, Single, Vote
from dirigent.planners.given import RandomWorker
from dirigent.planners.knn import fit_knn
from dirigent.planners.vote_counter import Counting, Same
from dirigent.planners.voting import Escalate, Panel
from dirigent.planners.writing import answering
from dirigent.tasks.graders import same_answer
from dirigent.tasks.task import Grader, Task, tidy
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Worker

TRAINED = ("warm-start", "conductor")
"""Planners that are models of ours: whoever evaluates says how to get them."""

UNKNOWN_USD = math.inf
"""What fitting takes an unknown cost for: it comes behind every known one, so nobody is the cheaper for it."""

VOTE_SAMPLES, SELF_MOA_SAMPLES, MOA_CALLS, TURNS, PANEL, TEAM = 5, 6, 8, 5, 3, 5
"""Sizes where none is named: self-consistency x5 and MoA of 8 calls as the Conductor paper compares with, five turns of
reflection as there, six samples as in the Self-MoA paper, MasRouter's largest team."""


class Fitting(msgspec.Struct, frozen=True):
    """What planners are fitted on."""

    examples: tuple[Example, ...]
    pool: Pool
    """All workers that may be offered; a question may come with some of them."""
    seed: int = 0
    neighbours: int = 40

    @property
    def ranking(self) -> tuple[str, ...]:
        return ranked(self.examples)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The workers whose cost nobody knows."""
        return tuple(name for name, usd in mean_costs_usd(self.examples).items() if usd == UNKNOWN_USD)


class Sampled(msgspec.Struct, frozen=True):
    """How a planner of several samples is made with another number of them, and what they are expected to cost."""

    worker: str
    """Whose samples: the best worker."""
    planner_of: Callable[[int], Planner]
    cost: SampleCost
    call_usd: float
    """One call of that worker on the training split."""

    @property
    def why_not(self) -> str:
        """Why nothing can be sized by this cost; empty where it can."""
        if self.call_usd == UNKNOWN_USD:
            return f"what a call of {self.worker} costs is unknown"
        return "" if self.call_usd > 0 else f"a call of {self.worker} costs nothing"


class Baseline(msgspec.Struct, frozen=True):
    """A planner that can take part."""

    name: str
    planner_for: PlannerFor
    helpers_for: Callable[[Task, Pool], list[Worker]] | None = None
    """Local workers that its plans call, to be added to the pool."""
    max_steps: int = 1
    """Longest plan it writes, where that is known beforehand; a model's is as long as the limits allow."""
    max_rounds: int = 1
    note: str = ""
    """What was chosen, in words."""
    sampled: Sampled | None = None
    """Where the number of samples is still open: `sized.py` settles it; asked as it is, the planner takes its usual."""


async def fit_baseline(
    name: str, fitting: Fitting, *, rollout: Rollout | None, trained: Mapping[str, PlannerFor]
) -> Baseline:
    """The planner of that name, fitted."""
    kind, _, detail = name.partition(":")
    if kind in TRAINED:
        return Baseline(name, trained[kind], max_rounds=int(detail or 1))
    if kind == "single":
        return Baseline(name, _always(Single(detail, name=name)))
    if kind == "random":
        return Baseline(name, lambda task, pool: RandomWorker(seed=noise_seed(fitting.seed, task, 0)))
    if not fitting.examples and not (kind == "language" and detail):
        raise ConfigError(f"{name!r} is chosen on the training split, and no question of it was asked")
    if kind in PLAIN:
        return PLAIN[kind](name, detail, fitting)
    if kind == "masrouter":
        return await _masrouter(name, fitting, rollout)
    return _fitted(name, kind, detail, fitting)


def helpers(grader: Grader, weights: Sequence[float] = ()) -> list[Worker]:
    """The local workers that count: equally, by weight, and only where all agree."""
    same = _same(grader)
    return [
        Counting(same),
        Counting(same, name="weigh", weights=weights),
        Counting(same, name="agree", unanimous=True),
    ]


def log_odds(accuracy: float) -> float:
    """The weight of an independent juror (Nitzan and Paroush 1982); one that is mostly wrong hardly counts."""
    bounded = min(max(accuracy, 0.01), 0.99)
    return max(0.01, math.log(bounded / (1 - bounded)))


def _best(name: str, detail: str, fitting: Fitting) -> Baseline:
    return Baseline(name, _always(Single(fitting.ranking, name=name)), note=fitting.ranking[0])


def _cheapest(name: str, detail: str, fitting: Fitting) -> Baseline:
    order = cheapest(fitting.examples)
    return Baseline(name, _always(Single(order, name=name)), note=order[0])


def _vote(name: str, detail: str, fitting: Fitting) -> Baseline:
    def of(samples: int) -> Planner:
        return Vote(fitting.ranking, samples=samples, counter="count", name=name)

    cost = vote_cost(fitting.examples, fitting.ranking[0])
    found = _samples(name, of, int(detail or VOTE_SAMPLES), fitting, cost=None if detail else cost)
    return msgspec.structs.replace(found, helpers_for=_counters)


def _self_moa(name: str, detail: str, fitting: Fitting) -> Baseline:
    def of(samples: int) -> Planner:
        return SelfMoa(fitting.ranking, samples=samples, name=name)

    cost = self_moa_cost(fitting.examples, fitting.pool[fitting.ranking[0]].info)
    return _samples(name, of, int(detail or SELF_MOA_SAMPLES), fitting, cost=None if detail else cost)


def _samples(
    name: str, of: Callable[[int], Planner], samples: int, fitting: Fitting, *, cost: SampleCost | None
) -> Baseline:
    """So many samples of the best worker; with a cost, others can be had."""
    best = fitting.ranking[0]
    sampled = Sampled(best, of, cost, mean_costs_usd(fitting.examples)[best]) if cost is not None else None
    note = f"{best}, {samples} samples"
    return Baseline(name, _always(of(samples)), max_steps=samples + 1, note=note, sampled=sampled)


def _moa(name: str, detail: str, fitting: Fitting) -> Baseline:
    proposers, layers = layers_of(name, detail)
    planner = FanOut(fitting.ranking, proposers=proposers, layers=layers, name=name)
    note = f"{proposers} proposers, {layers} layer{'s' if layers > 1 else ''}, brought together by {fitting.ranking[0]}"
    return Baseline(name, _always(planner), max_steps=proposers * layers + 1, note=note)


def _reflect(name: str, detail: str, fitting: Fitting) -> Baseline:
    turns = int(detail or TURNS)
    planner = Reflect(fitting.ranking, turns=turns, name=name)
    return Baseline(name, _always(planner), max_steps=turns, note=f"{fitting.ranking[0]}, {turns} turns")


def _pipeline(name: str, detail: str, fitting: Fitting) -> Baseline:
    return Baseline(name, _always(Pipeline(fitting.ranking, name=name)), max_steps=3, note=fitting.ranking[0])


def _language(name: str, detail: str, fitting: Fitting) -> Baseline:
    worker = detail or fitting.ranking[0]
    planner = LanguagePlanner(fitting.pool[fitting.pool.require(worker)], name=name)
    return Baseline(name, _always(planner), note=f"planned by {worker}")


def _panel(name: str, detail: str, fitting: Fitting) -> Baseline:
    size = int(detail or PANEL)
    planner = Panel(fitting.ranking, size=size, name=name)
    return Baseline(name, _always(planner), _counters, max_steps=size + 1, note=", ".join(fitting.ranking[:size]))


def _weighted(name: str, detail: str, fitting: Fitting) -> Baseline:
    accuracy = accuracies(fitting.examples)

    def weighing(task: Task, pool: Pool) -> list[Worker]:
        there = [worker for worker in fitting.ranking if worker in pool]
        return helpers(task.grader, [log_odds(accuracy[worker]) for worker in there])

    planner = Panel(fitting.ranking, size=MAX_SAMPLES, counter="weigh", name=name)
    return Baseline(name, _always(planner), weighing, max_steps=min(len(fitting.ranking), MAX_SAMPLES) + 1)


def _escalate(name: str, detail: str, fitting: Fitting) -> Baseline:
    cost_usd = mean_costs_usd(fitting.examples)

    def planner_for(task: Task, pool: Pool) -> Planner:
        there = [worker for worker in fitting.ranking if worker in pool]
        pair = _two_cheaper(there, cost_usd)
        return Escalate((pair[0], pair[1]), there[0], name=name) if pair else Single(there[0], name=name)

    pair = escalating(fitting.examples)
    note = (
        f"{' + '.join(pair)}, then {fitting.ranking[0]}"
        if pair
        else f"{fitting.ranking[0]}: fewer than two are cheaper"
    )
    return Baseline(name, planner_for, _counters, max_steps=3, max_rounds=2, note=note)


def escalating(examples: Sequence[Example]) -> tuple[str, ...]:
    """The two most accurate of the workers cheaper than the best; none where fewer than two are."""
    return _two_cheaper(ranked(examples), mean_costs_usd(examples))


def _two_cheaper(ranking: Sequence[str], cost_usd: Mapping[str, float]) -> tuple[str, ...]:
    """Nobody is known to be cheaper than a worker whose own cost is unknown."""
    best, *rest = ranking
    cheaper = [worker for worker in rest if cost_usd[worker] < cost_usd[best] < UNKNOWN_USD]
    return tuple(cheaper[:2]) if len(cheaper) >= 2 else ()


def _knn(name: str, detail: str, fitting: Fitting) -> Baseline:
    router = fit_knn(fitting.examples, k=int(detail or fitting.neighbours), name=name)
    return Baseline(name, _always(router), note=f"{len(fitting.examples)} questions")


PLAIN: dict[str, Callable[[str, str, Fitting], Baseline]] = {
    "best": _best,
    "cheapest": _cheapest,
    "vote": _vote,
    "self-moa": _self_moa,
    "moa": _moa,
    "reflect": _reflect,
    "pipeline": _pipeline,
    "language": _language,
    "panel": _panel,
    "weighted-vote": _weighted,
    "escalate": _escalate,
    "knn": _knn,
}


def _fitted(name: str, kind: str, detail: str, fitting: Fitting) -> Baseline:
    """The planners that need numpy, which is imported only now."""
    note = f"{len(fitting.examples)} questions"
    try:
        if kind == "routerdc":
            from dirigent.planners.routerdc import fit_routerdc

            router = fit_routerdc(fitting.examples, seed=fitting.seed, name=name)
            return Baseline(name, _always(router), note=note)
        from dirigent.planners.smoothie import Smoothie, SmoothieFit
    except ModuleNotFoundError as error:
        raise _without_numpy(name, error) from None
    smoothing = SmoothieFit(fitting.examples, **({"neighbours": int(detail)} if detail else {}))

    workers = smoothing.workers[:MAX_SAMPLES]

    def picking(task: Task, pool: Pool) -> list[Worker]:
        return [smoothing.picker(task.question, among=[worker for worker in workers if worker in pool])]

    planner = Smoothie(workers, name=name)
    return Baseline(name, _always(planner), picking, max_steps=len(workers) + 1, note="no labels used")


async def _masrouter(name: str, fitting: Fitting, rollout: Rollout | None) -> Baseline:
    if rollout is None:
        raise ConfigError(f"{name!r} learns from plans that are carried out, which recorded answers do not allow")
    try:
        from dirigent.planners.masrouter import TeamSettings, fit_masrouter
    except ModuleNotFoundError as error:
        raise _without_numpy(name, error) from None
    settings = TeamSettings(max_agents=TEAM)
    if fitting.unpriced:
        rollout = _by_score_alone(rollout)
    questions = [example.question for example in fitting.examples]
    router = await fit_masrouter(
        questions, answering(fitting.pool), rollout, seed=fitting.seed, settings=settings, name=name
    )
    note = f"{settings.epochs} plans for each of {len(questions)} questions"
    if fitting.unpriced:
        note += f", cost left aside: no price is known for {', '.join(fitting.unpriced)}"
    return Baseline(name, _always(router), max_steps=settings.max_agents, note=note)


def _by_score_alone(rollout: Rollout) -> Rollout:
    """Where some costs are unknown, none counts: a plan must not look the better for a worker without a price."""

    async def scored(question: str, plan: Plan) -> tuple[float, float] | None:
        found = await rollout(question, plan)
        return None if found is None else (found[0], 0.0)

    return scored


def _without_numpy(name: str, error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(f'{name!r} needs {error.name}: pip install "dirigent[eval]"')


def layers_of(name: str, detail: str) -> tuple[int, int]:
    """`8`: so many calls in all, the last of them to bring the others together; `3x2`: proposers and layers."""
    width, x, depth = (detail or str(MOA_CALLS)).partition("x")
    if width.isdecimal() and (depth.isdecimal() if x else True):
        proposers, layers = (int(width), int(depth)) if x else (int(width) - 1, 1)
        if proposers >= 1 and layers >= 1 and proposers * layers <= 31:
            return proposers, layers
    raise ConfigError(f"{name!r}: write  moa:8  (calls) or  moa:3x2  (proposers x layers), at most 32 calls")


def _always(planner: Planner) -> PlannerFor:
    return lambda task, pool: planner


def _counters(task: Task, pool: Pool) -> list[Worker]:
    return helpers(task.grader)


def _same(grader: Grader) -> Same:
    """How a vote compares: as the grader does, and programs by their syntax trees. Recorded scores cannot be compared;
    there only the same text is the same answer, and the first one stands."""
    if grader != "score":
        return partial(same_answer, grader=grader)

    async def same_text(first: str, second: str) -> bool:
        return bool(first.strip()) and tidy(first) == tidy(second)

    return same_text
