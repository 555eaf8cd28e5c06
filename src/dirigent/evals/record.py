"""Record: the outcomes of an evaluation on disk, one JSON line each, so that nothing finished is ever paid twice.

An `Outcome` is the result of one question under one planner, as small as a report needs it. It is made from a trace;
the trace itself is stored elsewhere, under the same id. A field that knows the right plan may inspect a plan; its
findings are named marks. A call without a known price makes the run's cost unknown, never free: code that compares
costs asks for `known_cost_usd`.

The first line of the file has the settings of the evaluation. Resuming with other questions or another seed is refused.
The line also has the digests of the weights of planners that are models. A model that joins later gets a line of its
own; a model with outcomes in the file and with other weights now is refused.

Every outcome is handed to the operating system at once, so a killed process loses none, and forced to the disk in
batches, so a power cut loses few. A last line that was cut off is dropped. One evaluation at a time: the file is locked
before anything is done to it. `source_commit` says which source made a figure.
"""

from __future__ import annotations

import asyncio
import fcntl
import gzip
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

import dirigent
from dirigent.errors import ConfigError
from dirigent.evals.reply_cache import took_s
from dirigent.messages import well_formed
from dirigent.plan.plan import Plan
from dirigent.planners.spec import kinds_of
from dirigent.run.trace import Trace
from dirigent.tasks.task import Grade, Task
from dirigent.workers.worker import WorkerInfo

# ---- one outcome ---------------------------------------------------------------------------------------------


Inspect = Callable[[Task, Plan], Mapping[str, bool]]
"""The marks of a plan, by name: `routing`, `parallel`, ..."""

FAULTS = frozenset({"WorkerError", "DeadlineError", "CostError", "GradeError"})
"""Errors that are more likely the infrastructure's fault than the planner's. Such a question is asked again on resume;
an answer that only could not be graded is graded again."""

UNGRADED = "GradeError"

OUTCOMES = ".outcomes.jsonl.gz"
"""The end of the name of the file with every question's outcome, beside a report."""


class Outcome(msgspec.Struct, frozen=True):
    planner: str
    task: str
    repeat: int = 0
    """The number of the run, for a question that is asked several times with different noise."""
    correct: bool = False
    score: float | None = None
    """The part of the answer that is right, if an answer may be partly right; None: `correct` decides."""
    valid: bool = False
    """Whether the planner's own first draft was a plan."""
    answer: str = ""
    plan: Plan | None = None
    asked_before: tuple[str, ...] = ()
    """The workers of the steps of earlier rounds, whose plans did not give the answer."""
    minimal_steps: int = 0
    """The steps of the cheapest right plan; 0 if that is unknown."""
    calls: int = 0
    planning_calls: int = 0
    """The calls that wrote plans."""
    input_tokens: int = 0
    output_tokens: int = 0
    orchestration_input_tokens: int = 0
    orchestration_output_tokens: int = 0
    cost_usd: float = 0.0
    """The cost of all calls with a known price; a budget counts it."""
    unpriced: tuple[str, ...] = ()
    """Workers that were asked and whose price is unknown."""
    seconds: float = 0.0
    """The seconds as if the run had made every call itself, even if it shares some."""
    kind: str = ""
    depth: int = 1
    tags: dict[str, str] = {}
    marks: dict[str, bool] = {}
    """The marks of the plan, if the field can judge them."""
    trace_id: str = ""
    error: str = ""
    error_kind: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.planner, self.task, self.repeat

    @property
    def value(self) -> float:
        """The part of the answer that is right, between 0 and 1."""
        return float(self.correct) if self.score is None else self.score

    @property
    def steps(self) -> int:
        return len(self.plan.steps) if self.plan else 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def known_cost_usd(self) -> float | None:
        """Its cost; None if a part of it is unknown."""
        return None if self.unpriced else self.cost_usd

    @property
    def failed(self) -> bool:
        """Whether the run failed by the infrastructure's fault, not the planner's."""
        return self.error_kind in FAULTS


def graded(outcome: Outcome, grade: Grade) -> Outcome:
    """An outcome whose answer was paid for before it could be graded."""
    return msgspec.structs.replace(outcome, correct=grade.correct, score=grade.score, error="", error_kind="")


