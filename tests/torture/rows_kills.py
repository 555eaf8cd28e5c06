"""Kills, databases that stop answering, and races: F4, F7, F8, F10, F11 of the goal sheet.

Every row is about what must hold when it is least convenient: nothing that was acknowledged is lost, nothing is paid
twice, no key overspends. F4 has a module of its own (`kills.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator

from dirigent.store import Store
from dirigent.store.keys import Caller, list_keys
from dirigent.store.ledger import usage
from tests.store.conftest import POSTGRESQL_FOLDERS, PostgreSQL
from tests.torture.harness import Progress, Result, Row, Server, config, eventually, percentile, worker
from tests.torture.journals import Client, Sent, right, settle
from tests.torture.kills import f4
from tests.torture.pulse import bare_server, pulse, worst_ms
from tests.torture.upstream import Upstream, ask_of, marker_of, upstream

BLOCKED_MS = 100.0
"""An event loop that answers `/healthz` so much later than an idle one beside it was blocked."""
AT_ONCE = 50
CLIENTS = 200
CALLS_PAID_FOR = 100
OUTPUT_TOKENS = 12
RECOVERS_S = 5.0
BACK_OFF_S = 0.05
MENDED_S = 15.0
"""For what a failing store kept from being settled to be settled after all."""

HOLDER = """
import sqlite3, sys, time
store = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
store.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
store.execute("ROLLBACK")
"""


@contextlib.asynccontextmanager
async def _one_worker(store_url: str = "") -> AsyncIterator[tuple[Upstream, Server, Client]]:
    """A server with one worker, the worker's side, and a client."""
    async with upstream(delay_s=0.02) as up:
        text = config(worker("a", up))
        async with Server.open(text, store_url=store_url) as server, Client.open(server) as client:
            yield up, server, client


# ---- F7: another process holds the file ---------------------------------------------------------------------


async def f7(count: int, seed: int) -> Result:
    """Requests while another process locks the SQLite file: each waits or gets a 503, and the loop goes on."""
    locks_s = (1, 5, 30) if count >= 100 else (1, 5) if count >= 10 else (1,)
    rng, progress, done, faults, ends = random.Random(seed), Progress("F7", count), 0, [], Counter[str]()
    async with _one_worker() as (up, server, client), bare_server() as bare:
        async with pulse(server.pid, server.url) as beats, pulse(bare.pid, bare.url) as idle:
            for index, lock_s in enumerate(locks_s):
                share = count // len(locks_s) + (index < count % len(locks_s))
                numbers = range(1000 * index, 1000 * index + share)
                sent = await _while_locked(server, client, lock_s, numbers=numbers, rng=rng)
                wrong = [one for one in sent if not right(one) and (one.status, one.code) != (503, "store_failed")]
                faults += [f"locked for {lock_s} s: {w.marker} ended as {w.end} {w.status} {w.code}" for w in wrong]
                done += len(sent) - len(wrong)
                ends.update(f"{one.status} {one.code}".strip() for one in sent)
                if not right(await client.ask(marker_of(900_000 + index), model="worker/a")):
                    faults.append(f"after a lock of {lock_s} s the server does not answer")
                progress.step(share)
        await eventually(lambda: _nothing_open(server), within_s=MENDED_S)
        faults += await settle(server, up, client)
    if worst_ms(beats) > BLOCKED_MS + worst_ms(idle):
        faults.append(f"the loop was blocked for {worst_ms(beats):.0f} ms; an idle one beside it {worst_ms(idle):.0f}")
    figures = {
        "blocked max ms": round(worst_ms(beats), 1),
        "idle loop beside it": round(worst_ms(idle), 1),
        "by the clock": round(max(beat.clock_ms for beat in beats), 1),
        "beats": len(beats),
    }
    return Result(done, count, tuple(faults[:12]), figures | _shares(ends))


async def _while_locked(
    server: Server, client: Client, lock_s: float, *, numbers: range, rng: random.Random
) -> list[Sent]:
    """Requests at seeded moments while another process has the file."""
    holder = await _hold(server.store_url, lock_s)
    asking = [_after(rng.random() * lock_s, client, marker_of(number)) for number in numbers]
    sent = await asyncio.gather(*asking)
    await holder.wait()
    return sent


async def _hold(path: str, seconds: float) -> asyncio.subprocess.Process:
    """Another process, once it has the lock."""
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER, path, str(seconds)), stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"held\n"
    return holder


