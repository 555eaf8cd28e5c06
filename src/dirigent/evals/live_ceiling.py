"""The ceiling of a live pool: for each benchmark the best of the plans that can be listed, chosen before the test.

Nobody knows the right plan of a real question, so plans of three shapes are tried on the questions to fit on: every
worker alone; one works and another reviews; two or three answer and the best one judges. Those of several steps are
made of the four workers that did best alone on the benchmark, so their number is bounded (22 plans, 58 calls a
question) however large the pool is. What trying them will cost is estimated from what the workers just read and wrote
alone. The best on the questions to fit on answers the test; nothing is chosen there.

Knows no evaluation: `live.py` asks, pays and tells. The gym, whose right plans are known, has `ceiling.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import msgspec

from dirigent.evals.costing import STEP_TOKENS
from dirigent.evals.entries import Entry
from dirigent.evals.hindsight import CEILING
from dirigent.evals.metrics import by_planner, cheap_first
from dirigent.evals.outcome import Outcome
from dirigent.evals.planners import examples_of
from dirigent.evals.single_workers import SINGLE
from dirigent.evals.stats import mean, mean_or_none, sum_or_none
from dirigent.messages import Event
from dirigent.plan.plan import Plan, Step
from dirigent.plan.planner import Planner
from dirigent.planners import Fitted
from dirigent.planners.examples import ranked
from dirigent.planners.given import Adapted
from dirigent.run.step_prompt import ANSWER, REVIEW, SYNTHESISE
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool

BROAD = 4
"""Workers that plans of several steps are made of. Five would already make 40 of them, and the best of many plans on a
few dozen questions is more and more a matter of luck."""

PANELS = (2, 3)
"""How many answer before one judges."""

MAX_STEPS = max(PANELS) + 1


class CeilingSought(Event, frozen=True):
    """Plans are about to be tried; told before the first of them is paid."""

    plans: int
    questions: int
    calls: int
    """Those that an earlier run has paid are not among them."""
    cost_usd: float | None
    """Expected; None where a worker has no known price."""


class Listed(msgspec.Struct, frozen=True):
    """A plan to try; its name tells it apart in the record."""

    name: str
    plan: Plan


class Search(msgspec.Struct, frozen=True):
    """The plans to try on the questions to fit on."""

    tasks: Sequence[Task]
    alone: Sequence[Outcome]
    """Of each worker alone on these questions."""
    plans: Mapping[str, Sequence[Listed]]
    """By benchmark: every worker alone first, from the best to the worst."""

    @property
    def runs(self) -> list[tuple[Listed, Task]]:
        """Everything to be asked: what a worker did alone is known already."""
        return [(listed, task) for task in self.tasks for listed in self.plans[task.kind] if len(listed.plan.steps) > 1]

    @property
    def entries(self) -> list[Entry]:
        """Each plan as one who takes part, on the benchmarks that it was listed for."""
        kinds: dict[Listed, set[str]] = {}
        for listed, task in self.runs:
            kinds.setdefault(listed, set()).add(task.kind)
        return [_entry(listed, wanted) for listed, wanted in kinds.items()]


def search(tasks: Sequence[Task], alone: Sequence[Outcome]) -> Search:
    """What to try, by what each worker did alone with these questions."""
    kinds = dict.fromkeys(task.kind for task in tasks)
    rankings = {kind: ranked(examples_of([task for task in tasks if task.kind == kind], alone)) for kind in kinds}
    return Search(tasks, alone, {kind: plans_of(ranking) for kind, ranking in rankings.items()})


def plans_of(ranking: Sequence[str]) -> list[Listed]:
    """The plans listed for a ranking of workers, the shortest first."""
    best, top = ranking[0], ranking[:BROAD]
    alone = [Listed(f"{SINGLE}{worker}", Plan((Step(worker, ANSWER),))) for worker in ranking]
    reviewed = [
        Listed(f"{worker}, reviewed by {other}", Plan((Step(worker, ANSWER), Step(other, REVIEW, (0,)))))
        for worker, other in itertools.permutations(top, 2)
    ]
    return [
        *alone,
        *reviewed,
        *(_judged(panel, best) for size in PANELS for panel in itertools.combinations(top, size)),
    ]


def sought(found: Search, pool: Pool, *, known: Callable[[str, str], bool]) -> CeilingSought:
    """What trying will take. `known` says of an entry and a question whether its outcome stands in the record."""
    left = [(listed, task) for listed, task in found.runs if not known(_name(listed), task.id)]
    means = _mean_tokens(found)
    costs_usd = [_cost_usd(listed.plan, means[task.kind], pool) for listed, task in left]
    return CeilingSought(
        plans=len({listed for listed, _ in found.runs}),
        questions=len(found.tasks),
        calls=sum(len(listed.plan.steps) for listed, _ in left),
        cost_usd=sum_or_none(costs_usd) if costs_usd else 0.0,
    )


def chosen(found: Search, outcomes: Sequence[Outcome]) -> dict[str, Listed]:
    """Benchmark -> the plan that was right most often, then the cheaper, then the shorter. A lost run is wrong."""
    tried = by_planner([*found.alone, *outcomes])

    def rank(kind: str, listed: Listed) -> tuple[float, bool, float]:
        name = listed.name if len(listed.plan.steps) == 1 else _name(listed)
        own = [outcome for outcome in tried.get(name, ()) if outcome.kind == kind]
        asked = sum(task.kind == kind for task in found.tasks)
        right = sum(outcome.value for outcome in own) / asked
        return -right, *cheap_first(mean_or_none([outcome.known_cost_usd for outcome in own]))

    return {kind: min(plans, key=lambda listed: rank(kind, listed)) for kind, plans in found.plans.items()}


def ceiling_of(best: Mapping[str, Listed]) -> Fitted:
    """Whoever answers the test under the name `ceiling`: for each benchmark the plan chosen. One that nothing was
    chosen for, having no question to fit on, gets the first one's."""
    first = next(iter(best.values()))

    def planner_for(task: Task, pool: Pool) -> Planner:
        return Adapted(best.get(task.kind, first).plan, name=CEILING)

    words = {kind: listed.name.removeprefix(SINGLE) for kind, listed in best.items()}
    note = (
        "; ".join(f"{kind}: {name}" for kind, name in words.items()) if len(words) > 1 else next(iter(words.values()))
    )
    return Fitted(CEILING, planner_for, max_steps=MAX_STEPS, note=note)


