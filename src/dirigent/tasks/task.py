"""Task: a question, its right answer and the way to grade a reply.

The question asks workers for the bare value, so grading ignores only what does not change a value: outer space, one
full stop at the end, quotes around the whole, letter case, the spacing of a list. It never searches a sentence for the
answer: a reply that mentions the right number among others is wrong.

The module does not know where tasks come from. A generator that knows the cheapest right plan of its task attaches it
as a `Sketch`; other sources attach none.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

import msgspec

from dirigent.errors import GradeError

BareGrader = Literal["word", "number", "list"]
"""For replies that are the bare value, as in the gym. A sentence around the answer is an error there."""

FreeGrader = Literal["final_number", "choice", "exact", "short", "literal", "math", "code", "score"]
"""For replies in free text. `graders.judge` extracts the final answer first."""

Grader = BareGrader | FreeGrader


class SketchStep(msgspec.Struct, frozen=True):
    """One step of the cheapest right plan, before a worker is assigned to it."""

    skill: str
    """The skill that its worker needs."""
    operation: str
    """The full name, `skill.operation`. A checking step has the name of the operation that it checks."""
    subtask: str
    access: tuple[int, ...] = ()
    key: tuple[str, ...] = ()
    """The values and parameters that the step uses."""
    gold: str = ""
    """The right reply of the step."""


class Sketch(msgspec.Struct, frozen=True):
    """The cheapest plan that answers a task, with skills in place of workers."""

    steps: tuple[SketchStep, ...]

    @property
    def skills(self) -> tuple[str, ...]:
        return tuple(step.skill for step in self.steps)

    @property
    def depth(self) -> int:
        """Returns the number of steps on its longest chain."""
        depths: list[int] = []
        for step in self.steps:
            depths.append(1 + max((depths[j] for j in step.access), default=0))
        return max(depths, default=0)


class Task(msgspec.Struct, frozen=True):
    id: str
    question: str
    answer: str
    grader: Grader = "word"
    kind: str = ""
    """The needs of the task as text: its operations in order and their shape."""
    depth: int = 1
    """Steps that must wait for one another."""
    sketch: Sketch | None = None
    tags: dict[str, str] = {}
    """How it was drawn: split, shape, whether its combination is held out, its minimal pair."""


class Grade(msgspec.Struct, frozen=True):
    correct: bool
    got: str
    """The reply in the form that was compared."""
    score: float | None = None
    """A score between 0 and 1, for answers that can be partly right."""


def grade(task: Task, text: str) -> Grade:
    """Grades a reply that must be the bare value: an answer inside a sentence is wrong."""
    if not task.answer.strip():
        raise GradeError(f"task {task.id!r} has no answer to grade against")
    if task.grader not in get_args(BareGrader):
        raise GradeError(
            f"task {task.id!r} is graded by {task.grader!r}, which is asynchronous: await graders.judge(task, text)"
        )
    got = tidy(text)
    return Grade(comparable(got, grader=task.grader) == comparable(tidy(task.answer), grader=task.grader), got)


def tidy(text: str) -> str:
    """Returns the reply without the decoration that models add to a bare value."""
    text = re.sub(r"\s+", " ", text).strip()
    text = text.removesuffix(".").rstrip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'`":
        text = text[1:-1].strip()
    return text.removesuffix(".").casefold()


def comparable(text: str, *, grader: Grader) -> tuple[str, ...]:
    """Returns a tidied value in the form that is compared: a list as its parts, "28.0" as "28".

    A number of more digits than any answer has is compared as text, because Python refuses to read very long ones.
    """
    if grader == "list":
        return tuple(part.strip() for part in text.strip("[]").split(","))
    if grader == "number" and re.fullmatch(r"[+-]?\d{1,1000}(\.0+)?", text):
        return (str(int(text.split(".")[0])),)
    return (text,)
