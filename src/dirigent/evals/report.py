"""Report of an evaluation: a table for the terminal, JSON for programs and Markdown for the docs. It has the settings
that reproduce it, the commit, the seed, the date and the prices. `tables.py` makes cells and footnotes, `page.py` the
page with plots, both from the same struct.

*The verdict* is one sentence that says whether conducting paid, just as plainly when it did not. It is made from the
rows alone. A row wins if it is better than the best single worker's row by a significant paired difference. A row
without a difference, because it was measured elsewhere or not compared, is not named. If runs are missing, no planner
is said to have failed: it may still win.

*Examples* are a few questions with the plans that were written for them, right and wrong ones. They are chosen by rule,
not by taste: for each planner and task, a question on which it was right and the best single worker was not, and one
the other way round, the longest plan first. A planner that never differs from it shows its longest plan, so that every
planner has at least one. Of sets whose authors ask that their questions not be put online, nothing is shown.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from dirigent.evals.costing import Sizing, equal
from dirigent.evals.metrics import Capacity, Figures, by_planner, capacity, figures, versus
from dirigent.evals.record import Outcome
from dirigent.evals.tables import (
    CAPACITY_HEADER,
    GROUPS,
    HEADER,
    PRICE_HEADER,
    SPENT_HEADER,
    Earlier,
    Weights,
    capacity_rows,
    capacity_sentence,
    cells_of,
    equal_cost_note,
    group_table,
    in_blocks,
    laid_out,
    left_out_note,
    mean_steps_table,
    offered_note,
    origins_note,
    plan_table,
    planning_note,
    pool_line,
    price_rows,
    replay_note,
    sizes_note,
    spent_rows,
    steps_table,
    task_table,
    times_note,
    tokens_sentence,
    unchanged_rounds_note,
    unpriced_note,
)
from dirigent.show.words import usd_text
from dirigent.tasks.task import Task
from dirigent.workers.worker import Price

# ---- verdict ---------------------------------------------------------------------------------------------


BEST = "best"
"""The best single worker; every planner is compared with it."""

OPEN = "open: some runs are missing"


def verdict(rows: Mapping[str, Figures], *, references: Sequence[str] = (), complete: bool = True) -> str:
    """Returns one sentence: the planners that beat the best single worker and their cost, or that no planner does. The
    latter needs every run."""
    best = rows.get(BEST)
    if best is None:
        return 'open: add "best" to the planners to compare with the best single worker'
    if not best.n:
        return "open: the best single worker was not asked before the evaluation was cut"
    tried = {name: row for name, row in rows.items() if name != BEST and name not in references and row.versus_best}
    if not tried:
        room = [f"{name} {row.versus_best.mean * 100:+.1f}" for name, row in rows.items() if row.versus_best]
        return f"open: no planner was tried; points over the best single worker: {', '.join(room) or 'none known'}"
    winners = [name for name, row in tried.items() if (gain := row.versus_best) and gain.significant and gain.mean > 0]
    losers = [name for name in tried if name not in winners]
    if not winners and not complete:
        return OPEN
    if not winners:
        return f"nothing beats the best single worker ({best.accuracy:.1%}): {_listed(tried)} {_verb(tried)} not"
    said = "; ".join(f"{name} beats the best single worker ({_how(tried[name], best)})" for name in winners)
    if not complete:
        return f"{said}; {OPEN}"
    return said + (f"; {_listed(losers)} {_verb(losers)} not" if losers else "")


def _how(row: Figures, best: Figures) -> str:
    difference = row.versus_best
    assert difference is not None  # a winner has been compared
    said = f"{difference.mean * 100:+.1f} points, paired p = {difference.p:.2g}"
    if row.cost_usd_per_question is None or best.cost_usd_per_question is None:
        said += ", at a cost that cannot be compared: a price is unknown"
    elif best.cost_usd_per_question:
        said += f", at {row.cost_usd_per_question / best.cost_usd_per_question:.1f}x its cost"
    if (equal := row.versus_equal_cost) is not None:
        beats = equal.significant and equal.mean > 0
        said += f", {equal.mean * 100:+.1f} against equal-cost self-consistency{'' if beats else ', which is no gain'}"
    return said


def _listed(names: Mapping[str, Figures] | Sequence[str]) -> str:
    *most, last = list(names)
    return f"{', '.join(most)} and {last}" if most else last


def _verb(names: Mapping[str, Figures] | Sequence[str]) -> str:
    return "does" if len(names) == 1 else "do"


# ---- examples --------------------------------------------------------------------------------------------


WITHHELD = ("gpqa", "bbh")
"""GPQA's and BIG-Bench Hard's authors ask that their questions not be published where models may learn them. How a
task's name begins: files of recorded answers name the parts of a set, such as `bbh_navigate`."""

