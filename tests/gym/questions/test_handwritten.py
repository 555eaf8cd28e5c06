"""The handwritten questions: many, answered by the tables, in words that no training text has."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from tests.facts import facts

from dirigent.conduct import Conductor
from dirigent.errors import ConfigError
from dirigent.planners.fixed import Fixed
from dirigent.tasks.task import Task, grade
from dirigent_gym.questions import RL_ROSTER, compare, exact_pool, generate, plan_for, recognise, warm_start
from dirigent_gym.questions.frames import DECOYS, FANS, SEQUENCES
from dirigent_gym.questions.handwritten import (
    Line,
    assert_own_words,
    handwritten,
    handwritten_plain,
    read_questions,
    word_runs,
)
from dirigent_gym.questions.phrasing import LEADS, templates
from dirigent_gym.questions.pools import draw_pool
from dirigent_gym.questions.skills import OPERATIONS, RL_OPERATIONS, RL_SKILLS

RELIABLE = [msgspec.structs.replace(specialist, noise=0.0) for specialist in RL_ROSTER]


def line(**changes: object) -> str:
    fields = {"question": "Q?", "starts": [["facts.capital Kenya"]], "answer": "Nairobi", "style": "plain"}
    return msgspec.json.encode(fields | changes).decode()


def test_there_are_enough_of_every_depth_shape_skill_and_style() -> None:
    tasks = handwritten()
    depths, shapes = Counter(task.depth for task in tasks), Counter(task.tags["shape"] for task in tasks)
    assert len(tasks) >= 150
    assert len({task.question for task in tasks}) == len(tasks)
    assert min(depths[d] for d in (1, 2, 3)) >= 40
    assert depths[4] >= 15
    assert shapes["fan"] >= 30
    assert shapes["check"] >= 15
    assert set(Counter(task.tags["style"] for task in tasks)) == {
        "plain",
        "story",
        "reversed",
        "indirect",
        "distractor",
    }
    skills = Counter(skill for task in tasks if task.sketch for skill in set(task.sketch.skills))
    assert min(skills[skill] for skill in RL_SKILLS) >= 20
    asked = {step.operation for task in tasks if task.sketch for step in task.sketch.steps}
    assert {op.full_name for op in RL_OPERATIONS} <= asked


def test_entities_are_marked_seen_and_held_out() -> None:
    marked = Counter(task.tags["entities"] for task in handwritten())
    assert marked["seen"] >= 40
    assert marked["held_out"] >= 40
    by_question = {task.question: task.tags["entities"] for task in handwritten()}
    assert by_question["If I go shopping in Japan, how are the notes in my wallet called?"] == "seen"
    assert by_question["Parliament meets in Dakar. Whose parliament, then?"] == "held_out"
    both = "Mongolia and Jamaica compete for the longer name. How many letters has the winner?"
    assert by_question[both] == "mixed"


def test_the_plain_questions_cover_every_depth_shape_and_skill_without_repeats() -> None:
    tasks = handwritten_plain()
    depths, shapes = Counter(task.depth for task in tasks), Counter(task.tags["shape"] for task in tasks)
    assert len({task.question for task in (*tasks, *handwritten())}) == len(tasks) + len(handwritten())
    assert not {task.id for task in tasks} & {task.id for task in handwritten()}
    assert min(depths[d] for d in (1, 2, 3)) >= 30
    assert min(depths[4], shapes["check"]) >= 9
    assert shapes["fan"] >= 20
    skills = Counter(skill for task in tasks if task.sketch for skill in set(task.sketch.skills))
    assert min(skills[skill] for skill in RL_SKILLS) >= 9


async def test_the_right_plan_carried_out_by_exact_specialists_gives_every_answer() -> None:
    for task in (*handwritten(), *handwritten_plain()):
        plan = plan_for(task, RL_ROSTER)
        trace = await Conductor(Fixed(plan), exact_pool(RELIABLE)).run(task.question)
        assert grade(task, trace.answer).correct, (task.question, trace.answer)


def test_the_right_plan_is_right_within_five_steps_over_any_drawn_pool() -> None:
    for task in (*handwritten(), *handwritten_plain()):
        plan = plan_for(task, RL_ROSTER)
        assert len(plan.steps) <= 5
        found = compare(task, plan)
        assert found.decomposition
        assert found.routing
        assert found.access
        assert draw_pool(task, random.Random(1), size=6)


def test_a_handwritten_question_is_no_template_of_any_operation() -> None:
    assert [task.question for task in (*handwritten(), *handwritten_plain()) if recognise(task.question)] == []


@pytest.fixture(scope="module")
def training_texts(train: list[Task]) -> list[str]:
    tasks = [*train, *generate("train", 1_000, seed=2)]
    subtasks = [step.subtask for task in tasks if task.sketch for step in task.sketch.steps]
    lessons = [lesson.question for lesson in warm_start(1_000, seed=1)]
    patterns = [template.text for name in OPERATIONS for template in templates(name)]
    patterns += [f"{frame.opening} {frame.closing}" for frame in SEQUENCES] + [lead.text for lead in LEADS]
    patterns += [fan.text for fan in FANS] + [decoy.text for decoy in DECOYS]
    return [*(task.question for task in tasks), *subtasks, *lessons, *patterns]


def test_no_five_words_in_a_row_occur_in_any_template_or_training_text(training_texts: list[str]) -> None:
    assert_own_words([task.question for task in handwritten()], training_texts)


def test_a_question_in_the_generators_words_is_noticed(training_texts: list[str]) -> None:
    with pytest.raises(ConfigError, match=facts("how many letters are in")):
        assert_own_words(["Say, how many letters are in Lima?"], training_texts)


def test_words_in_a_row_ignore_case_and_punctuation_and_stop_at_slots() -> None:
    assert word_runs("One, two: THREE four", run=3) == {("one", "two", "three"), ("two", "three", "four")}
    assert word_runs("the sum of {x} and {y}", run=3) == {("the", "sum", "of")}
    assert word_runs("too short") == set()


def test_a_chain_a_fan_and_a_check_are_read_from_their_lines() -> None:
    chain = line(starts=[["facts.capital Kenya", "letters.length"]], then=["numbers.times 5"], answer="35")
    fan = line(
        starts=[["facts.capital Kenya", "letters.length"], ["facts.atomic neon"]], then=["numbers.sum"], answer="17"
    )
    check = line(starts=[["puzzles.anagram nkaye"]], then=["facts.capital"], answer="Nairobi")
    tasks = read_questions("\n".join([chain, fan, check]))
    assert [task.tags["shape"] for task in tasks] == ["chain", "fan", "check"]
    assert [[step.access for step in task.sketch.steps] for task in tasks if task.sketch] == [
        [(), (0,), (1,)],
        [(), (0,), (), (1, 2)],
        [(), (), (), (0, 1, 2), (3,)],
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line(answer="Mombasa"), "1 Nairobi Mombasa"),
        (line(starts=[["facts.capital Atlantis"]]), "facts.capital Atlantis"),
        (line(starts=[["facts.capitol Kenya"]]), "facts.capitol"),
        (line(starts=[["numbers.plus 3; 4"], ["numbers.plus 5; 6"]]), "starts then"),
        (line(starts=[]), "starts"),
        (line(style="sung"), "line 1: Invalid enum value 'sung'"),
        (line() + "\n{", "line 2: "),
    ],
)
def test_a_line_that_contradicts_the_tables_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=facts(message)):
        read_questions(text)


def test_lines_are_structs_that_read_back() -> None:
    assert msgspec.json.decode(line(), type=Line).starts == (("facts.capital Kenya",),)
