"""The table of planners: each with its name, one sentence, and the functions that make it for a profile and for an
evaluation. Read `PLANNERS` at the end first; it names the functions above it. This module decides what a fitted planner
knows: the best worker, the cost of a vote, the workers that escalate. The planners themselves know nothing of tasks and
graders. Planners that need numpy are imported when they are fitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from dirigent.errors import ConfigError
from dirigent.plan.plan import Dialect, Plan
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
from dirigent.planners.fixed import ByCard, FanOut, Pipeline, RandomWorker, Reflect, SelfMoa, Single, Vote, answering
from dirigent.planners.knn import fit_knn
from dirigent.planners.learned import Learned
from dirigent.planners.program import Program
from dirigent.planners.spec import (
    UNKNOWN_USD,
    Argument,
    Fitted,
    Fitting,
    PlannerFor,
    PlannerName,
    PlannerSpec,
    Sampled,
    Setup,
    layers_of,
    noise_seed,
)
from dirigent.planners.vote_counter import Counting, Same
from dirigent.planners.voting import Escalate, Panel
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Worker, WorkerInfo

if TYPE_CHECKING:
    from dirigent.tasks.task import Task

VOTE_SAMPLES, SELF_MOA_SAMPLES, TURNS, PANEL, TEAM = 5, 6, 5, 3, 5
"""Default sizes: self-consistency of 5 and 5 turns of reflection as in the Conductor paper, 6 samples as in
the Self-MoA paper, MasRouter's largest team."""


# One worker alone


async def _single(name: PlannerName, fitting: Fitting) -> Fitted:
    return Fitted(str(name), _always(Single(name.argument, name=str(name))))


async def _best(name: PlannerName, fitting: Fitting) -> Fitted:
    ranking = fitting.ranking
    return Fitted(str(name), _always(Single(ranking, name=str(name))), note=ranking[0])


async def _cheapest(name: PlannerName, fitting: Fitting) -> Fitted:
    order = cheapest(fitting.examples)
    return Fitted(str(name), _always(Single(order, name=str(name))), note=order[0])


async def _random(name: PlannerName, fitting: Fitting) -> Fitted:
    return Fitted(str(name), lambda task, pool: RandomWorker(seed=noise_seed(fitting.seed, task, 0)))


# Several samples of one worker


async def _vote(name: PlannerName, fitting: Fitting) -> Fitted:
    ranking = fitting.ranking

    def of(samples: int) -> Planner:
        return Vote(ranking, samples=samples, counter="count", name=str(name))

    found = _samples(name, of, VOTE_SAMPLES, fitting, cost=vote_cost(fitting.examples, ranking[0]))
    return msgspec.structs.replace(found, helpers_for=_counters(fitting))


async def _self_moa(name: PlannerName, fitting: Fitting) -> Fitted:
    ranking = fitting.ranking

    def of(samples: int) -> Planner:
        return SelfMoa(ranking, samples=samples, name=str(name))

    cost = self_moa_cost(fitting.examples, fitting.pool[ranking[0]].info)
    return _samples(name, of, SELF_MOA_SAMPLES, fitting, cost=cost)


def _samples(
    name: PlannerName, of: Callable[[int], Planner], usual: int, fitting: Fitting, *, cost: SampleCost
) -> Fitted:
    """The best worker several times. The number is open unless the name has one."""
    best, samples = fitting.ranking[0], name.number or usual
    sampled = None if name.number else Sampled(best, of, cost, mean_costs_usd(fitting.examples)[best])
    note = f"{best}, {samples} samples"
    return Fitted(str(name), _always(of(samples)), max_steps=samples + 1, note=note, sampled=sampled)


# Fixed shapes


async def _moa(name: PlannerName, fitting: Fitting) -> Fitted:
    ranking = fitting.ranking
    proposers, layers = layers_of(name)
    planner = FanOut(ranking, proposers=proposers, layers=layers, name=str(name))
    note = f"{proposers} proposers, {layers} layer{'s' if layers > 1 else ''}, brought together by {ranking[0]}"
    return Fitted(str(name), _always(planner), max_steps=proposers * layers + 1, note=note)


async def _reflect(name: PlannerName, fitting: Fitting) -> Fitted:
    ranking, turns = fitting.ranking, name.number or TURNS
    planner = Reflect(ranking, turns=turns, name=str(name))
    return Fitted(str(name), _always(planner), max_steps=turns, note=f"{ranking[0]}, {turns} turns")


async def _pipeline(name: PlannerName, fitting: Fitting) -> Fitted:
    ranking = fitting.ranking
    return Fitted(str(name), _always(Pipeline(ranking, name=str(name))), max_steps=3, note=ranking[0])


# Several workers and a count of their votes


