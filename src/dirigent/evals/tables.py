"""Tables: the cells of a report as text, the same on a terminal, in Markdown and on the page; and their footnotes.

A table is a header and rows of cells, the row's name first. Cells are made of figures alone. A dash means that nothing
was measured; an unknown cost says so. `laid_out` and `in_blocks` fit a table to a terminal's width.

A footnote is a sentence under the tables, so that no figure is mistaken for another. It is made from the report, and
empty if it has nothing to add. `Weights` and `Earlier` give the origin of a trained planner's row: its weights have a
card that limits the claims of their figures, and the row itself may come from an earlier report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dirigent.evals.costing import EQUAL_COST, EQUAL_WITHIN, Sizing, equal
from dirigent.evals.metrics import Capacity, Figures, Group
from dirigent.evals.stats import Difference
from dirigent.planners import find_planner, parse_name
from dirigent.planners.spec import kinds_of
from dirigent.show.words import seconds_text, usd_text
from dirigent.workers.worker import Price

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""The header and the rows."""

HEADER = (
    "accuracy (95%)", "vs best", "vs equal cost", "valid", "steps", "calls", "tokens", "cost", "p50", "p95",
)  # fmt: skip
PER_CALL = "right per call"
"""Accuracy over calls of workers. Tables have the column if their field asks for it."""


def cells_of(rows: Mapping[str, Figures], columns: Sequence[str] = HEADER) -> list[tuple[str, ...]]:
    """Rows of cells: the planner's name, then these columns."""
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
    """Accuracy by group of questions; None if there are no such groups, or only one."""
    found: dict[str, Mapping[str, Group]] = {planner: getattr(row, field) for planner, row in rows.items()}
    names = sorted({name for groups in found.values() for name in groups})
    if len(names) < 2:
        return None
    cells = [
        (planner, *(_percent(groups[name].accuracy) if name in groups else "–" for name in names))
        for planner, groups in found.items()
    ]
    return ("planner", *names), cells


def task_table(rows: Mapping[str, Figures], by_task: Mapping[str, Mapping[str, Figures]]) -> Table | None:
    """Accuracy of each planner by task; None if there is only one task."""
    if len(by_task) < 2:
        return None
    found = {name: _by_task(name, by_task) for name in rows}
    cells = [
        (name, *(_percent(row.accuracy if (row := of.get(task)) and row.n else None) for task in by_task))
        for name, of in found.items()
    ]
    return ("planner", *by_task), cells


def steps_table(rows: Mapping[str, Figures]) -> Table | None:
    """The histogram of each planner's steps: the share of its valid plans with each number of steps."""
    counts = sorted({int(count) for row in rows.values() for count in row.steps_histogram})
    if not counts:
        return None
    cells = []
    for name, row in rows.items():
        plans = sum(row.steps_histogram.values())
        shares = [row.steps_histogram.get(str(count), 0) / plans if plans else None for count in counts]
        cells.append((name, *("–" if not share else _percent(share) for share in shares)))
    return ("planner", *map(str, counts)), cells


def mean_steps_table(rows: Mapping[str, Figures], by_task: Mapping[str, Mapping[str, Figures]]) -> Table | None:
    """Mean steps of valid plans, by task if there are several, else by kind of question."""
    groups = {name: _by_task(name, by_task) if by_task else row.by_kind for name, row in rows.items()}
    names = list(by_task) or sorted({kind for row in rows.values() for kind in row.by_kind})
    if len(names) < 2:
        return None
    cells = [
        (planner, *(f"{found.steps:.2f}" if (found := of.get(name)) and found.steps else "–" for name in names))
        for planner, of in groups.items()
    ]
    return ("planner", *names), cells


def _by_task(planner: str, by_task: Mapping[str, Mapping[str, Figures]]) -> dict[str, Figures]:
    return {task: rows[planner] for task, rows in by_task.items() if planner in rows}


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
    """The pool's capacity in one line, for a terminal."""
    return (
        f"pool: best worker alone {pool.best} {pool.workers[pool.best].accuracy:.1%} · "
        f"oracle per question {pool.oracle:.1%} · complementarity {pool.complementarity * 100:+.1f} points"
    )


PLAN_HEADER = ("planner", "valid", "right if valid", "steps / minimal", "one step in one", "fans in parallel")
IN_WORDS = ("decomposition", "routing", "access")
"""Marks of a plan whose subtasks can be recognised."""
WORDS_ASIDE = ("placed", "wired")
"""Marks of a plan for a question in other words, which judge its workers and their access."""


def plan_table(rows: Mapping[str, Figures]) -> Table:
    """The table of plans. A mark that no plan has is not a column."""
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
    return [
        (
            name,
            f"{row.calls:.2f}",
            f"{row.input_tokens:,.0f}",
            f"{row.output_tokens:,.0f}",
            f"{row.orchestration_tokens:,.0f}",
            cost_text(row.cost_usd_per_question),
            seconds_text(row.seconds_p50),
            seconds_text(row.seconds_p95),
            str(row.failed),
        )
        for name, row in rows.items()
    ]


