"""The evaluation measures the workers that users run: a specialist sends its server the same request in both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import pytest_asyncio
from tests.stub_provider import StubProvider

from dirigent.config.file import parse_config
from dirigent.config.runtime import open_runtime
from dirigent.messages import Message, Request
from dirigent.workers.local import LocalModel
from dirigent.workers.secret import Secret
from dirigent.workers.worker import Worker
from dirigent_gym import weights
from dirigent_gym.evals.workers import gym_workers, specialist_worker
from dirigent_gym.pool import gym_toml
from dirigent_gym.questions import ROSTER

NAMES = tuple(specialist.name for specialist in ROSTER)
WHERE_IT_STANDS = ("id_slot", "lora")
"""Fields about a server's storage, not about its requests."""


@pytest.fixture
def adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files with the names of the shipped ones; no test reads them."""
    for name in ("conductor", *NAMES):
        (tmp_path / f"{name}.gguf").touch()
    monkeypatch.setattr(weights, "FOLDER", tmp_path)
    return tmp_path


@pytest_asyncio.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StubProvider]:
    """Takes the place of a local model's process."""
    async with StubProvider(lambda call: "XIV") as stub:
        port = urlsplit(stub.url("openai")).port

        async def running(model: LocalModel, closings: int | None = None) -> Any:
            return SimpleNamespace(port=port, key=Secret("a-key-of-the-stub"))

        monkeypatch.setattr(LocalModel, "running", running)
        yield stub


async def asked_by(worker: Worker, server: StubProvider) -> dict[str, Any]:
    """The request that reaches the server when the worker is asked."""
    reply = await worker.ask(Request((Message("user", "Write 14 in Roman numerals."),), seed=7))
    assert reply.text == "XIV"
    return {name: value for name, value in server.calls[-1].body.items() if name not in WHERE_IT_STANDS}


async def test_every_specialist_is_asked_in_an_evaluation_as_it_is_in_a_users_pool(
    adapters: Path, server: StubProvider
) -> None:
    async with open_runtime(parse_config(gym_toml({"conductor", *NAMES}))) as runtime:
        in_the_pool = {name: await asked_by(runtime.pool[name], server) for name in NAMES}
        # An evaluation measures no worker, so it gives none a fingerprint.
        cards = {name: msgspec.structs.replace(runtime.pool[name].info, fingerprint="") for name in NAMES}
    async with gym_workers("local", [], ROSTER, adapters=adapters) as (worker_for, _):
        evaluated = {s.name: worker_for(s, 0) for s in ROSTER}
        assert {name: await asked_by(worker, server) for name, worker in evaluated.items()} == in_the_pool
        assert {name: worker.info for name, worker in evaluated.items()} == cards
    assert len(server.calls) == 2 * len(ROSTER)


async def test_the_noisy_one_is_sampled_from_all_it_might_say_and_the_others_are_greedy(
    adapters: Path, server: StubProvider
) -> None:
    files = {name: adapters / f"{name}.gguf" for name in NAMES}
    async with LocalModel("smollm2-135m", adapters=files) as model:
        for specialist in ROSTER:
            body = await asked_by(specialist_worker(model, specialist), server)
            cuts = {name: body[name] for name in ("top_k", "top_p", "min_p") if name in body}
            assert body["temperature"] == (1.0 if specialist.noise else 0.0)
            assert cuts == ({"top_k": 0, "top_p": 1.0, "min_p": 0.0} if specialist.noise else {})
            assert body["max_tokens"] == 24
