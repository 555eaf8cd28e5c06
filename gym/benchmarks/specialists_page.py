"""The page of the specialists and its record: counts, tries, and the hashes of the files.

Its figures are arithmetic over the JSON beside it: shares with their intervals, specialists below the goal, and whether
guesses of one run are independent. This is a part of `specialists.py`, which measures; it is not a program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.stats import Difference, mean, paired_difference, wilson
from dirigent_gym.questions.judging import Matrix, is_own, markdown, percent
from dirigent_gym.questions.skills import GYM_OPERATIONS, PUZZLE_SKILL
from dirigent_gym.questions.specialists import find_specialist

GOAL = 0.98
"""The share that a specialist should reach on its own skill."""
POOR = 0.10
"""A worker with a larger share on another's skill is named."""
MOST_ALONE = 0.30
"""The largest share of the test that one worker should reach alone."""
NEAR = 0.03
"""How far a noisy worker may be from the share on its card."""
MOST_UNAIDED = 0.10
"""The largest share that the checker should solve without candidates."""
PARTS = ("matrix", "guesser", "checker")
GUESSES = 3
"""The guesses of one run: as many as a plan asks for before it has them checked."""
RUNS = 2
"""The runs of each question by the guesser. A question's own rate must come from other runs than the guesses compared
with it."""


class Count(msgspec.Struct, frozen=True):
    right: int
    of: int

    @property
    def share(self) -> float:
        return self.right / self.of if self.of else 0.0


class Own(msgspec.Struct, frozen=True):
    """A specialist on its own skill."""

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
    """Worker -> column -> the number of right answers."""
    own: dict[str, Own]
    alone: dict[str, Count]


class Tries(msgspec.Struct, frozen=True):
    """One worker on puzzles, asked directly, and the facts needed to measure it again."""

    worker: str
    marks: dict[str, dict[str, str]]
    """Operation -> question -> a word for each run, a letter for each guess: 1 is right, 0 is not."""
    base: dict[str, str]
    """As in the matrix."""
    sha256: str
    """The hash of the worker's file."""
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
        """For each question its runs, for each run its guesses."""
        each = (runs for questions in self.marks.values() for runs in questions.values())
        return [[[mark == "1" for mark in run] for run in runs.split(" ")] for runs in each]


class Measured(msgspec.Struct, frozen=True):
    """The content of the file: the matrix and the other parts, each with the facts needed to measure it again."""

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
        """Part -> worker -> sha256 of the file that was measured; the base is listed with the workers."""
        tried = {name: tries for name in PARTS[1:] if (tries := getattr(self, name)) is not None}
        return {
            "matrix": self.adapters | self.base,
            **{name: {tries.worker: tries.sha256} | tries.base for name, tries in tried.items()},
        }


def read(file: Path) -> Measured:
    """The record that an earlier run wrote."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Measured)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file} holds no matrix ({error}); measure one first, without --page") from None


def count(hits: Sequence[bool]) -> Count:
    return Count(sum(hits), len(hits))


def _total(counts: Iterable[Count]) -> Count:
    found = list(counts)
    return Count(sum(c.right for c in found), sum(c.of for c in found))


class Independence(msgspec.Struct, frozen=True):
    """Whether the guesses of one run are independent."""

    both: float
    """The share of pairs of guesses of one run that are both right, over all questions."""
    product: float
    """The same for guesses of different runs, which is each question's own rate."""
    difference: Difference


def independence(tries: Tries) -> Independence:
    """Questions are not equally hard, so both right is more than the square of the mean: they are compared one by one.
    The product takes its two rates from two runs: of the same guesses it would be too large."""
    both = [mean([a and b for run in runs for a, b in combinations(run, 2)]) for runs in tries.questions]
    product = [mean([mean(one) * mean(two) for one, two in combinations(runs, 2)]) for runs in tries.questions]
    return Independence(mean(both), mean(product), paired_difference(both, product, seed=1))


