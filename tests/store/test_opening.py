"""Opening a store: its place, its permissions, its version, and its faults."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, column, insert, table, text

from dirigent.errors import StoreError
from dirigent.limits import Quote
from dirigent.store import Store
from dirigent.store.engine import open_engine, parse_url, writing
from dirigent.store.idempotency import Claimed, Kept, claim
from dirigent.store.keys import Caller
from dirigent.store.ledger import StoreLedger
from dirigent.store.retention import forget
from dirigent.store.tables import REVISIONS, VERSION_TABLE, idempotency, metadata, now, traces, utc_text
from dirigent.store.traces import run_keys, to_row
from tests.facts import facts
from tests.store.samples import a_trace


async def test_the_migrations_lead_to_the_tables_that_the_code_queries(url: str):
    def differences(connection):
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_server_default": True}
        )
        return compare_metadata(context, metadata)

    async with Store.open(url) as store:
        assert await store.read(differences) == []


def test_the_revisions_in_the_code_are_those_of_the_migrations():
    config = Config()
    config.set_main_option("script_location", "dirigent.store:migrations")
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    assert tuple(script.revision for script in reversed(list(scripts.walk_revisions()))) == REVISIONS


async def test_traces_from_before_they_were_kept_as_a_keys_go_on_being_their_payers(url: str):
    engine = open_engine(url, wait_s=5)
    row = to_row(a_trace("7f3a"))
    del row["key_id"]
    with writing(engine).begin() as connection:
        migrate(connection, to="0003")
        connection.execute(insert(table("traces", *(column(name) for name in row))), row)
    engine.dispose()
    async with Store.open(url) as store:
        assert await store.get("7f3a") == a_trace("7f3a")
        assert await run_keys(store, "7f3a") == frozenset()
        ledger = StoreLedger(store, caller=Caller("k"), run_id="7f3a")
        ledger.settle(await ledger.reserve(Quote("w", 0.01, 0.0, 10)), cost_usd=0.01, output_tokens=1)
        assert await run_keys(store, "7f3a") == {"k"}


async def test_a_reply_that_was_kept_before_runs_took_theirs_along_is_given_again_and_goes_with_its_run(url: str):
    engine = open_engine(url, wait_s=5)
    row = to_row(a_trace("7f3a"))
    reply = {"key_id": "k", "name": "n", "digest": "d", "owner": "o", "created_at": utc_text(now()), "run_id": "7f3a"}
    with writing(engine).begin() as connection:
        migrate(connection, to="0004")
        connection.execute(insert(traces), row)
        connection.execute(insert(idempotency), reply | {"status": 200, "headers": "[]", "body": b"hi"})
    engine.dispose()
    asked = {"key_id": "k", "name": "n", "digest": "d", "longest_s": 60.0}
    async with Store.open(url) as store:
        assert await claim(store, **asked) == Kept(200, (), b"hi", "7f3a")
        await forget(store, "7f3a", actor="cli")
        assert isinstance(await claim(store, **asked), Claimed)


def migrate(connection: Connection, *, to: str) -> None:
    config = Config()
    config.set_main_option("script_location", "dirigent.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, to)


async def test_a_store_written_by_a_newer_version_is_refused_untouched(url: str):
    async with Store.open(url) as store:
        newer = text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        await store.write(lambda connection, _: connection.execute(newer), prepare=lambda: None)
    with pytest.raises(StoreError, match=facts("9999 pip install --upgrade")):
        async with Store.open(url):
            pass


def test_processes_that_make_the_same_store_at_once_all_succeed(url: str):
    openers = [subprocess.Popen([sys.executable, "-c", OPENER, url, str(n)]) for n in range(4)]
    assert [opener.wait(timeout=60) for opener in openers] == [0, 0, 0, 0]

    async def ids() -> list[str]:
        async with Store.open(url) as store:
            return sorted([row.id for row in await store.list()])

    assert asyncio.run(ids()) == ["0", "1", "2", "3"]


OPENER = """
import asyncio, sys
from dirigent.store import Store
from tests.store.samples import a_trace

async def main():
    async with Store.open(sys.argv[1]) as store:
        await store.save(a_trace(sys.argv[2]))

