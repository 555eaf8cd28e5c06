"""Questions of the public library: the recorded sample, its translation, and the error if the library is missing."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from types import ModuleType
from typing import Any

import msgspec
import pytest
from tests.facts import facts

from dirigent.conduct import Conductor
from dirigent.errors import ConfigError
from dirigent.planners.fixed import Fixed
from dirigent.tasks.task import grade
from dirigent_gym.questions import RL_ROSTER, compare, exact_pool, plan_for
from dirigent_gym.questions.reasoning import (
    FAMILIES,
    Entry,
    draw_entries,
    library_score,
    read_sample,
    reasoning_tasks,
    recorded_tasks,
    sketch_of_entry,
    tasks_of,
)


def arithmetic(expression: str, answer: str) -> Entry:
    return Entry("basic_arithmetic", f"Calculate {expression}.", answer, {"expression": expression})


def steps_of(expression: str) -> list[tuple[str, tuple[str, ...], tuple[int, ...], str]] | None:
    sketch = sketch_of_entry(arithmetic(expression, ""))
    return None if sketch is None else [(s.operation, s.key, s.access, s.gold) for s in sketch.steps]


def test_the_sample_names_its_source_and_has_every_family() -> None:
    sample, entries = read_sample()
    assert (sample.source, sample.licence) == ("reasoning-gym", "Apache-2.0")
    assert sample.version.startswith("0.1.")
    counts = Counter(entry.family for entry in entries)
    assert set(counts) == set(FAMILIES)
    assert len(FAMILIES) >= 4
    assert min(counts.values()) >= 20
    assert len({entry.question for entry in entries}) == len(entries)


async def test_specialists_that_follow_the_translation_give_the_librarys_answers() -> None:
    tasks = recorded_tasks()
    assert sum(bool(task.tags["composed"]) for task in tasks) > len(tasks) / 4
    for task in tasks:
        plan = plan_for(task, RL_ROSTER)
        assert compare(task, plan).access
        trace = await Conductor(Fixed(plan), exact_pool(RL_ROSTER)).run(task.question)
        assert grade(task, trace.answer).correct, (task.question, trace.answer)


def test_a_plain_question_keeps_the_librarys_words_and_answer_and_a_composed_one_adds_a_step() -> None:
    _, entries = read_sample()
    for entry, task in zip(entries, recorded_tasks(), strict=True):
        if task.tags["composed"]:
            assert task.question.startswith(f"{entry.question}\n")
            assert task.sketch is not None
            assert task.sketch.steps[-2].gold == entry.answer
        else:
            assert (task.question, task.answer) == (entry.question, entry.answer)


def test_the_same_seed_composes_the_same() -> None:
    assert recorded_tasks(seed=3) == recorded_tasks(seed=3)
    assert recorded_tasks(seed=3) != recorded_tasks(seed=4)


def test_an_expression_becomes_one_step_an_operator_and_brackets_make_a_fan() -> None:
    assert steps_of("57 + 12 - 9") == [
        ("numbers.plus", ("57", "12"), (), "69"),
        ("numbers.minus", ("69", "9"), (0,), "60"),
    ]
    assert steps_of("6 + 3 * 5") == [
        ("numbers.times", ("3", "5"), (), "15"),
        ("numbers.plus", ("15", "6"), (0,), "21"),
    ]
    assert steps_of("( 4 * 7 ) - ( 9 + 3 )") == [
        ("numbers.times", ("4", "7"), (), "28"),
        ("numbers.plus", ("9", "3"), (), "12"),
        ("numbers.difference", ("28", "12"), (0, 1), "16"),
    ]
    sums = steps_of("( 4 * 7 ) + ( 9 + 3 )")
    assert sums is not None
    assert sums[-1] == ("numbers.sum", ("28", "12"), (0, 1), "40")


@pytest.mark.parametrize(
    "expression",
    [
        "3 - 5",  # below nothing
        "-3 + 5",
        "2 - ( 3 + 4 )",  # a number less a result: no operation takes it
        "( 2 + 3 ) - ( 4 + 5 )",  # their difference has no sign
        "( 2 + 3 ) * ( 4 + 5 )",
        "50 * 50",
        "8 / 2",
        "2 + 3 + 4 + 5 + 6 + 7",  # more steps than a plan may have
    ],
)
def test_questions_that_no_specialist_can_answer_are_left_out(expression: str) -> None:
    assert steps_of(expression) is None


def test_other_bases_and_days_counted_backwards_are_left_out() -> None:
    notes = {"source_base": 7, "target_base": 2, "source_repr": "12"}
    assert sketch_of_entry(Entry("base_conversion", "", "", notes)) is None
    back = {"start_date": "2022-10-18", "offset_days": -17}
    assert sketch_of_entry(Entry("calendar_arithmetic", "", "", back)) is None
    sketch = sketch_of_entry(Entry("calendar_arithmetic", "", "", {**back, "offset_days": 17}))
    assert sketch is not None
    assert (sketch.steps[0].key, sketch.steps[0].gold) == (("17", "Tuesday"), "Friday")


def test_a_disagreement_with_the_library_is_an_error_that_shows_both() -> None:
    with pytest.raises(ConfigError, match=facts("7 Calculate 3 + 4. 8")):
        tasks_of([arithmetic("3 + 4", "8")], seed=1)
    with pytest.raises(ConfigError, match=facts("Calculate 3 - 5.")):
        tasks_of([arithmetic("3 - 5", "-2")], seed=1)


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=facts("pip install dirigent[reasoning]")):
        reasoning_tasks(5, seed=1)
    with pytest.raises(ConfigError, match=facts("dirigent[reasoning]")):
        library_score(arithmetic("3 + 4", "7"), "7")


class Library(ModuleType):
    """The library's two doors, with the recorded questions behind them."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__("reasoning_gym")
        self.sizes = sizes
        self.seeds: list[int] = []

    def create_dataset(self, family: str, *, size: int, seed: int, **settings: Any) -> list[dict[str, Any]]:
        assert settings == FAMILIES[family]
        self.seeds.append(seed)
        entries = [entry for entry in read_sample()[1] if entry.family == family][: self.sizes[family]]
        return [{**msgspec.structs.asdict(entry), "question": f"{entry.question}\n"} for entry in entries]

    def get_score_answer_fn(self, family: str) -> Any:
        return lambda answer, entry: 1.0 if answer == entry["answer"] else 0.01


def test_questions_are_drawn_in_turn_and_families_that_run_dry_are_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library({**dict.fromkeys(FAMILIES, 3), "products": 1})
    monkeypatch.setitem(sys.modules, "reasoning_gym", library)
    drawn = draw_entries(13, seed=2)
    assert [entry.family for entry in drawn[:5]] == list(FAMILIES)
    assert Counter(entry.family for entry in drawn)["products"] == 1
    assert len({entry.question for entry in drawn}) == 13
    assert len(reasoning_tasks(13, seed=2)) == 13
    with pytest.raises(ConfigError, match=facts("13 14")):
        draw_entries(14, seed=2)
    apart = sorted(set(library.seeds))
    assert min(b - a for a, b in pairwise(apart)) >= 1000
    assert library_score(drawn[0], drawn[0].answer) == 1.0
    assert library_score(drawn[0], "unknown") < 1.0


def test_no_questions_is_no_number_of_questions() -> None:
    with pytest.raises(ConfigError, match=facts("1 0")):
        draw_entries(0, seed=1)
