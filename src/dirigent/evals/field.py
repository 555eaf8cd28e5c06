"""Field: the questions of an evaluation, the workers that may answer them, and their descriptions in a report.

`evaluate(field, planners)` is the same for every field. `live.py` has public benchmarks over a configured pool,
`recorded.py` models' recorded answers; a plugin's family of tasks brings its own field, as the gym does. A field asks
nothing itself, except to try plans for a ceiling (`references`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.entries import Entry
from dirigent.evals.metrics import SINGLE, oracle
from dirigent.evals.planners import CEILING, EACH, FIGURES, ORACLE, default_planners, takes
from dirigent.evals.record import Inspect, Outcome, Record
from dirigent.evals.tables import Weights
from dirigent.limits import Budget, Limits
from dirigent.messages import Observe
from dirigent.planners import Fitted, PlannerName, PlannerSpec, find_planner, parse_name, unknown_planner
from dirigent.planners.fixed import Single
from dirigent.planners.spec import PlannerFor, check_argument
from dirigent.sandbox import Sandbox
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Price

if TYPE_CHECKING:
    from dirigent.evals.evaluate import Answers
    from dirigent.evals.report import Report


class Lineup(msgspec.Struct, frozen=True):
    """The planners of an evaluation, checked."""

    rows: tuple[str, ...]
    """The rows of the report, in order."""
    alone: tuple[str, ...]
    """The workers that are asked alone, for a row of their own or for the oracle."""
    fitted: tuple[str, ...]
    """The rows that are planners: neither figures nor single workers."""


class Tried(Protocol):
    """Asks entries in order to fit or to choose; the cost is reported apart from the rows."""

    def __call__(
        self, entries: Sequence[Entry], tasks: Sequence[Task], *, limits: Limits | None = None
    ) -> Awaitable[list[Outcome]]: ...


class Trying(msgspec.Struct, frozen=True):
    """The parts that a field needs to try plans on the questions for fitting."""

    tried: Tried
    alone: Sequence[Outcome]
    """Each worker's own answers to the questions for fitting."""
    record: Record
    budget: Budget
    observe: Observe


