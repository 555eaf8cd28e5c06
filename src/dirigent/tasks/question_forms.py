"""How questions of public benchmarks are put to a model, and the form that an answer must close in."""

from __future__ import annotations

from collections.abc import Sequence

ANSWER_FORMS: dict[str, str] = {
    "final_number": "End with a line of its own: The answer is N.",
    "choice": "End with a line of its own: The answer is (X).",
    "math": "Put the final answer, and nothing else, in \\boxed{}.",
    "exact": "End with a line of its own: The answer is …",
    "short": "End with a line of its own: The answer is …",
    "literal": "End with a line of its own: The answer is … (a Python literal)",
    "code": "Give the whole code in one Python block.",
}
"""How a reply must close so that a grader finds its answer, by grader. Every planner's questions end with it."""

COMPLETE_FUNCTION = "Complete this Python function:"
PASS_TEST = "It must pass this test, among others:"
FILL_STARTER = "Start from this code and keep its names:"
READ_STDIN = "Write a Python program that reads the input from stdin and prints the output."


def closing_form(question: str, grader: str) -> str:
    """A question with the form its answer must close in."""
    form = ANSWER_FORMS.get(grader, "")
    return f"{question.rstrip()}\n\n{form}" if form else question


def lettered(question: str, options: Sequence[str]) -> str:
    """A multiple-choice question with its options as lettered lines."""
    return question.strip() + "\n\n" + "\n".join(f"{chr(65 + i)}. {option}" for i, option in enumerate(options))
