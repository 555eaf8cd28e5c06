"""Everything besides completions: models, traces, health, metrics, the description of it all."""

from __future__ import annotations

import jsonschema_rs

from dirigent.serve.http.app import ENDPOINTS
from tests.serve.conftest import Server


async def test_models_are_listed_and_found_one_by_one(server: Server) -> None:
    listed = (await server.get("/v1/models")).object
    ids = [model["id"] for model in listed["data"]]
    assert {"dirigent-mini", "dirigent-ultra", "ultra", "mini", "twice", "worker/alpha", "planner/moa"} <= set(ids)
    assert len(ids) == len(set(ids))
    for model in listed["data"]:
        assert (await server.get(f"/v1/models/{model['id']}")).object == model
    missing = await server.get("/v1/models/nobody/here")
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")


async def test_traces_are_listed_and_shown(server: Server) -> None:
    ids = [(await server.chat(f"question {i}")).object["dirigent"]["trace_id"] for i in range(3)]
    listed = (await server.get("/v1/traces?limit=2")).object["data"]
    assert [row["id"] for row in listed] == ids[:0:-1]
    found = (await server.get("/v1/traces?search=question+0")).object["data"]
    assert [row["id"] for row in found] == ids[:1]
    shown = (await server.get(f"/v1/traces/{ids[0]}")).object
    assert shown["question"][0]["content"] == "question 0"
    beyond = "since=0001-01-01T00:00:00%2B10:00"  # a day that is not in the calendar where UTC is
    for query in ("limit=0", "limit=x", "limit=201", "status=odd", "since=yesterday", beyond, "colour=red"):
        answer = await server.get(f"/v1/traces?{query}")
        assert (answer.status, answer.error["param"]) == (400, query.split("=")[0])
    assert (await server.get("/v1/traces/ffff")).status == 404


async def test_health_and_readiness(server: Server) -> None:
    assert (await server.get("/healthz")).object["status"] == "ok"
    ready = await server.get("/readyz")
    assert ready.object == {"ready": True, "workers": {"alpha": "closed", "beta": "closed", "boss": "closed"}}


async def test_a_server_whose_workers_all_rest_is_not_ready(server: Server) -> None:
    server.stub.faults = ["500"] * 60
    for model in ("worker/alpha", "worker/beta", "worker/boss"):
        for _ in range(11):
            assert (await server.chat(model=model)).status == 503
    calls = len(server.stub.calls)
    assert (await server.chat()).status == 503
    assert len(server.stub.calls) == calls  # an open breaker is not called
    ready = await server.get("/readyz")
    assert (ready.status, ready.object["ready"]) == (503, False)
    assert 'dirigent_worker_available{worker="alpha"} 0.0' in (await server.get("/metrics")).text


async def test_metrics_count_requests_and_calls(server: Server) -> None:
    await server.chat()
    await server.chat(stream=True)
    await server.chat(model="nothing")
    page = (await server.get("/metrics")).text
    assert 'dirigent_requests_total{route="/v1/chat/completions",status="200"} 2.0' in page
    assert 'dirigent_requests_total{route="/v1/chat/completions",status="404"} 1.0' in page
    assert 'dirigent_runs_total{model="worker/alpha",status="done"} 2.0' in page
    assert 'dirigent_calls_total{outcome="done",worker="alpha"} 2.0' in page
    assert "dirigent_in_flight 0.0" in page


async def test_the_description_covers_every_route_and_fits_the_replies(server: Server) -> None:
    described = (await server.get("/openapi.json")).object
    told = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert told == {(e.method, e.path.replace(":path", "")) for e in ENDPOINTS}
    shape = {"$ref": "#/components/schemas/ChatCompletion", "components": described["components"]}
    jsonschema_rs.validate(shape, (await server.chat()).object)
    wrong = {"$ref": "#/components/schemas/ErrorBody", "components": described["components"]}
    jsonschema_rs.validate(wrong, (await server.chat(n=2)).object)
    asked = {"$ref": "#/components/schemas/ChatRequest", "components": described["components"]}
    jsonschema_rs.validate(asked, {"model": "m", "messages": [{"role": "user", "content": "x"}]})


async def test_a_missing_route_is_an_error_of_the_same_shape(server: Server) -> None:
    missing = await server.get("/v1/nothing")
    assert (missing.status, missing.error["type"]) == (404, "not_found_error")
    wrong = await server.get("/v1/chat/completions")
    assert wrong.status == 405
    assert "POST" in wrong.headers["Allow"]
