"""`dirigent calibrate`: ask every worker of the pool graded questions, and write a table of the answers.

The table is what `dirigent learn` learns from. Cost and time are estimated before anything is paid; answers are kept as
they come, so the same command continues after Ctrl-C or a crash.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dirigent.cli.output import FAILED, ConfigOption, JsonOption, carry_out, print_json, print_text, say, table

if TYPE_CHECKING:
    from dirigent.config.runtime import Runtime
    from dirigent.learn.calibrate import Calibration, Estimate, Settings
    from dirigent.learn.cards import Card
    from dirigent.learn.question_file import CalibrationQuestion
    from dirigent.messages import Observe
    from dirigent.sandbox import Sandbox
    from dirigent.workers.pool import Pool

OUT = Path("table")
JOURNAL = "calls.jsonl"
REPORT = "calibration.json"
LEAST_LABELS = 25
"""Labels below which nothing learned from a table is switched on."""

QuestionsOption = Annotated[
    Path | None,
    typer.Option(help="Your questions: .jsonl, .json or .csv with question, answer, grader.", show_default=False),
]
SetOption = Annotated[str | None, typer.Option("--set", help="A set that ships: builtin (default).")]
OutOption = Annotated[Path, typer.Option(help="The folder of the table.")]
LimitOption = Annotated[
    int | None, typer.Option(min=1, help="Ask only so many questions, drawn by lot.", show_default=False)
]
MaxCostOption = Annotated[
    float | None, typer.Option(min=0, help="Most that all of it may cost, in USD.", show_default=False)
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Start without asking.")]


def calibrate(
    questions: QuestionsOption = None,
    set_: SetOption = None,
    limit: LimitOption = None,
    samples: Annotated[int, typer.Option(min=1, max=16, help="Answers of each worker to each question.")] = 2,
    judge: Annotated[str, typer.Option(help="The worker that applies rubrics.")] = "",
    max_cost: MaxCostOption = None,
    out: OutOption = OUT,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Calls at a time.")] = 8,
    max_output_tokens: Annotated[int, typer.Option(min=16, help="Most tokens of one answer.")] = 2048,
    seed: Annotated[int, typer.Option(help="The seed of the lots.")] = 1,
    yes: YesOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask every worker graded questions, and write a table of their answers.

    Prints the estimated cost and asks before it starts. The same command continues a cut run, and pays nothing twice.

    Example:  dirigent calibrate --questions my.jsonl --max-cost 3
    """

    async def work() -> int:
        from dirigent.learn.calibrate import Settings

        settings = Settings(
            samples=samples, concurrency=concurrency, max_output_tokens=max_output_tokens, judge=judge, seed=seed
        )
        rows = await asyncio.to_thread(chosen_questions, questions, set_, limit, seed)
        done = await calibrated(rows, settings, out=out, max_cost=max_cost, yes=yes, config=config)
        if done is None:
            return FAILED
        if as_json:
            print_json({"table": str(out), **report(done)})
        tell(done, out, as_json=as_json)
        say(f"next:  dirigent learn {out} --out policy")
        return FAILED if done.stopped else 0

    carry_out(work, as_json=as_json)


def chosen_questions(file: Path | None, set_: str | None, limit: int | None, seed: int) -> list[CalibrationQuestion]:
    """Returns the questions of a file or of the set that ships; of a limit so many, drawn by lot."""
    import random

    from dirigent.errors import ConfigError
    from dirigent.learn.question_file import builtin_questions, load_questions

    if file is not None and set_ is not None:
        raise ConfigError("--questions and --set both name questions; leave one of them out")
    if set_ not in (None, "builtin"):
        raise ConfigError(f'no set is called "{set_}"; there is: builtin. --questions reads a file of yours')
    rows = builtin_questions() if file is None else load_questions(file)
    if limit is None or limit >= len(rows):
        return rows
    lot = sorted(random.Random(f"calibrate {seed}").sample(range(len(rows)), limit))
    return [rows[i] for i in lot]


async def calibrated(
    rows: Sequence[CalibrationQuestion],
    settings: Settings,
    *,
    out: Path,
    max_cost: float | None,
    yes: bool,
    config: Path | None,
) -> Calibration | None:
    """Asks after consent, and writes the table, its cards and the report; None if the user declined."""
    from dirigent.errors import ConfigError
    from dirigent.learn.calibrate import calibrate as ask_all
    from dirigent.learn.calibrate import estimate
    from dirigent.learn.cards import cards_of, write_cards
    from dirigent.learn.journal import Journal

    async with _opened_pool(config) as (_, pool):
        _check(rows, pool, settings)
        with Journal.open(out / JOURNAL, max_cost_usd=max_cost) as journal:
            expected = await asyncio.to_thread(estimate, rows, pool, journal, settings)
            if max_cost is not None and expected.unpriced and expected.calls:
                raise ConfigError(
                    f"--max-cost needs a price for {', '.join(expected.unpriced)}; "
                    "add  price = { input = 0, output = 0 }  to a worker that is free"
                )
            if not _agreed(expected, rows, pool, settings, spent_usd=journal.spent_usd, yes=yes):
                return None
            async with _sandbox(rows) as sandbox:
                with _kept(out), _progress() as observe:
                    done = await ask_all(
                        rows,
                        pool,
                        journal,
                        settings,
                        sandbox=sandbox,
                        observe=observe,
                    )
            if not done.table.answers:
                raise ConfigError(f"no worker gave an answer, so there is no table\n{_failures(done)}".rstrip())
            done.table.save(out)
            write_cards(out, cards_of(done.table))
            _write_report(out / REPORT, done)
    return done


