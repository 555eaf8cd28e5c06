"""Equal cost: sizes worked by hand, and votes that come to cost what the conductor did on the same questions."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from dirigent.evals.evaluate import Evaluated, PlannerFor
from dirigent.evals.live import evaluate_live
from dirigent.evals.outcome import Outcome
from dirigent.evals.page import as_html
from dirigent.evals.planners import Written
from dirigent.evals.questions import Questions
from dirigent.evals.record import Record, read_outcomes
from dirigent.evals.recorded import evaluate_recorded, load_recorded
from dirigent.evals.report import Report, as_json, as_markdown, as_table
from dirigent.evals.sizing import Sizing, equal, in_lots, rounds_of, sizes_for
from dirigent.limits import Budget
from dirigent.messages import Event
from dirigent.planners.examples import SampleCost
from dirigent.pool import Pool
from dirigent.tasks import Task
from dirigent.worker import Price
from dirigent.workers.scripted import FromFunction

IDS = ["a", "b", "c", "d"]
EVEN = dict.fromkeys(IDS, 1.0)
CENT = SampleCost(0.01, 0.01)
SYNTHESIS = SampleCost(0.01, 0.02, 0.02)
"""One alone is a cent; of several, each is two with the reading, and the synthesis two more: 1, 6, 8, 10 cents."""


@pytest.mark.parametrize(
    ("cost", "money_usd", "sizes"),
    [
        (CENT, 0.08, [2, 2, 2, 2]),
        (CENT, 0.10, [3, 3, 2, 2]),
        (CENT, 0.104, [3, 3, 2, 2]),
        (CENT, 0.106, [3, 3, 3, 2]),  # half a sample over is as far as half a sample under
        (CENT, 0.02, [1, 1, 1, 1]),  # one is the least
        (CENT, -1.0, [1, 1, 1, 1]),
        (CENT, 9.0, [31, 31, 31, 31]),  # and this the most
        (SYNTHESIS, 0.14, [2, 2, 1, 1]),
        (SYNTHESIS, 0.28, [3, 3, 2, 2]),
    ],
)
def test_samples_that_cost_a_sum_together_are_n_for_all_and_one_more_for_some(
    cost: SampleCost, money_usd: float, sizes: list[int]
) -> None:
    assert list(sizes_for(IDS, cost, money_usd + 1e-12, weights=EVEN).values()) == sizes


def test_a_question_that_costs_more_takes_more_of_the_money() -> None:
    # Two samples of all are 2 * (3 + 1 + 1 + 1) cents; of the other three, the first question takes all.
    assert sizes_for(IDS, CENT, 0.15, weights={**EVEN, "a": 3.0}) == {"a": 3, "b": 2, "c": 2, "d": 2}


def test_an_eighth_is_asked_first_and_then_half_of_what_is_left() -> None:
    assert [len(ids) for ids in rounds_of([str(i) for i in range(20)])] == [3, 9, 4, 2, 1, 1]
    assert [len(ids) for ids in rounds_of([str(i) for i in range(400)])] == [50, 175, 88, 44, 22, 13, 8]
    assert list(rounds_of([])) == []
    assert [id for ids in rounds_of(IDS) for id in ids] == IDS


def test_lots_depend_on_the_seed_and_the_question_alone() -> None:
    many = [str(i) for i in range(50)]
    order = in_lots(many, 1)
    assert in_lots(many[::-1], 1) == order
    assert in_lots(many, 2) != order
    assert [id for id in order if int(id) < 25] == in_lots(many[:25], 1)


def test_costs_are_equal_within_a_twentieth_and_unknown_ones_never() -> None:
    assert equal(1.0499, 1.0)
    assert not equal(1.051, 1.0)
    assert not equal(0.949, 1.0)
    assert not any((equal(None, 1.0), equal(1.0, None), equal(0.0, 0.0)))


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


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("planners", [ALL, ALL[1:]])
async def test_votes_come_to_cost_what_the_conductor_did_on_the_same_questions(
    seed: int, planners: tuple[str, ...]
) -> None:
    report = await report_of(*planners, workers=pool(seed=seed))
    target_usd = report.planners["conductor"].cost_usd_per_question
    for name in ("vote", "self-moa"):
        sizing = report.sizes[name]
        assert sizing.target_usd == pytest.approx(target_usd)
        assert sizing.cost_usd == pytest.approx(report.planners[name].cost_usd_per_question)
        assert sizing.ratio == pytest.approx(1.0, abs=0.05)
        assert (sizing.worker, sizing.measure, sizing.bound, sizing.why_not) == ("strong", "conductor", "", "")
    assert report.planners["conductor"].versus_equal_cost is not None


async def test_every_form_of_a_report_says_what_the_vote_really_cost() -> None:
    report = await report_of(*ALL)
    ratio = report.sizes["vote"].ratio
    said = f"vote cost {ratio:.2f} x conductor's."
    for text in (as_table(report), as_markdown(report), as_html(report).replace("&#x27;", "'").replace("&#39;", "'")):
        assert said in text
        assert "never from a grade" in text
    assert json.loads(as_json(report))["sizes"]["vote"]["ratio"] == ratio
    assert as_markdown(msgspec.json.decode(as_json(report), type=Report)) == as_markdown(report)
    assert (
        report.notes["vote"]
        == f"strong, {report.sizes['vote'].samples:.3g} samples, {ratio:.2f} x the cost of conductor"
    )


async def test_only_whoever_cost_as_much_is_compared_at_equal_cost() -> None:
    report = await report_of(*ALL, "cheapest")
    assert report.planners["cheapest"].versus_best is not None
    assert report.planners["cheapest"].versus_equal_cost is None
    assert report.planners["best"].versus_equal_cost is None


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
async def test_of_several_tasks_each_is_sized_by_what_the_measure_cost_on_it(planners: tuple[str, ...]) -> None:
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
    assert f"On words, vote cost {words.ratio:.2f} x conductor's, which cost less than one sample does" in as_table(
        report
    )
    assert report.by_task["sums"]["conductor"].versus_equal_cost is not None
    assert report.by_task["words"]["conductor"].versus_equal_cost is None


async def test_a_task_on_which_the_measure_cost_nothing_takes_the_usual_samples_and_the_others_are_sized() -> None:
    report = await report_of_two(*ALL, words="this is no plan")
    sums, words = tasks_of(report, "vote").values()
    assert sums.ratio == pytest.approx(1.0, abs=0.05)
    assert (words.samples, words.ratio) == (5.0, None)
    assert (report.sizes["vote"].ratio, report.sizes["vote"].why_not) == (None, "conductor cost nothing (words)")
    said = as_markdown(report)
    assert f"On sums, vote cost {sums.ratio:.2f} x conductor's." in said
    assert "On words, vote was not sized by anybody's cost: conductor cost nothing." in said
    assert "never from a grade" in said


async def test_where_the_money_runs_out_in_one_task_the_next_is_not_begun() -> None:
    whole = await report_of_two("vote", "conductor")
    spent_usd = whole.fit["cost_usd"] + (whole.planners["conductor"].cost_usd or 0.0)
    half_usd = (whole.by_task["sums"]["vote"].cost_usd or 0.0) / 2
    cut = await report_of_two("vote", "conductor", budget=Budget(max_cost_usd=spent_usd + half_usd))
    assert not cut.complete
    assert 0 < cut.by_task["sums"]["vote"].n < len(TASKS)
    assert cut.by_task["words"]["vote"].n == 0
    assert cut.sizes["vote"].why_not == "it has not answered everything"
    assert cut.verdict.startswith("open")


async def test_one_task_alone_has_nothing_to_tell_by_task() -> None:
    report = await report_of(*ALL, tasks=TASKS[:8])
    assert "by_task" not in json.loads(as_json(report))["sizes"]["vote"]


ONLY = "only rows that cost as much as the vote are compared with it"


async def test_a_row_without_a_difference_at_equal_cost_is_explained_below_the_table() -> None:
    report = await report_of(*ALL, tasks=TASKS[:8])
    for text in (as_table(report), as_markdown(report), as_html(report)):
        assert " ".join(text.split()).count(ONLY) == 1
    assert ONLY not in as_table(await report_of("best", "vote:3", "conductor", tasks=TASKS[:4]))
    compared = msgspec.structs.replace(
        report, planners={name: report.planners[name] for name in ("vote", "conductor")}, by_task={}
    )
    row = msgspec.structs.replace(
        compared.planners["conductor"], versus_equal_cost=compared.planners["conductor"].versus_best
    )
    compared = msgspec.structs.replace(compared, planners={**compared.planners, "conductor": row})
    assert ONLY not in as_table(compared)


async def test_progress_is_told_of_all_the_questions_though_they_are_asked_in_rounds() -> None:
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


async def test_where_the_money_runs_out_before_the_measure_is_done_nobody_is_sized_until_it_is(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with Record.open(path, {}) as record:
        cut = await report_of(*ALL, record=record, budget=Budget(max_cost_usd=0.03))
    assert not cut.complete
    assert cut.sizes["vote"].why_not == "conductor has not answered everything"
    assert sizes_in(read_outcomes(path), "vote") == {}
    assert "vote was not sized by anybody's cost: conductor has not answered everything." in as_table(cut)
    with Record.open(path, {}, resume=True) as record:
        whole = await report_of(*ALL, record=record)
    assert whole.complete
    assert whole.sizes["vote"].ratio == pytest.approx(1.0, abs=0.05)


async def test_where_the_money_runs_out_among_the_votes_no_ratio_is_told() -> None:
    whole = await report_of("vote", "conductor")
    spent_usd = whole.fit["cost_usd"] + 1.5 * (whole.planners["conductor"].cost_usd or 0.0)
    cut = await report_of("vote", "conductor", budget=Budget(max_cost_usd=spent_usd))
    assert not cut.complete
    assert 0 < cut.planners["vote"].n < len(TASKS)
    assert (cut.sizes["vote"].ratio, cut.sizes["vote"].why_not) == (None, "it has not answered everything")


@pytest.mark.parametrize(
    ("planners", "plan", "workers", "why_not"),
    [
        (("best", "vote", "self-moa"), "", pool(), "none of conductor, conductor:2, language, moa, moa:8 takes part"),
        (ALL, "Answer. | cheap 1 | -", pool(cheap=None), "what conductor cost is unknown"),
        (ALL, "this is no plan", pool(), "conductor cost nothing"),
        (ALL, "Answer. | cheap 1 | -", pool(strong=None), "what a call of strong costs is unknown"),
        (ALL, "Answer. | cheap 1 | -", pool(strong=Price()), "a call of strong costs nothing"),
    ],
)
async def test_what_cannot_be_sized_takes_its_usual_samples_and_says_why(
    planners: tuple[str, ...], plan: str, workers: Pool, why_not: str
) -> None:
    report = await report_of(*planners, plan=plan, workers=workers, tasks=TASKS[:6])
    assert report.complete
    for name, samples in (("vote", 5), ("self-moa", 6)):
        assert (report.sizes[name].why_not, report.sizes[name].samples, report.sizes[name].ratio) == (
            why_not,
            samples,
            None,
        )
        assert f"{name} was not sized by anybody's cost: {why_not}." in as_markdown(report)
        assert report.notes[name] == f"strong, {samples} samples"
    assert all(row.versus_equal_cost is None for name, row in report.planners.items() if name != "self-moa")


async def test_a_measure_cheaper_than_one_call_makes_equality_impossible_and_the_report_says_so() -> None:
    report = await report_of(*ALL, plan="Answer. | cheap 1 | -")
    for name in ("vote", "self-moa"):
        sizing = report.sizes[name]
        assert (sizing.samples, sizing.bound) == (1.0, "least")
        assert sizing.ratio is not None
        assert sizing.ratio > 5
        said = "x conductor's, which cost less than one sample does: equal cost is impossible."
        assert f"{name} cost {sizing.ratio:.2f} {said}" in as_table(report)
    assert report.planners["conductor"].versus_equal_cost is None
    assert "equal-cost" not in report.verdict


async def test_a_measure_dearer_than_the_longest_vote_is_said_to_be() -> None:
    workers = pool(strong=Price(0.01, 0.01), cheap=Price(50.0, 50.0))
    report = await report_of("vote", "conductor", plan="Answer. | cheap 1 | -", workers=workers, tasks=TASKS[:5])
    assert (report.sizes["vote"].samples, report.sizes["vote"].bound) == (31.0, "most")
    assert "with the most samples that a plan has room for: equal cost is impossible." in as_table(report)


async def test_a_named_number_of_samples_is_nobodys_cost() -> None:
    report = await report_of("best", "vote:3", "self-moa:2", "conductor", tasks=TASKS[:4])
    assert report.sizes == {}
    assert report.planners["vote:3"].steps == 4.0


async def test_over_recorded_answers_nothing_is_called_equal_in_cost(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"q{i}",
            "question": f"What is {i} + 1?",
            "answer": str(i + 1),
            "grader": "number",
            "outputs": {m: {"text": str(i + 1), "cost_usd": 0.1} for m in ("m1", "m2", "m3")},
        }
        for i in range(20)
    ]
    file = tmp_path / "recorded.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    report = await evaluate_recorded(load_recorded(file), ["best", "vote", "escalate"])
    assert report.sizes == {}
    assert all(row.versus_equal_cost is None for row in report.planners.values())
    assert "equal cost" not in report.verdict
