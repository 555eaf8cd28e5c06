"""S5: no configured secret in any byte that is left: not in a database, not in a log, not in a reply.

Two parts. Workers that quote secrets in every error, to callers who put secrets into their questions: nothing of it
may be kept or passed on. Then a search by value through all that this run and the other rows of the same invocation
(F and B) have left: the databases and every value in them, logs, replies. See `evidence.py`.
"""

from __future__ import annotations

import json
import random
import shutil
from typing import Any

import aiohttp
from aiohttp import web

from tests.stub_provider import StubProvider
from tests.stub_wires import StubCall
from tests.torture import evidence
from tests.torture.evidence import Left, found_in, keeping, size_of
from tests.torture.harness import Progress, Result, Server, config, connections, worker

PAGES = ("/metrics", "/v1/traces?limit=200", "/v1/usage?group_by=worker,key", "/v1/models", "/readyz")
STATUSES = (400, 401, 403, 404, 422, 429, 500, 503)


async def s5(count: int, seed: int) -> Result:
    """`count` requests to workers that give secrets away; then everything that all rows have left."""
    with keeping("S5"):
        await _gossiped(count, random.Random(seed))
    lefts, rows = list(evidence.LEFT), set(evidence.KEPT)
    evidence.LEFT.clear()
    evidence.KEPT.clear()
    try:
        faults = searched(lefts, rows)
        mib = sum(size_of(left.folder) for left in lefts) / 2**20
    finally:
        for left in lefts:
            shutil.rmtree(left.folder, ignore_errors=True)
    figures = {
        "secrets": len({secret for left in lefts for secret in left.secrets}),
        "servers": len(lefts),
        "MiB searched": round(mib, 1),
        "of": " ".join(sorted(rows)),
    }
    return Result(0 if faults else count, count, tuple(faults[:12]), figures)


def searched(lefts: list[Left], rows: set[str]) -> list[str]:
    """Every secret of every row, in everything that any of them has left."""
    secrets = {secret for left in lefts for secret in left.secrets}
    faults = [f"{row} has left nothing to look through" for row in sorted(rows - {left.row for left in lefts})]
    return faults + [f"{left.row}: a secret is in {name}" for left in lefts for name in found_in(left.folder, secrets)]


async def _gossiped(count: int, rng: random.Random) -> None:
    progress = Progress("S5", count)
    async with StubProvider() as stub:
        url = stub.url("openai")
        async with Server.open(
            config(worker("alpha", url=url, retries=0), worker("beta", url=url, retries=0))
        ) as server:
            stub._fail_early = _gossip(server, rng)  # type: ignore[method-assign]
            async with aiohttp.ClientSession(
                connector=connections(), headers={"Authorization": f"Bearer {server.admin_key}"}
            ) as session:
                for number in range(count):
                    await _asked(session, server, number, rng)
                    progress.step()
            for page in PAGES:
                await server.get(page)
            await server.stop()


async def _asked(session: aiohttp.ClientSession, server: Server, number: int, rng: random.Random) -> None:
    """A question with a secret in it, as people do."""
    said = rng.choice((server.key, server.provider_key, "hi"))
    body: dict[str, Any] = {"model": rng.choice(("worker/alpha", "worker/beta", "ultra")), "stream": number % 3 == 0}
    body["messages"] = [{"role": "user", "content": f"my key is {said}, number {number}"}]
    headers = {"Idempotency-Key": f"n{number}"} if number % 2 else {}
    async with session.post(f"{server.url}/v1/chat/completions", json=body, headers=headers) as response:
        server.keep(response.headers, await response.read())


def _gossip(server: Server, rng: random.Random) -> Any:
    """A provider whose every error quotes a secret of the server's."""

    async def fail(call: StubCall, request: web.Request) -> web.Response:
        secret = rng.choice((server.provider_key, *server.keys))  # only the server has the pepper
        status = rng.choice(STATUSES)
        quoted = rng.choice((secret, f"Bearer {secret}", json.dumps({"api_key": secret}), f"https://x/?key={secret}"))
        error = {"error": {"message": f"you sent {quoted}", "type": quoted, "code": quoted}}
        if rng.random() < 0.3:
            return web.Response(text=f"<html>{quoted}</html>", status=status, content_type="text/html")
        return web.json_response(error, status=status, headers={"X-Echo": secret, "Retry-After": "0"})

    return fail
