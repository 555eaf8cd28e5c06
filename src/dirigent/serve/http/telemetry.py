"""OpenTelemetry: every run is a span, with a span for each draft and each step below it.

An observer reads the trace when a run has ended, and changes nothing about the run. Spans hold names, counts, costs and
times, and no text of questions or answers. Telemetry is off unless OTEL_EXPORTER_OTLP_ENDPOINT is set or `[serve]` says
`otel = true`; the usual OTEL_ variables configure the export. It needs an extra: pip install 'dirigent[otel]'.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from dirigent.config.server_settings import ServeSettings
from dirigent.errors import ConfigError
from dirigent.messages import Event, Observe
from dirigent.run.trace import DraftRecord, RunEnded, StepRecord, Trace
from dirigent.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

Attributes = Mapping[str, str | int | float | bool]


@contextmanager
def telemetry(settings: ServeSettings) -> Iterator[Observe | None]:
    """Yield the observer of runs, or None if telemetry is off. The last spans are sent when the block ends."""
    if not settings.otel and not any(os.environ.get(name) for name in ENDPOINTS):
        yield None
        return
    provider = _provider()
    try:
        yield spans(provider)
    finally:
        provider.shutdown()


def spans(provider: TracerProvider) -> Observe:
    """Return an observer that turns every run that has ended into spans."""
    tracer = provider.get_tracer("dirigent", __version__)

    def observe(event: Event) -> None:
        # A run that waits for its caller's tools ends a second time, with its whole trace.
        if isinstance(event, RunEnded) and event.trace.status != "waiting":
            _run_span(tracer, event.trace)

    return observe


def _run_span(tracer: Tracer, trace: Trace) -> None:
    from opentelemetry.trace import set_span_in_context

    began = datetime.fromisoformat(trace.created_at).timestamp()

    def at(seconds: float) -> int:
        return int((began + seconds) * 1e9)

    run = tracer.start_span(f"run {trace.profile}".strip(), start_time=at(0), attributes=_of_run(trace))
    below = set_span_in_context(run)
    for number, round in enumerate(trace.rounds):
        for draft in round.drafts:
            _draft_span(tracer, below, draft, number, at)
        for step in round.steps:
            _step_span(tracer, below, step, number, at)
    _end(run, trace.error, at(trace.seconds))


def _draft_span(tracer: Tracer, below: Context, draft: DraftRecord, number: int, at: Callable[[float], int]) -> None:
    attributes: Attributes = {
        "dirigent.round": number,
        "dirigent.planner": draft.planner,
        "dirigent.calls": len(draft.attempts),
        "dirigent.cost_usd": sum(attempt.cost_usd for attempt in draft.attempts),
    }
    span = tracer.start_span(f"plan {draft.planner}", below, start_time=at(draft.started_s), attributes=attributes)
    _end(span, draft.error, at(draft.ended_s))


def _step_span(tracer: Tracer, below: Context, step: StepRecord, number: int, at: Callable[[float], int]) -> None:
    usage = step.usage
    attributes: Attributes = {
        "dirigent.round": number,
        "dirigent.step": step.index,
        "dirigent.worker": step.worker,
        "dirigent.status": step.status,
        "dirigent.calls": len(step.attempts),
        "dirigent.cost_usd": step.cost_usd,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    name = f"step {step.index} {step.worker}"
    span = tracer.start_span(name, below, start_time=at(step.started_s), attributes=attributes)
    _end(span, step.error, at(step.ended_s))


def _of_run(trace: Trace) -> Attributes:
    usage = trace.usage
    return {
        "dirigent.trace_id": trace.id,
        "dirigent.profile": trace.profile,
        "dirigent.planner": trace.planner,
        "dirigent.status": trace.status,
        "dirigent.rounds": len(trace.rounds),
        "dirigent.calls": usage.calls,
        "dirigent.cost_usd": trace.cost_usd,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }


def _end(span: Span, error: str, end_time: int) -> None:
    """End the span. An error sets its status only, because the text of an error may quote the question."""
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR if error else StatusCode.OK))
    span.end(end_time=end_time)


def _provider() -> TracerProvider:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'dirigent[otel]', or unset {ENDPOINTS[0]}") from None
    name = os.environ.get("OTEL_SERVICE_NAME", "dirigent")
    provider = TracerProvider(resource=Resource.create({"service.name": name, "service.version": __version__}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
