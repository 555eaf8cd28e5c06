"""Folds: which questions are kept out together, and how much `best` owes to the draw.

What is chosen for one fold is fitted on the others, so that no question helps to choose its own worker. Who is fitted
and on what pool is `recorded.py`'s part.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from dirigent.errors import ConfigError
from dirigent.evals.outcome import Outcome
from dirigent.evals.planners import examples_of
from dirigent.evals.single_workers import SINGLE
from dirigent.evals.stats import mean
from dirigent.planners.examples import ranked
from dirigent.tasks.task import Task

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
