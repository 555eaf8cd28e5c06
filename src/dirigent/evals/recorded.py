"""RecordedField: real models' answers, replayed. Every choice is made on the other folds.

A model answered each question once, so a vote is one of several models (`vote` is the panel of three), and planners
that need a new answer cannot take part (`PlannerSpec.replays`). Questions are dealt into folds, and the planners for
one fold are fitted on the others, so no question helps to choose its own worker. Each run is a `Conductor.run` like any
other; only the answers come from a file. Seconds are those of the replay and mean nothing. The ceiling is the planner
that did best on each kind of question, with hindsight.

Recorded models need prices. Open models have no price of their own in the tables of `genai-prices`, so the price of a
host is looked up there under the host's name for the model. Together's price is used if there is one, because prices of
one host compare; else that of a host that serves the same model, or its nearest variant, which the note then names. A
price that its maker published and the tables no longer hold is here, with the page that it was on. The price of a model
that was never sold alone is assumed: a host's rate for a model of that size, and the note says so. Prices order the
models
on a cost axis; no bill should be made from them. `cheapest` and `escalate` compare costs, so they depend on them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.field import Field, Lineup
from dirigent.evals.metrics import SINGLE, by_planner, ceiling, in_hindsight, pareto
from dirigent.evals.planners import CEILING, default_planners, examples_of
from dirigent.evals.record import Outcome, name_of
from dirigent.evals.report import BEST, Report
from dirigent.evals.stats import mean
from dirigent.limits import Limits
from dirigent.planners import PLANNERS, PlannerName, PlannerSpec
from dirigent.planners.examples import MAX_SAMPLES, ranked
from dirigent.planners.table import escalating
from dirigent.tasks.benchmarks import decoded, task_of
from dirigent.tasks.published import Row
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool
from dirigent.workers.prices import price_of
from dirigent.workers.recorded import Recorded
from dirigent.workers.worker import Price, Worker

if TYPE_CHECKING:
    from dirigent.evals.evaluate import Answers


VOTE, PANEL, ESCALATE = "vote", "panel", "escalate"

LEFT_OUT = "not answered by every model, or graded by running code"

MOST_TASKS = 20
"""A file of more tasks has too few questions of each for rows of their own; `by_kind` has its accuracies."""

LIMITS = Limits(max_steps=32, max_output_tokens=1_000_000)
"""Room for a vote of all, and for every answer as long as it was."""


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
    """Returns a model's price. None means the file's own costs, answer by answer, or an unknown cost; a model whose
    costs are all 0 is free."""
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
    """The planners that take part if none is named."""
    needs = {spec.name for spec in PLANNERS if spec.compares}
    return [name for name in default_planners("recorded") if questions.has_answers or name not in needs]


class RecordedField(Field):
    """The questions of a file, asked of the models that answered them."""

    kind = "recorded"
    limits = LIMITS
    fits_on_test = True

    def __init__(self, questions: RecordedSet, *, settings: RecordedSettings | None = None) -> None:
        self.questions, self.settings = questions, settings or RecordedSettings()
        self.tasks = self.fit_tasks = questions.tasks
        self.pool, self.seed, self.neighbours = questions.pool, self.settings.seed, self.settings.neighbours
        self.parts = self.settings.folds
        self._fold_of: Mapping[str, int] = {}

    def part_of(self, task: Task) -> int:
        if not self._fold_of:
            self._fold_of = folds_of(self.tasks, folds=self.parts, seed=self.seed)
        return self._fold_of[task.id]

    def refused(self, text: str, name: PlannerName, spec: PlannerSpec) -> str:
        if name.kind == VOTE and name.argument:
            return f"{text!r} asks one worker again, and each answered once; for several write  panel:{name.argument}"
        if not spec.replays:
            there = (one.name for one in PLANNERS if one.replays)
            return f"{text!r} cannot be had of recorded answers, one a model; there are: {', '.join(there)}"
        if spec.compares and not self.questions.has_answers:
            return f"{text!r} compares answers, and {self.questions.name} recorded only scores; leave it out"
        voters = int(name.argument) if name.kind == PANEL and name.argument.isdecimal() else 0
        if (most := len(self.pool)) < voters <= MAX_SAMPLES:
            return f"{text!r} has more voters than {self.questions.name} has models; write  panel:{most}  or less"
        return ""

    def planner_of_row(self, name: str) -> str:
        return f"{PANEL}:{self.settings.panel}" if name == VOTE else name

    def figures(self, lineup: Lineup, outcomes: Sequence[Outcome]) -> list[Outcome]:
        best = super().figures(lineup, outcomes)
        return [*best, *(ceiling(outcomes) if CEILING in lineup.rows else ())]

    def recipe(self, planners: Sequence[str], lineup: Lineup) -> dict[str, Any]:
        return {"pool": "recorded", "planners": list(lineup.rows), **msgspec.structs.asdict(self.settings)}

    def about(self) -> dict[str, Any]:
        left_out = {LEFT_OUT: self.questions.left_out} if self.questions.left_out else {}
        return {
            "name": self.questions.name,
            "n": len(self.tasks),
            "pool": f"{len(self.pool)} recorded models, {self.parts}-fold",
            **({"left_out": left_out} if left_out else {}),
        }

    def task_name(self) -> Callable[[Task | Outcome], str] | None:
        several = 1 < len({task.kind for task in self.tasks}) <= MOST_TASKS
        return (lambda asked: asked.kind) if several else None

    def chosen(self, answers: Answers) -> dict[str, Any]:
        """The choices for each fold, and the sources of the prices."""
        unpriced = {name for outcome in answers.outcomes for name in outcome.unpriced}
        rankings = [fitting.ranking for fitting in answers.fittings]
        found: dict[str, Any] = {
            BEST: [ranking[0] for ranking in rankings],
            VOTE: [list(ranking[: self.settings.panel]) for ranking in rankings],
            ESCALATE: [list(escalating(fitting.examples)) for fitting in answers.fittings],
            "prices": {name: _price_source(name, unpriced) for name in self.pool},
            "left_out": self.questions.left_out,
        }
        if escalations := by_planner(answers.outcomes).get(ESCALATE):
            found["escalated"] = mean([float(outcome.steps == 1) for outcome in escalations])
        return found

    def notes(self, answers: Answers) -> dict[str, str]:
        notes = {name: note for name, note in super().notes(answers).items() if name in (BEST, "cheapest")}
        voters = min(self.settings.panel, len(self.pool))
        notes[VOTE] = f"the {voters} best workers, one answer each"
        return notes | {CEILING: "best planner per kind, with hindsight"}

    def finished(self, report: Report, answers: Answers) -> Report:
        rows, alone = answers.lineup.rows, [o for o in answers.outcomes if o.planner.startswith(SINGLE)]
        afterwards = {
            "pareto": pareto(report.planners),
            "hindsight": in_hindsight(answers.outcomes, rows, seed=self.seed),
            "best_by_draw": best_by_draw(self.tasks, alone, folds=self.parts),
        }
        return msgspec.structs.replace(report, chosen={**report.chosen, **afterwards})


def _price_source(model: str, unpriced: Collection[str]) -> str:
    """Returns the source of a model's costs: a table, else the file's own costs, if it has any."""
    price, source = recorded_price(model)
    return source if price is not None or model in unpriced else "the file's own costs"


# ---- prices of recorded models -------------------------------------------------------------------------------


HOSTED: dict[str, tuple[str, str, str]] = {
    "Llama-3.1-405B-Instruct": ("together", "meta-llama/Meta-Llama-3.1-405B-Instruct-Turbo", "its Turbo variant"),
    "Llama-3.1-70B-Instruct": ("together", "meta-llama/Meta-Llama-3.1-70B-Instruct-Turbo", "its Turbo variant"),
    "Llama-3.1-8B-Instruct": ("together", "meta-llama/Meta-Llama-3.1-8B-Instruct-Turbo", "its Turbo variant"),
    "llama-3.1-8b-instruct": ("together", "meta-llama/Meta-Llama-3.1-8B-Instruct-Turbo", "its Turbo variant"),
    "Qwen1.5-72B-Chat": ("together", "Qwen/Qwen1.5-72B", "the base model"),
    "qwen2.5-7b-instruct": ("huggingface_together", "Qwen/Qwen2.5-7B-Instruct", ""),
    "mistral-7b-instruct-v0.3": ("ovhcloud", "Mistral-7B-Instruct-v0.3", ""),
    "gemma-2-9b-it": ("groq", "gemma2-9b-it", ""),
    "llama-3.3-nemotron-super-49b-v1": ("openrouter", "llama-3.3-nemotron-super-49b-v1", ""),
    "jamba-1.5-large": ("openrouter", "ai21/jamba-1-5-large", ""),
    "Mistral-Large-2": ("mistral", "mistral-large", ""),
    "mathstral-7B": ("mistral", "open-mistral-7b", "the model it was made from"),
    "Phi-3-mini-4k-instruct": ("azure", "phi-3-mini-128k-instruct", "the variant with the longer context"),
}
"""Recorded model -> provider and model in the price tables, and how that model differs."""

PUBLISHED: dict[str, tuple[Price, str]] = {
    "deepseek-v2.5-0908": (
        Price(0.14, 0.28, cached_input=0.014),
        "DeepSeek's page of the time, platform.deepseek.com/api-docs/quick_start/pricing",
    ),
}
"""The maker's price while it served the model."""

