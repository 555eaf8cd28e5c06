"""Who can do what, of the specialists that ship: every one on every skill, and alone on the test.

    python benchmarks/specialists.py --a-skill 20 --own 100 --test 60 --out docs/results/specialists.json
    python benchmarks/specialists.py --part guesser checker        # these two anew, the matrix kept as it is

As users run them: the packaged adapters on the 4-bit base, through llama.cpp on this CPU, with the settings that
`dirigent ask` gives them on a machine without keys. Questions are asked directly or with earlier results; the checker
gets candidates, the cheap twin small and large numbers apart, the noisy one is sampled at temperature 1 (seeded), all
others answer greedily. Each worker is asked more of its own skill, since 20 questions cannot tell 98% from 95%.

Three parts, each with the commit and the date it was measured at: the `matrix`; the `guesser` on every puzzle many
times over, since 100 guesses cannot tell 70% from 63%, and whether the guesses of one run are independent; the
`checker` on the same puzzles without candidates. `--part` names those to measure; the others are kept if they are of
the files that ship.

Writes JSON (figures, counts, commits, hashes of the files) and the page beside it; both only when all is measured. A
matrix that was cut is taken up where it was: each worker's marks are kept in a hidden file beside --out until the end.
`--page` writes the page anew from a JSON that is there. About 20 minutes on two cores with `--a-skill 10` for the
matrix, 15 for the guesser, 3 for the checker. Needs the extra `local`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path

import msgspec

from dirigent.config import parse_config
from dirigent.errors import ConfigError, DirigentError
from dirigent.evals.commit import source_commit
from dirigent.evals.evaluate import noise_seed
from dirigent.evals.gym_workers import BASE_WEIGHTS, find_adapters
from dirigent.evals.stats import Difference, mean, paired_difference, wilson
from dirigent.gympool import CONDUCTOR, gym_toml
from dirigent.messages import Message, Request
from dirigent.runtime import open_runtime
from dirigent.tasks.gym.examples import wording
from dirigent.tasks.gym.judging import (
    Exam,
    Marks,
    Matrix,
    Question,
    ask_messages,
    asked_of,
    conversations_for,
    exam_of,
    is_own,
    markdown,
    marked,
    matrix_of,
    percent,
    same,
)
from dirigent.tasks.gym.skills import GYM_OPERATIONS, PUZZLE_SKILL
from dirigent.tasks.gym.specialists import ROSTER, find_specialist
from dirigent.tasks.task import Task
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
NEAR = 0.03
"""How far a noisy worker may be from the share that its card says."""
MOST_UNAIDED = 0.10
"""What the checker should solve at most without candidates."""
PARTS = ("matrix", "guesser", "checker")
GUESSES = 3
"""Of one run: as many as a plan asks for before it has them checked."""
RUNS = 2
"""Of each question by the guesser. A question's own rate must come of other runs than the guesses compared with it."""
AT_A_TIME = 40
"""Puzzles between two lines of progress."""
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


class Tries(msgspec.Struct, frozen=True):
    """One worker on puzzles, asked directly, and what it takes to measure it again."""

    worker: str
    marks: dict[str, dict[str, str]]
    """Operation -> question -> a word for each run, a letter for each guess: 1 is right, 0 is not."""
    base: dict[str, str]
    """As the matrix has it."""
    sha256: str
    """Of the worker's file."""
    commit: str
    date: str
    seconds: float
    cores: int

    @property
    def all(self) -> Count:
        return _total(self.of(operation) for operation in self.marks)

    def of(self, operation: str) -> Count:
        return count([mark == "1" for runs in self.marks[operation].values() for mark in runs.replace(" ", "")])

    @property
    def questions(self) -> list[list[list[bool]]]:
        """Of each question its runs, of each run its guesses."""
        each = (runs for questions in self.marks.values() for runs in questions.values())
        return [[[mark == "1" for mark in run] for run in runs.split(" ")] for runs in each]


class Measured(msgspec.Struct, frozen=True):
    """What is written: the matrix and what it takes to measure it again, and the parts that have theirs."""

    results: Results
    base: dict[str, str]
    """Name of the base -> sha256 of its file."""
    adapters: dict[str, str]
    """Worker -> sha256 of its file."""
    commit: str
    date: str
    seconds: float
    cores: int
    guesser: Tries | None = None
    checker: Tries | None = None

    @property
    def parts(self) -> dict[str, dict[str, str]]:
        """Part -> worker -> sha256 of the file that was measured; the base stands beside the workers."""
        tried = {name: tries for name in PARTS[1:] if (tries := getattr(self, name)) is not None}
        return {
            "matrix": self.adapters | self.base,
            **{name: {tries.worker: tries.sha256} | tries.base for name, tries in tried.items()},
        }


