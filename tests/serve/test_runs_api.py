"""Runs without a waiting caller: started, watched from the start, cancelled, forked, with a plan of the caller's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dirigent.limits import Limits
from dirigent.run.trace import Trace
from dirigent.serve.apis import runs
from dirigent.store.keys import Caller, create_key, revoke_key
from tests.serve.conftest import Answer, Server, Start

ASK = {"messages": [{"role": "user", "content": "hi"}]}


def events_of(answer: Answer) -> list[tuple[str, Any]]:
    """The events of a stream as (kind, data)."""
    found = []
    for frame in answer.frames:
        lines = dict(line.split(": ", 1) for line in frame.splitlines() if not line.startswith(":"))
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


async def start_run(server: Server, model: str = "ultra", **more: Any) -> Answer:
    return await server.request("POST", "/v1/runs", json={"model": model} | ASK | more)


async def watched(server: Server, id: str, **more: Any) -> list[tuple[str, Any]]:
    return events_of(await server.get(f"/v1/runs/{id}/events", **more))


async def test_a_run_is_started_and_watched_to_its_end(server: Server) -> None:
    started = await start_run(server)
    assert started.status == 202
    id = started.object["id"]
    events = await watched(server, id)
    kinds = [kind for kind, _ in events]
    assert kinds[-1] == "ended"
    assert events[-1][1]["answer"] == "beta says hello there"
    assert (await server.get(f"/v1/traces/{id}")).object["answer"] == "beta says hello there"
    again = await watched(server, id)  # also of a run that has ended, which another server may have carried out
    assert [kind for kind, _ in again] == ["run", "drafted", "planned", "step_ended", "step_ended", "ended"]
    assert again[-1] == events[-1]


async def test_a_second_watcher_sees_all_that_has_happened(server: Server) -> None:
    server.stub.delay_s = 0.3
    id = (await start_run(server)).object["id"]
    first = asyncio.ensure_future(watched(server, id))
    await server.stub.called(2)
    second = await watched(server, id)
    assert [kind for kind, _ in second if kind != "step_delta"] == [
        "run", "drafted", "planned", "step_started", "step_ended", "step_started", "step_ended", "ended",
    ]  # fmt: skip
    planned = dict(second)["planned"]
    assert [(step["worker"], step["access"]) for step in planned["steps"]] == [("alpha", []), ("beta", [0])]
    assert await first
    text = "".join(data["text"] for kind, data in second if kind == "step_delta" and data["index"] == 1)
    assert text == "beta says hello there"


async def test_a_run_continues_when_its_watcher_leaves(server: Server) -> None:
    server.stub.delay_s = 0.3
    id = (await start_run(server)).object["id"]
    async with server.session.get(f"{server.url}/v1/runs/{id}/events") as response:
        await response.content.readline()
    events = await watched(server, id)  # the reconnect
    assert events[0][0] == "run"
    assert events[-1][1]["status"] == "done"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_whose_caller_waits_can_be_cancelled_by_its_key(server: Server, stream: bool) -> None:
    server.stub.delay_s = 60.0
    body = {"model": "worker/alpha", "stream": stream} | ASK
    waiting = asyncio.ensure_future(server.request("POST", "/v1/chat/completions", json=body))
    call = await server.stub.called(1)
    (run,) = server.service.runs
    events = asyncio.ensure_future(watched(server, run.id))
    assert (await server.request("POST", f"/v1/runs/{run.id}/cancel")).status == 200
    answer = await asyncio.wait_for(waiting, 10)
    assert (answer.status, answer.error["code"], answer.headers["x-should-retry"]) == (409, "cancelled", "false")
    await asyncio.wait_for(call.ended.wait(), 5)
    assert (await events)[-1][0] == "ended"
    assert (await server.get(f"/v1/traces/{run.id}")).object["status"] == "cancelled"
    assert server.service.runs == set()


async def test_a_run_can_be_cancelled(server: Server) -> None:
    server.stub.delay_s = 30
    id = (await start_run(server)).object["id"]
    await server.stub.called()
    assert (await server.request("POST", f"/v1/runs/{id}/cancel")).status == 200
    assert (await server.get(f"/v1/traces/{id}")).object["status"] == "cancelled"
    assert server.service.admission.in_flight == 0
    assert (await server.request("POST", f"/v1/runs/{id}/cancel")).status == 404


async def test_a_run_that_cannot_begin_has_a_status(server: Server) -> None:
    assert (await start_run(server, "nobody")).status == 404
    refused = await start_run(server, dirigent={"dry_run": True})
    assert (refused.status, refused.error["param"]) == (400, "dirigent.dry_run")
    assert (await server.get("/v1/runs/ffff/events")).status == 404


async def test_another_keys_run_does_not_exist(start: Start) -> None:
    server = await start(keys_required=True)
    mine, other = [
        {"Authorization": f"Bearer {(await create_key(server.service.store, Caller(''))).text}"} for _ in range(2)
    ]
    server.stub.delay_s = 0.5
    started = await server.request("POST", "/v1/runs", json={"model": "ultra"} | ASK, headers=mine)
    id = started.object["id"]
    for when in ("under way", "over"):
        assert (await server.get(f"/v1/runs/{id}/events", headers=other)).status == 404, when
        assert (await server.request("POST", f"/v1/runs/{id}/cancel", headers=other)).status == 404, when
        await watched(server, id, headers=mine)
    assert [row["id"] for row in (await server.get("/v1/traces", headers=mine)).object["data"]] == [id]
    assert (await server.get("/v1/traces", headers=other)).object["data"] == []
    assert (await server.get("/v1/traces?key=someone", headers=other)).status == 403
    fork = await server.request("POST", f"/v1/traces/{id}/fork", json={"step": 0}, headers=other)
    assert fork.status == 404


# ---- all runs ---------------------------------------------------------------------------------------------


class Watcher:
    """Reads `/v1/runs/events`, an event at a time."""

    def __init__(self, response: Any) -> None:
        self._lines = response.content

    async def next(self) -> tuple[str, Any]:
        kind = ""
        async with asyncio.timeout(20):
            while line := (await self._lines.readline()).decode():
                if line.startswith("event: "):
                    kind = line[7:].strip()
                elif line.startswith("data: "):
                    return kind, json.loads(line[6:])
        raise EOFError("the stream has ended")


@asynccontextmanager
async def watching(server: Server, **more: Any) -> AsyncIterator[Watcher]:
    async with server.session.get(f"{server.url}/v1/runs/events", **more) as response:
        assert response.status == 200
        yield Watcher(response)


async def test_all_runs_are_watched_as_they_begin_and_end(server: Server) -> None:
    async with watching(server) as watcher:
        assert await watcher.next() == ("runs", {"under_way": []})
        answer = await server.chat("how many?", model="worker/alpha")
        kind, began = await watcher.next()
        assert (kind, began["model"], began["question"]) == ("began", "worker/alpha", "how many?")
        assert await watcher.next() == ("ended", {"id": began["id"]})
        assert began["id"] == answer.object["dirigent"]["trace_id"]
        assert (await server.get(f"/v1/traces/{began['id']}")).status == 200  # stored before it is said to have ended


async def test_a_watcher_that_comes_back_begins_with_the_runs_under_way(server: Server) -> None:
    server.stub.delay_s = 30
    id = (await start_run(server)).object["id"]
    for _ in range(2):
        async with watching(server) as watcher:
            kind, data = await watcher.next()
            assert (kind, [run["id"] for run in data["under_way"]]) == ("runs", [id])
    await server.request("POST", f"/v1/runs/{id}/cancel")
    async with watching(server) as watcher:
        assert await watcher.next() == ("runs", {"under_way": []})
    for _ in range(2000):  # the server hears of a watcher that left a moment later
        if server.service.run_watchers:
            await asyncio.sleep(0.01)
    assert server.service.run_watchers == []


async def test_a_run_that_another_process_stored_is_a_change(start: Start) -> None:
    server, other = await start(keep_alive_s=0.05), await start()
    async with watching(server) as watcher:
        await watcher.next()
        await other.chat()
        assert await watcher.next() == ("changed", None)


async def test_a_key_watches_its_own_runs_and_an_admin_all(start: Start) -> None:
    server = await start(keys_required=True)
    made = [await create_key(server.service.store, Caller("", role=role)) for role in ("inference", "admin")]
    own, admin = ({"Authorization": f"Bearer {key.text}"} for key in made)
    async with watching(server, headers=own) as of_key, watching(server, headers=admin) as of_all:
        await of_key.next()
        await of_all.next()
        await server.chat("secret", headers=admin)
        await server.chat("mine", headers=own)
        assert (await of_key.next())[1]["question"] == "mine"
        assert (await of_all.next())[1]["question"] == "secret"


async def test_streams_end_with_their_key(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "KEY_S", 0.05)
    server = await start(keys_required=True)
    made = await create_key(server.service.store, Caller(""))
    headers = {"Authorization": f"Bearer {made.text}"}
    server.stub.delay_s = 60
    started = await server.request("POST", "/v1/runs", json={"model": "ultra"} | ASK, headers=headers)
    one = server.session.get(f"{server.url}/v1/runs/{started.object['id']}/events", headers=headers)
    async with watching(server, headers=headers) as watcher, one as response:
        await watcher.next()
        await revoke_key(server.service.store, made.row.caller.key_id)
        with pytest.raises(EOFError):
            await watcher.next()
        async with asyncio.timeout(20):
            assert b"event: ended" not in await response.content.read()
    assert (await server.get("/v1/runs/events", headers=headers)).status == 401


# ---- a plan of the caller's -------------------------------------------------------------------------------

GIVEN = {
    "steps": [
        {"worker": "beta", "subtask": "look"},
        {"worker": "alpha", "subtask": "sum it up", "access": [0]},
    ]
}


async def test_an_edited_plan_is_carried_out_and_no_worker_plans(server: Server) -> None:
    answer = await server.chat(model="ultra", dirigent={"plan": GIVEN, "trace": True})
    assert answer.status == 200
    steps = answer.object["dirigent"]["steps"]
    assert [(step["worker"], step["subtask"]) for step in steps] == [("beta", "look"), ("alpha", "sum it up")]
    assert [call.model for call in server.stub.calls] == ["beta", "alpha"]
    assert "the caller gave the plan" in answer.object["dirigent"]["notes"]


async def test_a_dry_run_prices_an_edited_plan_and_makes_no_call(server: Server) -> None:
    answer = await server.chat(model="ultra", dirigent={"plan": GIVEN, "dry_run": True})
    assert [step["worker"] for step in answer.object["steps"]] == ["beta", "alpha"]
    assert answer.object["estimate"]["high_usd"] > 0
    assert len(answer.object["step_estimates"]) == 2
    assert sum(step["high_usd"] for step in answer.object["step_estimates"]) == answer.object["estimate"]["high_usd"]
    assert server.stub.calls == []


async def test_a_plan_that_is_none_names_its_fault(server: Server) -> None:
    for steps, said in (
        ([{"worker": "nobody", "subtask": "x"}], "no worker is called"),
        ([{"worker": "alpha", "subtask": "x", "access": [0]}], "not before it"),
        ([{"worker": "alpha", "subtask": "  "}], "is empty"),
        ([{"worker": "alpha", "subtask": "x"}] * 5, "at most 4"),
        ([], "length"),
    ):
        answer = await server.chat(model="ultra", dirigent={"plan": {"steps": steps}})
        assert answer.status == 400
        assert said in answer.error["message"], answer.error
        assert answer.error["param"].startswith("dirigent.plan")


async def test_a_key_plans_within_its_own_workers(start: Start) -> None:
    server = await start(keys_required=True)
    made = await create_key(server.service.store, Caller("", allow=("alpha", "boss")))
    headers = {"Authorization": f"Bearer {made.text}"}
    answer = await server.chat(model="ultra", dirigent={"plan": GIVEN}, headers=headers)
    assert (answer.status, answer.error["param"]) == (400, "dirigent.plan")


# ---- forks ------------------------------------------------------------------------------------------------


async def forked(server: Server, id: str, **change: Any) -> tuple[Answer, Any]:
    """The reply, and the fork's trace."""
    answer = await server.request("POST", f"/v1/traces/{id}/fork", json=change)
    if answer.status != 202:
        return answer, None
    await watched(server, answer.object["id"])
    return answer, (await server.get(f"/v1/traces/{answer.object['id']}")).object


