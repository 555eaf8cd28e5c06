"""Free text is graded by its final answer: tables of the ways that models end, tricky ones first."""

from __future__ import annotations

import time
from typing import get_args

import pytest
from tests.facts import facts

from dirigent.errors import GradeError
from dirigent.tasks import mathematics
from dirigent.tasks.graders import judge, same_answer
from dirigent.tasks.mathematics import same_mathematics
from dirigent.tasks.task import FreeGrader, Grader, Task, grade


def task(answer: str, grader: str) -> Task:
    return Task("t", "What is it?", answer, grader)  # type: ignore[arg-type]


async def right(answer: str, grader: str, text: str) -> bool:
    return (await judge(task(answer, grader), text)).correct


NUMBERS = [
    ("3", '{"reasoning": "2 + 1", "answer": "3"}', True),
    ("3", '```json\n{\n "reasoning": "r",\n "answer": "3"\n}\n```', True),
    ("3", '{"answer": 3}', True),
    ("3", '{"answer": 3, "confidence": 0.9}', True),
    ("3", '{"answer": "3", "confidence": 0.9}', True),
    ("6", '{"answer": "6 miles per hour"}', True),
    ("1200", '{"answer": "$1,200"}', True),
    ("1200", '{"answer": "$1,200.00"}', True),
    ("8", '{"answer": "5 + 3 = 8"}', True),
    ("8", '{"answer": "x = 8 apples (2 each)"}', True),
    ("0.5", '{"answer": "1/2"}', True),
    ("3.5", '{"answer": "3 1/2"}', True),
    ("3.5", "The answer is $3\\frac{1}{2}$.", True),
    ("-3.5", "\\boxed{-3\\dfrac{1}{2}}", True),
    ("15.5", "The answer is $3\\frac{1}{2}$.", False),
    ("0.5", "so it is \\boxed{\\frac{1}{2}}", True),
    ("50", '{"answer": "50%"}', True),
    ("-4", '{"answer": "-4"}', True),
    ("-4", '{"answer": "−4"}', True),
    ("18", "First 3 eggs, then 4.\nIt makes\n#### 18", True),
    ("1234", "#### 1,234", True),
    ("18", "She sells 9 at $2. The answer is 18.", True),
    ("18", "The answer is **18**.", True),
    ("18", "She sells 9 at $2.\nIn all she makes $18 every day.", True),
    ("28", "So it is:\n\n**Answer**: 28\n\n(It is 14 less than 42.)", True),
    ("28", "**Final answer** = 28\nThat is 14 less than 42.", True),
    ("28", "The *answer* is **28**.\nThat is 14 less than 42.", True),
    ("28", "**Answer:** 28\nThat is 14 less than 42.", True),
    ("28", "***Answer***: 28.\nThat is 14 less than 42.", True),
    ("28", "answer = 14\nanswer**=2\nfrom which it follows that it is 28", False),  # it states 14
    ("28", "answer**=2\nfrom which it follows that it is 28", True),
    ("28", "answer ** : 2\nfrom which it follows that it is 28", True),
    ("28", "An **answer**, at last: 14 and 14.\nIt makes 28", True),
    ("204", "Thus \\boxed{204}.", True),
    ("204", "\\boxed{20} is a step; in the end \\boxed{204}", True),
    ("3", '{"reasoning": "3 is the answer", "answer": "', False),
    ("3", '{"reasoning": "it is 3", "answer": ""}', False),
    ("3", '{"answer": "13"}', False),
    ("3", '{"answer": "three"}', False),
    ("3", "", False),
    ("3", "I cannot say.", False),
    ("30", '{"answer": "3"}', False),
    ("3", '{"answer": "3.0000001"}', True),
    ("3", '{"answer": "3.001"}', False),
    ("3", '{"answer": "1/0"}', False),
    ("2000000", "The answer is 2,000,001.", False),
    ("2000000", "The answer is 2,000,000.", True),
    ("2000000", "The answer is 2,000,000.5.", True),
]


