"""The table, the file and the verdict."""

from __future__ import annotations

import json

import msgspec
import pytest

from dirigent.evals.page import as_html
from dirigent.evals.record import Outcome
from dirigent.evals.report import Facts, Report, as_json, as_markdown, as_table, make_report
from dirigent.workers.worker import Price
from tests.evals.samples import outcome
from tests.facts import Saying, says

FACTS = Facts(
    recipe={"tasks": "sums"},
    commit="abc123",
    seed=7,
    date="2026-11-15",
    version="0.1.0",
    tasks={"name": "sums", "n": 40, "pool": "pool of 2"},
    workers="exact",
    prices={"a": Price(1.0, 2.0)},
    notes={"best": "a"},
)


def row(planner: str, right: int, *, of: int = 40, cost_usd: float = 0.01) -> list[Outcome]:
    return [outcome(planner, str(i), correct=i < right, cost_usd=cost_usd, depth=1 + i % 2) for i in range(of)]


def report_of(*rows: list[Outcome], complete: bool = True) -> Report:
    outcomes = [o for found in rows for o in found]
    planners = list(dict.fromkeys(o.planner for o in outcomes))
    return make_report(outcomes, planners, facts=FACTS, references=("oracle", "ceiling"), complete=complete)


def test_the_file_has_the_fields_that_readers_look_for() -> None:
    found = json.loads(as_json(report_of(row("best", 10), row("conductor", 30, cost_usd=0.015))))
    conductor = found["planners"]["conductor"]
    assert {"accuracy", "interval", "valid", "steps", "tokens", "cost_usd", "by_kind"} <= conductor.keys()
    assert conductor["accuracy"] == 0.75
    assert conductor["interval"][0] < 0.75 < conductor["interval"][1]
    assert conductor["cost_usd"] == pytest.approx(0.6)
    assert (found["commit"], found["seed"], found["recipe"]) == ("abc123", 7, {"tasks": "sums"})


def test_where_code_was_graded_the_walls_stand_beside_the_commit_and_else_nothing_is_said() -> None:
    walls = "bubblewrap, seccomp, control group (pids), landlock ABI 7"
    plain = report_of(row("best", 10))
    graded = msgspec.structs.replace(plain, sandbox=walls)
    for text in (as_markdown, as_html):
        assert walls in text(graded)
        assert "sandbox" not in text(plain)
    assert json.loads(as_json(graded))["sandbox"] == walls
    assert "sandbox" not in json.loads(as_json(plain))
    for report in (plain, graded):
        assert msgspec.json.decode(as_json(report), type=Report).sandbox == report.sandbox


def test_a_planner_that_wins_is_said_to_win_with_its_p_and_its_cost() -> None:
    verdict = report_of(row("best", 10), row("conductor", 30, cost_usd=0.015), row("random", 9)).verdict
    assert says(verdict, "conductor +50.0 0.001 1.5x random")
    assert verdict.index("conductor") < verdict.index("1.5x") < verdict.index("random")


def test_if_no_planner_beats_the_best_single_worker_the_verdict_says_so() -> None:
    verdict = report_of(row("best", 20), row("conductor", 21), row("vote", 20), row("oracle", 40)).verdict
    assert says(verdict, "50.0% conductor vote")
    assert "oracle" not in verdict


def test_a_planner_that_is_significantly_worse_does_not_win() -> None:
    assert says(report_of(row("best", 30), row("conductor", 5)).verdict, "75.0% conductor")


def test_references_cannot_win() -> None:
    verdict = report_of(row("best", 10), row("oracle", 40), row("ceiling", 40)).verdict
    assert says(verdict, "open: oracle +75.0 ceiling +75.0")


def test_without_the_best_single_worker_there_is_no_verdict() -> None:
    report = report_of(row("conductor", 30))
    assert report.verdict.startswith("open: ")
    assert report.planners["conductor"].versus_best is None
    cut = make_report(row("vote", 1), ["vote", "best"], facts=FACTS, references=(), complete=False)
    assert cut.verdict.startswith("open: ")


def test_while_runs_are_missing_no_planner_counts_as_failed() -> None:
    rows = (row("best", 10), row("vote", 10), row("conductor", 11))
    assert report_of(*rows, complete=False).verdict.startswith("open: ")
    won = report_of(*rows, row("moa", 30), complete=False).verdict
    assert says(won, "moa open:")
    assert not says(won, "vote")
    assert not says(won, "conductor")


