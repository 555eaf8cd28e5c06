"""OpenTelemetry: spans named after runs and steps, without any text of a request; off by default."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from dirigent.config.server_settings import ServeSettings
from dirigent.errors import ConfigError
from dirigent.serve.http import telemetry as module
from dirigent.serve.http.telemetry import spans, telemetry
from tests.facts import facts
from tests.serve.conftest import Server


def watched(server: Server) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    server.service.observers.append(spans(provider))
    return exporter


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_a_run_is_a_span_with_its_drafts_and_steps_below_it(server: Server) -> None:
    exporter = watched(server)
    answer = await server.chat("a private question", model="ultra")
    found = by_name(exporter)
    calls = {"chat boss", "chat alpha", "chat beta"}
    assert found.keys() == {"run ultra", "plan language:boss", "step 0 alpha", "step 1 beta"} | calls
    run = found["run ultra"]
    assert run.attributes is not None
    assert run.attributes["dirigent.trace_id"] == answer.object["dirigent"]["trace_id"]
    assert run.attributes["dirigent.cost_usd"] == pytest.approx(answer.object["dirigent"]["cost_usd"])
    assert run.attributes["gen_ai.usage.input_tokens"] == answer.object["usage"]["prompt_tokens"]
    for name in ("plan language:boss", "step 0 alpha", "step 1 beta"):
        span = found[name]
        assert span.parent is not None
        assert span.parent.span_id == run.context.span_id
        assert run.start_time <= span.start_time <= span.end_time <= run.end_time + 1_000_000  # type: ignore[operator]
    assert found["step 0 alpha"].end_time <= found["step 1 beta"].start_time  # type: ignore[operator]
    assert "private question" not in "".join(span.to_json() for span in exporter.get_finished_spans())


async def test_spans_follow_the_conventions_for_generative_ai(server: Server) -> None:
    exporter = watched(server)
    await server.chat(model="ultra", metadata={"conversation": "c1"})
    found = by_name(exporter)
    assert (found["run ultra"].attributes or {})["gen_ai.conversation.id"] == "c1"
    operations = {name: (span.attributes or {})["gen_ai.operation.name"] for name, span in found.items()}
    assert operations == {
        "run ultra": "invoke_workflow",
        "plan language:boss": "invoke_agent",
        "chat boss": "chat",
        "step 0 alpha": "invoke_agent",
        "step 1 beta": "invoke_agent",
        "chat alpha": "chat",
        "chat beta": "chat",
    }
    plan, planned = found["plan language:boss"], found["chat boss"]
    assert planned.parent is not None
    assert planned.parent.span_id == plan.context.span_id
    step, call = found["step 1 beta"], found["chat beta"]
    assert call.parent is not None
    assert call.parent.span_id == step.context.span_id
    assert step.start_time <= call.start_time <= call.end_time <= step.end_time  # type: ignore[operator]
    assert (call.attributes or {})["gen_ai.request.model"] == "beta"


async def test_texts_are_in_the_spans_only_where_they_are_wanted(server: Server) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    server.service.observers.append(spans(provider, content=True))
    await server.chat("a private question", model="ultra")
    found = by_name(exporter)
    assert "alpha" in str((found["plan language:boss"].attributes or {})["gen_ai.output.messages"])
    run = found["run ultra"].attributes or {}
    assert "a private question" in str(run["gen_ai.input.messages"])
    assert "beta says hello there" in str(run["gen_ai.output.messages"])


async def test_a_step_that_failed_has_an_error_status(server: Server) -> None:
    exporter = watched(server)
    server.stub.faults = ["500"] * 2
    assert (await server.chat()).status == 503
    found = by_name(exporter)
    assert found["run worker/alpha"].status.status_code == StatusCode.ERROR
    assert found["step 0 alpha"].status.status_code == StatusCode.ERROR


def test_it_is_off_unless_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in module.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    with telemetry(ServeSettings()) as watch:
        assert watch is None


@pytest.mark.parametrize("by", ["setting", "variable"])
def test_the_error_for_telemetry_without_its_extra_names_the_package(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    if by == "variable":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    with (
        pytest.raises(ConfigError, match=facts("pip install dirigent[otel]")),
        telemetry(ServeSettings(otel=by == "setting")),
    ):
        pass
