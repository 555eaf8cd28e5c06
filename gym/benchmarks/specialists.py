"""The skills of the shipped specialists: every specialist on every skill, and alone on the test.

    python gym/benchmarks/specialists.py --a-skill 20 --own 100 --test 60 --out docs/results/specialists.json
    python gym/benchmarks/specialists.py --part guesser checker        # these two anew, the matrix unchanged

The setting is that of users: the packaged adapters on the 4-bit base, in llama.cpp on this CPU, with the settings of
`dirigent ask` on a machine without keys. Questions are asked directly or with earlier results. The checker gets
candidates, the cheap twin gets small and large numbers apart, the noisy one is sampled at temperature 1 (seeded), all
others answer greedily. Each worker is asked more of its own skill, because 20 questions cannot tell 98% from 95%.

There are three parts, each with its commit and its date: the `matrix`; the `guesser` on every puzzle many times,
because 100 guesses cannot tell 70% from 63%, and whether the guesses of one run are independent; the `checker` on the
same puzzles without candidates. `--part` names the parts to measure; the others are kept if they belong to the shipped
files.

Writes JSON (figures, counts, commits, hashes of the files) and the page beside it, both only when everything is
measured. An interrupted matrix is continued: each worker's marks are kept in a hidden file beside --out until the end.
`--page` writes the page anew from an existing JSON. About 20 minutes on two cores with `--a-skill 10` for the matrix,
15 for the guesser, 3 for the checker. Needs the extra `local`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gym.benchmarks.specialists_page import (
    GUESSES,
    PARTS,
    RUNS,
    Measured,
    Own,
    Results,
    Tries,
    as_page,
    count,
    out_of,
    read,
)

from dirigent.config.file import parse_config
from dirigent.config.runtime import open_runtime
from dirigent.errors import ConfigError, DirigentError
from dirigent.evals.record import source_commit
from dirigent.messages import Message, Request
from dirigent.planners.spec import noise_seed
from dirigent.tasks.task import Task
from dirigent.workers.weights import known
from dirigent.workers.worker import Worker
from dirigent_gym.evals.workers import BASE_WEIGHTS, find_adapters
from dirigent_gym.pool import CONDUCTOR, gym_toml
from dirigent_gym.questions.examples import wording
from dirigent_gym.questions.judging import (
    Exam,
    Marks,
    Question,
    ask_messages,
    conversations_for,
    exam_of,
    is_own,
    mark_replies,
    matrix_of,
    questions_for,
    same,
)
from dirigent_gym.questions.skills import GYM_OPERATIONS, PUZZLE_SKILL
from dirigent_gym.questions.specialists import ROSTER
from dirigent_gym.weights import FOLDER

ROOT = Path(__file__).resolve().parents[2]
AT_A_TIME = 40
"""Puzzles between two lines of progress."""
AT_ONCE = 4
"""Requests under one adapter are computed together, and the server has as many places."""

Say = Callable[[str], None]


class Kept(msgspec.Struct, frozen=True):
    """One worker's marks, stored on the disk until all are there."""

    worker: str
    sha256: str
    exam: str
    """The hash of all questions."""
    marks: Marks
    seconds: float


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
    """Measures the named parts. The others come from `--out`, or are missing if the matrix is new."""
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
    """Raises ConfigError if kept figures belong to other files than those that ship."""
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
    """Every puzzle of the gym, asked directly, in the given number of wordings each."""
    if wordings < 1:
        raise ConfigError(f"--wordings {wordings}: give at least one wording")
    rng, asked = random.Random("puzzles"), []
    for op in GYM_OPERATIONS:
        for key, answer in op.table.items() if op.skill == PUZZLE_SKILL else ():
            texts: dict[str, None] = {}
            while len(texts) < wordings:
                texts[wording(rng, op, key)] = None
            asked += [Question(ask_messages(text, (), "s"), answer, False, op.full_name) for text in texts]
    return asked


async def measure_tries(part: str, puzzles: Sequence[Question], *, say: Say) -> Tries:
    """One shipped worker on all the puzzles: the guesser with several guesses in several runs, the checker once."""
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
    """Seeded as a run seeds its steps: by the question and the run, and then by the step's number."""
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
    """All shipped files; an earlier run may have left marks beside `out`."""
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
    return mark_replies(exam, name, await replies_of(worker, conversations_for(exam, name)))


async def replies_of(
    worker: Worker, conversations: Sequence[tuple[Message, ...]], *, seeds: Sequence[int] | None = None
) -> list[str]:
    """The worker's replies. A worker that samples gets the question's number as its seed, unless seeds are given."""
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
    cut = b"" if before[-1:] in (b"", b"\n") else b"\n"  # the half line of a killed run stays a line of its own
    with file.open("ab") as lines:
        lines.write(cut + msgspec.json.encode(kept) + b"\n")


def read_kept(file: Path, shas: Mapping[str, str], *, exam: str) -> dict[str, Kept]:
    """The marks that an earlier run stored for the same exam and the same files."""
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
    return f"{kept.worker}, own skill {out_of(own)}, test alone {out_of(alone)}, {kept.seconds:.0f} s"


def results_of(exam: Exam, marks: Mapping[str, Marks]) -> Results:
    return Results(
        matrix_of(exam, marks),
        counts={n: {column: count(hits) for column, hits in mark.skills.items()} for n, mark in marks.items()},
        own={name: own_of(exam, name, mark) for name, mark in marks.items()},
        alone={name: count(mark.alone) for name, mark in marks.items()},
    )


def own_of(exam: Exam, name: str, marks: Marks) -> Own:
    asked = questions_for(exam, name)
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


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--a-skill", type=int, default=20, metavar="N", help="questions of each skill to each worker")
    parser.add_argument("--own", type=int, default=100, metavar="N", help="questions of a worker's own skill")
    parser.add_argument("--test", type=int, default=60, metavar="N", help="whole questions of the test to each worker")
    parser.add_argument(
        "--wordings", type=int, default=4, metavar="N", help="wordings of each puzzle for guesser and checker"
    )
    parser.add_argument(
        "--part", nargs="+", choices=PARTS, default=list(PARTS), help="the parts to measure (default: all)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "specialists.json", help="a .json file")
    parser.add_argument("--page", action="store_true", help="only write the page of --out anew")
    return parser.parse_args()


if __name__ == "__main__":
    main()