def outcome_of(
    trace: Trace,
    task: Task,
    *,
    grade: Grade | None,
    planner: str,
    repeat: int = 0,
    inspect: Inspect | None = None,
    ungraded: str = "",
    planned_by: WorkerInfo | None = None,
) -> Outcome:
    """Returns the outcome of a run. A failed run has no grade: it counts as wrong and has an error. `ungraded` is the
    reason why grading failed; `planned_by` is the model that wrote the plan, if any."""
    usage, answering = trace.usage, trace.plan
    plan = None if answering is None else answering.by_itself()
    first = trace.rounds[0] if trace.rounds else None
    return Outcome(
        planner=planner,
        task=task.id,
        repeat=repeat,
        correct=grade is not None and grade.correct,
        score=grade.score if grade is not None else None,
        valid=first is not None and first.plan is not None and not first.fallback,
        answer=well_formed(trace.answer),
        plan=plan,
        asked_before=tuple(
            step.worker for r in trace.rounds if r.plan and r.plan is not answering for step in r.plan.steps
        ),
        minimal_steps=len(task.sketch.steps) if task.sketch else 0,
        calls=usage.calls,
        planning_calls=sum(len(draft.attempts) for r in trace.rounds for draft in r.drafts),
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        orchestration_input_tokens=usage.orchestration_input_tokens,
        orchestration_output_tokens=usage.orchestration_output_tokens,
        cost_usd=trace.cost_usd,
        unpriced=_unpriced(trace, planned_by),
        seconds=took_s(trace),
        kind=task.kind,
        depth=task.depth,
        tags=task.tags,
        marks=dict(inspect(task, plan)) if inspect and plan else {},
        trace_id=trace.id,
        error=well_formed(ungraded or trace.error),
        error_kind=UNGRADED if ungraded else trace.error_kind,
    )


def write_outcomes(report: Path, outcomes: Sequence[Outcome]) -> Path:
    """Every question's outcome beside the report, as compressed JSON lines: `NAME.outcomes.jsonl.gz`."""
    file = report.with_suffix(OUTCOMES)
    lines = b"".join(msgspec.json.encode(outcome) + b"\n" for outcome in outcomes)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(lines, mtime=0))
    except OSError as error:
        raise ConfigError(f"the outcomes cannot be written to {file}: {error}") from None
    return file


def read_written(file: Path) -> list[Outcome]:
    """The outcomes that `write_outcomes` wrote."""
    try:
        return [msgspec.json.decode(line, type=Outcome) for line in gzip.decompress(file.read_bytes()).splitlines()]
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise ConfigError(f"the outcomes {file} cannot be read: {error}") from None


def _unpriced(trace: Trace, planned_by: WorkerInfo | None) -> tuple[str, ...]:
    """Returns the workers whose calls have neither a price nor a stated cost. A call that was not sent, or used
    nothing, costs nothing. A local planner needs no price; a local model of the pool needs at least a notional one.
    """
    unknown = {info.name for info in trace.pool if info.price is None}
    if planned_by is not None and planned_by.price is None and planned_by.kind != "local":
        unknown.add(planned_by.name)
    paid = (a for a in trace.attempts if not a.cached and (a.usage.input_tokens or a.usage.output_tokens))
    return tuple(dict.fromkeys(a.worker for a in paid if not a.cost_usd and a.worker in unknown))


BATCH = 32
"""Outcomes between two fsyncs."""

BEGINS = b'{"about":'
"""The beginning of a record."""

JOINED = b'{"weights":'
"""The beginning of a line that is not an outcome."""

About = Mapping[str, str]
"""The settings that an evaluation's outcomes depend on."""


