"""Background responses: begun, polled, streamed, cancelled, and finished after their server was killed."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from sqlalchemy import delete, select

from dirigent.config.runtime import STORE_FILE
from dirigent.errors import StoreError
from dirigent.run.trace import Trace
from dirigent.serve.http import idempotency
from dirigent.serve.service import Service
from dirigent.store import Store, tables
from dirigent.store.keys import LOCAL_ADMIN, Caller, create_key
from dirigent.store.process_id import NOBODY
from dirigent.store.responses import find_response, keep_response
from dirigent.store.tables import responses, traces
from tests.serve.conftest import Answer, Server, by_model
from tests.serve.test_process import process
from tests.serve.test_responses import TOOL, asks_for, events_of, kinds_of, respond
from tests.stub_provider import StubProvider
from tests.stub_wires import StubCall, StubReply

WaitUntil = Callable[..., Awaitable[None]]


async def ended(server: Server, id: str) -> dict[str, Any]:
    """Poll, as clients do."""
    async with asyncio.timeout(10):
        while True:
            response: dict[str, Any] = (await server.get(f"/v1/responses/{id}")).object
            if response["status"] not in ("queued", "in_progress"):
                return response
            await asyncio.sleep(0.02)


def held(release: asyncio.Event) -> Callable[[StubCall], Awaitable[str | StubReply]]:
    async def answer(call: StubCall) -> str | StubReply:
        if call.model == "beta":
            await release.wait()
        return by_model(call)

    return answer


async def test_it_is_answered_at_once_and_polled_until_it_ends(server: Server) -> None:
    release = asyncio.Event()
    server.stub.answer = held(release)
    begun = (await respond(server, model="ultra", background=True)).object
    assert (begun["status"], begun["background"], begun["output"], begun["usage"]) == ("in_progress", True, [], None)
    await server.stub.called(3)
    assert (await server.get(f"/v1/responses/{begun['id']}")).object == begun
    release.set()
    response = await ended(server, begun["id"])
    assert response["status"] == "completed"
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][1]["content"][0]["text"] == "beta says hello there"
    trace = await server.service.store.get(response["dirigent"]["trace_id"])
    assert response["usage"]["input_tokens"] == trace.usage.input_tokens


async def test_a_client_that_leaves_does_not_change_it(server: Server) -> None:
    release = asyncio.Event()
    server.stub.answer = held(release)
    body = {"model": "ultra", "input": "hi", "background": True, "stream": True}
    async with server.session.post(server.url + "/v1/responses", json=body) as streamed:
        line = await streamed.content.readline()
        data = await streamed.content.readline()
        assert line == b"event: response.created\n"
        id = json.loads(data.removeprefix(b"data: "))["response"]["id"]
        streamed.close()
    await server.stub.called(3)
    release.set()
    assert (await ended(server, id))["status"] == "completed"


async def test_its_stream_can_be_taken_up_after_the_last_event_that_arrived(server: Server) -> None:
    whole = await respond(server, model="ultra", background=True, stream=True)
    assert kinds_of(whole)[:2] == ["created", "in_progress"]
    assert kinds_of(whole)[-1] == "completed"
    events = events_of(whole)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    path = f"/v1/responses/{events[0]['response']['id']}?stream=true"
    assert events_of(await server.get(path)) == events
    assert events_of(await server.get(f"{path}&starting_after=6")) == events[7:]
    assert (await server.get(f"{path}&starting_after=x")).error["param"] == "starting_after"


async def test_a_failed_run_is_a_failed_response(server: Server) -> None:
    server.stub.faults = ["500"]
    id = (await respond(server, background=True)).object["id"]
    response = await ended(server, id)
    assert response["status"] == "failed"
    assert "alpha" in response["error"]["message"]
    assert kinds_of(await server.get(f"/v1/responses/{id}?stream=true")) == ["created", "in_progress", "failed"]


async def test_cancelling_ends_its_calls_and_is_the_same_twice(server: Server) -> None:
    server.stub.answer = held(asyncio.Event())
    id = (await respond(server, model="ultra", background=True)).object["id"]
    call = await server.stub.called(3)
    answers = [await server.request("POST", f"/v1/responses/{id}/cancel") for _ in range(2)]
    assert [answer.object["status"] for answer in answers] == ["cancelled", "cancelled"]
    await asyncio.wait_for(call.ended.wait(), 5)
    assert call.aborted
    assert answers[1].object["usage"]["total_tokens"] > 0  # the work until then was paid
    assert (await server.get(f"/v1/responses/{id}")).object == answers[1].object


async def test_one_that_has_ended_stays_as_it_is_when_it_is_cancelled(server: Server) -> None:
    id = (await respond(server, background=True)).object["id"]
    response = await ended(server, id)
    assert (await server.request("POST", f"/v1/responses/{id}/cancel")).object == response


async def test_one_that_runs_is_cancelled_before_it_is_deleted(server: Server) -> None:
    server.stub.answer = held(asyncio.Event())
    id = (await respond(server, model="ultra", background=True)).object["id"]
    call = await server.stub.called(3)
    assert (await server.request("DELETE", f"/v1/responses/{id}")).status == 200
    await asyncio.wait_for(call.ended.wait(), 5)
    assert (await server.get(f"/v1/responses/{id}")).status == 404


async def test_one_that_has_not_ended_cannot_be_gone_on_from(server: Server) -> None:
    server.stub.answer = held(asyncio.Event())
    id = (await respond(server, model="ultra", background=True)).object["id"]
    answer = await respond(server, previous_response_id=id)
    assert (answer.status, answer.error["param"]) == (400, "previous_response_id")


async def test_it_holds_its_place_while_it_runs(server: Server, wait_until: WaitUntil) -> None:
    release = asyncio.Event()
    server.stub.answer = held(release)
    id = (await respond(server, model="ultra", background=True)).object["id"]
    assert server.service.admission.in_flight == 1
    release.set()
    await ended(server, id)
    await wait_until(lambda: server.service.admission.in_flight == 0)


async def test_one_after_the_other_is_one_at_a_time(server: Server) -> None:
    made = await create_key(server.service.store, Caller(concurrency=1))
    headers = {"Authorization": f"Bearer {made.text}"}
    for _ in range(20):
        begun = await respond(server, background=True, headers=headers)
        assert begun.status == 200, begun.text
        while begun.object["status"] == "in_progress":
            begun = await server.get(f"/v1/responses/{begun.object['id']}", headers=headers)


async def test_its_tool_calls_wait_for_their_results(server: Server) -> None:
    server.stub.answer = lambda call: "rainy" if '"tool"' in json.dumps(call.body) else asks_for("weather")
    id = (await respond(server, "weather?", background=True, tools=[TOOL])).object["id"]
    first = await ended(server, id)
    (call,) = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    answer = await respond(server, [result], previous_response_id=id, tools=[TOOL], background=True)
    second = await ended(server, answer.object["id"])
    assert second["output"][0]["content"][0]["text"] == "rainy"
    assert second["dirigent"]["trace_id"] == first["dirigent"]["trace_id"]


async def test_a_reader_of_its_tool_calls_can_answer_them_at_once(server: Server) -> None:
    server.stub.answer = lambda call: "rainy" if '"tool"' in json.dumps(call.body) else asks_for("weather")
    tell, answered = server.service.on_finished["response"], asyncio.Event()

    async def slowly(service: Service, purpose: Mapping[str, str], trace: Trace) -> None:
        await tell(service, purpose, trace)
        if trace.status == "waiting":
            await answered.wait()

    server.service.on_finished["response"] = slowly
    id = (await respond(server, "weather?", background=True, tools=[TOOL])).object["id"]
    (call,) = (await ended(server, id))["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    answer = await respond(server, [result], previous_response_id=id, tools=[TOOL])
    answered.set()
    assert answer.status == 200, answer.text
    assert answer.object["output"][0]["content"][0]["text"] == "rainy"


@pytest.mark.parametrize("traced", [True, False])
async def test_unreported_tool_calls_are_found_and_answered(
    server: Server, traced: bool, wait_until: WaitUntil
) -> None:
    """As after a kill in the instant after the run was let wait."""

    async def die(service: Service, purpose: Mapping[str, str], trace: Trace) -> None:
        pass

    server.stub.answer = lambda call: "rainy" if '"tool"' in json.dumps(call.body) else asks_for("weather")
    tell, server.service.on_finished["response"] = server.service.on_finished["response"], die
    begun = await respond(server, "weather?", background=True, tools=[TOOL], dirigent={"trace": traced})
    await wait_until(lambda: not server.service.runs)
    server.service.on_finished["response"] = tell
    first = (await server.get(f"/v1/responses/{begun.object['id']}")).object
    assert first["status"] == "completed", first
    assert ("steps" in first["dirigent"]) is traced
    (call,) = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    answer = await respond(server, [result], previous_response_id=first["id"], tools=[TOOL], background=True)
    second = await ended(server, answer.object["id"])
    assert second["output"][0]["content"][0]["text"] == "rainy"


async def test_one_whose_run_waits_for_another_is_not_given_its_end(server: Server, wait_until: WaitUntil) -> None:
    """As after a kill in the instant before the run was gone on with."""
    server.stub.answer = lambda call: asks_for("weather")
    begun = await respond(server, "weather?", background=True, tools=[TOOL])
    first = await ended(server, begun.object["id"])
    await wait_until(lambda: not server.service.runs)
    store = server.service.store
    kept = await find_response(store, first["id"], key_id=LOCAL_ADMIN.key_id)
    assert kept is not None
    await keep_response(store, msgspec.structs.replace(kept, id="resp_next", status="in_progress"))
    response = (await server.get("/v1/responses/resp_next")).object
    assert response["status"] == "failed"
    assert response["error"]["message"]


@pytest.mark.parametrize(("traced", "status"), [(True, "completed"), (False, "failed")])
async def test_one_whose_run_is_not_known_any_more_gets_its_end(
    server: Server, traced: bool, status: str, wait_until: WaitUntil
) -> None:
    """As after a kill in the instant before the run was begun, or after it was over."""

    async def die(service: Service, purpose: Mapping[str, str], trace: Trace) -> None:
        pass

    server.service.on_finished["response"] = die
    id = (await respond(server, background=True)).object["id"]
    await wait_until(lambda: not server.service.runs)
    if not traced:
        await server.service.store.write(lambda c, _: c.execute(delete(traces)).rowcount, prepare=lambda: None)
    assert (await server.get(f"/v1/responses/{id}")).object["status"] == status


async def test_killed_and_started_again_it_resumes(tmp_path: Path) -> None:
    release = asyncio.Event()
    body = {"model": "ultra", "input": "hi", "background": True}
    async with StubProvider(held(release)) as stub, aiohttp.ClientSession() as session:
        async with process(tmp_path, stub.url("openai")) as running:
            base = await _base(running)
            async with session.post(f"{base}/responses", json=body) as answer:
                id = (await answer.json())["id"]
            await stub.called(3)
            running.send_signal(signal.SIGKILL)
            await running.wait()
        release.set()
        async with process(tmp_path, stub.url("openai")) as running:
            base = await _base(running)
            async with asyncio.timeout(20):
                response: dict[str, Any] = {"status": "in_progress"}
                while response["status"] == "in_progress":
                    await asyncio.sleep(0.05)
                    async with session.get(f"{base}/responses/{id}") as answer:
                        response = await answer.json()
        assert response["status"] == "completed"
        assert response["output"][-1]["content"][0]["text"] == "beta says hello there"
        assert [call.model for call in stub.calls] == ["boss", "alpha", "beta", "beta"]


async def test_a_response_that_continued_a_run_is_found_by_its_key_though_its_reply_was_not_stored(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise StoreError("the disk is full")

    server.stub.answer = lambda call: "rainy" if '"tool"' in json.dumps(call.body) else asks_for("weather")
    id = (await respond(server, "weather?", background=True, tools=[TOOL])).object["id"]
    first = await ended(server, id)
    result = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "rain"}
    more = {"previous_response_id": id, "tools": [TOOL], "background": True, "headers": {"Idempotency-Key": "once"}}
    with monkeypatch.context() as patch:
        patch.setattr(idempotency, "finish", fail)
        assert (await respond(server, [result], **more)).status == 503
    again = await respond(server, [result], **more)
    assert again.headers["X-Dirigent-Trace-Id"] == first["dirigent"]["trace_id"]
    second = await ended(server, again.object["id"])
    assert second["output"][0]["content"][0]["text"] == "rainy"
    assert len(server.stub.calls) == 2


async def test_a_response_deleted_before_its_reply_was_stored_is_not_begun_again(server: Server) -> None:
    server.stub.answer = held(asyncio.Event())
    body = {"model": "ultra", "input": "hi", "background": True, "stream": True}
    once = {"Idempotency-Key": "once"}
    async with server.session.post(server.url + "/v1/responses", json=body, headers=once) as streamed:
        await streamed.content.readline()
        id = json.loads((await streamed.content.readline()).removeprefix(b"data: "))["response"]["id"]
        await server.stub.called(3)
        streamed.close()
    async with asyncio.timeout(10):  # until the server has noticed
        while await server.service.store.read(lambda c: c.scalar(select(tables.idempotency.c.owner))) != NOBODY:
            pass
    assert (await server.request("DELETE", f"/v1/responses/{id}")).status == 200
    for _ in range(2):
        answer = await server.request("POST", "/v1/responses", json=body, headers=once)
        assert (answer.status, answer.error["code"]) == (404, "response_not_found")
    assert len(server.stub.calls) == 3


async def test_a_response_whose_stream_reported_a_failure_is_begun_again_with_its_key(server: Server) -> None:
    server.stub.faults = ["500"]
    once = {"Idempotency-Key": "once"}
    failed, done = [await respond(server, background=True, stream=True, headers=once) for _ in range(2)]
    assert (kinds_of(failed)[-1], kinds_of(done)[-1]) == ("failed", "completed")
    assert failed.headers["X-Dirigent-Trace-Id"] != done.headers["X-Dirigent-Trace-Id"]


DIES = """
import os, signal
from dirigent.cli import main
from dirigent.serve.http import idempotency

