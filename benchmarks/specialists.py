"""Who can do what, of the specialists that ship: every one on every skill, and alone on the test.

    python benchmarks/specialists.py --a-skill 20 --own 100 --test 60 --out docs/results/specialists.json

As users run them: the packaged adapters on the 4-bit base, through llama.cpp on this CPU, with the settings that
`dirigent ask` gives them on a machine without keys. Questions are asked directly or with earlier results; the checker
gets candidates, the cheap twin small and large numbers apart, the noisy one is sampled at temperature 1 (seeded), all
others answer greedily. Each worker is asked more of its own skill, since 20 questions cannot tell 98% from 95%.

Writes JSON (figures, counts, commit, hashes of the files) and the page beside it; both only when all is measured. A run
that was cut is taken up where it was: each worker's marks are kept in a hidden file beside --out until the end.
`--page` writes the page anew from a JSON that is there. About 20 minutes on two cores with
`--a-skill 10`. Needs the extra `local`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from dirigent.config import parse_config
from dirigent.errors import ConfigError, DirigentError
from dirigent.evals.commit import source_commit
from dirigent.evals.gym_workers import BASE_WEIGHTS, find_adapters
from dirigent.evals.stats import wilson
from dirigent.gympool import CONDUCTOR, gym_toml
from dirigent.messages import Message, Request
from dirigent.runtime import open_runtime
from dirigent.tasks.gym.judging import (
    Exam,
    Marks,
    Matrix,
    asked_of,
    conversations_for,
    exam_of,
    is_own,
    markdown,
    marked,
    matrix_of,
    percent,
)
from dirigent.tasks.gym.skills import PUZZLE_SKILL
from dirigent.tasks.gym.specialists import ROSTER, find_specialist
from dirigent.weights import FOLDER
from dirigent.worker import Worker
from dirigent.workers.weights import known

ROOT = Path(__file__).resolve().parents[1]
GOAL = 0.98
"""What a specialist should reach on its own skill."""
POOR = 0.10
"""A worker that is right more often than this on another's skill is named."""
MOST_ALONE = 0.30
"""What no worker should reach on the test alone."""
AT_ONCE = 4
"""Requests under one adapter are computed together, and the server has as many places."""

Say = Callable[[str], None]


class Count(msgspec.Struct, frozen=True):
    right: int
    of: int

    @property
    def share(self) -> float:
        return self.right / self.of if self.of else 0.0


class Own(msgspec.Struct, frozen=True):
    """A specialist on what it is for."""

    direct: Count
    reading: Count
    """Asked with earlier results."""
    operations: dict[str, Count] = {}

    @property
    def all(self) -> Count:
        return Count(self.direct.right + self.reading.right, self.direct.of + self.reading.of)


class Results(msgspec.Struct, frozen=True):
    """The matrix, and the counts behind it."""

    matrix: Matrix
    counts: dict[str, dict[str, Count]]
    """Worker -> column -> how many were right."""
    own: dict[str, Own]
    alone: dict[str, Count]


class Kept(msgspec.Struct, frozen=True):
    """One worker's marks, on the disk until all are there."""

    worker: str
    sha256: str
    exam: str
    """Hash of all that was asked."""
    marks: Marks
    seconds: float


class Measured(msgspec.Struct, frozen=True):
    """What is written: the results, and what it takes to measure them again."""

    results: Results
    base: dict[str, str]
    """Name of the base -> sha256 of its file."""
    adapters: dict[str, str]
    """Worker -> sha256 of its file."""
    commit: str
    date: str
    seconds: float
    cores: int


def main() -> None:
    args = _arguments()
    try:
        if args.out.suffix != ".json":
            raise ConfigError(f"--out {args.out}: name a .json file; the page is written beside it")
        if args.page:
            measured = read(args.out)
        else:
            measured = asyncio.run(measure(_exam(args), out=args.out, say=_say))
    except DirigentError as error:
        sys.exit(f"error: {error}")
    args.out.write_bytes(msgspec.json.format(msgspec.json.encode(measured), indent=1) + b"\n")
    args.out.with_suffix(".md").write_text(as_page(measured), encoding="utf-8")
    if not args.page:
        scratch_of(args.out).unlink()
    print(as_page(measured))


def _exam(args: argparse.Namespace) -> Exam:
    if args.a_skill < 1:
        raise ConfigError(f"--a-skill {args.a_skill}: ask at least one question a skill")
    return exam_of(args.a_skill, own=args.own, test=args.test)


