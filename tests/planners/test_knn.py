"""The kNN router asks the worker that did best on similar questions: worked by hand."""

from __future__ import annotations

import pytest

from dirigent import Conductor, Pool, Scripted
from dirigent.errors import ConfigError
from dirigent.planners.knn import KnnRouter, Neighbours

QUESTIONS = [
    "capital of norway",
    "capital of france",
    "capital of spain",
    "sum of seven numbers",
    "sum of nine numbers",
]
SCORES = {"facts": [1.0, 1.0, 1.0, 0.0, 0.0], "sums": [0.0, 0.0, 0.0, 1.0, 1.0]}


def test_the_nearest_questions_share_the_rarest_words() -> None:
    near = Neighbours([*QUESTIONS, "the weather", "a song", "two birds", "no idea"]).nearest("capital of norway", 2)
    assert near[0][0] == 0
    assert near[0][1] == pytest.approx(1.0)


def test_a_question_like_no_other_has_no_neighbours() -> None:
    assert Neighbours(QUESTIONS).nearest("zebra", 3) == []


@pytest.mark.parametrize(
    ("question", "worker"), [("france again", "facts"), ("nine and seven", "sums"), ("zebra", "facts")]
)
def test_neighbours_choose_and_without_neighbours_the_mean_decides(question: str, worker: str) -> None:
    assert KnnRouter(Neighbours(QUESTIONS), SCORES, k=2, prior=0.1).choose(question) == worker


def test_a_strong_prior_keeps_to_the_worker_that_is_best_overall() -> None:
    assert KnnRouter(Neighbours(QUESTIONS), SCORES, k=2, prior=1000).choose("nine and seven") == "facts"


async def test_the_chosen_worker_answers_alone() -> None:
    pool = Pool([Scripted("Oslo", name="facts"), Scripted("16", name="sums")])
    trace = await Conductor(KnnRouter(Neighbours(QUESTIONS), SCORES, k=2, prior=0.1), pool).run("seven and nine")
    assert (trace.answer, trace.usage.calls) == ("16", 1)


def test_nothing_to_be_fitted_on_is_refused() -> None:
    with pytest.raises(ConfigError):
        Neighbours([])
