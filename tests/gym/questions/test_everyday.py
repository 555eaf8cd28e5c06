"""Questions in everyday words: for training alone, right in every part, and without any wording of the test."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from tests.facts import facts

from dirigent.conduct import Conductor
from dirigent.errors import ConfigError
from dirigent.planners.fixed import Fixed
from dirigent.tasks.task import Task, grade
from dirigent_gym.questions import RL_ROSTER, compare, exact_pool, generate, plan_for, recognise
from dirigent_gym.questions.compose import Blueprint, Link
from dirigent_gym.questions.everyday import STYLE, everyday, read_everyday, twinned, write_everyday
from dirigent_gym.questions.handwritten import assert_own_words, handwritten, handwritten_plain, word_runs
from dirigent_gym.questions.phrasing import Home, templates
from dirigent_gym.questions.skills import CHECK_SKILL, PUZZLE_OPERATIONS, RL_OPERATIONS, find_operation
from dirigent_gym.questions.split import SplitRules
from dirigent_gym.questions.warmstart import gym_decompositions, right_plans

RELIABLE = [msgspec.structs.replace(specialist, noise=0.0) for specialist in RL_ROSTER]
ALL = [op.full_name for op in (*RL_OPERATIONS, *PUZZLE_OPERATIONS)]


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    drawn = generate("train", 3000, seed=3, everyday=1.0)
    return [task for task in drawn if task.tags["style"] == STYLE]


def chain(*links: tuple[str, tuple[str, ...]]) -> Blueprint:
    return Blueprint("chain", (tuple(Link(name, key) for name, key in links),))


LETTERS_TIMES = chain(
    ("facts.capital", ("Norway",)), ("letters.length", ("Oslo",)), ("numbers.times", ("4", "7")),
)  # fmt: skip


def told(blueprint: Blueprint, n: int = 300) -> dict[str, tuple[str, ...]]:
    """Questions and their subtasks."""
    found = [write_everyday(blueprint, random.Random(i)) for i in range(n)]
    return {one.question: one.subtasks for one in found if one is not None}


@pytest.mark.parametrize(
    "pattern",
    [
        r"Count .*letters .*, then multiply (by|it by|that by) 7\.",
        r"(Give|Tell) me .*capital.*, count (its|the|all its) letters(,? and|, then| and then) multiply .*7\.",
        r"How many letters .*(,)? times 7\?",
        r"[A-Z].*\? Multiply (by|it by|that by) 7\.",
        r"[A-Z].*\? Count (its|the|all its) letters .*multiply .*7\.",
    ],
)
def test_a_chain_is_worded_as_orders_in_a_row_or_with_its_last_step_as_a_suffix(pattern: str) -> None:
    assert [question for question in told(LETTERS_TIMES) if re.search(pattern, question)]


def test_the_words_that_the_question_leaves_out_are_in_the_subtasks() -> None:
    questions = told(LETTERS_TIMES)
    assert len(questions) > 150
    for first, second, third in questions.values():
        assert "Norway" in first
        assert re.search(r"letter", second)
        assert "Oslo" not in second
        assert re.search(r"\b7\b.*\b(it|that|result)\b|\b(it|that|that number|the result)\b.*\b7\b", third), third


def test_two_parts_of_one_kind_are_worded_together() -> None:
    parts = tuple((Link("facts.atomic", (name,)),) for name in ("carbon", "oxygen"))
    fan = Blueprint("fan", parts, Link("numbers.sum", ("6", "8")), (Link("convert.binary", ("14",)),))
    questions = told(fan)
    assert "What's the sum of the atomic numbers of carbon and oxygen in binary?" in questions
    assert {len(subtasks) for subtasks in questions.values()} == {4}
    for subtasks in questions.values():
        assert ["carbon" in subtasks[0], "oxygen" in subtasks[1]] == [True, True]


def test_a_blueprint_without_everyday_words_stays_in_other_words() -> None:
    unlike = Blueprint(
        "fan",
        ((Link("facts.atomic", ("carbon",)),), (Link("letters.length", ("Oslo",)),)),
        Link("numbers.sum", ("6", "4")),
    )
    assert told(unlike) == {}
    later_list = chain(("letters.length", ("Oslo",)), ("lists.item", ("4", "5, 13, 21, 2")), ("roman.write", ("2",)))
    assert all("put" not in question.casefold() for question in told(later_list))


def test_a_twin_asks_the_same_of_another_value_of_its_split() -> None:
    rules, operation = SplitRules("train"), find_operation("facts.atomic")
    unlike = ((Link("facts.atomic", ("carbon",)),), (Link("letters.length", ("Oslo",)),))
    fan = Blueprint("fan", unlike, Link("numbers.sum", ("6", "4")))
    found = [twin for i in range(20) if (twin := twinned(fan, random.Random(i), rules)) is not None]
    assert len({twin.branches[1] for twin in found}) > 5
    for twin in found:
        first, (second,) = twin.branches
        assert first == fan.branches[0]
        assert second.operation == "facts.atomic"
        assert second.key != ("carbon",)
        assert rules.start(operation, second.key)
        assert twin.join == Link("numbers.sum", ("6", second.gold))
    assert twinned(LETTERS_TIMES, random.Random(1), rules) is None


def test_most_training_questions_have_everyday_words(tasks: list[Task]) -> None:
    shapes = Counter(task.tags["shape"] for task in tasks)
    assert len(tasks) > 2_300
    assert shapes["fan"] >= 200
    assert shapes["check"] >= 300
    assert len({task.question for task in tasks}) == len(tasks)


def test_every_subtask_asks_for_its_operation(tasks: list[Task]) -> None:
    for task in tasks:
        for step in task.sketch.steps if task.sketch else ():
            if step.skill != CHECK_SKILL:
                assert step.operation in {reading.operation for reading in recognise(step.subtask)}, task.question


async def test_the_right_plan_carried_out_by_exact_specialists_gives_every_answer(tasks: list[Task]) -> None:
    for task in tasks[:300]:
        plan = plan_for(task, RL_ROSTER)
        trace = await Conductor(Fixed(plan), exact_pool(RELIABLE)).run(task.question)
        assert grade(task, trace.answer).correct, (task.question, trace.answer)
        assert compare(task, plan).decomposition


def test_values_and_combinations_are_those_of_training(tasks: list[Task]) -> None:
    rules, operations = SplitRules("train"), {op.full_name: op for op in (*RL_OPERATIONS, *PUZZLE_OPERATIONS)}
    for task in tasks:
        assert task.tags["combination"] == "seen"
        for step in task.sketch.steps if task.sketch else ():
            assert step.access or rules.start(operations[step.operation], step.key), task.question


def test_no_handwritten_question_shares_five_words_in_a_row_or_occurs_in_them(tasks: list[Task]) -> None:
    assert_own_words([task.question for task in handwritten()], [task.question for task in tasks])
    everything = "\n".join(task.question for task in tasks).casefold()
    assert [task.question for task in handwritten_plain() if task.question.casefold() in everything] == []


def test_no_held_out_phrase_is_given_away() -> None:
    """No three words in a row of one stand in these, but for those that plain phrases of its operation have too."""

    def runs(operation: str, home: Home) -> set[tuple[str, ...]]:
        return {run for t in templates(operation) if t.home == home for run in word_runs(t.text, run=3)}

    words = everyday()
    texts = [
        (name, text)
        for name, said in words.operations.items()
        for text in (*said.start, *said.and_, *said.suffix, *said.plural)
    ]
    texts += [(name, text) for name, found in words.of_two.items() for text in found]
    texts += [(name, text) for names, found in words.shared.items() for text in found for name in names.split()]
    for name, text in texts:
        assert not word_runs(text, run=3) & (runs(name, "test") - runs(name, "everywhere")), (name, text)


def test_they_are_a_share_of_training_where_asked_for_and_of_nothing_else() -> None:
    some = Counter(task.tags["style"] == STYLE for task in generate("train", 1000, seed=1, everyday=0.35))
    assert 0.25 <= some[True] / 1000 <= 0.4
    assert not any(task.tags["style"] == STYLE for task in generate("train", 300, seed=1))
    for split in ("dev", "test"):
        with pytest.raises(ConfigError, match=facts(f"{split}")):
            generate(split, 10, seed=1, everyday=0.1)  # type: ignore[arg-type]


def test_lessons_have_them_too() -> None:
    plain = {task.question for task in generate("train", 130, seed=5, everyday=0.5)}
    assert plain <= {lesson.question for lesson in gym_decompositions(200, seed=5, everyday=0.5)}
    assert {task.question for task in generate("train", 60, seed=5, everyday=0.5)} == {
        lesson.question for lesson in right_plans(60, seed=5, everyday=0.5)
    }


def test_every_operation_that_a_file_names_is_one(tmp_path: Path) -> None:
    head = "openers = []\nclosers = []\nleads = []\n[of_two]\n[shared]\n"
    file = tmp_path / "words.toml"
    for text, message in (
        ('[operations."facts.capitol"]\nand = ["find it"]', "words.toml facts.capitol"),
        (
            '[operations."numbers.plus"]\nand = ["add some"]',
            "numbers.plus ['k']",
        ),
        ('[operations."facts.capital"]\nplural = ["the capitals"]', "['both']"),
        ('[operations."facts.capital"]\nstarts = ["{x}"]', "words.toml starts"),
    ):
        file.write_text(head + text)
        with pytest.raises(ConfigError, match=facts(message)):
            read_everyday(file)


def test_words_for_a_join_that_no_operation_makes_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "words.toml"
    file.write_text(
        'openers = []\nclosers = []\nleads = []\n[of_two]\n"numbers.summ" = ["{pair}"]\n[shared]\n[operations]\n'
    )
    with pytest.raises(ConfigError, match=facts("numbers.summ")):
        read_everyday(file)


def test_every_operation_of_training_has_everyday_words() -> None:
    said = everyday().operations
    assert [name for name in said if name not in ALL] == []
    later = [
        op.full_name for op in RL_OPERATIONS if op.arity == 1 and op.full_name not in ("lists.item", "lists.above")
    ]
    assert [name for name in later if name not in said or not said[name].and_] == []


def test_orders_in_a_row_are_parted_where_a_reader_would_part_them(tasks: list[Task]) -> None:
    assert [task.question for task in tasks if re.search(r"  |,,|\?\?|\.\.|[?.],| ,|\band and\b", task.question)] == []
