"""A selector over any workers: its fit, and its choice among served results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dirigent.errors import ConfigError
from dirigent.learn.selector import (
    MOST_WORKERS,
    Row,
    Selector,
    SelectorSettings,
    cross_fitted_ridge,
    features,
    fit,
    names,
    random_sets,
    ridge,
)
from dirigent.messages import Ran, Result

QUICK = SelectorSettings(subsets=10, trees=12, depth=3)
POOL = ("big", "small")


def row(i: int) -> Row:
    """`big` is right and `small` is not."""
    return Row(f"How many of {i}?", (str(i), str(i + 1)), POOL, (0, 1), (True, True), (1.0, 0.0))


@pytest.fixture(scope="module")
def selector() -> Selector:
    return fit([row(i) for i in range(60)], POOL, settings=QUICK)


def result(worker: str, text: str, *, step: int = 0, ran: Ran | None = None) -> Result:
    return Result(step, worker, "Answer.", text, ran=ran)


def test_a_selector_can_be_fitted_to_any_workers_of_a_table(selector: Selector) -> None:
    big, small = selector.chances(row(7))
    assert big > 0.7 > 0.3 > small


def test_every_feature_has_a_name(selector: Selector) -> None:
    values, _ = features(row(1), np.ones((1, 2), dtype=np.bool_), selector.prior("How many?"), POOL)
    assert values.shape[-1] == len(names(POOL)) == len(set(names(POOL)))


def test_an_option_and_its_text_say_the_same_and_replies_state_answers() -> None:
    question = "Which day is it?\nOptions:\n(A) 09/15/1909\n(B) 09/16/1909"
    texts = ("So it is (B).", "09/16/1909", "It was 09/15/1909, a day later: (A)")
    one = Row(question, ("B", "09/16/1909", "A"), ("big", "small", "big"), (0, 1, 2), (True,) * 3, texts=texts)
    values, present = features(one, np.ones((1, 3), dtype=np.bool_), np.zeros(3), POOL)
    assert present.all()
    same, stated = (names(POOL).index(name) for name in ("same words", "stated by others"))
    assert values[0, :, same].tolist() == [1, 1, 0], "the program's date is option B"
    assert values[0, :, stated].tolist() == [1, 0, 0], "small prints the text of option B"


def test_the_ridge_is_stronger_where_words_say_nothing() -> None:
    rng = np.random.default_rng(1)
    words = rng.normal(size=(300, 40))
    noise = rng.normal(size=(300, 1))
    predicted, weights = cross_fitted_ridge(words, words[:, :1] + 0.1 * noise, np.random.default_rng(1))
    assert np.corrcoef(predicted[:, 0], words[:, 0])[0, 1] > 0.99
    _, useless = cross_fitted_ridge(words, noise, np.random.default_rng(1))
    assert np.abs(weights).sum() > np.abs(ridge(words, words[:, :1], 100.0)).sum() * 0.99
    assert np.abs(useless).sum() < np.abs(ridge(words, noise, 1.0)).sum()


def test_a_saved_selector_keeps_its_workers(selector: Selector, tmp_path: Path) -> None:
    selector.save(tmp_path)
    assert Selector.load(tmp_path).workers == POOL


def test_too_many_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match=str(MOST_WORKERS)):
        fit([row(i) for i in range(4)], [f"w{i}" for i in range(MOST_WORKERS + 1)], settings=QUICK)


def test_random_sets_are_never_empty_and_take_every_number_of_samples() -> None:
    samples = ("big", "small", "small", "small")
    sets = random_sets(samples, POOL, 400, np.random.default_rng(1))
    assert sets.any(1).all()
    assert set(sets[:, 1:].sum(1)) == {0, 1, 2, 3}
    assert sets[sets[:, 1:].sum(1) == 1][:, 1:].mean(0).min() > 0.2, "each sample is taken"


def test_the_result_of_the_better_worker_is_picked_with_its_chance(selector: Selector) -> None:
    found = selector.choose("How many of 3?", [result("small", "4"), result("big", "So it is.\nAnswer: 3", step=1)])
    assert (found.place, found.votes, found.of) == (1, 1, 2)
    assert found.chance is not None
    assert found.chance > 0.7


def test_equal_answers_count_together_and_a_failed_program_does_not(selector: Selector) -> None:
    failed = Ran("print(3", 1, "", "SyntaxError")
    shown = [result("big", "3"), result("small", "3.0"), result("small", "SyntaxError", ran=failed)]
    found = selector.choose("How many of 3?", shown)
    assert (found.place, found.votes, found.of) == (0, 2, 2)


def test_unknown_workers_are_counted_without_a_chance(selector: Selector) -> None:
    found = selector.choose("How many?", [result("a", "5"), result("b", "6"), result("c", "6")])
    assert (found.place, found.chance, found.votes, found.of) == (1, None, 2, 3)


def test_results_without_an_answer_give_the_last_one_without_a_chance(selector: Selector) -> None:
    found = selector.choose("Why?", [result("big", "Because.\nIt is so."), result("small", "Light\nscatters.")])
    assert (found.place, found.chance, found.of) == (1, None, 0)
    with pytest.raises(ConfigError, match="at least one"):
        selector.choose("Why?", [])