def main() -> None:
    args = _arguments()
    try:
        if args.out.suffix != ".json":
            raise ConfigError(f"--out {args.out}: name a .json file; the page is written beside it")
        if args.page:
            measured = read(args.out)
        else:
            measured = asyncio.run(measure_parts(args.part, args, say=_say))
    except DirigentError as error:
        sys.exit(f"error: {error}")
    args.out.write_bytes(msgspec.json.format(msgspec.json.encode(measured), indent=1) + b"\n")
    args.out.with_suffix(".md").write_text(as_page(measured), encoding="utf-8")
    if not args.page and "matrix" in args.part:
        scratch_of(args.out).unlink()
    print(as_page(measured))


def _exam(args: argparse.Namespace) -> Exam:
    if args.a_skill < 1:
        raise ConfigError(f"--a-skill {args.a_skill}: ask at least one question a skill")
    return exam_of(args.a_skill, own=args.own, test=args.test)


async def measure_parts(parts: Sequence[str], args: argparse.Namespace, *, say: Say) -> Measured:
    """Those that are named; the others as they stand in `--out`, or not at all beside a new matrix."""
    exam, puzzles = _exam(args), puzzles_of(args.wordings)
    before = read(args.out) if "matrix" not in parts or args.out.exists() else None
    if before is not None:
        _refuse_others(before, [name for name in PARTS if name not in parts])
    found = await measure(exam, out=args.out, say=say) if "matrix" in parts else before
    assert found is not None
    kept = {name: getattr(before, name) for name in PARTS[1:] if before is not None}
    tried = {name: await measure_tries(name, puzzles, say=say) for name in PARTS[1:] if name in parts}
    return msgspec.structs.replace(found, **kept | tried)


def _refuse_others(before: Measured, kept: Sequence[str]) -> None:
    """A page of files that ship must not keep figures of others."""
    now = shas_now() | {BASE_WEIGHTS: known(BASE_WEIGHTS).sha256}
    for part in kept:
        changed = [name for name, sha in before.parts.get(part, {}).items() if now.get(name) != sha]
        if changed:
            raise ConfigError(
                f"the part {part!r} is of other files than ship now ({', '.join(changed)}); measure it as well: "
                f"--part {part}"
            )


def shas_now() -> dict[str, str]:
    files = find_adapters(FOLDER, [CONDUCTOR, *(specialist.name for specialist in ROSTER)])
    return {specialist.name: _sha256(files[specialist.name].read_bytes()) for specialist in ROSTER}


def puzzles_of(wordings: int) -> list[Question]:
    """Every puzzle of the gym, asked directly, in so many wordings each."""
    if wordings < 1:
        raise ConfigError(f"--wordings {wordings}: put every puzzle in at least one")
    rng, asked = random.Random("puzzles"), []
    for op in GYM_OPERATIONS:
        for key, answer in op.table.items() if op.skill == PUZZLE_SKILL else ():
            texts: dict[str, None] = {}
            while len(texts) < wordings:
                texts[wording(rng, op, key)] = None
            asked += [Question(ask_messages(text, (), "s"), answer, False, op.full_name) for text in texts]
    return asked


async def measure_tries(part: str, puzzles: Sequence[Question], *, say: Say) -> Tries:
    """One shipped worker on all the puzzles: who guesses in some runs of some guesses, the checker once."""
    noisy = part == "guesser"
    name = next(s.name for s in ROSTER if (s.noise > 0 if noisy else s.role == "checker"))
    runs, guesses = (RUNS, GUESSES) if noisy else (1, 1)
    began, shas = time.monotonic(), shas_now()
    async with shipped() as workers:
        marks = await tries_of(workers[name], puzzles, runs=runs, guesses=guesses, say=say)
    return Tries(
        name,
        marks,
        base={BASE_WEIGHTS: known(BASE_WEIGHTS).sha256},
        sha256=shas[name],
        commit=await source_commit(),
        date=datetime.now(UTC).date().isoformat(),
        seconds=round(time.monotonic() - began, 1),
        cores=os.cpu_count() or 0,
    )