def test_the_table_shows_accuracy_interval_and_whether_the_difference_counts() -> None:
    title, head, best, conductor, random, times, verdict = as_table(
        report_of(row("best", 10), row("conductor", 30), row("random", 11))
    ).splitlines()
    assert says(title, "sums 40 2 seed 7")
    columns = "planner accuracy (95%) vs best vs equal cost valid steps calls tokens cost p50 p95"
    assert " ".join(head.split()) == columns
    assert best.startswith("best  (a)")
    assert "25.0  [14.2–40.2]" in best
    assert "+50.0 *" in conductor
    assert "+2.5 ns" in random
    assert says(times, "p50 p95 mean")
    assert says(verdict, "verdict: conductor +50.0")


def test_an_incomplete_evaluation_is_marked_everywhere() -> None:
    report = report_of(row("best", 10), row("conductor", 3, of=5), complete=False)
    assert "incomplete" in as_table(report)
    assert "incomplete" in as_markdown(report)
    assert json.loads(as_json(report))["complete"] is False


def test_a_planner_that_never_came_to_its_turn_has_an_empty_row() -> None:
    report = make_report(row("best", 1), ["best", "late"], facts=FACTS, references=(), complete=False)
    assert as_table(report).splitlines()[3].split() == ["late"] + ["–"] * 10


def test_the_table_has_the_difference_at_equal_cost_the_calls_and_the_slowest_runs() -> None:
    slow = [msgspec.structs.replace(o, seconds=float(i)) for i, o in enumerate(row("conductor", 30))]
    outcomes = [*row("best", 10), *slow, *row("vote", 12)]
    names = ["best", "conductor", "vote"]
    report = make_report(outcomes, names, facts=FACTS, references=(), complete=True, equal_cost="vote")
    line = as_table(report).splitlines()[3]
    cells = "conductor 75.0 [59.8–85.8] +50.0 * +45.0 * 100.0 1.00 1.00 0 $0.400 19.5 s 37.0 s"
    assert " ".join(line.split()) == cells
    assert "| conductor | 75.0  [59.8–85.8] | +50.0 * | +45.0 * | 100.0 | 1.00 | 1.00 |" in as_markdown(report)


def test_the_table_fits_the_terminal_and_keeps_accuracy_and_the_difference_that_counts() -> None:
    report = report_of(row("best", 10), row("conductor-of-a-long-name", 30))
    for width in (120, 100, 80, 60):
        lines = as_table(report, width=width).splitlines()
        assert max(map(len, lines[1:4])) <= width
        assert "accuracy (95%)  vs best" in lines[1]
        assert ("p95" in lines[1]) == (width >= 100)
    assert Saying("60 valid tokens p50 steps p95 calls") in as_table(report, width=60).splitlines()


def test_the_markdown_has_a_histogram_of_the_steps_of_each_planner() -> None:
    steps = [outcome("conductor", str(i), workers="abc" if i < 1 else "a" * 10 if i < 2 else "a") for i in range(8)]
    none = [outcome("language", str(i), valid=False, plan=None) for i in range(8)]
    page = as_markdown(report_of(steps, none))
    assert (
        "## Steps of the valid plans, %\n\n| planner | 1 | 3 | 10 |\n| --- | --- | --- | --- |\n"
        "| conductor | 75.0 | 12.5 | 12.5 |\n| language | – | – | – |\n"
    ) in page
    assert "Mean steps" not in page
    both = make_report(steps, ["conductor"], facts=FACTS, references=(), complete=True, task_of=lambda o: f"t{o.task}")
    assert "## Steps of the valid plans, %: t0\n\n| planner | 3 |" in as_markdown(both)


def test_the_page_has_the_table_the_groups_and_the_plans() -> None:
    page = as_markdown(report_of(row("best", 10), row("conductor", 30)))
    assert "| conductor | 75.0  [59.8–85.8] | +50.0 * |" in page
    assert "## Accuracy by depth, %\n\n| planner | 1 | 2 |" in page
    assert "| conductor | 75.0 | 75.0 |" in page
    assert "## Plans" in page
    assert "`abc123`" in page
    assert (
        "## Prices, USD per million tokens\n\n| worker | input | output |\n| --- | --- | --- |\n| a | 1 | 2 |" in page
    )
    assert "Mixture-of-Agents" not in page


def test_tokens_are_compared_with_mixture_of_agents_if_both_took_part() -> None:
    moa = [msgspec.structs.replace(o, input_tokens=900, output_tokens=100) for o in row("moa", 10)]
    own = [msgspec.structs.replace(o, input_tokens=150, output_tokens=50) for o in row("conductor", 30)]
    said = "Mixture-of-Agents 1,000 5.0 200"
    assert Saying(said) in as_markdown(report_of(row("best", 10), own, moa)).splitlines()
    assert says(as_html(report_of(row("best", 10), own, moa)), said)