class Record:
    """Outcomes by planner, question and repeat; those added are written behind the ones that were read."""

    def __init__(self, file: BinaryIO | None = None, outcomes: Sequence[Outcome] = ()) -> None:
        self._file = file
        self._outcomes = {outcome.key: outcome for outcome in outcomes}
        self._unsynced = 0
        self.cost_usd = sum(o.cost_usd for o in _paid(outcomes))
        """All money spent on this evaluation, before and after it was cut."""

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, about: About, *, resume: bool = False, weights: Mapping[str, str] | None = None
    ) -> Iterator[Record]:
        """Starts a record or resumes one. An older record that is not resumed is renamed to `.old`. `weights` has the
        digests of the planners that are models and take part this time, by the planner's name before its colon.
        """
        with _locked_file(path) as file:
            _refuse_what_is_none(file, path)
            if not resume:
                _set_aside(file, path)
            record = cls(file, _read(file, path, dict(about), dict(weights or {})))
            try:
                yield record
            finally:
                record.sync()

    @property
    def count(self) -> int:
        return len(self._outcomes)

    def finished(self, planner: str, task: str, repeat: int = 0) -> Outcome | None:
        """Returns the outcome; None without an outcome or if the infrastructure spoilt it."""
        outcome = self._outcomes.get((planner, task, repeat))
        return None if outcome is None or outcome.failed else outcome

    def lost(self, planner: str, task: str, repeat: int = 0) -> Outcome | None:
        """Returns the outcome of a run that the infrastructure spoilt; None if only the money ended."""
        outcome = self._outcomes.get((planner, task, repeat))
        return outcome if outcome is not None and outcome.failed and outcome.error_kind != "CostError" else None

    def ungraded(self, planner: str, task: str, repeat: int = 0) -> Outcome | None:
        """The outcome of a question that was answered and paid for, where only its grade is missing."""
        outcome = self._outcomes.get((planner, task, repeat))
        return outcome if outcome is not None and outcome.error_kind == UNGRADED else None

    def regrade(self, outcome: Outcome) -> None:
        """Writes a missing grade; the answer's cost was counted when it was paid."""
        self.cost_usd -= outcome.cost_usd
        self.add(outcome)

    def add(self, outcome: Outcome) -> None:
        self._outcomes[outcome.key] = outcome
        self.cost_usd += outcome.cost_usd
        if self._file is None:
            return
        self._file.write(msgspec.json.encode(outcome) + b"\n")
        self._file.flush()
        self._unsynced += 1
        if self._unsynced >= BATCH:
            self.sync()

    def sync(self) -> None:
        if self._file is not None and self._unsynced:
            os.fsync(self._file.fileno())
            self._unsynced = 0


def _paid(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Returns the paid outcomes: a question that was asked twice counts twice, an answer that was graded again counts
    once."""
    return list({(o.key, o.trace_id or number): o for number, o in enumerate(outcomes)}.values())


def read_outcomes(path: Path) -> list[Outcome]:
    """Reads the outcomes of a record; the latest outcome of a question counts."""
    try:
        with path.open("rb") as file:
            return list(Record(None, _decode(file.read(), path).outcomes)._outcomes.values())
    except OSError as error:
        raise ConfigError(f"the outcomes {path} cannot be read: {error}") from None


def digest(tasks: Sequence[Task]) -> str:
    """A digest of exactly these questions and answers."""
    return name_of([(task.id, task.question, task.answer) for task in tasks])


def fitted_on(tasks: Sequence[Task]) -> str:
    """`sha256:` and 16 digits, enough to tell two sets of questions apart: the questions for fitting in their order,
    because some methods learn in that order."""
    text = msgspec.json.encode([(task.id, task.question, task.answer) for task in tasks])
    return f"sha256:{hashlib.sha256(text).hexdigest()[:16]}"


def name_of(value: object) -> str:
    """A short digest of exactly this value, for an evaluation's settings."""
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=8).hexdigest()


