"""Questions from elsewhere over the shipped specialists: handwritten ones and a public library's, family by family.

    python gym/benchmarks/elsewhere.py [--limit N] [--out docs/results/elsewhere.json]

Workers that answer by table know only the generator's words, so they cannot answer a plan that passes a person's words
on, right or not: `must.py` and `claims.py` can only check whether the right workers were asked. Here the trained
specialists answer, in any words. The conductor plans in llama.cpp on the 4-bit base, greedily, under the grammar. The
right plan with subtasks in the generator's words is shown beside it: the best that these specialists can reach.

Every outcome is recorded in reports/ at once, so an interrupted run continues when it is started again; `--anew` begins
afresh. Writes JSON and the page beside it. Needs the extra `local`; takes about 15 minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gym.benchmarks.must import about_of, named, progress_printer

from dirigent.errors import DirigentError
from dirigent.evals.evaluate import answers_of
from dirigent.evals.record import Outcome, Record, source_commit
from dirigent.planners.spec import PlannerFor
from dirigent.tasks.task import Task
from dirigent.workers.adapters import packaged
from dirigent_gym.evals.evaluation import RIGHT, GymField
from dirigent_gym.evals.pools import Gym, GymSettings, WorkerFor, roster_of
from dirigent_gym.evals.workers import gym_workers
from dirigent_gym.questions.reasoning import FAMILIES
from dirigent_gym.train.controls import Share, share
from dirigent_gym.weights import FOLDER

ROOT = Path(__file__).resolve().parents[2]
CONDUCTOR = "conductor"
SETS = ("handwritten", "reasoning", "plain")
ALL = 1000
"""More questions than any of the sets has."""

Pick = Callable[[Task], bool]


class Line(msgspec.Struct, frozen=True):
    """The conductor's figures on some of the questions. A field that is None was lost to the infrastructure."""

    name: str
    answers: Share | None
    """The share of right answers."""
    workers: Share | None
    """The share of plans with as many steps as needed, each by a worker that can do one of them."""
    wired: Share | None
    """The share of plans in which each of these steps also reads what it needs and no more."""
    right_plan: Share | None
    """The share of right answers of the right plan, with subtasks in the generator's words."""


class Elsewhere(msgspec.Struct, frozen=True):
    """The content of the file: the lines, and the facts that support them."""

    table: list[Line]
    seed: int
    adapters: dict[str, str]
    """Name -> sha256 of the file."""
    commit: str
    date: str
    seconds: float
    """The duration of this start of the program; a resumed one took longer in all."""


