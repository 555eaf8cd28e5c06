"""Texts as vectors: hashed, weighted and reduced, the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from dirigent.errors import ConfigError
from dirigent.planners.features import fit_embedding, hashed_counts, unit_rows

TEXTS = ["the capital of norway", "the capital of france", "add seven and nine", "add eight and nine"]


def test_like_texts_lie_closer_than_unlike_ones() -> None:
    rows = fit_embedding(TEXTS, dim=3)(TEXTS)
    likeness = rows @ rows.T
    assert likeness[0, 1] > 0.5 > likeness[0, 2]
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(4))


def test_reducing_to_full_rank_keeps_every_cosine() -> None:
    embedding = fit_embedding(TEXTS, dim=50)
    idf = np.log(5 / (1 + (hashed_counts(TEXTS) > 0).sum(axis=0))) + 1
    whole = unit_rows(hashed_counts(TEXTS) * idf)
    assert embedding.dim == 4
    rows = embedding(TEXTS)
    assert rows @ rows.T == pytest.approx(whole @ whole.T, abs=1e-9)


def test_the_same_seed_gives_the_same_vectors_and_signs_are_settled() -> None:
    first, again, other = (fit_embedding(TEXTS, dim=2, seed=seed)(TEXTS) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert other == pytest.approx(first, abs=1e-6)


def test_a_text_without_words_is_nowhere() -> None:
    assert fit_embedding(TEXTS, dim=2)([""])[0] == pytest.approx([0.0, 0.0])


def test_a_word_counts_by_the_logarithm_of_how_often_it_comes() -> None:
    once, thrice = hashed_counts(["ba", "ba ba ba"])
    assert once.max() == pytest.approx(np.log(2))
    assert sorted(thrice[thrice > 0]) == pytest.approx([np.log(3), np.log(4)])  # the pair twice, the word three times


def test_nothing_to_fit_on_is_refused() -> None:
    with pytest.raises(ConfigError):
        fit_embedding([])
