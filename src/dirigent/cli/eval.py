"""`dirigent eval`: planners compared on the same questions, over the same workers.

The table and the verdict go to stdout, progress to stderr. The report is written as JSON and Markdown, the outcomes
beside it as they come, so that a run that was cut goes on with `--resume` and pays for nothing twice.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dirigent.cli.output import FAILED, JsonOption, carry_out, print_json, print_text, say

if TYPE_CHECKING:
    from dirigent.evals.evaluate import Keep
    from dirigent.evals.gym import Gym, GymSettings
    from dirigent.evals.record import Record
    from dirigent.evals.recorded import RecordedSet
    from dirigent.evals.report import Report
    from dirigent.messages import Event, Observe

TasksOption = Annotated[
    str,
    typer.Option(help="gym; with --pool, tasks of its file or (--data) benchmarks: gsm8k, math500, ...; by commas."),
]
PlannersOption = Annotated[
    str,
    typer.Option(
        help="best, single:NAME, random, right, oracle, ceiling, warm-start, conductor; with --pool: each, best, "
        "cheapest, random, vote, weighted-vote, escalate, knn, oracle; by commas. Default: best,oracle,ceiling or all.",
        show_default=False,
    ),
]
WorkersOption = Annotated[str, typer.Option(help="exact: answers from the tables; local: adapters on this CPU.")]


def evaluate(
    tasks: TasksOption = "gym",
    planners: PlannersOption = "",
    limit: Annotated[int, typer.Option(help="Questions.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the questions, the pools and the workers' noise.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="The report, as JSON. Default: reports/TASKS-SPLIT-SEED.json")
    ] = None,
    pool: Annotated[str, typer.Option(help="recorded:FILE: replay the models whose answers it holds.")] = "",
    data: Annotated[Path | None, typer.Option(help="Folder or file with the benchmarks that --tasks names.")] = None,
    workers: WorkersOption = "exact",
    adapters: Annotated[Path | None, typer.Option(help="Folder of NAME.gguf adapters, for models.")] = None,
    split: Annotated[str, typer.Option(help="test, dev, or novel (a skill never trained on).")] = "test",
    cards: Annotated[str, typer.Option(help="Wording of the workers' cards: train or held_out.")] = "train",
    calibration: Annotated[int, typer.Option(help="Questions that choose the best worker and the ceiling.")] = 300,
    concurrency: Annotated[int, typer.Option(help="Questions at a time.")] = 8,
    max_cost: Annotated[float | None, typer.Option(help="Most the evaluation may cost, in USD.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an earlier run was cut.")] = False,
    traces: Annotated[bool, typer.Option("--traces", help="Keep every run's trace in the store.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare planners on the same questions: does conducting pay?

    Example:  dirigent eval --tasks gym --planners best,oracle,ceiling --limit 200
    """

    async def work() -> int:
        from dirigent.evals.gym import GymSettings

        names = [name.strip() for name in planners.split(",") if name.strip()]
        if pool:
            file = _report_file(out or Path("reports") / f"recorded-{seed}.json")
            replayed = await _evaluate_recorded(
                names,
                pool,
                tasks=[name.strip() for name in tasks.split(",") if name.strip() not in ("", "gym")],
                data=data,
                limit=limit,
                seed=seed,
                file=file,
                concurrency=concurrency,
                max_cost_usd=max_cost,
                resume=resume,
                traces=traces,
            )
            return _tell(replayed, file, as_json=as_json)
        _check(tasks=tasks, split=split, cards=cards)
        settings = GymSettings(
            split=split,  # type: ignore[arg-type]  # checked above
            limit=limit,
            seed=seed,
            cards=cards,  # type: ignore[arg-type]
            calibration=calibration,
        )
        file = _report_file(out or Path("reports") / f"{tasks}-{split}-{seed}.json")
        report = await _evaluate(
            names or ["best", "oracle", "ceiling"],
            settings,
            file=file,
            workers=workers,
            adapters=adapters,
            concurrency=concurrency,
            max_cost_usd=max_cost,
            resume=resume,
            traces=traces,
        )
        return _tell(report, file, as_json=as_json)

    carry_out(work, as_json=as_json)


