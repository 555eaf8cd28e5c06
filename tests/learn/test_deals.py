"""Replays over dealt tables: states, costs, votes, and the parts left out."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from dirigent.errors import ConfigError
from dirigent.learn.deals import Judged, deal, fit_selector, judged
from dirigent.learn.orders import NEVER, best_order, clusters, replay, searchable
from dirigent.learn.policy_fit import by_plurality
from dirigent.learn.table import Answer, Question, Table, TableWorker
from tests.learn.made_tables import QUICK, two_kinds

TABLE = two_kinds(40)
DEALT = deal(TABLE, where="here")


def test_a_state_counts_the_calls_of_each_worker() -> None:
    assert DEALT.workers == ("cheap", "dear")
    assert DEALT.samples == (2, 1)
    assert len(DEALT.states) == 6
    then = DEALT.after[0, 1]
    assert DEALT.states[then].tolist() == [0, 1]
    assert DEALT.after[then, 1] == -1, "dear answered once only"


def test_every_sample_comes_first_in_some_deal() -> None:
    alone = DEALT.after[0, 0]
    seen = {tuple(DEALT.right[1, d, alone].tolist()) for d in range(DEALT.deals)}
    assert DEALT.deals == 4
    assert seen == {tuple([0.0] * DEALT.right.shape[-1])}, "cheap is wrong on riddles in every deal"


def test_a_replay_pays_for_each_call_and_stops_at_the_threshold() -> None:
    sure = Judged(np.full(DEALT.most.shape, 0.8, np.float32), DEALT.vote.astype(np.float32))
    everyone = np.zeros(len(DEALT), dtype=np.int64)
    stopped = replay(DEALT, sure, [(0, 1)], everyone, [0.7])
    assert (stopped.cost == 1).all()
    assert (stopped.stopped == 1).all()
    asked = replay(DEALT, sure, [(0, 1)], everyone, [0.9])
    assert (asked.cost == 11).all()
    assert (asked.calls == 2).all()


def test_the_best_order_asks_the_cheap_worker_for_sums_and_the_dear_one_for_riddles() -> None:
    settings = msgspec.structs.replace(QUICK.selector, trees=40)
    selector = fit_selector(DEALT, np.arange(len(DEALT)), seed=1, settings=settings)
    seen = judged(DEALT, selector)
    for kind, worker in (("sums", 0), ("riddles", 1)):
        own = np.array([i for i, one in enumerate(DEALT.kinds) if one == kind])
        part = searchable(DEALT, seen, own, np.ones(len(own)))
        assert best_order(part, price=0.01, threshold=NEVER, most_calls=3).order[0] == worker


def test_a_plan_may_ask_all_of_ten_workers_with_one_answer_each() -> None:
    names = [f"w{w}" for w in range(10)]
    answers = tuple(
        Answer(f"q{q}", name, text="1", final="1", same=int(w < q), right=float(w < q), cost=1.0)
        for q in range(4)
        for w, name in enumerate(names)
    )
    questions = tuple(Question(f"q{q}", f"Question {q}?") for q in range(4))
    dealt = deal(Table(tuple(map(TableWorker, names)), questions, answers, "units"), where="here")
    assert dealt.states.sum(1).max() == 10


def test_a_search_that_leaves_out_hopeless_beginnings_finds_the_best_of_all_orders() -> None:
    rng = np.random.default_rng(1)
    seen = Judged(rng.random(DEALT.most.shape, np.float32), rng.random(DEALT.most.shape, np.float32))
    everyone = np.zeros(len(DEALT), dtype=np.int64)
    orders = sorted({order[:n] for order in itertools.permutations((0, 0, 1)) for n in (1, 2, 3)})
    for price in (0.0, 0.01, 0.1):
        worth = [replay(DEALT, seen, [order], everyone, [0.6]) for order in orders]
        part = searchable(DEALT, seen, np.arange(len(DEALT)), np.ones(len(DEALT)))
        found = best_order(part, price=price, threshold=0.6, most_calls=3)
        assert found.utility == pytest.approx(max((w.right - price * w.cost).mean() for w in worth), abs=1e-6)


def test_a_vote_takes_the_most_common_answer() -> None:
    seen = by_plurality(DEALT)
    both = next(s for s, state in enumerate(DEALT.states.tolist()) if state == [2, 0])
    assert seen.right[0, 0, both] == 1.0
    assert seen.confidence[0, 0, both] > seen.confidence[1, 0, both], "two equal answers against two different ones"


def test_a_part_of_the_table_keeps_its_own_rows() -> None:
    part = DEALT.some(np.array([3, 0]))
    assert part.ids == (DEALT.ids[3], DEALT.ids[0])
    selector = fit_selector(DEALT, np.arange(len(DEALT)), seed=1, settings=QUICK.selector)
    whole, some = judged(DEALT, selector), judged(part, selector)
    np.testing.assert_array_equal(some.confidence, whole.confidence[[3, 0]])


def test_clusters_find_two_clouds() -> None:
    points = np.array([[0, 0], [0, 1], [9, 9], [9, 8]], dtype=np.float32)
    assert sorted(clusters(points, 2, seed=1).round(1).tolist()) == [[0.0, 0.5], [9.0, 8.5]]


def test_a_worker_that_misses_half_its_rows_takes_no_part_and_is_named() -> None:
    half = {q.id for q in TABLE.questions[:20]}
    answers = tuple(a for a in TABLE.answers if a.worker != "dear" or a.question in half)
    dealt = deal(msgspec.structs.replace(TABLE, answers=answers), where="here")
    assert dealt.workers == ("cheap",)
    assert any("dear answered 20 of 40" in sentence for sentence in dealt.left_out)


def test_questions_that_lack_an_answer_take_no_part_and_are_counted() -> None:
    answers = tuple(a for a in TABLE.answers if (a.question, a.worker) != (TABLE.questions[0].id, "dear"))
    dealt = deal(msgspec.structs.replace(TABLE, answers=answers), where="here")
    assert len(dealt) == 39
    assert any(sentence.startswith("1 questions lack") for sentence in dealt.left_out)


def test_second_steps_take_no_part_and_unknown_workers_are_named() -> None:
    table = msgspec.structs.replace(TABLE, workers=(*TABLE.workers, TableWorker("review", reads=True)))
    assert any("review" in sentence for sentence in deal(table, where="here").left_out)
    with pytest.raises(ConfigError, match="'nobody'"):
        deal(TABLE, where="here", workers=["nobody"])


def test_bare_scores_are_replayed_one_call_at_a_time() -> None:
    answers = tuple(msgspec.structs.replace(a, text="", final="", same=i % 3) for i, a in enumerate(TABLE.answers))
    dealt = deal(msgspec.structs.replace(TABLE, answers=answers), where="here")
    assert dealt.states.sum(1).max() == 1
