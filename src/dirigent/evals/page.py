"""The report as one HTML page without other files: verdict, table, plots, each worker, examples with their plans.

No script runs on it and nothing is loaded: its own policy forbids both. Everything a model or a file wrote goes through
`tag` of `plots.py`, which escapes it. The page is made from the `Report` alone, so it can be made again from its JSON.

Two plots show how many steps plans have and which workers they ask, of every planner; more show each planner by task,
or by kind if there is one task only. A worker has the same colour in every plot. Rows that were measured before kinds
were counted are in the plots of all planners only, and the page says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dirigent.evals.metrics import Figures, Group, pareto
from dirigent.evals.plots import Markup, Point, joined, scatter, stacked_bars, table, tag
from dirigent.evals.report import Example, Report, columns_of, notes_of, provenance, title_of
from dirigent.evals.tables import (
    CAPACITY_HEADER,
    PRICE_HEADER,
    SPENT_HEADER,
    capacity_rows,
    capacity_sentence,
    cells_of,
    mean_steps_table,
    offered_note,
    plan_table,
    price_rows,
    spent_rows,
    task_table,
    times_note,
    tokens_sentence,
)
from dirigent.show.words import count_text

REFERENCES = ("oracle", "ceiling", "right")


def as_html(report: Report) -> str:
    """The whole page."""
    title = title_of(report)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )
    parts = (_verdict(report), _table(report), _cost(report), _by_task(report), _plans(report))
    body = tag("body", tag("main", tag("h1", title), *parts, _capacity(report), _examples(report), _facts(report)))
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def pareto_front(rows: Mapping[str, Figures]) -> list[str]:
    """The planners that no other beats on accuracy at the same cost or less, the cheapest first, without references."""
    return pareto({name: row for name, row in rows.items() if name not in REFERENCES})


def _verdict(report: Report) -> Markup:
    incomplete = None
    if not report.complete:
        incomplete = tag(
            "p", "Incomplete: some runs are missing, and figures are over different questions.", class_="warn"
        )
    said = report.verdict[:1].upper() + report.verdict[1:]
    return tag("section", tag("p", said + ".", class_="verdict"), incomplete, aria_label="verdict")


def _table(report: Report) -> Markup:
    note = "An asterisk marks a paired difference with p < 0.05; ns, none. Intervals are Wilson's, 95%."
    rows = table(("planner", *columns_of(report)), cells_of(report.planners, columns_of(report)))
    notes = [note, *(said.replace("`", "") for said in notes_of(report))]
    return _section("All planners", rows, *map(_note, notes))


def _cost(report: Report) -> Markup:
    points = [
        Point(name, row.cost_usd_per_question, row.accuracy, row.interval, name in REFERENCES)
        for name, row in report.planners.items()
        if row.n and row.cost_usd_per_question is not None
    ]
    unknown = [name for name, row in report.planners.items() if row.n and row.cost_usd_per_question is None]
    left_out = f"Not in the plot, as their cost is unknown: {', '.join(unknown)}." if unknown else ""
    plot = scatter(points, pareto_front(report.planners), title="Accuracy against cost, with the Pareto front")
    spent = table(SPENT_HEADER, spent_rows(report.planners), caption="What a question takes")
    said = tokens_sentence(report.planners)
    return _section(
        "Does it pay?", plot, _note(left_out), spent, _note(times_note(report.recipe)), tag("p", said) if said else None
    )


def _by_task(report: Report) -> Markup | None:
    if not report.by_task:
        return None
    parts = [_task(task, rows, columns_of(report)) for task, rows in report.by_task.items()]
    found = task_table(report.planners, report.by_task)
    return _section("By task", table(*found, caption="Accuracy, %") if found else None, *parts)


def _task(task: str, rows: Mapping[str, Figures], columns: Sequence[str]) -> Markup:
    return tag(
        "details",
        tag("summary", task),
        table(("planner", *columns), cells_of(rows, columns)),
        table(SPENT_HEADER, spent_rows(rows), caption="What a question takes"),
        table(*plan_table(rows), caption="What the plans were like"),
    )


def _plans(report: Report) -> Markup:
    """Plots and tables of the plans: their steps, their workers and their marks."""
    parts = [plan_plots(report)]
    if found := mean_steps_table(report.planners, report.by_task):
        parts.append(table(*found, caption=f"Mean steps by {'task' if report.by_task else 'kind'}"))
    return _section("Plans", *parts, table(*plan_table(report.planners), caption="What the plans were like"))


def _capacity(report: Report) -> Markup | None:
    parts: list[Markup] = []
    for task, pool in report.capacity.items():
        heading = tag("h3", task) if len(report.capacity) > 1 else None
        parts.append(joined(heading, table(CAPACITY_HEADER, capacity_rows(pool)), tag("p", capacity_sentence(pool))))
    notes = (offered_note(report.recipe, report.planners, report.notes), times_note(report.recipe))
    return _section("Each worker alone", *parts, *map(_note, notes)) if parts else None


def _examples(report: Report) -> Markup | None:
    if not report.examples:
        return None
    note = (
        "Chosen by rule: where a planner and the best single worker differ, the longest plan first; "
        "of a planner that never differs from it, its longest plan."
    )
    return _section("Examples", tag("p", note, class_="note"), *map(_example, report.examples))


def _example(example: Example) -> Markup:
    own, best = ("right" if correct else "wrong" for correct in (example.correct, example.best_correct))
    steps = [
        tag("li", tag("b", step.worker), " ", step.subtask, tag("i", _reads(step.access))) for step in example.steps
    ]
    return tag(
        "details",
        tag("summary", tag("b", example.planner), f" · {example.task} · {own}; the best single worker {best}"),
        tag("pre", example.question),
        tag("ol", *steps, start="0"),
        tag("pre", example.answer, class_="answer"),
    )


def _reads(access: Sequence[int]) -> str:
    return f" (reads {', '.join(map(str, access))})" if access else ""


def _facts(report: Report) -> Markup:
    parts: list[Markup] = [tag("p", provenance(report).replace("`", ""))]
    if report.prices:
        parts.append(table(PRICE_HEADER, price_rows(report.prices), caption="Prices, USD per million tokens"))
    settings = [(name, _setting_text(value)) for name, value in report.recipe.items()]
    if settings:
        parts.append(table(("setting", "value"), settings, caption="Settings that give this report again"))
    chosen = [(name, report.notes[name]) for name in report.notes]
    if chosen:
        parts.append(table(("planner", "note"), chosen))
    return _section("Where it comes from", *parts)


def _setting_text(value: object) -> str:
    """The setting as text, the same for a new report and for one read from JSON, which has no tuples."""
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _note(said: str) -> Markup | None:
    return tag("p", said, class_="note") if said else None


def _section(title: str, *children: Markup | None) -> Markup:
    return tag("section", tag("h2", title), *children)


STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1a1a1a;--dim:#5c5c5c;--rule:#d5d5d5;--soft:#f4f4f2;--warn:#9a3b00;
--c0:#2f6fb5;--c1:#b5502f;--c2:#3f8f4f;--c3:#8a5fb0;--c4:#a8851f;--c5:#2f9a9a;--c6:#b03a78;--c7:#6b6b6b;--on:#fff}
@media (prefers-color-scheme:dark){:root{--bg:#16181b;--fg:#e8e8e6;--dim:#a3a5a8;--rule:#3a3d42;--soft:#202327;
--warn:#ffb37a;--c0:#7fb3ea;--c1:#e8967a;--c2:#84cc93;--c3:#c3a0e6;--c4:#dcc06a;--c5:#76cfcf;--c6:#e88bbd;--c7:#b4b4b4;
--on:#16181b}}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif}
main{max-width:62rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.4rem}h2{font-size:1.15rem;margin:2.5rem 0 .6rem}h3{font-size:1rem}
.verdict{font-size:1.1rem;border-left:4px solid var(--c0);padding:.4rem .9rem;background:var(--soft)}
.warn{color:var(--warn)}.note,figcaption,caption{color:var(--dim);font-size:.875rem;text-align:left}
.wide{overflow-x:auto;margin:1rem 0}table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .5rem;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap}
th[scope=row],th:first-child{text-align:left}
figure{margin:1rem 0}svg{width:100%;height:auto;max-width:760px}
text{fill:var(--fg);font:12px system-ui,sans-serif}.end{text-anchor:end}.middle{text-anchor:middle}
text.inside{fill:var(--on)}.axis{stroke:var(--dim)}.grid{stroke:var(--rule)}.whisker{stroke:var(--dim)}
.lead{stroke:var(--rule)}.front{fill:none;stroke:var(--fg);stroke-dasharray:4 3}
.c0{fill:var(--c0)}.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}.c4{fill:var(--c4)}.c5{fill:var(--c5)}
.c6{fill:var(--c6)}.c7{fill:var(--c7)}.pale{fill-opacity:.45}.dot{stroke:var(--fg)}.reference{fill:none}
details{margin:.5rem 0}summary{cursor:pointer}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--soft);padding:.6rem .8rem;font-size:.85rem}
.answer{border-left:3px solid var(--c2)}
"""