def _check(*, tasks: str, split: str, cards: str) -> None:
    """Names that would only fail later, or not at all."""
    from dirigent.errors import ConfigError
    from dirigent.tasks.benchmarks import BENCHMARKS
    from dirigent.toml import nearest

    if any(name.strip() in BENCHMARKS for name in tasks.split(",")):
        raise ConfigError(f"{tasks} needs models that answer: add  --pool recorded:FILE  with their recorded answers")
    for what, word, known in (
        ("family of tasks", tasks, ("gym",)),
        ("split", split, ("test", "dev", "novel")),
        ("wording of cards", cards, ("train", "held_out")),
    ):
        if word not in known:
            raise ConfigError(f'no {what} is called "{word}"{nearest(word, known)}')


def _report_file(file: Path) -> Path:
    """Where the report goes; the page and the outcomes stand beside it under endings of their own."""
    from dirigent.errors import ConfigError

    if file.suffix in (".md", ".jsonl"):
        raise ConfigError(f"--out {file} is where the {file.suffix} beside the report goes; end it in .json")
    return file


async def _evaluate(
    planners: list[str],
    settings: GymSettings,
    *,
    file: Path,
    workers: str,
    adapters: Path | None,
    concurrency: int,
    max_cost_usd: float | None,
    resume: bool,
    traces: bool,
) -> Report:
    from datetime import UTC, datetime

    from dirigent.evals.commit import source_commit
    from dirigent.evals.gym import Gym, check_planners, evaluate_gym, roster_of
    from dirigent.evals.gym_workers import gym_workers
    from dirigent.evals.record import Record
    from dirigent.limits import Budget
    from dirigent.weights import FOLDER

    outcomes = file.with_suffix(".jsonl")
    roster = roster_of(settings)
    async with gym_workers(workers, planners, roster, adapters=adapters) as (worker_for, factories):
        check_planners(planners, factories)
        gym = Gym(settings, worker_for)
        about = _about(gym, workers=workers, adapters=adapters or FOLDER)
        with (
            Record.open(outcomes, about, resume=resume) as record,
            _resumable(record, outcomes),
            _progress(planners) as observe,
        ):
            budget = Budget(max_cost_usd=max_cost_usd, what="the evaluation")
            budget.spent_usd = record.cost_usd
            async with _keeping(traces) as keep:
                return await evaluate_gym(
                    gym,
                    planners,
                    workers=workers,
                    factories=factories,
                    record=record,
                    concurrency=concurrency,
                    budget=budget,
                    commit=await source_commit(),
                    date=datetime.now(UTC).date().isoformat(),
                    keep=keep,
                    observe=observe,
                )


async def _evaluate_recorded(
    planners: list[str],
    pool: str,
    *,
    tasks: list[str],
    data: Path | None,
    limit: int,
    seed: int,
    file: Path,
    concurrency: int,
    max_cost_usd: float | None,
    resume: bool,
    traces: bool,
) -> Report:
    from datetime import UTC, datetime

    from dirigent.evals.commit import source_commit
    from dirigent.evals.record import Record, digest
    from dirigent.evals.recorded import RecordedSettings, default_planners, evaluate_recorded, expanded
    from dirigent.limits import Budget

    questions = _recorded_questions(pool, tasks=tasks, data=data, limit=limit)
    names = expanded(planners or default_planners(questions), questions)
    settings = RecordedSettings(seed=seed)
    outcomes = file.with_suffix(".jsonl")
    about = {"pool": pool, "questions": digest(questions.tasks), "seed": str(seed), "folds": str(settings.folds)}
    with (
        Record.open(outcomes, about, resume=resume) as record,
        _resumable(record, outcomes),
        _progress(names) as observe,
    ):
        budget = Budget(max_cost_usd=max_cost_usd, what="the evaluation")
        budget.spent_usd = record.cost_usd
        async with _keeping(traces) as keep:
            return await evaluate_recorded(
                questions,
                names,
                settings=settings,
                record=record,
                concurrency=concurrency,
                budget=budget,
                commit=await source_commit(),
                date=datetime.now(UTC).date().isoformat(),
                keep=keep,
                observe=observe,
            )


def _recorded_questions(pool: str, *, tasks: list[str], data: Path | None, limit: int) -> RecordedSet:
    """The pool's own questions, or those of the benchmarks named that it holds answers to."""
    from dirigent.errors import ConfigError
    from dirigent.evals.recorded import load_recorded, of_benchmarks
    from dirigent.tasks.benchmarks import load_benchmark

    kind, _, path = pool.partition(":")
    if kind != "recorded" or not path:
        raise ConfigError(f"--pool {pool}: write  --pool recorded:FILE  with a file of recorded answers")
    if limit < 1:
        raise ConfigError(f"limit must be 1 or more, not {limit}")
    file = Path(path).expanduser()
    if data is None:
        return load_recorded(file, limit=limit, tasks=tasks)
    if not tasks:
        raise ConfigError(f"--data {data} needs  --tasks  with the benchmarks to take from it")
    wanted = [task for name in tasks for task in load_benchmark(name, data)]
    return of_benchmarks(load_recorded(file), wanted, limit=limit)