@pytest.mark.parametrize(("answer", "text", "correct"), NUMBERS)
async def test_a_number_is_found_and_compared_by_value(answer: str, text: str, correct: bool) -> None:
    assert await right(answer, "final_number", text) is correct


CHOICES = [
    ("B", "B", True),
    ("B", "(B)", True),
    ("B", "b", True),
    ("B", "B.", True),
    ("B", "**B**", True),
    ("B", "B) Paris", True),
    ("B", "The answer is (B).", True),
    ("B", "The answer is B.", True),
    ("B", "The answer is: B", True),
    ("B", "The answer is **B**", True),
    ("B", "So, the correct answer is:\nB. False", True),
    ("B", "Answer: B", True),
    ("B", "answer: (B)", True),
    ("B", "It is Paris.\n**Answer**: B", True),
    ("B", "Answer: b, since A is too small", True),
    ("A", "Answer: a", True),
    ("A", "Answer: (a) Paris", True),
    ("A", "Answer: a mixture of several, so (C)", False),
    ("B", "Answer: A\nNo, wait.\nAnswer: B", True),
    ("B", '{"answer": "B"}', True),
    ("B", '{"reasoning": "the answer is (A) at first sight", "answer": "B"}', True),
    ("B", "\\boxed{B}", True),
    ("B", "\\boxed{\\text{B}}", True),
    ("B", "The answer is (B).\n\nQuestion: another one?\nThe answer is (C).", True),
    ("J", "The answer is (J)", True),
    ("B", "The correct answer is option B.", True),
    ("B", "The correct answer is option B", True),
    ("B", "The answer is Option (b).", True),
    ("B", "The answer is **option B**.", True),
    ("B", "The answer is: **Choice B**", True),
    ("B", "The answer is choice B: False", True),
    ("B", "The answer is a bit hidden, but the answer is option B.", True),
    ("B", "The answer is option B (Paris).", True),
    ("B", "The answer is option B, because A is too small.", True),
    ("B", "A is too small.\nSo the answer is option B. It is not A.\n\nI hope this helps!", True),
    ("I", "The answer is option I.", True),
    ("B", "The answer is option B.\nAnswer: B", True),
    ("B", "The answer is option A at first sight. On a second look the answer is (B).", True),
    ("B", "I don't think the answer is option A. The answer is option B.", True),
    ("(B)", "B", True),
    ("A", "The answer is a combination of several.", False),
    ("B", "Both could be right.", False),
    ("B", "A or B", False),
    ("B", "The answer is (A).", False),
    ("B", "", False),
    ("I", "The answer is I'd rather not say", False),
    ("B", "Because", False),
    ("A", "The answer is option A or B.", False),
    ("A", "The answer is option A, B or C.", False),
    ("A", "The answer is option A (or B).", False),
    ("A", "The answer is option A/B.", False),
    ("A", "The answer is option A and option B.", False),
    ("A", "The answer is options A and B.", False),
    ("A", "The answer is option A's opposite.", False),
    ("C", "The answer is option C++.", False),
    ("B", "The answer is option B?", False),
    ("I", "The answer is choice I would rather not make.", False),
    ("B", "The answer is not option B.", False),
    ("B", "I don't think that the correct answer is option B.", False),
    ("B", "It is not clear whether the answer is option B.", False),
    ("B", "If the answer is option B, then A is wrong.", False),
    ("B", "The answer is option B at first sight.", False),
    ("B", "The answer is option A. No, the answer is option B.", False),
    ("A", "The answer is option A. No, the answer is option B.", False),
    ("A", "The answer is option A.\nFinal answer: none of these", False),
    ("A", "The answer is option A.\n\\boxed{", False),
    ("A", '{"reasoning": "the answer is option A.", "answer": "none"}', False),
    ("A", "Option A: this is too small. Option B: this is too large.", False),
    ("B", "The answer is optional B.", False),
]


@pytest.mark.parametrize(("answer", "text", "correct"), CHOICES)
async def test_a_choice_is_one_letter(answer: str, text: str, correct: bool) -> None:
    assert await right(answer, "choice", text) is correct