async def _panel(name: PlannerName, fitting: Fitting) -> Fitted:
    ranking, size = fitting.ranking, name.number or PANEL
    planner = Panel(ranking, size=size, name=str(name))
    return Fitted(str(name), _always(planner), _counters(fitting), max_steps=size + 1, note=", ".join(ranking[:size]))


async def _weighted(name: PlannerName, fitting: Fitting) -> Fitted:
    ranking, accuracy = fitting.ranking, accuracies(fitting.examples)

    def weighing(task: Task, pool: Pool) -> list[Worker]:
        there = [worker for worker in ranking if worker in pool]
        return counters(fitting.same_for(task), [log_odds(accuracy[worker]) for worker in there])

    planner = Panel(ranking, size=MAX_SAMPLES, counter="weigh", name=str(name))
    return Fitted(str(name), _always(planner), weighing, max_steps=min(len(ranking), MAX_SAMPLES) + 1)


async def _escalate(name: PlannerName, fitting: Fitting) -> Fitted:
    ranking, cost_usd = fitting.ranking, mean_costs_usd(fitting.examples)

    def planner_for(task: Task, pool: Pool) -> Planner:
        there = [worker for worker in ranking if worker in pool]
        pair = _two_cheaper(there, cost_usd)
        return Escalate((pair[0], pair[1]), there[0], name=str(name)) if pair else Single(there[0], name=str(name))

    pair = escalating(fitting.examples)
    note = f"{' + '.join(pair)}, then {ranking[0]}" if pair else f"{ranking[0]}: fewer than two are cheaper"
    return Fitted(str(name), planner_for, _counters(fitting), max_steps=3, max_rounds=2, note=note)


def escalating(examples: Sequence[Example]) -> tuple[str, ...]:
    """The two most accurate of the workers cheaper than the best; empty if fewer than two are cheaper."""
    return _two_cheaper(ranked(examples), mean_costs_usd(examples))


def _two_cheaper(ranking: Sequence[str], cost_usd: Mapping[str, float]) -> tuple[str, ...]:
    """No worker counts as cheaper than one whose own cost is unknown."""
    best, *rest = ranking
    cheaper = [worker for worker in rest if cost_usd[worker] < cost_usd[best] < UNKNOWN_USD]
    return tuple(cheaper[:2]) if len(cheaper) >= 2 else ()


def counters(same: Same, weights: Sequence[float] = ()) -> list[Worker]:
    """The local workers that count votes: equally, by weight, and only if all agree."""
    return [
        Counting(same),
        Counting(same, name="weigh", weights=weights),
        Counting(same, name="agree", unanimous=True),
    ]


def log_odds(accuracy: float) -> float:
    """The weight of an independent juror (Nitzan and Paroush 1982); one that is mostly wrong hardly counts."""
    bounded = min(max(accuracy, 0.01), 0.99)
    return max(0.01, math.log(bounded / (1 - bounded)))


# Routers, fitted on the training split


async def _knn(name: PlannerName, fitting: Fitting) -> Fitted:
    router = fit_knn(fitting.examples, k=name.number or fitting.neighbours, name=str(name))
    return Fitted(str(name), _always(router), note=f"{len(fitting.examples)} questions")


async def _routerdc(name: PlannerName, fitting: Fitting) -> Fitted:
    try:
        from dirigent.planners.routerdc import fit_routerdc
    except ModuleNotFoundError as error:
        raise _without_numpy(name, error) from None
    router = fit_routerdc(fitting.examples, seed=fitting.seed, name=str(name))
    return Fitted(str(name), _always(router), note=f"{len(fitting.examples)} questions")


async def _smoothie(name: PlannerName, fitting: Fitting) -> Fitted:
    try:
        from dirigent.planners.smoothie import Smoothie, SmoothieFit
    except ModuleNotFoundError as error:
        raise _without_numpy(name, error) from None
    smoothing = SmoothieFit(fitting.examples, **({"neighbours": name.number} if name.number else {}))
    workers = smoothing.workers[:MAX_SAMPLES]

    def picking(task: Task, pool: Pool) -> list[Worker]:
        return [smoothing.picker(task.question, among=[worker for worker in workers if worker in pool])]

    planner = Smoothie(workers, name=str(name))
    return Fitted(str(name), _always(planner), picking, max_steps=len(workers) + 1, note="no labels used")


