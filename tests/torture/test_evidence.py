"""A secret that a row has left is found in any file; and S5 searches the files that other rows left."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec
import pytest

from dirigent.store import Store
from tests.facts import Saying
from tests.store.samples import a_trace
from tests.torture import evidence
from tests.torture.__main__ import main
from tests.torture.evidence import Left, _plain, found_in, hand_over, keeping, values_of
from tests.torture.harness import Result, Row
from tests.torture.secret_scan import searched

SECRET = "not-a-pattern-that-is-redacted-0123456789"


@pytest.fixture(autouse=True)
def _nothing_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "LEFT", [])
    monkeypatch.setattr(evidence, "KEPT", set())


async def test_a_secret_in_a_trace_is_found_among_the_values_of_the_database(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    async with Store.open(folder / "torture.db") as store:
        await store.save(msgspec.structs.replace(a_trace(), answer=f"the key is {SECRET}"))
    with keeping("F1"):
        await hand_over(folder, store_url=str(folder / "torture.db"), secrets=(SECRET,))
    assert Saying("F1: values") in searched(evidence.LEFT, {"F1"})


def test_compressed_content_of_the_database_is_not_among_its_values() -> None:
    packed = zlib.compress(f"many words, and then {SECRET}".encode() * 50)
    assert SECRET.encode() not in packed
    assert SECRET.encode() in _plain(packed)
    assert _plain(b"as it is") == b"as it is"
    assert _plain(7) == b"7"


@pytest.mark.parametrize("name", ["server.log", "replies", "deep/core"])
def test_a_secret_in_any_file_is_found(tmp_path: Path, name: str) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / name).write_bytes(b"\x00" * 70_000 + SECRET.encode() + b"\xff")
    (tmp_path / "empty").touch()
    assert list(found_in(tmp_path, ["another", SECRET])) == [name]
    assert list(found_in(tmp_path, ["another"])) == []


def test_secrets_of_one_row_are_searched_in_the_evidence_of_every_other(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "server.log").write_text(f"called with {SECRET}")
    lefts = [Left("F1", tmp_path / "a", (SECRET,)), Left("B1", tmp_path / "b", ())]
    assert searched(lefts, {"F1", "B1"}) == [Saying("B1: server.log")]


def test_a_row_without_evidence_is_reported() -> None:
    assert searched([], {"F8"}) == [Saying("F8")]


async def test_no_evidence_is_stored_without_a_row_that_reads_it(tmp_path: Path) -> None:
    await hand_over(tmp_path, store_url=str(tmp_path / "none.db"), secrets=(SECRET,))
    assert evidence.LEFT == []
    assert not (tmp_path / "none.db").exists()


async def test_every_table_has_its_values_read(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "torture.db") as store:
        await store.save(a_trace())
    values = b"".join([of_table async for of_table in values_of(str(tmp_path / "torture.db"))])
    assert a_trace().id.encode() in values


def test_the_scanning_row_runs_last_and_sees_the_evidence_of_parallel_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []

    def row(name: str, **more: bool) -> Row:
        async def run(count: int, seed: int) -> Result:
            order.append(f"{name} of {sorted(evidence.KEPT)}")
            return Result(count, count)

        return Row(name, "a goal", 9, 5, run, **more)

    rows = [row("S5", closes=True), row("F2", waits=True), row("L1"), row("B1")]
    monkeypatch.setattr("tests.torture.__main__.every_row", lambda: iter(rows))
    monkeypatch.setattr("sys.argv", ["torture"])
    assert main() == 0
    assert order[-1] == "S5 of ['B1', 'F2']"
    assert capsys.readouterr().out.splitlines()[-1].startswith("S5")
