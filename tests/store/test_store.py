"""The promises of a store of runs, the same on both databases."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest
from sqlalchemy import select

from dirigent.errors import StoreError
from dirigent.store import Store, TraceRow
from dirigent.store.retention import forget
from dirigent.store.tables import traces
from dirigent.store.traces import COMPRESSED, PLAIN
from dirigent.workers.secret import Secret
from tests.facts import facts, says
from tests.store.samples import a_trace


async def test_a_trace_comes_back_exactly_as_it_was_saved(url: str):
    trace = a_trace(question="Wie heißt 挪威's capital?\n\0 \x1b[31m", answer="Oslo 🎻")
    async with Store.open(url) as store:
        await store.save(trace)
        assert await store.get(trace.id) == trace


async def test_a_trace_outlives_the_store_that_saved_it(url: str):
    async with Store.open(url) as store:
        await store.save(a_trace())
    async with Store.open(url) as store:
        assert await store.get("7f3a0000") == a_trace()


async def test_saving_an_id_again_leaves_the_record_as_it_was(url: str):
    async with Store.open(url) as store:
        await store.save(a_trace(answer="first"))
        await store.save(a_trace(answer="second"))
        assert (await store.get("7f3a0000")).answer == "first"
        assert len(await store.list()) == 1


async def test_a_trace_is_found_by_the_beginning_of_its_id(url: str):
    async with Store.open(url) as store:
        await asyncio.gather(*(store.save(a_trace(id)) for id in ("7f3a", "7f3b", "80")))
        assert (await store.get("7f3b")).id == "7f3b"
        assert (await store.get("8")).id == "80"


async def test_a_whole_id_wins_over_longer_ones_that_begin_with_it(url: str):
    async with Store.open(url) as store:
        await asyncio.gather(store.save(a_trace("7f")), store.save(a_trace("7f3b")))
        assert (await store.get("7f")).id == "7f"


async def test_an_ambiguous_beginning_lists_the_candidates(url: str):
    async with Store.open(url) as store:
        await asyncio.gather(*(store.save(a_trace(f"7f{n}")) for n in range(7)))
        with pytest.raises(StoreError, match=facts("7f 7f0 7f1 7f2 7f3 7f4")):
            await store.get("7f")
        await asyncio.gather(*(forget(store, f"7f{n}", actor="cli") for n in range(2, 7)))
        with pytest.raises(StoreError, match=facts("7f 7f0 7f1")):
            await store.get("7f")


@pytest.mark.parametrize("wildcard", ["%", "_", "7F", "7f%", "\\"])
async def test_a_beginning_is_taken_to_the_letter(url: str, wildcard: str):
    async with Store.open(url) as store:
        await store.save(a_trace("7f3a"))
        with pytest.raises(StoreError, match=facts("dirigent traces list")):
            await store.get(wildcard)


async def test_asking_for_no_trace_in_particular_is_refused(url: str):
    async with Store.open(url) as store:
        with pytest.raises(StoreError, match=facts("dirigent traces list")):
            await store.get("")


async def test_a_list_shows_the_newest_first_with_the_cost_of_each_run(url: str):
    async with Store.open(url) as store:
        await store.save(a_trace("old", created_at="2026-11-15T02:00:00Z"))
        await store.save(a_trace("new", created_at="2026-11-15T04:00:00.5+01:00"))  # 03:00:00.5 UTC
        newest, oldest = await store.list()
        assert (newest.id, oldest.id) == ("new", "old")
        assert newest == TraceRow(
            id="new",
            created_at="2026-11-15T03:00:00.500000Z",
            profile="ultra",
            planner="conductor",
            status="done",
            question="What is the capital of Norway?",
            answer="Oslo",
            steps=2,
            calls=3,
            tokens=60,
            cost_usd=0.003,
            seconds=1.5,
        )
        assert [row.id for row in await store.list(limit=1)] == ["new"]


async def test_a_list_is_narrowed_by_status_profile_time_and_words(url: str):
    async with Store.open(url) as store:
        await store.save(a_trace("a", status="failed", error="gpt-5 429 after 2 retries", answer=""))
        await store.save(a_trace("b", profile="mini", created_at="2026-11-15T05:00:00+00:00"))
        await store.save(a_trace("c", question="WAS KOSTET DIE STRASSE ÜBER 100%?" + " x" * 400, answer="nichts"))

        async def ids(**wanted: object) -> list[str]:
            return sorted([row.id for row in await store.list(**wanted)])

        assert await ids(status="failed") == ["a"]
        assert await ids(profile="mini") == ["b"]
        assert await ids(since=datetime(2026, 11, 15, 4, tzinfo=UTC)) == ["b"]
        assert await ids(since=datetime(2026, 11, 15, 6)) == []
        assert await ids(search="429 AFTER") == ["a"]
        assert await ids(search="straße über") == ["c"]
        assert await ids(search="100%") == ["c"]
        assert await ids(search="1%0") == []
        assert await ids(search="oslo", profile="ultra") == []


async def test_a_long_question_is_listed_by_its_beginning(url: str):
    async with Store.open(url) as store:
        await store.save(a_trace(question="ab" * 5000))
        (row,) = await store.list()
        assert row.question == "ab" * 120


async def test_export_gives_every_trace_once_in_order_of_time(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dirigent.store.PAGE", 3)
    made = [a_trace(f"{n}", created_at=f"2026-11-15T02:00:0{n // 4}Z") for n in range(9)]
    async with Store.open(url) as store:
        await asyncio.gather(*(store.save(trace) for trace in reversed(made)))
        assert [trace async for trace in store.export()] == made
        assert [trace.id async for trace in store.export(since=datetime(2026, 11, 15, 2, 0, 2))] == ["8"]
        assert [trace async for trace in store.export(status="failed")] == []


async def test_a_deleted_trace_is_gone_and_deleting_wants_the_whole_id(url: str):
    async with Store.open(url) as store:
        await store.save(a_trace("7f3a"))
        with pytest.raises(StoreError, match=facts("7f")):
            await forget(store, "7f", actor="cli")
        await forget(store, "7f3a", actor="cli")
        with pytest.raises(StoreError, match=facts("7f3a")):
            await store.get("7f3a")


async def test_no_secret_in_any_part_of_a_trace_reaches_the_store(url: str):
    secret = Secret('a"very\\odd-key-of-ours')
    leak = f"it says\n{secret.reveal()} and\nsk-abcdefghijklmnop0123456789"
    async with Store.open(url) as store:
        await store.save(a_trace(question=leak, answer=leak, error=leak))
        kept = await store.get("7f3a0000")
        (row,) = await store.list()
        assert await store.list(search="odd-key-of-ours") == []
    assert kept.answer == row.answer == "it says\n*** and\n***"
    assert kept.steps[0].messages[0].text == "it says\n*** and\n***"
    for shown in (repr(kept), repr(row)):
        assert "odd-key" not in shown
        assert "sk-abc" not in shown


async def test_half_a_character_does_not_cost_the_trace(url: str):
    async with Store.open(url) as store:
        await store.save(a_trace(answer="cut \ud83d"))
        assert (await store.get("7f3a0000")).answer == "cut \ufffd"


async def test_a_trace_with_no_time_is_refused_and_its_neighbours_are_kept(url: str):
    async with Store.open(url) as store:
        bad = store.save(a_trace("bad", created_at="yesterday"))
        good = store.save(a_trace("good"))
        refused, kept = await asyncio.gather(bad, good, return_exceptions=True)
        assert isinstance(refused, StoreError)
        assert says(str(refused), "yesterday ISO 8601")
        assert kept is None
        assert [row.id for row in await store.list()] == ["good"]


async def test_a_body_that_cannot_be_read_is_named(url: str):
    async with Store.open(url) as store:
        await store.save(a_trace())
        await store.write(lambda c, _: c.exec_driver_sql("UPDATE traces SET format = 7"), prepare=lambda: None)
        with pytest.raises(StoreError, match=facts("7f3a0000 7 2")):
            await store.get("7f3a")
        bytes_type = "bytea" if "://" in url else "blob"
        damage = f"UPDATE traces SET format = 1, body = CAST(searchable AS {bytes_type})"
        await store.write(lambda c, _: c.exec_driver_sql(damage), prepare=lambda: None)
        with pytest.raises(StoreError, match=facts("7f3a0000")):
            await store.get("7f3a")


async def test_short_traces_are_kept_as_they_are_and_long_ones_compressed(url: str):
    short, long = a_trace("short"), a_trace("long", answer="word " * 2000)
    async with Store.open(url) as store:
        await store.save(short)
        await store.save(long)
        found = await store.read(lambda c: {row.id: (row.format, len(row.body)) for row in c.execute(select(traces))})
        assert found["short"] == (PLAIN, len(msgspec.json.encode(short)))
        assert found["long"][0] == COMPRESSED
        assert found["long"][1] < len(long.answer) / 4
        assert [await store.get("short"), await store.get("long")] == [short, long]
