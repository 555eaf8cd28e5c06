"""Sums for a strong worker and a cheap one, for tests of votes that cost as much as a conductor."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dirigent.evals.entries import PlannerFor
from dirigent.evals.questions import Questions
from dirigent.evals.record import Record
from dirigent.evals.report import Report
from dirigent.limits import Budget
from dirigent.messages import Event
from dirigent.planners.fixed import Written
from dirigent.tasks import Task
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import FromFunction
from dirigent.workers.worker import Price
from tests.evals.samples import evaluate_live

TASKS = [
    Task(f"q{i}", f"How much is {i} + 1?" + " Think." * (i % 7), "5", "final_number", kind="sums") for i in range(60)
]
FIT = [Task(f"fit{i}", f"How much is {i} + 2?", "5", "final_number", kind="sums") for i in range(8)]
THREE = "Think hard. | strong 0 | -\nThink again. | strong 0 | -\nAnswer. | cheap 1 | 0 1"
STRONG, CHEAP = Price(1.0, 4.0), Price(0.1, 0.4)


def pool(*, strong: Price | None = STRONG, cheap: Price | None = CHEAP, seed: int = 1) -> Pool:
    """The strong one is right, at lengths that differ from call to call; the cheap one is wrong."""
    rng = random.Random(seed)
    return Pool(
        [
            FromFunction.of_text(lambda text: "word " * rng.randint(5, 200) + "5", name="strong", price=strong),
            FromFunction.of_text(lambda text: "I do not know", name="cheap", price=cheap),
        ]
    )


def planning(text: str) -> dict[str, PlannerFor]:
    return {"conductor": lambda task, pool: Written(text, name="conductor")}


async def report_of(
    *planners: str,
    plan: str = THREE,
    workers: Pool | None = None,
    tasks: Sequence[Task] = TASKS,
    record: Record | None = None,
    budget: Budget | None = None,
    seen: list[Event] | None = None,
) -> Report:
    return await evaluate_live(
        Questions(("sums",), list(tasks), FIT),
        planners,
        workers or pool(),
        trained=planning(plan),
        record=record,
        budget=budget,
        observe=(seen if seen is not None else []).append,
    )


ALL = ("best", "vote", "self-moa", "conductor")
