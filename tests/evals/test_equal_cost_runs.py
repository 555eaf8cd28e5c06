"""Sized votes in whole evaluations: task by task, with progress, cut by the cap, killed and resumed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from dirigent.evals.costing import Sizing
from dirigent.evals.entries import Evaluated
from dirigent.evals.questions import Questions
from dirigent.evals.record import Outcome, Record, read_outcomes
from dirigent.evals.report import Report, as_json, as_markdown, as_table
from dirigent.limits import Budget
from dirigent.messages import Event
from dirigent.planners.fixed import Written
from dirigent.tasks import Task
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import FromFunction
from dirigent.workers.worker import Price
from tests.evals.samples import evaluate_live
from tests.evals.sized_samples import ALL, FIT, TASKS, THREE, planning, pool, report_of
from tests.facts import says

WORDS = [Task(f"w{i}", f"How much is {i} + 1?" + " Think." * 400, "5", "final_number", kind="words") for i in range(60)]
"""A second task, whose questions are long: a call costs about three times one of the first."""
FIVE = "Think. | strong 0 | -\n" * 4 + "Answer. | cheap 1 | 0 1 2 3"


async def report_of_two(*planners: str, words: str = FIVE, budget: Budget | None = None) -> Report:
    """The conductor has two calls of the strong one for a sum, and writes `words` for a question of the second task."""

    def plan(task: Task, pool: Pool) -> Written:
        return Written(words if task.kind == "words" else THREE, name="conductor")

    questions = Questions(("sums", "words"), [*TASKS, *WORDS], FIT)
    return await evaluate_live(questions, planners, pool(), trained={"conductor": plan}, budget=budget)


def tasks_of(report: Report, name: str) -> dict[str, Sizing]:
    found = report.sizes[name].by_task
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("planners", [ALL, ALL[1:]])
async def test_each_of_several_tasks_is_sized_by_the_measures_cost_on_it(planners: tuple[str, ...]) -> None:
    report = await report_of_two(*planners)
    for name in ("vote", "self-moa"):
        assert list(tasks_of(report, name)) == list(report.by_task) == ["sums", "words"]
        for task, sizing in tasks_of(report, name).items():
            rows = report.by_task[task]
            assert sizing.target_usd == pytest.approx(rows["conductor"].cost_usd_per_question)
            assert sizing.cost_usd == pytest.approx(rows[name].cost_usd_per_question)
            assert sizing.ratio == pytest.approx(1.0, abs=0.05)
        whole = report.sizes[name]
        assert whole.target_usd == pytest.approx(report.planners["conductor"].cost_usd_per_question)
        assert whole.ratio == pytest.approx(1.0, abs=0.05)
        assert f"On sums, {name}" not in as_table(report)
    assert all(rows["conductor"].versus_equal_cost is not None for rows in report.by_task.values())
    assert as_markdown(msgspec.json.decode(as_json(report), type=Report)) == as_markdown(report)


async def test_a_task_that_cannot_be_made_equal_is_named_and_the_others_are() -> None:
    report = await report_of_two(*ALL, words="Answer. | cheap 1 | -")
    sums, words = tasks_of(report, "vote").values()
    assert sums.ratio == pytest.approx(1.0, abs=0.05)
    assert (words.samples, words.bound) == (1.0, "least")
    assert says(as_table(report), f"words vote {words.ratio:.2f} conductor's")
    assert report.by_task["sums"]["conductor"].versus_equal_cost is not None
    assert report.by_task["words"]["conductor"].versus_equal_cost is None


async def test_a_task_on_which_the_measure_cost_nothing_takes_the_usual_samples_and_the_others_are_sized() -> None:
    report = await report_of_two(*ALL, words="this is no plan")
    sums, words = tasks_of(report, "vote").values()
    assert sums.ratio == pytest.approx(1.0, abs=0.05)
    assert (words.samples, words.ratio) == (5.0, None)
    assert (report.sizes["vote"].ratio, says(report.sizes["vote"].why_not, "conductor words")) == (None, True)
    said = as_markdown(report)
    assert says(said, f"sums vote {sums.ratio:.2f} words conductor")


async def test_where_the_money_runs_out_in_one_task_the_next_is_not_begun() -> None:
    whole = await report_of_two("vote", "conductor")
    spent_usd = whole.fit["cost_usd"] + (whole.planners["conductor"].cost_usd or 0.0)
    half_usd = (whole.by_task["sums"]["vote"].cost_usd or 0.0) / 2
    cut = await report_of_two("vote", "conductor", budget=Budget(max_cost_usd=spent_usd + half_usd))
    assert not cut.complete
    assert 0 < cut.by_task["sums"]["vote"].n < len(TASKS)
    assert cut.by_task["words"]["vote"].n == 0
    assert cut.sizes["vote"].why_not
    assert cut.verdict.startswith("open")


async def test_one_task_alone_has_nothing_to_tell_by_task() -> None:
    report = await report_of(*ALL, tasks=TASKS[:8])
    assert "by_task" not in json.loads(as_json(report))["sizes"]["vote"]


async def test_progress_counts_all_questions_though_they_are_asked_in_rounds() -> None:
    seen: list[Event] = []
    await report_of(*ALL, tasks=TASKS[:20], seen=seen)
    votes = [event for event in seen if isinstance(event, Evaluated) and event.outcome.planner == "vote"]
    assert len(votes) == 20
    assert {event.total for event in votes} == {20}


def sizes_in(outcomes: Sequence[Outcome], planner: str) -> dict[str, int]:
    return {outcome.task: outcome.steps for outcome in outcomes if outcome.planner == planner}


class Killed(Exception):
    """The process is gone."""


@pytest.mark.parametrize("after", [1, 5, 20, 59])
async def test_a_resumed_evaluation_gives_the_same_sizes_and_pays_nothing_twice(tmp_path: Path, after: int) -> None:
    def steady() -> Pool:
        """Replies whose length follows from the question, so that a second run can be compared with the first."""
        reply = lambda text: "word " * (len(text) % 90) + "5"  # noqa: E731
        return Pool(
            [
                FromFunction.of_text(reply, name=name, price=Price(1.0, 4.0 * i))
                for i, name in enumerate(("cheap", "strong"), 1)
            ]
        )

    with Record.open(tmp_path / "whole.jsonl", {}) as record:
        whole = await report_of(*ALL, workers=steady(), record=record)
    votes = itertools.count(1)

    def kill(event: Event) -> None:
        if isinstance(event, Evaluated) and event.outcome.planner == "self-moa" and next(votes) == after:
            raise Killed

    questions = Questions(("sums",), TASKS, FIT)
    path = tmp_path / "cut.jsonl"
    with Record.open(path, {}) as record, pytest.raises(Killed):
        await evaluate_live(questions, ALL, steady(), trained=planning(THREE), record=record, observe=kill)
    with Record.open(path, {}, resume=True) as record:
        resumed = await report_of(*ALL, workers=steady(), record=record)
    lines = path.read_text().splitlines()[1:]
    assert len(lines) == len({(o["planner"], o["task"]) for o in map(json.loads, lines)})
    for name in ("vote", "self-moa"):
        assert sizes_in(read_outcomes(path), name) == sizes_in(read_outcomes(tmp_path / "whole.jsonl"), name)
    assert resumed.sizes == whole.sizes


async def test_if_the_money_runs_out_before_the_measure_ends_no_vote_is_sized(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with Record.open(path, {}) as record:
        cut = await report_of(*ALL, record=record, budget=Budget(max_cost_usd=0.03))
    assert not cut.complete
    assert says(cut.sizes["vote"].why_not, "conductor")
    assert sizes_in(read_outcomes(path), "vote") == {}
    assert cut.sizes["vote"].why_not in " ".join(as_table(cut).split())
    with Record.open(path, {}, resume=True) as record:
        whole = await report_of(*ALL, record=record)
    assert whole.complete
    assert whole.sizes["vote"].ratio == pytest.approx(1.0, abs=0.05)


async def test_if_the_money_runs_out_among_the_votes_no_ratio_is_reported() -> None:
    whole = await report_of("vote", "conductor")
    spent_usd = whole.fit["cost_usd"] + 1.5 * (whole.planners["conductor"].cost_usd or 0.0)
    cut = await report_of("vote", "conductor", budget=Budget(max_cost_usd=spent_usd))
    assert not cut.complete
    assert 0 < cut.planners["vote"].n < len(TASKS)
    assert (cut.sizes["vote"].ratio, bool(cut.sizes["vote"].why_not)) == (None, True)