LITERALS = [
    ("{1: None}", '{"answer": "{1: None}"}', True),
    ("[1, 2]", '{"answer": [1, 2]}', True),
    ("[1, 2]", '{"answer": "[1,2]"}', True),
    ("{'a': ['b']}", "{\"answer\": \"{'a': ['b']}\"}", True),
    ("{'a': ['b']}", '{"answer": "{\\"a\\": [\\"b\\"]}"}', True),
    ("'POO'", '{"answer": "\'POO\'"}', True),
    ("'POO'", '{"answer": "POO"}', True),
    ("'POO'", '{"answer": "\\"POO\\""}', True),
    ("'POO'", '{"answer": ""POO""}', True),
    ("''", '{"answer": ""}', True),
    ("''", '{"answer": "\'\'"}', True),
    ("'816'", '{"answer": "816"}', True),
    ("'816'", '{"answer": "\'816\'"}', True),
    ("'6,8,8'", '{"answer": "6,8,8"}', True),
    ("816", '{"answer": "816"}', True),
    ("816", '{"answer": "\'816\'"}', False),
    ("1", '{"answer": "True"}', False),
    ("1", '{"answer": "1.0"}', False),
    ("[1]", '{"answer": "[True]"}', False),
    ("(1, 2)", '{"answer": "[1, 2]"}', False),
    ("(1,)", '{"answer": "(1,)"}', True),
    ("'a\\nb'", '{"answer": "\'a\\\\nb\'"}', True),
    ("'a\\nb'", '{"answer": "\'a\\nb\'"}', True),
    ("' a '", '{"answer": "\' a \'"}', True),
    ("'a'", '{"answer": "\' a\'"}', False),
    ("False", "The answer is `False`", True),
    ("9", '{"answer": "9', False),
    ("9", "", False),
    ("[]", '{"answer": "[}"}', False),
    ("{'b': 1, 'a': 2}", "{\"answer\": \"{'a': 2, 'b': 1}\"}", True),
]


@pytest.mark.parametrize(("answer", "text", "correct"), LITERALS)
async def test_a_literal_is_equal_in_value_and_type(answer: str, text: str, correct: bool) -> None:
    assert await right(answer, "literal", text) is correct


EXACT = [
    ("No", "No", True),
    ("No", "no.", True),
    ("No", "The answer is No.", True),
    ("No", '{"answer": "No"}', True),
    ("No", "We end where we began?\nThe answer is: no", True),
    ("No", "Yes", False),
    ("No", "No or yes", False),
    ("No", "", False),
    ("No", "I think not.\nNobody knows.", False),
    ("cat dog emu", "cat, dog, emu", True),
    ("cat dog emu", "The answer is cat dog emu", True),
    ("cat dog emu", "cat\tdog  emu", True),
    ("cat dog emu", "dog cat emu", False),
    ("cat dog emu", "cat dog", False),
    ("cat dog emu", "cat dog emu fox", False),
    ("cat dog emu", "**cat dog emu**", True),
    ("cat dog emu", '{"answer": "cat dog emu"}', True),
    ("cat dog emu", '{"reasoning": "sorted", "answer": "cat, dog, emu."}', True),
    ("cat dog emu", "\\boxed{cat dog emu}", True),
    ("cat dog emu", "catdogemu", False),
    ("Yes", "Final answer: yes", True),
    ("Yes", "Final answer: **Yes**", True),
    ("Yes", '"Yes"', True),
    ("Yes", "The answer is yes.\nThe answer is no.", False),
    ("Yes", "The answer is no.\nThe answer is yes.", True),
    ("Yes", '{"answer": "Ye', False),
    (".", "I think not.\nNobody knows.", False),
]


@pytest.mark.parametrize(("answer", "text", "correct"), EXACT)
async def test_an_exact_answer_is_the_same_text(answer: str, text: str, correct: bool) -> None:
    assert await right(answer, "exact", text) is correct


