"""The warm start teaches how plans are written and nothing about coordination."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from dirigent.errors import ConfigError
from dirigent.tasks import Task
from dirigent_gym.questions import (
    Lesson,
    fit_probe,
    generate,
    gym_decompositions,
    predict,
    probe_accuracy,
    recognise,
    right_plans,
    warm_start,
)
from dirigent_gym.questions.frames import DECOYS
from dirigent_gym.questions.skills import CHECK_SKILL, OPERATIONS
from dirigent_gym.questions.specialists import RL_ROSTER, find_specialist


@pytest.fixture(scope="module")
def lessons() -> list[Lesson]:
    return warm_start(2_000, seed=1)


def skills_of(subtask: str) -> set[str]:
    return {OPERATIONS[reading.operation].skill for reading in recognise(subtask)}


def skills_behind(lesson: Lesson, name: str) -> set[str]:
    """The skills of the worker whose card has this name."""
    (card,) = [card for card in lesson.cards if card.name == name]
    return set(card.skills)


def test_short_and_long_plans_are_shown(lessons: list[Lesson]) -> None:
    lengths = Counter(len(lesson.plan.steps) for lesson in lessons if lesson.plan.steps)
    assert set(lengths) == {1, 2, 3, 4, 5}
    assert lengths[1] + lengths[2] > len(lessons) / 2
    assert lengths[5] > len(lessons) / 40


def test_every_plan_is_valid_over_the_cards_shown(lessons: list[Lesson]) -> None:
    for lesson in lessons:
        names = {card.name for card in lesson.cards}
        for i, step in lesson.plan.numbered():
            assert step.worker in names
            assert step.subtask.strip()
            assert all(0 <= j < i for j in step.access)


def test_all_are_right_decompositions_of_warm_only_skills_and_none_is_about_the_gym(lessons: list[Lesson]) -> None:
    assert not any(skills_of(step.subtask) for lesson in lessons for step in lesson.plan.steps)
    gym = {task.question for task in generate("train", 2_000, seed=1)}
    assert not gym & {lesson.question for lesson in lessons}


def test_workers_are_uniform_over_the_pool_shown(lessons: list[Lesson]) -> None:
    positions = Counter[float]()
    for lesson in lessons:
        names = [card.name for card in lesson.cards]
        if len(names) == 4:
            positions.update(names.index(step.worker) for step in lesson.plan.steps)
    total = positions.total()
    assert all(count / total == pytest.approx(0.25, abs=0.06) for count in positions.values())


def test_a_right_worker_is_met_no_more_often_than_by_chance() -> None:
    lessons = gym_decompositions(800, seed=1)
    right, expected, variance = 0, 0.0, 0.0
    for lesson in lessons:
        for step in lesson.plan.steps:
            for skill in skills_of(step.subtask):
                chance = sum(skill in card.skills for card in lesson.cards) / len(lesson.cards)
                right += skill in skills_behind(lesson, step.worker)
                expected += chance
                variance += chance * (1 - chance)
    assert expected > 50
    assert abs(right - expected) < 4 * variance**0.5


def test_access_is_random(lessons: list[Lesson]) -> None:
    second = [lesson.plan.steps[1].access for lesson in lessons if len(lesson.plan.steps) > 1]
    assert sum(access == (0,) for access in second) / len(second) == pytest.approx(0.5, abs=0.05)


def test_some_lessons_ask_again_but_not_always_as_often(lessons: list[Lesson]) -> None:
    plans = [lesson.plan.steps for lesson in lessons if lesson.plan.steps]
    first = [Counter(step.subtask for step in steps)[steps[0].subtask] for steps in plans]
    assert {1, 2, 3, 4} == set(first)
    assert 0.05 < sum(count > 1 for count in first) / len(plans) < 0.15


def test_a_decoy_in_a_lesson_is_not_a_step(lessons: list[Lesson]) -> None:
    marks = [max(re.split(r"\{.\}", decoy.text), key=len).strip().lower() for decoy in DECOYS if decoy.home != "test"]
    decoyed = [lesson for lesson in lessons if any(mark in lesson.question.lower() for mark in marks)]
    assert len(decoyed) > len(lessons) / 20
    assert not any(mark in step.subtask.lower() for mark in marks for lesson in decoyed for step in lesson.plan.steps)


def test_second_rounds_teach_how_to_accept_and_how_to_plan_anew_but_not_when(lessons: list[Lesson]) -> None:
    seconds = [lesson for lesson in lessons if lesson.earlier]
    assert 0.05 < len(seconds) / len(lessons) < 0.11
    assert all(lesson.plan.steps for lesson in lessons if not lesson.earlier)
    for kind in (str.isdigit, "unknown".__eq__):
        accepted = [not lesson.plan.steps for lesson in seconds if kind(lesson.earlier[-1].reply)]
        assert sum(accepted) / len(accepted) == pytest.approx(0.5, abs=0.2)


def test_the_warm_start_is_the_same_for_the_same_seed() -> None:
    assert warm_start(40, seed=3) == warm_start(40, seed=3)
    assert warm_start(40, seed=3) != warm_start(40, seed=4)


def test_gym_decompositions_have_right_subtasks_and_random_workers() -> None:
    gym = {task.question for task in generate("train", 260, seed=1)}
    lessons = [lesson for lesson in gym_decompositions(400, seed=1) if lesson.question in gym]
    assert len(lessons) == 260
    assert all(recognise(step.subtask) for lesson in lessons for step in lesson.plan.steps)
    steps = [step for lesson in lessons for step in lesson.plan.steps]
    right = sum(
        bool(skills_of(step.subtask) & skills_behind(lesson, step.worker))
        for lesson in lessons
        for step in lesson.plan.steps
    )
    assert right / len(steps) < 0.2


def test_gym_decompositions_stand_between_lessons_in_the_language_of_plans() -> None:
    lessons = gym_decompositions(400, seed=1)
    assert len(lessons) == 400
    language = {lesson.question for lesson in warm_start(140, seed=1)}
    at = [i for i, lesson in enumerate(lessons) if lesson.question in language]
    assert len(at) == 140
    assert min(at) < 20
    assert max(at) > 380


def test_right_plans_are_right() -> None:
    for lesson in right_plans(200, seed=1):
        for step in lesson.plan.steps:
            assert (skills_of(step.subtask) | {CHECK_SKILL}) & skills_behind(lesson, step.worker)


def test_half_of_the_lessons_use_names_without_meaning(lessons: list[Lesson]) -> None:
    own = {specialist.name for specialist in RL_ROSTER}
    aliased = [lesson for lesson in lessons if not own & {card.name for card in lesson.cards}]
    assert len(aliased) / len(lessons) == pytest.approx(0.5, abs=0.05)
    named = [card for lesson in lessons if lesson not in aliased for card in lesson.cards]
    assert all(find_specialist(card.name).skills == card.skills for card in named)


def test_the_probe_guesses_plans_from_words_and_fails_on_swapped_order() -> None:
    train = generate("train", 2_000, seed=2)
    dev = generate("dev", 300, seed=2)
    test = generate("test", 400, seed=2)
    single = [task for task in dev if task.depth == 1]
    assert probe_accuracy(train, single) > 0.6
    swapped: dict[str, list[Task]] = {}
    for task in test:
        if task.tags.get("pair_kind") == "swap":
            swapped.setdefault(task.tags["pair"], []).append(task)
    probe = fit_probe(train)
    both = 0
    for pair in swapped.values():
        both += all(task.sketch and predict(probe, task.question) == task.sketch.skills for task in pair)
    assert both / len(swapped) < 0.3


def test_a_probe_without_tasks_is_refused() -> None:
    with pytest.raises(ConfigError):
        fit_probe([])