# ---- plots of plans ------------------------------------------------------------------------------------------


MOST_BARS = 12
"""The most bars of a plot by task or kind; the largest ones are shown."""
OPENED = ("conductor", "language", "masrouter", "knn", "routerdc")
"""The plots by kind of the first of these planners that took part, otherwise of the first planner, are unfolded."""

Histogram = Mapping[str, float]


def plan_plots(report: Report) -> Markup:
    """Returns two plots of all planners, then each planner's own; all but one are folded."""
    asked = {name: row for name, row in report.planners.items() if row.n}
    order = _Order.of(report)
    everybody = {name: _Use(row.steps_histogram, row.worker_shares) for name, row in asked.items()}
    uses = {name: _uses(report, name) for name in asked}
    shown = {name: found for name, found in uses.items() if len(found) > 1}
    opened = next((name for name in (*OPENED, *shown) if name in shown), "")
    parts = [
        _plots(everybody, order, of="plans", by="planner"),
        *(_folded(name, found, report, order, is_open=name == opened) for name, found in shown.items()),
    ]
    missing = [name for name, row in asked.items() if len(row.by_kind) > 1 and row.worker_shares and not uses[name]]
    if missing:
        note = f"Not shown by kind, because their report did not count that: {', '.join(missing)}."
        parts.append(tag("p", note, class_="note"))
    return joined(*parts)


