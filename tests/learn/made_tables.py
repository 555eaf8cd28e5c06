"""Small tables whose best policy is known."""

from __future__ import annotations

import random

from dirigent.learn.policy_fit import PolicySettings
from dirigent.learn.selector import SelectorSettings
from dirigent.learn.table import Answer, Question, Table, TableWorker

QUICK = PolicySettings(
    folds=3,
    prices=(0.0, 0.02, 0.1, 0.4),
    selector=SelectorSettings(subsets=6, trees=15, depth=3, rows=2_000),
    most_calls=3,
)


def two_kinds(count: int, *, seed: int = 1, fingerprint: str = "f1") -> Table:
    """`cheap` is right on sums and never on riddles; `dear` on nine in ten of both, at ten times the cost."""
    rng = random.Random(seed)
    questions, answers = [], []
    for i in range(count):
        sums = i % 2 == 0
        id = f"q{seed}-{i}"
        text = (
            f"Add {i} and {i + seed} and give the sum."
            if sums
            else f"Who am I? Riddle {i}, {seed}: I walk at night alone."
        )
        questions.append(Question(id, text, kind="sums" if sums else "riddles", answer="1", grader="final_number"))
        for k in range(2):
            answers.append(_answer(id, "cheap", k, right=sums, cost=1.0))
        answers.append(_answer(id, "dear", 0, right=rng.random() < 0.9, cost=10.0))
    workers = (TableWorker("cheap", fingerprint=fingerprint), TableWorker("dear", fingerprint="f2"))
    return Table(workers, tuple(questions), tuple(answers), "units")


def _answer(id: str, worker: str, k: int, *, right: bool, cost: float) -> Answer:
    final = "1" if right else f"{2 + k}"
    return Answer(id, worker, k=k, text=final, final=final, same=0 if right else 1 + k, right=float(right), cost=cost)
