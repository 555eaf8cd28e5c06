"""Tasks, outcomes and pools that tests of the evaluation share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dirigent.evals.entries import Entry
from dirigent.evals.evaluate import evaluate
from dirigent.evals.live import LiveField
from dirigent.evals.questions import Questions
from dirigent.evals.record import Outcome
from dirigent.evals.recorded import RecordedField, RecordedSet, RecordedSettings
from dirigent.evals.report import Report
from dirigent.plan.plan import Plan, Step
from dirigent.planners.fixed import Single
from dirigent.tasks import Task
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import FromFunction, Scripted
from dirigent.workers.worker import Price

PRICE = Price(input=1.0, output=2.0)


def sums(n: int) -> list[Task]:
    """How much is 0 + 1? 1 + 1? ..."""
    return [Task(f"sum-{i}", f"{i} + 1", str(i + 1), grader="number") for i in range(n)]


def adder(**card: Any) -> Scripted:
    """Adds rightly."""
    return FromFunction.of_text(lambda text: str(sum(map(int, text.split(" + ")))), name="adder", price=PRICE, **card)


def pool_of(*workers: Scripted) -> Pool:
    return Pool(workers)


def single(worker: str, *, repeats: int = 1) -> Entry:
    return Entry(f"single:{worker}", lambda task, pool: Single(worker), repeats=repeats)


def outcome(planner: str, task: str, *, correct: bool = True, workers: str = "a", **fields: Any) -> Outcome:
    """An outcome whose plan asks these workers, one letter each, one after the other."""
    steps = tuple(Step(name, "do it", (i - 1,) if i else ()) for i, name in enumerate(workers))
    defaults: dict[str, Any] = {"valid": True, "plan": Plan(steps), "calls": len(workers)}
    return Outcome(planner, task, correct=correct, **{**defaults, **fields})


RUNNING = ("record", "concurrency", "budget", "commit", "date", "keep", "observe")


async def evaluate_live(questions: Questions, planners: Sequence[str], pool: Pool, **given: Any) -> Report:
    """Planners over a live pool; the options belong to the field or to the run."""
    running = {name: given.pop(name) for name in RUNNING if name in given}
    return await evaluate(LiveField(questions, pool, **given), planners, **running)


async def evaluate_recorded(
    questions: RecordedSet, planners: Sequence[str], *, settings: RecordedSettings | None = None, **running: Any
) -> Report:
    return await evaluate(RecordedField(questions, settings=settings), planners, **running)
