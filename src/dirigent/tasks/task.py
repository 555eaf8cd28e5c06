"""Task: a question, its right answer and how to judge a reply against it.

Workers are told to answer with the bare value, so grading forgives only what does not change a value: outer
space, one full stop at the end, quotes around the whole, letter case, the spacing of a list. It never looks for
the answer inside a sentence: a worker that mentions the right number among others has not answered.

Knows nothing of where tasks come from. A generator that knows the cheapest right plan of its task attaches it as a
`Sketch`; other sources leave it out.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

import msgspec

from dirigent.errors import GradeError

BareGrader = Literal["word", "number", "list"]
"""For replies that are the bare value: the gym's, where a sentence around the answer is a fault."""

FreeGrader = Literal["final_number", "choice", "exact", "short", "literal", "math", "code", "score"]
"""For replies in free text, whose final answer has to be found first (`graders.judge`)."""

Grader = BareGrader | FreeGrader


class SketchStep(msgspec.Struct, frozen=True):
    """One step of the cheapest right plan, before anybody is chosen to do it."""

    skill: str
    """What its worker must be good at."""
    operation: str
    """Full name, `skill.operation`. A checking step keeps the name of the operation it checks."""
    subtask: str
    access: tuple[int, ...] = ()
    key: tuple[str, ...] = ()
    """The values and parameters it really works on."""
    gold: str = ""
    """Its right reply."""


class Sketch(msgspec.Struct, frozen=True):
    """The cheapest plan that answers a task, by skill rather than by worker."""

    steps: tuple[SketchStep, ...]

    @property
    def skills(self) -> tuple[str, ...]:
        return tuple(step.skill for step in self.steps)

    @property
    def depth(self) -> int:
        """Steps on its longest chain."""
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
    """What it takes, as text: operations in order and the shape they are in."""
    depth: int = 1
    """Steps that must wait for one another."""
    sketch: Sketch | None = None
    tags: dict[str, str] = {}
    """How it was drawn: split, shape, whether its combination is held out, its minimal pair."""


class Grade(msgspec.Struct, frozen=True):
    correct: bool
    got: str
    """The reply as it was compared."""
    score: float | None = None
    """How right, between 0 and 1, where an answer may be right in part."""


def grade(task: Task, text: str) -> Grade:
    """Judge a reply. Exact: no part of a sentence counts as an answer."""
    if not task.answer.strip():
        raise GradeError(f"task {task.id!r} has no answer to grade against")
    if task.grader not in get_args(BareGrader):
        raise GradeError(
            f"task {task.id!r} is graded by {task.grader!r}, which takes time: await graders.judge(task, text)"
        )
    got = tidy(text)
    return Grade(comparable(got, grader=task.grader) == comparable(tidy(task.answer), grader=task.grader), got)


def tidy(text: str) -> str:
    """A reply without what a model puts around a bare value."""
    text = re.sub(r"\s+", " ", text).strip()
    text = text.removesuffix(".").rstrip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'`":
        text = text[1:-1].strip()
    return text.removesuffix(".").casefold()


def comparable(text: str, *, grader: Grader) -> tuple[str, ...]:
    """What is compared of a tidied bare value: a list by its parts, a number without zeros behind the point.

    A number of more digits than any answer has is compared as it stands: Python refuses to read very long ones.
    """
    if grader == "list":
        return tuple(part.strip() for part in text.strip("[]").split(","))
    if grader == "number" and re.fullmatch(r"[+-]?\d{1,1000}(\.0+)?", text):
        return (str(int(text.split(".")[0])),)
    return (text,)
