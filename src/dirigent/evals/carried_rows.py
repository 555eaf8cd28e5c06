"""Fitted: a short name for exactly the questions that learned baselines were fitted on.

Whoever makes a report again can see by it whether the routers learned from the same questions. It is of the questions'
ids, texts and answers, in their order, since some methods learn in that order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from dirigent.tasks.task import Task

SHOWN = 16
"""Hexadecimal digits: 64 bits, enough to tell two sets of questions apart."""


def fitted_on(tasks: Sequence[Task]) -> str:
    """`sha256:` and the first digits."""
    text = msgspec.json.encode([(task.id, task.question, task.answer) for task in tasks])
    return f"sha256:{hashlib.sha256(text).hexdigest()[:SHOWN]}"