def main() -> None:
    args = _arguments()
    began = time.monotonic()
    settings = GymSettings(sets=SETS, limit=args.limit, seed=args.seed)
    try:
        about = about_of(settings, args)
        table = asyncio.run(measured(args, settings, about))
    except DirigentError as error:
        sys.exit(f"error: {error}")
    names = {CONDUCTOR, *(specialist.name for specialist in roster_of(settings))}
    found = Elsewhere(
        table,
        args.seed,
        {name: _sha256(file) for name, file in packaged(args.adapters).items() if name in names},
        asyncio.run(source_commit()),
        datetime.now(UTC).date().isoformat(),
        round(time.monotonic() - began, 1),
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    args.out.with_suffix(".md").write_text(as_page(found), encoding="utf-8")
    print(as_page(found))


async def measured(args: argparse.Namespace, settings: GymSettings, about: Mapping[str, str]) -> list[Line]:
    file = args.work / f"elsewhere-{named(about)}.jsonl"
    opened = gym_workers("local", (CONDUCTOR,), roster_of(settings), adapters=args.adapters)
    with Record.open(file, about, resume=not args.anew) as record:
        async with opened as (worker_for, factories):
            return await gathered(settings, worker_for, factories, record)


async def gathered(
    settings: GymSettings, worker_for: WorkerFor, factories: Mapping[str, PlannerFor], record: Record
) -> list[Line]:
    """The conductor's plans and the right ones, carried out. Recorded questions are not asked again."""
    gym = Gym(settings, worker_for)
    field = GymField(gym, trained=factories)
    await answers_of(field, (CONDUCTOR, RIGHT), record=record, observe=progress_printer())
    return [_line(name, [task for task in gym.tasks if pick(task)], record) for name, pick in parts(gym)]


def parts(gym: Gym) -> list[tuple[str, Pick]]:
    """The lines of the table: each set, the handwritten questions by depth, the library's by family."""

    def of(name: str, pick: Pick = lambda task: True) -> Pick:
        return lambda task: gym.set_of(task.id) == name and pick(task)

    return [
        ("written by hand", of("handwritten")),
        *((f"written by hand, depth {d}", of("handwritten", lambda t, d=d: t.depth == d)) for d in (1, 2, 3, 4)),  # type: ignore[misc]
        ("reasoning-gym", of("reasoning")),
        *((f"reasoning-gym, {f}", of("reasoning", lambda t, f=f: t.tags["family"] == f)) for f in FAMILIES),  # type: ignore[misc]
        ("as people type", of("plain")),
        *((f"as people type, depth {d}", of("plain", lambda t, d=d: t.depth == d)) for d in (1, 2, 3, 4)),  # type: ignore[misc]
    ]


def as_page(found: Elsewhere) -> str:
    head = (
        "# Questions from elsewhere, over the specialists that ship\n\n"
        "Some questions were written by hand, others come from the public library reasoning-gym, as recorded. No model "
        "was trained on any of them. The questions *as people type* were written by hand too, in plain words near the "
        "generator's own; they serve development and prove nothing. `conductor.gguf` plans and the packaged "
        "specialists answer, through llama.cpp on the 4-bit base; pools of 3 "
        f"to 8, seed {found.seed}. Conductor with sha256 `{found.adapters.get(CONDUCTOR, '')[:12]}`, commit "
        f"`{found.commit or 'unknown'}`, {found.date}; made by `python gym/benchmarks/elsewhere.py`. In brackets: 95% "
        "intervals.\n"
    )
    lines = [
        "| questions | n | right answers | right workers | and each reads what it needs | the right plan's answers |",
        "|---|---|---|---|---|---|",
    ]
    for line in found.table:
        n = line.answers.n if line.answers else 0
        cells = (line.answers, line.workers, line.wired, line.right_plan)
        lines.append(f"| {line.name} | {n} | {' | '.join(map(_share_text, cells))} |")
    foot = (
        "The right plan has its subtasks in the generator's words, to which the specialists were fitted, so it shows "
        "their limit. A plan may also be right with other workers than the cheapest one's, or with more steps.\n"
    )
    return f"{head}\n" + "\n".join(lines) + f"\n\n{foot}"


def _line(name: str, tasks: Sequence[Task], record: Record) -> Line:
    def of(planner: str) -> list[Outcome]:
        return [found for task in tasks if (found := record.finished(planner, task.id)) is not None]

    return Line(
        name,
        answers=share(outcome.value for outcome in of(CONDUCTOR)),
        workers=share(outcome.marks.get("placed", False) for outcome in of(CONDUCTOR)),
        wired=share(outcome.marks.get("wired", False) for outcome in of(CONDUCTOR)),
        right_plan=share(outcome.value for outcome in of(RIGHT)),
    )


def _share_text(found: Share | None) -> str:
    if found is None:
        return "–"
    low, high = found.interval
    return f"{found.value:.1%} ({low * 100:.1f}–{high * 100:.1f})"


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=ALL, help="the most questions of each set; all by default")
    parser.add_argument("--adapters", type=Path, default=FOLDER, help="a folder in place of the package's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, default=ROOT / "reports", help="folder for outcomes")
    parser.add_argument("--anew", action="store_true", help="ask everything again")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "elsewhere.json")
    args = parser.parse_args()
    args.workers = "local"
    if args.limit < 1:
        parser.error("--limit is a count of questions, 1 or more")
    return args


if __name__ == "__main__":
    main()
