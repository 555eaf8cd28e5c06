"""A real server on loopback over a stub provider on loopback, and a plain client for it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dirigent.config.file import parse_config
from dirigent.serve.http.server import bound, serving
from dirigent.serve.service import ServeSettings, Service, open_service
from dirigent.store import Store
from tests.stub_provider import StubProvider
from tests.stub_wires import StubCall, StubReply

PLAN = json.dumps(
    {
        "steps": [
            {"id": "0", "models": ["alpha"], "prompt": "find it", "access_list": []},
            {"id": "1", "models": ["beta"], "prompt": "say it", "access_list": ["0"]},
        ]
    }
)
ACCEPT = json.dumps({"steps": []})

CONFIG = """\
[[worker]]
name = "alpha"
kind = "openai"
model = "alpha"
base_url = "{url}"
region = "eu"
about = "finds"
abilities = {{ images = true, seed = true, effort = true, stop = true }}
price = {{ input = 1, output = 2 }}
retries = 0

[[worker]]
name = "beta"
kind = "openai"
model = "beta"
base_url = "{url}"
region = "us"
price = {{ input = 10, output = 20 }}
retries = 0

[[worker]]
name = "boss"
kind = "openai"
model = "boss"
base_url = "{url}"
region = "us"
retries = 0
price = {{ input = 0, output = 0 }}

[profile.ultra]
planner = "language"
planner_worker = "boss"
max_steps = 4
max_cost_usd = 1.0

[profile.twice]
planner = "language"
planner_worker = "boss"
max_rounds = 2

[profile.mini]
planner = "single"
planner_worker = "alpha"
max_steps = 1

[store]
url = "{store}"
"""


def by_model(call: StubCall) -> str | StubReply:
    """boss plans (and accepts every answer); the others reply with their names."""
    if call.model == "boss":
        return ACCEPT if any(turn["role"] == "assistant" for turn in call.body["messages"]) else PLAN
    return f"{call.model} says hello there"


class Answer:
    """A reply, read whole."""

    def __init__(self, status: int, headers: Any, text: str) -> None:
        self.status, self.headers, self.text = status, headers, text

    @property
    def object(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> Any:
        return self.object["error"]

    @property
    def frames(self) -> list[str]:
        return [frame for frame in self.text.split("\n\n") if frame]

    @property
    def events(self) -> list[Any]:
        """The data of every event; `[DONE]` as it is."""
        datas = [frame.removeprefix("data: ") for frame in self.frames if frame.startswith("data: ")]
        return [data if data == "[DONE]" else json.loads(data) for data in datas]

    @property
    def comments(self) -> list[str]:
        return [frame[2:] for frame in self.frames if frame.startswith(": ")]

    @property
    def streamed_text(self) -> str:
        chunks = [event for event in self.events if event != "[DONE]" and event.get("choices")]
        return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


class Server:
    """What a test holds: the service behind it, the stub, and a client."""

    def __init__(self, service: Service, stub: StubProvider, url: str, session: aiohttp.ClientSession) -> None:
        self.service, self.stub, self.url, self.session = service, stub, url, session

    async def request(self, method: str, path: str, **more: Any) -> Answer:
        async with self.session.request(method, self.url + path, **more) as response:
            return Answer(response.status, response.headers, (await response.read()).decode())

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.request("GET", path, **more)

    async def chat(self, said: str | list[Any] = "hi", *, headers: dict[str, str] | None = None, **body: Any) -> Answer:
        """`POST /v1/chat/completions`; further keywords are fields of the body."""
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
        whole = {"model": "worker/alpha", "messages": messages} | body
        return await self.request("POST", "/v1/chat/completions", json=whole, headers=headers)


Start = Callable[..., Awaitable[Server]]


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once: bringing a new database up to date takes longer than most tests here."""
    path = tmp_path_factory.mktemp("serve") / "empty.db"

    async def make() -> None:
        async with Store.open(path):
            pass

    asyncio.run(make())
    return path


@asynccontextmanager
async def started(folder: Path, stub: StubProvider, *, config: str = CONFIG, **settings: Any) -> AsyncIterator[Server]:
    text = config.format(url=stub.url("openai"), store=folder / "serve.db")
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(
            open_service(parse_config(text), settings=ServeSettings(grace_s=1.0, **settings))
        )
        url = await stack.enter_async_context(serving(service, bound("127.0.0.1", 0)))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Server(service, stub, url, session)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIRIGENT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DIRIGENT_PEPPER", raising=False)


@pytest.fixture
async def stub() -> AsyncIterator[StubProvider]:
    async with StubProvider(by_model) as running:
        yield running


@pytest.fixture
async def start(tmp_path: Path, stub: StubProvider, empty_store: Path) -> AsyncIterator[Start]:
    """Start a server, with settings of one's own; it stops when the test ends."""
    shutil.copy(empty_store, tmp_path / "serve.db")
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Server:
            return await stack.enter_async_context(started(tmp_path, stub, **settings))

        yield start


@pytest.fixture
async def server(start: Start) -> Server:
    return await start()
