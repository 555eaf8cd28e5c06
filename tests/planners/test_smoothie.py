"""Smoothie: the estimate worked by hand, and the answer most like the others."""

from __future__ import annotations

import numpy as np
import pytest
from tests.facts import facts

from dirigent import Conductor, Pool, Scripted
from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Message, Request
from dirigent.planners.examples import Example
from dirigent.planners.smoothie import Picking, Smoothie, SmoothieFit, scatter, squared_distances


def apart(*spread: float) -> np.ndarray:
    """Squared distances of answers that scatter so far from the truth, independently."""
    d = np.array(spread)
    return (d[:, None] + d[None, :]) * (1 - np.eye(len(d)))


@pytest.mark.parametrize("spread", [(1.0, 2.0, 5.0), (4.0, 1.0, 3.0, 2.0)])
def test_the_scatter_of_each_worker_is_recovered_from_distances_alone(spread: tuple[float, ...]) -> None:
    assert scatter(apart(*spread)) == pytest.approx(spread)


def test_three_workers_by_hand() -> None:
    distances = np.array([[0.0, 3.0, 6.0], [3.0, 0.0, 7.0], [6.0, 7.0, 0.0]])
    assert scatter(distances) == pytest.approx([(3 + 6 - 7) / 2, (3 + 7 - 6) / 2, (6 + 7 - 3) / 2])


def test_distances_are_nought_for_the_same_words_and_two_for_none_in_common() -> None:
    found = squared_distances(["red green", "red green", "blue"])
    assert found == pytest.approx(np.array([[0, 0, 2], [0, 0, 2], [2, 2, 0]]), abs=1e-12)


async def test_the_answer_most_like_the_others_is_taken() -> None:
    pool = Pool(
        [
            Scripted("it is the green door on the left", name="odd"),
            Scripted("the answer is forty two", name="a"),
            Scripted("the answer is forty two indeed", name="b"),
            Scripted("the answer is forty one", name="c"),
            Picking(),
        ]
    )
    trace = await Conductor(Smoothie(), pool).run("How much?")
    assert trace.answer == "the answer is forty two"
    assert trace.usage.calls == 4


async def test_a_worker_that_the_pool_lacks_is_left_out_and_two_answers_leave_the_first() -> None:
    pool = Pool([Scripted("x", name="a"), Scripted("y", name="b"), Picking()])
    trace = await Conductor(Smoothie(("b", "z", "a")), pool).run("How much?")
    assert trace.answer == "y"


def test_answers_to_similar_questions_are_smoothed_over() -> None:
    replies = {
        "a": "wild guess number nine",
        "b": "the sum is four",
        "c": "the sum is four indeed",
        "d": "the sum is four",
    }
    asked = ["add up two now", "add up three now", "red", "green", "blue", "white", "black", "brown"]
    earlier = [Example(question, dict.fromkeys(replies, 0.0), replies=replies) for question in asked]
    smoothing = SmoothieFit(earlier, neighbours=3)
    now = {0: "it makes seven", 1: "twelve I think", 2: "nobody can say", 3: "seven it makes"}
    assert Picking().picked(now) == 0  # nothing but these four: the first and the last agree
    assert smoothing.picker("add up five now").picked(now) == 3  # the first one's past counts against it
    assert smoothing.picker("zebra").picked(now) == 0  # no question like it is known


def test_unless_more_neighbours_are_wanted_the_question_itself_is_the_only_one() -> None:
    replies = {"a": "wild guess", "b": "four", "c": "four"}
    smoothing = SmoothieFit([Example("add up", dict.fromkeys(replies, 1.0), replies=replies)])
    now = {0: "it makes seven", 1: "twelve I think", 2: "seven it makes"}
    assert smoothing.picker("add up").picked(now) == Picking().picked(now) == 0


def test_of_the_workers_asked_alone_the_distances_are_looked_up_in_their_order() -> None:
    replies = {"a": "one two", "b": "three four", "c": "one two"}
    smoothing = SmoothieFit([Example("add up", dict.fromkeys(replies, 1.0), replies=replies)], neighbours=3)
    nothing = {0: "p", 1: "q", 2: "r"}
    assert smoothing.picker("add up", among=["b", "c", "a"]).picked(nothing) == 1


async def test_a_picker_without_results_is_an_error() -> None:
    with pytest.raises(WorkerError, match=facts(Picking().info.name)):
        await Picking().ask(Request((Message("user", "Pick."),)))


def test_two_workers_are_too_few_for_an_estimate() -> None:
    with pytest.raises(ConfigError, match=facts("3 2")):
        scatter(apart(1.0, 2.0))
