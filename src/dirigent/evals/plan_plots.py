"""Plots of plans: how many steps they have and whom they ask, of every planner, and of each by kind of question.

By task where there are several, else by kind, so that a set of one task shows more than one bar. A worker has the same
colour in every plot. Made of a report's figures alone; rows that were measured before kinds were counted stand in the
plots of all planners only, and the page says so.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dirigent.evals.markup import Markup, joined, tag
from dirigent.evals.metrics import Figures, Group
from dirigent.evals.plots import stacked_bars
from dirigent.evals.report import Report
from dirigent.show.words import count_text

MOST_BARS = 12
"""Of a plot by task or kind: the largest ones."""
OPENED = ("conductor", "language", "masrouter", "knn", "routerdc")
"""Whose plots by kind are unfolded at once: the first of these that took part, else the first of all."""

Histogram = Mapping[str, float]


def plan_plots(report: Report) -> Markup:
    """Everybody in two plots, then each planner's own, folded but for one."""
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
        note = f"Not told by kind, as the report they are from did not count that: {', '.join(missing)}."
        parts.append(tag("p", note, class_="note"))
    return joined(*parts)


class _Use(msgspec.Struct, frozen=True):
    """How many steps plans had, and who was asked: counts or shares."""

    steps: Histogram
    workers: Histogram


class _Order(msgspec.Struct, frozen=True):
    """What the parts of bars are called, always in this order."""

    steps: list[str]
    workers: list[str]

    @classmethod
    def of(cls, report: Report) -> _Order:
        """Steps by number; workers as the pool has them, then whoever counts and compares locally."""
        rows = report.planners.values()
        steps = sorted({int(steps) for row in rows for steps in row.steps_histogram})
        workers = dict.fromkeys([*report.prices, *(name for row in rows for name in row.worker_shares)])
        return cls([count_text(n, "step") for n in steps], list(workers))


def _uses(report: Report, planner: str) -> dict[str, _Use]:
    """What the planner did, by task where there are several, else by kind; nothing where nobody counted it, or there
    is no valid plan."""
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
    """The names of those with the most questions, in their own order."""
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