async def _after(seconds: float, client: Client, marker: str) -> Sent:
    await asyncio.sleep(seconds)
    return await client.ask(marker, model="worker/a", within_s=60.0)


# ---- F8: PostgreSQL goes away ------------------------------------------------------------------------------


class Restartable(PostgreSQL):
    """A PostgreSQL server that is stopped as a crash would, and started again."""

    def restart(self) -> None:
        self._run("pg_ctl", "restart", "-w", "-m", "immediate", "-D", str(self.folder / "data"))


async def f8(count: int, seed: int) -> Result:
    """PostgreSQL is restarted `immediate` under load: nothing acknowledged is lost, and answers come again soon."""
    if not POSTGRESQL_FOLDERS:
        return Result(0, count, ("PostgreSQL is not installed (make system-deps)",))
    database = await asyncio.to_thread(Restartable, POSTGRESQL_FOLDERS[-1])
    try:
        url = await asyncio.to_thread(database.new_schema)
        return await _restarts(database, url, count, seed)
    finally:
        await asyncio.to_thread(database.stop)


async def _restarts(database: Restartable, url: str, count: int, seed: int) -> Result:
    rng, progress, back_s, faults = random.Random(seed), Progress("F8", count), [], []
    async with _one_worker(url) as (up, server, client):
        loading = asyncio.ensure_future(_load(client, rng))
        for _ in range(count):
            await asyncio.sleep(0.5 + rng.random())
            await asyncio.to_thread(database.restart)
            back_s.append(await _answers_again(client))
            progress.step()
        loading.cancel()
        await asyncio.wait([loading])
        for sent in client.journal:
            if not right(sent) and sent.code != "store_failed":
                faults.append(f"{sent.marker} ended as {sent.end} {sent.status} {sent.code}")
        ends = Counter(f"{sent.status} {sent.code}".strip() for sent in client.journal)
        await eventually(lambda: _nothing_open(server), within_s=MENDED_S)
        faults += await settle(server, up, client)
    done = sum(seconds <= RECOVERS_S for seconds in back_s)
    figures = {"back p50 s": round(percentile(back_s, 0.5), 2), "back max s": round(max(back_s), 2), **_shares(ends)}
    return Result(done, count, tuple(faults[:12]), figures)


async def _load(client: Client, rng: random.Random) -> None:
    """About twenty requests a second, until it is cancelled; then it waits for requests in flight."""
    number, asking = 0, set[asyncio.Task[Sent]]()
    try:
        while True:
            number += 1
            task = asyncio.ensure_future(client.ask(marker_of(number), model="worker/a", stream=number % 3 == 0))
            asking.add(task)
            task.add_done_callback(asking.discard)
            await asyncio.sleep(rng.random() * 0.1)
    finally:
        await asyncio.gather(*asking)


async def _answers_again(client: Client) -> float:
    """Seconds until a request is answered."""
    began = time.monotonic()
    for number in range(8_000_000, 9_000_000):
        if right(await client.ask(marker_of(number + len(client.journal)), model="worker/a")):
            return time.monotonic() - began
        if time.monotonic() - began > 60:
            break
        await asyncio.sleep(BACK_OFF_S)
    return time.monotonic() - began


async def _nothing_open(server: Server) -> bool:
    """Whether every call that was reserved is settled."""
    async with Store.open(server.store_url) as store:
        return (await usage(store)).held_usd == 0.0


# ---- F10: the same name, many times at once ----------------------------------------------------------------


async def f10(count: int, seed: int) -> Result:
    """Each name is sent by fifty clients at once: carried out once; another body is refused, another key is apart."""
    done, faults, progress, ends = 0, list[str](), Progress("F10", count), Counter[str]()
    async with (
        upstream(delay_s=0.02) as up,
        Server.open(config(worker("a", up))) as server,
        Client.open(server) as client,
    ):
        other_key = await server.make_key(Caller(label="other"))
        for number in range(1, count + 1):
            fault = await _same_name(client, number, other_key, ends)
            faults += [fault] if fault else []
            done += not fault
            progress.step()
        calls = Counter(call.marker for call in await up.calls())
        for number in range(1, count + 1):
            if calls[marker_of(number)] != 2:
                faults.append(f"{marker_of(number)} was carried out {calls[marker_of(number)]} times for two keys")
                done -= 1
        faults += await settle(server, up, client)
    return Result(done, count, tuple(faults[:12]), _shares(ends))