def _about(gym: Gym, *, workers: str, adapters: Path) -> dict[str, str]:
    """What an outcome depends on: going on with anything else would mix two evaluations."""
    import msgspec

    from dirigent.evals.gym_workers import adapters_digest
    from dirigent.evals.record import digest

    return {name: str(value) for name, value in msgspec.structs.asdict(gym.settings).items()} | {
        "tasks": "gym",
        "questions": digest(gym.tasks),
        "workers": workers,
        "adapters": adapters_digest(adapters),
    }


@contextmanager
def _resumable(record: Record, file: Path) -> Iterator[None]:
    """Say, when cut, that nothing is lost."""
    if record.count:
        say(f"{record.count:,} outcomes from before are kept")
    try:
        yield
    except (asyncio.CancelledError, KeyboardInterrupt):
        say(f"cut: {record.count:,} outcomes are kept in {file}; --resume goes on from them")
        raise


@asynccontextmanager
async def _keeping(traces: bool) -> AsyncIterator[Keep | None]:
    if not traces:
        yield None
        return
    from dirigent.runtime import load, open_store

    async with open_store((await load()).config) as store:
        yield store.save


def _tell(report: Report, file: Path, *, as_json: bool) -> int:
    """Write the report and print it; the exit code."""
    from dirigent.errors import ConfigError
    from dirigent.evals.report import as_json as encoded
    from dirigent.evals.report import as_markdown, as_table

    page = file.with_suffix(".md")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(report))
        page.write_text(as_markdown(report), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {file}: {error}") from None
    if as_json:
        print_json(report)
    else:
        print_text(as_table(report))
    say(f"report: {file}, {page}")
    return 0 if report.complete else FAILED


@contextmanager
def _progress(planners: Sequence[str]) -> Iterator[Observe]:
    """A bar a planner with its accuracy and cost so far; off a terminal, a line for each when it is done."""
    from dirigent.evals.evaluate import Evaluated, OutOfMoney

    with _bars(planners) as bars:
        tallies: dict[str, _Tally] = {}

        def observe(event: Event) -> None:
            if isinstance(event, OutOfMoney):
                say(f"stopped: {event.error}")
            elif isinstance(event, Evaluated):
                name = event.outcome.planner
                if event.outcome.tags.get("split") == "train":
                    name += " on the training split"
                tally = tallies.setdefault(name, _Tally(name, event.total))
                tally.add(event.outcome)
                bars.show(tally)

        yield observe


class _Tally:
    """How one planner stands."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total = name, total
        self.done = self.right = 0
        self.cost_usd = 0.0

    def add(self, outcome: Any) -> None:
        self.done += 1
        self.right += outcome.correct
        self.cost_usd += outcome.cost_usd

    @property
    def text(self) -> str:
        from dirigent.show.words import usd_text

        return f"right {self.right / max(self.done, 1):6.1%}  {usd_text(self.cost_usd)}"


@contextmanager
def _bars(planners: Sequence[str]) -> Iterator[_Lines]:
    if not sys.stderr.isatty():
        yield _Lines(planners)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[said]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bars(planners, progress)


class _Lines:
    """One line for each planner that is done; what only prepares or adds up to a figure passes silently."""

    def __init__(self, planners: Sequence[str]) -> None:
        self._planners = planners

    def show(self, tally: _Tally) -> None:
        if tally.done == tally.total and tally.name in self._planners:
            say(f"{tally.name}: {tally.text}")


class _Bars(_Lines):
    """A bar for each planner, and for what prepares as long as it takes."""

    def __init__(self, planners: Sequence[str], progress: Any) -> None:
        super().__init__(planners)
        self._progress = progress
        self._ids: dict[str, Any] = {}

    def show(self, tally: _Tally) -> None:
        if tally.name not in self._ids:
            self._ids[tally.name] = self._progress.add_task(tally.name, total=tally.total, said="")
        shown = tally.name in self._planners or tally.done < tally.total
        self._progress.update(self._ids[tally.name], completed=tally.done, said=tally.text, visible=shown)