class _Use(msgspec.Struct, frozen=True):
    """The steps of plans and the workers asked, as counts or shares."""

    steps: Histogram
    workers: Histogram


class _Order(msgspec.Struct, frozen=True):
    """The names of the parts of bars, always in this order."""

    steps: list[str]
    workers: list[str]

    @classmethod
    def of(cls, report: Report) -> _Order:
        """Orders steps by number, and workers as in the pool, local counters last."""
        rows = report.planners.values()
        steps = sorted({int(steps) for row in rows for steps in row.steps_histogram})
        workers = dict.fromkeys([*report.prices, *(name for row in rows for name in row.worker_shares)])
        return cls([count_text(n, "step") for n in steps], list(workers))


def _uses(report: Report, planner: str) -> dict[str, _Use]:
    """Returns a planner's steps or workers, by task if there are several, else by kind; None if there are no counts or
    no valid plan."""
    if not report.planners[planner].worker_shares:
        return {}
    if report.by_task:
        rows = {task: figures[planner] for task, figures in report.by_task.items() if planner in figures}
        return {task: _Use(rows[task].steps_histogram, rows[task].worker_shares) for task in _largest(rows)}
    kinds = report.planners[planner].by_kind
    if not any(group.asked for group in kinds.values()):
        return {}
    return {kind: _Use(kinds[kind].steps_histogram, kinds[kind].asked) for kind in _largest(kinds)}


def _largest(groups: Mapping[str, Figures] | Mapping[str, Group]) -> list[str]:
    """The names of the groups with the most questions, in their own order."""
    by_size = sorted(groups, key=lambda name: -groups[name].n)[:MOST_BARS]
    return [name for name in groups if name in by_size]


def _folded(name: str, found: Mapping[str, _Use], report: Report, order: _Order, *, is_open: bool) -> Markup:
    word, there = ("task", report.by_task) if report.by_task else ("kind", report.planners[name].by_kind)
    some = f" (the {MOST_BARS} largest of {len(there)})" if len(there) > MOST_BARS else ""
    return tag(
        "details",
        tag("summary", tag("b", name), f" · steps and workers by {word}{some}"),
        _plots(found, order, of=f"{name}'s plans", by=word),
        open="" if is_open else None,
    )


def _plots(found: Mapping[str, _Use], order: _Order, *, of: str, by: str) -> Markup:
    steps = {name: {count_text(int(n), "step"): count for n, count in use.steps.items()} for name, use in found.items()}
    workers = {name: use.workers for name, use in found.items()}
    return joined(
        stacked_bars(steps, series=order.steps, title=f"How many steps {of} have, by {by}"),
        stacked_bars(workers, series=order.workers, title=f"Whom {of} ask, by {by}: share of the steps"),
    )
