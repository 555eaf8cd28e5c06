"""Reports: what replies say about a run beside its answer. The same in all three APIs."""

from __future__ import annotations

from typing import Literal

import msgspec

from dirigent.plan.plan import Plan
from dirigent.run.trace import Round, StepRecord, Trace, attempts_since, saved_usd_estimate, usage_since


class WireStep(msgspec.Struct, frozen=True):
    """One step of a plan."""

    worker: str
    subtask: str
    access: tuple[int, ...]
    status: str = "planned"
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0
    cached_input_tokens: int = 0
    planned_worker: str = ""
    error: str = ""
    confidence: float | None = None
    """How sure the step's worker is of its choice, if it measured that."""


class RunReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The field `dirigent` of a reply."""

    trace_id: str
    cost_usd: float
    overhead_ms: float
    why: str = ""
    """Why the plan was written, if its planner is a policy."""
    chosen: tuple[str, ...] = ()
    """The workers that the policy chose, in the order in which they are asked."""
    answered_by: str = ""
    """The worker that wrote the answer, if a policy chose."""
    confidence: float | None = None
    """How sure the selector is that the answer is right."""
    saved_usd_estimate: float | None = None
    """An estimate of what the best single worker alone would have cost more; negative if it would have cost less."""
    planner: str = ""
    rounds: int = 0
    fallback: bool = False
    steps: tuple[WireStep, ...] = ()
    """The steps up to the answering one; only if `dirigent.trace` was asked for."""
    until: float | None = None
    """How sure the last step's worker had to be for the steps that were left to be skipped; likewise."""
    cached_share: float = 0.0
    """The share of the input that providers read from their caches; likewise."""
    notes: tuple[str, ...] = ()
    """Other effects on the run, such as an operator's rule; likewise."""
    resumed: bool | None = None
    """Whether the tool results in the request resumed their run; None if there were none."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of a reply that is sent whole."""
        return {
            "X-Dirigent-Trace-Id": self.trace_id,
            "X-Dirigent-Cost-USD": f"{self.cost_usd:.9f}",
            "X-Dirigent-Overhead-Ms": f"{self.overhead_ms:.3f}",
            **resumed_header(self.resumed),
        }


class Estimated(msgspec.Struct, frozen=True):
    low_usd: float
    high_usd: float


class DryRun(msgspec.Struct, frozen=True):
    """The reply to `dirigent.dry_run`: the plan and its estimated cost. No worker was asked."""

    model: str
    planner: str
    why: str
    """Why the plan was written, if its planner is a policy."""
    steps: tuple[WireStep, ...]
    until: float | None
    critical_path: int
    fallback: bool
    estimate: Estimated | None
    """None if a worker has no price."""
    cost_usd: float
    """The cost of the planning itself."""
    step_estimates: tuple[Estimated, ...] = ()
    """Each step's share of the estimate; empty if there is none."""
    object: Literal["dirigent.plan"] = "dirigent.plan"


def report_of(
    trace: Trace, *, seconds: float, whole: bool, before: Trace | None = None, resumed: bool | None = None
) -> RunReport:
    """The report on a run since `before`. With `whole`, it has the plan and each step's cost, of the entire run."""
    report = RunReport(
        trace_id=trace.id,
        cost_usd=sum([attempt.cost_usd for attempt in attempts_since(trace, before)]),
        overhead_ms=round(1000 * max(0.0, seconds - upstream_s(trace, before=before)), 3),
        resumed=resumed,
    )
    if (reason := trace.reason) is not None:
        saved_usd = saved_usd_estimate(trace)
        reply = trace.steps[-1].reply if trace.steps else None
        report = msgspec.structs.replace(
            report,
            why=reason.why,
            chosen=reason.chosen,
            answered_by=trace.answered_by,
            confidence=None if reply is None else reply.confidence,
            saved_usd_estimate=None if saved_usd is None else round(saved_usd, 9),
        )
    if not whole:
        return report
    used = usage_since(trace, before)
    return msgspec.structs.replace(
        report,
        planner=trace.planner,
        rounds=len(trace.rounds),
        fallback=any(r.fallback for r in trace.rounds),
        until=None if trace.plan is None else trace.plan.until,
        cached_share=round(used.cached_input_tokens / max(1, used.input_tokens), 4),
        steps=tuple(wire_step(step) for step in trace.steps),
        notes=trace.notes,
    )


def resumed_header(resumed: bool | None) -> dict[str, str]:
    """Only on replies to requests with tool results of a run."""
    return {} if resumed is None else {"X-Dirigent-Resumed": "yes" if resumed else "no"}


def planned_steps(plan: Plan) -> tuple[WireStep, ...]:
    return tuple(WireStep(step.worker, step.subtask, step.access) for step in plan.steps)


def upstream_s(trace: Trace, *, before: Trace | None = None) -> float:
    """Seconds that the run could only wait: for planners, and along the longest chain of steps."""
    waited_s = sum([_upstream_s_of_round(r) for r in trace.rounds])
    return waited_s - upstream_s(before) if before is not None else waited_s


def _upstream_s_of_round(round: Round) -> float:
    planning_s = sum([attempt.seconds for draft in round.drafts for attempt in draft.attempts])
    in_order = round.plan is not None and round.plan.until is not None
    ends: dict[int, float] = {}
    for step in round.steps:
        # A step with tool traffic also waited for tools and other steps between its calls. With several attempts, the
        # pauses between them count as waiting; with one, the time around it is our own book-keeping.
        only_calls = step.tool_traffic or len(step.attempts) == 1
        waited_s = sum([attempt.seconds for attempt in step.attempts]) if only_calls else step.seconds
        before = list(ends) if in_order else step.access
        ends[step.index] = waited_s + max([ends.get(j, 0.0) for j in before], default=0.0)
    return planning_s + max(ends.values(), default=0.0)


def wire_step(step: StepRecord) -> WireStep:
    """A step with its cost, without its messages and reply."""
    usage = step.usage
    return WireStep(
        worker=step.worker,
        subtask=step.subtask,
        access=step.access,
        status=step.status,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost_usd=step.cost_usd,
        seconds=round(step.seconds, 6),
        cached_input_tokens=usage.cached_input_tokens,
        planned_worker=step.planned_worker,
        error=_STEP_ERRORS.get(step.status, step.error),
        confidence=None if step.reply is None else step.reply.confidence,
    )


_STEP_ERRORS = {"failed": "it failed; its trace says why", "cancelled": "the run ended before it did"}
"""Our own words: the text of the record may quote a provider."""
