"""Idempotency-Key: one execution, the same bytes again, also after a restart; conflicts said plainly; nothing of a run
that was deleted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dirigent.errors import StoreError
from dirigent.serve.http import idempotency
from dirigent.serve.http.idempotency import _is_final
from dirigent.store.keys import Caller, create_key
from dirigent.store.ledger import usage
from dirigent.store.retention import forget
from tests.serve.conftest import Answer, Server, Start
from tests.serve.test_process import process
from tests.stub_provider import StubProvider
from tests.stub_wires import StubCall, StubReply

ONCE = {"Idempotency-Key": "once"}


def same(first: Answer, again: Answer) -> bool:
    """The same reply, but for the mark, each reply's own id, and what the web server itself writes."""
    own = {"idempotent-replayed", "x-request-id", "date"}
    headers = [{n: v for n, v in answer.headers.items() if n.lower() not in own} for answer in (first, again)]
    return (first.status, headers[0], first.text) == (again.status, headers[1], again.text)


async def test_the_same_request_is_carried_out_once_and_answered_twice_byte_for_byte(server: Server) -> None:
    first = await server.chat(headers=ONCE)
    again = await server.chat(headers=ONCE)
    assert first.status == 200
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert same(first, again)
    assert len(server.stub.calls) == 1


async def test_a_stream_is_replayed_as_it_was_sent(server: Server) -> None:
    first = await server.chat(headers=ONCE, stream=True)
    again = await server.chat(headers=ONCE, stream=True)
    assert first.events[-1] == "[DONE]"
    assert same(first, again)
    assert again.headers["content-type"] == "text/event-stream"
    assert len(server.stub.calls) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}),
    ],
)
async def test_it_holds_on_every_route_that_runs(server: Server, path: str, body: dict[str, Any], stream: bool) -> None:
    body = {"model": "worker/alpha", "stream": stream} | body
    first = await server.request("POST", path, json=body, headers=ONCE)
    again = await server.request("POST", path, json=body, headers=ONCE)
    assert first.status == 200, first.text
    assert (again.status, again.text) == (200, first.text)
    assert again.headers["Idempotent-Replayed"] == "true"
    other = await server.request("POST", path, json=body | {"temperature": 0.5}, headers=ONCE)
    assert other.status == 422
    assert len(server.stub.calls) == 1


async def test_it_holds_after_a_restart(start: Start) -> None:
    first = await (await start()).chat(headers=ONCE)
    later = await start()  # a second server over the same store
    assert same(first, await later.chat(headers=ONCE))
    assert len(later.stub.calls) == 1