MATHEMATICS = [
    ("105", "\\boxed{105}", True),
    ("\\frac{1}{2}", "\\boxed{0.5}", True),
    ("\\frac{1}{2}", '{"answer": "\\\\frac{1}{2}"}', True),
    ("\\frac{1}{2}", '{"answer": "\\frac{1}{2}"}', True),
    ("\\frac{1}{2}", '{"answer": "\\\\dfrac{1}{2}"}', True),
    ("\\frac{1}{2}", '{"answer": "1/2"}', True),
    ("\\frac{1}{2}", '{"answer": "$\\\\frac12$"}', True),
    ("2\\sqrt{2}", "\\boxed{\\sqrt{8}}", True),
    ("(x+1)^2", "\\boxed{x^2+2x+1}", True),
    ("5", "\\boxed{x = 5}", True),
    ("1000", "\\boxed{1,000}", True),
    ("10000", "\\boxed{10,\\!000}", True),
    ("\\left( 3, \\frac{\\pi}{2} \\right)", "\\boxed{(3, \\frac{\\pi}{2})}", True),
    ("\\text{Evelyn}", "\\boxed{Evelyn}", True),
    ("\\{1,2\\}", "\\boxed{\\{2, 1\\}}", True),
    ("90^\\circ", "\\boxed{90}", True),
    ("[1,2)", "\\boxed{[1, 2)}", True),
    ("[1,2)", "\\boxed{(1, 2)}", False),
    ("(3,4)", "\\boxed{(4,3)}", False),
    ("\\frac{1}{2}", "\\boxed{\\frac{2}{1}}", False),
    ("105", "\\boxed{150}", False),
    ("50000000000000000", "\\boxed{50000000000000001}", False),
    ("1267650600228229401496703205376", "\\boxed{1267650600228229401496703205376.0}", True),
    ("105", "It is 105, I think, but\nlet us see.", False),
    ("105", '{"answer": "10', False),
    ("105", "\\boxed{105", False),
    ("105", "", False),
    ("x^2", "\\boxed{x^3}", False),
    ("\\frac{\\pi}{4}", "\\boxed{0.78}", False),
]


@pytest.mark.parametrize(("answer", "text", "correct"), MATHEMATICS)
async def test_mathematics_is_compared_by_meaning(answer: str, text: str, correct: bool) -> None:
    assert await right(answer, "math", text) is correct


async def test_a_comparison_that_takes_too_long_is_killed_and_the_next_one_works() -> None:
    await same_mathematics("\\sqrt{18}", "3\\sqrt{2}")  # a child is up: only the comparison is timed
    started = time.monotonic()
    assert not await same_mathematics("10^{10^{10}}", "3^{9^{9^{9}}}", timeout_s=0.5)
    assert 0.5 <= time.monotonic() - started < 10
    assert await same_mathematics("\\sqrt{12}", "2\\sqrt{3}")


async def test_a_child_that_died_while_it_waited_makes_no_answer_wrong() -> None:
    await same_mathematics("\\sqrt{50}", "5\\sqrt{2}")
    assert mathematics._idle
    for child in mathematics._idle:
        child._process.kill()
        child._process.wait()
    assert await same_mathematics("\\sqrt{75}", "5\\sqrt{3}")


