"""The audit log: every later change to it is found, and named by its place."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest
from sqlalchemy import text

from dirigent.errors import ConfigError, StoreError
from dirigent.store import Store
from dirigent.store.audit import Entry, Head, export, jsonl_of, parse_head, record, verify
from tests.facts import facts, says

TRIGGERS = {
    "sqlite": ["DROP TRIGGER audit_no_update", "DROP TRIGGER audit_no_delete"],
    "postgresql": ["DROP TRIGGER audit_append_only ON audit"],
}


async def fill(store: Store, rows: int = 5) -> None:
    for n in range(rows):
        await record(store, Entry("someone", "thing.do", {"n": n, "why": "ünknown"}))


async def tamper(store: Store, *statements: str) -> None:
    """Changes the tables as a person with access to the database could."""

    def work(connection, _):
        for statement in (*TRIGGERS[connection.dialect.name], *statements):
            connection.execute(text(statement))

    await store.write(work, prepare=lambda: None)


async def test_an_untouched_log_is_whole_and_has_its_head(url: str):
    async with Store.open(url) as store:
        assert (await verify(store)).head == Head(0, "0" * 64)
        await fill(store)
        verdict = await verify(store)
        assert verdict.problem == ""
        rows = [row async for row in export(store)]
        assert verdict.head == Head(5, rows[-1].hash)
        assert [row.number for row in rows] == [1, 2, 3, 4, 5]
        assert [row.previous for row in rows[1:]] == [row.hash for row in rows[:-1]]


@pytest.mark.parametrize("number", [1, 3, 5])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("at", "'2020-01-01T00:00:00.000000Z'"),
        ("actor", "'nobody'"),
        ("action", "'thing.undo'"),
        ("details", "'{}'"),
        ("previous", "'" + "a" * 64 + "'"),
        ("hash", "'" + "b" * 64 + "'"),
    ],
)
async def test_any_changed_field_is_found_at_its_row(tmp_path, number: int, column: str, value: str):
    async with Store.open(tmp_path / "dirigent.db") as store:
        await fill(store)
        await tamper(store, f"UPDATE audit SET {column} = {value} WHERE number = {number}")
        verdict = await verify(store)
        assert says(verdict.problem, f"row {number}")
        assert verdict.head.number == number - 1


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (["DELETE FROM audit WHERE number = 1"], "row 1"),
        (["DELETE FROM audit WHERE number IN (2, 3)"], "row 2 4 1"),
        (["DELETE FROM audit WHERE number = 5"], "4 5"),
        (["DELETE FROM audit"], "0 5"),
        (["DELETE FROM audit_head"], "5 0"),
        (
            [f"UPDATE audit SET number = {b} WHERE number = {a}" for a, b in ((2, 9), (3, 2), (9, 3))],
            "row 2",
        ),
        (
            ["DELETE FROM audit WHERE number = 3"]
            + [f"UPDATE audit SET number = {n - 1} WHERE number = {n}" for n in (4, 5)],
            "row 3",
        ),
    ],
)
async def test_missing_and_reordered_rows_are_found(url: str, statements: list[str], said: str):
    async with Store.open(url) as store:
        await fill(store)
        await tamper(store, *statements)
        assert says((await verify(store)).problem, said)


async def test_a_row_that_was_written_anew_with_its_hash_breaks_the_row_after_it(url: str):
    async with Store.open(url) as store:
        await fill(store)
        forged = await forged_row(store, number=3)
        await tamper(store, f"UPDATE audit SET actor = 'forger', hash = '{forged}' WHERE number = 3")
        assert says((await verify(store)).problem, "row 4 3")


async def forged_row(store: Store, *, number: int) -> str:
    from dirigent.store.audit import _hash

    (row,) = [row async for row in export(store) if row.number == number]
    return _hash(row.number, row.at, "forger", row.action, row.details, row.previous)


async def test_a_log_that_was_forged_as_a_whole_is_found_by_a_head_noted_before(url: str):
    async with Store.open(url) as store:
        await fill(store)
        noted = (await verify(store)).head
        assert (await verify(store, head=noted)).problem == ""
        await tamper(store, "DELETE FROM audit", "DELETE FROM audit_head")
        await fill(store, rows=3)
        assert (await verify(store)).problem == ""
        assert says((await verify(store, head=noted)).problem, "row 5")
        await fill(store, rows=3)
        assert says((await verify(store, head=noted)).problem, "row 5")


@pytest.mark.parametrize("statement", ["UPDATE audit SET actor = 'x'", "DELETE FROM audit"])
async def test_the_database_itself_refuses_to_change_rows(url: str, statement: str):
    async with Store.open(url) as store:
        await fill(store, rows=2)
        with pytest.raises(StoreError, match="append-only"):
            await store.write(lambda connection, _: connection.execute(text(statement)), prepare=lambda: None)
        assert (await verify(store)).problem == ""


async def test_an_export_is_one_line_of_ascii_a_row_whatever_was_written(url: str):
    hostile = 'a\nb\r\x1b[2J\x7f\x85\u2028\u202e"\\\0\ud83d'
    async with Store.open(url) as store:
        await record(store, Entry(hostile, "key.create", {"label": hostile, "key": "dg_" + "x" * 43}))
        (row,) = [row async for row in export(store)]
        assert (await verify(store)).problem == ""
    line = jsonl_of(row)
    assert line.count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in line[:-1])
    told = json.loads(line)
    assert told["details"] == {"label": hostile, "key": "***"}
    assert told["actor"].isprintable()


async def test_an_export_holds_every_row_of_a_long_log(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dirigent.store.audit.PAGE", 4)
    async with Store.open(url) as store:
        await asyncio.gather(*(record(store, Entry("a", "b", {"n": n})) for n in range(12)))
        assert [row.number async for row in export(store)] == list(range(1, 13))
        assert (await verify(store)).problem == ""


def test_processes_that_write_at_once_make_one_chain(url: str):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, url, str(n)]) for n in range(3)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]

    async def head() -> tuple[int, str]:
        async with Store.open(url) as store:
            verdict = await verify(store)
            return verdict.head.number, verdict.problem

    assert asyncio.run(head()) == (60, "")


WRITER = """
import asyncio, sys
from dirigent.store import Store
from dirigent.store.audit import Entry, record

async def main():
    async with Store.open(sys.argv[1], wait_s=30) as store:
        for _ in range(20):
            await record(store, Entry(sys.argv[2], "thing.do"))

asyncio.run(main())
"""


@pytest.mark.parametrize("wrong", ["", "12", "12:abc", "x:" + "a" * 64])
def test_an_invalid_head_is_refused(wrong: str):
    with pytest.raises(ConfigError, match=facts("audit verify")):
        parse_head(wrong)


def test_a_printed_head_is_read_back():
    head = Head(12, "a" * 64)
    assert parse_head(str(head)) == head