@asynccontextmanager
async def _opened_pool(config: Path | None) -> AsyncIterator[tuple[Runtime, Pool]]:
    """Yields the workers that answer; those that only plan, or cannot be used, are left out."""
    import msgspec

    from dirigent.cli.running import fetch_weights
    from dirigent.config.runtime import NO_WORKER, load, open_runtime
    from dirigent.errors import ConfigError
    from dirigent.planners import planner as planner_named

    loaded = await load(config)
    # A repeated reply would be taken for a second sample.
    workers = tuple(msgspec.structs.replace(worker, cache=False) for worker in loaded.config.worker)
    loaded = msgspec.structs.replace(loaded, config=msgspec.structs.replace(loaded.config, worker=workers))
    async with open_runtime(loaded, cards={}) as runtime:
        for problem in dict.fromkeys(runtime.problems.values()):
            say(f"left out: {problem}")
        await fetch_weights(loaded, unusable=runtime.problems)
        planning = {
            profile.planner_worker
            for profile in loaded.config.profile.values()
            if planner_named(profile.planner).planned_by == "trained worker"
        }
        pool = runtime.pool.without({*planning, *runtime.problems})
        if not [info for info in pool.infos if not info.reads_results and not info.second_step]:
            raise ConfigError(runtime.problem or NO_WORKER)
        yield runtime, pool


def _check(rows: Sequence[CalibrationQuestion], pool: Pool, settings: Settings) -> None:
    if settings.judge:
        pool.require(settings.judge)
        if not any(row.rubric for row in rows):
            say(f'no question has a "rubric", so {settings.judge} judges nothing')
    elif judged := sum(bool(row.rubric) and not row.labelled for row in rows):
        say(f"{judged} questions have a rubric and no answer: without  --judge WORKER  they are only estimated")


def _agreed(
    expected: Estimate,
    rows: Sequence[CalibrationQuestion],
    pool: Pool,
    settings: Settings,
    *,
    spent_usd: float,
    yes: bool,
) -> bool:
    """Prints the estimated cost and time, and asks whether to start, unless nothing must be paid or `yes` was given."""
    from dirigent.errors import ConfigError
    from dirigent.show.words import count_text, usd_text

    if expected.answered:
        say(f"{expected.answered:,} answers are there from before ({usd_text(spent_usd)} spent)")
    if not expected.calls:
        return True
    cost = "free" if not expected.usual_usd and not expected.unpriced else f"about {usd_text(expected.usual_usd)}"
    if expected.most_usd:
        cost += f" (at most {usd_text(expected.most_usd)})"
    if expected.unpriced:
        cost += f" without {', '.join(expected.unpriced)}, whose price is not known,"
    workers = [info for info in pool.infos if not info.reads_results]
    asked = f"{count_text(len(rows), 'question')} × {count_text(len(workers), 'worker')}, "
    asked += (
        f"{count_text(settings.samples, 'sample')}: {expected.calls:,} calls, {cost} and {_time(expected.seconds)}."
    )
    if yes:
        say(asked)
        return True
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"{asked}\nThere is no terminal to ask on: add  --yes  to start")
    say(asked)
    return typer.confirm("Start?", default=True, err=True)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    return f"{math.ceil(seconds / 60):,} minutes"


@asynccontextmanager
async def _sandbox(rows: Sequence[CalibrationQuestion]) -> AsyncIterator[Sandbox | None]:
    """Opens a sandbox if code is graded; without one, such answers stay ungraded."""
    if not any(row.question.grader == "code" for row in rows):
        yield None
        return
    from dirigent.sandbox import SandboxError, open_sandbox

    try:
        opening = open_sandbox()
        sandbox = await opening.__aenter__()
    except SandboxError as error:
        say(f"programs are not graded: {error}")
        yield None
        return
    try:
        yield sandbox
    finally:
        await opening.__aexit__(None, None, None)


@contextmanager
def _kept(out: Path) -> Iterator[None]:
    try:
        yield
    except (asyncio.CancelledError, KeyboardInterrupt):
        say(f"cut: every answer so far is kept in {out}; the same command continues from there")
        raise


