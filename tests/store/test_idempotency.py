"""Claims on a name: one of many wins, on either database; what is old or abandoned may be claimed anew."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from dirigent.store import Store, idempotency
from dirigent.store.idempotency import Claimed, Differs, Kept, Outcome, Running, claim, finish, release
from dirigent.store.moments import now

REPLY = Kept(200, (("content-type", "text/plain"),), b"hi \xff", "run")


async def ask(
    store: Store, *, key_id: str = "k", name: str = "n", digest: str = "d", longest_s: float = 60.0
) -> Outcome:
    return await claim(store, key_id=key_id, name=name, digest=digest, longest_s=longest_s)


async def claimed(store: Store, **more: str) -> Claimed:
    outcome = await ask(store, **more)  # type: ignore[arg-type]
    assert isinstance(outcome, Claimed)
    return outcome


async def test_of_many_at_once_over_two_connections_exactly_one_wins(url: str) -> None:
    async with Store.open(url) as one, Store.open(url) as two:
        for round in range(5):
            outcomes = await asyncio.gather(*(ask(store, name=f"n{round}") for store in (one, two) * 20))
            assert sum(isinstance(outcome, Claimed) for outcome in outcomes) == 1
            assert sum(isinstance(outcome, Running) for outcome in outcomes) == 39


async def test_a_finished_claim_gives_its_reply_to_the_same_request_of_the_same_key_only(url: str) -> None:
    async with Store.open(url) as store:
        await finish(store, await claimed(store), REPLY)
        assert await ask(store) == REPLY
        assert await ask(store, digest="other") == Differs()
        assert isinstance(await ask(store, key_id="other"), Claimed)


async def test_a_released_claim_is_free_again(url: str) -> None:
    async with Store.open(url) as store:
        await release(store, await claimed(store))
        assert isinstance(await ask(store, digest="other"), Claimed)


async def test_a_reply_is_forgotten_after_a_day(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Store.open(url) as store:
        await finish(store, await claimed(store), REPLY)
        tomorrow = now() + timedelta(hours=24, seconds=1)
        monkeypatch.setattr(idempotency, "now", lambda: tomorrow)
        assert isinstance(await ask(store, digest="other"), Claimed)


async def test_a_claim_older_than_any_run_is_taken_over_and_its_first_owner_cannot_finish_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Store.open(url) as store:
        first = await claimed(store)
        later: datetime = now() + timedelta(seconds=61)
        monkeypatch.setattr(idempotency, "now", lambda: later)
        second = await claimed(store)
        assert second.again
        await finish(store, first, REPLY)
        await release(store, first)
        assert await ask(store) == Running()
        await finish(store, second, Kept(200, (), b"second"))
        assert await ask(store) == Kept(200, (), b"second")
