"""Report: what an evaluation found, as a table for the terminal, JSON for programs and Markdown for the docs.

It carries what it takes to believe it: the settings that reproduce it, the commit, the seed, the date, the prices.
The sentence that says whether conducting paid is `verdict.py`'s part, the page with plots `page.py`'s, from the same
struct.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from dirigent.evals.capacity import Capacity, capacity
from dirigent.evals.examples import Example
from dirigent.evals.figures import Figures, by_planner, figures, versus
from dirigent.evals.notes import offered_note, planning_note, times_note, unpriced_note
from dirigent.evals.origins import Earlier, Weights, origins_note
from dirigent.evals.outcome import Outcome
from dirigent.evals.stats import Difference
from dirigent.evals.verdict import BEST, verdict
from dirigent.show.words import seconds_text, usd_text
from dirigent.worker import Price


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says besides its figures: enough to believe it and to make it again."""

    recipe: dict[str, Any]
    """The settings that give this report again."""
    commit: str
    seed: int
    date: str
    version: str
    tasks: dict[str, Any]
    """What was asked: family, split, how many, over which pools."""
    workers: str
    """Who answered: `exact`, `local`, ..."""
    prices: dict[str, Price | None]
    """None: unknown, which is never taken for free."""
    chosen: dict[str, Any] = {}
    """What was settled on the training and development splits before the test began."""
    fit: dict[str, Any] = {}
    """What choosing and fitting took: questions, and what they cost."""
    notes: dict[str, str] = {}
    """What stands behind a planner's name, for the table."""
    weights: dict[str, Weights] = {}
    """What the cards say of the planners that are trained adapters."""
    earlier: dict[str, Earlier] = {}
    """The planners that were not asked this time: whence their rows come."""
    examples: tuple[Example, ...] = ()


class Report(Facts, frozen=True, kw_only=True):
    """Everything an evaluation found; as JSON, this is the file that `--out` names."""

    planners: dict[str, Figures]
    by_task: dict[str, dict[str, Figures]] = {}
    """Task -> planner -> its figures on that task alone; empty where everything is one task."""
    capacity: dict[str, Capacity] = {}
    """Task (`all` for all of them) -> what the pool could do there."""
    unpriced: tuple[str, ...] = ()
    """Workers that were asked, whose price nobody knows and who state no cost themselves."""
    complete: bool
    """False: the money ran out, or runs are missing for another reason."""
    verdict: str


def make_report(
    outcomes: Sequence[Outcome],
    planners: Sequence[str],
    *,
    facts: Facts,
    references: Sequence[str],
    complete: bool,
    task_of: Callable[[Outcome], str] | None = None,
    equal_cost: str = "",
) -> Report:
    """The report over these planners, in this order. `references` know what no planner could: they cannot win.

    `task_of` says which task an outcome belongs to, where there are several; `equal_cost` which planner is
    self-consistency of the best worker, with as many samples as the conductor costs.
    """
    figured = partial(figures_by_planner, planners=planners, seed=facts.seed, equal_cost=equal_cost)
    rows = figured(outcomes)
    tasks = list(dict.fromkeys(task_of(o) for o in outcomes)) if task_of else []
    parts = {task: [o for o in outcomes if task_of and task_of(o) == task] for task in tasks}
    able = {name: capacity(found) for name, found in {"all": outcomes, **(parts if len(tasks) > 1 else {})}.items()}
    return Report(
        planners=rows,
        by_task={task: figured(found) for task, found in parts.items()},
        capacity={name: found for name, found in able.items() if found is not None},
        unpriced=tuple(dict.fromkeys(name for outcome in outcomes for name in outcome.unpriced)),
        complete=complete,
        verdict=verdict(rows, references=references),
        **msgspec.structs.asdict(facts),
    )


def figures_by_planner(
    outcomes: Sequence[Outcome], planners: Sequence[str], *, seed: int, equal_cost: str = ""
) -> dict[str, Figures]:
    """Every planner's row, with its paired differences to the best single worker and to equal-cost self-consistency."""
    found = by_planner(outcomes)
    known = [name for name, of in found.items() if all(o.known_cost_usd is not None for o in of)]
    rows: dict[str, Figures] = {}
    for name in planners:
        row = figures(found.get(name, []))
        equal = equal_cost if name in known and equal_cost in known else ""
        for field, other in (("versus_best", BEST), ("versus_equal_cost", equal)):
            if name != other and found.get(other) and found.get(name):
                row = msgspec.structs.replace(row, **{field: versus(found[name], found[other], seed=seed)})
        rows[name] = row
    return rows


