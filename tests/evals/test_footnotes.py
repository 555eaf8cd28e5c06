"""The notes beside the tables: the number of parallel questions, and the limits of rows."""

from __future__ import annotations

import html
from pathlib import Path

import msgspec
import pytest
from gym.benchmarks import results as program

from dirigent.evals.metrics import Figures, figures
from dirigent.evals.page import as_html
from dirigent.evals.questions import Questions
from dirigent.evals.report import Report, as_json, as_markdown, as_table
from dirigent.evals.tables import offered_note, planning_note, times_note, unchanged_rounds_note
from dirigent.tasks import Task
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted
from dirigent_gym.evals.carried_rows import read_report
from dirigent_gym.evals.pools import Gym, GymSettings
from dirigent_gym.evals.workers import exact_worker
from tests.evals.samples import PRICE, evaluate_live, outcome
from tests.facts import says
from tests.gym.evals.samples import evaluate_gym

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "gym.json"


async def gym_report(*planners: str, concurrency: int) -> Report:
    return await evaluate_gym(
        Gym(GymSettings(limit=6, calibration=10), exact_worker), planners, concurrency=concurrency
    )


async def live_report(*, concurrency: int) -> Report:
    tasks = [Task(str(i), f"What is {i} + 1?", str(i + 1), "final_number", kind="sums") for i in range(6)]
    pool = Pool([Scripted(f"The answer is {i}.", name=name, price=PRICE) for i, name in enumerate("ab", start=1)])
    return await evaluate_live(Questions(("sums",), tasks), ["each"], pool, concurrency=concurrency)


@pytest.mark.parametrize("concurrency", [3, 5])
async def test_a_note_on_times_names_the_number_of_parallel_questions(concurrency: int) -> None:
    for report in (
        await gym_report("right", "each", concurrency=concurrency),
        await live_report(concurrency=concurrency),
    ):
        said = times_note(report.recipe)
        assert says(said, f"{concurrency}")
        assert " ".join(as_table(report).split()).count(said) == 1
        # Under the table of all planners, under the table of workers and under the table of costs.
        assert as_markdown(report).count(said) == as_html(report).count(said) == 3
        read = msgspec.json.decode(as_json(report), type=Report)
        assert as_markdown(read) == as_markdown(report)


def test_sequential_times_differ_from_times_of_unknown_concurrency() -> None:
    assert len({times_note({"concurrency": 1}), times_note({"concurrency": 2}), times_note({})}) == 3


async def test_the_table_of_each_worker_notes_that_questions_come_with_some_of_them() -> None:
    report = await gym_report("best", "oracle", "each", concurrency=8)
    best = report.notes["best"]
    said = offered_note(report.recipe, list(report.planners), report.notes)
    markdown = as_markdown(report)
    alone = markdown.partition("## Each worker alone")[2].partition("\n## ")[0]
    assert says(said, f"3 8 {best} oracle")
    assert said in alone
    assert said in html.unescape(as_html(report))


def test_the_note_names_only_planners_that_took_part() -> None:
    recipe = {"pool_sizes": [3, 8]}
    assert "best" not in offered_note(recipe, ["knn"], {"best": "a"})
    assert "oracle" not in offered_note(recipe, ["knn"], {})
    assert offered_note({}, ["best", "oracle"], {"best": "a"}) == ""


async def test_where_every_question_is_offered_all_workers_there_is_nothing_to_say() -> None:
    report = await live_report(concurrency=2)
    assert offered_note(report.recipe, list(report.planners), report.notes) == ""


def test_the_pages_of_the_gyms_results_are_made_of_its_figures(tmp_path: Path) -> None:
    report = read_report(RESULTS)
    assert report.recipe["concurrency"] == 8
    program.write_pages(report, tmp_path / "gym.json")
    for ending in (".md", ".html"):
        made = (tmp_path / "gym").with_suffix(ending).read_text(encoding="utf-8")
        assert made == RESULTS.with_suffix(ending).read_text(encoding="utf-8")


def test_a_note_says_that_costs_leave_out_local_planning() -> None:
    assert planning_note([]) == ""
    said = planning_note({"warm-start": 1, "conductor": 2})
    assert says(said, "conductor warm-start")
    alone = planning_note(["conductor"])
    assert says(alone, "conductor")
    assert "warm-start" not in alone
    report = read_report(RESULTS)
    at_home = {*report.weights} | ({"language"} & report.planners.keys())
    for text in (as_table(report), as_markdown(report), as_html(report)):
        assert planning_note(at_home) in " ".join(text.split())


def in_rounds(planner: str, *, right: int = 3, again: int = 0, calls: int = 2) -> Figures:
    """Ten questions, some of them planned again with the very workers of the first plan."""
    return figures(
        [
            outcome(planner, str(i), correct=i < right, calls=calls, asked_before=("a",) if i < again else ())
            for i in range(10)
        ]
    )


def test_a_note_names_second_rounds_that_changed_nothing() -> None:
    one, two = in_rounds("conductor"), in_rounds("conductor:2", calls=3)
    assert says(unchanged_rounds_note({"conductor": one, "conductor:2": two}), "conductor:2")
    assert says(unchanged_rounds_note({"warm-start": one, "warm-start:3": two}), "warm-start:3")


def test_nothing_is_said_of_rounds_that_changed_something_or_are_none() -> None:
    one, two = in_rounds("conductor"), in_rounds("conductor:2", calls=3)
    # If the same worker is asked again, its shares are the same: only the count differs.
    again = in_rounds("conductor:2", again=2)
    assert (again.planned_again, again.worker_shares) == (2, one.worker_shares)
    assert unchanged_rounds_note({"conductor": one, "conductor:2": again}) == ""
    assert unchanged_rounds_note({"conductor": one, "conductor:2": in_rounds("conductor:2", right=4)}) == ""
    assert unchanged_rounds_note({"conductor:2": two}) == ""
    # Five samples are not rounds, and a planner that was not asked did not accept.
    assert unchanged_rounds_note({"vote": one, "vote:5": two, "conductor": one, "conductor:1": one}) == ""
    assert unchanged_rounds_note({"conductor": figures([]), "conductor:2": figures([])}) == ""


def test_how_many_were_planned_again_is_in_the_json_only_where_some_were() -> None:
    none, some = in_rounds("conductor:2"), in_rounds("conductor:2", again=2)
    assert b"planned_again" not in msgspec.json.encode(none)
    assert b'"planned_again":2' in msgspec.json.encode(some)
    for row in (none, some):
        assert msgspec.json.decode(msgspec.json.encode(row), type=Figures) == row


def test_a_report_from_before_they_were_counted_is_read_and_written_the_same() -> None:
    report = read_report(RESULTS)
    assert as_json(report) == RESULTS.read_bytes()
    rows = {"conductor": in_rounds("conductor"), "conductor:2": in_rounds("conductor:2", calls=3)}
    old = msgspec.json.decode(as_json(msgspec.structs.replace(report, planners=rows)), type=Report)
    for text in (as_table(old), as_markdown(old), as_html(old).replace("&#x27;", "'")):
        assert " ".join(text.split()).count(unchanged_rounds_note(rows)) == 1


async def test_a_note_below_the_pools_line_says_that_planners_get_a_part_of_it() -> None:
    lines = as_table(await gym_report("best", "oracle", "each", concurrency=8)).splitlines()
    (start,) = (i for i, line in enumerate(lines) if line.startswith("pool: "))
    assert says(lines[start + 1], "3 8")