_SMALL = (Price(0.2, 0.2), "Together AI's rate for 4.1-8B models, as LiteLLM's price list has it")
_LARGE = (Price(0.9, 0.9), "Together AI's rate for 41.1-80B models, as LiteLLM's price list has it")

ASSUMED: dict[str, tuple[Price, str]] = {
    "codegemma-7b": _SMALL,
    "llama3-chatqa-1.5-8b": _SMALL,
    "llama3-chatqa-1.5-70b": _LARGE,
    "llama-3.1-nemotron-51b-instruct": _LARGE,
}
"""Models that NVIDIA's catalogue let people try, and for which no price a token was found."""


def recorded_price(model: str) -> tuple[Price | None, str]:
    """Returns a model's price and its source; None if it is unknown."""
    if (price := price_of(model)) is not None:
        return price, "genai-prices"
    if model in HOSTED:
        provider, hosted, differs = HOSTED[model]
        if (price := price_of(hosted, provider=provider)) is not None:
            return price, f"genai-prices: {provider}, {hosted}" + (f" ({differs})" if differs else "")
    if model in PUBLISHED:
        return PUBLISHED[model]
    if model in ASSUMED:
        price, rate = ASSUMED[model]
        return price, f"assumed: {rate}"
    return None, "unknown"


# ---- folds ---------------------------------------------------------------------------------------------------


