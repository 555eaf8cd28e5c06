"""S2: two keys, and everything that one of them owns tried by the other, on every route of the table.

Each tenant first makes one of everything that has an id: a run, a kept response, one in the background, a run that
waits for tools, an item, an idempotent reply. Then every route is called with each of these ids by the other tenant:
in the path, in the query, in every field of the body that can hold a text. New routes are covered as they are added to
the table. Whatever comes back must not hold a word of the owner's, and must change nothing of theirs.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from dirigent.messages import ToolCall
from dirigent.serve.http.app import ENDPOINTS
from dirigent.store.keys import Caller
from tests.stub_provider import StubProvider
from tests.stub_wires import StubCall, StubReply
from tests.torture.fuzz import Draw, whole_or_first
from tests.torture.harness import Progress, Result, Server, config, connections, eventually, worker

AT_ONCE = 8
QUERIES = ("key", "search", "after", "starting_after", "from", "group_by", "profile")
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


class Tenant(msgspec.Struct):
    """A key with its runs and responses."""

    key: str
    canary: str
    """Stands in everything it asks, and in every answer it gets."""
    ids: dict[str, str] = {}
    kept: dict[str, str] = {}
    """What was said at these paths when they were made."""
    history: list[dict[str, Any]] = []


class Crossing(msgspec.Struct, frozen=True):
    """One try of one tenant at what the other owns."""

    kind: str
    method: str
    path: str
    in_path: bool
    body: dict[str, Any] | None = None
    headers: Mapping[str, str] = {}


async def s2(count: int, seed: int) -> Result:
    """`count` crossings, in a seeded order; all of them, over and over, where there are fewer."""
    rng, progress, faults, statuses = random.Random(seed), Progress("S2", count), [], Counter[int]()
    async with StubProvider(_answer) as stub, aiohttp.ClientSession(connector=connections()) as session:
        text = config(worker("alpha", url=stub.url("openai"), abilities="{ tools = true }"))
        async with Server.open(text) as server:
            tenants = [await _tenant(session, server, name) for name in ("anna", "bert")]
            described = json.loads((await server.get("/openapi.json"))[1])
            tries = [(a, b, c) for a, b in (tenants, tenants[::-1]) for c in crossings(b, described, rng)]
            drawn = rng.sample(tries, min(count, len(tries))) + rng.choices(tries, k=max(0, count - len(tries)))
            waiting = iter(drawn)

            async def send() -> None:
                for who, owner, crossing in waiting:
                    status, fault = await _tried(session, server, who, owner, crossing)
                    statuses[status] += 1
                    faults.extend([fault] if fault else [])
                    progress.step()

            await asyncio.gather(*(send() for _ in range(AT_ONCE)))
            for tenant in tenants:
                faults += await _lost(session, server, tenant)
            await server.stop()
    kinds = {str(status): number for status, number in statuses.most_common(5)}
    return Result(count - len(faults), count, tuple(faults[:12]), {"crossings": len(tries), **kinds})


def _answer(call: StubCall) -> StubReply:
    """Repeats its request; calls the tool if it has one and has not seen its result."""
    if call.body.get("tools") and call.body["messages"][-1]["role"] != "tool":
        return StubReply(tool_calls=(ToolCall("u", "weather", "{}"),), finish="tool_calls")
    return StubReply(f"you said: {call.text[:300]}")


# ---- what a tenant owns ------------------------------------------------------------------------------------


async def _tenant(session: aiohttp.ClientSession, server: Server, name: str) -> Tenant:
    """A new key with one of everything."""
    tenant = Tenant(await server.make_key(Caller(label=f"tenant {name}")), f"{name}-{secrets.token_hex(8)}")
    tenant.ids = {"label": f"tenant {name}", "name": f"idempotent-{tenant.canary[-8:]}"}
    said = [{"role": "user", "content": f"remember {tenant.canary}"}]
    body = {"model": "worker/alpha", "messages": said}
    named = {"Idempotency-Key": tenant.ids["name"]}
    chat = await _made(session, server, tenant, "/v1/chat/completions", body, headers=named)
    tenant.ids |= {"completion": chat["id"], "trace": chat["dirigent"]["trace_id"]}
    kept = await _made(session, server, tenant, "/v1/responses", {"model": "worker/alpha", "input": tenant.canary})
    background = {"model": "worker/alpha", "input": tenant.canary, "background": True}
    later = await _made(session, server, tenant, "/v1/responses", background)
    tenant.ids |= {"response": kept["id"], "background": later["id"], "output": kept["output"][-1]["id"]}
    message = {"model": "worker/alpha", "max_tokens": 50, "messages": said}
    tenant.ids["message"] = (await _made(session, server, tenant, "/v1/messages", message))["id"]
    asked = await _made(session, server, tenant, "/v1/chat/completions", body | {"tools": [TOOL]})
    (call,) = asked["choices"][0]["message"]["tool_calls"]
    tenant.ids |= {"tool call": call["id"], "waiting run": asked["dirigent"]["trace_id"]}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
    tenant.history = [*said, {"role": "assistant", "tool_calls": [call]}, result]

    async def ended() -> bool:
        return json.loads(await _got(session, server, tenant, f"/v1/responses/{later['id']}"))["status"] == "completed"

    assert await eventually(ended, within_s=30)
    items = json.loads(await _got(session, server, tenant, f"/v1/responses/{kept['id']}/input_items"))
    tenant.ids["item"] = items["data"][0]["id"]
    tenant.ids["set"] = f"set-{tenant.canary[-8:]}"
    await _made(session, server, tenant, f"/v1/sets/{tenant.ids['set']}", {"question": tenant.canary})
    paths = [f"/v1/responses/{kept['id']}", f"/v1/responses/{later['id']}", f"/v1/traces/{tenant.ids['trace']}"]
    tenant.kept = {path: await _got(session, server, tenant, path) for path in paths}
    return tenant


async def _made(
    session: aiohttp.ClientSession,
    server: Server,
    tenant: Tenant,
    path: str,
    body: dict[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    signed = {"Authorization": f"Bearer {tenant.key}"} | dict(headers or {})
    async with session.post(server.url + path, json=body, headers=signed) as response:
        assert response.status == 200, await response.text()
        made: dict[str, Any] = await response.json()
    return made


async def _got(session: aiohttp.ClientSession, server: Server, tenant: Tenant, path: str) -> str:
    async with session.get(server.url + path, headers={"Authorization": f"Bearer {tenant.key}"}) as response:
        return await response.text()


# ---- the other one's tries ---------------------------------------------------------------------------------


def crossings(owner: Tenant, description: Mapping[str, Any], rng: random.Random) -> Iterator[Crossing]:
    """Every route with every id of the owner, in every place that a route has for one."""
    for endpoint in ENDPOINTS:
        template = endpoint.path.replace(":path", "")
        operation = description["paths"][template][endpoint.method.lower()]
        for kind, id in owner.ids.items():
            # A set's name is each key's own: the other one has an empty set of that name, and not the owner's.
            path = template.replace("{id}", quote(id, safe="")).replace("{name}", owner.ids["set"])
            in_path = "{id}" in template
            if "{" in template and "requestBody" not in operation:
                yield Crossing(kind, endpoint.method, path, in_path)
            for query in QUERIES if endpoint.method == "GET" else ():
                yield Crossing(kind, "GET", f"{path}?{query}={quote(id, safe='')}", in_path)
            if "requestBody" in operation:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                for body in _bodies(schema, description, rng, id):
                    yield Crossing(kind, endpoint.method, path, in_path, body)
                    again = {"Idempotency-Key": owner.ids["name"]}
                    yield Crossing(kind, endpoint.method, path, in_path, body, again)
    yield from _with_tool_results(owner)


def _bodies(
    schema: Mapping[str, Any], description: Mapping[str, Any], rng: random.Random, id: str
) -> Iterator[dict[str, Any]]:
    """Bodies that fit, with the id in each field that can hold a text, one after another; one body if none can."""
    draw = Draw(description, rng, models=["worker/alpha"], ids=[id])
    resolved = draw.resolved(schema["$ref"])
    least = {name: draw.value(resolved["properties"][name], name=name) for name in resolved["required"]}
    least |= {"messages": [{"role": "user", "content": "hi"}]} if "messages" in least else {}
    least |= {"input": "hi"} if "input" in least else {}
    properties = resolved["properties"].items()
    texts = [name for name, kind in properties if name not in ("messages", "model") and '"string"' in json.dumps(kind)]
    for name in texts:
        yield least | {name: id} | ({"thumb": "up"} if name == "trace_id" else {})
    if not texts:
        yield least


def _with_tool_results(owner: Tenant) -> Iterator[Crossing]:
    """Results for the owner's tool call, with a history that has none of the owner's words."""
    call = owner.ids["tool call"]
    function = {"name": "weather", "arguments": "{}"}
    history = [
        {"role": "user", "content": "go on"},
        {"role": "assistant", "tool_calls": [{"id": call, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call, "content": "sun"},
    ]
    body = {"model": "worker/alpha", "messages": history, "tools": [TOOL]}
    yield Crossing("tool call", "POST", "/v1/chat/completions", False, body)
    items = [
        {"role": "user", "content": "go on", "type": "message"},
        {"type": "function_call", "call_id": call, **function},
        {"type": "function_call_output", "call_id": call, "output": "sun"},
    ]
    yield Crossing("tool call", "POST", "/v1/responses", False, {"model": "worker/alpha", "input": items})
    blocks = [
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": call, "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": "sun"}]},
    ]
    yield Crossing(
        "tool call", "POST", "/v1/messages", False, {"model": "worker/alpha", "max_tokens": 9, "messages": blocks}
    )


async def _tried(
    session: aiohttp.ClientSession, server: Server, who: Tenant, owner: Tenant, crossing: Crossing
) -> tuple[int, str]:
    """The status, and the fault of the reply."""
    headers = {"Authorization": f"Bearer {who.key}"} | dict(crossing.headers)
    url = URL(server.url + crossing.path, encoded=True)
    async with session.request(crossing.method, url, json=crossing.body, headers=headers) as response:
        said = f"{dict(response.headers)} {(await whole_or_first(response)).decode()}"
    shown = f"{crossing.method} {crossing.path} with the other's {crossing.kind}"
    if owner.canary in said:
        return response.status, f"{shown} shows the owner's words: {said[:300]}"
    if "'X-Dirigent-Resumed': 'yes'" in said:
        return response.status, f"{shown} went on with the owner's run"
    if "Idempotent-Replayed" in said and owner.ids["trace"] in said:
        return response.status, f"{shown} was given the owner's reply"
    if crossing.in_path and response.status not in (400, 403, 404):
        return response.status, f"{shown} got {response.status}: {said[:300]}"
    if response.status >= 500:
        return response.status, f"{shown} got {response.status}: {said[:300]}"
    return response.status, ""


async def _lost(session: aiohttp.ClientSession, server: Server, owner: Tenant) -> list[str]:
    """What of the owner's is not as it was."""
    faults = []
    for path, before in owner.kept.items():
        if await _got(session, server, owner, path) != before:
            faults.append(f"{path} has changed")
    signed = {"Authorization": f"Bearer {owner.key}"}
    verdict = {"trace_id": owner.ids["trace"], "thumb": "up"}
    async with session.post(f"{server.url}/v1/feedback", json=verdict, headers=signed) as response:
        faults += [] if response.status == 200 else [f"feedback of one's own got {response.status}"]
    body = {"model": "worker/alpha", "messages": owner.history, "tools": [TOOL]}
    async with session.post(f"{server.url}/v1/chat/completions", json=body, headers=signed) as response:
        if response.headers.get("X-Dirigent-Resumed") != "yes":
            faults.append(f"the run that waited does not go on: {response.status} {(await response.text())[:200]}")
    return faults
