"""Tables: the cells of a report as text, the same on a terminal, in Markdown and on the page, and their layout.

A table is a header and rows of cells, the row's name first. Cells are made of figures alone. A dash stands for what was
not measured; an unknown cost says so. `laid_out` and `in_blocks` fit a table to a terminal's width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dirigent.evals.metrics import Figures, Group
from dirigent.evals.single_workers import Capacity
from dirigent.evals.stats import Difference
from dirigent.show.words import seconds_text, usd_text
from dirigent.workers.worker import Price

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Header and rows."""

HEADER = (
    "accuracy (95%)", "vs best", "vs equal cost", "valid", "steps", "calls", "tokens", "cost", "p50", "p95",
)  # fmt: skip
PER_CALL = "right per call"
"""Accuracy over calls of workers: what a call of a worker buys. In tables of fields that ask for it."""


def cells_of(rows: Mapping[str, Figures], columns: Sequence[str] = HEADER) -> list[tuple[str, ...]]:
    """A planner, then these columns."""
    return [(name, *(_cell(row, column) if row.n else "–" for column in columns)) for name, row in rows.items()]


def _cell(row: Figures, column: str) -> str:
    match column:
        case "accuracy (95%)":
            return share_text(row.accuracy, row.interval)
        case "vs best":
            return _difference(row.versus_best)
        case "vs equal cost":
            return _difference(row.versus_equal_cost)
        case "valid":
            return _percent(row.valid)
        case "steps":
            return f"{row.steps:.2f}"
        case "calls":
            return f"{row.calls:.2f}"
        case "right per call":
            return _percent(row.accuracy / row.worker_calls) if row.worker_calls else "–"
        case "tokens":
            return f"{row.tokens:,.0f}"
        case "cost":
            return cost_text(row.cost_usd)
        case "p50":
            return seconds_text(row.seconds_p50)
        case _:
            return seconds_text(row.seconds_p95)


GROUPS = (
    ("kind", "by_kind"),
    ("depth", "by_depth"),
    ("combination of skills", "by_combination"),
    ("minimal pair", "by_pair"),
)


def group_table(rows: Mapping[str, Figures], field: str) -> Table | None:
    """Accuracy of some of the questions; nothing where they fall into no such groups, or all into one."""
    names = sorted({name for row in rows.values() for name in getattr(row, field)})
    if len(names) < 2:
        return None
    cells = [(planner, *(_accuracy(getattr(row, field).get(name)) for name in names)) for planner, row in rows.items()]
    return ("planner", *names), cells


def task_table(rows: Mapping[str, Figures], by_task: Mapping[str, Mapping[str, Figures]]) -> Table | None:
    """Accuracy of each planner by task; nothing where there is but one."""
    if len(by_task) < 2:
        return None
    found = {name: _by_task(name, by_task) for name in rows}
    cells = [(name, *(_task_accuracy(of.get(task)) for task in by_task)) for name, of in found.items()]
    return ("planner", *by_task), cells


def _task_accuracy(row: Figures | None) -> str:
    return _percent(row.accuracy if row and row.n else None)


def steps_table(rows: Mapping[str, Figures]) -> Table | None:
    """The histogram of each planner's steps: what share of its valid plans has so many."""
    counts = sorted({int(count) for row in rows.values() for count in row.steps_histogram})
    if not counts:
        return None
    return ("planner", *map(str, counts)), [(name, *_steps_cells(row, counts)) for name, row in rows.items()]


def _steps_cells(row: Figures, counts: Sequence[int]) -> tuple[str, ...]:
    plans = sum(row.steps_histogram.values())
    shares = (row.steps_histogram.get(str(count), 0) / plans if plans else None for count in counts)
    return tuple("–" if not share else _percent(share) for share in shares)


def mean_steps_table(rows: Mapping[str, Figures], by_task: Mapping[str, Mapping[str, Figures]]) -> Table | None:
    """How many steps valid plans had on average, by task where there are several, else by kind of question."""
    groups = {name: _by_task(name, by_task) if by_task else row.by_kind for name, row in rows.items()}
    names = list(by_task) or sorted({kind for row in rows.values() for kind in row.by_kind})
    if len(names) < 2:
        return None
    cells = [(planner, *(_mean_steps(of.get(name)) for name in names)) for planner, of in groups.items()]
    return ("planner", *names), cells


def _by_task(planner: str, by_task: Mapping[str, Mapping[str, Figures]]) -> dict[str, Figures]:
    return {task: rows[planner] for task, rows in by_task.items() if planner in rows}


def _mean_steps(found: Figures | Group | None) -> str:
    """A dash where there was no valid plan."""
    return f"{found.steps:.2f}" if found and found.steps else "–"


CAPACITY_HEADER = ("worker", "accuracy (95%)", "tokens", "cost a question", "mean time")


def capacity_rows(pool: Capacity) -> list[tuple[str, ...]]:
    return [
        (
            name,
            share_text(row.accuracy, row.interval),
            f"{row.tokens:,.0f}",
            cost_text(row.cost_usd_per_question),
            seconds_text(row.seconds),
        )
        for name, row in pool.workers.items()
    ]


def capacity_sentence(pool: Capacity) -> str:
    return (
        f"The best choice of one worker per question would reach {share_text(pool.oracle, pool.oracle_interval)}: "
        f"{pool.complementarity * 100:+.1f} points over {pool.best}. "
        f"On {pool.all_right:.1%} of the {pool.n:,} questions every worker is right."
    )