def _judged(panel: Sequence[str], judge: str) -> Listed:
    answers = [Step(worker, ANSWER) for worker in panel]
    plan = Plan((*answers, Step(judge, SYNTHESISE, tuple(range(len(answers))))))
    return Listed(f"{' + '.join(panel)}, judged by {judge}", plan)


def _name(listed: Listed) -> str:
    return f"{CEILING}: {listed.name}"


def _entry(listed: Listed, kinds: set[str]) -> Entry:
    return Entry(_name(listed), lambda task, pool: Adapted(listed.plan), wants=lambda task: task.kind in kinds)


def _mean_tokens(found: Search) -> dict[str, dict[str, tuple[float, float]]]:
    """Benchmark -> worker -> what its call alone read and wrote on average."""
    means: dict[str, dict[str, tuple[float, float]]] = {}
    for kind in found.plans:
        by_worker = by_planner(outcome for outcome in found.alone if outcome.kind == kind)
        means[kind] = {
            name.removeprefix(SINGLE): (mean([o.input_tokens for o in own]), mean([o.output_tokens for o in own]))
            for name, own in by_worker.items()
        }
    return means


def _cost_usd(plan: Plan, tokens: Mapping[str, tuple[float, float]], pool: Pool) -> float | None:
    """Each step reads what its worker read alone, the words around it and the replies on its list."""
    total_usd = 0.0
    for step in plan.steps:
        price = pool[step.worker].info.price
        if price is None:
            return None
        read, wrote = tokens[step.worker]
        if step.access:
            read += STEP_TOKENS + sum(tokens[plan.steps[j].worker][1] for j in step.access)
        total_usd += (read * price.input + wrote * price.output) / 1e6
    return total_usd
