"""A worker's name keeps the kind of address that it had first."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from dirigent.errors import WorkerError
from dirigent.messages import Message, Request
from dirigent.workers.dns_pinning import Rebound, SteadyResolver, kind_of
from dirigent.workers.http import HttpClient, HttpWorker
from dirigent.workers.openai import OpenAIWire
from dirigent.workers.worker import WorkerInfo
from tests.facts import facts


class Told:
    """A name service that says one thing after another."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_UNSPEC) -> list[Any]:
        return [{"hostname": host, "host": address, "port": port} for address in self._answers.pop(0)]

    async def close(self) -> None:
        self._answers.clear()


async def addresses(resolver: SteadyResolver, host: str = "provider.example") -> list[str]:
    return [one["host"] for one in await resolver.resolve(host, 443)]


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("203.0.113.7", "public"),
        ("2001:db8::1", "public"),
        ("10.1.2.3", "private"),
        ("172.31.0.1", "private"),
        ("100.64.0.1", "private"),
        ("fd12::1", "private"),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("0.0.0.0", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("169.254.169.254", "link"),
        ("::ffff:169.254.169.254", "link"),
        ("fe80::1%eth0", "link"),
        ("224.0.0.1", "link"),
    ],
)
def test_an_address_is_of_one_kind_in_any_clothes(address: str, kind: str) -> None:
    assert kind_of(address) == kind


@pytest.mark.parametrize("first", ["203.0.113.7", "10.0.0.1", "127.0.0.1"])
async def test_a_name_may_move_to_another_address_of_its_kind(first: str) -> None:
    other = first[:-1] + "9"
    assert await addresses(resolver := SteadyResolver(Told([first], [other]))) == [first]
    assert await addresses(resolver) == [other]


@pytest.mark.parametrize("later", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1"])
async def test_a_public_name_with_an_internal_address_is_refused_with_the_remedy(later: str) -> None:
    resolver = SteadyResolver(Told(["203.0.113.7"], [later], ["203.0.113.8"]))
    await addresses(resolver)
    with pytest.raises(Rebound, match=facts("provider.example")):
        await addresses(resolver)
    assert await addresses(resolver) == ["203.0.113.8"]


async def test_of_mixed_answers_those_of_the_usual_kind_are_called() -> None:
    resolver = SteadyResolver(Told(["203.0.113.7", "127.0.0.1"], ["127.0.0.1", "203.0.113.8"]))
    assert await addresses(resolver) == ["203.0.113.7"]
    assert await addresses(resolver) == ["203.0.113.8"]


async def test_a_name_never_resolves_to_a_link_local_address() -> None:
    with pytest.raises(Rebound, match=facts("169.254.169.254 base_url")):
        await addresses(SteadyResolver(Told(["169.254.169.254"])))


async def test_names_do_not_know_of_each_other() -> None:
    resolver = SteadyResolver(Told(["203.0.113.7"], ["127.0.0.1"]))
    await addresses(resolver, "provider.example")
    assert await addresses(resolver, "ollama.example") == ["127.0.0.1"]


async def test_a_worker_whose_name_was_rebound_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(["203.0.113.7"], ["127.0.0.1"])
    monkeypatch.setattr("aiohttp.DefaultResolver", lambda: told)
    async with HttpClient() as client:
        resolver: Any = client.session().connector
        await resolver._resolver.resolve("provider.example", 80)
        worker = HttpWorker(WorkerInfo("w", model="m"), OpenAIWire(), client, base_url="http://provider.example/v1")
        with pytest.raises(WorkerError, match=facts("provider.example 127.0.0.1")):
            await worker.ask(Request((Message("user", "hi"),)))
