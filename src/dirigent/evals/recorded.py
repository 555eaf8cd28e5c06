"""Recorded pools under evaluation: real models' answers replayed, every choice made on the other folds.

    each            every worker alone (single:NAME for one of them)
    best            the worker that did best on the training folds, alone
    cheapest        the worker that cost least on the training folds, alone
    random          a worker drawn by lot
    vote            the three best on the training folds, counted equally
    panel:N         the N best of them likewise
    weighted-vote   all of them, weighted by the log-odds of their training accuracy
    escalate        the two best of the cheaper workers; the best one only where they disagree
    knn, routerdc   the worker that a router fitted on the training folds chooses (knn:K for K neighbours)
    smoothie        all of them; the answer most like the others, without labels (smoothie:K likewise)
    oracle          the best choice of one worker per question                          (reference)
    ceiling         the best planner of each kind of question, chosen with hindsight    (reference)

Questions fall into folds; what is chosen for one fold was fitted on the others, so no question helps to choose its own
worker. Each run is a `Conductor.run` like any other; only the answers come from a file. A model answered once, so there
is no self-consistency here and nothing that asks for a new answer (MoA, reflection, MasRouter); seconds are those of
the replay and mean nothing.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.cross_validation import best_by_draw, folds_of
from dirigent.evals.evaluate import Entry, Keep, evaluate
from dirigent.evals.examples import examples
from dirigent.evals.hindsight import CEILING, SINGLE, ceiling, in_hindsight, pareto
from dirigent.evals.metrics import ORACLE, by_planner, oracle
from dirigent.evals.outcome import Outcome
from dirigent.evals.planners import (
    EACH,
    FIGURES,
    check_names,
    default_planners,
    examples_of,
    fit_planners,
    require_whole,
)
from dirigent.evals.record import Record, name_of
from dirigent.evals.recorded_prices import recorded_price
from dirigent.evals.report import Facts, Report, make_report
from dirigent.evals.stats import mean
from dirigent.evals.verdict import BEST
from dirigent.limits import Budget, Limits
from dirigent.messages import Observe, ignore
from dirigent.plan.planner import Planner
from dirigent.planners import PLANNERS as TABLE
from dirigent.planners import Fitted, Fitting, find_planner, parse_name, unknown_planner
from dirigent.planners.examples import Example, ranked
from dirigent.planners.given import Alone
from dirigent.planners.table import escalating
from dirigent.tasks.benchmarks import decoded, task_of
from dirigent.tasks.published import Row
from dirigent.tasks.task import Task
from dirigent.version import __version__
from dirigent.workers.pool import Pool
from dirigent.workers.recorded import Recorded
from dirigent.workers.worker import Price, Worker

VOTE, PANEL, ESCALATE = "vote", "panel", "escalate"
NEED_ANSWERS = tuple(spec.name for spec in TABLE if spec.compares)
DEFAULT = default_planners("recorded")
REFERENCES = (ORACLE, CEILING)
PLANNERS = (EACH, *DEFAULT, PANEL)

REFERENCE_NOTES = {ORACLE: "one worker per question", CEILING: "best planner per kind, with hindsight"}

LEFT_OUT = "not answered by every model, or graded by running code"

MOST_TASKS = 20
"""A file of more tasks has too few questions of each for rows of their own; `by_kind` tells its accuracies."""

LIMITS = Limits(max_steps=32, max_rounds=2, max_output_tokens=1_000_000)
"""Room for a vote of all, for an escalation, and for every answer as long as it was."""


class RecordedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    folds: int = 5
    seed: int = 1
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
    answers: str
    """A name for exactly these recorded answers."""

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
    alone = [_single(name) for name in questions.workers]
    singles = await ask(alone)
    require_whole(singles, alone, questions.tasks, before="every worker had answered")
    fold_of = folds_of(questions.tasks, folds=settings.folds, seed=settings.seed)
    folds = [await fit_fold(planners, questions, singles, fold_of, fold, settings) for fold in range(settings.folds)]
    entries = _entries(folds, questions, fold_of)
    chosen = await ask(entries) if entries else []
    found = _Found(questions, planners, settings, folds, singles, chosen)
    return _report(found, commit=commit, date=date, concurrency=concurrency)


class _RecordedRow(Row, frozen=True):
    outputs: dict[str, Any] | None = None
    scores: dict[str, float] | None = None

    @property
    def models(self) -> list[str]:
        return list(self.outputs or self.scores or ())


def load_recorded(file: Path, *, limit: int | None = None, tasks: Sequence[str] = (), seed: int = 1) -> RecordedSet:
    """A file of recorded answers or scores; `tasks` keeps the rows of these tasks alone, `limit` so many of each."""
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
    graded = [task for task in found if task.grader != "code"]
    source = file if has_answers else [_as_outputs(row) for row in complete]
    workers: dict[str, Worker] = {
        model: Recorded(source, model=model, price=_price(model, complete)) for model in models
    }
    asked = _drawn(graded, limit, seed)
    name, left_out = file.name.split(".")[0], len(rows) - len(graded)
    answers = name_of([(row.question, row.outputs, row.scores) for row in complete])
    return RecordedSet(name, asked, workers, has_answers, left_out, answers)


def _drawn(tasks: Sequence[Task], limit: int | None, seed: int) -> list[Task]:
    """So many questions of each task, drawn by lot, in the file's order: a file may begin with the easy ones."""
    if limit is None:
        return list(tasks)
    by_kind: dict[str, list[str]] = {}
    for task in tasks:
        by_kind.setdefault(task.kind, []).append(task.id)
    drawn = {
        id for ids in by_kind.values() for id in random.Random(f"questions {seed}").sample(ids, min(limit, len(ids)))
    }
    return [task for task in tasks if task.id in drawn]