async def measure(exam: Exam, *, out: Path, say: Say) -> Measured:
    """The shipped files, all of them; `out` is beside what an earlier run may have kept."""
    files = find_adapters(FOLDER, [CONDUCTOR, *(specialist.name for specialist in ROSTER)])
    shas = {specialist.name: _sha256(files[specialist.name].read_bytes()) for specialist in ROSTER}
    out.parent.mkdir(parents=True, exist_ok=True)
    asked = _sha256(msgspec.json.encode(exam))
    kept = read_kept(scratch_of(out), shas, exam=asked)
    async with shipped() as workers:
        for number, (name, worker) in enumerate(workers.items(), 1):
            if name not in kept:
                began = time.monotonic()
                marks = await examine(name, worker, exam)
                kept[name] = Kept(name, shas[name], asked, marks, round(time.monotonic() - began, 1))
                keep(kept[name], scratch_of(out))
            say(f"{number} of {len(workers)}: {_in_short(exam, kept[name])}")
    return Measured(
        results_of(exam, {name: kept[name].marks for name in shas}),
        base={BASE_WEIGHTS: known(BASE_WEIGHTS).sha256},
        adapters=shas,
        commit=await source_commit(),
        date=datetime.now(UTC).date().isoformat(),
        seconds=round(sum(kept[name].seconds for name in shas), 1),
        cores=os.cpu_count() or 0,
    )


@asynccontextmanager
async def shipped() -> AsyncIterator[dict[str, Worker]]:
    """The specialists by name, built from the very text that a machine without keys runs on."""
    names = [specialist.name for specialist in ROSTER]
    async with open_runtime(parse_config(gym_toml({CONDUCTOR, *names}))) as runtime:
        for name in names:
            if problem := runtime.problems.get(name):
                raise ConfigError(problem)
        yield {name: runtime.pool[name] for name in names}


async def examine(name: str, worker: Worker, exam: Exam) -> Marks:
    """One worker through its whole exam. Workers take turns: the server does not compute two adapters together."""
    return marked(exam, name, await replies_of(worker, conversations_for(exam, name)))


async def replies_of(worker: Worker, conversations: Sequence[tuple[Message, ...]]) -> list[str]:
    """What the worker says to each; a question's number is the seed of one that samples."""
    places = asyncio.Semaphore(AT_ONCE)

    async def reply(number: int, messages: tuple[Message, ...]) -> str:
        async with places:
            return (await worker.ask(Request(messages, seed=number))).text.strip()

    return await asyncio.gather(*(reply(number, messages) for number, messages in enumerate(conversations)))


def scratch_of(out: Path) -> Path:
    return out.with_name(f".{out.stem}.jsonl")


def keep(kept: Kept, file: Path) -> None:
    before = file.read_bytes() if file.exists() else b""
    cut = b"" if before[-1:] in (b"", b"\n") else b"\n"  # what a killed run leaves is on a line of its own
    with file.open("ab") as lines:
        lines.write(cut + msgspec.json.encode(kept) + b"\n")


def read_kept(file: Path, shas: Mapping[str, str], *, exam: str) -> dict[str, Kept]:
    """What an earlier run got done of the same exam, by the same files."""
    found = {}
    for line in file.read_bytes().splitlines() if file.exists() else ():
        try:
            kept = msgspec.json.decode(line, type=Kept)
        except msgspec.DecodeError:  # the last line of a run that was killed while it wrote
            continue
        if kept.exam == exam and shas.get(kept.worker) == kept.sha256:
            found[kept.worker] = kept
    return found


def _in_short(exam: Exam, kept: Kept) -> str:
    own, alone = own_of(exam, kept.worker, kept.marks).all, count(kept.marks.alone)
    return f"{kept.worker}, own skill {_of(own)}, test alone {_of(alone)}, {kept.seconds:.0f} s"


def results_of(exam: Exam, marks: Mapping[str, Marks]) -> Results:
    return Results(
        matrix_of(exam, marks),
        counts={n: {column: count(hits) for column, hits in mark.skills.items()} for n, mark in marks.items()},
        own={name: own_of(exam, name, mark) for name, mark in marks.items()},
        alone={name: count(mark.alone) for name, mark in marks.items()},
    )


def own_of(exam: Exam, name: str, marks: Marks) -> Own:
    asked = asked_of(exam, name)
    own = [
        (question, hit)
        for column in asked
        if is_own(name, column)
        for question, hit in zip(asked[column], marks.skills[column], strict=True)
    ]
    operations = dict.fromkeys(question.operation for question, _ in own)
    return Own(
        direct=count([hit for question, hit in own if not question.reads]),
        reading=count([hit for question, hit in own if question.reads]),
        operations={op: count([hit for question, hit in own if question.operation == op]) for op in operations},
    )


def count(hits: Sequence[bool]) -> Count:
    return Count(sum(hits), len(hits))


