"""Every planner that an evaluation can name, fitted on the training split and ready to take part.

`planners/__init__.py` lists the names; `baselines.py` has a function for each. What a name needs beyond itself is
settled there: who is best, what samples are expected to cost, which local workers its plans call, how many steps and
rounds it must be allowed. The planners themselves know nothing of tasks and graders.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.baselines import PLAIN, TEAM, TRAINED, UNKNOWN_USD, Baseline, Fitting, fit_baseline, layers_of
from dirigent.evals.evaluate import Entry, PlannerFor, PoolFor
from dirigent.evals.outcome import Outcome
from dirigent.evals.record import Record, name_of
from dirigent.limits import Limits
from dirigent.plan.plan import Plan
from dirigent.planners.examples import Example, Rollout
from dirigent.planners.given import Adapted, Alone, RandomWorker, Written
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool

__all__ = [
    "Rollouts",
    "Alone",
    "Baseline",
    "FIGURES",
    "Fitting",
    "NAMES",
    "RandomWorker",
    "Written",
    "by_limits",
    "check_names",
    "chosen_before",
    "entry_of",
    "examples_of",
    "fit_baselines",
    "require_whole",
    "takes",
    "unknown_planner",
]

NAMES = ("single", "random", *PLAIN, "routerdc", "smoothie", "masrouter", *TRAINED)
FIGURES = ("oracle", "ceiling")
"""References: whoever evaluates makes them, of outcomes or of plans that were tried."""

SIZES = {
    "vote": 31,
    "self-moa": 31,
    "reflect": 32,
    "panel": 31,
    "knn": 1000,
    "smoothie": 1000,
    **dict.fromkeys(TRAINED, 8),
}
"""What a number behind the colon may be: samples, turns, workers, neighbours, rounds."""


async def fit_baselines(
    names: Sequence[str],
    fitting: Fitting,
    *,
    rollout: Rollout | None = None,
    trained: Mapping[str, PlannerFor] | None = None,
) -> list[Baseline]:
    """The planners named, in that order. `rollout` (`Rollouts`) pays for MasRouter's training; `trained` gives the
    conductor and its warm start."""
    check_names(names, fitting.pool, trained=trained or {})
    found = []
    for name in names:
        if name not in FIGURES:
            found.append(await fit_baseline(name, fitting, rollout=rollout, trained=trained or {}))
    return found


def check_names(names: Sequence[str], pool: Pool, *, trained: Mapping[str, PlannerFor]) -> None:
    """Refuse, before anything is asked or paid, a name that nobody stands behind."""
    for name in names:
        kind, _, detail = name.partition(":")
        if kind not in (*NAMES, *FIGURES):
            raise unknown_planner(name, takes(pool, trained=trained))
        if kind == "single" and not detail:
            raise ConfigError(f"a single worker needs a name: write  single:NAME  with one of {', '.join(pool.names)}")
        if kind in TRAINED and kind not in trained:
            raise ConfigError(f"{kind!r} has no weights here: name another planner, or say where they are")
        if detail and kind in ("single", "language"):
            _check_worker(name, detail, pool)
        elif detail:
            _check_size(name, kind, detail)


def takes(pool: Pool, *, trained: Collection[str] = ()) -> tuple[str, ...]:
    """Every name that stands for something over this pool."""
    alone = ("each", *_singles(pool))
    known = [name for name in NAMES if name != "single" and (name not in TRAINED or name in trained)]
    return (*alone, *known, *FIGURES)


def unknown_planner(name: str, known: Sequence[str]) -> ConfigError:
    """What to raise of a name that nobody has: it names the nearest ones, and all that can be had here. A trained
    planner may be meant that cannot be had yet: asked for by its right name, it says what it needs."""
    near = difflib.get_close_matches(name.lower(), dict.fromkeys([*known, *TRAINED]), n=3, cutoff=0.6)
    return ConfigError(f"no planner is called {name!r}{_did_you_mean(near)} There are: {', '.join(known)}")


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
    """Refuse to choose by a part of what was to be tried: the money ran out, and what is chosen so would answer under
    the same name as what a resumed evaluation chooses."""
    if len(outcomes) < sum(entry.repeats for entry in entries for task in tasks if entry.wants(task)):
        raise cap_reached(before, leave_out=leave_out)


def chosen_before(record: Record, names: Sequence[str], tasks: Sequence[Task]) -> bool:
    """Whether one of these planners has answered a question of the test already. Then what it was chosen and fitted on
    stands, lost runs and all: asked again, they might choose somebody else, who would get the other's answers."""
    return any(record.finished(name, task.id) is not None for name in names for task in tasks)


