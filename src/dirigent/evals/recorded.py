"""Recorded pools under evaluation: real models' answers replayed, every choice made on the other folds.

    each            every worker alone (single:NAME for one of them)
    best            the worker that did best on the training folds, alone
    cheapest        the worker that cost least on the training folds, alone
    random          a worker drawn by lot
    vote            the three best on the training folds, counted equally
    weighted-vote   all of them, weighted by the log-odds of their training accuracy
    escalate        the two best of the cheaper workers; the best one only where they disagree
    knn             the worker that did best on similar questions of the training folds
    oracle          the best choice of one worker per question                          (reference)

Questions fall into folds; what is chosen for one fold was fitted on the others, so no question helps to choose its own
worker. Each run is a `Conductor.run` like any other; only the answers come from a file. A model answered once, so there
is no self-consistency here; seconds are those of the replay and mean nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.evaluate import Entry, Keep, evaluate, noise_seed
from dirigent.evals.figures import ORACLE, by_planner, oracle
from dirigent.evals.hindsight import SINGLE, in_hindsight, pareto
from dirigent.evals.outcome import Outcome
from dirigent.evals.planners import Alone, RandomWorker
from dirigent.evals.record import Record
from dirigent.evals.recorded_prices import recorded_price
from dirigent.evals.report import BEST, Facts, Report, make_report
from dirigent.evals.stats import mean
from dirigent.limits import Budget, Limits
from dirigent.messages import Observe, ignore
from dirigent.planner import Planner
from dirigent.planners.knn import KnnRouter, Neighbours
from dirigent.planners.voting import Escalate, Panel
from dirigent.pool import Pool
from dirigent.tasks.benchmarks import Row, decoded, task_of
from dirigent.tasks.graders import same_answer
from dirigent.tasks.task import Grader, Task
from dirigent.toml import nearest
from dirigent.version import __version__
from dirigent.worker import Price, Worker
from dirigent.workers.counting import Counting
from dirigent.workers.recorded import Recorded

EACH, CHEAPEST, RANDOM = "each", "cheapest", "random"
VOTE, WEIGHTED, ESCALATE, KNN = "vote", "weighted-vote", "escalate", "knn"
PLANNERS = (EACH, BEST, CHEAPEST, RANDOM, VOTE, WEIGHTED, ESCALATE, KNN, ORACLE)
NEED_ANSWERS = (VOTE, WEIGHTED, ESCALATE)
DEFAULT = (BEST, CHEAPEST, RANDOM, VOTE, WEIGHTED, ESCALATE, KNN, ORACLE)

DRAWS = 20
"""Draws of the folds that show how much `best` owes to one of them."""

LIMITS = Limits(max_steps=32, max_rounds=2, max_output_tokens=1_000_000)
"""Room for a vote of all, for an escalation, and for every answer as long as it was."""


class RecordedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    folds: int = 5
    seed: int = 1
    limit: int | None = None
    """Questions; None = all."""
    panel: int = 3
    """Workers of the plain vote."""
    neighbours: int = 40

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise ConfigError(f"folds must be 2 or more, not {self.folds}: something is left to be fitted on")


class RecordedSet(msgspec.Struct, frozen=True):
    """The questions of a file and the models that answered them."""

    name: str
    tasks: list[Task]
    workers: dict[str, Worker]
    has_answers: bool
    """False: only scores were recorded, so answers cannot be compared."""
    left_out: int
    """Questions that cannot be graded here."""

    @property
    def pool(self) -> Pool:
        return Pool(self.workers.values())


async def evaluate_recorded(
    questions: RecordedSet,
    planners: Sequence[str] = DEFAULT,
    *,
    settings: RecordedSettings | None = None,
    record: Record | None = None,
    concurrency: int = 8,
    budget: Budget | None = None,
    commit: str = "",
    date: str = "",
    keep: Keep | None = None,
    observe: Observe = ignore,
) -> Report:
    """Every planner named, over the file's models."""
    settings = settings or RecordedSettings()
    planners = expanded(planners, questions)
    ask = partial(
        evaluate,
        tasks=questions.tasks,
        pool_for=lambda task, repeat: questions.pool,
        record=record,
        seed=settings.seed,
        limits=LIMITS,
        concurrency=concurrency,
        budget=budget,
        keep=keep,
        observe=observe,
    )
    singles = await ask([_single(name) for name in questions.workers])
    fold_of = folds_of(questions.tasks, folds=settings.folds, seed=settings.seed)
    fitted = [fit(questions, singles, fold_of, fold, settings=settings) for fold in range(settings.folds)]
    entries = _entries(planners, questions, fitted, fold_of, settings)
    chosen = await ask(entries) if entries else []
    outcomes = [*singles, *chosen, *(oracle(singles) if ORACLE in planners else ())]
    expected = (len(questions.workers) + len(entries)) * len(questions.tasks)
    facts = _facts(questions, planners, fitted, settings=settings, commit=commit, date=date, outcomes=outcomes)
    report = make_report(
        outcomes,
        planners,
        facts=facts,
        references=(ORACLE, *(name for name in planners if name.startswith(SINGLE))),
        complete=len(singles) + len(chosen) == expected,
    )
    found = {
        "pareto": pareto(report.planners),
        "hindsight": in_hindsight(outcomes, planners, seed=settings.seed),
        "best_by_draw": best_by_draw(questions, singles, folds=settings.folds),
    }
    return msgspec.structs.replace(report, chosen={**report.chosen, **found})


