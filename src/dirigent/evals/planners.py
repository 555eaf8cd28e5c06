"""The planners of an evaluation: their names are checked, they are fitted on the training split and become entries.

`dirigent.planners` lists them and says how each is made. This module decides the rest: the names that can be used, the
examples that a planner learns from, the local workers that its plans call, its steps and rounds. The planners
themselves know nothing of tasks and graders.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.entries import Entry, PoolFor
from dirigent.evals.metrics import CEILING as CEILING
from dirigent.evals.metrics import ORACLE as ORACLE
from dirigent.evals.record import Outcome, Record, name_of
from dirigent.limits import Limits
from dirigent.plan.plan import Plan
from dirigent.planners import (
    PLANNERS,
    Fitted,
    Fitting,
    PlannerSpec,
    find_planner,
    known_planners,
    parse_name,
    unknown_planner,
)
from dirigent.planners.examples import Example
from dirigent.planners.fixed import Adapted
from dirigent.planners.spec import UNKNOWN_USD
from dirigent.planners.table import TEAM, given_planner
from dirigent.planners.vote_counter import Same
from dirigent.tasks.graders import same_answer
from dirigent.tasks.task import Task, tidy
from dirigent.workers.pool import Pool

EACH = "each"
FIGURES: Mapping[str, str] = {
    EACH: "every worker alone",
    ORACLE: "the best choice of one worker for each question, with hindsight (a figure)",
    CEILING: "the best known plan for each kind of question (a figure)",
}
"""Names that are not one planner."""

TRAINED = tuple(spec.name for spec in PLANNERS if spec.planned_by == "trained worker")
"""Planners that are trained models; the evaluation is given them."""


def default_planners(pool: str) -> tuple[str, ...]:
    """The planners of an evaluation that names none, on a pool that is `live`, `recorded` or the `gym`."""
    figures = {"live": (ORACLE,)}.get(pool, (ORACLE, CEILING))
    return (*(spec.name for spec in PLANNERS if pool in spec.default_on), *figures)


async def fit_planners(names: Sequence[str], fitting: Fitting, *, own: Sequence[PlannerSpec] = ()) -> list[Fitted]:
    """The named planners, fitted, in that order; figures are left out. `own` are planners outside the table."""
    fitting = msgspec.structs.replace(fitting, same=fitting.same or same_for)
    brought = {spec.name: spec for spec in own}
    found = []
    for text in names:
        name = parse_name(text)
        if name.kind in FIGURES:
            continue
        if name.kind in fitting.trained:
            found.append(await given_planner(name, fitting))
            continue
        spec = brought.get(name.kind) or find_planner(name.kind)
        if spec is None or spec.fit is None:
            raise unknown_planner(text, (*brought, *takes(fitting.pool, trained=fitting.trained)))
        if spec.learns_from and not fitting.examples and not (name.kind == "language" and name.argument):
            raise ConfigError(f"{text!r} is chosen on the training split, and no question of it was asked")
        found.append(await spec.fit(name, fitting))
    return found


def is_fitted(text: str, *, trained: Collection[str] = ()) -> bool:
    """Whether a planner is chosen or fitted on the training split. A trained model is not."""
    name = parse_name(text)
    spec = find_planner(name.kind)
    if spec is None or name.kind in trained or (name.kind == "language" and name.argument):
        return False
    return bool(spec.learns_from)


def takes(pool: Pool, *, trained: Collection[str] = ()) -> tuple[str, ...]:
    """Every name that can be used over this pool."""
    known = [spec for spec in known_planners() if spec.fit is not None and spec.name != "single"]
    there = [spec.name for spec in known if spec.planned_by != "trained worker" or spec.name in trained]
    return (EACH, *(f"single:{worker}" for worker in pool), *there, ORACLE, CEILING)


def same_for(task: Task) -> Same:
    """How a vote compares answers: as the grader does, and programs by their syntax trees. Recorded scores cannot be
    compared; there only the same text is the same answer, and the first answer is taken."""
    if task.grader != "score":
        return partial(same_answer, grader=task.grader)

    async def same_text(first: str, second: str) -> bool:
        return bool(first.strip()) and tidy(first) == tidy(second)

    return same_text


def examples_of(tasks: Sequence[Task], alone: Sequence[Outcome]) -> tuple[Example, ...]:
    """Training questions with the outcomes of `single:NAME` on them; lost runs are left out."""
    by_task: dict[str, list[Outcome]] = {task.id: [] for task in tasks}
    for outcome in alone:
        if outcome.task in by_task and outcome.planner.startswith("single:") and not outcome.failed:
            by_task[outcome.task].append(outcome)
    return tuple(_example(task, by_task[task.id]) for task in tasks if by_task[task.id])


def require_whole(
    outcomes: Sequence[Outcome], entries: Sequence[Entry], tasks: Sequence[Task], *, before: str, leave_out: str = ""
) -> None:
    """Refuses a choice from a part of the trials. The money ran out, and a choice made now could differ from
    the choice of a resumed evaluation, under the same name."""
    if len(outcomes) < sum(entry.repeats for entry in entries for task in tasks if entry.wants(task)):
        raise cap_reached(before, leave_out=leave_out)


def chosen_before(record: Record, names: Sequence[str], tasks: Sequence[Task]) -> bool:
    """Whether one of these planners has answered a question of the test already. Then the outcomes that it was chosen
    by stay, even lost runs: asked again, they might lead to another choice under the first choice's name."""
    return any(record.finished(name, task.id) is not None for name in names for task in tasks)


