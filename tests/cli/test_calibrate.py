"""`dirigent calibrate`: consent, cap, resume after a kill, and its report on the table."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import sys
from pathlib import Path

import pytest

from dirigent.learn.cards import read_cards
from dirigent.learn.table import Table
from tests.cli.conftest import Run
from tests.facts import says
from tests.stub_provider import StubCall, StubProvider

POOL = """\
[[worker]]
name = "four"
kind = "scripted"
replies = ["The answer is 4."]
price = { input = 1, output = 2 }

[[worker]]
name = "five"
kind = "scripted"
replies = ["The answer is 5."]
price = { input = 0, output = 0 }
"""
QUESTIONS = "".join(
    json.dumps({"question": f"What is {i} + {4 - i}?", "answer": "4", "kind": "sums"}) + "\n" for i in range(30)
)


@pytest.fixture(autouse=True)
def pool(own_place: Path) -> Path:
    (own_place / "dirigent.toml").write_text(POOL)
    (own_place / "my.jsonl").write_text(QUESTIONS)
    return own_place


def test_it_writes_a_table_its_cards_and_a_report(run: Run) -> None:
    done = run("calibrate", "--questions", "my.jsonl", "--samples", "1", "--yes", "--out", "t")
    assert done.code == 0
    assert says(done.err, "30 questions 2 workers 1 sample: 60 calls about at most")
    assert says(done.out, "four 100.0% 30")
    assert says(done.out, "five 0.0% 30 free")
    table = Table.load(Path("t"))
    assert len(table.answers) == 60
    assert all(worker.fingerprint for worker in table.workers)
    assert set(read_cards(Path("t"))) == {"four", "five"}
    report = json.loads(Path("t/calibration.json").read_text())
    assert (report["labelled"], report["enough_labels"], report["stopped"]) == (30, True, "")


def test_json_is_one_object(run: Run) -> None:
    done = run("calibrate", "--questions", "my.jsonl", "--samples", "1", "--yes", "--json")
    found = done.object
    assert found["table"] == "table"
    assert found["answers"] == 60
    assert [worker["worker"] for worker in found["workers"]] == ["four", "five"]


def test_nothing_is_asked_without_consent(run: Run) -> None:
    done = run("calibrate", "--questions", "my.jsonl")
    assert done.code == 2
    assert says(done.err, "error: 120 calls --yes")
    assert not Path("table/table.json").exists()


def test_a_second_run_pays_nothing_and_asks_no_worker(run: Run) -> None:
    first = run("calibrate", "--questions", "my.jsonl", "--yes", "--json").object
    again = run("calibrate", "--questions", "my.jsonl", "--json").object  # no --yes: nothing is left to pay
    assert (again["asked"], again["answered"]) == (0, 120)
    assert again["spent_usd"] == first["spent_usd"]


def test_a_limit_draws_the_same_questions_each_time(run: Run) -> None:
    run("calibrate", "--limit", "8", "--yes", "--samples", "1", "--out", "a")
    run("calibrate", "--limit", "8", "--yes", "--samples", "1", "--out", "b")
    assert len(Table.load(Path("a")).questions) == 8
    assert Table.load(Path("a")).questions == Table.load(Path("b")).questions


def test_few_labels_are_said_to_switch_nothing_on(run: Run, own_place: Path) -> None:
    (own_place / "my.jsonl").write_text("".join(QUESTIONS.splitlines(keepends=True)[:20]))
    done = run("calibrate", "--questions", "my.jsonl", "--yes")
    assert says(done.err, "20 questions with a label nothing 25 5 more")


def test_answers_that_were_cut_are_said_to_be(run: Run, own_place: Path) -> None:
    (own_place / "dirigent.toml").write_text(POOL.replace('"The answer is 4."', f'"{"word " * 100}"'))
    done = run("calibrate", "--questions", "my.jsonl", "--samples", "1", "--max-output-tokens", "20", "--yes")
    assert says(done.err, "four: 30 of 30 cut --max-output-tokens")
    assert not says(done.err, "five: cut")


def test_estimates_are_said_to_be_estimates(run: Run, own_place: Path) -> None:
    (own_place / "my.jsonl").write_text('{"question": "What is 2 + 2?", "grader": "number"}\n')
    done = run("calibrate", "--questions", "my.jsonl", "--yes")
    assert says(done.err, "4 answers no label estimate")
    assert says(done.out, "four estimate")


def test_a_cap_needs_a_price_for_every_worker(run: Run, own_place: Path) -> None:
    (own_place / "dirigent.toml").write_text(
        '[[worker]]\nname = "w"\nkind = "openai"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
    )
    done = run("calibrate", "--questions", "my.jsonl", "--yes", "--max-cost", "1")
    assert done.code == 2
    assert says(done.err, "error: --max-cost price w price = { input = 0, output = 0 }")


def test_a_cap_ends_it_with_a_message_and_a_table_of_the_paid_answers(run: Run) -> None:
    done = run(
        "calibrate", "--questions", "my.jsonl", "--yes", "--samples", "1", "--max-output-tokens", "100",
        "--max-cost", "0.0005", "--json",
    )  # fmt: skip
    assert done.code == 1
    assert says(done.err, "stopped: --max-cost")
    assert 0 < done.object["spent_usd"] <= 0.0005
    assert 0 < len(Table.load(Path("table")).answers) < 60


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--set", "huge"), "no set huge builtin --questions"),
        (("--set", "builtin", "--questions", "my.jsonl"), "--questions --set"),
        (("--questions", "my.jsonl", "--judge", "fou"), "'fou' did you mean 'four'"),
        (("--questions", "none.jsonl"), "none.jsonl cannot be read"),
    ],
)
def test_a_wrong_option_is_one_line(run: Run, options: tuple[str, ...], words: str) -> None:
    done = run("calibrate", *options, "--yes")
    assert done.code == 2
    assert says(done.err, f"error: {words}")


def test_a_worker_without_a_key_is_left_out_and_named(run: Run, own_place: Path) -> None:
    (own_place / "dirigent.toml").write_text(
        POOL + '\n[[worker]]\nname = "cloud"\nkind = "openai"\nmodel = "m"\napi_key_env = "NO_SUCH_KEY"\n'
    )
    done = run("calibrate", "--questions", "my.jsonl", "--yes")
    assert done.code == 0
    assert says(done.err, 'left out: "cloud" NO_SUCH_KEY')


def test_no_worker_that_answers_is_an_error(run: Run, own_place: Path) -> None:
    (own_place / "dirigent.toml").write_text(
        '[[worker]]\nname = "w"\nkind = "openai"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\nretries = 0\n'
    )
    done = run("calibrate", "--questions", "my.jsonl", "--yes")
    assert done.code == 2
    assert says(done.err, "error: no worker gave an answer w failed every time 127.0.0.1")


def _config(url: str, *, price: str = "{ input = 10, output = 100 }") -> str:
    return f'[[worker]]\nname = "far"\nkind = "openai"\nmodel = "m"\nbase_url = "{url}"\nprice = {price}\nretries = 0\n'


async def _started(*options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dirigent", "calibrate", "--questions", "my.jsonl", "--yes", "--json", *options,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def _asked(calls: list[StubCall]) -> list[str]:
    return [re.findall(r"What is \d+ \+ -?\d+", call.text)[0] for call in calls]


async def test_after_kill_9_it_continues_and_pays_for_no_answer_twice(own_place: Path) -> None:
    async with StubProvider(lambda call: "The answer is 4.") as stub:
        (own_place / "dirigent.toml").write_text(_config(stub.url("openai")))
        stub.delay_s = 0.05
        process = await _started("--samples", "1", "--concurrency", "3")
        await stub.called(12)
        process.kill()
        await process.communicate()
        journal = own_place / "table" / "calls.jsonl"
        kept = {json.loads(line)["key"] for line in journal.read_text().splitlines() if '"type":"answer"' in line}
        before = len(stub.calls)
        assert 6 <= len(kept) < 30
        stub.delay_s = 0.0
        out, err = await (await _started("--samples", "1", "--concurrency", "3")).communicate()
    report = json.loads(out)
    assert (report["answered"], report["asked"], report["answers"]) == (len(kept), 30 - len(kept), 30)
    assert len(stub.calls) - before == 30 - len(kept)
    # Only calls that were under way when it was killed were made twice; their money counts as spent.
    asked = _asked(stub.calls)
    assert len(set(asked)) == 30
    assert len(asked) - 30 <= 3
    assert (report["lost_usd"] > 0) == (len(asked) > 30), err


async def test_the_cap_holds_on_a_real_wire_and_across_a_kill(own_place: Path) -> None:
    async with StubProvider(lambda call: "The answer is 4.") as stub:
        (own_place / "dirigent.toml").write_text(_config(stub.url("openai")))
        stub.delay_s = 0.03
        options = ("--samples", "2", "--max-output-tokens", "100", "--max-cost", "0.05", "--concurrency", "4")
        process = await _started(*options)
        await stub.called(6)
        process.kill()
        await process.communicate()
        out, _ = await (await _started(*options)).communicate()
    report = json.loads(out)
    assert report["stopped"]
    assert report["spent_usd"] <= 0.05


async def test_ctrl_c_keeps_the_paid_answers(own_place: Path) -> None:
    async with StubProvider(lambda call: "The answer is 4.") as stub:
        (own_place / "dirigent.toml").write_text(_config(stub.url("openai")))
        stub.delay_s = 0.05
        process = await _started("--samples", "1", "--concurrency", "2")
        await stub.called(8)
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
        assert process.returncode == 130
        assert says(err.decode(), "cut: kept table same command")
        stub.delay_s = 0.0
        out, _ = await (await _started("--samples", "1")).communicate()
    report = json.loads(out)
    assert report["answered"] >= 5
    assert report["answers"] == 30
    assert report["lost_usd"] == 0  # calls in flight are settled at their estimate, not lost


def test_pool_list_shows_measured_cards(run: Run, own_place: Path) -> None:
    (own_place / "dirigent.toml").write_text(POOL + '\n[cards]\ntable = "table"\n')
    assert run("calibrate", "--questions", "my.jsonl", "--yes").code == 0  # though the named cards are not there yet
    assert says(run("pool", "list").out, "four measured: 100% right 30 questions")
    workers = run("pool", "list", "--json").object["workers"]
    assert [worker["measured"]["right"]["right"] for worker in workers] == [1.0, 0.0]


def test_judgements_from_a_file_are_bound_once_to_their_runs(run: Run, own_place: Path) -> None:
    traces = [
        run("ask", "What is 2 + 2?", "--planner", "single", "--worker", name, "--json").object["trace_id"]
        for name in ("four", "five", "four")
    ]
    lines = [{"trace_id": traces[0], "label": "4"}, {"trace_id": traces[1], "label": "4"}]
    file = own_place / "judged.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in (*lines, {"trace_id": traces[2], "score": 0.5})))
    assert run("feedback", "import", "judged.jsonl", "--json").object == {"kept": 3, "again": 0, "unknown": 0}
    assert says(run("feedback", "import", "judged.jsonl").err, "0 of 3 3 were judged before")
    assert run("table", "from-traffic", "--out", "t").code == 0
    rows = {(answer.worker, answer.k): (answer.right, answer.source) for answer in Table.load(Path("t")).answers}
    assert rows == {("four", 0): (1.0, "local"), ("five", 0): (0.0, "local"), ("four", 1): (0.5, "local")}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"trace_id": "a"}, 'line 1 "score" "label"'),
        ({"trace_id": "a", "score": 1, "label": "x"}, 'line 1 "score" "label"'),
        ({"trace_id": "a", "score": 2}, 'line 1 "score" 2 from 0 to 1'),
        ({"trace_id": "a", "label": " "}, 'line 1 "label" empty'),
        ({"trace_id": "a", "scor": 1}, "line 1 scor"),
    ],
)
def test_a_faulty_judgement_is_named(run: Run, own_place: Path, line: dict[str, object], words: str) -> None:
    (own_place / "judged.jsonl").write_text(json.dumps(line) + "\n")
    done = run("feedback", "import", "judged.jsonl")
    assert done.code == 2
    assert says(done.err, f"error: judged.jsonl {words}")


def test_a_judgement_of_an_unknown_run_is_named(run: Run, own_place: Path) -> None:
    (own_place / "judged.jsonl").write_text('{"trace_id": "gone", "score": 1}\n{"trace_id": "gone", "label": "4"}\n')
    done = run("feedback", "import", "judged.jsonl")
    assert done.code == 1
    assert says(done.err, "no run 'gone' 0 of 2")


def test_judged_runs_become_a_table(run: Run, own_place: Path) -> None:
    trace = run("ask", "What is 2 + 2?", "--planner", "single", "--worker", "four", "--json").object
    (own_place / "labels.jsonl").write_text(json.dumps({"trace_id": trace["trace_id"], "answer": "4"}) + "\n")
    assert says(run("table", "from-traffic", "--out", "t").err, "error: no run feedback label")
    done = run("table", "from-traffic", "--out", "t", "--labels", "labels.jsonl", "--json")
    assert (done.object["answers"], done.object["graded"], done.object["sources"]) == (1, 1, 1)
    assert Table.load(Path("t")).answers[0].right == 1.0
    assert says(run("table", "from-traffic", "--out", "t", "--labels", "labels.jsonl").err, "error: t --out")


async def _at_a_terminal(reply: str) -> tuple[int | None, str]:
    """The command on a terminal whose user answers its question so: exit code and what the terminal showed."""
    terminal, its_end = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dirigent", "calibrate", "--questions", "my.jsonl", "--samples", "1",
        stdin=its_end, stdout=its_end, stderr=its_end, env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    )  # fmt: skip
    os.close(its_end)
    shown = b""
    answered = False
    while True:
        try:
            shown += await asyncio.to_thread(os.read, terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not answered and b"Start?" in shown:
            os.write(terminal, f"{reply}\n".encode())
            answered = True
    os.close(terminal)
    return await process.wait(), re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", " ", shown.decode())


async def test_on_a_terminal_it_asks_and_no_means_no(own_place: Path) -> None:
    code, shown = await _at_a_terminal("n")
    assert code == 1
    assert says(shown, "60 calls about Start?")
    assert b'"answer"' not in _journal(own_place)


async def test_on_a_terminal_a_bar_shows_questions_and_spending(own_place: Path) -> None:
    code, shown = await _at_a_terminal("")
    assert code == 0
    assert says(shown, "60/60 Ctrl-C next: learn")


def _journal(place: Path) -> bytes:
    return (place / "table" / "calls.jsonl").read_bytes()