class Field:
    """Questions and workers. The methods below the attributes have defaults that fit most fields."""

    kind: str
    """`live`, `recorded` or the name of a family of tasks."""
    tasks: Sequence[Task]
    """The questions of the test."""
    pool: Pool
    """Every worker that may be offered."""
    seed: int
    limits: Limits
    fit_tasks: Sequence[Task] = ()
    """The questions for choosing and fitting."""
    fits_on_test: bool = False
    """Whether the questions for fitting are those of the test itself, dealt into parts."""
    parts: int = 1
    """The number of parts that the questions are dealt into; a planner for one part is fitted on the others."""
    neighbours: int = 40
    """The number of questions that `knn` looks at."""
    trained: Mapping[str, PlannerFor] = {}
    """Planners that are models, by kind."""
    weights: Mapping[str, Weights] = {}
    """The cards of those models."""
    own: tuple[PlannerSpec, ...] = ()
    """Planners that only this field has."""
    sandbox: Sandbox | None = None
    """The sandbox in which programs are graded."""
    inspect: Inspect | None = None
    """Returns the marks of a plan: which of its parts are right."""
    sizes: bool = False
    """Whether planners with an open number of samples are asked at another planner's cost."""
    each_has_rows: bool = True
    """Whether `each` adds a row for every worker; otherwise workers have a table of their own."""
    workers_label: str = ""
    """The kind of workers, for the report's title."""
    reference_rows: tuple[str, ...] = ()
    """Further reference rows."""
    columns: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """The columns of its table, if they are not the usual ones."""

    # Planners

    def lineup(self, planners: Sequence[str]) -> Lineup:
        """Returns the rows and their needs. Refuses an unknown planner before any question is asked."""
        if not planners:
            raise ConfigError(f"no planner is named; add  --planners {','.join(default_planners(self.kind))}")
        if twice := [name for i, name in enumerate(planners) if name in planners[:i]]:
            raise ConfigError(f"the planner {twice[0]!r} is named twice")
        rows: dict[str, None] = {}
        for text in planners:
            self._check(text, parse_name(text))
            if text == EACH:
                rows |= {f"{SINGLE}{worker}": None for worker in self.workers if self.each_has_rows}
            else:
                rows[text] = None
        singles = [name.removeprefix(SINGLE) for name in rows if name.startswith(SINGLE)]
        everybody = self.workers if ORACLE in rows or EACH in planners or self.fits_on_test else ()
        fitted = (name for name in rows if name not in FIGURES and not name.startswith(SINGLE))
        return Lineup(tuple(rows), tuple(dict.fromkeys((*everybody, *singles))), tuple(fitted))

    def _check(self, text: str, name: PlannerName) -> None:
        if name.kind in FIGURES:
            if name.argument:
                raise ConfigError(f"{name.kind!r} takes no {name.argument!r} behind a colon; write  {name.kind}")
            return
        own = {spec.name: spec for spec in self.own}
        spec = own.get(name.kind) or find_planner(name.kind)
        if name.kind in self.trained:
            if spec is not None:
                check_argument(name, spec, self.named_workers)
            return
        if spec is None or spec.fit is None:
            raise unknown_planner(text, (*own, *takes(self.pool, trained=self.trained)))
        if why := self.refused(text, name, spec):
            raise ConfigError(why)
        check_argument(name, spec, self.named_workers)

    def refused(self, text: str, name: PlannerName, spec: PlannerSpec) -> str:
        """The reason why this planner cannot take part here, or an empty string."""
        if spec.planned_by == "trained worker":
            return f"{text!r} has no weights here: name another planner, or give their folder"
        return ""

    def planner_of_row(self, name: str) -> str:
        """The name of the planner that is fitted for this row."""
        return name

    # Workers

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that `each` and the oracle ask alone."""
        return self.pool.names

    @property
    def named_workers(self) -> tuple[str, ...]:
        """The workers that a name such as `single:NAME` may give."""
        return self.pool.names

    def pool_for(self, task: Task, repeat: int) -> Pool:
        """The workers in a question's pool."""
        return self.pool

    def alone(self, worker: str, *, for_row: bool) -> Entry:
        """One worker alone; without a row of its own it is asked only the questions whose pool has it."""
        return Entry(f"{SINGLE}{worker}", lambda task, pool: Single(worker))

    def part_of(self, task: Task) -> int:
        """The part that a question is dealt into."""
        return 0

    def same_as(self, fitted: Fitted, task: Task) -> str:
        """Returns the worker whose own answer is this planner's answer, or an empty string. Such an answer is paid for
        only once."""
        return ""

    # References

    async def references(self, lineup: Lineup, trying: Trying) -> list[Fitted]:
        """Reference rows that are asked like planners, such as a ceiling found by trying plans."""
        return []

    def tries_plans(self, lineup: Lineup) -> bool:
        """Whether `references` tries plans on the questions to fit on."""
        return False

    def figures(self, lineup: Lineup, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Outcomes of rows that are figures, made of those of others."""
        return oracle([o for o in outcomes if o.planner.startswith(SINGLE)]) if ORACLE in lineup.rows else []

    # The report

    def recipe(self, planners: Sequence[str], lineup: Lineup) -> dict[str, Any]:
        """The settings that give this report again."""
        raise NotImplementedError

    def about(self) -> dict[str, Any]:
        """The questions, for the report's title: name, number, pool."""
        raise NotImplementedError

    @property
    def prices(self) -> dict[str, Price | None]:
        return {info.name: info.price for info in self.pool.infos}

    def task_name(self) -> Callable[[Task | Outcome], str] | None:
        """The task that a question belongs to, if tasks have rows of their own."""
        return None

    def chosen(self, answers: Answers) -> dict[str, Any]:
        """The choices that were made before the test began."""
        return {}

    def notes(self, answers: Answers) -> dict[str, str]:
        """The words beside the planners' names."""
        return {name: fitted.note for name, fitted in answers.fitted.items() if fitted.note}

    def finished(self, report: Report, answers: Answers) -> Report:
        """The report with what only this field adds."""
        return report


REFERENCES = (ORACLE, CEILING)
"""Reference rows: they use knowledge that no planner has, so they cannot win."""

ORACLE_NOTE = "one worker per question"