def cap_reached(before: str, *, leave_out: str = "") -> ConfigError:
    """The error for money that ended before something could be chosen or fitted."""
    otherwise = f", or leave `{leave_out}` out" if leave_out else ""
    return ConfigError(f"the cost cap was reached before {before}; raise --max-cost and --resume{otherwise}")


def entry_of(fitted: Fitted, pool_for: PoolFor) -> Entry:
    """A planner's part in an evaluation; the local workers that it needs join the question's pool."""
    if fitted.helpers_for is None:
        return Entry(fitted.name, fitted.planner_for, repeats=fitted.repeats)
    helpers_for = fitted.helpers_for

    def with_helpers(task: Task, repeat: int) -> Pool:
        pool = pool_for(task, repeat)
        return Pool([*pool.values(), *helpers_for(task, pool)])

    return Entry(fitted.name, fitted.planner_for, repeats=fitted.repeats, pool_for=with_helpers)


def by_limits(fitted: Sequence[Fitted], limits: Limits) -> dict[Limits, list[Fitted]]:
    """The planners by the limits they run under: the given ones, with the steps and rounds that each needs."""
    found: dict[Limits, list[Fitted]] = {}
    for one in fitted:
        own = msgspec.structs.replace(limits, max_steps=max(limits.max_steps, one.max_steps), max_rounds=one.max_rounds)
        found.setdefault(own, []).append(one)
    return found


Ask = Callable[[Sequence[Entry], Sequence[Task]], Awaitable[list[Outcome]]]
"""Asks these entries these questions; the caller has settled everything else."""


class Rollouts:
    """Carries out plans for training questions, for planners that learn from plans.

    The entry is named after the plan, so a plan that the record holds is not paid again. A plan that names a worker
    outside the question's pool teaches nothing. After the first plan that could not be paid, no other plan is tried.
    """

    @staticmethod
    def limits(limits: Limits) -> Limits:
        """The limits to ask under, with room for the largest team, as when the fitted router answers the test: a plan
        that is refused for its length would teach that large teams are wrong."""
        return msgspec.structs.replace(limits, max_steps=max(limits.max_steps, TEAM))

    def __init__(self, ask: Ask, tasks: Sequence[Task]) -> None:
        self._ask = ask
        self._by_question = {task.question: task for task in tasks}
        self._out_of_money = False

    async def __call__(self, question: str, plan: Plan) -> tuple[float, float] | None:
        entry = Entry(f"masrouter fit {name_of(plan)}", lambda task, pool: Adapted(plan))
        outcomes = [] if self._out_of_money else await self._ask([entry], [self._by_question[question]])
        self._out_of_money = self._out_of_money or not outcomes
        if not outcomes or outcomes[0].failed or outcomes[0].error_kind == "ConfigError":
            return None
        return outcomes[0].value, outcomes[0].cost_usd

    def require_paid(self) -> None:
        """Raises ConfigError for a planner that was fitted on a part of the plans."""
        if self._out_of_money:
            raise cap_reached("masrouter was fitted", leave_out="masrouter")


def _example(task: Task, outcomes: Sequence[Outcome]) -> Example:
    by_worker = {outcome.planner.removeprefix("single:"): outcome for outcome in outcomes}
    return Example(
        question=task.question,
        scores={name: outcome.value for name, outcome in by_worker.items()},
        costs_usd={
            name: UNKNOWN_USD if outcome.known_cost_usd is None else outcome.known_cost_usd
            for name, outcome in by_worker.items()
        },
        replies={name: outcome.answer for name, outcome in by_worker.items()},
        tokens={name: (outcome.input_tokens, outcome.output_tokens) for name, outcome in by_worker.items()},
    )