async def test_fifty_at_once_are_one_execution(server: Server) -> None:
    release = asyncio.Event()

    async def hang(call: StubCall) -> str:
        await release.wait()
        return "here"

    server.stub.answer = hang
    asking = [asyncio.ensure_future(server.chat(headers=ONCE)) for _ in range(50)]
    await server.stub.called(1)
    told, waiting = await asyncio.wait(asking, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    while len(told) < 49:
        more, waiting = await asyncio.wait(waiting, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        told |= more
    for each in told:
        assert (each.result().status, each.result().error["code"]) == (409, "idempotency_running")
        assert int(each.result().headers["Retry-After"]) >= 1
    release.set()
    (first,) = [await each for each in waiting]
    assert first.object["choices"][0]["message"]["content"] == "here"
    assert same(first, await server.chat(headers=ONCE))
    assert len(server.stub.calls) == 1


async def test_another_body_or_another_route_or_header_is_422(server: Server) -> None:
    await server.chat("hi", headers=ONCE)
    for answer in (
        await server.chat("ho", headers=ONCE),
        await server.chat(headers=ONCE | {"X-Dirigent-Trace": "yes"}),
    ):
        assert (answer.status, answer.error["code"]) == (422, "idempotency_differs")
    assert len(server.stub.calls) == 1


async def test_another_keys_name_is_nothing_to_us(start: Start) -> None:
    server = await start(keys_required=True)
    told = []
    for label in ("a", "b"):
        made = await create_key(server.service.store, Caller("", label=label))
        told.append(await server.chat(headers=ONCE | {"Authorization": f"Bearer {made.text}"}))
    assert [answer.status for answer in told] == [200, 200]
    assert told[0].headers["X-Dirigent-Trace-Id"] != told[1].headers["X-Dirigent-Trace-Id"]
    assert len(server.stub.calls) == 2


async def test_failures_of_ours_and_refusals_are_not_remembered(server: Server) -> None:
    server.stub.faults = ["500"]
    assert (await server.chat(headers=ONCE)).status == 503
    refused = await server.chat(headers=ONCE, temperature=9)
    assert refused.status == 400
    done = await server.chat(headers=ONCE)
    assert done.status == 200
    assert "Idempotent-Replayed" not in done.headers


async def test_a_stream_that_broke_off_is_not_remembered(server: Server) -> None:
    server.stub.faults = ["reset-mid-stream"]
    first = await server.chat("long enough", headers=ONCE, stream=True)
    assert "[DONE]" not in first.events
    again = await server.chat("long enough", headers=ONCE, stream=True)
    assert again.events[-1] == "[DONE]"
    assert "Idempotent-Replayed" not in again.headers


async def test_a_reply_that_could_not_be_kept_is_not_given(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(idempotency, "finish", fail)
        answer = await server.chat(headers=ONCE)
        assert (answer.status, answer.error["code"]) == (503, "store_failed")
        with pytest.raises(aiohttp.ClientError):
            await server.chat(headers=ONCE, stream=True)
    assert (await server.chat(headers=ONCE)).status == 200


async def test_a_caller_that_left_may_ask_again(server: Server, wait_until: Any) -> None:
    server.stub.delay_s = 60.0
    asking = asyncio.ensure_future(server.chat(headers=ONCE))
    call = await server.stub.called(1)
    asking.cancel()
    await asyncio.wait([asking])
    await asyncio.wait_for(call.ended.wait(), 10)
    server.stub.delay_s = 0.0
    await wait_until(lambda: server.service.admission.in_flight == 0)
    async with asyncio.timeout(20):
        while (again := await server.chat(headers=ONCE)).status == 409:
            pass
    assert again.status == 200
    assert len(server.stub.calls) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_budget_that_allowed_no_call_is_asked_again_another_day(server: Server, stream: bool) -> None:
    made = await create_key(server.service.store, Caller(budget_day_usd=0.0))
    headers = ONCE | {"Authorization": f"Bearer {made.text}"}
    for _ in range(2):
        refused = await server.chat(headers=headers, stream=stream)
        assert refused.status == 402
        assert "Idempotent-Replayed" not in refused.headers


async def test_a_background_run_that_its_caller_left_is_not_begun_again(server: Server) -> None:
    release = asyncio.Event()

    async def late(call: StubCall) -> str:
        await release.wait()
        return "late"

    server.stub.answer = late
    body = {"model": "worker/alpha", "input": "hi", "background": True, "stream": True}
    async with server.session.post(server.url + "/v1/responses", json=body, headers=ONCE) as streamed:
        assert await streamed.content.readline() == b"event: response.created\n"
        run_id = streamed.headers["X-Dirigent-Trace-Id"]
        streamed.close()
    await server.stub.called(1)
    release.set()
    async with asyncio.timeout(10):  # the server may not have noticed yet
        while (again := await server.request("POST", "/v1/responses", json=body, headers=ONCE)).status == 409:
            assert again.error["code"] == "idempotency_running"
    assert (again.status, again.headers["X-Dirigent-Trace-Id"]) == (200, run_id)
    assert again.frames[0].startswith("event: response.created\n")
    assert again.frames[-1].startswith("event: response.completed\n")
    assert same(again, await server.request("POST", "/v1/responses", json=body, headers=ONCE))
    assert len(server.stub.calls) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_background_run_whose_reply_could_not_be_stored_is_not_begun_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    async def fail(*_: object) -> None:
        raise StoreError("the disk is full")

    body = {"model": "worker/alpha", "input": "hi", "background": True, "stream": stream}
    with monkeypatch.context() as patch:
        patch.setattr(idempotency, "finish", fail)
        if stream:
            with pytest.raises(aiohttp.ClientError):
                await server.request("POST", "/v1/responses", json=body, headers=ONCE)
        else:
            answer = await server.request("POST", "/v1/responses", json=body, headers=ONCE)
            assert (answer.status, answer.error["code"]) == (503, "store_failed")
    other = await server.request("POST", "/v1/responses", json=body | {"input": "ho"}, headers=ONCE)
    assert (other.status, other.error["code"]) == (422, "idempotency_differs")
    again = await server.request("POST", "/v1/responses", json=body, headers=ONCE)
    assert again.status == 200, again.text
    assert same(again, await server.request("POST", "/v1/responses", json=body, headers=ONCE))
    assert len(server.stub.calls) == 1


async def test_a_reply_that_is_too_long_is_not_kept_and_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "MAX_KEPT_BYTES", 100)
    first = await server.chat(headers=ONCE, stream=True)
    assert first.events[-1] == "[DONE]"
    again = await server.chat(headers=ONCE, stream=True)
    assert (again.status, again.error["code"]) == (409, "idempotency_not_kept")
    assert first.headers["X-Dirigent-Trace-Id"] in again.error["message"]
    assert len(server.stub.calls) == 1


async def test_a_reply_with_something_like_a_key_in_it_does_not_reach_the_disk(server: Server, tmp_path: Path) -> None:
    server.stub.answer = lambda call: StubReply("take sk-abcdefghijklmnop1234567890 and go")
    assert "sk-abc" in (await server.chat(headers=ONCE)).text
    assert (await server.chat(headers=ONCE)).error["code"] == "idempotency_not_kept"
    assert b"sk-abcdefghijklmnop" not in await asyncio.to_thread(whole, tmp_path)


def whole(folder: Path) -> bytes:
    """Every byte of the store."""
    return b"".join(file.read_bytes() for file in folder.glob("serve.db*"))


@pytest.mark.parametrize("name", ["x" * 256, "söme", ""])
async def test_a_name_that_cannot_be_kept_is_a_400(server: Server, name: str) -> None:
    answer = await server.chat(headers={"Idempotency-Key": name})
    assert (answer.status, answer.error["param"]) == (400, "Idempotency-Key")
    assert server.stub.calls == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/responses", {"input": "hi", "background": True}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}),
    ],
    ids=["chat", "responses", "background", "messages"],
)
async def test_the_reply_of_a_run_that_was_deleted_is_not_given_again(
    server: Server, path: str, body: dict[str, Any], stream: bool, wait_until: Any
) -> None:
    body = {"model": "worker/alpha", "stream": stream} | body
    runs = []
    for _ in range(2):
        answer = await server.request("POST", path, json=body, headers=ONCE)
        assert answer.status == 200, answer.text
        assert "Idempotent-Replayed" not in answer.headers, "it is a new request"
        again = await server.request("POST", path, json=body, headers=ONCE)
        assert (again.text, again.headers["Idempotent-Replayed"]) == (answer.text, "true")
        runs.append(answer.headers["X-Dirigent-Trace-Id"])
        await wait_until(lambda: not server.service.runs)
        assert (await forget(server.service.store, runs[-1], actor="cli")).idempotency == 1
    assert runs[0] != runs[1]
    assert len(server.stub.calls) == 2


