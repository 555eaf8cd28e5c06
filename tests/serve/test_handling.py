"""The request around a run: only a client that leaves ends the run early; bodies are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from dirigent.config.server_settings import ServeSettings
from dirigent.serve.http.body import HEADERS, MAX_BODY_BYTES, read_body, unless_gone
from dirigent.serve.http.errors import Problem


class Runs:
    """The parts of a service that count running requests."""

    def __init__(self) -> None:
        self.running: set[asyncio.Task[Any]] = set()
        self.bodies = 0
        self.settings = ServeSettings(max_in_flight=2)


class Client:
    """The client's end of a connection: sends the given bytes, then waits until it leaves."""

    def __init__(self, *pieces: bytes) -> None:
        self.left = asyncio.Event()
        self.watched = asyncio.Event()
        self._messages = [
            {"type": "http.request", "body": piece, "more_body": n < len(pieces)} for n, piece in enumerate(pieces, 1)
        ]

    async def receive(self) -> MutableMapping[str, Any]:
        if self._messages:
            return self._messages.pop(0)
        self.watched.set()
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_a_finished_reply_is_returned_and_no_longer_counted():
    service = Runs()

    async def work() -> str:
        assert service.running == {asyncio.current_task()}
        return "done"

    assert await unless_gone(service, work(), asked(Client())) == "done"
    assert not service.running


async def test_a_client_that_leaves_cancels_the_work_and_it_may_tidy_up():
    client, tidied = Client(), []

    async def work() -> None:
        client.left.set()
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0)
            tidied.append("kept")

    assert await unless_gone(Runs(), work(), asked(client)) is None
    assert tidied == ["kept"]
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_client_that_leaves_as_the_work_ends_cancels_nothing_that_follows():
    client = Client()

    async def work() -> str:
        await client.watched.wait()
        client.left.set()
        await asyncio.sleep(0)  # the watcher wakes now; its news comes after the work has ended
        return "done"

    assert await unless_gone(Runs(), work(), asked(client)) == "done"
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_client_is_not_watched_during_short_work():
    client = Client()

    async def work() -> str:
        client.left.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return "done"

    assert await unless_gone(Runs(), work(), asked(client)) == "done"
    assert not client.watched.is_set()


async def test_a_server_that_stops_cancels_the_work_and_the_request():
    service = Runs()
    request = asyncio.ensure_future(unless_gone(service, asyncio.sleep(30), asked(Client())))
    await asyncio.sleep(0)
    (running,) = service.running
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert not service.running


async def test_a_failure_of_the_work_is_the_requests():
    async def work() -> None:
        raise Problem(503, "not now")

    with pytest.raises(Problem, match="not now"):
        await unless_gone(Runs(), work(), asked(Client()))


def asked(client: Client, kind: bytes = b"application/json; charset=utf-8", runs: Runs | None = None) -> Request:
    app = SimpleNamespace(service=runs or Runs())
    return Request({"type": "http", HEADERS: {b"content-type": kind}, "app": app}, client.receive)


async def test_a_body_is_read_in_as_many_pieces_as_it_comes():
    assert await read_body(asked(Client(b'{"a":', b"", b"1}")), timeout_s=5) == b'{"a":1}'
    assert await read_body(asked(Client(b"{}")), timeout_s=5) == b"{}"


async def test_a_body_that_is_cut_off_starts_no_run():
    client = Client()
    client.left.set()
    with pytest.raises(ClientDisconnect):
        await read_body(asked(client), timeout_s=5)


async def test_a_body_that_is_late_too_long_or_no_json_is_refused():
    with pytest.raises(Problem) as refused:
        await read_body(asked(Client()), timeout_s=0.01)
    assert (refused.value.status, refused.value.code) == (408, "slow_body")
    half = b"x" * (MAX_BODY_BYTES // 2 + 1)
    with pytest.raises(Problem) as refused:
        await read_body(asked(Client(half, half)), timeout_s=5)
    assert (refused.value.status, refused.value.code) == (413, "too_large")
    with pytest.raises(Problem, match="text/plain"):
        await read_body(asked(Client(b"{}"), b"text/plain"), timeout_s=5)


async def test_no_more_bodies_are_read_at_once_than_there_may_be_runs():
    runs, slow, other = Runs(), Client(), Client(b"{}")
    reading = [asyncio.ensure_future(read_body(asked(slow, runs=runs), timeout_s=60)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Problem) as refused:
        await read_body(asked(other, runs=runs), timeout_s=5)
    assert (refused.value.status, refused.value.code) == (503, "busy")
    assert "Retry-After" in refused.value.headers
    slow.left.set()
    for ended in await asyncio.gather(*reading, return_exceptions=True):
        assert isinstance(ended, ClientDisconnect)
    assert await read_body(asked(other, runs=runs), timeout_s=5) == b"{}"