def cap_reached(before: str, *, leave_out: str = "") -> ConfigError:
    """What to raise where the money ended before something could be chosen or fitted."""
    otherwise = f", or leave `{leave_out}` out" if leave_out else ""
    return ConfigError(f"the cost cap was reached before {before}; raise --max-cost and --resume{otherwise}")


def entry_of(baseline: Baseline, pool_for: PoolFor) -> Entry:
    """Its part in an evaluation; the local workers it needs join the question's pool."""
    if baseline.helpers_for is None:
        return Entry(baseline.name, baseline.planner_for)
    helpers_for = baseline.helpers_for

    def with_helpers(task: Task, repeat: int) -> Pool:
        pool = pool_for(task, repeat)
        return Pool([*pool.values(), *helpers_for(task, pool)])

    return Entry(baseline.name, baseline.planner_for, pool_for=with_helpers)


def by_limits(baselines: Sequence[Baseline], limits: Limits) -> dict[Limits, list[Baseline]]:
    """Who runs under which limits: the given ones, with the steps and rounds that a planner needs."""
    found: dict[Limits, list[Baseline]] = {}
    for baseline in baselines:
        own = msgspec.structs.replace(
            limits, max_steps=max(limits.max_steps, baseline.max_steps), max_rounds=baseline.max_rounds
        )
        found.setdefault(own, []).append(baseline)
    return found


Ask = Callable[[Sequence[Entry], Sequence[Task]], Awaitable[list[Outcome]]]
"""`evaluate` with all but entries and tasks settled."""


class Rollouts:
    """Carries out plans for training questions, as MasRouter's fitting wants it. A plan that the record holds already
    is not paid again: the entry is named after it. One that names a worker its question was not offered with teaches
    nothing. Once one could not be paid for, no further one is tried."""

    @staticmethod
    def limits(limits: Limits) -> Limits:
        """Those to ask under: with room for the largest team, as when the fitted router answers the test. A plan that
        is refused for its length would teach that large teams are wrong."""
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
        """Refuse what was fitted on a part of them."""
        if self._out_of_money:
            raise cap_reached("masrouter was fitted", leave_out="masrouter")


def _check_worker(name: str, worker: str, pool: Pool) -> None:
    if worker not in pool:
        hint = _did_you_mean(difflib.get_close_matches(worker, pool.names, n=2))
        raise ConfigError(
            f"no worker is called {worker!r}, which {name!r} asks for{hint} The pool has: {', '.join(pool.names)}"
        )


def _did_you_mean(near: Sequence[str]) -> str:
    """The end of a sentence."""
    quoted = [f'"{name}"' for name in near]
    return f"; did you mean {' or '.join(quoted)}?" if near else "."


def _singles(pool: Pool) -> list[str]:
    return [f"single:{worker}" for worker in pool]


def _check_size(name: str, kind: str, detail: str) -> None:
    """Refuse a size that is none."""
    if kind == "moa":
        layers_of(name, detail)
    elif kind not in SIZES:
        raise ConfigError(f"{kind!r} takes no {detail!r} behind a colon; write  {kind}")
    elif not detail.isdecimal() or not 1 <= int(detail) <= SIZES[kind]:
        raise ConfigError(f"{name!r}: what follows the colon must be a number from 1 to {SIZES[kind]}, not {detail!r}")


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