async def _masrouter(name: PlannerName, fitting: Fitting) -> Fitted:
    rollout = fitting.rollout
    if rollout is None:
        raise ConfigError(f"'{name}' learns from plans that are carried out, which recorded answers do not allow")
    try:
        from dirigent.planners.masrouter import TeamSettings, fit_masrouter
    except ModuleNotFoundError as error:
        raise _without_numpy(name, error) from None
    settings = TeamSettings(max_agents=TEAM)
    if fitting.unpriced:
        rollout = _by_score_alone(rollout)
    questions = [example.question for example in fitting.examples]
    router = await fit_masrouter(
        questions, answering(fitting.pool), rollout, seed=fitting.seed, settings=settings, name=str(name)
    )
    note = f"{settings.epochs} plans for each of {len(questions)} questions"
    if fitting.unpriced:
        note += f", cost left aside: no price is known for {', '.join(fitting.unpriced)}"
    return Fitted(str(name), _always(router), max_steps=settings.max_agents, note=note)


def _by_score_alone(rollout: Rollout) -> Rollout:
    """If some costs are unknown, no cost counts: a plan must not look better for a worker without a price."""

    async def scored(question: str, plan: Plan) -> tuple[float, float] | None:
        found = await rollout(question, plan)
        return None if found is None else (found[0], 0.0)

    return scored