@contextmanager
def _progress() -> Iterator[Observe]:
    """A bar on a terminal; elsewhere a line for each tenth."""
    from dirigent.learn.calibrate import CallEnded
    from dirigent.show.words import usd_text

    if not sys.stderr.isatty():
        told: dict[str, int] = {}

        def tell(event: Any) -> None:
            if isinstance(event, CallEnded):
                tenth = event.done * 10 // event.total
                if tenth > told.get(event.stage, 0):
                    told[event.stage] = tenth
                    say(f"{event.stage}: {event.done:,}/{event.total:,}  {usd_text(event.spent_usd)}")

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[cost]}"),
        TimeRemainingColumn(),
        TextColumn("(Ctrl-C keeps paid answers)"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def show(event: Any) -> None:
            if isinstance(event, CallEnded):
                if event.stage not in tasks:
                    tasks[event.stage] = bars.add_task(event.stage, total=event.total, cost="")
                cost = usd_text(event.spent_usd)
                bars.update(tasks[event.stage], completed=event.done, total=event.total, cost=cost)

        yield show


def _write_report(file: Path, done: Calibration) -> None:
    import msgspec

    file.write_bytes(msgspec.json.format(msgspec.json.encode(report(done)), indent=1) + b"\n")


def report(done: Calibration) -> dict[str, Any]:
    """The facts of a table besides its rows."""
    import msgspec

    from dirigent.learn.cards import cards_of

    said = msgspec.to_builtins(done)
    del said["table"]
    return {
        **said,
        "questions": len(done.table.questions),
        "answers": len(done.table.answers),
        "unit": done.table.unit,
        "enough_labels": done.labelled >= LEAST_LABELS,
        "workers": msgspec.to_builtins(cards_of(done.table)),
    }


def tell(done: Calibration, out: Path, *, as_json: bool) -> None:
    """Prints the measured figures (unless stdout gets JSON) and their basis."""
    from dirigent.learn.cards import cards_of
    from dirigent.show.words import count_text, usd_text

    if not as_json:
        print_text(_summary(cards_of(done.table)))
    if failures := _failures(done):
        say(failures)
    for sentence in _cut(done):
        say(sentence)
    if done.judge is not None:
        say(_judge_line(done))
    if done.estimated:
        say(f"{done.estimated:,} answers have no label that graded them: how right they are is an estimate")
    if done.ungraded:
        say(f"{done.ungraded:,} answers could not be graded or compared")
    if done.labelled < LEAST_LABELS:
        say(
            f"{count_text(done.labelled, 'question')} with a label: nothing learned from this table is switched on "
            f"before {LEAST_LABELS}; give answers to {LEAST_LABELS - done.labelled} more"
        )
    spent = f"spent {usd_text(done.spent_usd)}"
    if done.lost_usd:
        spent += f", of it {usd_text(done.lost_usd)} set aside by a run that was killed"
    say(f"{spent} · table: {out}")
    if done.stopped:
        say(f"stopped: {done.stopped}")


def _summary(cards: Sequence[Card]) -> str:
    header = ("worker", "right (95%)", "questions", "cost", "median", "strong at", "weak at")
    rows = []
    for card in cards:
        right = card.right
        if right is None:
            share, count = "unknown", "–"
        else:
            share = f"{right.right:.1%}  {right.low:.1%}–{right.high:.1%}" + (" estimate" if card.estimated else "")
            count = str(right.questions)
        ends = [", ".join(f"{kind.kind} {kind.right:.0%}" for kind in kinds) for kinds in (card.strong, card.weak)]
        rows.append(
            (card.worker, share, count, _cost_text(card), f"{card.seconds:.1f} s", *(end or "–" for end in ends))
        )
    return table(header, rows, right=(2, 3, 4))


def _cost_text(card: Card) -> str:
    """Returns $2.68 per 1,000, or the cost in the table's own unit."""
    if card.unit == "usd":
        return f"${card.cost * 1000:.3g} / 1,000" if card.cost else "free"
    return f"{card.cost:,.1f} {card.unit}"


MANY_CUT = 0.1
"""A share of answers without an end that says more of a limit than of its worker."""


def _cut(done: Calibration) -> list[str]:
    lines = []
    for worker in done.table.workers:
        ends = [answer.ended for answer in done.table.answers if answer.worker == worker.name]
        cut = ends.count(False)
        if cut > MANY_CUT * len(ends):
            lines.append(
                f"{worker.name}: {cut} of {len(ends)} answers were cut at their limit of tokens; "
                "raise its max_output_tokens, or --max-output-tokens"
            )
    return lines


def _failures(done: Calibration) -> str:
    lines = []
    for one in done.failures:
        what = "failed every time" if one.always else f"failed {one.failed} of {one.failed + one.answered} calls"
        lines.append(f"{one.worker} {what}; the last error: {one.last}")
    return "\n".join(lines)


def _judge_line(done: Calibration) -> str:
    judge = done.judge
    assert judge is not None
    if not judge.of:
        return (
            f"judge {judge.worker}: its agreement with labels is not measured, as no question with an answer was judged"
        )
    line = f"judge {judge.worker}: agrees with labels on {judge.agreed} of {judge.of} "
    line += f"({judge.agreed / judge.of:.0%}, {judge.low:.0%}–{judge.high:.0%}); its verdicts count as estimates"
    return line + (f"; {judge.unreadable} verdicts were neither yes nor no" if judge.unreadable else "")
