"""Estimate how right answers are where nobody knows: from how workers agree (Dawid and Skene, one coin per worker).

Each worker is taken to be right with a chance of its own, and wrong answers to be spread over several alternatives. The
chances and the right classes are fitted in turn. Questions with labels fix the truth and so anchor the chances. All
samples of a worker count as one vote. Roles of one model err together, which no such model sees: the result is an
estimate, and is marked as one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from dirigent.learn.table import Answer, Table

ROUNDS = 50
FIRST_GUESS = 0.7
ALTERNATIVES = 4
"""Assumed: the wrong answers among which those who err choose, at least."""
SURE = 0.02
"""No worker is estimated to be surer than this of being right or wrong."""


def with_estimates(table: Table) -> Table:
    """Returns the table with an estimate of `right` for every answer that has none and can be compared with another.

    An answer stays unknown if fewer than two votes, by two workers or two samples, were given on its question.
    """
    by_question: dict[str, list[Answer]] = defaultdict(list)
    for answer in table.answers:
        by_question[answer.question].append(answer)
    truths = {question: _labelled(answers) for question, answers in by_question.items()}
    open_questions = [
        question
        for question, answers in by_question.items()
        if truths[question] is None and sum(answer.same >= 0 for answer in answers) > 1
    ]
    chances: dict[str, float] = {worker.name: FIRST_GUESS for worker in table.workers}
    for _ in range(ROUNDS):
        believed = {question: _beliefs(by_question[question], chances) for question in open_questions}
        whole = believed | {question: truth for question, truth in truths.items() if truth is not None}
        fitted = _chances(chances, by_question, whole)
        settled = max(abs(fitted[name] - chances[name]) for name in chances) < 1e-6
        chances = fitted
        if settled:
            break
    believed = {question: _beliefs(by_question[question], chances) for question in open_questions}
    return msgspec.structs.replace(table, answers=tuple(_estimated(answer, believed) for answer in table.answers))


def _estimated(answer: Answer, believed: Mapping[str, Mapping[int, float]]) -> Answer:
    if answer.right is not None or answer.question not in believed:
        return answer
    right = believed[answer.question][answer.same] if answer.same >= 0 else 0.0
    return msgspec.structs.replace(answer, right=right, estimated=True)


def _labelled(answers: Sequence[Answer]) -> dict[int, float] | None:
    """Returns how right each class is, where grades say so; None if nothing is graded."""
    graded = [answer for answer in answers if answer.right is not None and not answer.estimated]
    if not graded:
        return None
    return {answer.same: answer.right or 0.0 for answer in graded}


def _votes(answers: Sequence[Answer]) -> dict[str, dict[int, float]]:
    """Returns each worker's vote: the share of its samples in each class."""
    samples: dict[str, list[int]] = defaultdict(list)
    for answer in answers:
        samples[answer.worker].append(answer.same)
    return {
        worker: {same: classes.count(same) / len(classes) for same in set(classes)}
        for worker, classes in samples.items()
    }


def _beliefs(answers: Sequence[Answer], chances: Mapping[str, float]) -> dict[int, float]:
    """Returns the chance of each class to be the right one; the rest of 1 is that none of them is."""
    votes = _votes(answers)
    classes = sorted({answer.same for answer in answers if answer.same >= 0})
    alternatives = max(ALTERNATIVES, len(classes))
    logs = {}
    for truth in (*classes, -1):
        logs[truth] = sum(
            share * math.log(chances[worker] if same == truth else (1 - chances[worker]) / alternatives)
            for worker, vote in votes.items()
            for same, share in vote.items()
            if same >= 0
        )
    most = max(logs.values())
    weights = {truth: math.exp(log - most) for truth, log in logs.items()}
    total = sum(weights.values())
    return {truth: weights[truth] / total for truth in classes}


def _chances(
    before: Mapping[str, float],
    by_question: Mapping[str, Sequence[Answer]],
    believed: Mapping[str, Mapping[int, float]],
) -> dict[str, float]:
    """Returns each worker's share of right votes, drawn a little towards one half."""
    right: dict[str, float] = defaultdict(float)
    votes: dict[str, int] = defaultdict(int)
    for question, beliefs in believed.items():
        for worker, vote in _votes(by_question[question]).items():
            votes[worker] += 1
            right[worker] += sum(share * beliefs.get(same, 0.0) for same, share in vote.items() if same >= 0)
    return {name: min(1 - SURE, max(SURE, (right[name] + 1) / (votes[name] + 2))) for name in before}