def _price(model: str, rows: Sequence[_RecordedRow]) -> Price | None:
    """A model's price. None: what the file states, answer by answer, else unknown; one that it says cost nothing
    throughout is free."""
    price, _ = recorded_price(model)
    if price is None and rows and all((row.outputs or {}).get(model, {}).get("cost_usd") == 0 for row in rows):
        return Price()
    return price


def _as_outputs(row: _RecordedRow) -> dict[str, Any]:
    outputs = {model: {"text": repr(score)} for model, score in (row.scores or {}).items()}
    return {"question": row.question, "outputs": outputs}


def of_benchmarks(
    questions: RecordedSet, tasks: Sequence[Task], *, limit: int | None = None, seed: int = 1
) -> RecordedSet:
    """The same models, asked these tasks instead: those that the file holds answers to."""
    recorded = {task.question.strip() for task in questions.tasks}
    held = [task for task in tasks if task.question.strip() in recorded and task.grader != "code"]
    if not held:
        raise ConfigError(f"{questions.name} has recorded answers to none of the {len(tasks)} questions named")
    return msgspec.structs.replace(questions, tasks=_drawn(held, limit, seed), left_out=len(tasks) - len(held))


def usable_planners(questions: RecordedSet) -> list[str]:
    """The planners that can take part by default."""
    return [name for name in DEFAULT if questions.has_answers or name not in NEED_ANSWERS]


def expanded(planners: Sequence[str], questions: RecordedSet) -> list[str]:
    """The names, `each` replaced by every worker; a name nobody stands behind is refused before anything is asked."""
    found: dict[str, None] = {}
    for name in planners:
        if name == EACH:
            found |= {f"{SINGLE}{model}": None for model in questions.workers}
        else:
            _check_planner(name, questions)
            found[name] = None
    if not found:
        raise ConfigError(f"no planner is named; say  --planners {','.join(DEFAULT)}")
    return list(found)


def _check_planner(name: str, questions: RecordedSet) -> None:
    """Refuse what one answer a model cannot give; what a number behind the colon may be is settled as elsewhere."""
    parsed = parse_name(name)
    kind, detail = parsed.kind, parsed.argument
    if kind == VOTE and detail:
        raise ConfigError(f"{name!r} asks one worker again, and each answered once; for several write  panel:{detail}")
    spec = find_planner(kind)
    if kind not in FIGURES and not (spec is not None and spec.replays):
        if spec is not None:
            raise ConfigError(
                f"{name!r} cannot be had of recorded answers, one a model; there are: {', '.join(PLANNERS)}"
            )
        raise unknown_planner(name, (*PLANNERS, "single:NAME"))
    check_names([name], questions.pool, trained={})
    if kind in NEED_ANSWERS and not questions.has_answers:
        raise ConfigError(f"{name!r} compares answers, and {questions.name} recorded only scores; leave it out")
    if kind == PANEL and detail and int(detail) > len(questions.workers):
        most = len(questions.workers)
        raise ConfigError(f"{name!r} has more voters than {questions.name} has models; write  panel:{most}  or less")


class Fold(msgspec.Struct, frozen=True):
    """What is chosen for one fold, from the outcomes of the others."""

    examples: tuple[Example, ...]
    planners: dict[str, Fitted]
    """By the name that the report gives them."""

    @property
    def ranking(self) -> tuple[str, ...]:
        return ranked(self.examples)


async def fit_fold(
    planners: Sequence[str],
    questions: RecordedSet,
    singles: Sequence[Outcome],
    fold_of: Mapping[str, int],
    fold: int,
    settings: RecordedSettings,
) -> Fold:
    """Everybody fitted on the questions outside the fold."""
    examples = examples_of([task for task in questions.tasks if fold_of[task.id] != fold], singles)
    fitting = Fitting(examples, questions.pool, seed=settings.seed, neighbours=settings.neighbours)
    own = [name for name in planners if name not in REFERENCES and not name.startswith(SINGLE)]
    # A vote over recorded answers is one of several workers: each answered once.
    asked = [f"panel:{settings.panel}" if name == VOTE else name for name in own]
    return Fold(examples, dict(zip(own, await fit_planners(asked, fitting), strict=True)))


def _single(model: str) -> Entry:
    return Entry(f"{SINGLE}{model}", lambda task, pool: Alone(model))


