"""Outcome: what became of one question under one planner, as small as a report needs it.

Made from a trace; the trace itself is kept elsewhere, under the same id. A planner's plan may be inspected by whoever
knows what a right one looks like: what they find comes along as named marks. A call that nobody knows the price of
makes the run's cost unknown, never free: whoever compares costs asks for `known_cost_usd`.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.reply_cache import took_s
from dirigent.messages import well_formed
from dirigent.plan.plan import Plan
from dirigent.run.trace import Trace
from dirigent.tasks.task import Grade, Task
from dirigent.workers.worker import WorkerInfo

Inspect = Callable[[Task, Plan], Mapping[str, bool]]
"""What is right about a plan, by name: `routing`, `parallel`, ..."""

FAULTS = frozenset({"WorkerError", "DeadlineError", "CostError", "GradeError"})
"""Errors that say more about the infrastructure than about the planner; such a question is asked again on resume, but
for one whose answer only could not be graded: that is graded again."""

UNGRADED = "GradeError"

OUTCOMES = ".outcomes.jsonl.gz"
"""How the file of every question's outcome beside a report ends."""


class Outcome(msgspec.Struct, frozen=True):
    planner: str
    task: str
    repeat: int = 0
    """Which of several runs of the same question, each with its own noise."""
    correct: bool = False
    score: float | None = None
    """How right, where an answer may be right in part; None: as `correct` says."""
    valid: bool = False
    """The planner's own first draft was a plan."""
    answer: str = ""
    plan: Plan | None = None
    asked_before: tuple[str, ...] = ()
    """The workers of the steps of earlier rounds, whose plans did not give the answer."""
    minimal_steps: int = 0
    """Steps of the cheapest right plan; 0 = not known."""
    calls: int = 0
    planning_calls: int = 0
    """The calls among them that wrote plans."""
    input_tokens: int = 0
    output_tokens: int = 0
    orchestration_input_tokens: int = 0
    orchestration_output_tokens: int = 0
    cost_usd: float = 0.0
    """As far as prices are known: what a budget counts."""
    unpriced: tuple[str, ...] = ()
    """Workers that were asked and whose price nobody knows."""
    seconds: float = 0.0
    """As if it had made every call itself, where planners share some."""
    kind: str = ""
    depth: int = 1
    tags: dict[str, str] = {}
    marks: dict[str, bool] = {}
    """What is right about the plan, where somebody could tell."""
    trace_id: str = ""
    error: str = ""
    error_kind: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.planner, self.task, self.repeat

    @property
    def value(self) -> float:
        """How right it was, between 0 and 1."""
        return float(self.correct) if self.score is None else self.score

    @property
    def steps(self) -> int:
        return len(self.plan.steps) if self.plan else 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def known_cost_usd(self) -> float | None:
        """What it cost; None where a part of that is unknown."""
        return None if self.unpriced else self.cost_usd

    @property
    def failed(self) -> bool:
        """The infrastructure's fault rather than the planner's."""
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
    """What became of a run. One that failed has no grade: it is wrong, and says why. `ungraded`: why it got none;
    `planned_by`: the model that wrote the plan, where one did."""
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
    """Whose calls have no price and state no cost either; one that was not sent, or used nothing, costs nothing.

    A planner of ours runs at home and needs no price; in the pool a local model does, if only a notional one.
    """
    unknown = {info.name for info in trace.pool if info.price is None}
    if planned_by is not None and planned_by.price is None and planned_by.kind != "local":
        unknown.add(planned_by.name)
    paid = (a for a in trace.attempts if not a.cached and (a.usage.input_tokens or a.usage.output_tokens))
    return tuple(dict.fromkeys(a.worker for a in paid if not a.cost_usd and a.worker in unknown))