async def tries_of(
    worker: Worker, puzzles: Sequence[Question], *, runs: int, guesses: int, say: Say
) -> dict[str, dict[str, str]]:
    """Seeded as a run seeds its steps: by the question and the run, and from there on by the step's number."""
    marks: dict[str, dict[str, str]] = {}
    for start in range(0, len(puzzles), AT_A_TIME):
        asked = [
            (puzzle, noise_seed(1, Task(_text(puzzle), _text(puzzle), puzzle.answer), run) + guess)
            for puzzle in puzzles[start : start + AT_A_TIME]
            for run in range(runs)
            for guess in range(guesses)
        ]
        replies = await replies_of(worker, [p.messages for p, _ in asked], seeds=[seed for _, seed in asked])
        for number, ((puzzle, _), reply) in enumerate(zip(asked, replies, strict=True)):
            found = marks.setdefault(puzzle.operation, {})
            gap = " " if number % guesses == 0 and _text(puzzle) in found else ""
            found[_text(puzzle)] = found.get(_text(puzzle), "") + gap + "01"[same(reply, puzzle.answer)]
        say(f"{worker.info.name}: {min(start + AT_A_TIME, len(puzzles))} of {len(puzzles)} puzzles")
    return marks


def _text(puzzle: Question) -> str:
    return puzzle.messages[-1].text


async def measure(exam: Exam, *, out: Path, say: Say) -> Measured:
    """The shipped files, all of them; `out` is beside what an earlier run may have kept."""
    shas = shas_now()
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


async def replies_of(
    worker: Worker, conversations: Sequence[tuple[Message, ...]], *, seeds: Sequence[int] | None = None
) -> list[str]:
    """What the worker says to each; without seeds a question's number is the seed of one that samples."""
    places = asyncio.Semaphore(AT_ONCE)

    async def reply(seed: int, messages: tuple[Message, ...]) -> str:
        async with places:
            return (await worker.ask(Request(messages, seed=seed))).text.strip()

    numbered = zip(range(len(conversations)) if seeds is None else seeds, conversations, strict=True)
    return await asyncio.gather(*(reply(seed, messages) for seed, messages in numbered))


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


def _total(counts: Iterable[Count]) -> Count:
    found = list(counts)
    return Count(sum(c.right for c in found), sum(c.of for c in found))


class Independence(msgspec.Struct, frozen=True):
    """Whether the guesses of one run know of each other."""

    both: float
    """Of two guesses of a run: the share of both right, over all pairs and questions."""
    product: float
    """The same for guesses of different runs, which is each question's own rate by itself."""
    difference: Difference


def independence(tries: Tries) -> Independence:
    """Questions are not equally hard, so both right is more than the square of the mean: they are compared one by one.
    The product takes its two rates from two runs: of the same guesses it would be too large."""
    both = [mean([a and b for run in runs for a, b in combinations(run, 2)]) for runs in tries.questions]
    product = [mean([mean(one) * mean(two) for one, two in combinations(runs, 2)]) for runs in tries.questions]
    return Independence(mean(both), mean(product), paired_difference(both, product, seed=1))


def over_questions(tries: Tries) -> tuple[float, float]:
    """The interval of the share right if the questions too were drawn anew, wordings and all: some are harder."""
    rates = [mean([mean(run) for run in runs]) for runs in tries.questions]
    return paired_difference(rates, [0.0] * len(rates), seed=1).interval


def one_of_three(tries: Tries) -> Count:
    """Runs in which some guess is right, so that a checker has something to find."""
    return count([any(run) for runs in tries.questions for run in runs])


