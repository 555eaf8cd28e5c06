"""GymField: the gym's questions and specialists, with the planners that only the gym has.

    right       the task's own cheapest plan                                   (reference)
    oracle      the best choice of one worker per question, from each alone    (reference)
    ceiling     the best plan per kind, chosen on the development split        (reference)
    each        every worker alone, on every question: a table of its own, not rows among the planners
    ask-all     every worker once on the question; `unknown` is dropped, the commonest other answer wins
    spans       a training-free search: it asks every worker spans of the question, see `spans.py`

The questions and their pools are in `pools.py`. The caller passes planners that are models as functions (`trained`);
this module knows neither torch nor llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dirigent.evals.entries import Entry, PoolFor
from dirigent.evals.field import Field, Lineup, Trying
from dirigent.evals.metrics import SINGLE, by_planner, oracle
from dirigent.evals.planners import CEILING, ORACLE, require_whole
from dirigent.evals.record import Outcome, digest
from dirigent.evals.report import BEST, Report
from dirigent.evals.tables import HEADER, PER_CALL, Weights
from dirigent.limits import Limits
from dirigent.plan.planner import Planner
from dirigent.planners import Fitted, Fitting, PlannerName, PlannerSpec
from dirigent.planners.fixed import Fixed, Single
from dirigent.planners.spec import PlannerFor
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Price
from dirigent_gym.evals.ceiling import WAYS, Kind, Way, choose_ways, plan_by, plans_for, stand_in, way_for
from dirigent_gym.evals.pools import SPLIT_SET, Gym
from dirigent_gym.evals.spans import ASK_ALL, SPANS, ask_all, spans
from dirigent_gym.questions.pools import plan_for, solvable
from dirigent_gym.questions.specialists import ROSTER, find_specialist

if TYPE_CHECKING:
    from dirigent.evals.evaluate import Answers

RIGHT = "right"

COLUMNS = tuple(PER_CALL if column == "vs equal cost" else column for column in HEADER)
"""There is no comparison at equal cost, because five samples of a specialist are one answer. The table shows right
answers per call instead."""

LEFT_OUT: Mapping[str, str] = {
    "vote": "samples of a specialist are one answer",
    "self-moa": "samples of a specialist are one answer",
    "moa": "no specialist brings answers together",
    "reflect": "no specialist reviews an answer",
    "pipeline": "no specialist plans or reviews",
    "smoothie": "answers of one word have no likeness to go by",
    "masrouter": "its roles are for workers that read a whole question",
    "language": "the untrained base of 135M parameters writes no plan",
}
"""Planners that cannot work on the gym by construction, each with the reason. They run only if a user names them."""


class GymField(Field):
    """The gym under evaluation; `workers` is the kind of its specialists: `exact` or `local`."""

    kind = "gym"
    each_has_rows = False
    reference_rows = (RIGHT,)
    columns: tuple[str, ...] = COLUMNS

    def __init__(
        self,
        gym: Gym,
        *,
        workers: str = "",
        trained: Mapping[str, PlannerFor] | None = None,
        weights: Mapping[str, Weights] | None = None,
        limits: Limits = Limits(),
    ) -> None:
        self.gym, self.tasks, self.pool = gym, gym.tasks, gym.whole_pool
        self.seed, self.limits, self.workers_label = gym.settings.seed, limits, workers
        self.trained, self.weights, self.inspect = trained or {}, weights or {}, gym.marks
        self.own = (
            PlannerSpec(name=RIGHT, about="the task's own plan", fit=self._right, learns_from=""),
            PlannerSpec(name=ASK_ALL, about="every worker once, the commonest answer", fit=ask_all, learns_from=""),
            PlannerSpec(name=SPANS, about="every worker is asked spans of the question", fit=spans, learns_from=""),
        )
        self._ways: dict[Kind, Way] = {}
        self._calibration: list[Task] | None = None

    @property
    def fit_tasks(self) -> Sequence[Task]:  # type: ignore[override]  # drawn when first needed, which takes a second
        if self._calibration is None:
            self._calibration = self.gym.calibration("train")
        return self._calibration

    def refused(self, text: str, name: PlannerName, spec: PlannerSpec) -> str:
        if spec.planned_by:
            return f"the planner {text!r} is a model, and no such model was given; leave it out"
        return ""

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(specialist.name for specialist in self.gym.roster)

    @property
    def named_workers(self) -> tuple[str, ...]:
        return tuple(specialist.name for specialist in ROSTER)

    def pool_for(self, task: Task, repeat: int) -> Pool:
        return self.gym.pool_for(task, repeat)

    def alone(self, worker: str, *, for_row: bool) -> Entry:
        """A pool of this worker alone. For the oracle, it is asked only questions whose pool offers it."""
        specialist = find_specialist(worker)
        wants = (lambda task: True) if for_row else (lambda task: specialist in self.gym.offered(task))
        pool_for: PoolFor = self.gym.only(specialist)
        return Entry(f"{SINGLE}{worker}", lambda task, pool: Single(worker), pool_for=pool_for, wants=wants)

    def tries_plans(self, lineup: Lineup) -> bool:
        return CEILING in lineup.rows

    async def references(self, lineup: Lineup, trying: Trying) -> list[Fitted]:
        """The ceiling: the best way for each kind of question, found by trying all ways on the development split."""
        if CEILING not in lineup.rows:
            return []
        tasks, max_steps = self.gym.calibration("dev"), self.limits.max_steps
        plans = {task.id: plans_for(task, self.gym.offered(task), max_steps=max_steps) for task in tasks}

        def wants(way: Way, task: Task) -> bool:
            return way in plans[task.id] and stand_in(way, plans[task.id]) == way

        entries = [
            Entry(
                f"way: {way.name}",
                lambda task, pool, way=way: Fixed(plans[task.id][way]),  # type: ignore[misc]
                # Several guesses differ from one only on questions with a puzzle, because only the guesser is noisy.
                repeats=self.gym.settings.noise_seeds if way.guesses > 1 else 1,
                wants=partial(wants, way),
            )
            for way in WAYS
        ]
        outcomes = await trying.tried(entries, tasks)
        require_whole(outcomes, entries, tasks, before="the ceiling's plans were tried", leave_out=CEILING)
        tried = {name: _by_task(found) for name, found in by_planner(outcomes).items()}

        def of(task: Task, way: Way) -> list[Outcome]:
            """The outcomes of a way; ways that share a plan share them."""
            return tried.get(f"way: {stand_in(way, plans[task.id]).name}", {}).get(task.id, [])

        self._ways = choose_ways((task, {way: of(task, way) for way in plans[task.id]}) for task in tasks)
        return [
            Fitted(CEILING, self._best_way, repeats=self.gym.settings.noise_seeds, note="best plan per kind"),
        ]

    def _best_way(self, task: Task, pool: Pool) -> Planner:
        """The plan in the chosen way; without its workers the plainest way, and without those a single worker."""
        offered = self.gym.offered(task)
        plan = plan_by(way_for(task, self._ways), task, offered) or plan_by(Way(1, dear=False), task, offered)
        return Single(pool.names, name=CEILING) if plan is None else Fixed(plan, name=CEILING)

    async def _right(self, name: PlannerName, fitting: Fitting) -> Fitted:
        def planner_for(task: Task, pool: Pool) -> Planner:
            offered = self.gym.offered(task)
            if solvable(task, offered):
                return Fixed(plan_for(task, offered), name=RIGHT)
            return Single(pool.names, name=RIGHT)

        return Fitted(RIGHT, planner_for, note="the task's own plan")

    def figures(self, lineup: Lineup, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The oracle's outcomes: a choice among the workers that a question's pool offers."""
        if ORACLE not in lineup.rows:
            return []
        offered = {task.id: {s.name for s in self.gym.offered(task)} for task in self.tasks}
        alone = (o for o in outcomes if o.planner.startswith(SINGLE))
        return oracle([o for o in alone if o.planner.removeprefix(SINGLE) in offered[o.task]])

    def recipe(self, planners: Sequence[str], lineup: Lineup) -> dict[str, Any]:
        settings = self.gym.settings
        return {
            "tasks": [set_name(name) for name in settings.sets],
            "planners": list(planners),
            "workers": self.workers_label,
            **msgspec.structs.asdict(settings),
        }

    def about(self) -> dict[str, Any]:
        settings = self.gym.settings
        low, high = settings.pool_sizes
        plain = settings.sets == (SPLIT_SET,)
        solved = sum(solvable(task, self.gym.offered(task)) for task in self.tasks)
        return {
            "name": f"gym {settings.split}" if plain else ", ".join(set_name(name) for name in settings.sets),
            "n": len(self.tasks),
            "pool": f"pools of {low}–{high}",
            "solvable": solved / len(self.tasks),
            "questions": digest(self.tasks),
            "cannot": {name: why for name, why in LEFT_OUT.items() if name not in self.trained},
        }

    @property
    def prices(self) -> dict[str, Price | None]:
        return {specialist.name: specialist.price for specialist in self.gym.roster}

    def task_name(self) -> Callable[[Task | Outcome], str] | None:
        if len(self.gym.settings.sets) == 1:
            return None
        return lambda asked: set_name(self.gym.set_of(asked.id if isinstance(asked, Task) else asked.task))

    def chosen(self, answers: Answers) -> dict[str, Any]:
        """The choices that were made on the other splits before the test began."""
        found: dict[str, Any] = {}
        if self._ways:
            found[CEILING] = {f"{shape} {depth}": way.name for (shape, depth), way in sorted(self._ways.items())}
        if BEST in answers.lineup.rows:
            found[BEST] = answers.fit["ranking"]
        return found

    def finished(self, report: Report, answers: Answers) -> Report:
        """Over several sets, removes marks on plans that not every set has."""
        if not report.by_task:
            return report

        def common(planner: str) -> set[str]:
            found = [set(rows[planner].marks) for rows in report.by_task.values() if rows[planner].marks]
            return set.intersection(*found)

        rows = {
            planner: msgspec.structs.replace(
                row, marks={mark: x for mark, x in row.marks.items() if mark in common(planner)} if row.marks else {}
            )
            for planner, row in report.planners.items()
        }
        return msgspec.structs.replace(report, planners=rows)


def set_name(name: str) -> str:
    """The name of a set in `--tasks`."""
    return name if name == SPLIT_SET else f"{SPLIT_SET}:{name}"


def _by_task(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.task, []).append(outcome)
    return found
