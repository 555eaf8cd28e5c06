"""Smoothie: all workers answer, and the answer most like the others is taken (Guha et al. 2024, arXiv 2412.04692).

Needs no labels. The model: each worker's answer, as a vector, scatters around the unknown true one, that of worker i
with a mean squared distance d_i. Scattering independently, two answers lie D_ij = d_i + d_j apart on average, so any
three give d_i = (D_ij + D_ik - D_jk) / 2. The mean over all pairs j, k is the estimate, and the worker with the least
d_i (the highest quality score, dim / 2 d_i) is chosen. This is the sample-dependent form, Smoothie-Local: distances are
taken over the question itself and, if more neighbours are asked for and earlier answers known, over the questions most
like it. The authors' scripts take one, the question itself. The plan is a fan-out to all workers with a local worker
that picks. Vectors are hashed words (`features.py`) in place of
a sentence encoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dirigent.errors import ConfigError
from dirigent.messages import Reply, Request, Result
from dirigent.plan.plan import Plan, Step
from dirigent.plan.planner import Brief, Shape
from dirigent.planners.examples import Example, workers_of
from dirigent.planners.features import Array, hashed_counts, unit_rows
from dirigent.planners.fixed import answering, step
from dirigent.planners.knn import Neighbours
from dirigent.workers.reader import Reader

PICK = "Pick the answer most like the others."
PICKER = "pick"
LEAST_WORKERS = 3


class Smoothie(Shape):
    """Every worker answers; the picker decides."""

    def __init__(self, workers: Sequence[str] = (), *, picker: str = PICKER, name: str = "smoothie") -> None:
        """`workers` in the order that the picker knows them; those the pool lacks are left out."""
        self.name = name
        self._workers = tuple(workers)
        self._picker = picker

    def plan(self, brief: Brief) -> Plan:
        there = [name for name in self._workers or answering(brief.pool) if name in brief.pool]
        answers = [step(brief, worker) for worker in there]
        pick = Step(brief.pool.require(self._picker), PICK, tuple(range(len(answers))))
        return Plan((*answers, pick))


class Picking(Reader):
    """The local worker that reads the answers and repeats the one whose worker scatters least."""

    def __init__(self, *, distances: Array | None = None, weight: int = 0, name: str = PICKER) -> None:
        """`distances`: mean squared distances between the workers on `weight` similar questions, by step number."""
        super().__init__(name, about="picks the answer most like the others", kind="counting")
        self._distances = distances
        self._weight = weight

    async def read(self, results: Sequence[Result], request: Request) -> Reply:
        texts = {result.step: result.text for result in results}
        return Reply(texts[self.picked(texts)])

    def picked(self, results: Mapping[int, str]) -> int:
        """Returns the chosen step. With fewer than three answers there is no estimate, and the first answer is
        taken."""
        steps = sorted(results)
        if len(steps) < LEAST_WORKERS:
            return steps[0]
        own = squared_distances([results[i] for i in steps])
        if self._distances is not None and self._weight:
            known = self._distances[np.ix_(steps, steps)]
            own = (own + self._weight * known) / (1 + self._weight)
        return steps[int(scatter(own).argmin())]


class SmoothieFit:
    """Earlier answers of the same workers, unlabelled, to smooth over."""

    def __init__(self, examples: Sequence[Example], *, neighbours: int = 1) -> None:
        self.workers = workers_of(examples)
        known = [example for example in examples if all(worker in example.replies for worker in self.workers)]
        self._replies = [[example.replies[worker] for worker in self.workers] for example in known]
        self._neighbours = Neighbours([example.question for example in known]) if known else None
        self._count = neighbours - 1  # the question itself is its own nearest neighbour
        self._distances: dict[int, Array] = {}

    def picker(self, question: str, *, among: Sequence[str] | None = None) -> Picking:
        """The picker for this question; `among` are the workers asked, in the order asked."""
        near = self._neighbours.nearest(question, self._count) if self._neighbours and self._count > 0 else []
        if not near:
            return Picking()
        mean = np.mean([self._distances_on(i) for i, _ in near], axis=0)
        order = [self.workers.index(worker) for worker in among or self.workers]
        return Picking(distances=mean[np.ix_(order, order)], weight=len(near))

    def _distances_on(self, index: int) -> Array:
        if index not in self._distances:
            self._distances[index] = squared_distances(self._replies[index])
        return self._distances[index]


def squared_distances(texts: Sequence[str]) -> Array:
    """Between every two texts, as unit vectors: 0 for the same words, 2 for no word in common."""
    rows = unit_rows(hashed_counts(texts))
    lengths = (rows**2).sum(axis=1)
    distances: Array = np.maximum(0.0, lengths[:, None] + lengths[None, :] - 2 * rows @ rows.T)
    return distances


def scatter(distances: Array) -> Array:
    """Each worker's mean squared distance from the unknown true answer, over all pairs of the others."""
    count = len(distances)
    if count < LEAST_WORKERS:
        raise ConfigError(f"Smoothie needs at least {LEAST_WORKERS} workers, not {count}")
    to_others = distances.sum(axis=1)
    among_others = distances.sum() / 2 - to_others  # each pair once, without those that hold worker i
    pairs = (count - 1) * (count - 2) / 2
    found: Array = to_others / (count - 1) - among_others / pairs / 2
    return found
