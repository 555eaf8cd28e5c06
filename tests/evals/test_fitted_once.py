"""The trials that planners are chosen and fitted on: their limits, their cost, and their permanence."""

from __future__ import annotations

import math

import pytest

from dirigent.errors import WorkerError
from dirigent.evals.questions import Questions
from dirigent.evals.record import Outcome, Record
from dirigent.limits import Limits
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import FromFunction, Scripted
from dirigent.workers.worker import Price
from dirigent_gym.evals.pools import Gym, GymSettings
from dirigent_gym.evals.workers import exact_worker
from tests.evals.samples import evaluate_live
from tests.gym.evals.samples import evaluate_gym

PRICE = Price(input=1.0, output=1.0)


def question(i: int, part: str) -> Task:
    return Task(f"{part}-{i}", f"How much is {i} + 1? ({part})", str(i + 1), "final_number", kind="sums")


QUESTIONS = Questions(("sums",), [question(i, "test") for i in range(4)], [question(i, "fit") for i in range(12)])
RIGHT = {task.question: task.answer for task in (*QUESTIONS.tasks, *QUESTIONS.fit)}


class Kept(Record):
    """Every outcome that was paid, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.paid: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self.paid.append(outcome)
        super().add(outcome)


def answered(text: str) -> str:
    return f"The answer is {next(answer for asked, answer in RIGHT.items() if asked in text)}."


async def test_masrouter_is_not_taught_that_large_teams_are_wrong_where_plans_are_short() -> None:
    pytest.importorskip("numpy")
    record = Kept()
    pool = Pool([FromFunction.of_text(answered, name=name, price=PRICE) for name in ("a", "b")])
    await evaluate_live(QUESTIONS, ["masrouter"], pool, limits=Limits(max_steps=2), record=record)
    tried = [outcome for outcome in record.paid if outcome.planner.startswith("masrouter fit ")]
    assert max(outcome.steps for outcome in tried) == 5
    assert all(outcome.correct for outcome in tried)


async def test_a_plan_that_fitting_draws_twice_is_paid_and_reported_once() -> None:
    pytest.importorskip("numpy")
    record, names = Kept(), ["best", "masrouter"]
    pool = Pool([Scripted("The answer is 1.", name="a", price=PRICE)])  # of one worker, plans come again soon
    report = await evaluate_live(QUESTIONS, names, pool, record=record)
    assert len([o for o in record.paid if o.planner.startswith("masrouter fit ")]) < 5 * len(QUESTIONS.fit)
    assert report.fit["cost_usd"] == pytest.approx(_fit_usd(record), rel=1e-9)
    record = Kept()
    report = await evaluate_gym(Gym(GymSettings(limit=2, calibration=40), exact_worker), names, record=record)
    assert report.fit["cost_usd"] == pytest.approx(_fit_usd(record), rel=1e-9)


async def test_the_planner_chosen_during_an_outage_answers_the_resumed_test_too() -> None:
    down = True

    def strong(text: str) -> str:
        if down and "(fit)" in text:
            raise WorkerError("out of order", worker="strong", fault="overloaded")
        return answered(text)

    record = Kept()
    pool = Pool(
        [FromFunction.of_text(strong, name="strong", price=PRICE), Scripted("It is 2.", name="weak", price=PRICE)]
    )
    first = await evaluate_live(QUESTIONS, ["best"], pool, record=record)
    down = False
    again = await evaluate_live(QUESTIONS, ["best", "knn"], pool, record=record)
    assert first.notes["best"] == again.notes["best"] == "weak"
    assert first.planners["best"].accuracy == again.planners["best"].accuracy == 0.25
    assert again.planners["knn"].accuracy == 0.25


async def test_lost_runs_are_asked_again_before_a_chosen_planner_has_answered() -> None:
    record = Kept()
    lost = Outcome("single:strong", QUESTIONS.fit[0].id, error="gone", error_kind="WorkerError", kind="sums")
    record.add(lost)
    pool = Pool([FromFunction.of_text(answered, name="strong", price=PRICE)])
    await evaluate_live(QUESTIONS, ["best"], pool, record=record)
    assert record.finished("single:strong", QUESTIONS.fit[0].id) is not None


def _fit_usd(record: Kept) -> float:
    """Of the questions to fit on, and nothing else."""
    fitted = [o for o in record.paid if o.planner.startswith(("single:", "masrouter fit "))]
    return math.fsum(outcome.cost_usd for outcome in fitted)
