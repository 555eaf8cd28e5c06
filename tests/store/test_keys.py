"""Keys: shown once, kept as digests, checked at the same cost for every caller, and closed within a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from dirigent.errors import ConfigError, StoreError
from dirigent.store import Store
from dirigent.store.audit import export
from dirigent.store.keys import (
    Caller,
    any_keys,
    authenticate,
    create_key,
    find_pepper,
    keys_of_another_pepper,
    list_keys,
    make_pepper,
    revoke_key,
)
from dirigent.store.tables import keys
from dirigent.workers.secret import redact
from tests.facts import facts


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIRIGENT_HOME", str(tmp_path / "own"))
    monkeypatch.delenv("DIRIGENT_PEPPER", raising=False)
    return tmp_path / "own"


async def test_a_key_has_the_rights_it_was_made_with(url: str):
    wanted = Caller(
        role="admin",
        label="team ü",
        allow=("a", "b"),
        deny=("c",),
        region="eu",
        budget_day_usd=1.5,
        budget_month_usd=20.0,
        budget_total_usd=100.0,
        requests_per_minute=60,
        concurrency=4,
        retention_days=30,
    )
    async with Store.open(url) as store:
        made = await create_key(store, wanted)
        caller = await authenticate(store, made.text)
    assert caller == made.row.caller
    assert caller.key_id
    assert Caller(**{name: getattr(caller, name) for name in Caller.__struct_fields__ if name != "key_id"}) == wanted
    assert caller.budgets_usd == {"day": 1.5, "month": 20.0, "total": 100.0}


async def test_a_key_is_long_and_random_and_only_its_end_is_kept(url: str):
    async with Store.open(url) as store:
        made, other = await asyncio.gather(create_key(store, Caller()), create_key(store, Caller()))
        assert made.text != other.text
        assert made.text.startswith("dg_")
        assert len(made.text) == 3 + 43  # 32 bytes in base64
        rows = await store.read(lambda connection: [tuple(row) for row in connection.execute(select(keys))])
        trail = [row.details async for row in export(store)]
        assert made.text not in repr((rows, trail, made))
        assert made.text[3:-4] not in repr((rows, trail, made))
        assert made.text[-4:] in [row.last4 for row in await list_keys(store)]


async def test_a_key_that_slips_into_a_text_is_redacted(url: str):
    async with Store.open(url) as store:
        made = await create_key(store, Caller())
    assert redact(f"they sent {made.text}.") == "they sent ***."


async def test_whatever_is_no_key_opens_nothing(url: str):
    async with Store.open(url) as store:
        text = (await create_key(store, Caller())).text
        almost = text[:-1] + ("A" if text[-1] != "A" else "B")
        for wrong in ("", "dg_", almost, text + " ", text.upper(), text[3:], "x" * 100_000, "\ud83d\0'; --"):
            assert await authenticate(store, wrong) is None, wrong[:40]


async def test_an_unknown_key_and_one_that_is_almost_right_cost_the_same_work(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    async with Store.open(url) as store:
        text = (await create_key(store, Caller())).text
        reads = []
        read = store.read

        async def counted(query):
            reads.append(query)
            return await read(query)

        monkeypatch.setattr(store, "read", counted)
        for wrong in ("dg_" + "x" * 43, text[:-1] + "~", "nonsense"):
            reads.clear()
            await authenticate(store, wrong)
            await authenticate(store, wrong)
            assert len(reads) == 2  # never remembered, so guesses take no shortcut and fill no memory


async def test_a_known_key_is_looked_up_once_for_many_requests(url: str, monkeypatch: pytest.MonkeyPatch):
    async with Store.open(url) as store:
        text = (await create_key(store, Caller())).text
        caller = await authenticate(store, text)

        async def never(query):
            raise AssertionError("asked the store again")

        monkeypatch.setattr(store, "read", never)
        assert [await authenticate(store, text) for _ in range(3)] == [caller] * 3


async def test_a_key_revoked_elsewhere_opens_nothing_within_a_second(url: str):
    async with Store.open(url) as here, Store.open(url) as elsewhere:
        made = await create_key(here, Caller())
        assert await authenticate(here, made.text) is not None
        await revoke_key(elsewhere, made.row.caller.key_id)
        revoked_at = time.monotonic()
        assert await authenticate(elsewhere, made.text) is None
        while await authenticate(here, made.text) is not None:
            assert time.monotonic() - revoked_at <= 1.0
            await asyncio.sleep(0.02)


async def test_a_key_expires_on_time_also_where_it_is_remembered(url: str, monkeypatch: pytest.MonkeyPatch):
    end = datetime.now(UTC) + timedelta(hours=1)
    async with Store.open(url) as store:
        text = (await create_key(store, Caller(), expires_at=end)).text
        assert await authenticate(store, text) is not None
        monkeypatch.setattr("dirigent.store.keys.now", lambda: end)
        assert await authenticate(store, text) is None


async def test_a_store_has_keys_from_the_first_one_on_even_when_all_are_revoked(url: str):
    async with Store.open(url) as store:
        made = await create_key(store, Caller())
        await revoke_key(store, made.row.caller.key_id)
    async with Store.open(url) as store:
        assert await any_keys(store)


async def test_a_first_key_made_elsewhere_is_noticed_within_a_second(url: str):
    async with Store.open(url) as here, Store.open(url) as elsewhere:
        assert not await any_keys(here)
        await create_key(elsewhere, Caller())
        made_at = time.monotonic()
        while not await any_keys(here):
            assert time.monotonic() - made_at <= 1.0
            await asyncio.sleep(0.02)


async def test_a_key_is_revoked_by_the_beginning_of_its_id_and_only_once(url: str):
    async with Store.open(url) as store:
        made = await create_key(store, Caller(label="gone"))
        first = await revoke_key(store, made.row.caller.key_id[:12], actor="someone")
        assert first.revoked_at is not None
        assert await revoke_key(store, made.row.caller.key_id) == first
        trail = [(row.actor, row.action) async for row in export(store)]
        assert trail == [("cli", "key.create"), ("someone", "key.revoke")]


@pytest.mark.parametrize("id", ["", "zzzz", "%", "_"])
async def test_revoking_a_missing_key_is_refused(url: str, id: str):
    async with Store.open(url) as store:
        await create_key(store, Caller())
        with pytest.raises(StoreError, match=facts("dirigent keys list")):
            await revoke_key(store, id)


async def test_an_ambiguous_beginning_lists_the_keys(url: str, monkeypatch: pytest.MonkeyPatch):
    ids = iter(["ab01", "ab02"])
    monkeypatch.setattr("dirigent.store.keys.secrets.token_hex", lambda _bytes: next(ids))
    monkeypatch.setenv("DIRIGENT_PEPPER", "p" * 32)
    async with Store.open(url) as store:
        await create_key(store, Caller())
        await create_key(store, Caller())
        with pytest.raises(StoreError, match=facts("ab ab01 ab02")):
            await revoke_key(store, "ab")


@pytest.mark.parametrize(
    ("caller", "said"),
    [
        (Caller(role="boss"), "boss inference admin"),  # type: ignore[arg-type]
        (Caller(budget_day_usd=-1), "-1"),
        (Caller(budget_total_usd=float("nan")), "nan"),
        (Caller(budget_month_usd=float("inf")), "inf"),
        (Caller(requests_per_minute=0), "requests_per_minute 1 0"),
        (Caller(concurrency=-2), "concurrency 1 -2"),
        (Caller(retention_days=1_000_000), "retention_days 36,500 1,000,000"),
        (Caller(allow=("a", "b"), deny=("b",)), "b"),
    ],
)
async def test_bounds_that_make_no_sense_are_refused(url: str, caller: Caller, said: str):
    async with Store.open(url) as store:
        with pytest.raises(ConfigError, match=facts(said)):
            await create_key(store, caller)
        assert await list_keys(store) == []


async def test_a_key_that_has_expired_before_it_is_made_is_refused(tmp_path: Path):
    async with Store.open(tmp_path / "dirigent.db") as store:
        with pytest.raises(ConfigError, match=facts("2020-01-01T00:00:00.000000Z")):
            await create_key(store, Caller(), expires_at=datetime(2020, 1, 1, tzinfo=UTC))


def test_the_pepper_is_made_once_and_for_its_owner_alone(own_home: Path):
    assert find_pepper() is None
    with ThreadPoolExecutor(8) as threads:
        made = {pepper.id for pepper in threads.map(lambda _: make_pepper(), range(8))}
    assert len(made) == 1
    assert [(file.name, oct(file.stat().st_mode & 0o777)) for file in own_home.iterdir()] == [("pepper", "0o600")]


def test_a_pepper_that_others_may_read_is_refused(own_home: Path):
    make_pepper()
    (own_home / "pepper").chmod(0o644)
    with pytest.raises(ConfigError, match=facts("chmod 600 pepper")):
        find_pepper()


def test_a_pepper_that_cannot_be_kept_names_the_way_out(own_home: Path):
    own_home.write_text("no folder")
    with pytest.raises(ConfigError, match="pepper"):
        make_pepper()


def test_a_short_pepper_is_refused(own_home: Path):
    with pytest.raises(ConfigError, match=facts("DIRIGENT_PEPPER 6 32")):
        find_pepper({"DIRIGENT_PEPPER": "secret"})
    make_pepper()
    (own_home / "pepper").write_text("cut")
    with pytest.raises(ConfigError, match=facts("pepper")):
        find_pepper()


async def test_keys_of_another_pepper_open_nothing_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pepper_in: Callable[[str], None]
):
    path = tmp_path / "dirigent.db"
    async with Store.open(path) as store:
        made = await create_key(store, Caller())
        assert await keys_of_another_pepper(store) == []
    pepper_in("x" * 40)
    async with Store.open(path) as store:
        assert await authenticate(store, made.text) is None
        assert await keys_of_another_pepper(store) == [made.row]


@pytest.fixture
def pepper_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda value: monkeypatch.setenv("DIRIGENT_PEPPER", value)


async def test_a_store_without_its_pepper_is_refused_by_name(tmp_path: Path, own_home: Path):
    path = tmp_path / "dirigent.db"
    async with Store.open(path) as store:
        made = await create_key(store, Caller())
    (own_home / "pepper").unlink()
    async with Store.open(path) as store:
        with pytest.raises(ConfigError, match=facts("DIRIGENT_PEPPER dirigent keys create")):
            await authenticate(store, made.text)


async def test_simultaneous_callers_ask_the_store_once_and_share_its_failure(url: str, monkeypatch: pytest.MonkeyPatch):
    async with Store.open(url) as store:
        made = await create_key(store, Caller())
        reads = 0
        plain = store.read

        async def counted(query: Callable[..., object]) -> object:
            nonlocal reads
            reads += 1
            await asyncio.sleep(0)
            if reads > 2:
                raise StoreError("it is gone")
            return await plain(query)

        monkeypatch.setattr(store, "read", counted)
        found = await asyncio.gather(*(authenticate(store, made.text) for _ in range(50)))
        assert {caller.key_id for caller in found if caller} == {made.row.caller.key_id}
        assert await asyncio.gather(*(any_keys(store) for _ in range(50))) == [True] * 50
        assert reads == 2
        monkeypatch.setattr("dirigent.store.keys.REMEMBERED_S", -1.0)
        await revoke_key(store, made.row.caller.key_id)
        failed = await asyncio.gather(*(authenticate(store, made.text) for _ in range(50)), return_exceptions=True)
        assert {str(error) for error in failed} == {"it is gone"}
        assert reads == 3