DRAWS = 20
"""Draws of the folds that show how much `best` owes to one of them."""


def folds_of(tasks: Sequence[Task], *, folds: int, seed: int) -> dict[str, int]:
    """Question -> fold, drawn by lot and equal in size."""
    if len(tasks) < folds:
        raise ConfigError(f"{len(tasks)} questions do not fill {folds} folds; ask  --limit {folds}  or more")
    ids = sorted(task.id for task in tasks)
    random.Random(f"folds {seed}").shuffle(ids)
    return {id: i % folds for i, id in enumerate(ids)}


def best_by_draw(tasks: Sequence[Task], singles: Sequence[Outcome], *, folds: int, draws: int = DRAWS) -> list[float]:
    """What `best` would have come to under other draws of the folds: its luck with this one."""
    value = {(outcome.planner.removeprefix(SINGLE), outcome.task): outcome.value for outcome in singles}
    example = {task.id: examples_of([task], found) for task, found in _by_task(tasks, singles)}
    found = []
    for seed in range(draws):
        fold_of = folds_of(tasks, folds=folds, seed=seed)
        learnt = [[e for id, of in fold_of.items() if of != fold for e in example[id]] for fold in range(folds)]
        best = [ranked(examples)[0] for examples in learnt]
        found.append(mean([value.get((best[fold], task), 0.0) for task, fold in fold_of.items()]))
    return found


def _by_task(tasks: Sequence[Task], singles: Sequence[Outcome]) -> list[tuple[Task, list[Outcome]]]:
    found: dict[str, list[Outcome]] = {task.id: [] for task in tasks}
    for outcome in singles:
        found[outcome.task].append(outcome)
    return [(task, found[task.id]) for task in tasks]
