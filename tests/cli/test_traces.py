"""`dirigent traces`: stored runs can be found, drawn, exported, replayed and deleted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import Connection, insert, update

from dirigent.run.trace import Trace
from dirigent.store import Store
from dirigent.store.process_id import own_name
from dirigent.store.tables import feedback, idempotency, now, run_states, traces, utc_text
from tests.cli.conftest import POOL, Run
from tests.facts import says

pytestmark = pytest.mark.usefixtures("pool_file")


@pytest.fixture
def kept(run: Run, pool_file: Path) -> str:
    """The id of a stored run."""
    id: str = run("ask", "what is it?", "--json").object["trace_id"]
    return id


def test_list_shows_the_newest_runs(run: Run, kept: str) -> None:
    ran = run("traces", "list")
    assert kept[:8] in ran.out
    assert "what is it?" in ran.out
    assert run("traces", "list", "--json").object["traces"][0]["id"] == kept


def test_list_narrows_by_status_and_words(run: Run, kept: str) -> None:
    assert run("traces", "list", "--status", "failed", "--json").object["traces"] == []
    assert len(run("traces", "list", "--search", "what is", "--json").object["traces"]) == 1
    ran = run("traces", "list", "--status", "fail")
    assert ran.code == 2
    assert says(ran.err, "failed")


def test_more_runs_than_a_store_can_count_are_refused(run: Run) -> None:
    ran = run("traces", "list", "--limit", "9" * 20)
    assert (ran.code, ran.out) == (2, "")


def test_an_empty_store_names_the_next_command(run: Run) -> None:
    ran = run("traces", "list")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.strip()
    assert run("traces", "show").code == 1


def test_show_draws_a_timeline_or_a_tree_by_any_beginning_of_the_id(run: Run, kept: str) -> None:
    assert '"say it" → "it is four"' in run("traces", "show", kept[:5]).out
    assert "└─ 0 finder" in run("traces", "show", kept[:5], "--style", "tree").out
    assert run("traces", "show", kept, "--json").object["id"] == kept


def test_the_newest_run_is_the_one_shown_and_replayed_by_default(run: Run, kept: str) -> None:
    newest = run("ask", "and then?", "--json").object["trace_id"]
    assert run("traces", "show", "--json").object["id"] == newest
    assert run("traces", "replay", "--json").object["replays"] == newest


def test_a_fork_asks_from_one_step_on_and_reports_the_kept_steps(run: Run, kept: str) -> None:
    old = run("traces", "show", kept, "--json").object["rounds"][0]["steps"]
    last = len(old) - 1
    ran = run("traces", "fork", kept[:6], "--step", str(last), "--subtask", "say it again", "--json")
    assert ran.code == 0
    assert (ran.object["forks"], ran.object["kept"]) == (kept, list(range(last)))
    assert ran.object["plan"][last]["subtask"] == "say it again"
    assert run("traces", "list", "--json").object["traces"][0]["id"] == ran.object["trace_id"]
    spoken = run("traces", "fork", kept, "--step", str(last))
    assert says(spoken.err, f"forked {kept[:8]} at step {last}")


def test_the_error_for_an_impossible_fork_names_the_reason(run: Run, kept: str) -> None:
    assert says(run("traces", "fork", kept, "--step", "9").err, "has no step 9")
    assert says(run("traces", "fork", kept, "--step", "0", "--access", "x").err, "no list of steps")
    assert says(run("traces", "fork", kept, "--step", "0", "--worker", "nobody").err, "no worker is called")


def test_a_file_that_cannot_be_written_is_exit_2(run: Run, kept: str) -> None:
    ran = run("traces", "export", "-o", "no/such/file.jsonl")
    assert ran.code == 2
    assert "no/such/file.jsonl" in ran.err


def test_a_wrong_status_leaves_the_file_that_is_there(run: Run, kept: str, own_place: Path) -> None:
    (own_place / "out.jsonl").write_text("kept")
    assert run("traces", "export", "-o", "out.jsonl", "--status", "dun").code == 2
    assert (own_place / "out.jsonl").read_text() == "kept"


def test_an_unknown_id_is_exit_1(run: Run, kept: str) -> None:
    ran = run("traces", "show", "zzzz")
    assert (ran.code, ran.out) == (1, "")
    assert says(ran.err, "zzzz")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full: it stands for a disk that is full")
@pytest.mark.parametrize("what", ["traces", "audit"])
def test_an_export_to_a_full_disk_is_an_error_that_names_the_file(run: Run, kept: str, what: str) -> None:
    if what == "audit":
        run("traces", "delete", kept)  # which the log tells
    ran = run(what, "export", "-o", "/dev/full")
    assert (ran.code, ran.out) == (1, "")
    assert says(ran.err, "error: /dev/full No space left on device")
    assert ran.err.count("\n") == 1


def test_export_writes_json_lines_to_stdout_or_a_file(run: Run, kept: str, own_place: Path) -> None:
    ran = run("traces", "export", "--format", "jsonl")
    (line,) = [json.loads(line) for line in ran.out.splitlines()]
    assert (line["id"], line["feedback"]) == (kept, [])
    assert msgspec.convert(line, Trace).id == kept, "still a trace for programs that read one"
    assert says(ran.err, "1")
    assert run("traces", "export", "-o", "out.jsonl").out == ""
    assert json.loads((own_place / "out.jsonl").read_text())["answer"] == "it is four"


def test_replay_reproduces_the_answer_without_the_pool(run: Run, kept: str, pool_file: Path) -> None:
    pool_file.write_text("")
    ran = run("traces", "replay", kept)
    assert (ran.code, ran.out) == (0, "it is four\n")
    assert kept[:8] in ran.err
    output = run("traces", "replay", kept, "--json").object
    assert output["same_answer"] is True
    assert [step["worker"] for step in output["plan"]] == ["finder", "sayer"]
    assert output["cost_usd"] == 0


def test_live_replay_asks_the_workers_of_today(run: Run, kept: str, pool_file: Path) -> None:
    pool_file.write_text(POOL.replace("it is four", "it is five"))
    ran = run("traces", "replay", kept, "--live")
    assert (ran.code, ran.out) == (0, "it is five\n")
    assert kept[:8] in ran.err
    assert len(run("traces", "list", "--json").object["traces"]) == 2
    assert run("traces", "replay", kept, "--live", "--json").object["same_answer"] is False


def test_live_replay_of_a_worker_that_is_gone_names_it(run: Run, kept: str, pool_file: Path) -> None:
    pool_file.write_text('[[worker]]\nname = "other"\nkind = "scripted"\nreplies = ["x"]')
    ran = run("traces", "replay", kept, "--live")
    assert ran.code == 2
    assert "finder" in ran.err


def test_delete_forgets_a_run(run: Run, kept: str) -> None:
    assert run("traces", "delete", kept[:6], "--json").object == {"deleted": kept}
    assert run("traces", "list", "--json").object == {"traces": []}
    assert run("traces", "delete", kept).code == 1
    (row,) = [json.loads(line) for line in run("audit", "export").out.splitlines()]
    assert (row["actor"], row["action"], row["details"]["run_id"]) == ("cli", "trace.delete", kept)
    assert "what is it" not in json.dumps(row)


def test_delete_removes_all_parts_of_a_run_and_refuses_a_running_one(run: Run, kept: str, own_place: Path) -> None:
    def write(work: Callable[[Connection], object]) -> None:
        async def opened() -> None:
            async with Store.open(own_place / "home" / "dirigent.db") as store:
                await store.write(lambda connection, _: work(connection), prepare=lambda: None)

        asyncio.run(opened())

    at = utc_text(now())
    common = {"key_id": "k", "run_id": kept, "created_at": at}
    state = {"state": "running", "owner": own_name(), "updated_at": at, "format": 1, "body": b""}
    write(lambda c: c.execute(insert(feedback), common | {"score": 1.0, "comment": ""}))
    write(lambda c: c.execute(insert(run_states), common | state))
    reply = {"key_id": "k", "name": "n", "digest": "d", "run_id": kept, "created_at": at, "status": 200, "owner": ""}
    write(lambda c: c.execute(insert(idempotency), reply))
    ran = run("traces", "delete", kept)
    assert ran.code == 1
    assert kept in ran.err
    assert len(run("traces", "list", "--json").object["traces"]) == 1
    write(lambda c: c.execute(update(run_states).values(state="waiting", owner="")))
    assert says(run("traces", "delete", kept).err, f"{kept} 3")


def test_a_trace_that_cannot_be_read_can_be_deleted(run: Run, kept: str, own_place: Path) -> None:
    async def spoil() -> None:
        async with Store.open(own_place / "home" / "dirigent.db") as store:
            spoilt = update(traces).values(format=99)
            await store.write(lambda connection, _: connection.execute(spoilt).rowcount, prepare=lambda: None)

    asyncio.run(spoil())
    assert run("traces", "show", kept).code == 1
    assert run("traces", "delete", kept[:6], "--json").object == {"deleted": kept}
