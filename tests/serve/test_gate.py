"""The gate: default deny over the whole table of routes, keys, roles, limits, budgets, loopback."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest
import yarl

from dirigent.errors import ConfigError
from dirigent.serve.http.app import ENDPOINTS
from dirigent.serve.http.auth import OPEN_PATHS, is_loopback
from dirigent.serve.http.server import bound, check_bind, check_no_loop
from dirigent.store.keys import Caller, create_key, revoke_key
from tests.facts import facts
from tests.serve.conftest import Server, Start
from tests.serve.test_connection import Wire
from tests.stub_wires import StubCall


async def key(server: Server, **bounds: Any) -> dict[str, str]:
    """A new key, as the header that carries it."""
    made = await create_key(server.service.store, Caller("", **bounds))
    return {"Authorization": f"Bearer {made.text}"}


async def keyed(start: Start) -> Server:
    """A server that has a key from the start."""
    server = await start(keys_required=True)
    await key(server)
    return server


async def test_without_a_key_every_route_but_the_open_ones_is_401(start: Start) -> None:
    server = await keyed(start)
    assert {e.path for e in ENDPOINTS if e.open} == OPEN_PATHS
    for endpoint in ENDPOINTS:
        path = re.sub(r"{.*}", "anything", endpoint.path)
        for headers in ({}, {"Authorization": "Bearer dg_wrong"}, {"Authorization": "Basic eDp5"}, {"X-Api-Key": "no"}):
            answer = await server.request(endpoint.method, path, headers=headers)
            if endpoint.open:
                assert answer.status in (200, 503), path
            else:
                assert (answer.status, answer.error["code"]) == (401, "invalid_api_key"), path
                assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/nothing", "/v1", "/healthz/", "/HEALTHZ", "//healthz", "/healthz/../metrics"])
async def test_paths_that_do_not_exist_are_denied_as_well(start: Start, path: str) -> None:
    server = await keyed(start)
    async with server.session.get(yarl.URL(server.url + path, encoded=True)) as response:
        assert response.status == 401


async def test_a_key_opens_and_a_revoked_one_does_not(start: Start) -> None:
    server = await keyed(start)
    made = await create_key(server.service.store, Caller("", label="team"))
    for headers in ({"Authorization": f"Bearer {made.text}"}, {"x-api-key": made.text}):
        assert (await server.chat(headers=headers)).status == 200
    await revoke_key(server.service.store, made.row.caller.key_id)
    assert (await server.chat(headers=headers)).status == 401


async def test_a_key_made_while_the_server_runs_closes_it_for_everybody_else(server: Server) -> None:
    assert (await server.get("/v1/models")).status == 200
    headers = await key(server)
    end = time.monotonic() + 2
    while (status := (await server.get("/v1/models")).status) == 200 and time.monotonic() < end:
        pass
    assert status == 401
    assert (await server.get("/v1/models", headers=headers)).status == 200


async def test_routes_for_admins_refuse_others(start: Start) -> None:
    server = await keyed(start)
    user, admin = await key(server), await key(server, role="admin")
    for path in ("/metrics", "/v1/traces?key=another"):
        assert (await server.get(path, headers=user)).status == 403
        assert (await server.get(path, headers=admin)).status == 200


async def test_a_trace_is_its_owners_and_does_not_exist_for_others(start: Start) -> None:
    server = await keyed(start)
    owner, other, admin = await key(server), await key(server), await key(server, role="admin")
    id = (await server.chat(headers=owner)).object["dirigent"]["trace_id"]
    assert (await server.get(f"/v1/traces/{id}", headers=owner)).object["answer"] == "alpha says hello there"
    assert (await server.get(f"/v1/traces/{id}", headers=admin)).status == 200
    hidden = await server.get(f"/v1/traces/{id}", headers=other)
    missing = await server.get(f"/v1/traces/{'0' * len(id)}", headers=other)
    assert hidden.status == missing.status == 404
    assert hidden.text.replace(id, "") == missing.text.replace("0" * len(id), "")


async def test_the_trace_of_a_run_that_was_refused_before_its_first_call_is_its_owners(start: Start) -> None:
    server = await keyed(start)
    owner, other = await key(server, budget_total_usd=1e-9), await key(server)
    refused = await server.chat(headers=owner)
    id = refused.headers["X-Dirigent-Trace-Id"]
    assert (refused.status, server.stub.calls) == (402, [])
    found = await server.get(f"/v1/traces/{id}", headers=owner)
    assert (found.status, found.object["id"], found.object["status"]) == (200, id, "failed")
    assert (await server.get(f"/v1/traces/{id}", headers=other)).status == 404
    assert (await server.get(f"/v1/traces/{id[:8]}", headers=owner)).status == 404


async def test_so_is_that_of_one_in_the_background(start: Start) -> None:
    server = await keyed(start)
    owner, other = await key(server, budget_total_usd=1e-9), await key(server)
    body = {"model": "worker/alpha", "input": "hi", "background": True}
    response = (await server.request("POST", "/v1/responses", json=body, headers=owner)).object
    async with asyncio.timeout(10):
        while response["status"] == "in_progress":
            await asyncio.sleep(0.02)
            response = (await server.get(f"/v1/responses/{response['id']}", headers=owner)).object
    run_id = response["dirigent"]["trace_id"]
    assert (response["status"], server.stub.calls) == ("failed", [])
    assert (await server.get(f"/v1/traces/{run_id}", headers=owner)).status == 200
    assert (await server.get(f"/v1/traces/{run_id}", headers=other)).status == 404


async def test_an_owners_view_of_a_trace_names_no_key(start: Start) -> None:
    server = await keyed(start)
    made = await create_key(server.service.store, Caller("", label="team"))
    headers = {"Authorization": f"Bearer {made.text}"}
    id = (await server.chat(headers=headers)).headers["X-Dirigent-Trace-Id"]
    text = (await server.get(f"/v1/traces/{id}", headers=headers)).text
    assert made.row.caller.key_id not in text
    assert "key_id" not in text


async def test_a_key_sees_and_uses_only_its_workers(start: Start) -> None:
    server = await keyed(start)
    headers = await key(server, region="eu")
    models = (await server.get("/v1/models", headers=headers)).object["data"]
    assert {name for model in models for name in model["workers"]} == {"alpha"}
    assert (await server.chat(model="worker/beta", headers=headers)).status == 404
    assert (await server.get("/v1/models/worker/beta", headers=headers)).status == 404
    assert (await server.chat(model="ultra", headers=headers)).status == 200
    assert {call.model for call in server.stub.calls} == {"alpha"}


async def test_every_reply_has_an_id_that_openais_clients_show(start: Start) -> None:
    server = await keyed(start)
    headers = await key(server)
    said = {"model": "worker/alpha", "input": "hi"}
    answers = [
        await server.chat(headers=headers),
        await server.chat(headers=headers, stream=True),
        await server.request("POST", "/v1/responses", json=said, headers=headers),
        await server.request("POST", "/v1/responses", json=said | {"stream": True}, headers=headers),
        await server.get("/v1/responses/resp_none", headers=headers),
        await server.chat(headers=headers, model="nobody"),
        await server.chat(),
    ]
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 404, 404, 401]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == len(ids)
    assert all(id.startswith("req_") for id in ids)
    assert "x-request-id" not in (await server.request("POST", "/v1/messages", json={}, headers=headers)).headers


async def test_limits_of_a_key_are_429_with_retry_after(start: Start) -> None:
    server = await keyed(start)
    headers = await key(server, requests_per_minute=2)
    answers = [await server.chat(headers=headers) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert 1 <= int(answers[2].headers["Retry-After"]) <= 60


async def test_a_full_server_answers_503_and_serves_again_when_there_is_room(start: Start) -> None:
    server = await start(max_in_flight=1)
    release = asyncio.Event()

    async def hang(call: StubCall) -> str:
        await release.wait()
        return "late"

    server.stub.answer = hang
    first = asyncio.ensure_future(server.chat())
    await server.stub.called(1)
    second = await server.chat()
    assert (second.status, second.headers["Retry-After"]) == (503, "1")
    release.set()
    assert (await first).status == 200
    assert (await server.chat()).status == 200


async def test_refused_requests_leave_their_place(server: Server) -> None:
    await server.chat(model="nothing")
    await server.chat(stream=True, dirigent={"dry_run": True})
    assert server.service.admission.in_flight == 0


async def test_a_budget_holds_and_says_so_with_402(start: Start) -> None:
    server = await keyed(start)
    headers = await key(server, budget_total_usd=0.00002)
    statuses = [(await server.chat(max_tokens=16, headers=headers)).status for _ in range(4)]
    assert statuses[-1] == 402


async def test_without_keys_only_loopback_names_and_origins_come_in(server: Server) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "169.254.169.254", ""):
        assert (await server.get("/v1/models", headers={"Host": host})).status in (400, 403), host
    for host in ("localhost", "127.0.0.1:1", "[::1]:8000"):
        assert (await server.get("/v1/models", headers={"Host": host})).status == 200, host
    for origin in ("https://evil.example", "null", "http://localhost.evil.example"):
        assert (await server.chat(headers={"Origin": origin})).status == 403, origin
    assert (await server.chat(headers={"Origin": "http://localhost:3000"})).status == 200


def lines(target: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {target} HTTP/1.1", *headers, "Connection: close", "", "")).encode()


async def status_of(server: Server, request: bytes) -> int:
    wire = await Wire.open(server)
    wire.writer.write(request)
    answer = await wire.rest()
    await wire.close()
    return int(answer.split()[1])


@pytest.mark.parametrize("keys_required", [False, True])
async def test_two_headers_that_must_be_one_are_refused(start: Start, keys_required: bool) -> None:
    server = await start(keys_required=keys_required)
    right = await key(server) if keys_required else {"Authorization": "Bearer x"}
    host, said = f"Host: {yarl.URL(server.url).authority}", f"Authorization: {right['Authorization']}"
    assert await status_of(server, lines("/v1/models", host, said)) == 200
    for twice in ((host, host), ("Host: evil.example", host), (host, "Host: evil.example")):
        assert await status_of(server, lines("/v1/models", *twice, said)) == 400, twice
    for twice in ((said, said), ("Authorization: Bearer dg_wrong", said), ("x-api-key: a", "x-api-key: b")):
        assert await status_of(server, lines("/v1/models", host, *twice)) == 400, twice


async def test_a_target_with_a_foreign_host_is_refused(server: Server) -> None:
    own = yarl.URL(server.url).authority
    for target, host, status in (
        (f"http://{own}/v1/models", own, 200),
        (f"HTTP://{own}/v1/traces?limit=1", own, 200),
        (f"http://{own}/", own, 200),
        (f"http://{own}/nothing", own, 404),
        ("http://evil.example/v1/models", own, 400),
        (f"http://{own}@evil.example/v1/models", own, 400),
        (f"http://{own}/v1/models", "evil.example", 403),  # without keys, only the header's host opens the server
        ("http://evil.example/v1/models", "evil.example", 400),
        ("http://evil.example/healthz", own, 400),
    ):
        assert await status_of(server, lines(target, f"Host: {host}")) == status, (target, host)
    wire = await Wire.open(server)
    wire.writer.write(lines("http://evil.example/v1/messages", f"Host: {own}"))
    assert b'"type":"error"' in await wire.rest(), "this route's errors have Anthropic's shape"
    await wire.close()


async def test_beyond_loopback_a_key_must_exist(server: Server) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):
        with pytest.raises(ConfigError, match=facts("dirigent keys create")):
            await check_bind(host, server.service.store)
    await check_bind("127.0.0.1", server.service.store)


async def test_with_a_key_the_server_may_listen_anywhere(start: Start) -> None:
    server = await keyed(start)
    await check_bind("0.0.0.0", server.service.store)


async def test_a_worker_that_is_this_very_server_is_refused(server: Server) -> None:
    port = int(server.stub.url("openai").split(":")[2].split("/")[0])
    for host in ("127.0.0.1", "0.0.0.0", "localhost"):
        with pytest.raises(ConfigError, match=facts("alpha --port base_url")):
            check_no_loop(server.service.runtime.config, host=host, port=port)
    check_no_loop(server.service.runtime.config, host="127.0.0.1", port=port + 1)


def test_loopback_addresses_mean_this_machine_alone() -> None:
    assert all(is_loopback(host) for host in ("localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "[::1]"))
    assert not any(is_loopback(host) for host in ("", "0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.x"))


def test_a_port_that_is_taken_says_so() -> None:
    with bound("127.0.0.1", 0) as taken, pytest.raises(ConfigError, match="--port"):
        bound("127.0.0.1", taken.getsockname()[1])
