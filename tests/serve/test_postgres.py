"""One server over a real PostgreSQL: it stores, counts, replays and deletes as it does over SQLite."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dirigent.errors import StoreError
from dirigent.store import keys, writer
from dirigent.store.audit import verify
from dirigent.store.keys import Caller, create_key
from dirigent.store.ledger import left, usage
from dirigent.store.retention import forget
from dirigent.store.tables import now
from tests.serve.conftest import CONFIG, Answer, Server, started
from tests.store import conftest as stores
from tests.store.samples import a_trace
from tests.stub_provider import StubProvider

pytestmark = pytest.mark.system

postgresql = stores.postgresql

Start = Callable[..., Awaitable[Server]]


async def eventually(true: Callable[[], Awaitable[bool]], *, within_s: float = 20.0) -> None:
    """Ask until it is so; fails loudly where it is not in time."""
    end = time.monotonic() + within_s
    while not await true():
        assert time.monotonic() < end, f"did not come true within {within_s:g} s"
        await asyncio.sleep(0.02)


@pytest.fixture
def database(postgresql: stores.PostgreSQL) -> str:
    return postgresql.new_schema()


@pytest.fixture
async def start(database: str, tmp_path: Path, stub: StubProvider) -> AsyncIterator[Start]:
    """Start a server over the database; several may run side by side."""
    config = CONFIG.replace("{store}", database)
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Server:
            return await stack.enter_async_context(started(tmp_path, stub, config=config, **settings))

        yield start


@pytest.fixture
async def server(start: Start) -> Server:
    return await start()


async def test_an_answer_is_there_with_its_trace_and_its_bill(server: Server) -> None:
    answer = await server.chat("Who are you?", model="ultra")
    assert answer.object["choices"][0]["message"]["content"] == "beta says hello there"
    trace = (await server.get(f"/v1/traces/{answer.headers['X-Dirigent-Trace-Id']}")).object
    assert (trace["status"], [step["worker"] for step in trace["rounds"][0]["steps"]]) == ("done", ["alpha", "beta"])
    spent = await usage(server.service.store)
    assert (spent.calls, spent.held_usd) == (3, 0)
    assert spent.cost_usd == pytest.approx(float(answer.headers["X-Dirigent-Cost-USD"]), abs=1e-9)


async def test_a_stream_is_kept_before_its_last_byte(server: Server) -> None:
    answer = await server.chat(model="ultra", stream=True, stream_options={"include_usage": True})
    assert (answer.streamed_text, answer.events[-1]) == ("beta says hello there", "[DONE]")
    (row,) = await server.service.store.list()
    assert (row.id, row.status) == (answer.headers["X-Dirigent-Trace-Id"], "done")


async def test_a_nul_which_no_text_column_takes_is_kept_all_the_same(server: Server) -> None:
    server.stub.answer = lambda call: "nul \x00 in the reply"
    answer = await server.chat("a\x00b", metadata={"note": "x\x00y"})
    assert answer.status == 200, answer.text
    trace = (await server.get(f"/v1/traces/{answer.headers['X-Dirigent-Trace-Id']}")).object
    assert trace["answer"] == "nul \x00 in the reply"
    feedback = {"trace_id": trace["id"], "thumb": "up", "comment": "nul \x00 again"}
    assert (await server.request("POST", "/v1/feedback", json=feedback)).status == 200
    assert [row["id"] for row in (await server.get("/v1/traces?search=nul%20%00")).object["data"]] == [trace["id"]]


async def test_a_response_continues_a_stored_one(server: Server) -> None:
    async def respond(**body: Any) -> Answer:
        return await server.request("POST", "/v1/responses", json={"model": "worker/alpha"} | body)

    first = (await respond(input="hi")).object
    second = (await respond(input="and now?", previous_response_id=first["id"])).object
    assert second["status"] == "completed"
    roles = [message["role"] for message in server.stub.calls[-1].body["messages"]]
    assert roles == ["user", "assistant", "user"]
    items = (await server.get(f"/v1/responses/{second['id']}/input_items?order=asc")).object["data"]
    assert len(items) == 3
    assert (await server.request("DELETE", f"/v1/responses/{first['id']}")).status == 200
    assert (await server.get(f"/v1/responses/{first['id']}")).status == 404


async def test_of_many_at_once_with_one_idempotency_key_one_is_carried_out(server: Server) -> None:
    server.stub.delay_s = 0.1
    answers = await asyncio.gather(*(server.chat(headers={"Idempotency-Key": "one"}) for _ in range(20)))
    assert sorted(answer.status for answer in answers) == [200] + [409] * 19
    later = await server.chat(headers={"Idempotency-Key": "one"})
    assert later.headers["Idempotent-Replayed"] == "true"
    assert later.text == next(answer.text for answer in answers if answer.status == 200)
    assert len(server.stub.calls) == 1


async def test_the_reply_of_a_run_that_was_deleted_is_not_given_again(server: Server) -> None:
    first, again = [await server.chat(headers={"Idempotency-Key": "one"}) for _ in range(2)]
    assert again.text == first.text
    gone = await forget(server.service.store, first.headers["X-Dirigent-Trace-Id"], actor="cli")
    assert (gone.traces, gone.idempotency) == (1, 1)
    new = await server.chat(headers={"Idempotency-Key": "one"})
    assert "Idempotent-Replayed" not in new.headers
    assert len(server.stub.calls) == 2


async def test_feedback_is_given_once_also_when_two_come_at_once(server: Server) -> None:
    id = (await server.chat()).object["dirigent"]["trace_id"]
    given = {"trace_id": id, "score": 0.5}
    answers = await asyncio.gather(*(server.request("POST", "/v1/feedback", json=given) for _ in range(4)))
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409]


async def test_usage_adds_up_to_the_ledger_however_it_is_grouped(server: Server) -> None:
    for model in ("worker/alpha", "ultra", "worker/beta"):
        assert (await server.chat(model=model)).status == 200
    ledger = await usage(server.service.store)
    for group_by in ("day", "model", "worker", "key", "day,model,worker,key"):
        report = (await server.get(f"/v1/usage?group_by={group_by}")).object
        assert sum(row["cost_nusd"] for row in report["data"]) == report["total"]["cost_nusd"]
        assert report["total"]["cost_nusd"] == round(ledger.cost_usd * 1e9)
        assert report["total"]["calls"] == ledger.calls == 5
    csv = (await server.get("/v1/usage?group_by=worker&format=csv")).text
    assert [line.split(",")[0] for line in csv.splitlines()] == ["worker", "alpha", "beta", "boss"]


async def test_old_runs_go_when_a_server_starts_and_the_ledger_and_the_audit_log_stay(start: Start) -> None:
    first = await start()
    old = (now() - timedelta(days=31)).isoformat()
    await first.service.store.save(a_trace("old", created_at=old))
    await first.chat()
    before = await usage(first.service.store)
    store = (await start(retention_days=30)).service.store

    async def gone_and_noted() -> bool:
        return len(await store.list(limit=None)) == 1 and (await verify(store)).head.number == 1

    await eventually(gone_and_noted)
    assert [row.profile for row in await store.list()] == ["worker/alpha"]
    assert await usage(store) == before
    assert (await verify(store)).problem == ""


async def test_a_key_has_its_rights_and_another_keys_run_does_not_exist(start: Start) -> None:
    server = await start(keys_required=True)
    mine, other = [
        {"Authorization": f"Bearer {(await create_key(server.service.store, Caller(label=label))).text}"}
        for label in ("mine", "other")
    ]
    assert (await server.chat()).status == 401
    id = (await server.chat(headers=mine)).headers["X-Dirigent-Trace-Id"]
    assert (await server.get(f"/v1/traces/{id}", headers=mine)).status == 200
    assert (await server.get(f"/v1/traces/{id}", headers=other)).status == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/traces?profile=%00", 200),
        ("/v1/traces/%00", 404),
        ("/v1/responses/%00", 404),
        ("/v1/usage?key=%00", 200),
    ],
)
async def test_a_search_with_a_nul_finds_nothing(server: Server, path: str, status: int) -> None:
    assert (await server.get(path)).status == status
    body = {"model": "worker/alpha", "input": "hi", "previous_response_id": "resp_\x00"}
    assert (await server.request("POST", "/v1/responses", json=body)).status == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_a_hanging_database_ends_running_runs_and_their_costs_are_entered_when_it_answers(
    start: Start, postgresql: stores.PostgreSQL, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(writer, "SILENT_S", 1.0)
    monkeypatch.setattr(keys, "SILENT_S", 1.0)
    server = await start()
    caller = Caller(label="mine", budget_day_usd=1.0)
    headers = {"Authorization": f"Bearer {(await create_key(server.service.store, caller)).text}"}
    server.stub.delay_s = 0.3
    asked = asyncio.ensure_future(server.chat(stream=stream, headers=headers))
    await server.stub.called(1)
    with postgresql.hanging():
        answer = await asyncio.wait_for(asked, 10)
        told = answer.events[-1] if answer.status == 200 else answer.object
        assert (told["error"]["code"], "[DONE]" in answer.text) == ("store_failed", False)
        refused = await asyncio.wait_for(server.chat(headers=headers), 5)
        assert (refused.status, refused.error["code"]) == (503, "store_failed")
        assert (await asyncio.wait_for(server.get("/healthz"), 5)).status == 200
    assert len(server.stub.calls) == 1, "no call is paid for a run that cannot be stored"

    async def settled() -> bool:
        return (await usage(server.service.store)).held_usd == 0

    await eventually(settled)
    spent = await usage(server.service.store)
    assert (spent.calls, spent.lost_calls) == (1, 0)
    assert spent.cost_usd > 0
    after = await server.chat(headers=headers)
    assert after.status == 200, after.text
    (row,) = await keys.list_keys(server.service.store)
    budget = await left(server.service.store, row.caller)
    assert budget is not None
    assert budget.usd == pytest.approx(1 - (await usage(server.service.store)).cost_usd, abs=1e-9)


async def test_a_caller_does_not_learn_the_databases_address(
    server: Server, postgresql: stores.PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(*_: Any) -> None:
        raise StoreError(f"the store {server.service.store.where} failed")

    monkeypatch.setattr(server.service.store, "read", read)
    answer = await server.get("/v1/usage")
    assert (answer.status, answer.error["code"]) == (503, "store_failed")
    assert str(postgresql.folder) not in answer.text
