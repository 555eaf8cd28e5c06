"""RouterDC: both losses worked by hand, gradients against finite differences, and routes that were learnt."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.facts import facts

from dirigent import Conductor, Pool, Scripted
from dirigent.errors import ConfigError
from dirigent.planners.examples import Example
from dirigent.planners.features import Adam
from dirigent.planners.routerdc import (
    DualContrastive,
    Kept,
    contrast_questions,
    contrast_workers,
    dual_loss,
    fit_routerdc,
    k_means,
    question_loss,
    worker_loss,
)

QUICK = DualContrastive(steps=400, batch=16, dim=8, clusters=2, learning_rate=0.02)
TOPICS = {"facts": ("capital", "river", "king"), "sums": ("plus", "minus", "times")}


def examples(n: int = 60) -> list[Example]:
    """Each worker knows its own topic."""
    found = []
    for i in range(n):
        topic = ("facts", "sums")[i % 2]
        question = f"{TOPICS[topic][i // 2 % 3]} of number {i // 2}"  # the number carries no information
        found.append(Example(question, {worker: float(worker == topic) for worker in TOPICS}))
    return found


def test_a_worker_loss_worked_by_hand() -> None:
    similar = np.array([[math.log(3), 0.0]])
    loss, gradient = worker_loss(similar, np.array([[1.0, 0.0]]), best=np.array([[0]]), worst=np.array([[1]]))
    assert loss == pytest.approx(-math.log(3 / 4))
    assert gradient == pytest.approx(np.array([[3 / 4 - 1, 1 / 4]]))


def test_a_wrong_worker_is_not_drawn_near_and_a_right_one_not_pushed_off() -> None:
    similar = np.array([[0.3, -0.2]])
    nobody, flat = worker_loss(similar, np.array([[0.0, 0.0]]), best=np.array([[0]]), worst=np.array([[1]]))
    both, also_flat = worker_loss(similar, np.array([[1.0, 1.0]]), best=np.array([[0]]), worst=np.array([[1]]))
    assert (nobody, both) == (0.0, 0.0)
    assert not flat.any()
    assert not also_flat.any()


def test_a_question_loss_worked_by_hand() -> None:
    queries = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    loss, gradient = question_loss(queries, np.array([[1, 2], [-1, -1], [-1, -1]]))
    share = math.e / (math.e + 1)
    assert loss == pytest.approx(-math.log(share))
    assert gradient[0] == pytest.approx([share - 1, 1 - share])
    assert gradient[1] == pytest.approx([share - 1, 0.0])
    assert question_loss(queries, np.full((3, 2), -1))[0] == 0.0


def test_gradients_agree_with_finite_differences() -> None:
    rng = np.random.default_rng(0)
    encoder, keys, features = rng.normal(size=(3, 4)), rng.normal(size=(5, 3)), rng.normal(size=(6, 4))
    scores = rng.integers(0, 2, size=(6, 5)).astype(float)
    best, worst = contrast_workers(scores, rng=rng, settings=DualContrastive(positives=2, negatives=2))
    partners = contrast_questions(np.array([0, 0, 0, 1, 1, 1]), rng=rng, outside=2)
    fixed = {"best": best, "worst": worst, "partners": partners, "sample_weight": 0.7}
    _, (d_encoder, d_keys) = dual_loss(encoder, keys, features, scores, **fixed)
    for array, gradient in ((encoder, d_encoder), (keys, d_keys)):
        for place in np.ndindex(array.shape):
            nudged = []
            for step in (1e-6, -1e-6):
                array[place] += step
                nudged.append(dual_loss(encoder, keys, features, scores, **fixed)[0])
                array[place] -= step
            assert gradient[place] == pytest.approx((nudged[0] - nudged[1]) / 2e-6, abs=1e-6)


def test_the_best_and_the_worst_workers_are_contrasted_and_equals_drawn_by_lot() -> None:
    scores = np.tile([0.1, 0.9, 0.5, 0.3, 0.7, 0.0], (50, 1))
    best, worst = contrast_workers(scores, rng=np.random.default_rng(0), settings=DualContrastive())
    assert {tuple(row) for row in best} == {(1, 4, 2)}
    assert {tuple(row) for row in worst} == {(5, 0, 3)}
    tied, _ = contrast_workers(np.ones((50, 6)), rng=np.random.default_rng(0), settings=DualContrastive())
    assert {int(i) for i in tied.ravel()} == set(range(6))
    few, others = contrast_workers(np.array([[0.0, 1.0]]), rng=np.random.default_rng(0), settings=DualContrastive())
    assert (few.tolist(), others.tolist()) == ([[1]], [[0]])


def test_a_question_is_paired_with_one_of_its_cluster_and_contrasted_with_others() -> None:
    clusters = np.array([0, 0, 1, 1, 1, 2])
    partners = contrast_questions(clusters, rng=np.random.default_rng(0), outside=2)
    for i, (mate, *others) in enumerate(partners[:5]):
        assert mate != i
        assert clusters[mate] == clusters[i]
        assert all(clusters[other] != clusters[i] for other in others)
    assert partners[5].tolist() == [-1, -1, -1]  # alone in its cluster


def test_clusters_are_found() -> None:
    rows = np.array([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [5.1, 5.0]])
    first, second, third, fourth = k_means(rows, 2, rng=np.random.default_rng(0))
    assert first == second != third == fourth


def test_adam_moves_by_its_rate_at_first_and_finds_the_bottom() -> None:
    adam = Adam([np.array([3.0])], learning_rate=0.1)
    (moved,) = adam.step([np.array([6.0])])
    assert moved == pytest.approx([2.9])
    for _ in range(300):
        (moved,) = adam.step([2 * moved])
    assert abs(moved[0]) < 0.01


def test_questions_are_routed_to_the_worker_that_knows_their_topic() -> None:
    router = fit_routerdc(examples(), seed=1, settings=QUICK)
    assert [router.choose(f"{word} of number 99") for word in TOPICS["facts"]] == ["facts"] * 3
    assert [router.choose(f"{word} of number 99") for word in TOPICS["sums"]] == ["sums"] * 3
    assert router.choose("plus of number 1", among=["facts"]) == "facts"


def test_the_step_that_routes_the_questions_held_out_best_is_kept_and_the_later_of_two() -> None:
    features, scores = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    kept, right, wrong = Kept(features, scores), np.eye(2), np.eye(2)[::-1]
    for keys in (wrong, right, right * 2, wrong):
        kept.offer(np.eye(2), keys)
    assert kept.parameters is not None
    assert np.array_equal(kept.parameters[1], right * 2)


def test_the_same_seed_gives_the_same_router() -> None:
    asked = [f"{word} {i}" for i in range(10) for word in ("capital", "plus", "odd")]
    first, again = (fit_routerdc(examples(), seed=4, settings=QUICK) for _ in range(2))
    assert [first.choose(question) for question in asked] == [again.choose(question) for question in asked]


async def test_the_chosen_worker_answers_alone() -> None:
    router = fit_routerdc(examples(), seed=1, settings=QUICK)
    trace = await Conductor(router, Pool([Scripted("Oslo", name="facts"), Scripted("16", name="sums")])).run("7 plus 9")
    assert (trace.answer, trace.usage.calls) == ("16", 1)


def test_nothing_to_fit_on_and_a_pool_of_strangers_are_refused() -> None:
    with pytest.raises(ConfigError, match=facts("RouterDC")):
        fit_routerdc([])
    router = fit_routerdc(examples(8), settings=DualContrastive(steps=1, dim=2))
    with pytest.raises(ConfigError, match=facts("facts sums")):
        router.choose("plus", among=["stranger"])