class _RecordedRow(Row, frozen=True):
    outputs: dict[str, Any] | None = None
    scores: dict[str, float] | None = None

    @property
    def models(self) -> list[str]:
        return list(self.outputs or self.scores or ())


def load_recorded(file: Path, *, limit: int | None = None, tasks: Sequence[str] = ()) -> RecordedSet:
    """A file of recorded answers or scores; `tasks` keeps the rows of these tasks alone."""
    rows = [row for _, row in decoded(file, _RecordedRow) if not tasks or row.task in tasks]
    if not rows:
        named = f" of {', '.join(tasks)}" if tasks else ""
        raise ConfigError(f"{file} has no questions{named}")
    has_answers = any(row.outputs for row in rows)
    models = list(dict.fromkeys(name for row in rows for name in row.models))
    if not models:
        raise ConfigError(f"{file} has questions but no recorded `outputs` or `scores`; --pool recorded: needs them")
    complete = [row for row in rows if len(row.models) == len(models)]
    found = [task_of(row) for row in complete]
    if not has_answers:
        found = [msgspec.structs.replace(task, grader="score") for task in found]
    graded = [task for task in found if task.grader != "code"][:limit]
    source = file if has_answers else [_as_outputs(row) for row in complete]
    workers: dict[str, Worker] = {
        model: Recorded(source, model=model, price=recorded_price(model)[0]) for model in models
    }
    left_out = len(rows) - len(graded) if limit is None else 0
    return RecordedSet(file.name.split(".")[0], graded, workers, has_answers, left_out)


def _as_outputs(row: _RecordedRow) -> dict[str, Any]:
    outputs = {model: {"text": repr(score)} for model, score in (row.scores or {}).items()}
    return {"question": row.question, "outputs": outputs}


def of_benchmarks(questions: RecordedSet, tasks: Sequence[Task], *, limit: int | None = None) -> RecordedSet:
    """The same models, asked these tasks instead: those that the file holds answers to."""
    recorded = {task.question.strip() for task in questions.tasks}
    held = [task for task in tasks if task.question.strip() in recorded and task.grader != "code"]
    if not held:
        raise ConfigError(f"{questions.name} has recorded answers to none of the {len(tasks)} questions named")
    return msgspec.structs.replace(questions, tasks=held[:limit], left_out=len(tasks) - len(held))


def default_planners(questions: RecordedSet) -> list[str]:
    """Everybody who can take part."""
    return [name for name in DEFAULT if questions.has_answers or name not in NEED_ANSWERS]