@pytest.mark.parametrize(
    ("grader", "first", "second", "same"),
    [
        ("final_number", '{"answer": "1/2"}', "The answer is 0.5.", True),
        ("final_number", "#### 3", "#### 4", False),
        ("final_number", "nothing", "nothing", False),
        ("choice", "The answer is (B)", "B", True),
        ("choice", "who knows", "who knows", False),
        ("literal", '{"answer": "[1, 2]"}', '{"answer": "[1,2]"}', True),
        ("literal", '{"answer": "816"}', '{"answer": "\'816\'"}', True),
        ("literal", '{"answer": "(1,)"}', '{"answer": "[1]"}', False),
        ("math", "\\boxed{\\frac{1}{2}}", "\\boxed{0.5}", True),
        ("math", "no end", "", False),
        ("exact", "The answer is no", "No.", True),
        ("word", " Oslo.", "oslo", True),
        ("word", "", "", False),
        ("list", "a, b", "[a,b]", True),
        ("list", "a, b", "b, a", False),
        ("list", " ", " ", False),
        ("number", "5.0", "5", True),
        ("number", "+5", "5.", True),
        ("number", "5.5", "5", False),
        ("code", "Here:\n```python\ndef f(x):\n    return x+1\n```", "def f(x):  # one more\n  return x + 1", True),
        ("code", "```\ndef f(x): return x + 1\n```", "def f(x): return 1 + x", False),
        ("code", "    return  x", "return x", True),  # the body that continues a function
        ("code", "x = '\\d'", "x =  '\\d'", True),  # an odd escape is a warning, not a difference
        ("code", "def f(:", "def f(:  \n", True),  # no program, but the same text
        ("code", "def f(:", "def F(:", False),
        ("code", "x = " + "(" * 5000, "x = 1", False),
        ("code", "# nothing", "# nothing", False),
        ("code", "", "", False),
    ],
)
async def test_two_replies_are_compared_as_they_are_graded(grader: str, first: str, second: str, same: bool) -> None:
    assert await same_answer(first, second, grader=grader) is same  # type: ignore[arg-type]


async def test_a_score_may_be_right_in_part() -> None:
    found = await judge(task("", "score"), "0.25")
    assert (found.correct, found.score) == (False, 0.25)
    assert (await judge(task("", "score"), "1.0")).correct
    with pytest.raises(GradeError, match=facts("high")):
        await judge(task("", "score"), "high")


async def test_code_is_refused_while_nothing_can_run_it_safely() -> None:
    with pytest.raises(GradeError, match=facts("'t'")):
        await judge(task("def f(): ...", "code"), "def f(): ...")
    with pytest.raises(GradeError, match=facts("score")):
        await same_answer("1", "1", grader="score")


async def test_a_task_that_cannot_be_graded_says_so() -> None:
    with pytest.raises(GradeError, match=facts("'t'")):
        await judge(task(" ", "math"), "1")
    with pytest.raises(GradeError, match=facts("'t' many")):
        await judge(task("many", "final_number"), "1")


async def test_the_gyms_graders_stay_strict_behind_the_same_door() -> None:
    assert await right("28", "number", "28.")
    assert not await right("28", "number", "The answer is 28")


@pytest.mark.parametrize("grader", get_args(FreeGrader))
def test_free_text_is_not_graded_by_the_bare_value_grader(grader: str) -> None:
    with pytest.raises(GradeError, match="await"):
        grade(task("1", grader), "1")


GOLD: dict[Grader, str] = {
    "number": "14",
    "list": "1, 2",
    "word": "oslo",
    "final_number": "14",
    "literal": "[1]",
    "choice": "B",
    "math": "14",
    "exact": "oslo",
    "short": "14 m",
}
RUNAWAY = [
    "1" * 5_000,
    "+" + "9" * 5_000 + ".0",
    "1" * 5_000 + " 1/2",
    "1 " + "9" * 400 + "/1",
    '{"answer": ' + "[" * 100_000,
    "1" * 20_000 + "x5",
    "5" + " " * 20_000 + "5",
]
"""What a small model writes that has lost its way and repeats itself until it is stopped."""


@pytest.mark.parametrize("grader", GOLD)
@pytest.mark.parametrize("text", RUNAWAY, ids=lambda text: text[:14])
async def test_a_reply_that_never_ends_is_a_wrong_answer_and_ends_no_evaluation(grader: Grader, text: str) -> None:
    started_s = time.process_time()
    assert not await right(GOLD[grader], grader, text)
    assert not await same_answer(text, GOLD[grader], grader=grader)
    assert time.process_time() - started_s < 2  # milliseconds; ten seconds where patterns look back over all digits


def test_a_number_of_any_length_is_the_same_as_itself() -> None:
    assert grade(task("1" * 5_000, "number"), "1" * 5_000).correct
    assert not grade(task("1" * 5_000, "number"), "1" * 4_999 + "2").correct
