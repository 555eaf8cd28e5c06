"""The field `dirigent` as headers: the same fields, the same bounds; the body wins; a bad value names its header."""

from __future__ import annotations

import pytest

from dirigent.serve.apis.dirigent_field import merged
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.asked import Extension, PoolChoice
from tests.serve.conftest import Server


def test_every_field_can_be_said_in_a_header() -> None:
    found = merged(
        Extension(),
        {
            "X-Dirigent-Max-Cost-USD": "0.05",
            "X-Dirigent-Deadline-S": "20",
            "X-Dirigent-Max-Steps": "3",
            "X-Dirigent-Max-Rounds": "1",
            "X-Dirigent-Pool-Allow": "a, b",
            "X-Dirigent-Pool-Deny": "c",
            "X-Dirigent-Pool-Pin": "a",
            "X-Dirigent-Region": "eu",
            "X-Dirigent-Dry-Run": "true",
            "X-Dirigent-Trace": "no",
            "Accept": "*/*",
        },
    )
    assert found == Extension(
        max_cost_usd=0.05,
        deadline_s=20.0,
        max_steps=3,
        max_rounds=1,
        pool=PoolChoice(allow=("a", "b"), deny=("c",), pin="a"),
        region="eu",
        dry_run=True,
        trace=False,
    )


def test_the_body_wins_field_by_field() -> None:
    body = Extension(max_steps=2, pool=PoolChoice(pin="a"))
    headers = {"x-dirigent-max-steps": "4", "x-dirigent-pool-pin": "b", "x-dirigent-pool-deny": "c"}
    assert merged(body, headers) == Extension(max_steps=2, pool=PoolChoice(pin="a", deny=("c",)))
    assert merged(body, {"accept": "*/*"}) is body


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X-Dirigent-Max-Cost-USD", "cheap"),
        ("X-Dirigent-Max-Cost-USD", "-1"),
        ("X-Dirigent-Max-Cost-USD", "nan"),
        ("X-Dirigent-Deadline-S", "inf"),
        ("X-Dirigent-Deadline-S", "0"),
        ("X-Dirigent-Max-Steps", "3.5"),
        ("X-Dirigent-Max-Steps", "33"),
        ("X-Dirigent-Dry-Run", "perhaps"),
        ("X-Dirigent-Max-Step", "3"),
    ],
)
def test_a_bad_value_is_a_400_that_names_the_header(header: str, value: str) -> None:
    with pytest.raises(Problem) as caught:
        merged(Extension(), {header: value})
    assert (caught.value.status, caught.value.param) == (400, header)


async def test_headers_work_on_a_request(server: Server) -> None:
    headers = {"X-Dirigent-Trace": "true", "X-Dirigent-Pool-Pin": "beta"}
    answer = await server.chat(model="planner/single", headers=headers)
    assert [step["worker"] for step in answer.object["dirigent"]["steps"]] == ["beta"]
    dry = await server.chat(model="ultra", headers={"X-Dirigent-Dry-Run": "1"})
    assert dry.object["object"] == "dirigent.plan"
    refused = await server.chat(model="ultra", headers={"X-Dirigent-Max-Steps": "many"})
    assert (refused.status, refused.error["param"]) == (400, "X-Dirigent-Max-Steps")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}),
    ],
)
async def test_headers_work_on_every_route_that_runs(server: Server, path: str, body: dict[str, object]) -> None:
    headers = {"X-Dirigent-Pool-Pin": "beta"}
    answer = await server.request("POST", path, json={"model": "planner/single"} | body, headers=headers)
    assert answer.status == 200, answer.text
    assert [call.model for call in server.stub.calls] == ["beta"]
    refused = await server.request("POST", path, json={"model": "ultra"} | body, headers={"X-Dirigent-Trace": "hm"})
    assert refused.status == 400
    assert "X-Dirigent-Trace" in refused.text


@pytest.mark.parametrize("value", ["inf", "Infinity", "-inf", "1e400"])
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
async def test_a_cost_without_end_is_a_400_for_a_worker_too(server: Server, path: str, value: str) -> None:
    said = (
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9} if path != "responses" else {"input": "hi"}
    )
    answer = await server.request(
        "POST",
        f"/v1/{path}",
        json={"model": "worker/alpha", **said},
        headers={"X-Dirigent-Max-Cost-USD": value},
    )
    assert (answer.status, answer.error["param"]) == (400, "X-Dirigent-Max-Cost-USD")
    assert server.stub.calls == []
