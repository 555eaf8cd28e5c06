"""The ceiling of the gym: the accuracy of the best known plans over the real workers.

Workers err, so the best plan of a kind is found by trial: all ways of carrying it out answer the development split, and
the way that was right most often is chosen (of equals, the cheaper one). The test only uses that choice. A way is the
number of guesses, whether to check, and the choice between the dear arithmetician and the cheap one; the question
decides everything else about a gym plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dirigent.evals.record import Outcome
from dirigent.evals.stats import mean
from dirigent.plan.plan import Plan, Step
from dirigent.tasks.task import SketchStep, Task
from dirigent_gym.questions.skills import CHECK_SKILL, PUZZLE_SKILL
from dirigent_gym.questions.specialists import Specialist, able


class Way(msgspec.Struct, frozen=True):
    """One way of carrying out a question's cheapest plan."""

    guesses: int
    """The number of guesses by the unreliable worker; more than one guess is always checked."""
    dear: bool
    """Whether the dearest able worker does a step, or the cheapest."""

    @property
    def name(self) -> str:
        return f"{self.guesses} guess{'es' if self.guesses > 1 else ''}, {'dearest' if self.dear else 'cheapest'}"


WAYS: tuple[Way, ...] = tuple(Way(guesses, dear) for guesses in (1, 2, 3, 4) for dear in (False, True))

Kind = tuple[str, int]
"""Shape and depth: the choice of a way depends on them. Finer kinds would have too few questions to choose by."""


def plan_by(way: Way, task: Task, pool: Sequence[Specialist], *, max_steps: int = 5) -> Plan | None:
    """The task's plan in this way; None if the pool or the limit does not allow it."""
    wanted = task.sketch.steps if task.sketch else ()
    guesses = way.guesses if any(CHECK_SKILL in s.skills for s in pool) else 1
    steps: list[Step] = []
    places: list[tuple[int, ...]] = []
    """For each step of the sketch, its steps in this plan."""
    guessed: tuple[int, ...] = ()
    for want in wanted:
        if (want.skill == PUZZLE_SKILL and guessed) or (want.skill == CHECK_SKILL and guesses == 1):
            places.append(guessed)
            continue
        worker = _worker(want, pool, dear=way.dear)
        if worker is None:
            return None
        access = tuple(sorted({place for j in want.access for place in places[j]}))
        copies = guesses if want.skill == PUZZLE_SKILL else 1
        placed = tuple(range(len(steps), len(steps) + copies))
        steps.extend(Step(worker, want.subtask, access) for _ in placed)
        places.append(placed)
        guessed = placed if want.skill == PUZZLE_SKILL else guessed
    return Plan(tuple(steps)) if 0 < len(steps) <= max_steps else None


def plans_for(task: Task, pool: Sequence[Specialist], *, max_steps: int = 5) -> dict[Way, Plan]:
    """Every possible way with its plan. Most questions leave little choice, so several ways share a plan."""
    plans = {way: plan_by(way, task, pool, max_steps=max_steps) for way in WAYS}
    return {way: plan for way, plan in plans.items() if plan is not None}


def stand_in(way: Way, plans: Mapping[Way, Plan]) -> Way:
    """The first way with the same plan; only that way needs a trial."""
    return next(other for other, plan in plans.items() if plan == plans[way])


def kind_of(task: Task) -> Kind:
    return task.tags.get("shape", ""), task.depth


def choose_ways(tried: Iterable[tuple[Task, Mapping[Way, Sequence[Outcome]]]]) -> dict[Kind, Way]:
    """For each kind, the way that was right most often; of equals, the cheaper way.

    Each way is judged on all questions of the kind. It counts as wrong if the limit or the pool forbids it.
    """
    scores: dict[Kind, dict[Way, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for task, outcomes_by_way in tried:
        for way in WAYS:
            outcomes = outcomes_by_way.get(way, ())
            right, cost_usd = mean([float(o.correct) for o in outcomes]), mean([o.cost_usd for o in outcomes])
            scores[kind_of(task)][way].append((right, cost_usd))

    def rank(kind: Kind, way: Way) -> tuple[float, float, int]:
        found = scores[kind][way]
        return -mean([right for right, _ in found]), mean([cost_usd for _, cost_usd in found]), WAYS.index(way)

    return {kind: min(ways, key=lambda way: rank(kind, way)) for kind, ways in scores.items()}


def way_for(task: Task, chosen: Mapping[Kind, Way]) -> Way:
    """Returns the way of the task's kind, or of the nearest kind if development has none of it, as at depth 4."""
    shape, depth = kind_of(task)
    near = sorted(chosen, key=lambda kind: (kind[0] != shape, abs(kind[1] - depth)))
    return chosen[near[0]] if near else Way(3, dear=False)


def _worker(want: SketchStep, pool: Sequence[Specialist], *, dear: bool) -> str | None:
    fit = [s for s in pool if able(s, want)] or [s for s in pool if want.skill in s.skills]
    if not fit:
        return None
    by_price = sorted(fit, key=lambda s: s.price.input + s.price.output)
    return by_price[-1 if dear else 0].name