def over_questions(tries: Tries) -> tuple[float, float]:
    """The interval of the share right if the questions and their wordings were drawn anew too: some are harder."""
    rates = [mean([mean(run) for run in runs]) for runs in tries.questions]
    return paired_difference(rates, [0.0] * len(rates), seed=1).interval


def one_of_three(tries: Tries) -> Count:
    """The number of runs with at least one right guess, so that a checker has something to find."""
    return count([any(run) for runs in tries.questions for run in runs])


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


def as_page(measured: Measured) -> str:
    """The page of the docs: the table, the specialists below the goal, and the share of the test that one solves."""
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
            "# The specialists: skills and accuracy",
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


def _tries_section(tried: Sequence[Tries]) -> list[str]:
    """The section on parts that ask one worker many times; empty without such parts."""
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
        f"`python gym/benchmarks/specialists.py --part {part} --wordings {_wordings(tries)}`, {tries.date}, "
        f"{tries.seconds / 60:.0f} minutes on {tries.cores} CPU cores; commit `{tries.commit or 'unknown'}`."
    )


def _command(matrix: Matrix) -> str:
    own = matrix.own_questions or matrix.questions_a_skill
    sizes = f"--a-skill {matrix.questions_a_skill} --own {own} --test {matrix.test_questions}"
    return f"python gym/benchmarks/specialists.py {sizes}"


def _own_line(name: str, own: Own, tries: Tries | None) -> str:
    """A sentence on a specialist that misses the goal on its own skill; empty if it reaches the goal."""
    specialist = find_specialist(name)
    figure = f"{_interval(own.all)}; asked directly {out_of(own.direct)}, with earlier results {out_of(own.reading)}"
    if specialist.noise:
        said = f"`{name}` should be right {100 * (1 - specialist.noise):.0f}% of the time: {figure}."
        return f"{said} Of the {tries.all.of:,} guesses below {percent(tries.all.share)}% are right." if tries else said
    if own.all.share >= GOAL:
        return ""
    weak = [f"{op.split('.')[1]} {out_of(found)}" for op, found in own.operations.items() if found.share < GOAL]
    return f"**`{name}` is short of {100 * GOAL:.0f}% on its own skill**: {figure}; by operation: {', '.join(weak)}."


def _others_line(counts: Mapping[str, Mapping[str, Count]]) -> str:
    """A sentence on the workers' accuracy on skills of others; workers that are often right there are named apart."""
    others = {(n, column): c for n, row in counts.items() for column, c in row.items() if not is_own(n, column)}
    able = {cell: c for cell, c in others.items() if c.share > POOR}
    rest = [c for cell, c in others.items() if cell not in able]
    total = Count(sum(c.right for c in rest), sum(c.of for c in rest))
    named = ", ".join(f"`{name}` on {column} ({out_of(c)})" for (name, column), c in able.items())
    said = f"On skills that are not their own the workers are right in {out_of(total)}"
    return f"{said}, not counting {named}." if able else f"{said}."


def _checker_line(results: Results, tries: Tries | None) -> list[str]:
    """The line on the checker: if it solved puzzles, the guesser's plan would be needless."""
    more = f", of those below {out_of(tries.all)}" if tries else ""
    return [
        f"`{name}` without candidates solves {out_of(results.counts[name][PUZZLE_SKILL])} puzzles{more}."
        for name in results.counts
        if find_specialist(name).role == "checker"
    ]


def _alone_line(alone: Mapping[str, Count]) -> str:
    best = max(alone, key=lambda name: alone[name].share, default="")
    if not best or not alone[best].of:
        return "No worker was asked the test alone."
    verdict = "no more than" if alone[best].share <= MOST_ALONE else "**more than**"
    return (
        f"The largest share of the test that one worker solves alone: `{best}`, {_interval(alone[best])}; "
        f"{verdict} the {100 * MOST_ALONE:.0f}% allowed."
    )


def _interval(count: Count) -> str:
    low, high = wilson(count.right, count.of)
    return f"{percent(count.share)}% ({out_of(count)}; 95% interval {percent(low)} to {percent(high)})"


def out_of(count: Count) -> str:
    return f"{count.right} of {count.of}"