def of_two_tasks(*rows: list[Outcome]) -> Report:
    """Every other question is of the other task."""
    outcomes = [o for found in rows for o in found]
    planners = list(dict.fromkeys(o.planner for o in outcomes))
    return make_report(
        outcomes, planners, facts=FACTS, references=(), complete=True,
        task_of=lambda o: "even" if int(o.task) % 2 == 0 else "odd",
    )  # fmt: skip


def part(page: str, title: str) -> list[str]:
    """The lines of the Markdown under a heading."""
    return page.partition(f"## {title}\n\n")[2].partition("\n\n")[0].splitlines()


def test_the_table_has_accuracy_by_task_where_there_are_several() -> None:
    late = msgspec.structs.replace(row("late", 1)[1], correct=True)
    report = of_two_tasks(row("best", 11), row("conductor", 30), [late])
    lines = as_table(report).splitlines()
    start = lines.index("accuracy by task, %")
    assert [line.split() for line in lines[start + 1 : start + 5]] == [
        ["planner", "even", "odd"], ["best", "30.0", "25.0"], ["conductor", "75.0", "75.0"], ["late", "–", "100.0"],
    ]  # fmt: skip
    assert start == 5
    assert lines[start + 5].startswith("Times")
    one = make_report(row("best", 1), ["best"], facts=FACTS, references=(), complete=True, task_of=lambda o: "sums")
    assert "by task" not in as_table(one)
    assert "<caption>Accuracy, %</caption>" in as_html(report)
    assert "<caption>Accuracy, %</caption>" not in as_html(one)


def test_many_tasks_fit_a_narrow_terminal_and_none_is_left_out() -> None:
    rows = [*row("best", 10), *row("conductor", 30)]
    report = make_report(
        rows, ["best", "conductor"], facts=FACTS, references=(), complete=True, task_of=lambda o: f"task-{o.task}"
    )
    lines = as_table(report, width=60).splitlines()
    block = lines[lines.index("accuracy by task, %") + 1 : -2]
    assert max(map(len, block)) <= 60
    heads = [line.split() for line in block if line.startswith("planner")]
    assert [task for _, *tasks in heads for task in tasks] == [f"task-{i}" for i in range(40)]


def test_the_table_has_a_line_on_the_pool_where_each_worker_was_asked_alone() -> None:
    other = [msgspec.structs.replace(o, correct=int(o.task) >= 35) for o in row("single:b", 0)]
    report = report_of(row("best", 10), row("single:a", 10), other)
    assert Saying("pool: a 25.0% 37.5% +12.5") in as_table(report).splitlines()
    narrow = as_table(report, width=60).splitlines()
    start = narrow.index(Saying("pool: a 25.0%"))
    assert max(map(len, narrow[start : start + 2])) <= 60
    assert says(" ".join(narrow[start : start + 2]), "37.5% +12.5")
    assert "pool: " not in as_table(report_of(row("best", 10), row("single:a", 10)))


def test_the_markdown_has_the_same_tables_for_each_task() -> None:
    spent = [
        msgspec.structs.replace(o, input_tokens=100 + int(o.task) % 2, output_tokens=7, orchestration_input_tokens=60)
        for o in row("conductor", 30)
    ]
    no_plan = msgspec.structs.replace(spent[1], valid=False, plan=None, correct=False)
    report = of_two_tasks(row("best", 10), [spent[0], no_plan, *spent[2:]])
    page = as_markdown(report)
    assert part(page, "What a question takes: odd")[-1].startswith("| conductor | 1.00 | 101 | 7 | 60 | $0.010 |")
    assert part(page, "What a question takes: even")[-1].startswith("| conductor | 1.00 | 100 | 7 | 60 | $0.010 |")
    assert part(page, "Plans: odd")[-1].startswith("| conductor | 95.0 | 73.7 |")
    assert part(page, "Plans: odd")[-1].endswith("| a 100% |")
    assert part(page, "Plans: even")[-1].startswith("| conductor | 100.0 | 75.0 |")
    assert as_html(report).count("<caption>What a question takes</caption>") == 3


def test_a_task_with_all_questions_is_not_shown_twice() -> None:
    found = row("best", 10)
    page = as_markdown(
        make_report(found, ["best"], facts=FACTS, references=(), complete=True, task_of=lambda o: "sums")
    )
    assert page.count("## Plans") == page.count("## What a question takes") == page.count("## Steps of") == 1


def test_a_group_that_is_all_questions_is_no_table() -> None:
    flat = [msgspec.structs.replace(o, depth=1, kind="sums") for o in row("best", 10)]
    assert "## Accuracy by" not in as_markdown(report_of(flat))
    two = [msgspec.structs.replace(o, kind="sums" if o.depth == 1 else "products") for o in row("best", 10)]
    assert "## Accuracy by kind, %\n\n| planner | products | sums |" in as_markdown(report_of(two))
    assert "## Accuracy by depth, %" in as_markdown(report_of(two))