MOST_CHARS = 600
MOST_EXAMPLES = 24
"""The most examples, unless there are more planners."""
MOST_KINDS = 12
"""With more kinds than this, nearly every question has a kind of its own, so kinds are not shown one by one."""


class ExampleStep(msgspec.Struct, frozen=True):
    worker: str
    subtask: str
    access: tuple[int, ...] = ()


class Example(msgspec.Struct, frozen=True):
    task: str
    question: str
    planner: str
    correct: bool
    best_correct: bool
    """Whether the best single worker was right."""
    answer: str
    steps: tuple[ExampleStep, ...]
    trace_id: str = ""


def examples(
    outcomes: Sequence[Outcome], tasks: Sequence[Task], planners: Sequence[str], *, best: str = "best"
) -> tuple[Example, ...]:
    """The planners' gains and losses against the best single worker, longer plans first; at least one of each."""
    found = by_planner(outcomes)
    baseline = {o.task: o.correct for o in found.get(best, ())}
    by_id = {task.id: task for task in tasks if not task.kind.lower().startswith(WITHHELD)}
    few_kinds = len({task.kind for task in tasks}) <= MOST_KINDS
    shown: dict[tuple[str, str, bool], Example] = {}
    for planner in planners:
        planned = [o for o in found.get(planner, ()) if o.plan and o.task in by_id and planner != best]
        longest = sorted(planned, key=lambda outcome: -outcome.steps)
        differing = [o for o in longest if not baseline or baseline.get(o.task, o.correct) != o.correct]
        for outcome in differing or longest[:1]:
            task = by_id[outcome.task]
            key = (planner, task.kind if few_kinds else "", outcome.correct)
            shown.setdefault(key, _example(outcome, task, baseline))
    one_each = len({planner for planner, _, _ in shown})
    return tuple(_in_turn(list(shown.values())))[: max(MOST_EXAMPLES, one_each)]


def _in_turn(found: Sequence[Example]) -> Iterator[Example]:
    """One example of each planner, then another of each, so that no planner fills the page."""
    seen: Counter[str] = Counter()
    turns: dict[int, list[Example]] = {}
    for example in found:
        turns.setdefault(seen[example.planner], []).append(example)
        seen[example.planner] += 1
    for turn in sorted(turns):
        yield from turns[turn]


def _example(outcome: Outcome, task: Task, baseline: Mapping[str, bool]) -> Example:
    assert outcome.plan is not None  # chosen for having one
    return Example(
        task=task.kind or task.id,
        question=shortened(task.question),
        planner=outcome.planner,
        correct=outcome.correct,
        best_correct=baseline.get(outcome.task, False),
        answer=shortened(outcome.answer),
        steps=tuple(ExampleStep(s.worker, shortened(s.subtask), s.access) for s in outcome.plan.steps),
        trace_id=outcome.trace_id,
    )


def shortened(text: str) -> str:
    return text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 1] + "…"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a report besides its figures: enough to make it again."""

    recipe: dict[str, Any]
    """The settings that give this report again."""
    commit: str
    seed: int
    date: str
    version: str
    tasks: dict[str, Any]
    """The questions: family, split, number, pools."""
    workers: str
    """Who answered: `exact`, `local`, ..."""
    prices: dict[str, Price | None]
    """None: unknown, which is never taken for free."""
    chosen: dict[str, Any] = {}
    """Choices on the training and development splits, before the test began."""
    fit: dict[str, Any] = {}
    """The questions for choosing and fitting, and their cost."""
    notes: dict[str, str] = {}
    """The note behind a planner's name in the table."""
    sizes: dict[str, Sizing] = {}
    """The planners at another's cost: how their number of samples was found, and their cost."""
    weights: dict[str, Weights] = {}
    """The cards of the planners that are trained adapters."""
    earlier: dict[str, Earlier] = {}
    """The planners that were not asked this time: whence their rows come."""
    sandbox: str | msgspec.UnsetType = msgspec.UNSET
    """The walls around graded programs, as the sandbox names them; absent if no code was graded."""
    taken_over: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Planner -> the commit of its outcomes, if they come from a run at another commit."""
    examples: tuple[Example, ...] = ()
    columns: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """The columns of the table of planners, if they are not the usual ones."""


class Report(Facts, frozen=True, kw_only=True):
    """Everything an evaluation found; as JSON, this is the file that `--out` names."""

    planners: dict[str, Figures]
    by_task: dict[str, dict[str, Figures]] = {}
    """Task -> planner -> its figures on that task alone; empty if there is one task only."""
    capacity: dict[str, Capacity] = {}
    """Task (`all` for all of them) -> the capacity of the pool there."""
    unpriced: tuple[str, ...] = ()
    """Workers that were asked and have neither a known price nor a stated cost."""
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
    """The report over these planners, in this order. `references` use knowledge that no planner has: they cannot win.
    `task_of` returns the task of an outcome, if there are several; `equal_cost` is the planner that is self-consistency
    of the best worker: planners of equal cost are compared with it.
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
        verdict=verdict(rows, references=references, complete=complete),
        **msgspec.structs.asdict(facts),
    )