async def test_the_reply_of_a_failed_run_is_deleted_with_it_too(server: Server) -> None:
    server.stub.faults = ["400"]
    first = await server.chat(headers=ONCE)
    assert (first.status, first.error["code"]) == (400, "worker_refused")
    assert same(first, await server.chat(headers=ONCE))
    await forget(server.service.store, first.headers["X-Dirigent-Trace-Id"], actor="cli")
    assert (await server.chat(headers=ONCE)).status == 200


DIES = """
import asyncio, sys
from dirigent.limits import Quote
from dirigent.store import Store
from dirigent.store.idempotency import claim
from dirigent.store.keys import LOCAL_ADMIN
from dirigent.store.ledger import StoreLedger

async def work():
    async with Store.open(sys.argv[1]) as store:
        print(await claim(store, key_id="local", name="once", digest=sys.argv[2], longest_s=1000.0))
        await StoreLedger(store, caller=LOCAL_ADMIN, run_id="dead").reserve(Quote("alpha", 0.5, 0.0, 10))

asyncio.run(work())
"""


def dies(store: Path, digest: str) -> str:
    """A process that claims the name, reserves a call, and ends before it has settled it."""
    command = [sys.executable, "-c", DIES, str(store), digest]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ.copy()).stdout


async def test_a_dead_processs_request_is_carried_out_again_once_and_its_calls_are_closed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "_digest", lambda request, body: "d" * 64)
    assert "Claimed" in await asyncio.to_thread(dies, tmp_path / "serve.db", "d" * 64)
    asked = await asyncio.gather(*(server.chat(headers=ONCE) for _ in range(5)))
    assert sorted({answer.status for answer in asked}) in ([200], [200, 409])
    assert len(server.stub.calls) == 1
    spent = await usage(server.service.store)
    assert (spent.lost_calls, spent.held_usd) == (1, 0.0)


