"""Partial rows of traffic refit the selector and judge earlier stops; exploration says what others are worth."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from dirigent.learn.selector import Row, Selector, SelectorSettings, fit
from dirigent.learn.table import Answer, Question, Table, TableWorker
from dirigent.learn.traffic import explored_shares, with_traffic, worse_workers
from dirigent.learn.traffic_fit import earlier_stops, refitted

QUICK = SelectorSettings(subsets=8, trees=30, rows=2_000, learning_rate=0.2, columns=0.5)
WORKERS = ("x", "y")


def answered(
    count: int, chances: dict[str, float], *, seed: int, prefix: str = "q", sources: tuple[str, ...] = ("",)
) -> Table:
    """Each worker answers each question; wrong answers differ from each other. A liar's grades are turned around."""
    lot = random.Random(seed)
    answers, questions = [], []
    for i in range(count):
        id, source = f"{prefix}{i}", sources[i % len(sources)]
        questions.append(Question(id, f"What is {i} plus {i + 2}?"))
        for place, (worker, chance) in enumerate(chances.items()):
            right = lot.random() < chance
            said = float(right != (source == "liar"))
            final, same = (str(2 * i + 2), 0) if right else (str(2 * i + 3 + place), place + 1)
            answers.append(Answer(id, worker, final=final, same=same, right=said, source=source, cost=1.0))
    workers = tuple(TableWorker(name, fingerprint="1") for name in WORKERS)
    return Table(workers, tuple(questions), tuple(answers))


def selector_of(table: Table) -> Selector:
    by_question = {q.id: [a for a in table.answers if a.question == q.id] for q in table.questions}
    rows = []
    for question in table.questions:
        own = by_question[question.id]
        distinct = sorted({a.same for a in own})
        rows.append(
            Row(
                question.text,
                tuple(next(a.final for a in own if a.same == same) for same in distinct),
                tuple(a.worker for a in own),
                tuple(distinct.index(a.same) for a in own),
                tuple(True for _ in own),
                right=tuple(next(a.right or 0.0 for a in own if a.same == same) for same in distinct),
            )
        )
    return fit(rows, WORKERS, settings=QUICK)


@pytest.fixture(scope="module")
def base() -> Table:
    return answered(80, {"x": 0.9, "y": 0.5}, seed=1)


def chance_of(selector: Selector, worker: str) -> float:
    """How sure the selector is of this worker against the other one."""
    row = Row("What is 5 plus 7?", ("12", "13"), WORKERS, (0, 1) if worker == "x" else (1, 0), (True, True))
    return selector.chances(row)[0]


def test_partial_rows_refit_the_selector_if_it_then_judges_unseen_traffic_better(base: Table) -> None:
    old = selector_of(base)
    live = answered(80, {"y": 0.95}, seed=2, prefix="t")  # nobody asked x; y has become much better
    joined = with_traffic(base, live)
    assert (len(joined.table.questions), len(joined.live)) == (80, 80)
    new, why = refitted(old, joined.rows, traffic=joined.live, settings=QUICK)
    assert "refitted" in why
    alone = Row("What is 5 plus 7?", ("12",), ("y",), (0,), (True,))
    assert new.chances(alone)[0] > old.chances(alone)[0] + 0.1
    assert np.array_equal(new.words, old.words)  # the policy's clusters are formed by them


def test_traffic_that_says_nothing_new_or_too_little_leaves_the_selector(base: Table) -> None:
    old = selector_of(base)
    few = with_traffic(base, answered(10, {"y": 1.0}, seed=3, prefix="t"))
    same, why = refitted(old, few.rows, traffic=few.live, settings=QUICK)
    assert same is old
    assert "10 judged questions" in why
    alike = with_traffic(base, answered(60, {"x": 0.9, "y": 0.5}, seed=4, prefix="t"))
    noise = msgspec.structs.replace(
        alike.rows,
        answers=tuple(
            msgspec.structs.replace(a, right=float(i % 2)) if a.question in alike.live else a
            for i, a in enumerate(alike.rows.answers)
        ),
    )
    assert refitted(old, noise, traffic=frozenset(), settings=QUICK)[0] is old