def _without_numpy(name: PlannerName, error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(f"'{name}' needs {error.name}: pip install \"dirigent[eval]\"")


# Models that plan


async def _language(name: PlannerName, fitting: Fitting) -> Fitted:
    worker = name.argument or fitting.ranking[0]
    planner = LanguagePlanner(fitting.pool[fitting.pool.require(worker)], name=str(name))
    return Fitted(str(name), _always(planner), note=f"planned by {worker}")


async def given_planner(name: PlannerName, fitting: Fitting) -> Fitted:
    """A planner that the evaluation brings, such as a trained model; its argument is a number of rounds."""
    return Fitted(str(name), fitting.trained[name.kind], max_rounds=name.number or 1)


def _prompted(setup: Setup) -> Planner:
    worker = setup.pool[setup.worker or setup.pool.names[0]]
    return LanguagePlanner(
        worker,
        dialect=setup.dialect or _dialect(worker.info),
        few_shots=setup.few_shots,
        show_names=setup.show_names,
        temperature=setup.temperature,
        max_output_tokens=setup.max_output_tokens,
    )


def _conductor(setup: Setup) -> Planner:
    return LanguagePlanner(
        (setup.everybody or setup.pool)[setup.worker],
        # The shipped adapters read bare cards and write lines. One trained on another dialect's prompt is given that.
        dialect=setup.dialect or "lines",
        trained=setup.dialect in (None, "lines"),
        few_shots=setup.few_shots,
        show_names=setup.show_names,
        temperature=setup.temperature,
        max_output_tokens=setup.max_output_tokens,
        name="conductor",
    )


def _learned(setup: Setup) -> Planner:
    if setup.policy is None:
        raise ConfigError(
            'planner "learned" needs  policy = "FOLDER"  in its profile: the folder that `dirigent learn` wrote'
        )
    return Learned(
        setup.policy,
        selector=setup.selector,
        counter=setup.counter,
        prefer=setup.prefer,
        at=setup.operating_point,
        unlike=setup.unlike,
        explore=setup.explore,
    )


def _dialect(info: WorkerInfo) -> Dialect:
    """The dialect that the worker can be held to while it writes."""
    if "grammar" in info.abilities:
        return "lines"
    return "json" if "schema" in info.abilities else "lists"


def _always(planner: Planner) -> PlannerFor:
    return lambda task, pool: planner


def _counters(fitting: Fitting) -> Callable[[Task, Pool], list[Worker]]:
    return lambda task, pool: counters(fitting.same_for(task))


SAMPLES = Argument("number", MAX_SAMPLES)
TURNS_AT_MOST = Argument("number", 32)
NEIGHBOURS = Argument("number", 1000)
ROUNDS = Argument("number", 8)

PLANNERS: tuple[PlannerSpec, ...] = (
    PlannerSpec(
        name="single",
        about="one worker answers alone",
        forms=("single:NAME",),
        argument=Argument("worker", required=True),
        make=lambda setup: Single(setup.worker),
        fit=_single,
        learns_from="",
        replays=True,
    ),
    PlannerSpec(
        name="program",
        about="a question that asks for a computed value goes to a worker that runs programs, any other to one plain "
        "call; the plain worker also answers if the program fails (max_rounds = 2)",
        make=lambda setup: Program(setup.worker),
    ),
    PlannerSpec(
        name="best",
        about="the worker with the highest accuracy on the training split answers alone; the cheaper of two equals. In "
        "a profile it is known from the workers' cards; without measured figures, the dearest worker answers alone",
        make=lambda setup: Single(setup.worker) if setup.worker else ByCard("best", right=setup.right),
        fit=_best,
        replays=True,
        default_on=("live", "recorded", "gym"),
    ),
    PlannerSpec(
        name="cheapest",
        about="the worker that cost least on the training split answers alone; in a profile the one with the lowest "
        "price",
        make=lambda setup: Single(setup.worker) if setup.worker else ByCard("cheapest"),
        fit=_cheapest,
        replays=True,
        default_on=("live", "recorded"),
    ),
    PlannerSpec(
        name="random",
        about="a worker drawn by lot for each question answers alone",
        fit=_random,
        learns_from="",
        replays=True,
        default_on=("live", "recorded"),
    ),
    PlannerSpec(
        name="vote",
        about="the best worker answers N times, and a local counter takes the commonest answer",
        forms=("vote:N",),
        argument=SAMPLES,
        make=lambda setup: Vote(setup.worker),
        fit=_vote,
        replays=True,
        compares=True,
        default_on=("live", "recorded"),
    ),
    PlannerSpec(
        name="self-moa",
        about="the best worker answers N times and then brings its own answers together",
        forms=("self-moa:N",),
        argument=SAMPLES,
        fit=_self_moa,
        default_on=("live",),
    ),
    PlannerSpec(
        name="moa",
        about="workers answer side by side, in pool order, and the best worker brings the answers together: 8 calls, "
        "or layers of 3 workers that answer again having read all three",
        forms=("moa:8", "moa:3x2"),
        argument=Argument("layers"),
        make=lambda setup: FanOut(setup.worker),
        fit=_moa,
        default_on=("live",),
    ),
    PlannerSpec(
        name="reflect",
        about="the best worker answers and reviews its own answer again and again: 5 calls, or N",
        forms=("reflect:N",),
        argument=TURNS_AT_MOST,
        make=lambda setup: Reflect(setup.worker),
        fit=_reflect,
        default_on=("live",),
    ),
    PlannerSpec(
        name="pipeline",
        about="the best worker plans, carries the plan out and reviews: hard-coded, 3 calls",
        fit=_pipeline,
        default_on=("live",),
    ),
    PlannerSpec(
        name="panel",
        about="the N best workers (3) answer once each, and their votes count equally",
        forms=("panel:N",),
        argument=SAMPLES,
        fit=_panel,
        replays=True,
        compares=True,
    ),
    PlannerSpec(
        name="weighted-vote",
        about="all workers answer once each, and votes are weighted by the log-odds of the workers' accuracy",
        fit=_weighted,
        replays=True,
        compares=True,
        default_on=("recorded",),
    ),
    PlannerSpec(
        name="escalate",
        about="the two most accurate of the workers cheaper than the best answer; the best is asked if they disagree",
        fit=_escalate,
        rounds=2,
        replays=True,
        compares=True,
        default_on=("live", "recorded"),
    ),
    PlannerSpec(
        name="knn",
        about="the worker that did best on the K (40) most similar questions answers alone",
        forms=("knn:K",),
        argument=NEIGHBOURS,
        fit=_knn,
        replays=True,
        default_on=("live", "recorded"),
    ),
    PlannerSpec(
        name="routerdc",
        about="the worker that a contrastively trained router chooses answers alone",
        fit=_routerdc,
        extra="eval",
        replays=True,
        default_on=("recorded",),
    ),
    PlannerSpec(
        name="smoothie",
        about="all workers answer, and the answer of the worker that scatters least is taken, without labels, on this "
        "question and K - 1 (0) similar ones",
        forms=("smoothie:K",),
        argument=NEIGHBOURS,
        fit=_smoothie,
        extra="eval",
        replays=True,
        compares=True,
        default_on=("recorded",),
    ),
    PlannerSpec(
        name="masrouter",
        about="a team answers: a policy chooses its mode, roles and workers",
        fit=_masrouter,
        learns_from="plans",
        extra="eval",
    ),
    PlannerSpec(
        name="language",
        about="a worker is prompted to write the plan: the named one, else the best",
        forms=("language:NAME",),
        argument=Argument("worker"),
        make=_prompted,
        planned_by="worker",
        fit=_language,
        default_on=("live",),
    ),
    PlannerSpec(
        name="learned",
        about="a policy fitted on graded answers asks workers in the order that suits the kind of question, until its "
        "selector is sure of an answer",
        make=_learned,
        by_policy=True,
        extra="eval",
    ),
    PlannerSpec(
        name="warm-start",
        about="the conductor before reinforcement learning writes the plan",
        argument=ROUNDS,
        planned_by="trained worker",
        fit=given_planner,
        learns_from="",
    ),
    PlannerSpec(
        name="conductor",
        about="a model trained with reinforcement learning writes the plan, in N rounds (1)",
        forms=("conductor:N",),
        argument=ROUNDS,
        make=_conductor,
        planned_by="trained worker",
        fit=given_planner,
        learns_from="",
    ),
)
