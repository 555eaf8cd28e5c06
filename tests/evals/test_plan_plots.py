"""Steps and workers, of every planner and by kind of question: counted by figures, drawn on the page."""

from __future__ import annotations

import re

import msgspec

from dirigent.evals.metrics import Group, figures
from dirigent.evals.page import MOST_BARS, as_html, plan_plots
from dirigent.evals.record import Outcome
from dirigent.evals.report import Facts, Report, as_json, as_markdown, make_report
from dirigent.workers.worker import Price
from tests.evals.samples import outcome

FACTS = Facts(
    recipe={}, commit="", seed=1, date="", version="", tasks={"name": "gym", "n": 8}, workers="",
    prices={name: Price(1.0, 1.0) for name in "abc"},
)  # fmt: skip


def asked(planner: str, *kinds: tuple[str, str], **fields: object) -> list[Outcome]:
    """A question for each pair of a kind and the workers of its plan."""
    return [outcome(planner, str(i), kind=kind, workers=who, **fields) for i, (kind, who) in enumerate(kinds)]


CONDUCTOR = asked("conductor", ("short", "a"), ("short", "ab"), ("long", "abc"), ("long", "bcc"))
BEST = asked("best", ("short", "a"), ("short", "a"), ("long", "a"), ("long", "a"))


def report_of(*rows: list[Outcome], by_task: bool = False) -> Report:
    outcomes = [o for found in rows for o in found]
    names = list(dict.fromkeys(o.planner for o in outcomes))
    task_of = (lambda o: f"task {o.kind}") if by_task else None
    return make_report(outcomes, names, facts=FACTS, references=(), complete=True, task_of=task_of)


def plots(page: str) -> dict[str, str]:
    """Title -> the plot's description in words."""
    return dict(re.findall(r"<svg[^>]*><title>(.*?)</title><desc>(.*?)</desc>", page))


def test_figures_count_steps_and_workers_by_kind_and_only_of_valid_plans() -> None:
    lost = msgspec.structs.replace(CONDUCTOR[0], task="9", valid=False)
    rounds = msgspec.structs.replace(CONDUCTOR[1], task="10", asked_before=("c", "c"))
    row = figures([*CONDUCTOR, lost, rounds])
    assert row.by_kind["short"].n == 4
    assert row.by_kind["short"].steps_histogram == {"1": 1, "2": 2}
    assert row.by_kind["short"].asked == {"a": 3, "b": 2, "c": 2}
    assert row.by_kind["long"].asked == {"c": 3, "b": 2, "a": 1}
    total = sum(sum(group.asked.values()) for group in row.by_kind.values())
    assert row.worker_shares["b"] == (2 + 2) / total
    assert row.by_depth["1"].asked == {}


def test_a_report_written_before_kinds_were_counted_can_still_be_read() -> None:
    old = b'{"n":2,"accuracy":1.0,"interval":[0.3,1.0],"steps":1.5}'
    group = msgspec.json.decode(old, type=Group)
    assert (group.steps_histogram, group.asked) == ({}, {})
    assert msgspec.json.encode(group) == old


def test_every_planner_with_outcomes_is_in_the_plots_of_all() -> None:
    knn, language = asked("knn", ("short", "b")), asked("language", ("short", ""), valid=False, plan=None)
    found = plots(as_html(report_of(CONDUCTOR, BEST, knn, language)))
    steps = found["How many steps plans have, by planner"]
    assert steps == (
        "conductor: 1 step 25%, 2 steps 25%, 3 steps 50%; best: 1 step 100%; knn: 1 step 100%; language: no valid plan"
    )
    workers = found["Whom plans ask, by planner: share of the steps"]
    assert workers.startswith("conductor: a 33%, b 33%, c 33%; best: a 100%; knn: b 100%; language: no valid plan")
    cost = found["Accuracy against cost, with the Pareto front"]
    assert [name for name in ("conductor", "best", "knn", "language") if f"{name}: " not in cost] == []


