"""A handful of cases of each row about kills, databases and races; and that their checks can fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from dirigent.run.trace import Trace
from tests.store.conftest import POSTGRESQL_FOLDERS
from tests.store.samples import a_trace
from tests.torture import kill_points
from tests.torture.journals import AttemptRow, Book
from tests.torture.kills import POINTS, Told, _unkept, _unlike_rows, f4
from tests.torture.rows_kills import ROWS, f7, f8, f10, f11
from tests.torture.upstream import answer_of, marker_of


async def test_f4_nothing_acknowledged_is_lost_by_a_kill() -> None:
    result = await f4(1, seed=3)
    assert result.reached, result


async def test_f7_a_locked_file_makes_only_requests_wait() -> None:
    result = await f7(3, seed=1)
    assert result.reached, result


@pytest.mark.system
async def test_f8_answers_come_again_after_the_database_was_restarted() -> None:
    if not POSTGRESQL_FOLDERS:
        pytest.skip("postgresql: its server is not installed (make system-deps)")
    result = await f8(1, seed=1)
    assert result.reached, result


async def test_f10_fifty_times_the_same_name_is_one_execution() -> None:
    result = await f10(2, seed=1)
    assert result.reached, result
    assert result.figures["200"] >= 2


async def test_f11_two_hundred_clients_cannot_overspend() -> None:
    result = await f11(1, seed=1)
    assert result.reached, result


def test_every_point_is_killed_at_in_the_smallest_real_run() -> None:
    (row,) = [row for row in ROWS if row.name == "F4"]
    assert row.ci_count >= 2 * len(POINTS), "each point on each store"


def book(trace: Trace, *states: str) -> Book:
    rows = [AttemptRow(trace.id, "alpha", state, 7, 1) for state in states]
    return Book({trace.id: trace}, {trace.id: rows})


def test_a_run_with_two_settled_calls_or_an_open_one_is_noticed() -> None:
    done = a_trace()
    assert _unlike_rows(book(done, "settled")) == []
    assert _unlike_rows(book(done, "lost", "settled")) == []
    assert "2 settled" in _unlike_rows(book(done, "settled", "settled"))[0]
    assert "0 settled" in _unlike_rows(book(done, "lost"))[0]
    assert "open" in _unlike_rows(book(done, "settled", "open"))[0]


def test_an_answer_without_its_trace_is_noticed() -> None:
    marker = marker_of(1)
    trace = msgspec.structs.replace(a_trace(), status="done", answer=answer_of(marker))
    given = Told(marker, {"stream": False}, answers=[(answer_of(marker).encode(), trace.id)])
    assert _unkept([given], book(trace, "settled")) == []
    assert _unkept([given], Book({}, {})) != []
    assert _unkept([given], book(msgspec.structs.replace(trace, answer="another"), "settled")) != []
    wrong = Told(marker, {"stream": False}, answers=[(b"another", trace.id)])
    assert _unkept([wrong], book(trace, "settled")) != []


async def test_a_server_dies_at_its_kill_point_and_not_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    died: list[int] = []
    monkeypatch.setenv("DIRIGENT_HOME", str(tmp_path))
    monkeypatch.setattr("tests.torture.kill_points.os.kill", lambda pid, number: died.append(number))
    kill_points.reached("in-commit")
    await asyncio.to_thread(kill_points.arm, tmp_path, "in-commit", 2)
    kill_points.reached("after-commit")
    kill_points.reached("in-commit")
    assert died == []
    kill_points.reached("in-commit")
    assert died == [9]
    await asyncio.to_thread(kill_points.disarm, tmp_path)
    kill_points.reached("in-commit")
    assert died == [9]
