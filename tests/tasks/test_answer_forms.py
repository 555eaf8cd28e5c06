"""Comparing the answers of two replies without the kind of question or the right answer."""

from __future__ import annotations

import pytest

from dirigent.errors import GradeError
from dirigent.tasks import answer_forms
from dirigent.tasks.answer_forms import same_free_answer


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("77", "Step 1: multiply.\nAnswer: 77", True),
        ("The answer is 1,000.", "1000", True),
        ("1000", "1001", False),
        ("$5", "5 dollars", True),
        ("0.5", "1/2", True),
        ("The answer is (B).", "B", True),
        ("A", "B", False),
        ("Oslo.", "oslo", True),
        ("[1, 2]", "[1,2]", True),
        ("[1, 2]", "[1, 3]", False),
        ("a long\nreply that names none", "a long\nreply that names none", False),
        ("", "", False),
        (r"The answer is \\boxed{\\frac{1}{2}}", "0.5", True),
    ],
)
async def test_replies_are_compared_by_their_answers(first: str, second: str, same: bool) -> None:
    first = first.replace("\\\\", "\\")
    assert await same_free_answer(first, second) is same
    assert await same_free_answer(second, first) is same


async def test_without_computer_algebra_mathematics_is_compared_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async def missing(gold: str, answer: str) -> bool:
        raise GradeError("math-verify is not installed")

    monkeypatch.setattr(answer_forms, "same_mathematics", missing)
    assert not await same_free_answer("x^2+1", "1+x^2")
    assert await same_free_answer("x^2 + 1", "x^2+1")
