"""RouterDC: the worker whose learnt vector lies nearest to the question's (Chen et al. 2024, arXiv 2409.19886).

Trained by two contrastive losses. *Sample-LLM*: a question is drawn towards the workers that answered it best and away
from those that answered it worst. *Sample-sample*: it is drawn towards another question of its cluster and away from
questions of other clusters, which keeps the first loss from tearing like questions apart. The worker asked is the one
with the highest cosine.

Settings are the paper's (K+ = K- = 3, lambda 1, 5 clusters, H = 3, 1,000 steps of 64) except for the encoder: a linear
map
over hashed TF-IDF features (`features.py`) in place of mDeBERTa-v3-base, and so a larger learning rate. A fifth of the
examples is held out, and the step is kept that routes them best: with a few hundred examples the last step has learnt
their noise. The gradients are written out by hand; a test checks them against finite differences.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from dirigent.errors import ConfigError
from dirigent.plan.plan import Plan
from dirigent.plan.planner import Brief, Shape
from dirigent.planners.examples import Example, workers_of
from dirigent.planners.features import Adam, Array, Embedding, fit_embedding, unit_rows, with_constant
from dirigent.planners.fixed import question_text, step
from dirigent.planners.knn import offered

Indices = npt.NDArray[np.int64]


class DualContrastive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings."""

    positives: int = 3
    """K+: best workers of a question that it is drawn towards. With few workers, at most half of them."""
    negatives: int = 3
    """K-: worst workers that it is drawn away from."""
    sample_weight: float = 1.0
    """lambda: how much the sample-sample loss counts."""
    clusters: int = 5
    outside: int = 3
    """H: questions of other clusters that one is drawn away from."""
    steps: int = 1000
    batch: int = 64
    learning_rate: float = 0.005
    dim: int = 64
    held_out: float = 0.2
    """Share of the examples that choose the step to keep."""
    check_every: int = 50


def fit_routerdc(
    examples: Sequence[Example],
    *,
    seed: int = 0,
    settings: DualContrastive = DualContrastive(),  # noqa: B008  # frozen
    name: str = "routerdc",
) -> RouterDC:
    """Fit on examples; the same examples and seed give the same router."""
    if not examples:
        raise ConfigError("RouterDC needs examples to be fitted on")
    workers = workers_of(examples)
    rng = np.random.default_rng(seed)
    embedding = fit_embedding([example.question for example in examples], dim=settings.dim, seed=seed)
    features = with_constant(embedding([example.question for example in examples]))
    scores = np.array([[example.scores.get(worker, 0.0) for worker in workers] for example in examples])
    encoder = np.eye(features.shape[1])
    keys = rng.normal(scale=0.78, size=(len(workers), features.shape[1]))
    order = rng.permutation(len(examples))
    held, fitted = np.split(order, [int(settings.held_out * len(examples))])
    kept = Kept(features[held], scores[held])
    encoder, keys = _trained(encoder, keys, features[fitted], scores[fitted], kept=kept, rng=rng, settings=settings)
    return RouterDC(embedding, encoder, dict(zip(workers, unit_rows(keys), strict=True)), name=name)


class RouterDC(Shape):
    """The fitted router."""

    def __init__(self, embedding: Embedding, encoder: Array, keys: dict[str, Array], *, name: str = "routerdc") -> None:
        self.name = name
        self._embedding = embedding
        self._encoder = encoder
        self._keys = keys

    def choose(self, question: str, *, among: Collection[str] | None = None) -> str:
        query = self._encoder @ with_constant(self._embedding([question]))[0]
        return max(offered(self._keys, among), key=lambda worker: float(self._keys[worker] @ query))

    def plan(self, brief: Brief) -> Plan:
        return Plan((step(brief, self.choose(question_text(brief), among=brief.pool)),))


class Kept:
    """The parameters that route the questions held out best; the later of two that do as well."""

    def __init__(self, features: Array, scores: Array) -> None:
        self._features = features
        self._scores = scores
        self._best = -1.0
        self.parameters: tuple[Array, Array] | None = None

    def offer(self, encoder: Array, keys: Array) -> None:
        routed = (self._features @ encoder.T @ unit_rows(keys).T).argmax(axis=1)
        score = float(self._scores[np.arange(len(routed)), routed].mean()) if len(routed) else 0.0
        if score >= self._best:
            self._best, self.parameters = score, (encoder, keys)


def _trained(
    encoder: Array,
    keys: Array,
    features: Array,
    scores: Array,
    *,
    kept: Kept,
    rng: np.random.Generator,
    settings: DualContrastive,
) -> tuple[Array, Array]:
    clusters = k_means(features, settings.clusters, rng=rng)
    adam = Adam((encoder, keys), learning_rate=settings.learning_rate)
    for taken in range(1, settings.steps + 1):
        rows = rng.choice(len(features), size=min(settings.batch, len(features)), replace=False)
        best, worst = contrast_workers(scores[rows], rng=rng, settings=settings)
        partners = contrast_questions(clusters[rows], rng=rng, outside=settings.outside)
        _, gradients = dual_loss(
            encoder,
            keys,
            features[rows],
            scores[rows],
            best=best,
            worst=worst,
            partners=partners,
            sample_weight=settings.sample_weight,
        )
        encoder, keys = adam.step(gradients)
        if taken % settings.check_every == 0:
            kept.offer(encoder, keys)
    return kept.parameters or (encoder, keys)


