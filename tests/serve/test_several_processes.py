"""Two server processes over one PostgreSQL: each finds, counts and continues the runs of the other.

Each process has a home of its own, as on two machines; what they share is the database and the pepper. A server looks
after runs that others left every 15 s. Here it does so every 0.2 s, which is the one thing that is not as it is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from dirigent.messages import ToolCall, Usage
from dirigent.run.trace import Trace
from dirigent.store import Store
from dirigent.store.audit import export, verify
from dirigent.store.keys import Caller, NewKey, create_key, revoke_key
from dirigent.store.ledger import usage
from dirigent.store.tables import now
from tests.serve.conftest import CONFIG, PLAN, Answer, by_model
from tests.serve.test_postgres import eventually
from tests.store import conftest as stores
from tests.store.samples import a_trace
from tests.stub_provider import StubProvider
from tests.stub_wires import StubCall, StubReply

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]

postgresql = stores.postgresql

PEPPER = "a pepper that both servers have, and nobody else"
SERVE = """\
from dirigent.cli import main
from dirigent.serve.runs import takeover
takeover.BEAT_S = 0.2
main()
"""
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


class Client:
    """One of the servers, as a caller with a key sees it."""

    def __init__(self, url: str, process: asyncio.subprocess.Process, session: aiohttp.ClientSession) -> None:
        self.url, self.process, self.session = url, process, session

    async def request(self, method: str, path: str, key: str, **more: Any) -> Answer:
        headers = {"Authorization": f"Bearer {key}"} | more.pop("headers", {})
        async with self.session.request(method, self.url + path, headers=headers, **more) as response:
            return Answer(response.status, response.headers, (await response.read()).decode())

    async def get(self, path: str, key: str) -> Answer:
        return await self.request("GET", path, key)

    async def chat(self, key: str, said: str | list[Any] = "hi", *, once: str = "", **body: Any) -> Answer:
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
        headers = {"Idempotency-Key": once} if once else {}
        whole = {"model": "worker/alpha", "messages": messages} | body
        return await self.request("POST", "/chat/completions", key, json=whole, headers=headers)


class Place:
    """The database, the provider and the client's connections; `serve` starts a server over them."""

    def __init__(self, folder: Path, url: str, stub: StubProvider, store: Store) -> None:
        self.folder, self.url, self.stub, self.store = folder, url, stub, store
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    @contextlib.asynccontextmanager
    async def serve(self, name: str, *, more: str = "") -> AsyncIterator[Client]:
        config = self.folder / f"{name}.toml"
        config.write_text(CONFIG.format(url=self.stub.url("openai"), store=self.url) + more)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SERVE, "serve", "--port", "0", "--grace", "1", "--config", str(config)),
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"DIRIGENT_HOME": str(self.folder / name), "DIRIGENT_PEPPER": PEPPER},
        )
        try:
            assert process.stderr is not None
            line = (await asyncio.wait_for(process.stderr.readline(), 30)).decode()
            assert line.startswith("serving "), line + (await process.stderr.read()).decode()
            yield Client(line.split()[1], process, self.session)
        finally:
            if process.returncode is None:
                process.kill()
            _, said = await process.communicate()
            print(said.decode())


@contextlib.asynccontextmanager
async def placed(postgresql: stores.PostgreSQL, folder: Path) -> AsyncIterator[Place]:
    url = postgresql.new_schema()
    async with StubProvider(by_model) as stub, Store.open(url) as store:
        place = Place(folder, url, stub, store)
        try:
            yield place
        finally:
            await place.session.close()


