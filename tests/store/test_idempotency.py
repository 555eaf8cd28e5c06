"""Claims on a name: one of many wins, on either database. An old or abandoned claim, or that of a deleted run, may be
claimed anew."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest
from sqlalchemy import update

from dirigent.errors import StoreError
from dirigent.store import Store, idempotency, tables
from dirigent.store.idempotency import (
    Begun,
    Claimed,
    Differs,
    GivenUp,
    Kept,
    Outcome,
    Running,
    claim,
    finish,
    leave,
    release,
)
from dirigent.store.process_id import own_name
from dirigent.store.retention import Pruned, forget
from dirigent.store.run_states import begin, find, journal, pause, take
from dirigent.store.tables import now
from tests.facts import facts
from tests.store.samples import a_trace

REPLY = Kept(200, (("content-type", "text/plain"),), b"hi \xff", "run")


async def kept(store: Store, **more: str) -> None:
    """The reply of a run that has ended."""
    claim = await claimed(store, **more)
    await store.save(a_trace("run"))
    await finish(store, claim, REPLY)


async def ask(
    store: Store, *, key_id: str = "k", name: str = "n", digest: str = "d", longest_s: float = 60.0
) -> Outcome:
    return await claim(store, key_id=key_id, name=name, digest=digest, longest_s=longest_s)


async def claimed(store: Store, **more: str) -> Claimed:
    outcome = await ask(store, **more)  # type: ignore[arg-type]
    assert isinstance(outcome, Claimed)
    return outcome


async def die(store: Store) -> None:
    """As if the process of every claim had been killed: no process has this number."""
    place = own_name().partition("/")[0]
    dead = update(tables.idempotency).values(owner=f"{place}/99999999/1")
    await store.write(lambda connection, _: connection.execute(dead).rowcount, prepare=lambda: None)


async def test_of_many_at_once_over_two_connections_exactly_one_wins(url: str) -> None:
    async with Store.open(url) as one, Store.open(url) as two:
        for round in range(5):
            outcomes = await asyncio.gather(*(ask(store, name=f"n{round}") for store in (one, two) * 20))
            assert sum(isinstance(outcome, Claimed) for outcome in outcomes) == 1
            assert sum(isinstance(outcome, Running) for outcome in outcomes) == 39


async def test_a_finished_claim_gives_its_reply_to_the_same_request_of_the_same_key_only(url: str) -> None:
    async with Store.open(url) as store:
        await kept(store)
        assert await ask(store) == REPLY
        assert await ask(store, digest="other") == Differs()
        assert isinstance(await ask(store, key_id="other"), Claimed)


async def test_a_released_claim_is_free_again(url: str) -> None:
    async with Store.open(url) as store:
        await release(store, await claimed(store))
        assert isinstance(await ask(store, digest="other"), Claimed)


async def test_a_reply_is_forgotten_after_a_day(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Store.open(url) as store:
        await kept(store)
        tomorrow = now() + timedelta(hours=24, seconds=1)
        monkeypatch.setattr(idempotency, "now", lambda: tomorrow)
        assert isinstance(await ask(store, digest="other"), Claimed)


async def test_a_claim_older_than_any_run_is_taken_over_and_its_first_owner_cannot_finish_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Store.open(url) as store:
        first = await claimed(store)
        await store.save(a_trace("run"))
        later: datetime = now() + timedelta(seconds=61)
        monkeypatch.setattr(idempotency, "now", lambda: later)
        second = await claimed(store)
        assert second.again
        await finish(store, first, REPLY)
        await release(store, first)
        assert await ask(store) == Running()
        await finish(store, second, Kept(200, (), b"second"))
        assert await ask(store) == Kept(200, (), b"second")


async def test_a_reply_is_forgotten_with_its_run_and_no_other_is(url: str) -> None:
    async with Store.open(url) as store:
        for name in ("one", "two"):  # both of one run: it waited for its caller's tools in between
            await kept(store, name=name)
        await store.save(a_trace("other"))
        await finish(store, await claimed(store, name="other"), Kept(200, (), b"other", "other"))
        await finish(store, await claimed(store, name="none"), Kept(200, (), b"a dry run"))
        under_way = await claimed(store, name="under way")
        assert (await forget(store, "run", actor="cli")).idempotency == 2
        assert isinstance(await ask(store, name="one", digest="another"), Claimed)
        assert isinstance(await ask(store, name="two"), Claimed)
        assert await ask(store, name="other") == Kept(200, (), b"other", "other")
        assert await ask(store, name="none") == Kept(200, (), b"a dry run")
        assert await ask(store, name="under way") == Running()
        await finish(store, under_way, Kept(200, (), b"in time"))
        assert await ask(store, name="under way") == Kept(200, (), b"in time")


@pytest.mark.parametrize("body", [b"hi", None])
async def test_a_reply_whose_run_was_deleted_before_it_was_kept_is_not_kept(url: str, body: bytes | None) -> None:
    async with Store.open(url) as store:
        claim = await claimed(store)
        await store.save(a_trace("run"))
        await forget(store, "run", actor="cli")
        await finish(store, claim, Kept(200, (), body, "run"))
        assert isinstance(await ask(store), Claimed)


async def test_a_reply_of_a_run_that_has_only_begun_is_kept(url: str) -> None:
    async with Store.open(url) as store:
        claim = await claimed(store)
        await begin(store, "run", key_id="k", body=Pruned())
        await finish(store, claim, REPLY)
        assert await ask(store) == REPLY


async def test_a_reply_stored_while_another_process_deletes_its_run_is_gone_in_either_order(
    url: str,
) -> None:
    async with Store.open(url) as one, Store.open(url) as two:
        for round in range(30):
            run_id, name = f"run-{round}", f"n{round}"
            claim = await claimed(one, name=name)
            await one.save(a_trace(run_id))
            deleting = forget(two, run_id, actor="cli")
            keeping = finish(one, claim, Kept(200, (), b"hi", run_id))
            await asyncio.gather(*((deleting, keeping) if round % 2 else (keeping, deleting)))
            assert isinstance(await ask(one, name=name), Claimed)


async def test_a_begun_run_is_returned_to_every_claim_after_its_process_died(
    url: str,
) -> None:
    async with Store.open(url) as store:
        first = await claimed(store)
        assert (first.again, first.begun) == (False, "")
        await begin(store, "run", key_id="k", body=Pruned(), begun=Begun(first, "run", "resp"))
        assert await ask(store) == Running()
        for _ in range(3):
            await die(store)
            assert await ask(store, digest="other") == Differs()
            last = await claimed(store)
            assert last.begun == "resp"
            assert await ask(store) == Running()
        await finish(store, first, Kept(200, (), b"too late", "run"))
        await finish(store, last, REPLY)
        assert await ask(store) == REPLY


async def test_a_claim_without_a_begun_run_is_given_up_after_two_processes(url: str) -> None:
    async with Store.open(url) as store:
        for again in (False, True):
            outcome = await claimed(store)
            assert (outcome.again, outcome.begun) == (again, "")
            await die(store)
        assert await ask(store) == GivenUp()


async def test_a_run_continued_by_another_request_belongs_to_that_requests_claim(url: str) -> None:
    async with Store.open(url) as store:
        await pause(store, a_trace("run"), key_id="k", body=Pruned())
        row = await find(store, "run")
        assert row is not None
        claim = await claimed(store)
        with pytest.raises(StoreError, match=facts("run")):
            await journal(store, "run", body=Pruned(), begun=Begun(claim, "run", "resp"))
        await leave(store, claim)
        claim = await claimed(store)
        assert claim.begun == "", "it did not go on"
        await take(store, row)
        await journal(store, "run", body=Pruned(), begun=Begun(claim, "run", "resp"))
        await die(store)
        assert (await claimed(store)).begun == "resp"


async def test_an_abandoned_claim_is_free_at_once_and_keeps_its_begun_run(url: str) -> None:
    async with Store.open(url) as store:
        await leave(store, await claimed(store))
        claim = await claimed(store, digest="other")
        assert not claim.again, "nothing was left of it"
        await begin(store, "run", key_id="k", body=Pruned(), begun=Begun(claim, "run", "resp"))
        await leave(store, claim)
        again = await claimed(store, digest="other")
        assert again.begun == "resp"
        await release(store, again)
        assert (await claimed(store)).begun == ""


async def test_a_run_that_could_not_be_begun_does_not_hold_its_name(url: str) -> None:
    async with Store.open(url) as store:
        await begin(store, "run", key_id="k", body=Pruned())
        claim = await claimed(store)
        with pytest.raises(StoreError):  # there is one of this id
            await begin(store, "run", key_id="k", body=Pruned(), begun=Begun(claim, "run", "resp"))
        await leave(store, claim)
        assert (await claimed(store)).begun == ""


async def test_a_run_is_not_begun_for_a_claim_that_another_process_has_taken(url: str) -> None:
    async with Store.open(url) as one, Store.open(url) as two:
        claim = await claimed(one)
        await die(one)
        assert (await claimed(two)).again
        with pytest.raises(StoreError, match=facts("Idempotency-Key")):
            await begin(one, "run", key_id="k", body=Pruned(), begun=Begun(claim, "run", "resp"))
        assert await find(one, "run") is None
        assert await ask(one) == Running()


async def test_a_run_begun_while_its_claim_is_taken_over_has_it_or_is_not_begun(url: str) -> None:
    async with Store.open(url) as one, Store.open(url) as two:
        for round in range(30):
            run_id, name = f"run-{round}", f"n{round}"
            claim = await claimed(one, name=name)
            beginning = begin(one, run_id, key_id="k", body=Pruned(), begun=Begun(claim, run_id, "resp"))
            taking = ask(two, name=name, longest_s=-1.0)
            both = asyncio.gather(*((beginning, taking) if round % 2 else (taking, beginning)), return_exceptions=True)
            (taken,) = [outcome for outcome in await both if isinstance(outcome, Claimed | Running)]
            if await find(one, run_id) is None:
                assert isinstance(taken, Claimed)
                assert taken.begun == ""
            else:
                assert taken == Running() or taken.begun == "resp"


async def test_a_claims_begun_run_is_deleted_with_the_run(url: str) -> None:
    async with Store.open(url) as store:
        claim = await claimed(store)
        await begin(store, "run", key_id="k", body=Pruned(), begun=Begun(claim, "run", "resp"))
        await store.save(a_trace("run"))
        await store.write(lambda c, _: c.execute(tables.run_states.delete()).rowcount, prepare=lambda: None)
        assert (await forget(store, "run", actor="cli")).idempotency == 1
        assert (await claimed(store)).begun == ""