def read(file: Path) -> Measured:
    """What an earlier run wrote."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Measured)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file} holds no matrix ({error}); measure one first, without --page") from None


def as_page(measured: Measured) -> str:
    """The page of the docs: the table, who falls short, and how much of the test one worker solves."""
    results = measured.results
    own = [said for name in results.own if (said := _own_line(name, results.own[name]))]
    rest = "Every other specialist is right in at least 98% of its own." if own else "Every specialist reaches 98%."
    notes = [*own, rest, _others_line(results.counts), *_checker_line(results), _alone_line(results.alone)]
    return "\n".join(
        [
            "# The specialists: who can do what",
            "",
            HOW.format(base=", ".join(measured.base), cores=measured.cores),
            "",
            markdown(results.matrix),
            *(f"- {note}" for note in notes),
            "",
            f"`{_command(results.matrix)}`, {measured.date}, {measured.seconds / 60:.0f} minutes; commit "
            f"`{measured.commit or 'unknown'}`. Counts and the hashes of all files are in `specialists.json` beside "
            "this page.",
            "",
        ]
    )


HOW = """\
The files that ship, as users run them: the packaged adapters on the 4-bit {base}, through llama.cpp on {cores} CPU
cores. Rows are workers, columns are skills, a worker's own are **bold**. All operations of a skill are asked alike
often, so one that fails weighs less here than on the model card, which asks large tables more. Questions are direct or
with earlier results; the checker chooses among candidates; small and large numbers are apart, since the cheap twin
`sums` is for small ones only; the guesser is sampled at temperature 1, the others answer greedily. A reply counts if it
is the bare answer and nothing else."""


def _command(matrix: Matrix) -> str:
    own = matrix.own_questions or matrix.questions_a_skill
    sizes = f"--a-skill {matrix.questions_a_skill} --own {own} --test {matrix.test_questions}"
    return f"python benchmarks/specialists.py {sizes}"


def _own_line(name: str, own: Own) -> str:
    """What must be said of a specialist on its own skill; nothing where it reaches the goal."""
    specialist = find_specialist(name)
    figure = f"{_interval(own.all)}; asked directly {_of(own.direct)}, with earlier results {_of(own.reading)}"
    if specialist.noise:
        return f"`{name}` is meant to be right {100 * (1 - specialist.noise):.0f}% of the time: {figure}."
    if own.all.share >= GOAL:
        return ""
    weak = [f"{op.split('.')[1]} {_of(found)}" for op, found in own.operations.items() if found.share < GOAL]
    return f"**`{name}` is short of {100 * GOAL:.0f}% on its own skill**: {figure}; by operation: {', '.join(weak)}."


def _others_line(counts: Mapping[str, Mapping[str, Count]]) -> str:
    """How often anybody is right on what is not its own, those apart who often are."""
    others = {(n, column): c for n, row in counts.items() for column, c in row.items() if not is_own(n, column)}
    able = {cell: c for cell, c in others.items() if c.share > POOR}
    rest = [c for cell, c in others.items() if cell not in able]
    total = Count(sum(c.right for c in rest), sum(c.of for c in rest))
    named = ", ".join(f"`{name}` on {column} ({_of(c)})" for (name, column), c in able.items())
    said = f"On skills that are not their own the workers are right in {_of(total)}"
    return f"{said}, not counting {named}." if able else f"{said}."


def _checker_line(results: Results) -> list[str]:
    """A checker that solves would make the guesser's plan needless."""
    return [
        f"`{name}` without candidates solves {_of(results.counts[name][PUZZLE_SKILL])} puzzles."
        for name in results.counts
        if find_specialist(name).role == "checker"
    ]


def _alone_line(alone: Mapping[str, Count]) -> str:
    best = max(alone, key=lambda name: alone[name].share, default="")
    if not best or not alone[best].of:
        return "The test was not put to anybody alone."
    verdict = "no more than" if alone[best].share <= MOST_ALONE else "**more than**"
    return (
        f"The largest share of the test that one worker solves alone: `{best}`, {_interval(alone[best])}; "
        f"{verdict} the {100 * MOST_ALONE:.0f}% allowed."
    )


def _interval(count: Count) -> str:
    low, high = wilson(count.right, count.of)
    return f"{percent(count.share)}% ({_of(count)}; 95% interval {percent(low)} to {percent(high)})"


def _of(count: Count) -> str:
    return f"{count.right} of {count.of}"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--a-skill", type=int, default=20, metavar="N", help="questions of each skill to each worker")
    parser.add_argument("--own", type=int, default=100, metavar="N", help="questions of a worker's own skill")
    parser.add_argument("--test", type=int, default=60, metavar="N", help="whole questions of the test to each worker")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "specialists.json", help="a .json file")
    parser.add_argument("--page", action="store_true", help="only write the page of --out anew")
    return parser.parse_args()


if __name__ == "__main__":
    main()