async def _same_name(client: Client, number: int, other_key: str, ends: Counter[str]) -> str:
    """What went wrong with one name; empty where nothing did."""
    name = {"Idempotency-Key": f"name-{number}"}
    stream = number % 2 == 0

    async def ask(key: str, question: int) -> tuple[int, bytes]:
        said = [{"role": "user", "content": ask_of(marker_of(question))}]
        body = {"model": "worker/a", "messages": said, "stream": stream}
        headers = {"Authorization": f"Bearer {key}", **name}
        async with client.session.post(
            client.server.url + "/v1/chat/completions", json=body, headers=headers
        ) as response:
            client.server.keep(response.headers, await response.read())
            return response.status, await response.read()

    key = client.server.key
    told = await asyncio.gather(*(ask(key, number) for _ in range(AT_ONCE)))
    ends.update(str(status) for status, _ in told)
    again = await ask(key, number)
    whole = {body for status, body in told if status == 200}
    if {status for status, _ in told} - {200, 409} or whole != {again[1]} or again[0] != 200:
        return (
            f"name {number}: {Counter(status for status, _ in told)}, {len(whole)} different answers, then {again[0]}"
        )
    other, apart = await asyncio.gather(ask(key, number + 500_000), ask(other_key, number))
    if other[0] != 422 or apart[0] != 200 or apart[1] in whole:
        return f"name {number}: another body got {other[0]}, another key {apart[0]}"
    return ""


# ---- F11: more clients than money --------------------------------------------------------------------------


async def f11(count: int, seed: int) -> Result:
    """Two hundred clients of a key that has money for a hundred calls: it is never overspent."""
    done, faults, answered, progress = 0, list[str](), [], Progress("F11", count)
    async with (
        upstream(delay_s=0.02) as up,
        Server.open(config(worker("a", up))) as server,
        Client.open(server) as client,
    ):
        for round_number in range(count):
            first = 1000 * round_number
            budget_usd = CALLS_PAID_FOR * 110e-6  # a call holds about 110 millionths, and takes about 60
            label = f"round {round_number}"
            key = await server.make_key(Caller(label=label, budget_total_usd=budget_usd))
            asking = (
                client.ask(marker_of(first + i), model="worker/a", key=key, max_tokens=OUTPUT_TOKENS)
                for i in range(CLIENTS)
            )
            sent = await asyncio.gather(*asking)
            spent_usd, held_usd = await _spent(server, label)
            answered.append(sum(right(one) for one in sent))
            odd = Counter(f"{one.status} {one.code}" for one in sent if not right(one) and one.code != "cost_cap")
            if spent_usd + held_usd > budget_usd or held_usd or odd or answered[-1] < CALLS_PAID_FOR / 2:
                told = f"{answered[-1]} answers, {dict(odd)} odd ones"
                faults.append(f"{label}: spent {spent_usd:.9f} and holds {held_usd:.9f} of {budget_usd:.9f}; {told}")
            else:
                done += 1
            progress.step()
        faults += await settle(server, up, client)
    figures = {"clients": CLIENTS, "answered p50": int(percentile(answered, 0.5)), "most": max(answered)}
    return Result(done, count, tuple(faults[:12]), figures)


async def _spent(server: Server, label: str) -> tuple[float, float]:
    """What the ledger says of a key: spent, and held."""
    async with Store.open(server.store_url) as store:
        (key_id,) = [row.caller.key_id for row in await list_keys(store) if row.caller.label == label]
        spent = await usage(store, key_id)
    return spent.cost_usd, spent.held_usd


def _shares(ends: Counter[str]) -> dict[str, int]:
    """How requests ended, the commonest first."""
    return dict(ends.most_common(5))


ROWS = (
    Row("F4", "kill -9 at six points, on both stores: nothing acknowledged is lost, nothing paid twice", 200, 12, f4),
    Row("F7", "SQLite locked by another process: requests wait or get a 503, the loop is never blocked", 300, 12, f7),
    Row("F8", "PostgreSQL restarted `immediate` under load: nothing lost, answers again within 5 s", 20, 2, f8),
    Row("F10", "the same Idempotency-Key fifty times at once: one execution", 1000, 20, f10),
    Row("F11", "two hundred clients with money for a hundred calls: never overspent", 100, 3, f11),
)