def as_json(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


HEADER = ("accuracy (95%)", "vs best", "valid", "steps", "tokens", "cost", "p50")


def rows_of(report: Report, rows: Mapping[str, Figures] | None = None) -> list[tuple[str, ...]]:
    """The table's cells: a planner, then the columns of `HEADER`; of all tasks, or of the rows of one."""
    return [(_named(report, name), *_cells(row)) for name, row in (rows or report.planners).items()]


def cells_of(rows: Mapping[str, Figures]) -> list[tuple[str, ...]]:
    """The same with bare names, where notes stand elsewhere."""
    return [(name, *_cells(row)) for name, row in rows.items()]


def title_of(report: Report) -> str:
    about = report.tasks
    workers = f"{report.workers} workers" if report.workers else ""
    parts = (about.get("name", ""), f"{about.get('n', 0):,} questions", about.get("pool", ""), workers)
    return " · ".join([*(part for part in parts if part), f"seed {report.seed}"])


def as_table(report: Report) -> str:
    """The table for a terminal, with the verdict below it."""
    rows = [(title_of(report), *HEADER), *rows_of(report)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *rest = row
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    if not report.complete:
        lines.append("incomplete: some runs are missing, and figures are over different questions")
    origins = origins_note(report.planners, report.weights, report.earlier).replace("`", "")
    notes = (origins, planning_note(report.weights), times_note(report.recipe), unpriced_note(report.unpriced))
    lines += [said for said in notes if said]
    return "\n".join([*lines, f"verdict: {report.verdict}"])


def as_markdown(report: Report) -> str:
    """The report as a page: the table, where the accuracy lies, what the plans were like."""
    parts = [
        f"# {title_of(report)}",
        _markdown_table(("planner", *HEADER), rows_of(report)),
        origins_note(report.planners, report.weights, report.earlier),
        planning_note(report.weights),
        times_note(report.recipe),
        unpriced_note(report.unpriced),
        f"**Verdict:** {report.verdict}." + ("" if report.complete else " The evaluation is incomplete."),
    ]
    for task, rows in report.by_task.items():
        parts += [f"## {task}", _markdown_table(("planner", *HEADER), rows_of(report, rows))]
    for title, field in GROUPS:
        names = sorted({name for row in report.planners.values() for name in getattr(row, field)})
        if names and not (field == "by_kind" and report.by_task):
            groups = [
                (planner, *(_accuracy(getattr(row, field).get(name)) for name in names))
                for planner, row in report.planners.items()
            ]
            parts += [f"## Accuracy by {title}, %", _markdown_table(("planner", *names), groups)]
    for task, pool in report.capacity.items():
        title = "## Each worker alone" + ("" if task == "all" else f": {task}")
        parts += [title, _markdown_table(CAPACITY_HEADER, capacity_rows(pool)), capacity_sentence(pool)]
    if report.capacity:
        parts += [offered_note(report.recipe, report.planners, report.notes), times_note(report.recipe)]
    parts += ["## Plans", _markdown_table(*plan_table(report.planners))]
    for task, rows in report.by_task.items():
        if any(row.marks for row in rows.values()):
            parts += [f"## Plans: {task}", _markdown_table(*plan_table(rows))]
    parts += ["## What a question takes", _markdown_table(SPENT_HEADER, spent_rows(report.planners))]
    parts.append(times_note(report.recipe))
    if said := tokens_sentence(report.planners):
        parts.append(said)
    if report.prices:
        parts += ["## Prices, USD per million tokens", _markdown_table(PRICE_HEADER, price_rows(report.prices))]
    parts.append(provenance(report))
    return "\n\n".join(part for part in parts if part) + "\n"


GROUPS = (
    ("kind", "by_kind"),
    ("depth", "by_depth"),
    ("combination of skills", "by_combination"),
    ("minimal pair", "by_pair"),
)

CAPACITY_HEADER = ("worker", "accuracy (95%)", "tokens", "cost a question", "mean time")


def capacity_rows(pool: Capacity) -> list[tuple[str, ...]]:
    return [
        (
            name,
            _share_text(row.accuracy, row.interval),
            f"{row.tokens:,.0f}",
            cost_text(row.cost_usd_per_question),
            seconds_text(row.seconds),
        )
        for name, row in pool.workers.items()
    ]


def capacity_sentence(pool: Capacity) -> str:
    return (
        f"The best choice of one worker per question would reach {_share_text(pool.oracle, pool.oracle_interval)}: "
        f"{pool.complementarity * 100:+.1f} points over {pool.best}. "
        f"On {pool.all_right:.1%} of the {pool.n:,} questions every worker is right."
    )


def provenance(report: Report) -> str:
    """Where the figures come from, in a line."""
    recipe = report.recipe.get("recipe") or "settings in the JSON report"
    said = (
        f"Commit `{report.commit or 'unknown'}`, version {report.version}, {report.date}, seed {report.seed}, {recipe}."
    )
    if report.fit:
        said += f" Choosing and fitting took {report.fit.get('n', 0):,} questions"
        cost_usd = report.fit.get("cost_usd", 0.0)
        said += f" and {'an unknown cost' if cost_usd is None else usd_text(cost_usd)}, not counted in the rows."
    if left := report.tasks.get("left_out"):
        said += " Left out: " + "; ".join(f"{why} ({count:,})" for why, count in left.items()) + "."
    return said


SPENT_HEADER = ("planner", "vs equal cost", "calls", "input", "output", "orchestration", "cost", "p50", "p95", "failed")


def spent_rows(rows: Mapping[str, Figures]) -> list[tuple[str, ...]]:
    return [(name, *_spent_cells(row)) for name, row in rows.items()]


def _spent_cells(row: Figures) -> tuple[str, ...]:
    return (
        _difference(row.versus_equal_cost),
        f"{row.calls:.2f}",
        f"{row.input_tokens:,.0f}",
        f"{row.output_tokens:,.0f}",
        f"{row.orchestration_tokens:,.0f}",
        cost_text(row.cost_usd_per_question),
        seconds_text(row.seconds_p50),
        seconds_text(row.seconds_p95),
        str(row.failed),
    )


MOA = ("moa", "moa:8")
"""Mixture-of-Agents of 8 calls, by either name."""


def tokens_sentence(rows: Mapping[str, Figures]) -> str:
    """What Mixture-of-Agents takes for each token of the conductor; nothing where either is missing."""
    own, other = rows.get("conductor"), next((rows[name] for name in MOA if name in rows), None)
    if own is None or other is None or not own.tokens or not other.n:
        return ""
    said = (
        f"Mixture-of-Agents takes {other.tokens:,.0f} tokens a question, {other.tokens / own.tokens:.1f} times the "
        f"conductor's {own.tokens:,.0f}; in the Conductor paper it is 6.2 times."
    )
    if own.orchestration_tokens > own.tokens / 2:
        said += (
            f" Here {own.orchestration_tokens:,.0f} of the conductor's are spent on the plan: replies are short, so "
            "the plan and the cards it is made from weigh most."
        )
    return said


PRICE_HEADER = ("worker", "input", "output")


def price_rows(prices: Mapping[str, Price | None]) -> list[tuple[str, ...]]:
    return [
        (name, UNKNOWN, UNKNOWN) if price is None else (name, f"{price.input:g}", f"{price.output:g}")
        for name, price in prices.items()
    ]


UNKNOWN = "unknown"


def cost_text(cost_usd: float | None) -> str:
    return UNKNOWN if cost_usd is None else usd_text(cost_usd)


PLAN_HEADER = ("planner", "valid", "right if valid", "steps / minimal", "one step in one", "fans in parallel")
IN_WORDS = ("decomposition", "routing", "access")
"""What is right about a plan whose subtasks can be read."""
WORDS_ASIDE = ("placed", "wired")
"""And where they cannot, because the question is in other words: who is asked, and who reads what."""


def plan_table(rows: Mapping[str, Figures]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What plans were like: header and cells. What nobody could tell of any plan is no column."""
    aside = any(mark in row.marks for row in rows.values() for mark in WORDS_ASIDE)
    inside = not aside or any(mark in row.marks for row in rows.values() for mark in IN_WORDS)
    marks = (*(IN_WORDS if inside else ()), *(WORDS_ASIDE if aside else ()))
    return (*PLAN_HEADER, *marks, "most asked"), [(name, *_plan_cells(row, marks)) for name, row in rows.items()]


def _plan_cells(row: Figures, marks: Sequence[str]) -> tuple[str, ...]:
    asked = ", ".join(f"{name} {share:.0%}" for name, share in list(row.worker_shares.items())[:3])
    over = "–" if row.steps_over_minimal is None else f"{row.steps_over_minimal:.2f}"
    shares = (row.one_step_in_one, row.parallel_fans, *(row.marks.get(mark) for mark in marks))
    return (_percent(row.valid), _percent(row.accuracy_given_valid), over, *map(_percent, shares), asked or "–")


def _cells(row: Figures) -> tuple[str, ...]:
    if not row.n:
        return ("–",) * len(HEADER)
    return (
        _share_text(row.accuracy, row.interval),
        _difference(row.versus_best),
        _percent(row.valid),
        f"{row.steps:.2f}",
        f"{row.tokens:,.0f}",
        cost_text(row.cost_usd),
        seconds_text(row.seconds_p50),
    )


def _named(report: Report, name: str) -> str:
    note = report.notes.get(name, "")
    return f"{name}  ({note})" if note else name


def _share_text(share: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{share * 100:.1f}  [{low * 100:.1f}–{high * 100:.1f}]"


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return "–"
    return f"{difference.mean * 100:+.1f} {'*' if difference.significant else 'ns'}"


def _accuracy(group: Any) -> str:
    return "–" if group is None else f"{group.accuracy * 100:.1f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.1f}"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
