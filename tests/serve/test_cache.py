"""`cache = true` of a worker, over the real server: it saves a key its own repetitions and shows it no other key's."""

from __future__ import annotations

import asyncio
from typing import Any

from dirigent.store.keys import Caller, create_key
from tests.serve.conftest import CONFIG, Server, Start
from tests.stub_provider import StubProvider

CACHING = CONFIG.replace("retries = 0", "retries = 0\ncache = true")

Headers = dict[str, str]


async def with_two_keys(start: Start) -> tuple[Server, Headers, Headers]:
    server = await start(config=CACHING, keys_required=True)
    texts = [(await create_key(server.service.store, Caller(label=label))).text for label in ("mine", "other")]
    mine, other = ({"Authorization": f"Bearer {text}"} for text in texts)
    return server, mine, other


def asked(stub: StubProvider) -> list[str]:
    return [call.model for call in stub.calls]


async def cost(server: Server, headers: Headers, **more: Any) -> float:
    answer = await server.chat("the same", headers=headers, temperature=0, **more)
    assert answer.status == 200, answer.text
    return float(answer.headers["X-Dirigent-Cost-USD"])


async def test_a_key_pays_once_and_another_key_does_not_see_its_request(start: Start) -> None:
    server, mine, other = await with_two_keys(start)
    first, again, others = [await cost(server, headers) for headers in (mine, mine, other)]
    assert (first, again, others) == (first, 0, first)
    assert first > 0
    assert asked(server.stub) == ["alpha", "alpha"]


async def test_steps_of_plans_are_kept_for_each_key_too(start: Start) -> None:
    """Only those that read nothing: the others, and a prompted planner, are shown marks that differ from run to run."""
    server, mine, other = await with_two_keys(start)
    for headers in (mine, mine, other):
        await cost(server, headers, model="ultra")
    assert asked(server.stub) == ["boss", "alpha", "beta", "boss", "beta", "boss", "alpha", "beta"]


async def test_two_keys_that_ask_the_same_at_once_do_not_share_a_call(start: Start) -> None:
    server, mine, other = await with_two_keys(start)
    server.stub.delay_s = 0.2
    costs = await asyncio.gather(*(cost(server, headers) for headers in (mine, mine, other, other)))
    assert sorted(paid > 0 for paid in costs) == [False, False, True, True]
    assert asked(server.stub) == ["alpha", "alpha"]


async def test_a_response_of_the_background_is_its_keys_too(start: Start) -> None:
    server, mine, other = await with_two_keys(start)

    async def respond(headers: Headers) -> None:
        body = {"model": "worker/alpha", "input": "the same", "temperature": 0, "background": True}
        begun = await server.request("POST", "/v1/responses", json=body, headers=headers)
        assert begun.status == 200, begun.text
        for _ in range(500):
            found = await server.get(f"/v1/responses/{begun.object['id']}", headers=headers)
            if found.object["status"] == "completed":
                return
            await asyncio.sleep(0.01)
        raise AssertionError(found.text)

    for headers in (mine, mine, other):
        await respond(headers)
    assert asked(server.stub) == ["alpha", "alpha"]