def expanded(planners: Sequence[str], questions: RecordedSet) -> list[str]:
    """The names, `each` replaced by every worker; a name nobody stands behind is refused before anything is asked."""
    found: dict[str, None] = {}
    for name in planners:
        if name == EACH:
            found |= {f"{SINGLE}{model}": None for model in questions.workers}
        elif name.startswith(SINGLE):
            questions.pool.require(name.removeprefix(SINGLE))
            found[name] = None
        elif name not in PLANNERS:
            raise ConfigError(f"no planner is called {name!r}{nearest(name, (*PLANNERS, 'single:NAME'))}")
        elif name in NEED_ANSWERS and not questions.has_answers:
            raise ConfigError(f"{name!r} compares answers, and {questions.name} recorded only scores; leave it out")
        else:
            found[name] = None
    if not found:
        raise ConfigError(f"no planner is named; say  --planners {','.join(DEFAULT)}")
    return list(found)


def folds_of(tasks: Sequence[Task], *, folds: int, seed: int) -> dict[str, int]:
    """Question -> fold, drawn by lot and equal in size."""
    if len(tasks) < folds:
        raise ConfigError(f"{len(tasks)} questions do not fill {folds} folds; ask more or use fewer folds")
    ids = sorted(task.id for task in tasks)
    random.Random(f"folds {seed}").shuffle(ids)
    return {id: i % folds for i, id in enumerate(ids)}


class Fitted(msgspec.Struct, frozen=True):
    """What is chosen for one fold, from the outcomes of the others."""

    ranking: tuple[str, ...]
    """Workers from best to worst; the cheaper first where two tie."""
    weights: tuple[float, ...]
    """Of a vote, in the order of the ranking."""
    cheapest: str
    cheaper: tuple[str, str] | None
    """Who answers before the best one is asked; None where fewer than two are cheaper."""
    router: KnnRouter


def fit(
    questions: RecordedSet,
    singles: Sequence[Outcome],
    fold_of: Mapping[str, int],
    fold: int,
    *,
    settings: RecordedSettings,
) -> Fitted:
    """Choose by the outcomes outside the fold."""
    known = [task for task in questions.tasks if fold_of[task.id] != fold]
    values, accuracy, cost_usd = _learnt(questions, singles, fold_of, fold)
    ranking = _ranked(accuracy, cost_usd)
    cheaper = [name for name in ranking[1:] if cost_usd[name] < cost_usd[ranking[0]]]
    scores = {name: [values[name].get(task.id, 0.0) for task in known] for name in ranking}
    return Fitted(
        ranking=ranking,
        weights=tuple(log_odds(accuracy[name]) for name in ranking),
        cheapest=min(ranking, key=lambda name: cost_usd[name]),
        cheaper=(cheaper[0], cheaper[1]) if len(cheaper) >= 2 else None,
        router=KnnRouter(Neighbours([task.question for task in known]), scores, k=settings.neighbours),
    )


def best_by_draw(questions: RecordedSet, singles: Sequence[Outcome], *, folds: int, draws: int = DRAWS) -> list[float]:
    """What `best` would have come to under other draws of the folds: its luck with this one."""
    value = {(outcome.planner.removeprefix(SINGLE), outcome.task): outcome.value for outcome in singles}
    found = []
    for seed in range(draws):
        fold_of = folds_of(questions.tasks, folds=folds, seed=seed)
        learnt = [_learnt(questions, singles, fold_of, fold) for fold in range(folds)]
        best = [_ranked(accuracy, cost_usd)[0] for _, accuracy, cost_usd in learnt]
        found.append(mean([value.get((best[fold], task), 0.0) for task, fold in fold_of.items()]))
    return found