def figures_by_planner(
    outcomes: Sequence[Outcome], planners: Sequence[str], *, seed: int, equal_cost: str = ""
) -> dict[str, Figures]:
    """Returns every planner's row, with its paired differences to the best single worker and, at equal cost, to
    self-consistency of that worker."""
    found = by_planner(outcomes)
    vote_usd = figures(found.get(equal_cost, [])).cost_usd_per_question
    rows: dict[str, Figures] = {}
    for name in planners:
        row = figures(found.get(name, []))
        as_dear = equal_cost if equal(row.cost_usd_per_question, vote_usd) else ""
        for field, other in (("versus_best", BEST), ("versus_equal_cost", as_dear)):
            if name != other and found.get(other) and found.get(name):
                row = msgspec.structs.replace(row, **{field: versus(found[name], found[other], seed=seed)})
        rows[name] = row
    return rows


def as_json(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


TABLE_WIDTH = 120
EXPENDABLE = ("valid", "tokens", "p50", "steps", "p95", "calls", "vs equal cost", "cost")
"""Columns that a narrow terminal omits, the least important first."""


def as_table(report: Report, *, width: int = TABLE_WIDTH) -> str:
    """The table for a terminal this wide, with the verdict below it."""
    header, rows = ("planner", *columns_of(report)), cells_of(report.planners, columns_of(report))
    notes = {name: report.notes[name] for name in report.planners if report.notes.get(name)}
    lines = [title_of(report), *laid_out(header, rows, width=width, expendable=EXPENDABLE, notes=notes)]
    lines += _below_table(report, width=width)
    if not report.complete:
        lines.append("incomplete: some runs are missing, and figures are over different questions")
    lines += [said.replace("`", "") for said in notes_of(report)]
    return "\n".join([*lines, f"verdict: {report.verdict}"])


def _below_table(report: Report, *, width: int) -> list[str]:
    """Accuracy by task if there are several, and the pool's capacity if each worker was asked alone."""
    lines: list[str] = []
    if found := task_table(report.planners, report.by_task):
        lines += ["accuracy by task, %", *in_blocks(*found, width=width)]
    if pool := report.capacity.get("all"):
        lines += textwrap.wrap(pool_line(pool), width, break_long_words=False, break_on_hyphens=False)
        lines.append(offered_note(report.recipe, report.planners, report.notes))
    return [line for line in lines if line]


def columns_of(report: Report) -> tuple[str, ...]:
    """The columns of its table of planners."""
    return report.columns or HEADER


def title_of(report: Report) -> str:
    about = report.tasks
    workers = f"{report.workers} workers" if report.workers else ""
    parts = (about.get("name", ""), f"{about.get('n', 0):,} questions", about.get("pool", ""), workers)
    return " · ".join([*(part for part in parts if part), f"seed {report.seed}"])


def notes_of(report: Report) -> list[str]:
    """The footnotes under the table of all planners, in every form of the report."""
    # Rows of earlier reports are not compared at equal cost.
    tables = (report.planners, *report.by_task.values())
    compared = [{name: row for name, row in rows.items() if name not in report.earlier} for rows in tables]
    # Models on this machine plan for free: trained ones, and in the gym their untrained base.
    untrained = {"language"} & set(report.planners) if report.workers in ("exact", "local") else set()
    notes = (
        origins_note(report.planners, report.weights, report.earlier),
        sizes_note(report.sizes),
        equal_cost_note(compared, report.sizes),
        unchanged_rounds_note(report.planners),
        planning_note({*report.weights, *untrained}),
        replay_note(report.recipe),
        left_out_note(report.tasks, report.planners),
        times_note(report.recipe),
        unpriced_note(report.unpriced),
    )
    return [said for said in notes if said]


def as_markdown(report: Report) -> str:
    """The report as Markdown: the table, accuracy by group, plans, calls and cost."""
    parts = [
        f"# {title_of(report)}",
        _markdown_table(("planner", *columns_of(report)), _named_cells(report, report.planners)),
        *notes_of(report),
        f"**Verdict:** {report.verdict}." + ("" if report.complete else " The evaluation is incomplete."),
        *_accuracy_parts(report),
        *_capacity_parts(report),
        *_plan_parts(report),
        *_spent_parts(report),
        times_note(report.recipe),
        tokens_sentence(report.planners),
    ]
    if report.prices:
        parts += ["## Prices, USD per million tokens", _markdown_table(PRICE_HEADER, price_rows(report.prices))]
    parts.append(provenance(report))
    return "\n\n".join(part for part in parts if part) + "\n"


def _accuracy_parts(report: Report) -> Iterator[str]:
    """Accuracy by task, then by the groups of the questions."""
    for task, rows in report.by_task.items():
        yield from (f"## {task}", _markdown_table(("planner", *columns_of(report)), _named_cells(report, rows)))
    for title, field in GROUPS:
        found = group_table(report.planners, field)
        if found and not (field == "by_kind" and report.by_task):
            yield from (f"## Accuracy by {title}, %", _markdown_table(*found))


def _capacity_parts(report: Report) -> Iterator[str]:
    for task, pool in report.capacity.items():
        yield "## Each worker alone" + ("" if task == "all" else f": {task}")
        yield from (_markdown_table(CAPACITY_HEADER, capacity_rows(pool)), capacity_sentence(pool))
    if report.capacity:
        yield from (offered_note(report.recipe, report.planners, report.notes), times_note(report.recipe))


def _plan_parts(report: Report) -> Iterator[str]:
    """The figures of plans and the histogram of their steps, for all tasks and for each."""
    for of, rows in _each_task(report):
        yield from (f"## Plans{of}", _markdown_table(*plan_table(rows)))
        if found := steps_table(rows):
            yield from (f"## Steps of the valid plans, %{of}", _markdown_table(*found))
    if found := mean_steps_table(report.planners, report.by_task):
        yield from (f"## Mean steps by {'task' if report.by_task else 'kind'}", _markdown_table(*found))


def _spent_parts(report: Report) -> Iterator[str]:
    for of, rows in _each_task(report):
        yield from (f"## What a question takes{of}", _markdown_table(SPENT_HEADER, spent_rows(rows)))


def _each_task(report: Report) -> Iterator[tuple[str, Mapping[str, Figures]]]:
    """The rows over all questions, then each task's with its name; a single task is not repeated."""
    yield "", report.planners
    if len(report.by_task) > 1:
        yield from ((f": {task}", rows) for task, rows in report.by_task.items())


def provenance(report: Report) -> str:
    """The origin of the figures, in a line."""
    recipe = report.recipe.get("recipe") or "settings in the JSON report"
    said = (
        f"Commit `{report.commit or 'unknown'}`, version {report.version}, {report.date}, seed {report.seed}, {recipe}."
    )
    if report.fit:
        said += f" Choosing and fitting took {report.fit.get('n', 0):,} questions"
        cost_usd = report.fit.get("cost_usd", 0.0)
        said += f" and {'an unknown cost' if cost_usd is None else usd_text(cost_usd)}, not counted in the rows."
        if fitted_on := report.recipe.get("fitted_on"):
            said += f" These questions are {fitted_on}."
    if report.sandbox:
        said += f" Code was graded in a sandbox: {report.sandbox}."
    if report.taken_over:
        rows = ", ".join(f"{name} (`{commit}`)" for name, commit in report.taken_over.items())
        said += f" Outcomes kept from other commits, of the same questions and files: {rows}."
    if left := report.tasks.get("left_out"):
        said += " Left out: " + "; ".join(f"{why} ({count:,})" for why, count in left.items()) + "."
    return said


def _named_cells(report: Report, rows: Mapping[str, Figures]) -> list[tuple[str, ...]]:
    """The cells, with each name's note beside it."""
    labels = {name: f"{name}  ({note})" for name, note in report.notes.items() if note}
    return [(labels.get(name, name), *cells) for name, *cells in cells_of(rows, columns_of(report))]


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