@contextmanager
def _locked_file(path: Path) -> Iterator[BinaryIO]:
    """Locks the file; a second process is refused before it changes anything."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    except OSError as error:
        raise _write_error(path, error) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another evaluation is writing to {path}; wait for it, or give another --out") from None
        yield file


def _set_aside(file: BinaryIO, path: Path) -> None:
    """Keeps an older record unless it is empty: a run that failed at once must not replace a good one. The record is
    copied, because the lock is on this file and would move with it.
    """
    file.seek(0)
    content = file.read()
    old = path.with_name(path.name + ".old")
    try:
        if content.count(b"\n") > 1:
            part = old.with_name(old.name + ".part")
            with part.open("wb") as copy:
                copy.write(content)
                copy.flush()
                os.fsync(copy.fileno())
            part.replace(old)
        file.truncate(0)
    except OSError as error:
        raise _write_error(path, error) from None


def _refuse_what_is_none(file: BinaryIO, path: Path) -> None:
    """Refuses a file that is not a record, such as the recorded answers under evaluation."""
    file.seek(0)
    begins = file.read(len(BEGINS))
    if not BEGINS.startswith(begins):
        raise ConfigError(f"{path} is where the outcomes go, and it holds something else; give another --out")


def _write_error(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"the outcomes cannot be kept in {path}: {error}; --out names another place")


def _read(file: BinaryIO, path: Path, about: dict[str, str], weights: dict[str, str]) -> list[Outcome]:
    """The outcomes so far, with the file left so that the next line can be written behind them."""
    file.seek(0)
    content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    known = _decode(whole, path)
    if known.header is None:
        file.truncate(0)
        _write(file, _Header(about, weights))
        return []
    _check(known, path, about, weights)
    file.truncate(len(whole))
    if joining := {name: of for name, of in weights.items() if known.weights.get(name) != of}:
        _write(file, _Joined(joining))
    return known.outcomes


def _check(known: _Known, path: Path, about: dict[str, str], weights: dict[str, str]) -> None:
    """Refuses to mix outcomes of different settings."""
    header = known.header or {}
    for name in {**about, **header}:
        if about.get(name, "") != header.get(name, ""):
            raise ConfigError(
                f"{path} was begun with {name} = {header.get(name, '')!r}, not {about.get(name, '')!r}; "
                "leave --resume out to begin anew, or give another --out"
            )
    asked = kinds_of({outcome.planner for outcome in known.outcomes})
    for name, now in weights.items():
        then = known.weights.get(name, "")
        if name in asked and then != now:
            raise ConfigError(
                f"{path} holds outcomes of {name} with the weights {then or 'that it does not name'}, not {now}; "
                f"leave --resume out to begin anew, leave {name} out, or give another --out"
            )


class _Header(msgspec.Struct, frozen=True, omit_defaults=True):
    about: dict[str, str]
    weights: dict[str, str] = {}


class _Joined(msgspec.Struct, frozen=True):
    """A later line: planners that were not there at first, or had no outcomes with the weights they had then."""

    weights: dict[str, str]


class _Known(msgspec.Struct, frozen=True):
    """Returns the outcomes of a file."""

    header: dict[str, str] | None = None
    """Returns None if not even the first line is whole."""
    weights: dict[str, str] = {}
    outcomes: list[Outcome] = []


def _write(file: BinaryIO, line: _Header | _Joined) -> None:
    file.write(msgspec.json.encode(line) + b"\n")
    file.flush()


def _decode(content: bytes, path: Path) -> _Known:
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    if not lines:
        return _Known()
    header: dict[str, str] = {}
    weights: dict[str, str] = {}
    outcomes: list[Outcome] = []
    for number, line in enumerate(lines, start=1):
        try:
            if number == 1:
                first = msgspec.json.decode(line, type=_Header)
                header, weights = first.about, first.weights
            elif line.startswith(JOINED):
                weights = weights | msgspec.json.decode(line, type=_Joined).weights
            else:
                outcomes.append(msgspec.json.decode(line, type=Outcome))
        except msgspec.DecodeError as error:
            raise ConfigError(f"line {number} of {path} is not an outcome ({error}); give another --out") from None
    return _Known(header, weights, outcomes)


# ---- the source of a figure ----------------------------------------------------------------------------------


async def source_commit() -> str:
    """The commit, with `+changes` where the tree has some; empty for an installed package or without git."""
    package = Path(dirigent.__file__).parent
    # A package installed into some other project's tree must not claim that project's commit.
    if await _git(package, "ls-files", "--error-unmatch", "version.py") is None:
        return ""
    commit = await _git(package, "rev-parse", "HEAD")
    changed = await _git(package, "status", "--porcelain", "--untracked-files=no", ".")
    return (commit or "") + ("+changes" if commit and changed else "")


async def _git(folder: Path, *arguments: str) -> str | None:
    """Returns git's output; None if git is missing or refuses."""
    try:
        process = await asyncio.create_subprocess_exec(
            "git",
            "-C",
            str(folder),
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    output, _ = await process.communicate()
    return output.decode().strip() if process.returncode == 0 else None