async def test_a_request_that_ended_two_processes_is_not_tried_a_third_time(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "_digest", lambda request, body: "d" * 64)
    for again in ("again=False", "again=True"):
        assert again in await asyncio.to_thread(dies, tmp_path / "serve.db", "d" * 64)
    answer = await server.chat(headers=ONCE)
    assert (answer.status, answer.error["code"]) == (409, "idempotency_given_up")
    assert server.stub.calls == []


def test_which_replies_stand() -> None:
    carried_out = {"X-Dirigent-Trace-Id": "run", "X-Dirigent-Cost-USD": "0.000000001"}
    assert _is_final(200, {})
    assert _is_final(402, carried_out)
    assert not _is_final(402, {})
    assert not _is_final(402, carried_out | {"X-Dirigent-Cost-USD": "0.000000000"})
    assert _is_final(400, carried_out | {"X-Dirigent-Cost-USD": "0.000000000"})
    assert not any(_is_final(status, carried_out) for status in (499, 500, 503))


async def test_after_kill_minus_9_the_same_key_gives_one_result(tmp_path: Path, stub: StubProvider) -> None:
    body = {"model": "worker/alpha", "messages": [{"role": "user", "content": "hi"}]}
    stub.delay_s = 60.0
    async with process(tmp_path, stub.url("openai")) as running, aiohttp.ClientSession() as session:
        base = await address(running)
        asking = asyncio.ensure_future(session.post(f"{base}/chat/completions", json=body, headers=ONCE))
        await stub.called(1)
        running.kill()
        await asyncio.wait([asking])
        assert isinstance(asking.exception(), aiohttp.ClientError)
    stub.delay_s = 0.0
    async with process(tmp_path, stub.url("openai")) as running, aiohttp.ClientSession() as session:
        base = await address(running)
        told = []
        for _ in range(2):
            async with session.post(f"{base}/chat/completions", json=body, headers=ONCE) as response:
                told.append((response.status, await response.read()))
    assert told[0] == told[1]
    assert told[0][0] == 200
    assert len(stub.calls) == 2


async def address(running: asyncio.subprocess.Process) -> str:
    assert running.stderr is not None
    line = (await running.stderr.readline()).decode()
    assert line.startswith("serving http://"), line
    return line.split()[1]