def read(file: Path) -> Measured:
    """What an earlier run wrote."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Measured)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file} holds no matrix ({error}); measure one first, without --page") from None


def as_page(measured: Measured) -> str:
    """The page of the docs: the table, who falls short, and how much of the test one worker solves."""
    results = measured.results
    own = [said for name in results.own if (said := _own_line(name, results.own[name], measured.guesser))]
    rest = "Every other specialist is right in at least 98% of its own." if own else "Every specialist reaches 98%."
    notes = [
        *own,
        rest,
        _others_line(results.counts),
        *_checker_line(results, measured.checker),
        _alone_line(results.alone),
    ]
    tried = [tries for tries in (measured.guesser, measured.checker) if tries is not None]
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
            *_tries_section(tried),
        ]
    )


HOW = """\
The files that ship, as users run them: the packaged adapters on the 4-bit {base}, through llama.cpp on {cores} CPU
cores. Rows are workers, columns are skills, a worker's own are **bold**. All operations of a skill are asked alike
often, so one that fails weighs less here than on the model card, which asks large tables more. Questions are direct or
with earlier results; the checker chooses among candidates; small and large numbers are apart, since the cheap twin
`sums` is for small ones only; the guesser is sampled at temperature 1, the others answer greedily. A reply counts if it
is the bare answer and nothing else."""


ASKED = """\
All {puzzles} puzzles of the gym alike often, in {wordings} wordings each, asked directly, through the same files. The
guesser as plans ask it: at temperature 1, {guesses} guesses at once, seeded by the question and the run and from guess
to guess one higher, in {runs} runs of each question. The checker once, greedily, with no candidates to choose from."""


def _tries_section(tried: Sequence[Tries]) -> list[str]:
    """The parts that ask one worker many times; nothing where there are none."""
    if not tried:
        return []
    rows = [row for tries in tried for row in (_noisy_rows(tries) if _guesses(tries) else _unaided_rows(tries))]
    wordings = " and ".join(dict.fromkeys(str(_wordings(tries)) for tries in tried))
    how = ASKED.format(puzzles=_puzzles(), wordings=wordings, guesses=GUESSES, runs=RUNS)
    return [
        "## Guessing and checking, many times over",
        "",
        how,
        "",
        "| worker | | percent | 95% | n | wanted |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        *(_tries_origin(tries) for tries in tried),
        "",
    ]


def _guesses(tries: Tries) -> bool:
    return find_specialist(tries.worker).noise > 0


def _noisy_rows(tries: Tries) -> list[str]:
    name, found = tries.worker, independence(tries)
    meant = 1 - find_specialist(name).noise
    apart, (low, high) = found.difference, found.difference.interval
    least, most = over_questions(tries)
    pairs = sum(len(list(combinations(run, 2))) for runs in tries.questions for run in runs)
    chance = f"{percent(1 - (1 - meant) ** GUESSES)} if all questions were {percent(meant)}"
    return [
        _tries_row(name, "right", tries.all, f"{percent(meant - NEAR)} to {percent(meant + NEAR)}"),
        f"| {name} | right, had the questions been drawn anew | {percent(tries.all.share)} "
        f"| {percent(least)} to {percent(most)} | {apart.n:,} questions | |",
        *(_tries_row(name, f"right, {op.split('.')[1]}", tries.of(op), "") for op in tries.marks),
        f"| {name} | two guesses of a run, both right | {percent(found.both)} | | {pairs:,} pairs | |",
        f"| {name} | the same of two runs: each question's own rate, by itself | {percent(found.product)} | | | |",
        f"| {name} | the one less the other, 0 where guesses are independent | {_points(apart.mean)} "
        f"| {_points(low)} to {_points(high)} | {apart.n:,} questions | 0 inside |",
        _tries_row(name, f"one of {GUESSES} guesses right, or more", one_of_three(tries), chance),
    ]


def _unaided_rows(tries: Tries) -> list[str]:
    return [_tries_row(tries.worker, "right without candidates", tries.all, f"at most {percent(MOST_UNAIDED)}")]


def _tries_row(worker: str, what: str, found: Count, wanted: str) -> str:
    low, high = wilson(found.right, found.of)
    return (
        f"| {worker} | {what} | {percent(found.share)} | {percent(low)} to {percent(high)} | {found.right:,} of "
        f"{found.of:,} | {wanted} |"
    )


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _puzzles() -> int:
    return sum(len(op.table) for op in GYM_OPERATIONS if op.skill == PUZZLE_SKILL)


def _wordings(tries: Tries) -> int:
    return len(tries.questions) // _puzzles()


def _tries_origin(tries: Tries) -> str:
    part = "guesser" if _guesses(tries) else "checker"
    return (
        f"`python benchmarks/specialists.py --part {part} --wordings {_wordings(tries)}`, {tries.date}, "
        f"{tries.seconds / 60:.0f} minutes on {tries.cores} CPU cores; commit `{tries.commit or 'unknown'}`."
    )


def _command(matrix: Matrix) -> str:
    own = matrix.own_questions or matrix.questions_a_skill
    sizes = f"--a-skill {matrix.questions_a_skill} --own {own} --test {matrix.test_questions}"
    return f"python benchmarks/specialists.py {sizes}"


def _own_line(name: str, own: Own, tries: Tries | None) -> str:
    """What must be said of a specialist on its own skill; nothing where it reaches the goal."""
    specialist = find_specialist(name)
    figure = f"{_interval(own.all)}; asked directly {_of(own.direct)}, with earlier results {_of(own.reading)}"
    if specialist.noise:
        said = f"`{name}` is meant to be right {100 * (1 - specialist.noise):.0f}% of the time: {figure}."
        return f"{said} Of the {tries.all.of:,} guesses below {percent(tries.all.share)}% are right." if tries else said
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


def _checker_line(results: Results, tries: Tries | None) -> list[str]:
    """A checker that solves would make the guesser's plan needless."""
    more = f", of those below {_of(tries.all)}" if tries else ""
    return [
        f"`{name}` without candidates solves {_of(results.counts[name][PUZZLE_SKILL])} puzzles{more}."
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
    parser.add_argument("--wordings", type=int, default=4, metavar="N", help="ways to put each puzzle to these two")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "specialists.json", help="a .json file")
    parser.add_argument("--page", action="store_true", help="only write the page of --out anew")
    return parser.parse_args()


if __name__ == "__main__":
    main()