async def test_a_run_is_replayed_from_its_record_without_asking_a_worker(server: Server) -> None:
    id = (await server.chat(model="ultra")).object["dirigent"]["trace_id"]
    calls = len(server.stub.calls)
    answer = await server.request("POST", f"/v1/traces/{id}/replay")
    assert (answer.status, answer.object["same_answer"]) == (200, True)
    assert answer.object["trace"]["answer"] == "beta says hello there"
    assert len(server.stub.calls) == calls
    assert (await server.request("POST", "/v1/traces/ffff/replay")).status == 404
    failed = Trace(
        id="f" * 16,
        created_at="2026-11-19T00:00:00Z",
        question=(),
        pool=(),
        limits=Limits(),
        planner="p",
        status="failed",
    )
    await server.service.store.save(failed)
    refused = await server.request("POST", f"/v1/traces/{failed.id}/replay")
    assert (refused.status, refused.error["code"]) == (400, "not_possible")


async def test_a_fork_keeps_earlier_steps_and_pays_only_later_ones(server: Server) -> None:
    id = (await server.chat(model="ultra")).object["dirigent"]["trace_id"]
    calls = len(server.stub.calls)
    started, fork = await forked(server, id, step=1, worker="alpha", subtask="say it better")
    assert started.object["kept"] == [0]
    assert [call.model for call in server.stub.calls[calls:]] == ["alpha"]
    assert "alpha says hello there" in str(server.stub.calls[-1].body)  # the kept reply is read
    first, second = fork["rounds"][0]["steps"]
    assert (first["attempts"], first["reply"]["text"]) == ([], "alpha says hello there")
    assert (second["worker"], second["subtask"], len(second["attempts"])) == ("alpha", "say it better", 1)
    assert fork["answer"] == "alpha says hello there"
    assert any(id in note for note in fork["notes"])
    usage = (await server.get("/v1/usage?group_by=worker")).object["total"]["calls"]
    assert usage == len(server.stub.calls)