@contextlib.asynccontextmanager
async def both(place: Place, *, more: str = "") -> AsyncIterator[tuple[Client, Client]]:
    """Two servers, started at the same moment."""
    async with contextlib.AsyncExitStack() as stack:
        starting = (stack.enter_async_context(place.serve(name, more=more)) for name in ("first", "second"))
        first, second = await asyncio.gather(*starting)
        yield first, second


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(postgresql: stores.PostgreSQL, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    async with placed(postgresql, tmp_path_factory.mktemp("several")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(place: Place) -> AsyncIterator[tuple[Client, Client]]:
    async with both(place) as pair:
        yield pair


@pytest.fixture
def stub(place: Place) -> StubProvider:
    """The servers' provider, with an empty journal."""
    place.stub.calls.clear()
    place.stub.answer, place.stub.delay_s = by_model, 0.0
    return place.stub


NewKeyOf = Callable[..., Awaitable[NewKey]]


@pytest.fixture
def new_key(place: Place, monkeypatch: pytest.MonkeyPatch) -> NewKeyOf:
    monkeypatch.setenv("DIRIGENT_PEPPER", PEPPER)

    async def make(**bounds: Any) -> NewKey:
        return await create_key(place.store, Caller(**bounds))

    return make


def asking(call: StubCall) -> str | StubReply:
    """boss plans; alpha wants to know the weather first; beta answers."""
    if call.model == "boss":
        return PLAN
    if call.model == "alpha" and call.body["messages"][-1]["role"] != "tool":
        return StubReply(tool_calls=(ToolCall("up_1", "weather", "{}"),), finish="tool_calls", usage=Usage(10, 5))
    return StubReply(f"{call.model} is done", usage=Usage(10, 5))


def released(release: asyncio.Event) -> Callable[[StubCall], Awaitable[str | StubReply]]:
    """beta, the second of two steps, waits to be let go."""

    async def answer(call: StubCall) -> str | StubReply:
        if call.model == "beta":
            await release.wait()
        return by_model(call)

    return answer


def asked(stub: StubProvider) -> list[str]:
    return [call.model for call in stub.calls]


async def test_one_server_finds_the_responses_of_the_other(
    servers: tuple[Client, Client], new_key: NewKeyOf, stub: StubProvider
) -> None:
    first, second = servers
    key = (await new_key()).text
    whole = await first.chat(key, model="ultra")
    streamed = await second.chat(key, model="ultra", stream=True)
    assert whole.object["choices"][0]["message"]["content"] == "beta says hello there"
    assert (streamed.streamed_text, streamed.events[-1]) == ("beta says hello there", "[DONE]")
    for answer, other in ((whole, second), (streamed, first)):
        found = await other.get(f"/traces/{answer.headers['X-Dirigent-Trace-Id']}", key)
        assert found.object["status"] == "done"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_run_begun_by_one_server_continues_on_the_other(
    servers: tuple[Client, Client], new_key: NewKeyOf, stub: StubProvider, stream: bool
) -> None:
    first, second = servers
    key = (await new_key()).text
    stub.answer = asking
    began = await first.chat(key, "Weather?", model="ultra", tools=[TOOL])
    said = began.object["choices"][0]["message"]
    (call,) = said["tool_calls"]
    history = [
        {"role": "user", "content": "Weather?"},
        said,
        {"role": "tool", "tool_call_id": call["id"], "content": "rain"},
    ]
    ended = await second.chat(key, history, model="ultra", tools=[TOOL], stream=stream)
    assert ended.headers["X-Dirigent-Resumed"] == "yes"
    assert ended.headers["X-Dirigent-Trace-Id"] == began.headers["X-Dirigent-Trace-Id"]
    text = ended.streamed_text if stream else ended.object["choices"][0]["message"]["content"]
    assert text == "beta is done"
    assert asked(stub) == ["boss", "alpha", "alpha", "beta"], "no worker plans or works twice"


async def test_a_request_sent_to_both_is_carried_out_once_and_replayed_byte_for_byte(
    servers: tuple[Client, Client], new_key: NewKeyOf, stub: StubProvider
) -> None:
    key = (await new_key()).text
    stub.delay_s = 0.3
    answers = await asyncio.gather(*(client.chat(key, once="a") for client in servers * 10))
    assert sorted(answer.status for answer in answers) == [200] + [409] * 19
    (done,) = [answer for answer in answers if answer.status == 200]
    again = [await client.chat(key, once="a") for client in servers]
    assert [answer.headers["Idempotent-Replayed"] for answer in again] == ["true", "true"]
    assert [answer.text for answer in again] == [done.text] * 2
    others = [await client.chat(key, "something else", once="a") for client in servers]
    assert [answer.status for answer in others] == [422, 422]
    assert len(stub.calls) == 1


async def test_two_servers_at_once_do_not_overspend_a_keys_budget(
    servers: tuple[Client, Client], place: Place, new_key: NewKeyOf, stub: StubProvider
) -> None:
    budget_usd, calls_wanted = 0.003, 80
    made = await new_key(label="thrifty", budget_total_usd=budget_usd)

    def as_long_as_allowed(call: StubCall) -> StubReply:
        return StubReply("word", usage=Usage(20, call.body.get("max_completion_tokens") or call.body["max_tokens"]))

    stub.answer = as_long_as_allowed
    stub.delay_s = 0.05
    answers = await asyncio.gather(
        *(servers[number % 2].chat(made.text, f"no. {number}", max_tokens=50) for number in range(calls_wanted))
    )
    statuses = [answer.status for answer in answers]
    assert set(statuses) == {200, 402}, "some fitted in, and the rest was refused plainly"
    assert len(stub.calls) == statuses.count(200)
    billed_usd = sum(float(answer.headers["X-Dirigent-Cost-USD"]) for answer in answers if answer.status == 200)
    spent = await usage(place.store, key_id=made.row.caller.key_id)
    assert (spent.held_usd, spent.calls, spent.lost_calls) == (0, len(stub.calls), 0)
    assert spent.cost_usd == pytest.approx(billed_usd, abs=1e-9)
    assert 0.5 * budget_usd < spent.cost_usd <= budget_usd


async def test_a_revoked_key_is_refused_by_both(
    servers: tuple[Client, Client], place: Place, new_key: NewKeyOf, stub: StubProvider
) -> None:
    made = await new_key(label="gone soon")
    assert [(await client.get("/models", made.text)).status for client in servers] == [200, 200]
    await revoke_key(place.store, made.row.caller.key_id)

    async def closed() -> bool:
        return [(await client.get("/models", made.text)).status for client in servers] == [401, 401]

    await eventually(closed, within_s=5)


async def test_feedback_is_given_once_over_both_and_usage_is_the_same_from_both(
    servers: tuple[Client, Client], new_key: NewKeyOf, stub: StubProvider
) -> None:
    key = (await new_key()).text
    ids = [(await client.chat(key, model="ultra")).headers["X-Dirigent-Trace-Id"] for client in servers]
    for id in ids:
        verdict = {"trace_id": id, "thumb": "up"}
        given = await asyncio.gather(*(client.request("POST", "/feedback", key, json=verdict) for client in servers))
        assert sorted(answer.status for answer in given) == [200, 409]
    reports = [(await client.get("/usage?group_by=worker", key)).object for client in servers]
    assert reports[0] == reports[1]
    assert reports[0]["total"]["calls"] == len(stub.calls) == 6


async def test_a_background_run_of_one_can_be_looked_at_and_cancelled_through_the_other(
    servers: tuple[Client, Client], new_key: NewKeyOf, stub: StubProvider
) -> None:
    first, second = servers
    key = (await new_key()).text
    stub.answer = released(asyncio.Event())
    body = {"model": "ultra", "input": "hi", "background": True}
    id = (await first.request("POST", "/responses", key, json=body)).object["id"]
    call = await asyncio.wait_for(stub.called(3), 10)
    assert (await second.get(f"/responses/{id}", key)).object["status"] == "in_progress"
    assert (await second.request("POST", f"/responses/{id}/cancel", key)).object["status"] == "cancelled"
    await asyncio.wait_for(call.ended.wait(), 10)
    assert call.aborted, "the server that carried it out has let its call go"
    assert (await first.get(f"/responses/{id}", key)).object["status"] == "cancelled"


async def test_a_third_server_deletes_old_rows_for_all_of_them(
    servers: tuple[Client, Client], place: Place, new_key: NewKeyOf, stub: StubProvider
) -> None:
    admin = (await new_key(role="admin")).text
    new = (await servers[0].chat(admin)).headers["X-Dirigent-Trace-Id"]
    await place.store.save(a_trace("toooldbyfar", created_at=(now() - timedelta(days=31)).isoformat()))
    assert (await servers[1].get("/traces/toooldbyfar", admin)).status == 200

    async def gone_and_noted() -> bool:
        noted = "retention.prune" in [row.action async for row in export(place.store)]
        return noted and (await servers[1].get("/traces/toooldbyfar", admin)).status == 404

    async with place.serve("third", more="[serve]\nretention_days = 30\n"):
        await eventually(gone_and_noted)
    assert (await servers[1].get(f"/traces/{new}", admin)).status == 200
    assert (await verify(place.store)).problem == "", "the audit chain of three writers is whole"


async def test_a_background_stream_cut_with_its_server_is_replayed_whole_by_the_other(
    postgresql: stores.PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIRIGENT_PEPPER", PEPPER)
    async with placed(postgresql, tmp_path) as place, both(place) as (first, second):
        key = (await create_key(place.store, Caller())).text
        release = asyncio.Event()
        place.stub.answer = released(release)
        once = {"Idempotency-Key": "once"}
        body = {"model": "ultra", "input": "hi", "background": True, "stream": True}
        begun = asyncio.ensure_future(first.request("POST", "/responses", key, json=body, headers=once))
        await asyncio.wait_for(place.stub.called(3), 10)
        first.process.send_signal(signal.SIGKILL)
        await asyncio.wait([begun])
        assert isinstance(begun.exception(), aiohttp.ClientError)
        release.set()
        told = await second.request("POST", "/responses", key, json=body, headers=once)
        assert told.frames[0].startswith("event: response.created\n"), told.text
        assert told.frames[-1].startswith("event: response.completed\n"), told.text
        again = await second.request("POST", "/responses", key, json=body, headers=once)
        assert (again.text, again.headers["Idempotent-Replayed"]) == (told.text, "true")
        assert asked(place.stub) == ["boss", "alpha", "beta", "beta"], "one run, and the step that was cut again"


async def test_killed_in_the_middle_of_a_background_run_the_other_server_carries_it_on(
    postgresql: stores.PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIRIGENT_PEPPER", PEPPER)
    async with placed(postgresql, tmp_path) as place, both(place) as (first, second):
        key = await create_key(place.store, Caller())
        release = asyncio.Event()
        place.stub.answer = released(release)
        body = {"model": "ultra", "input": "hi", "background": True}
        begun = (await first.request("POST", "/responses", key.text, json=body)).object
        call = await asyncio.wait_for(place.stub.called(3), 10)
        first.process.send_signal(signal.SIGKILL)
        await asyncio.wait_for(first.process.wait(), 10)
        await asyncio.wait_for(call.ended.wait(), 10)
        release.set()

        async def ended() -> bool:
            return (await second.get(f"/responses/{begun['id']}", key.text)).object["status"] == "completed"

        await eventually(ended)
        response = (await second.get(f"/responses/{begun['id']}", key.text)).object
        assert response["output"][-1]["content"][0]["text"] == "beta says hello there"
        assert asked(place.stub) == ["boss", "alpha", "beta", "beta"], "only the step that was cut is asked again"
        spent = await usage(place.store)
        assert (spent.calls, spent.lost_calls, spent.held_usd) == (4, 1, 0), "the cut call is charged once"
        trace = (await second.get(f"/traces/{response['dirigent']['trace_id']}", key.text)).object
        assert trace["status"] == "done"
        assert [bool(attempt.error) for attempt in msgspec.convert(trace, Trace).attempts].count(True) == 1