async def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

idempotency.finish = die
main()
"""


@pytest.mark.parametrize("stream", [False, True])
async def test_killed_before_its_reply_was_stored_it_answers_the_same_key(
    tmp_path: Path, stub: StubProvider, stream: bool
) -> None:
    body = {"model": "ultra", "input": "hi", "background": True, "stream": stream}
    async with aiohttp.ClientSession() as session:

        async def respond(base: str) -> Answer:
            async with session.post(f"{base}/responses", json=body, headers={"Idempotency-Key": "once"}) as answer:
                return Answer(answer.status, answer.headers, (await answer.read()).decode())

        async with process(tmp_path, stub.url("openai"), program=("-c", DIES)) as running:
            with pytest.raises(aiohttp.ClientError):
                await respond(await _base(running))
            assert await asyncio.wait_for(running.wait(), 10) == -signal.SIGKILL
        async with process(tmp_path, stub.url("openai")) as running:
            base = await _base(running)
            found, again = await respond(base), await respond(base)
    assert found.status == 200, found.text
    assert (again.text, again.headers["Idempotent-Replayed"]) == (found.text, "true")
    async with Store.open(tmp_path / "home" / STORE_FILE) as store:
        ((id, run_id),) = await store.read(lambda c: c.execute(select(responses.c.id, responses.c.run_id)).all())
    assert id in found.text
    assert found.headers["X-Dirigent-Trace-Id"] == run_id


async def _base(running: asyncio.subprocess.Process) -> str:
    assert running.stderr is not None
    return (await running.stderr.readline()).decode().split()[1]
