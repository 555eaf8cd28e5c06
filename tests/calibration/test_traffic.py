"""Graded runs become rows: the returned answer is graded, its grader is recorded, and nothing else is claimed."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import fmean

import msgspec
import pytest

from dirigent.conduct import Conductor
from dirigent.errors import ConfigError
from dirigent.learn.table import Answer, Question, Table, TableWorker
from dirigent.learn.traffic import (
    LABEL,
    Label,
    contradicting_keys,
    read_labels,
    traffic_table,
    with_traffic,
    worse_workers,
)
from dirigent.limits import Limits
from dirigent.plan.plan import Plan, Reason, Step
from dirigent.plan.planner import Brief, Draft
from dirigent.planners.fixed import Fixed
from dirigent.planners.vote_counter import Counting
from dirigent.run.step_prompt import ANSWER
from dirigent.run.trace import Trace
from dirigent.store import Store
from dirigent.store.feedback import Verdict, add_feedback
from dirigent.tasks.answer_forms import same_free_answer
from dirigent.workers.metering import Metered
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted
from dirigent.workers.worker import Price, Worker
from tests.facts import says

VOTE = Plan((Step("a", ANSWER), Step("b", ANSWER), Step("c", ANSWER), Step("count", "Count.", (0, 1, 2))))


def worker(name: str, *replies: str, **card: object) -> Worker:
    return Metered(Scripted(*replies, name=name, price=Price(1.0, 2.0), **card))  # type: ignore[arg-type]


def pool(**changed: Worker) -> Pool:
    workers = {
        "a": worker("a", "The answer is 4.", fingerprint="a1"),
        "b": worker("b", "It is four, or 4. The answer is 4", fingerprint="b1"),
        "c": worker("c", "The answer is 5.", fingerprint="c1"),
    }
    return Pool([*(workers | changed).values(), Counting(same_free_answer, name="count")])


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store.open(tmp_path / "d.db") as opened:
        yield opened


async def ran(
    store: Store, plan: Plan, question: str = "What is 2 + 2?", *, key: str = "k", workers: Pool | None = None
) -> Trace:
    trace = await Conductor(Fixed(plan), workers or pool(), limits=Limits()).run(question)
    assert trace.status == "done", trace.error
    await store.save(trace, key_id=key)
    return trace


async def judged(store: Store, trace: Trace, score: float, key: str = "k") -> None:
    assert await add_feedback(store, Verdict(trace.id, key, score)) == "kept"


async def test_feedback_grades_the_returned_answer_and_equal_ones(store: Store) -> None:
    await judged(store, await ran(store, VOTE), 1.0)
    table = await traffic_table(store)
    table.check("here")
    assert [(a.worker, a.right, a.source, a.same) for a in table.answers] == [
        ("a", 1.0, "k", 0),
        ("b", 1.0, "k", 0),
        ("c", None, "", 1),  # it may be right in other words: it has no feedback
    ]
    assert [worker.name for worker in table.workers] == ["a", "b", "c"]
    assert [(q.text, q.kind, q.answer) for q in table.questions] == [("What is 2 + 2?", "traffic", "")]
    assert table.unit == "usd"
    assert all(answer.cost > 0 for answer in table.answers)
    assert all(answer.propensity is None and not answer.estimated for answer in table.answers)


async def test_a_label_grades_every_answer(store: Store) -> None:
    trace = await ran(store, VOTE)
    table = await traffic_table(store, labels={trace.id: Label(trace.id, "5")})
    assert [(a.worker, a.right, a.source) for a in table.answers] == [("a", 0, LABEL), ("b", 0, LABEL), ("c", 1, LABEL)]
    assert (table.questions[0].answer, table.questions[0].grader) == ("5", "final_number")


async def test_a_label_of_a_key_grades_every_answer_of_its_run_and_no_other(store: Store) -> None:
    mine, theirs = await ran(store, VOTE, key="k1"), await ran(store, VOTE, key="k2")
    assert await add_feedback(store, Verdict(mine.id, "k1", 0.0, label="5")) == "kept"
    await judged(store, theirs, 1.0, "k2")
    table = await traffic_table(store)
    assert [(a.worker, a.k, a.right, a.source) for a in table.answers] == [
        ("a", 0, 0.0, "k1"),
        ("b", 0, 0.0, "k1"),
        ("c", 0, 1.0, "k1"),
        ("a", 1, 1.0, "k2"),
        ("b", 1, 1.0, "k2"),
        ("c", 1, None, ""),
    ]


async def test_runs_of_one_question_are_its_samples_and_each_names_its_key(store: Store) -> None:
    for key, score in (("k1", 1.0), ("k2", 0.0)):
        await judged(store, await ran(store, Plan((Step("a", ANSWER),)), key=key), score, key)
    table = await traffic_table(store)
    assert len(table.questions) == 1
    assert [(a.worker, a.k, a.right, a.source) for a in table.answers] == [("a", 0, 1.0, "k1"), ("a", 1, 0.0, "k2")]


async def test_a_run_without_feedback_is_not_a_row(store: Store) -> None:
    await judged(store, await ran(store, VOTE, "What is 1 + 3?"), 1.0)
    await ran(store, VOTE, "What is 3 + 1?")
    assert [question.text for question in (await traffic_table(store)).questions] == ["What is 1 + 3?"]


async def test_a_part_of_the_work_is_no_answer(store: Store) -> None:
    plan = Plan((Step("c", "Name a number."), Step("a", "Use it.", (0,))))
    await judged(store, await ran(store, plan), 1.0)
    await judged(store, await ran(store, Plan((Step("b", ANSWER),))), 1.0)
    assert [answer.worker for answer in (await traffic_table(store)).answers] == ["b"]


async def test_a_second_step_names_the_results_it_read(store: Store) -> None:
    plan = Plan((Step("c", ANSWER), Step("a", "Check the answer.", (0,))))
    await judged(store, await ran(store, plan), 1.0)
    table = await traffic_table(store)
    assert [(a.worker, a.read, a.right) for a in table.answers] == [("c", (), None), ("a", (("c", 0),), 1.0)]


async def test_answers_from_before_a_worker_changed_are_left_out(store: Store) -> None:
    await judged(store, await ran(store, VOTE, "What is 0 + 4?"), 1.0)
    new = pool(a=worker("a", "The answer is 4.", fingerprint="a2"))
    await judged(store, await ran(store, VOTE, workers=new), 1.0)
    table = await traffic_table(store)
    assert [answer.worker for answer in table.answers] == ["b", "c", "a", "b", "c"]
    assert next(worker for worker in table.workers if worker.name == "a").fingerprint == "a2"


async def test_a_choice_by_lot_carries_its_chance(store: Store) -> None:
    class Exploring:
        name = "learned"

        async def draft(self, brief: Brief, **_: object) -> Draft:
            reason = Reason(why="by lot", chosen=("a",), propensity=0.05)
            return Draft(plan=Plan((Step("a", ANSWER),)), reason=reason)

    trace = await Conductor(Exploring(), pool(), limits=Limits()).run("What is 2 + 2?")
    await store.save(trace, key_id="k")
    await judged(store, trace, 0.5)
    (answer,) = (await traffic_table(store)).answers
    assert (answer.propensity, answer.right) == (0.05, 0.5)


async def test_without_feedback_there_is_no_table(store: Store) -> None:
    await ran(store, VOTE)
    with pytest.raises(ConfigError, match="/v1/feedback"):
        await traffic_table(store)


async def test_a_label_of_an_unknown_run_is_named(store: Store) -> None:
    await judged(store, await ran(store, VOTE), 1.0)
    with pytest.raises(ConfigError, match="'gone'"):
        await traffic_table(store, labels={"gone": Label("gone", "4")})


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{"trace_id": "a"}], "line 1.*answer"),
        ([{"trace_id": "a", "answer": " "}], 'line 1: "answer" is empty'),
        ([{"trace_id": "a", "answer": "1"}, {"trace_id": "a", "answer": "2"}], "line 2.*'a' has a label already"),
        ([{"trace_id": "a", "answer": "1", "grader": "nmber"}], "line 1.*grader"),
    ],
)
def test_a_faulty_label_is_named(tmp_path: Path, lines: list[dict[str, str]], words: str) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ConfigError, match=words):
        read_labels(file)


def graded(counts: dict[str, int], truth: dict[str, float], *, liar: str = "", seed: int = 1) -> Table:
    """Traffic in which each key judged this many answers of each worker; the liar reverses every grade."""
    lot = random.Random(seed)
    answers = []
    for key, count in counts.items():
        for worker_name, share in truth.items():
            for i in range(count):
                right = float(lot.random() < share)
                said = 1.0 - right if key == liar else right
                answers.append(Answer(f"{key}{i}", worker_name, right=said, source=key, cost=1.0))
    questions = dict.fromkeys(answer.question for answer in answers)
    return Table(
        workers=tuple(TableWorker(name, fingerprint="1") for name in truth),
        questions=tuple(Question(id, id) for id in questions),
        answers=tuple(answers),
    )


def best_worker(table: Table) -> str:
    mean = {
        worker.name: fmean(a.right for a in table.answers if a.worker == worker.name and a.right is not None)
        for worker in table.workers
    }
    return max(mean, key=mean.__getitem__)


BASE = Table(tuple(TableWorker(name, fingerprint="1") for name in "xy"), (), ())


@pytest.mark.parametrize("seed", range(20))
def test_a_key_that_lies_in_a_tenth_of_all_feedback_changes_no_choice(seed: int) -> None:
    honest = {f"k{i}": 40 for i in range(9)}
    truth = {"x": 0.82, "y": 0.75}
    kept = with_traffic(BASE, graded({**honest, "liar": 40}, truth, liar="liar", seed=seed))
    without = with_traffic(BASE, graded(honest, truth, seed=seed))
    assert "liar" in " ".join(kept.left_out)
    assert best_worker(kept.rows) == best_worker(without.rows)
    grades = [answer for answer in kept.rows.answers if answer.right is not None]
    assert {answer.source for answer in grades} <= set(honest)


def test_honest_keys_are_seldom_taken_for_liars() -> None:
    honest = {f"k{i}": 60 for i in range(10)}
    named = [contradicting_keys(graded(honest, {"x": 0.8, "y": 0.6}, seed=seed).answers) for seed in range(30)]
    assert sum(map(len, named)) <= 3  # of 300


def test_a_single_key_contradicts_no_other() -> None:
    assert contradicting_keys(graded({"only": 50, "other": 50}, {"x": 0.9}, liar="only").answers) == {}


def test_traffic_joins_a_table_as_far_as_its_workers_are_the_same() -> None:
    own = graded({"k": 6}, {"x": 1.0, "y": 1.0})
    changed = msgspec.structs.replace(own, workers=(TableWorker("x", fingerprint="2"), own.workers[1]))
    joined = with_traffic(BASE, own)
    assert (len(joined.table.answers), len(joined.table.questions), joined.left_out) == (12, 6, ())
    joined.table.check("here")
    other = with_traffic(BASE, changed)
    assert {answer.worker for answer in other.rows.answers} == {"y"}
    assert "x" in other.left_out[0]


def test_questions_that_not_every_worker_was_asked_support_no_order_but_count_for_cards() -> None:
    joined = with_traffic(BASE, graded({"k": 6}, {"x": 1.0}))
    assert (len(joined.table.answers), len(joined.rows.answers)) == (0, 6)
    assert says(" ".join(joined.left_out), "6 judged questions cards no order")


def calibrated_as(truth: dict[str, float]) -> Table:
    table = graded({"c": 100}, truth)
    return msgspec.structs.replace(
        table,
        questions=tuple(msgspec.structs.replace(q, id=f"c{q.id}") for q in table.questions),
        answers=tuple(msgspec.structs.replace(a, question=f"c{a.question}", source="") for a in table.answers),
    )


def test_a_worker_that_silently_got_worse_is_left_out_and_named() -> None:
    base = calibrated_as({"x": 0.9, "y": 0.8, "z": 0.7})
    joined = with_traffic(base, graded({"k": 60}, {"x": 0.25, "y": 0.8, "z": 0.7}))
    assert [worker.name for worker in joined.table.workers] == ["y", "z"]
    assert all(answer.worker != "x" for answer in joined.table.answers)
    assert says(" ".join(joined.left_out), "x calibrated again traffic")
    joined.table.check("here")


def test_harder_questions_make_no_worker_look_worse_than_the_others() -> None:
    base = calibrated_as({"x": 0.9, "y": 0.8, "z": 0.85})
    joined = with_traffic(base, graded({"k": 100}, {"x": 0.6, "y": 0.5, "z": 0.55}))
    assert [worker.name for worker in joined.table.workers] == ["x", "y", "z"]


def test_a_few_bad_answers_are_no_decline_and_one_worker_is_always_left() -> None:
    base = calibrated_as({"x": 0.9, "y": 0.8})
    assert worse_workers(base.answers, graded({"k": 10}, {"x": 0.0}).answers) == {}
    assert len(worse_workers(base.answers, graded({"k": 80}, {"x": 0.0, "y": 0.0}).answers)) <= 1


def test_traffic_in_another_unit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"usd.*seconds.*calibrate"):
        with_traffic(BASE, msgspec.structs.replace(graded({"k": 6}, {"x": 1.0}), unit="seconds"))