def _ranked(accuracy: Mapping[str, float], cost_usd: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(sorted(accuracy, key=lambda name: (-accuracy[name], cost_usd[name])))


def _learnt(
    questions: RecordedSet, singles: Sequence[Outcome], fold_of: Mapping[str, int], fold: int
) -> tuple[dict[str, dict[str, float]], dict[str, float], dict[str, float]]:
    """Outside the fold: how right each worker was on each question, its accuracy, and what it cost a question."""
    values: dict[str, dict[str, float]] = {name: {} for name in questions.workers}
    costs: dict[str, list[float]] = {name: [] for name in questions.workers}
    for outcome in singles:
        if fold_of[outcome.task] != fold:
            values[outcome.planner.removeprefix(SINGLE)][outcome.task] = outcome.value
            costs[outcome.planner.removeprefix(SINGLE)].append(outcome.cost_usd)
    accuracy = {name: mean(list(found.values())) for name, found in values.items()}
    return values, accuracy, {name: mean(found) for name, found in costs.items()}


def log_odds(accuracy: float) -> float:
    """The weight of an independent juror (Nitzan and Paroush 1982); one that is mostly wrong hardly counts."""
    bounded = min(max(accuracy, 0.01), 0.99)
    return max(0.01, math.log(bounded / (1 - bounded)))


def _single(model: str) -> Entry:
    return Entry(f"{SINGLE}{model}", lambda task, pool: Alone(model))


def _entries(
    planners: Sequence[str],
    questions: RecordedSet,
    fitted: Sequence[Fitted],
    fold_of: Mapping[str, int],
    settings: RecordedSettings,
) -> list[Entry]:
    def planner_for(name: str, task: Task, pool: Pool) -> Planner:
        fold = fitted[fold_of[task.id]]
        match name:
            case "vote":
                return Panel(fold.ranking[: settings.panel])
            case "weighted-vote":
                return Panel(fold.ranking, counter="weigh", name=name)
            case "escalate" if fold.cheaper is not None:
                return Escalate(fold.cheaper, fold.ranking[0])
            case "knn":
                return fold.router
            case "cheapest":
                return Alone(fold.cheapest, name=name)
            case "random":
                return RandomWorker(seed=noise_seed(settings.seed, task, 0))
        return Alone(fold.ranking[0], name=name)

    def with_counters(task: Task, repeat: int) -> Pool:
        return Pool([*questions.workers.values(), *counters(task.grader, fitted[fold_of[task.id]].weights)])

    return [
        Entry(name, partial(planner_for, name), pool_for=with_counters if name in NEED_ANSWERS else None)
        for name in planners
        if name != ORACLE and not name.startswith(SINGLE)
    ]


def counters(grader: Grader, weights: Sequence[float]) -> list[Worker]:
    """The workers that count: equally, by weight, and only where all agree."""
    same = partial(same_answer, grader=grader)
    return [
        Counting(same),
        Counting(same, name="weigh", weights=weights),
        Counting(same, name="agree", unanimous=True),
    ]


def _facts(
    questions: RecordedSet,
    planners: Sequence[str],
    fitted: Sequence[Fitted],
    *,
    settings: RecordedSettings,
    commit: str,
    date: str,
    outcomes: Sequence[Outcome],
) -> Facts:
    prices = {name: worker.info.price or Price() for name, worker in questions.workers.items()}
    chosen: dict[str, Any] = {
        BEST: [fold.ranking[0] for fold in fitted],
        VOTE: [list(fold.ranking[: settings.panel]) for fold in fitted],
        ESCALATE: [list(fold.cheaper or ()) for fold in fitted],
        "prices": {name: recorded_price(name)[1] for name in questions.workers},
        "left_out": questions.left_out,
    }
    if found := by_planner(outcomes).get(ESCALATE):
        chosen["escalated"] = mean([float(outcome.steps == 1) for outcome in found])
    names = {BEST: chosen[BEST], CHEAPEST: [fold.cheapest for fold in fitted]}
    notes = {name: ", ".join(dict.fromkeys(found)) for name, found in names.items() if name in planners}
    return Facts(
        recipe={"pool": "recorded", "planners": list(planners), **msgspec.structs.asdict(settings)},
        commit=commit,
        seed=settings.seed,
        date=date,
        version=__version__,
        tasks={
            "name": questions.name,
            "n": len(questions.tasks),
            "pool": f"{len(questions.workers)} recorded models, {settings.folds}-fold",
        },
        workers="",
        prices=prices,
        chosen=chosen,
        notes=notes | ({ORACLE: "one worker per question"} if ORACLE in planners else {}),
    )