@pytest.mark.parametrize("seed", range(2))
def test_a_key_that_lies_in_a_tenth_of_all_feedback_changes_no_selector_and_no_stop(base: Table, seed: int) -> None:
    old = selector_of(base)
    keys = (*(f"k{i}" for i in range(9)), "liar")
    live = answered(120, {"x": 0.9, "y": 0.5}, seed=seed, prefix="t", sources=keys)
    told = with_traffic(base, live)
    assert "liar" in " ".join(told.left_out)
    honest = msgspec.structs.replace(live, answers=tuple(a for a in live.answers if a.source != "liar"))
    without = with_traffic(base, honest)
    assert told.live == without.live
    new, _ = refitted(old, told.rows, traffic=told.live, settings=QUICK)
    other, _ = refitted(old, without.rows, traffic=without.live, settings=QUICK)
    assert chance_of(new, "x") == chance_of(other, "x")
    assert chance_of(new, "y") == chance_of(other, "y")
    stops = [earlier_stops(one, rows.rows, traffic=rows.live) for one, rows in ((new, told), (other, without))]
    assert stops[0] == stops[1]


def test_an_earlier_stop_that_loses_nothing_is_found_and_one_that_loses_is_not(base: Table) -> None:
    old = selector_of(base)
    good = with_traffic(base, answered(100, {"x": 1.0, "y": 0.5}, seed=5, prefix="t"))
    cheapest = earlier_stops(old, good.rows, traffic=good.live)[0]
    assert cheapest.cost == pytest.approx(0.5)  # x alone
    assert cheapest.right >= cheapest.was - 0.01
    assert cheapest.questions == 100
    needed = answered(100, {"x": 0.3, "y": 0.9}, seed=6, prefix="t")
    second = with_traffic(base, needed)
    assert all(stop.cost > 0.6 for stop in earlier_stops(selector_of(needed), second.rows, traffic=second.live))


def test_too_few_runs_of_several_answers_judge_no_stop(base: Table) -> None:
    few = with_traffic(base, answered(20, {"x": 1.0, "y": 0.5}, seed=5, prefix="t"))
    assert earlier_stops(selector_of(base), few.rows, traffic=few.live) == []


def routed(count: int, *, explore: float, seed: int) -> tuple[list[Answer], list[Answer]]:
    """Calibrated answers, and traffic whose policy keeps worker y for hard questions, which x would fail too."""
    lot = random.Random(seed)
    chance = {("x", False): 0.95, ("x", True): 0.4, ("y", False): 0.9, ("y", True): 0.6}
    calibrated = [
        Answer(f"c{i}", w, right=float(lot.random() < chance[w, i % 2 == 0])) for i in range(400) for w in WORKERS
    ]
    live = []
    for i in range(count):
        hard = lot.random() < 0.5
        usual = "y" if hard else "x"
        asked = lot.choice(WORKERS) if lot.random() < explore else usual
        propensity = explore / 2 + (1 - explore) * (asked == usual)
        right = float(lot.random() < chance[asked, hard])
        live.append(Answer(f"t{i}", asked, right=right, propensity=propensity if explore else None))
    return calibrated, live


def test_exploration_shows_what_a_worker_is_worth_that_gets_the_hard_questions() -> None:
    found = [explored_shares(*routed(3000, explore=0.2, seed=seed)) for seed in range(6)]
    means = {worker: sum(one[worker][0] for one in found) / len(found) for worker in WORKERS}
    assert means["x"] == pytest.approx(0.675, abs=0.03)
    assert means["y"] == pytest.approx(0.75, abs=0.03)  # its own answers in traffic are right 63% of the time
    assert all(abs(one["y"][0] - 0.75) < 4 * one["y"][1] for one in found)


def test_a_worker_that_gets_the_hard_questions_is_not_said_to_have_become_worse() -> None:
    calibrated, live = routed(3000, explore=0.2, seed=1)
    assert worse_workers(calibrated, live) == {}
    blind = [msgspec.structs.replace(answer, propensity=None) for answer in live if answer.worker == "y"]
    easy = [answer for answer in live if answer.worker == "x"]
    assert explored_shares(calibrated, [*blind, *(msgspec.structs.replace(a, propensity=None) for a in easy)]) == {}


def test_traffic_without_exploration_says_that_it_supports_no_new_order(base: Table) -> None:
    live = answered(30, {"y": 0.9}, seed=2, prefix="t")
    assert "no run explored" in " ".join(with_traffic(base, live).left_out)
    chosen = tuple(msgspec.structs.replace(answer, propensity=0.1) for answer in live.answers)
    explored = with_traffic(base, msgspec.structs.replace(live, answers=chosen))
    assert "no run explored" not in " ".join(explored.left_out)
