"""OpenTelemetry: every run is a span, with a span for each draft and each step below it.

An observer reads the trace when a run has ended, and changes nothing about the run. Spans hold names, counts, costs and
times; text of questions and answers only if `[serve]` says `otel_content = true`. Telemetry is off unless
OTEL_EXPORTER_OTLP_ENDPOINT is set or `[serve]` says `otel = true`; the usual OTEL_ variables configure the export. It
needs an extra: pip install 'dirigent[otel]'.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from dirigent.config.server_settings import ServeSettings
from dirigent.errors import ConfigError
from dirigent.messages import Event, Message, Observe
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
        yield spans(provider, content=settings.otel_content)
    finally:
        provider.shutdown()


def spans(provider: TracerProvider, *, content: bool = False) -> Observe:
    """Return an observer that turns every run that has ended into spans. With `content` they hold what was said.

    Names follow OpenTelemetry's conventions for generative AI, so that other viewers draw the plan: a run is an
    `invoke_workflow`, a step an `invoke_agent`, and each call of a step or of a planner a `chat`.
    """
    tracer = provider.get_tracer("dirigent", __version__)

    def observe(event: Event) -> None:
        # A run that waits for its caller's tools ends a second time, with its whole trace.
        if isinstance(event, RunEnded) and event.trace.status != "waiting":
            _run_span(tracer, event.trace, content)

    return observe


def _run_span(tracer: Tracer, trace: Trace, content: bool) -> None:
    from opentelemetry.trace import set_span_in_context

    began = datetime.fromisoformat(trace.created_at).timestamp()

    def at(seconds: float) -> int:
        return int((began + seconds) * 1e9)

    run = tracer.start_span(f"run {trace.profile}".strip(), start_time=at(0), attributes=_of_run(trace, content))
    below = set_span_in_context(run)
    models = {info.name: info.model or info.name for info in trace.pool}
    for number, round in enumerate(trace.rounds):
        for draft in round.drafts:
            _draft_span(tracer, below, draft, number, at, models, content)
        for step in round.steps:
            _step_span(tracer, below, step, number, at, models, content)
    _end(run, trace.error, at(trace.seconds))


def _draft_span(
    tracer: Tracer,
    below: Context,
    draft: DraftRecord,
    number: int,
    at: Callable[[float], int],
    models: Mapping[str, str],
    content: bool,
) -> None:
    from opentelemetry.trace import set_span_in_context

    attributes: dict[str, str | int | float | bool] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": draft.planner,
        "dirigent.round": number,
        "dirigent.planner": draft.planner,
        "dirigent.calls": len(draft.attempts),
        "dirigent.cost_usd": sum(attempt.cost_usd for attempt in draft.attempts),
    }
    if content:
        attributes["gen_ai.input.messages"] = _messages(draft.messages)
        attributes["gen_ai.output.messages"] = _messages((Message("assistant", draft.text),))
    span = tracer.start_span(f"plan {draft.planner}", below, start_time=at(draft.started_s), attributes=attributes)
    _chat_spans(tracer, set_span_in_context(span), draft, at, models)
    _end(span, draft.error, at(draft.ended_s))


def _step_span(
    tracer: Tracer,
    below: Context,
    step: StepRecord,
    number: int,
    at: Callable[[float], int],
    models: Mapping[str, str],
    content: bool,
) -> None:
    from opentelemetry.trace import set_span_in_context

    usage = step.usage
    attributes: dict[str, str | int | float | bool] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": step.worker,
        "gen_ai.request.model": models.get(step.worker, step.worker),
        "dirigent.round": number,
        "dirigent.step": step.index,
        "dirigent.worker": step.worker,
        "dirigent.status": step.status,
        "dirigent.calls": len(step.attempts),
        "dirigent.cost_usd": step.cost_usd,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    if content:
        attributes["dirigent.subtask"] = step.subtask
        attributes["gen_ai.input.messages"] = _messages(step.messages)
        if step.reply is not None:
            attributes["gen_ai.output.messages"] = _messages((Message("assistant", step.reply.text),))
    name = f"step {step.index} {step.worker}"
    span = tracer.start_span(name, below, start_time=at(step.started_s), attributes=attributes)
    _chat_spans(tracer, set_span_in_context(span), step, at, models)
    _end(span, step.error, at(step.ended_s))


def _chat_spans(
    tracer: Tracer,
    inside: Context,
    caller: DraftRecord | StepRecord,
    at: Callable[[float], int],
    models: Mapping[str, str],
) -> None:
    """A span for each call of a planner or a step, one after the other."""
    began_s = caller.started_s
    for attempt in caller.attempts:
        ended_s = min(began_s + attempt.seconds, caller.ended_s)
        chat: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": models.get(attempt.worker, attempt.worker),
            "gen_ai.usage.input_tokens": attempt.usage.input_tokens,
            "gen_ai.usage.output_tokens": attempt.usage.output_tokens,
            "dirigent.worker": attempt.worker,
            "dirigent.cost_usd": attempt.cost_usd,
        }
        call = tracer.start_span(f"chat {attempt.worker}", inside, start_time=at(began_s), attributes=chat)
        _end(call, attempt.error, at(ended_s))
        began_s = ended_s


def _messages(messages: Sequence[Message]) -> str:
    """Messages as the conventions have them: JSON, with each message's text as a part."""
    told = [{"role": m.role, "parts": [{"type": "text", "content": m.text}]} for m in messages]
    return msgspec.json.encode(told).decode()


def _of_run(trace: Trace, content: bool) -> Attributes:
    usage = trace.usage
    said = {"gen_ai.output.messages": _messages((Message("assistant", trace.answer),))} if content else {}
    conversation = {"gen_ai.conversation.id": trace.conversation} if trace.conversation else {}
    asked = {"gen_ai.input.messages": _messages(trace.question)} if content else {}
    return {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": trace.profile,
        "gen_ai.request.model": trace.profile,
        **conversation,
        **asked,
        **said,
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