MOA = ("moa", "moa:8")
"""Mixture-of-Agents of 8 calls, by either name."""


def tokens_sentence(rows: Mapping[str, Figures]) -> str:
    """States the tokens of Mixture-of-Agents for each token of the conductor; empty if either is missing."""
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
    first, *widths = _widths(table)
    lines = [[row[0].ljust(first), *map(str.rjust, row[1:], widths)] for row in table]
    return [
        *((" " * GAP).join(cells).rstrip() for cells in lines),
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
    lines: list[str] = []
    for kept in blocks:
        lines += laid_out([header[i] for i in kept], [[row[i] for i in kept] for row in rows], width=width)
    return lines


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


# ---- footnotes -------------------------------------------------------------------------------------------


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a trained adapter's figures, as its card says."""

    recipe: str
    commit: str
    """The commit of this repository when the adapter was trained."""
    sha256: str
    claims: str = ""
    """The claim that its figures may support, as a predicate after its name."""


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a row that an earlier evaluation measured."""

    commit: str
    date: str


NOT_AGAIN = (
    "{names} {was} not asked again: times are of that run, and paired differences, which need the outcomes of each "
    "question, are left empty."
)


def origins_note(planners: Collection[str], weights: Mapping[str, Weights], earlier: Mapping[str, Earlier]) -> str:
    """Returns the footnote on weights under a table; empty if no card has a claim and all planners were asked."""
    kinds = kinds_of(planners)
    then = [name for name in kinds if name in earlier]
    now = [name for name in kinds if name not in earlier]
    claims = {name: weights[name].claims.rstrip(". ") for name in (*then, *now) if name in weights}
    parts = []
    for name in then:
        at, on = earlier[name].commit[:7] or "unknown", earlier[name].date or "an unknown day"
        claim = f": it {claims[name]}" if claims.get(name) else ""
        parts.append(f"`{name}` was measured at commit `{at}`, on {on}{claim}")
    for number, name in enumerate(now):
        if claimed := claims.get(name):
            said_before = claimed in (claims.get(other) for other in now[:number])
            parts.append(f"`{name}` {'likewise' if said_before else claimed}")
    if not parts:
        return ""
    said = "; ".join(parts) + "."
    names = " and ".join(f"`{name}`" for name in then)
    return f"{said} {NOT_AGAIN.format(names=names, was='was' if len(then) == 1 else 'were')}" if then else said


SHARED_CALLS = (
    "A greedy call that several planners make alike is made once, and counts for each of them with the seconds it took."
)

ONLY_EQUAL = 'A dash under "vs equal cost": only rows that cost as much as the vote are compared with it.'

SAME_ROW = ("n", "accuracy", "valid", "steps", "steps_histogram", "worker_shares", "by_kind")
"""Fields that are equal in two rows with equal plans and answers."""


def times_note(recipe: Mapping[str, Any]) -> str:
    """Says how many questions ran at a time, because times under load are not the latency of one request; and that
    planners share calls."""
    at_a_time = recipe.get("concurrency")
    if is_replay(recipe):
        many = f", {at_a_time} questions at a time" if at_a_time else ""
        return f"Times (p50, p95, mean) are of the replay{many}, not of the models."
    shared = f" {SHARED_CALLS}" if recipe.get("shared") else ""
    if at_a_time == 1:
        return f"Times are of runs one at a time.{shared}"
    how_many = (
        f"{at_a_time} questions at a time" if at_a_time else "several questions at a time (how many is not recorded)"
    )
    return (
        f"Times (p50, p95, mean) are of runs with {how_many}, which share the machine and its workers: "
        f"they are not the latency of one request.{shared}"
    )


def is_replay(recipe: Mapping[str, Any]) -> bool:
    """Whether answers came from a file: only those evaluations deal questions into folds."""
    return "folds" in recipe


def replay_note(recipe: Mapping[str, Any]) -> str:
    """The limits of recorded answers."""
    if not is_replay(recipe):
        return ""
    return (
        "Answers are recorded ones. Tokens that the file does not count are estimated, four characters each, and costs "
        "with them. Each model answered once, so nothing is compared with self-consistency at equal cost."
    )


def offered_note(recipe: Mapping[str, Any], planners: Collection[str], notes: Mapping[str, str]) -> str:
    """Says why a planner's row differs from a worker's: if each question comes with some of the workers, only a table
    of workers alone is over all of them. Empty if every question is offered all."""
    if "pool_sizes" not in recipe:
        return ""
    low, high = recipe["pool_sizes"]
    said = [
        f"Here every worker is asked every question; a planner has only the {low} to {high} workers that come with it."
    ]
    if best := notes.get("best") if "best" in planners else None:
        said.append(
            f"So best ({best}) is {best} where offered and the next in the ranking elsewhere, "
            "and its row differs from that worker's here."
        )
    if "oracle" in planners:
        said.append("The row oracle is a choice among the workers offered, the line above a choice among all.")
    return " ".join(said)


def left_out_note(tasks: Mapping[str, Any], planners: Collection[str]) -> str:
    """The planners that cannot work on these questions by construction, and why; those in the table are left out."""
    cannot: Mapping[str, str] = tasks.get("cannot", {})
    reasons: dict[str, list[str]] = {}
    for name, why in cannot.items():
        if name not in kinds_of(planners):
            reasons.setdefault(why, []).append(name)
    if not reasons:
        return ""
    said = "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())
    return f"Not in the table, because they cannot work on these questions: {said}."


def unpriced_note(names: Sequence[str]) -> str:
    """Names the workers without a known price, and the comparisons that leave them out."""
    if not names:
        return ""
    return (
        f"No price is known for {', '.join(names)}: the cost of a planner that asked "
        f"{'it' if len(names) == 1 else 'one'} is unknown, never 0, and left out of the Pareto front and of "
        "comparisons at equal cost."
    )


def planning_note(at_home: Collection[str]) -> str:
    """Says that the cost leaves out planning by a local model."""
    if not at_home:
        return ""
    one = len(at_home) == 1
    return (
        f"Planning by {' and '.join(sorted(at_home))} is counted in tokens (orchestration) and not in cost: "
        f"{'it runs' if one else 'they run'} on this machine and "
        f"{'has' if one else 'have'} no price."
    )


def unchanged_rounds_note(rows: Mapping[str, Figures]) -> str:
    """Names planners whose later rounds changed nothing: their row equals the row in one round, except for the cost of
    asking."""
    said = []
    for name, row in rows.items():
        parsed = parse_name(name)
        spec = find_planner(parsed.kind)
        counts_rounds = spec is not None and spec.planned_by == "trained worker" and (parsed.number or 1) > 1
        one = rows.get(parsed.kind) if counts_rounds else None
        if one is None or not row.n or row.planned_again:
            continue
        # The workers asked are counted over all rounds, so a second plan shows even in old reports.
        if all(getattr(row, field) == getattr(one, field) for field in SAME_ROW):
            which = "second round" if name.endswith(":2") else "later rounds"
            said.append(
                f"{name}'s {which} accepted every answer: no question was planned again, and its row differs from "
                f"{parsed.kind}'s only by the cost of asking again."
            )
    return " ".join(said)


def sizes_note(sizes: Mapping[str, Sizing]) -> str:
    """States the real cost of each planner that should cost as much as another; or why that was impossible."""
    said = [words for name, sizing in sizes.items() for words in _sizing_sentences(name, sizing)]
    if any(one.ratio is not None for sizing in sizes.values() for one in (sizing, *_sizing_by_task(sizing).values())):
        said.append(
            "The number of samples follows from the money spent on these very questions, never from a grade. "
            f"Costs are called equal, and compared so, if they are within {EQUAL_WITHIN:.0%}."
        )
    return " ".join(said)


def _sizing_sentences(name: str, sizing: Sizing) -> Iterator[str]:
    """Yields a sentence for all tasks together, then one for each task with another result: an unequal cost, or no
    sizing. If only some tasks were sized, there is no sentence for all."""
    by_task = _sizing_by_task(sizing)
    mixed = sizing.ratio is None and any(one.ratio is not None for one in by_task.values())
    if not mixed:
        yield _sizing_sentence(name, sizing)
    for task, one in by_task.items():
        if mixed or (sizing.ratio is not None and not equal(one.cost_usd, one.target_usd)):
            yield f"On {task}, {_sizing_sentence(name, one)}"


def _sizing_sentence(name: str, sizing: Sizing) -> str:
    if sizing.ratio is None:
        return f"{name} has its usual number of samples, not an equal cost: {sizing.why_not}."
    said = f"{name} cost {sizing.ratio:.2f} x {sizing.measure}'s"
    if sizing.bound == "least":
        said += ", which cost less than one sample does: equal cost is impossible"
    elif sizing.bound == "most":
        said += ", with the most samples that a plan has room for: equal cost is impossible"
    return f"{said}."


def _sizing_by_task(sizing: Sizing) -> Mapping[str, Sizing]:
    return {} if isinstance(sizing.by_task, msgspec.UnsetType) else sizing.by_task


def equal_cost_note(tables: Iterable[Mapping[str, Figures]], sizes: Mapping[str, Sizing]) -> str:
    """Says why some rows are not compared with the vote; empty if no vote has an equal cost, or if all rows are
    compared."""
    if EQUAL_COST not in sizes:
        return ""
    compared = [row.versus_equal_cost for rows in tables for name, row in rows.items() if name != EQUAL_COST and row.n]
    return ONLY_EQUAL if None in compared else ""