async def test_a_fork_of_the_first_step_asks_all_that_read_it(server: Server) -> None:
    id = (await server.chat(model="ultra")).object["dirigent"]["trace_id"]
    calls = len(server.stub.calls)
    started, fork = await forked(server, id, step=0, subtask="look elsewhere")
    assert started.object["kept"] == []
    assert [call.model for call in server.stub.calls[calls:]] == ["alpha", "beta"]
    assert fork["status"] == "done"


async def test_a_fork_can_take_reading_away(server: Server) -> None:
    id = (await server.chat(model="ultra")).object["dirigent"]["trace_id"]
    _, fork = await forked(server, id, step=1, access=[])
    assert fork["rounds"][0]["plan"]["steps"][1]["access"] == []
    assert "alpha says" not in str(server.stub.calls[-1].body)


async def test_a_fork_of_a_fork_and_of_two_rounds(server: Server) -> None:
    id = (await server.chat(model="twice")).object["dirigent"]["trace_id"]
    _, fork = await forked(server, id, step=1, worker="alpha")
    _, again = await forked(server, fork["id"], step=1, worker="beta")
    assert again["status"] == "done"
    assert [step["worker"] for step in again["rounds"][0]["steps"]] == ["alpha", "beta"]


async def test_the_error_for_an_impossible_fork_names_the_reason(server: Server) -> None:
    id = (await server.chat(model="ultra")).object["dirigent"]["trace_id"]
    for change, said in (
        ({"step": 7}, "has no step 7"),
        ({"step": 1, "worker": "nobody"}, "no worker is called"),
        ({"step": 0, "access": [1]}, "not before it"),
        ({"step": 1, "colour": "red"}, "unknown field"),
        ({"step": 1, "dirigent": {"plan": GIVEN}}, "has the plan of its run"),
    ):
        answer, _ = await forked(server, id, **change)
        assert answer.status == 400
        assert said in answer.error["message"], answer.error
    assert server.service.admission.in_flight == 0
