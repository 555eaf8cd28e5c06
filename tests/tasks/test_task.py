"""Grading ignores differences that do not change a value, and no others."""

from __future__ import annotations

import pytest
from tests.facts import facts

from dirigent.errors import GradeError
from dirigent.tasks import Sketch, SketchStep, Task, grade


def task(answer: str, grader: str = "word") -> Task:
    return Task("t", "What is it?", answer, grader)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["Oslo", " oslo ", "OSLO.", '"Oslo"', "'Oslo.'", "`Oslo`", "Oslo\n"])
def test_a_word_is_right_in_any_case_and_wrapping(text: str) -> None:
    assert grade(task("Oslo"), text).correct


@pytest.mark.parametrize("text", ["The answer is Oslo", "Oslo or Bergen", "Osl", "", "Oslo Oslo", "."])
def test_a_word_inside_other_words_is_not_an_answer(text: str) -> None:
    assert not grade(task("Oslo"), text).correct


@pytest.mark.parametrize(("text", "right"), [("28", True), ("28.", True), ("28.0", True), ("+28", True), ("028", True)])
def test_a_number_is_compared_as_a_number(text: str, right: bool) -> None:
    assert grade(task("28", "number"), text).correct is right


@pytest.mark.parametrize("text", ["128", "2 8", "28.5", "-28", "twenty-eight", "28 letters"])
def test_another_number_is_wrong(text: str) -> None:
    assert not grade(task("28", "number"), text).correct


def test_a_binary_word_keeps_its_zeros() -> None:
    assert not grade(task("101"), "0101").correct


@pytest.mark.parametrize(("text", "right"), [("3,8", True), ("[3, 8]", True), ("3, 8.", True), ("8, 3", False)])
def test_a_list_is_compared_item_by_item(text: str, right: bool) -> None:
    assert grade(task("3, 8", "list"), text).correct is right


def test_the_grade_shows_the_texts_that_were_compared() -> None:
    assert grade(task("Oslo"), ' "Rome." ').got == "rome"


def test_a_task_without_an_answer_cannot_be_graded() -> None:
    with pytest.raises(GradeError, match=facts("'t'")):
        grade(task(" "), "Oslo")


def test_the_depth_of_a_sketch_is_its_longest_chain() -> None:
    step = SketchStep("facts", "facts.capital", "the capital of Norway")
    join = SketchStep("numbers", "numbers.sum", "the sum of both numbers", access=(0, 1))
    assert Sketch((step, step, join)).depth == 2
    assert Sketch(()).depth == 0