def test_questions_of_one_task_are_grouped_by_kind() -> None:
    found = plots(as_html(report_of(CONDUCTOR, BEST)))
    assert found["How many steps conductor&#x27;s plans have, by kind"] == (
        "long: 3 steps 100%; short: 1 step 50%, 2 steps 50%"
    )
    assert found["Whom best&#x27;s plans ask, by kind: share of the steps"] == "long: a 100%; short: a 100%"


def test_questions_of_several_tasks_are_grouped_by_task() -> None:
    found = plots(as_html(report_of(CONDUCTOR, BEST, by_task=True)))
    assert found["How many steps conductor&#x27;s plans have, by task"] == (
        "task short: 1 step 50%, 2 steps 50%; task long: 3 steps 100%"
    )
    assert not [title for title in found if title.endswith("by kind")]


def test_mean_steps_are_shown_for_every_planner_by_kind_or_task() -> None:
    language = asked("language", ("short", ""), valid=False, plan=None)
    by_kind, by_task = report_of(CONDUCTOR, language), report_of(CONDUCTOR, language, by_task=True)
    assert (
        "## Mean steps by kind\n\n| planner | long | short |\n| --- | --- | --- |\n"
        "| conductor | 3.00 | 1.50 |\n| language | – | – |\n"
    ) in as_markdown(by_kind)
    assert "## Mean steps by task\n\n| planner | task short | task long |" in as_markdown(by_task)
    assert "| conductor | 1.50 | 3.00 |\n| language | – | – |\n" in as_markdown(by_task)
    assert "<caption>Mean steps by kind</caption>" in as_html(by_kind)
    assert "<caption>Mean steps by task</caption>" in as_html(by_task)


def test_of_many_kinds_the_largest_are_shown_and_their_number_is_said() -> None:
    kinds = [(f"kind {i:02}", "a") for i in range(20) for _ in range(1 if i < 8 else 2)]
    page = as_html(report_of(asked("conductor", *kinds)))
    said = plots(page)["How many steps conductor&#x27;s plans have, by kind"]
    assert [part.partition(":")[0] for part in said.split("; ")] == [f"kind {i:02}" for i in range(8, 20)]
    assert re.search(rf"\({re.escape(str(MOST_BARS))}|\D{MOST_BARS}\D.*\b20\)", page)


def test_a_worker_has_the_same_colour_in_every_plot() -> None:
    page = plan_plots(report_of(asked("best", ("x", "c"), ("y", "c")), CONDUCTOR))
    colours = set(re.findall(r'<rect [^>]*class="([^"]*)"><title>[^<]*: c \d+%</title>', page))
    assert colours == {"part c2"}


def test_one_planner_is_unfolded_and_the_trained_one_before_others() -> None:
    assert re.findall(r'<details open=""><summary><b>(\w+)</b>', plan_plots(report_of(BEST, CONDUCTOR))) == [
        "conductor"
    ]
    assert re.findall(r'<details open=""><summary><b>(\w+)</b>', plan_plots(report_of(BEST))) == ["best"]


def test_a_row_of_an_earlier_report_that_counted_no_kinds_is_said_to_be_missing_there() -> None:
    report = report_of(CONDUCTOR, BEST)
    row = report.planners["best"]
    bare = {kind: msgspec.structs.replace(g, steps_histogram={}, asked={}) for kind, g in row.by_kind.items()}
    old = msgspec.structs.replace(
        report, planners={**report.planners, "best": msgspec.structs.replace(row, by_kind=bare)}
    )
    page = as_html(msgspec.json.decode(as_json(old), type=Report))
    assert re.search(r"\bkind\b[^<]*: best\.", page)
    assert "best: 1 step 100%" in plots(page)["How many steps plans have, by planner"]
    assert not re.search(r"\bkind\b[^<]*: best\.", as_html(report))
