"""Examples: every planner shows at least one plan, and a page of many planners stays small."""

from __future__ import annotations

from collections import Counter

import pytest

from dirigent.evals.page import as_html
from dirigent.evals.report import MOST_CHARS, MOST_EXAMPLES, Facts, examples, make_report
from dirigent.tasks import Task
from tests.evals.samples import outcome

TASKS = [Task(str(i), f"question {i}", "1", kind="sums") for i in range(4)]
BEST = [outcome("best", task.id, correct=task.id == "0") for task in TASKS]


def test_each_of_many_planners_has_an_example_and_the_page_stays_under_a_megabyte() -> None:
    names = [f"planner {i}" for i in range(MOST_EXAMPLES + 16)]
    long = [Task(str(i), "q" * 5000, "1", kind=f"kind {i}") for i in range(8)]
    found = [
        outcome(name, task.id, correct=True, workers="abcdefgh", answer="x" * 5000, kind=task.kind)
        for name in names
        for task in long
    ]
    shown = examples(found, long, names)
    assert [example.planner for example in shown] == names
    assert max(len(example.question) for example in shown) == MOST_CHARS
    facts = Facts(recipe={}, commit="", seed=1, date="", version="", tasks={}, workers="", prices={}, examples=shown)
    assert len(as_html(make_report(found, names, facts=facts, references=(), complete=True)).encode()) < 1_000_000


def test_where_there_is_room_planners_take_turns() -> None:
    found = [
        *BEST,
        *(outcome("moa", task.id, correct=task.id in ("1", "2")) for task in TASKS),
        *(outcome("knn", task.id, correct=task.id == "3") for task in TASKS),
    ]
    shown = examples(found, TASKS, ["best", "moa", "knn"])
    assert [(e.planner, e.correct) for e in shown] == [("moa", False), ("knn", False), ("moa", True), ("knn", True)]


def test_a_planner_that_never_differs_from_the_best_worker_shows_its_longest_plan() -> None:
    same = [outcome("knn", t.id, correct=t.id == "0", workers="ab" if t.id == "2" else "a") for t in TASKS]
    (shown,) = examples([*BEST, *same], TASKS, ["best", "knn"])
    assert (shown.planner, shown.question, len(shown.steps)) == ("knn", "question 2", 2)


@pytest.mark.parametrize("kind", ["gpqa", "bbh", "bbh_navigate", "GPQA-Diamond"])
def test_a_planner_without_a_plan_or_with_withheld_questions_shows_no_example(kind: str) -> None:
    secret = [Task("s", "of a set that is withheld", "A", kind=kind)]
    found = [outcome("moa", "s"), outcome("language", "0", plan=None)]
    assert examples(found, [*TASKS, *secret], ["moa", "language", "late"]) == ()


def test_no_planner_has_more_examples_than_its_gains_and_losses() -> None:
    found = [*BEST, *(outcome("moa", task.id, correct=task.id == "1") for task in TASKS)]
    assert Counter(e.planner for e in examples(found, TASKS, ["moa"])) == {"moa": 2}