def contrast_workers(scores: Array, *, rng: np.random.Generator, settings: DualContrastive) -> tuple[Indices, Indices]:
    """Of each question, its best and its worst workers; equals by lot, as no order among them means anything."""
    half = max(1, scores.shape[1] // 2)
    order = np.argsort(-(scores + 1e-6 * rng.random(scores.shape)), axis=1)
    return order[:, : min(settings.positives, half)], order[:, ::-1][:, : min(settings.negatives, half)]


def contrast_questions(clusters: Indices, *, rng: np.random.Generator, outside: int) -> Indices:
    """Of each question of a batch, one of its own cluster and then some of others; -1 if there are too few."""
    together = clusters[:, None] == clusters[None, :]
    alike = together & ~np.eye(len(clusters), dtype=bool)
    lots = rng.random(together.shape)
    mate = np.where(alike, lots, -1.0).argmax(axis=1)
    others = np.argsort(np.where(together, -1.0, lots), axis=1)[:, ::-1][:, :outside]
    enough = alike.any(axis=1) & ((~together).sum(axis=1) >= outside)
    return np.where(enough[:, None], np.column_stack([mate, others]), -1)


def dual_loss(
    encoder: Array,
    keys: Array,
    features: Array,
    scores: Array,
    *,
    best: Indices,
    worst: Indices,
    partners: Indices,
    sample_weight: float,
) -> tuple[float, tuple[Array, Array]]:
    """Both losses over a batch, and their gradients by encoder and by keys."""
    raw = features @ encoder.T
    queries, towards = unit_rows(raw), unit_rows(keys)
    loss, d_similar = worker_loss(queries @ towards.T, scores, best=best, worst=worst)
    sample, d_queries = question_loss(queries, partners)
    d_queries = d_similar @ towards + sample_weight * d_queries
    d_raw = through_unit(raw, queries, d_queries)
    d_keys = through_unit(keys, towards, d_similar.T @ queries)
    return loss + sample_weight * sample, (d_raw.T @ features, d_keys)


def worker_loss(similar: Array, scores: Array, *, best: Indices, worst: Indices) -> tuple[float, Array]:
    """Sample-LLM: for each good worker, minus the log of its share among itself and the bad ones.

    A worker among the best that was wrong is not drawn near; one among the worst that was right is not pushed off.
    """
    rows = np.arange(len(similar))
    loss, gradient = 0.0, np.zeros_like(similar)
    bad = np.where(np.take_along_axis(scores, worst, 1) <= 0.5, np.exp(np.take_along_axis(similar, worst, 1)), 0.0)
    for column in best.T:
        counts = (scores[rows, column] > 0) / len(similar)
        good = np.exp(similar[rows, column])
        total = good + bad.sum(axis=1)
        loss -= float((counts * np.log(good / total)).sum())
        np.add.at(gradient, (rows, column), counts * (good / total - 1))
        np.add.at(gradient, (rows[:, None], worst), counts[:, None] * bad / total[:, None])
    return loss, gradient


def question_loss(queries: Array, partners: Indices) -> tuple[float, Array]:
    """Sample-sample: minus the log of the like question's share among itself and the unlike ones."""
    gradient = np.zeros_like(queries)
    (rows,) = np.nonzero(partners[:, 0] >= 0)
    if not len(rows):
        return 0.0, gradient
    others = partners[rows]
    share = np.exp(np.einsum("bd,bpd->bp", queries[rows], queries[others]))
    share /= share.sum(axis=1, keepdims=True)
    loss = -float(np.log(share[:, 0]).mean())
    share[:, 0] -= 1
    share /= len(rows)
    np.add.at(gradient, rows, np.einsum("bp,bpd->bd", share, queries[others]))
    np.add.at(gradient, others, share[:, :, None] * queries[rows][:, None, :])
    return loss, gradient


def through_unit(raw: Array, unit: Array, gradient: Array) -> Array:
    """The gradient before division by the length: what points along the vector is lost."""
    length = np.linalg.norm(raw, axis=1, keepdims=True)
    along = (unit * gradient).sum(axis=1, keepdims=True)
    flat: Array = (gradient - unit * along) / np.where(length > 0, length, 1.0)
    return flat


def k_means(rows: Array, count: int, *, rng: np.random.Generator, iterations: int = 25) -> Indices:
    """Lloyd's algorithm from rows drawn by lot."""
    centres = rows[rng.choice(len(rows), size=min(count, len(rows)), replace=False)]
    nearest = np.zeros(len(rows), dtype=np.int64)
    for _ in range(iterations):
        distance = (rows**2).sum(1)[:, None] - 2 * rows @ centres.T + (centres**2).sum(1)
        nearest = distance.argmin(axis=1)
        centres = np.array(
            [rows[nearest == i].mean(axis=0) if (nearest == i).any() else centre for i, centre in enumerate(centres)]
        )
    return nearest