def pool_line(pool: Capacity) -> str:
    """The same in short, for a terminal."""
    return (
        f"pool: best worker alone {pool.best} {pool.workers[pool.best].accuracy:.1%} · "
        f"oracle per question {pool.oracle:.1%} · complementarity {pool.complementarity * 100:+.1f} points"
    )


PLAN_HEADER = ("planner", "valid", "right if valid", "steps / minimal", "one step in one", "fans in parallel")
IN_WORDS = ("decomposition", "routing", "access")
"""What is right about a plan whose subtasks can be read."""
WORDS_ASIDE = ("placed", "wired")
"""And where they cannot, because the question is in other words: who is asked, and who reads what."""


def plan_table(rows: Mapping[str, Figures]) -> Table:
    """What plans were like. What nobody could tell of any plan is no column."""
    aside = any(mark in row.marks for row in rows.values() for mark in WORDS_ASIDE)
    inside = not aside or any(mark in row.marks for row in rows.values() for mark in IN_WORDS)
    marks = (*(IN_WORDS if inside else ()), *(WORDS_ASIDE if aside else ()))
    return (*PLAN_HEADER, *marks, "most asked"), [(name, *_plan_cells(row, marks)) for name, row in rows.items()]


def _plan_cells(row: Figures, marks: Sequence[str]) -> tuple[str, ...]:
    asked = ", ".join(f"{name} {share:.0%}" for name, share in list(row.worker_shares.items())[:3])
    over = "–" if row.steps_over_minimal is None else f"{row.steps_over_minimal:.2f}"
    shares = (row.one_step_in_one, row.parallel_fans, *(row.marks.get(mark) for mark in marks))
    return (_percent(row.valid), _percent(row.accuracy_given_valid), over, *map(_percent, shares), asked or "–")


SPENT_HEADER = ("planner", "calls", "input", "output", "orchestration", "cost", "p50", "p95", "failed")


def spent_rows(rows: Mapping[str, Figures]) -> list[tuple[str, ...]]:
    return [(name, *_spent_cells(row)) for name, row in rows.items()]


def _spent_cells(row: Figures) -> tuple[str, ...]:
    return (
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
UNKNOWN = "unknown"


def price_rows(prices: Mapping[str, Price | None]) -> list[tuple[str, ...]]:
    return [
        (name, UNKNOWN, UNKNOWN) if price is None else (name, f"{price.input:g}", f"{price.output:g}")
        for name, price in prices.items()
    ]


def cost_text(cost_usd: float | None) -> str:
    return UNKNOWN if cost_usd is None else usd_text(cost_usd)


def share_text(share: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{share * 100:.1f}  [{low * 100:.1f}–{high * 100:.1f}]"


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return "–"
    return f"{difference.mean * 100:+.1f} {'*' if difference.significant else 'ns'}"


def _accuracy(group: Group | None) -> str:
    return "–" if group is None else _percent(group.accuracy)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.1f}"


GAP = 2


def laid_out(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int,
    expendable: Sequence[str] = (),
    notes: Mapping[str, str] | None = None,
) -> list[str]:
    """The table's lines. On a narrow terminal the `expendable` columns are left out, the least important first, and a
    line names them. `notes` are words behind a row's name, below the table if there is no room beside it."""
    left_out = _left_out(header, rows, width=width, expendable=expendable)
    kept = [i for i, title in enumerate(header) if title not in left_out]
    table = [[row[i] for i in kept] for row in (header, *rows)]
    room = width - sum(w + GAP for w in _widths(table)[1:])
    labels = {name: f"{name}  ({note})" for name, note in (notes or {}).items()}
    shown = {name: label for name, label in labels.items() if len(label) <= room}
    table = [[shown.get(name, name), *cells] for name, *cells in table]
    widths = _widths(table)
    return [
        *(_line(row, widths) for row in table),
        *([f"not shown, as {width} characters are too few: {', '.join(left_out)}"] if left_out else []),
        *(f"{name}: {note}" for name, note in (notes or {}).items() if name not in shown),
    ]


def in_blocks(header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int) -> list[str]:
    """The table's lines with all its columns, in blocks below one another, each with the names of the rows."""
    name_width, *widths = _widths([header, *rows])
    blocks: list[list[int]] = []
    room = 0
    for i, column in enumerate(widths, start=1):
        if not blocks or room < column + GAP:
            blocks.append([0])
            room = width - name_width
        blocks[-1].append(i)
        room -= column + GAP
    return [line for kept in blocks for line in laid_out([header[i] for i in kept], _only(rows, kept), width=width)]


def _only(rows: Sequence[Sequence[str]], kept: Sequence[int]) -> list[list[str]]:
    return [[row[i] for i in kept] for row in rows]


def _left_out(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, expendable: Sequence[str]
) -> list[str]:
    """The expendable columns, in their order, that must go so that the rest fits."""
    widths = dict(zip(header, _widths([header, *rows]), strict=True))
    gone: list[str] = []
    for title in expendable:
        if sum(widths.values()) + GAP * (len(widths) - 1) <= width:
            break
        del widths[title]
        gone.append(title)
    return gone


def _widths(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*table, strict=True)]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return (" " * GAP).join([row[0].ljust(widths[0]), *cells]).rstrip()
