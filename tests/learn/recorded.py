"""Recorded answers small enough to work out by hand: `cheap` was asked twice, `dear` once.

Every question is alike: the first sample of `cheap` is right, the second wrong, `dear` is right. The selector's chance
for what it picks is 0.4 for the right sample of `cheap` alone, 0.6 for the wrong one, and 0.9 for `dear`.
"""

from __future__ import annotations

import torch

from dirigent.learn.table_plans import RecordedQuestions
from dirigent.learn.values import RecordedPool, RecordedWorker

POOL = RecordedPool(
    (RecordedWorker("cheap", 2, "a cheap one", "cheap"), RecordedWorker("dear", 1, "a dear one", "dear")),
    {"sums": "sums", "riddles": "riddles"},
    plan_token_cost=0.01,
)
CHEAP_RIGHT, CHEAP_WRONG, DEAR = 0b001, 0b010, 0b100


def recorded_questions(count: int = 1) -> RecordedQuestions:
    right, confidence, vote = torch.zeros(8), torch.zeros(8), torch.zeros(8)
    for held in range(1, 8):
        if held & DEAR:
            right[held], confidence[held], vote[held] = 1.0, 0.9, 0.5 if held & CHEAP_WRONG else 1.0
        elif held & CHEAP_WRONG:
            confidence[held] = 0.6
        else:
            right[held], confidence[held], vote[held] = 1.0, 0.4, 1.0
    return RecordedQuestions(
        ids=[f"q{i}" for i in range(count)],
        texts=[f"Add {i} and {i}" if i % 2 == 0 else f"Who am I, riddle {i}" for i in range(count)],
        families=["sums" if i % 2 == 0 else "riddles" for i in range(count)],
        splits=["dev" if i % 6 == 5 else "train" for i in range(count)],
        folds=[-1 if i % 6 == 5 else i // 2 % 2 for i in range(count)],
        right=right.repeat(count, 1),
        confidence=confidence.repeat(count, 1),
        vote=vote.repeat(count, 1),
        single=torch.tensor([1.0, 0.0, 1.0]).repeat(count, 1),
        cost=torch.tensor([10.0, 20.0, 100.0]).repeat(count, 1),
        pool=POOL,
        said=[["4", "5", "4"] for _ in range(count)],
    )
