"""kNN router: the worker that did best on the questions most like this one answers alone.

Questions are compared by the words they share, weighted by how rare those are (TF-IDF, cosine). Fitted on questions
whose outcome is known for every worker; the standard library is enough. The plain form of the routers in RouterBench
(Hu et al. 2024) and RouterEval, which use learned embeddings in place of words.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from dirigent.errors import ConfigError
from dirigent.plan.plan import Plan
from dirigent.plan.planner import Brief, Shape
from dirigent.planners.examples import Example, ranked
from dirigent.planners.fixed import question_text, step

WORD = re.compile(r"[a-z]{2,}|\d|[^\s\w]")
COMMON_SHARE = 0.25
"""Words in more of the questions than this distinguish little, and cost the most to compare."""


class Neighbours:
    """Known questions, indexed by word."""

    def __init__(self, questions: Sequence[str]) -> None:
        if not questions:
            raise ConfigError("a kNN router needs questions to be fitted on")
        counts = [Counter(words(question)) for question in questions]
        seen_in = Counter(word for count in counts for word in count)
        n = len(questions)
        self._idf = {w: math.log(n / df) + 1 for w, df in seen_in.items() if df <= max(1, n * COMMON_SHARE)}
        self._index: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for i, count in enumerate(counts):
            for word, weight in self._vector(count).items():
                self._index[word].append((i, weight))

    def nearest(self, question: str, k: int) -> list[tuple[int, float]]:
        """The k most similar questions with their cosine, the most similar first; fewer where fewer share a word."""
        likeness: dict[int, float] = defaultdict(float)
        for word, weight in self._vector(Counter(words(question))).items():
            for i, other in self._index.get(word, ()):
                likeness[i] += weight * other
        return heapq.nsmallest(k, likeness.items(), key=lambda item: (-item[1], item[0]))

    def _vector(self, count: Counter[str]) -> dict[str, float]:
        raw = {word: (1 + math.log(c)) * self._idf[word] for word, c in count.items() if word in self._idf}
        length = math.sqrt(math.fsum(weight * weight for weight in raw.values()))
        return {word: weight / length for word, weight in raw.items()} if length else {}


def words(question: str) -> list[str]:
    return WORD.findall(question.lower())


class KnnRouter(Shape):
    """One worker, chosen by its neighbours' outcomes. Each worker's own mean counts as so many neighbours more, so
    that a handful of lucky neighbours does not outvote everything else that is known."""

    def __init__(
        self,
        neighbours: Neighbours,
        scores: Mapping[str, Sequence[float]],
        *,
        k: int = 20,
        prior: float = 5.0,
        name: str = "knn",
    ) -> None:
        """`scores`: of every worker, one for each question that `neighbours` was fitted on."""
        self.name = name
        self._neighbours = neighbours
        self._scores = scores
        self._means = {worker: math.fsum(found) / len(found) for worker, found in scores.items()}
        self._k = k
        self._prior = prior

    def choose(self, question: str, *, among: Collection[str] | None = None) -> str:
        """The worker expected to do best; of those offered, where not all are."""
        near = self._neighbours.nearest(question, self._k)
        weight = math.fsum(likeness for _, likeness in near)

        def expected(worker: str) -> float:
            gained = math.fsum(likeness * self._scores[worker][i] for i, likeness in near)
            return (gained + self._prior * self._means[worker]) / (weight + self._prior)

        return max(offered(self._scores, among), key=expected)

    def plan(self, brief: Brief) -> Plan:
        return Plan((step(brief, self.choose(question_text(brief), among=brief.pool)),))


def fit_knn(examples: Sequence[Example], *, k: int = 40, prior: float = 5.0, name: str = "knn") -> KnnRouter:
    """A router over the workers that the examples know; where two are expected to do as well, the better overall."""
    scores = {worker: [example.scores.get(worker, 0.0) for example in examples] for worker in ranked(examples)}
    return KnnRouter(Neighbours([example.question for example in examples]), scores, k=k, prior=prior, name=name)


def offered(known: Collection[str], among: Collection[str] | None) -> list[str]:
    """The workers that a router knows and the pool has."""
    found = [worker for worker in known if among is None or worker in among]
    if not found:
        raise ConfigError(f"the pool has none of the workers that the router was fitted on: {', '.join(known)}")
    return found
