"""Examples for a report: a few questions with the plans that were written for them, right and wrong ones.

Chosen by rule, not by taste: for each planner and task, a question on which it was right and the best single worker was
not, and one the other way round, the longest plan first. A planner that never differs from it shows its longest plan,
so that every planner has at least one. Of sets whose authors ask that their questions not be put online, nothing is
shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from dirigent.evals.metrics import by_planner
from dirigent.evals.outcome import Outcome
from dirigent.tasks.task import Task

WITHHELD = ("gpqa", "bbh")
"""GPQA's and BIG-Bench Hard's authors ask that their questions not be published where models may learn them. How a
task's name begins: files of recorded answers name the parts of a set, such as `bbh_navigate`."""

MOST_CHARS = 600
MOST_EXAMPLES = 24
"""Beyond one of each planner."""
MOST_KINDS = 12
"""Where there are more, each question is nearly a kind of its own, and kinds are not shown one by one."""


class ExampleStep(msgspec.Struct, frozen=True):
    worker: str
    subtask: str
    access: tuple[int, ...] = ()


class Example(msgspec.Struct, frozen=True):
    task: str
    question: str
    planner: str
    correct: bool
    best_correct: bool
    """Whether the best single worker was right."""
    answer: str
    steps: tuple[ExampleStep, ...]
    trace_id: str = ""


def examples(
    outcomes: Sequence[Outcome], tasks: Sequence[Task], planners: Sequence[str], *, best: str = "best"
) -> tuple[Example, ...]:
    """The planners' gains and losses against the best single worker, longer plans first; at least one of each."""
    found = by_planner(outcomes)
    baseline = {o.task: o.correct for o in found.get(best, ())}
    by_id = {task.id: task for task in tasks if not task.kind.lower().startswith(WITHHELD)}
    few_kinds = len({task.kind for task in tasks}) <= MOST_KINDS
    shown: dict[tuple[str, str, bool], Example] = {}
    for planner in planners:
        planned = [o for o in found.get(planner, ()) if o.plan and o.task in by_id and planner != best]
        longest = sorted(planned, key=lambda outcome: -outcome.steps)
        differing = [o for o in longest if not baseline or baseline.get(o.task, o.correct) != o.correct]
        for outcome in differing or longest[:1]:
            task = by_id[outcome.task]
            key = (planner, task.kind if few_kinds else "", outcome.correct)
            shown.setdefault(key, _example(outcome, task, baseline))
    one_each = len({planner for planner, _, _ in shown})
    return tuple(_in_turn(list(shown.values())))[: max(MOST_EXAMPLES, one_each)]


def _in_turn(found: Sequence[Example]) -> Iterator[Example]:
    """One of each planner, then another of each, so that no planner fills the page."""
    seen: Counter[str] = Counter()
    turns: dict[int, list[Example]] = {}
    for example in found:
        turns.setdefault(seen[example.planner], []).append(example)
        seen[example.planner] += 1
    for turn in sorted(turns):
        yield from turns[turn]


def _example(outcome: Outcome, task: Task, baseline: Mapping[str, bool]) -> Example:
    assert outcome.plan is not None  # chosen for having one
    return Example(
        task=task.kind or task.id,
        question=shortened(task.question),
        planner=outcome.planner,
        correct=outcome.correct,
        best_correct=baseline.get(outcome.task, False),
        answer=shortened(outcome.answer),
        steps=tuple(ExampleStep(s.worker, shortened(s.subtask), s.access) for s in outcome.plan.steps),
        trace_id=outcome.trace_id,
    )


def shortened(text: str) -> str:
    return text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 1] + "…"
