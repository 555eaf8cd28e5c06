"""Table: graded questions, and what every worker answered to each of them, at what cost.

Everything learned is learned from a table: the workers' cards, the policy, the conductor. `calibrate` fills one by
asking, `table import` from recorded files, and graded traffic adds rows. A table is a folder of three files:

    table.json            the unit of cost, and every worker as it was when it answered
    questions.jsonl.gz    one `Question` a line
    answers.jsonl.gz      one `Answer` a line

A table holds counterfactuals: the answers of workers that nobody would have asked. So a plan over recorded answers has
an exact value, and learning needs no further calls. This module knows nothing of how answers are compared or graded.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from dirigent.errors import ConfigError
from dirigent.tasks.tables import decoded
from dirigent.tasks.task import Grader
from dirigent.workers.worker import WorkerInfo

FORMAT = 1


class TableWorker(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker as it was when it answered."""

    name: str
    about: str = ""
    model: str = ""
    fingerprint: str = ""
    """Changes with the model, the role's instruction and the sampling: answers of another fingerprint say nothing."""
    reads: bool = False
    """A second step, such as a review: it answers only after it has read another worker's answer."""
    runs: bool = False
    """Its replies are programs that are run."""


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    text: str
    kind: str = ""
    """The kind of question, such as the name of its data set. Reports use it; a policy never reads it."""
    answer: str = ""
    """The right answer, for the grader; empty if only the grades are known, or nothing."""
    grader: Grader | None = None
    """None: graded elsewhere, or not at all."""
    split: str = ""
    """Such as `train` or `test`, as the source says."""
    part: str = ""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker's answer to one question."""

    question: str
    worker: str
    k: int = 0
    """The number of the sample, from 0."""
    text: str = ""
    """The reply; of a program what it printed last."""
    final: str = ""
    """The final answer in the reply, in the form in which answers are compared; empty if it has none."""
    same: int = -1
    """The class of equal answers to this question, from 0; -1 for no answer. The right answer has no part in it."""
    right: float | None = None
    """How right it is, from 0 to 1; None if nobody knows."""
    cost: float = 0.0
    """In the table's unit."""
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    ended: bool = True
    """False if the reply was cut at its limit."""
    failed: bool = False
    """Its program failed or printed nothing."""
    read: tuple[tuple[str, int], ...] = ()
    """Worker and sample number of each answer that it read."""
    propensity: float | None = None
    """The chance with which live traffic asked this worker first; None: asked later, on purpose or without a lot."""
    estimated: bool = False
    """`right` is an estimate, from agreement or by a judge, and no label."""
    source: str = ""
    """Who says how right it is: the key whose feedback it is, or a judge; empty for a label and its grader."""


Unit = Literal["usd", "units", "seconds"]


def unit_of(infos: Sequence[WorkerInfo]) -> Unit:
    """Returns the unit in which the answers of these workers are compared.

    Where nothing has a price, that is weighted tokens if one model gives every answer, else seconds.
    """
    if any(info.price is None or info.price.input or info.price.output for info in infos):
        return "usd"
    return "units" if len({(info.kind, info.model) for info in infos}) == 1 else "seconds"


def cost_in(unit: Unit, *, cost_usd: float, seconds: float, input_tokens: int, output_tokens: int) -> float:
    """Returns the cost of an answer; an input token weighs a quarter of an output token."""
    if unit == "usd":
        return cost_usd
    return output_tokens + input_tokens / 4 if unit == "units" else seconds


class Table(msgspec.Struct, frozen=True):
    workers: tuple[TableWorker, ...]
    questions: tuple[Question, ...]
    answers: tuple[Answer, ...]
    unit: str = "usd"
    """The unit of cost: `usd`, or `units` such as weighted tokens of one model."""

    @classmethod
    def load(cls, folder: Path) -> Table:
        """The table in the folder; raises ConfigError if it is not whole."""
        head_file = folder / "table.json"
        if not head_file.is_file():
            raise ConfigError(f"{folder} holds no table (table.json); `dirigent calibrate --out {folder}` makes one")
        try:
            head = msgspec.json.decode(head_file.read_bytes(), type=_Head)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{head_file}: {error}") from None
        if head.format != FORMAT:
            raise ConfigError(f"{head_file} has format {head.format}; this version reads {FORMAT}: calibrate again")
        table = cls(
            head.workers,
            tuple(_rows(folder / "questions.jsonl.gz", Question)),
            tuple(_rows(folder / "answers.jsonl.gz", Answer)),
            head.unit,
        )
        table.check(str(folder))
        return table

    def save(self, folder: Path) -> None:
        """Writes the table; the head comes last, so that a table that was cut off is not taken for one."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table.json").unlink(missing_ok=True)
        for name, rows in (("questions", self.questions), ("answers", self.answers)):
            _write(folder / f"{name}.jsonl.gz", rows)
        head = msgspec.json.encode(_Head(FORMAT, self.unit, self.workers))
        (folder / "table.json").write_bytes(msgspec.json.format(head, indent=1) + b"\n")

    def check(self, where: str) -> None:
        """Raises ConfigError for the first fault that would make learning from it wrong."""
        workers = _unique([worker.name for worker in self.workers], where, "worker")
        questions = _unique([question.id for question in self.questions], where, "question")
        seen: set[tuple[str, str, int, tuple[tuple[str, int], ...]]] = set()
        for answer in self.answers:
            said = f"{where}: the answer of {answer.worker!r}, sample {answer.k}, to {answer.question!r}"
            if answer.worker not in workers:
                raise ConfigError(f"{said}: the table has no such worker; there are: {', '.join(sorted(workers))}")
            if answer.question not in questions:
                raise ConfigError(f"{said}: the table has no such question")
            key = (answer.question, answer.worker, answer.k, answer.read)
            if key in seen:
                raise ConfigError(f"{said} is there twice")
            seen.add(key)
            if answer.right is not None and not 0 <= answer.right <= 1:
                raise ConfigError(f"{said}: right is {answer.right:g}; it must be from 0 to 1")
            if not answer.cost >= 0:
                raise ConfigError(f"{said}: its cost is {answer.cost:g}; it must be 0 or more")


Row = TypeVar("Row", bound=msgspec.Struct)


class _Head(msgspec.Struct, frozen=True):
    format: int
    unit: str
    workers: tuple[TableWorker, ...]


def _rows(file: Path, kind: type[Row]) -> list[Row]:
    if not file.is_file():
        raise ConfigError(f"{file} is missing; the table is not whole")
    return [row for _, row in decoded(file, kind)]


def _write(file: Path, rows: Iterable[msgspec.Struct]) -> None:
    beside = file.with_suffix(".part")
    # No name and no time in the header: equal tables are equal files.
    with beside.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
        packed.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
    beside.replace(file)


def _unique(names: list[str], where: str, what: str) -> set[str]:
    found = set(names)
    if len(found) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"{where}: two {what}s have the name {twice!r}")
    return found