def _entries(folds: Sequence[Fold], questions: RecordedSet, fold_of: Mapping[str, int]) -> list[Entry]:
    """Each planner as its question's fold has it."""

    def planner_for(name: str, task: Task, pool: Pool) -> Planner:
        return folds[fold_of[task.id]].planners[name].planner_for(task, pool)

    def pool_for(name: str, task: Task, repeat: int) -> Pool:
        helpers_for = folds[fold_of[task.id]].planners[name].helpers_for
        return Pool([*questions.workers.values(), *(helpers_for(task, questions.pool) if helpers_for else ())])

    return [Entry(name, partial(planner_for, name), pool_for=partial(pool_for, name)) for name in folds[0].planners]


class _Found(msgspec.Struct, frozen=True):
    """All that a report is made of."""

    questions: RecordedSet
    planners: Sequence[str]
    settings: RecordedSettings
    folds: Sequence[Fold]
    singles: Sequence[Outcome]
    """Of every worker alone."""
    chosen: Sequence[Outcome]
    """Of every planner fitted on the folds."""

    @property
    def complete(self) -> bool:
        """Whether everybody answered everything: a budget may end the asking early."""
        asked = len(self.questions.workers) + len(self.folds[0].planners)
        return len(self.singles) + len(self.chosen) == asked * len(self.questions.tasks)


def _report(found: _Found, *, commit: str, date: str, concurrency: int) -> Report:
    outcomes = _with_references(found)
    several = 1 < len({task.kind for task in found.questions.tasks}) <= MOST_TASKS
    report = make_report(
        outcomes,
        found.planners,
        facts=_facts(found, outcomes, commit=commit, date=date, concurrency=concurrency),
        references=(*REFERENCES, *(name for name in found.planners if name.startswith(SINGLE))),
        complete=found.complete,
        task_of=(lambda outcome: outcome.kind) if several else None,
    )
    afterwards = {
        "pareto": pareto(report.planners),
        "hindsight": in_hindsight(outcomes, found.planners, seed=found.settings.seed),
        "best_by_draw": best_by_draw(found.questions.tasks, found.singles, folds=found.settings.folds),
    }
    return msgspec.structs.replace(report, chosen={**report.chosen, **afterwards})


def _with_references(found: _Found) -> list[Outcome]:
    """Every outcome, and after them those of the references that are named."""
    outcomes = [*found.singles, *found.chosen]
    best_choice = oracle(found.singles) if ORACLE in found.planners else []
    best_by_kind = ceiling(outcomes) if CEILING in found.planners else []
    return [*outcomes, *best_choice, *best_by_kind]


def _facts(found: _Found, outcomes: Sequence[Outcome], *, commit: str, date: str, concurrency: int) -> Facts:
    questions, planners, settings = found.questions, found.planners, found.settings
    return Facts(
        recipe={
            "pool": "recorded",
            "planners": list(planners),
            **msgspec.structs.asdict(settings),
            "concurrency": concurrency,
        },
        commit=commit,
        seed=settings.seed,
        date=date,
        version=__version__,
        tasks={
            "name": questions.name,
            "n": len(questions.tasks),
            "pool": f"{len(questions.workers)} recorded models, {settings.folds}-fold",
            **({"left_out": {LEFT_OUT: questions.left_out}} if questions.left_out else {}),
        },
        workers="",
        prices={name: worker.info.price for name, worker in questions.workers.items()},
        chosen=_choices(found, outcomes),
        notes=_notes(found),
        examples=examples(outcomes, questions.tasks, [name for name in planners if not name.startswith(SINGLE)]),
    )


def _choices(found: _Found, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What was chosen for each fold, and where the prices are from."""
    unpriced = {name for outcome in outcomes for name in outcome.unpriced}
    chosen: dict[str, Any] = {
        BEST: [fold.ranking[0] for fold in found.folds],
        VOTE: [list(fold.ranking[: found.settings.panel]) for fold in found.folds],
        ESCALATE: [list(escalating(fold.examples)) for fold in found.folds],
        "prices": {name: _price_source(name, unpriced) for name in found.questions.workers},
        "left_out": found.questions.left_out,
    }
    if escalations := by_planner(outcomes).get(ESCALATE):
        chosen["escalated"] = mean([float(outcome.steps == 1) for outcome in escalations])
    return chosen


def _price_source(model: str, unpriced: Collection[str]) -> str:
    """Where a model's costs are from: of one in no table, what the file states, if it states any."""
    price, source = recorded_price(model)
    return source if price is not None or model in unpriced else "the file's own costs"


def _notes(found: _Found) -> dict[str, str]:
    notes = {
        name: ", ".join(dict.fromkeys(fold.planners[name].note for fold in found.folds))
        for name in (BEST, "cheapest")
        if name in found.planners
    }
    if VOTE in found.planners:
        voters = min(found.settings.panel, len(found.questions.workers))
        notes[VOTE] = f"the {voters} best workers, one answer each"
    return notes | {name: said for name, said in REFERENCE_NOTES.items() if name in found.planners}