asyncio.run(main())
"""


def test_opening_a_store_that_is_up_to_date_does_not_import_alembic(tmp_path: Path):
    path = str(tmp_path / "dirigent.db")
    subprocess.run([sys.executable, "-c", OPENER, path, "first"], check=True, timeout=60)
    code = OPENER + "\nassert 'alembic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, path, "second"], check=True, timeout=60)


async def test_the_file_and_its_folder_belong_to_their_owner_alone(tmp_path: Path):
    path = tmp_path / "home" / "dirigent.db"
    async with Store.open(path) as store:
        await store.save(a_trace())
        modes = {file.name: oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir()}
        assert modes == {"dirigent.db": "0o600", "dirigent.db-wal": "0o600", "dirigent.db-shm": "0o600"}
        assert oct(path.parent.stat().st_mode & 0o777) == "0o700"
        assert store.where == str(path)


async def test_readers_and_the_writer_do_not_wait_for_one_another(tmp_path: Path):
    async with Store.open(tmp_path / "dirigent.db") as store:
        pragma = "PRAGMA journal_mode"
        assert await store.read(lambda connection: connection.exec_driver_sql(pragma).scalar()) == "wal"


async def test_a_folder_that_cannot_be_made_is_named_with_the_setting_that_moves_it(tmp_path: Path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match=facts("file/dirigent.db DIRIGENT_HOME")):
        async with Store.open(tmp_path / "file" / "dirigent.db"):
            pass


async def test_a_file_that_is_no_store_is_left_alone(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("buy milk " * 500)
    with pytest.raises(StoreError, match=facts("notes.txt")):
        async with Store.open(path):
            pass
    assert path.read_text() == "buy milk " * 500


async def test_the_error_for_a_damaged_store_names_the_rescue_command(tmp_path: Path):
    path = tmp_path / "dirigent.db"
    async with Store.open(path) as store:
        await store.save(a_trace())
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xee" * (len(whole) - 4096))
    with pytest.raises(StoreError, match=facts("dirigent.db sqlite3 .recover")):
        async with Store.open(path) as store:
            await store.list()


async def test_a_full_disk_costs_the_save_not_the_store(tmp_path: Path):
    async with Store.open(tmp_path / "dirigent.db") as store:
        await store.save(a_trace("before"))
        await _limit_pages(store, "1")  # SQLite takes it as: no more than there are
        with pytest.raises(StoreError, match=facts("dirigent.db DIRIGENT_HOME")):
            await store.save(a_trace("big", question="".join(chr(33 + n * n % 997) for n in range(50_000))))
        await _limit_pages(store, "100000")
        await store.save(a_trace("after"))
        assert sorted([row.id for row in await store.list()]) == ["after", "before"]


async def _limit_pages(store: Store, pages: str) -> None:
    """A connection's own setting, and there are two that write: the thread's, and the one for commits on the spot."""
    pragma = f"PRAGMA max_page_count={pages}"
    await store.write(lambda connection, _: connection.exec_driver_sql(pragma).scalar(), prepare=lambda: None)
    at_once = store._writer._at_once
    assert at_once is not None
    (at_once._open or at_once._connect())[1].execute(pragma)


async def test_a_server_that_is_not_there_is_named_without_its_password():
    with pytest.raises(StoreError, match=facts("postgresql+psycopg://me:***@127.0.0.1:1/traces")) as caught:
        async with Store.open("postgresql://me:hidden@127.0.0.1:1/traces"):
            pass
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://me:hidden@host/db", "mysql"),
        ("postgresql://me:hidden@host:port/db", "postgresql://user@host/db"),
        (":memory:", ":memory:"),
        ("sqlite://", "postgresql://"),
        ("", "postgresql://"),
    ],
)
async def test_a_place_that_cannot_hold_a_store_is_refused(url: str, said: str):
    with pytest.raises(StoreError, match=facts(said)) as caught:
        async with Store.open(url):
            pass
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_spelling_of_a_postgresql_url_means_the_same_driver(scheme: str):
    assert parse_url(f"{scheme}://host/db").drivername == "postgresql+psycopg"


def test_a_sqlite_url_is_its_path():
    assert parse_url("sqlite:////var/lib/traces.db").database == "/var/lib/traces.db"
