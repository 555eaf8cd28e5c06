"""Loops through servers end by themselves: a request counts the servers it has passed, and too many are refused."""

from __future__ import annotations

import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from dirigent.config.file import parse_config
from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Message, Request
from dirigent.serve.http.server import bound, check_no_loop, serving
from dirigent.serve.service import ServeSettings, open_service
from dirigent.store import Store
from dirigent.workers.http import HOPS_HEADER, MAX_HOPS, HttpClient, HttpWorker, after_hops, hop_headers
from dirigent.workers.openai import OpenAIWire
from dirigent.workers.worker import WorkerInfo
from tests.facts import facts
from tests.serve.conftest import Server, Start
from tests.stub_provider import StubProvider

LOOP = """\
[[worker]]
name = "mirror"
kind = "openai"
model = "worker/mirror"
base_url = "http://127.0.0.1:{port}/v1"
price = {{ input = 1, output = 1 }}

[store]
url = "{store}"
"""


@asynccontextmanager
async def mirrored(folder: Path, stub: StubProvider, empty_store: Path) -> AsyncIterator[Server]:
    """A server whose only worker is the server itself, with all the retries that workers have by default."""
    shutil.copy(empty_store, folder / "serve.db")
    async with AsyncExitStack() as stack:
        listener = bound("127.0.0.1", 0)
        config = LOOP.format(port=listener.getsockname()[1], store=folder / "serve.db")
        service = await stack.enter_async_context(open_service(parse_config(config), settings=ServeSettings(grace_s=1)))
        url = await stack.enter_async_context(serving(service, listener))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Server(service, stub, url, session)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_that_leads_back_is_called_twice_and_no_more(
    tmp_path: Path, stub: StubProvider, empty_store: Path, stream: bool
) -> None:
    async with mirrored(tmp_path, stub, empty_store) as server:
        answer = await server.chat(model="worker/mirror", stream=stream)
        assert answer.status == 400
        assert answer.error["code"] == "worker_refused"
    async with Store.open(tmp_path / "serve.db") as store:
        rows = await store.list()
        assert len(rows) == MAX_HOPS, "a run for the client, and one for the first call"
        errors = [(await store.get(row.id)).error for row in rows]
        assert sum("base_url" in error for error in errors) == 1, "the one who met the loop can read so"


async def test_every_call_says_how_many_servers_are_behind_it(server: Server) -> None:
    await server.chat()
    await server.chat(headers={HOPS_HEADER: "1"})
    assert [call.headers[HOPS_HEADER] for call in server.stub.calls] == ["1", "2"]


async def test_one_server_too_many_is_refused_before_anyone_is_asked(server: Server) -> None:
    for said, code in (("2", "loop"), ("99999999999999", "loop"), ("-1", "hops"), ("two", "hops"), ("²", "hops")):
        answer = await server.chat(headers={HOPS_HEADER: said})
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, HOPS_HEADER), said
    assert server.stub.calls == []


async def test_a_refused_caller_learns_nothing_of_hops(start: Start) -> None:
    server = await start(keys_required=True)
    assert (await server.chat(headers={HOPS_HEADER: "9"})).status == 401


async def test_a_failure_is_final_for_a_server_and_not_for_a_client(server: Server) -> None:
    server.stub.faults = ["500", "500"]
    assert "x-should-retry" not in (await server.chat()).headers
    assert (await server.chat(headers={HOPS_HEADER: "1"})).headers["x-should-retry"] == "false"


async def test_a_worker_that_says_do_not_retry_is_believed(server: Server) -> None:
    server.stub.faults = ["500", "500"]
    async with HttpClient() as client:
        worker = HttpWorker(WorkerInfo("far"), OpenAIWire(), client, base_url=f"{server.url}/v1")
        worker.info = WorkerInfo("far", model="worker/alpha")
        with pytest.raises(WorkerError) as failed:
            await worker.ask(Request((Message("user", "hi"),)))
    assert (failed.value.fault, failed.value.status, failed.value.retryable) == ("failed", 503, False)


def test_hops_are_counted_where_they_were_said_and_nowhere_else() -> None:
    assert hop_headers() == {HOPS_HEADER: "1"}
    with after_hops(1):
        assert hop_headers() == {HOPS_HEADER: "2"}
    assert hop_headers() == {HOPS_HEADER: "1"}


def test_a_name_that_means_this_machine_is_seen_through(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"our-name": "192.0.2.7", "looped": "127.0.0.1", "elsewhere": "192.0.2.9"}

    def look_up(name: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if name not in addresses:
            raise socket.gaierror("no such name")
        return [(None, None, None, "", (addresses[name], port))]

    monkeypatch.setattr("dirigent.serve.http.server.socket.getaddrinfo", look_up)

    def check(name: str, *, host: str) -> None:
        config = parse_config(
            f'[[worker]]\nname = "w"\nkind = "openai"\nmodel = "m"\nbase_url = "http://{name}:81/v1"\n'
        )
        check_no_loop(config.config, host=host, port=81)

    for name, host in (("looped", "127.0.0.1"), ("our-name", "192.0.2.7")):
        with pytest.raises(ConfigError, match=facts("w --port")):
            check(name, host=host)
    check("elsewhere", host="192.0.2.7")
    check("elsewhere", host="0.0.0.0")
    check("unknown", host="0.0.0.0")


def test_listening_everywhere_means_every_address_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    own = socket.gethostname()
    try:
        socket.getaddrinfo(own, 81)
    except OSError:
        monkeypatch.setattr(
            "dirigent.serve.http.server.socket.getaddrinfo", lambda *_, **__: [(0, 0, 0, "", ("127.0.0.1", 81))]
        )
    config = parse_config(f'[[worker]]\nname = "w"\nkind = "openai"\nmodel = "m"\nbase_url = "http://{own}:81/v1"\n')
    with pytest.raises(ConfigError, match=facts("w --port")):
        check_no_loop(config.config, host="0.0.0.0", port=81)
