"""Features: a text as a short vector, without a model and without a network.

Words and pairs of words are hashed into buckets, weighted by how rare they are (TF-IDF), and reduced by a truncated SVD
(latent semantic analysis, Deerwester et al. 1990). The published routers use sentence encoders here; docs/baselines.md
says what that costs. Needs numpy (the `eval` extra), so it is imported only when a planner that needs it is named.

`Adam` (Kingma and Ba 2015) fits the routers that learn by gradients, over a few numpy arrays.
"""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dirigent.errors import ConfigError
from dirigent.planners.knn import words

Array = npt.NDArray[np.float64]

BUCKETS = 4096
"""Words that share a bucket are taken for one; with a few thousand questions that is rare enough."""

POWER_ITERATIONS = 4
"""Of the randomised SVD (Halko et al. 2011): enough for spectra that fall off as slowly as those of texts."""


class Embedding:
    """Texts -> rows of unit length. Fitted on some texts, applied to any."""

    def __init__(self, idf: Array, basis: Array) -> None:
        self._idf = idf
        self._basis = basis

    @property
    def dim(self) -> int:
        return int(self._basis.shape[1])

    def __call__(self, texts: Sequence[str]) -> Array:
        return unit_rows(unit_rows(hashed_counts(texts) * self._idf) @ self._basis)


def fit_embedding(texts: Sequence[str], *, dim: int = 64, seed: int = 0) -> Embedding:
    """The directions in which these texts differ most."""
    if not texts:
        raise ConfigError("an embedding needs texts to be fitted on")
    counts = hashed_counts(texts)
    seen_in = (counts > 0).sum(axis=0)
    idf = np.log((1 + len(texts)) / (1 + seen_in)) + 1
    weighted = unit_rows(counts * idf)
    return Embedding(idf, _leading_directions(weighted, min(dim, *weighted.shape), seed=seed))


def hashed_counts(texts: Sequence[str]) -> Array:
    """How often each bucket's words and pairs of words occur, damped by a logarithm."""
    rows = np.zeros((len(texts), BUCKETS))
    for row, text in zip(rows, texts, strict=True):
        found = words(text)
        pairs = (f"{a} {b}" for a, b in itertools.pairwise(found))
        for term, count in Counter([*found, *pairs]).items():
            row[zlib.crc32(term.encode()) % BUCKETS] += count
    return np.log1p(rows)


def unit_rows(rows: Array) -> Array:
    """Each row divided by its length; a row of zeros stays one."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)


def with_constant(features: Array) -> Array:
    """A feature that is always 1, so that a worker may be good at everything."""
    return np.hstack([features, np.ones((len(features), 1))])


def _leading_directions(rows: Array, dim: int, *, seed: int) -> Array:
    """The first right singular vectors as columns, by randomised subspace iteration; their signs are settled too."""
    sketch = np.random.default_rng(seed).standard_normal((rows.shape[1], min(dim + 8, rows.shape[1])))
    for _ in range(POWER_ITERATIONS):
        sketch, _ = np.linalg.qr(rows.T @ (rows @ sketch))
    _, _, right = np.linalg.svd(rows @ sketch, full_matrices=False)
    basis = sketch @ right[:dim].T
    largest = basis[np.abs(basis).argmax(axis=0), range(basis.shape[1])]
    signed: Array = basis * np.where(largest < 0, -1.0, 1.0)
    return signed


# ---- Adam ------------------------------------------------------------------------------------------------


BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Adam:
    """Holds the parameters and the means of their gradients; `step` returns new arrays."""

    def __init__(self, parameters: Sequence[Array], *, learning_rate: float) -> None:
        self._parameters = tuple(parameters)
        self._rate = learning_rate
        self._mean = [np.zeros_like(p) for p in parameters]
        self._square = [np.zeros_like(p) for p in parameters]
        self._taken = 0

    def step(self, gradients: Sequence[Array]) -> tuple[Array, ...]:
        """Down the gradients of a loss."""
        self._taken += 1
        first, second = BETAS
        found = []
        for i, (parameter, gradient) in enumerate(zip(self._parameters, gradients, strict=True)):
            self._mean[i] = first * self._mean[i] + (1 - first) * gradient
            self._square[i] = second * self._square[i] + (1 - second) * gradient**2
            mean = self._mean[i] / (1 - first**self._taken)
            square = self._square[i] / (1 - second**self._taken)
            found.append(parameter - self._rate * mean / (np.sqrt(square) + EPSILON))
        self._parameters = tuple(found)
        return self._parameters
