"""The checker notices every kind of disagreement: each test makes one, in journals that agree but for it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from dirigent.limits import Limits
from dirigent.messages import Attempt, Message, Usage
from dirigent.plan.plan import Plan, Step
from dirigent.run.trace import Round, StepRecord, Trace
from tests.torture.__main__ import every_row, main
from tests.torture.harness import Result, Row
from tests.torture.journals import AttemptRow, Book, Sent, _read_whole, _streamed, disagreements
from tests.torture.upstream import Called, answer_of, ask_of, marker_of, usage_of

MARKER = marker_of(3)
COST_NUSD = 23 * 1000 + 12 * 3000


def sent(**changes: Any) -> Sent:
    made = Sent(MARKER, 0.0, 1.0, "answer", status=200, text=answer_of(MARKER), trace_id="r1")
    return msgspec.structs.replace(made, **changes)


def called(**changes: Any) -> Called:
    usage = usage_of(MARKER)
    made = Called(MARKER, "a", None, False, 0.1, 0.2, False, True, usage.input_tokens, usage.output_tokens)
    return msgspec.structs.replace(made, **changes)


def attempt(**changes: Any) -> Attempt:
    made = Attempt("a", 0.1, usage=Usage(23, 12), cost_usd=COST_NUSD / 1e9)
    return msgspec.structs.replace(made, **changes)


def trace(*attempts: Attempt, **changes: Any) -> Trace:
    step = StepRecord(0, "a", "answer", attempts=attempts)
    made = Trace(
        id="r1",
        created_at="2026-01-01T00:00:00.000Z",
        question=(Message("user", ask_of(MARKER)),),
        pool=(),
        limits=Limits(),
        planner="single",
        rounds=(Round((), Plan((Step("a", "answer"),)), (step,)),),
        answer=answer_of(MARKER),
    )
    return msgspec.structs.replace(made, **changes)


def book(*traces: Trace, rows: tuple[AttemptRow, ...] = (AttemptRow("r1", "a", "settled", COST_NUSD, 12),)) -> Book:
    by_run: dict[str, list[AttemptRow]] = {}
    for row in rows:
        by_run.setdefault(row.run_id, []).append(row)
    return Book({trace.id: trace for trace in traces}, by_run)


def test_journals_that_agree_raise_no_objection():
    assert disagreements([sent()], book(trace(attempt())), [called()]) == []


@pytest.mark.parametrize(
    ("found", "letter"),
    [
        (disagreements([sent()], book(), []), "a"),
        (disagreements([sent(text="other")], book(trace(attempt())), [called()]), "a"),
        (disagreements([sent()], book(trace(attempt(), status="cancelled")), [called()]), "a"),
        (disagreements([sent()], book(trace(attempt())), [called(), called()]), "b"),
        (disagreements([sent()], book(trace(attempt())), []), "b"),
        (disagreements([sent()], book(trace(attempt()), rows=()), [called()]), "b"),
        (disagreements([sent()], book(trace(attempt(cost_usd=1.0))), [called()]), "c"),
        (disagreements([sent()], book(trace(attempt())), [called(output_tokens=13)]), "c"),
        (disagreements([], book(rows=(AttemptRow("r9", "a", "open", 0, 0),)), []), "d"),
    ],
    ids=[
        "an answer without a trace",
        "another text",
        "answered, kept as cancelled",
        "a call without a row",
        "a row without a call",
        "no row at all",
        "trace and ledger differ",
        "the stub used more",
        "an open reservation",
    ],
)
def test_a_disagreement_is_reported_with_its_letter(found, letter):
    assert any(said.startswith(f"{letter}:") for said in found), found


def test_a_call_that_never_arrived_needs_an_error_on_the_trace():
    rows = (AttemptRow("r1", "a", "settled", 0, 0), AttemptRow("r1", "a", "settled", COST_NUSD, 12))
    refused = attempt(usage=Usage(), cost_usd=0.0, error="refused")
    assert disagreements([sent()], book(trace(refused, attempt()), rows=rows), [called()]) == []
    unsaid = attempt(usage=Usage(), cost_usd=0.0)
    assert disagreements([sent()], book(trace(unsaid, attempt()), rows=rows), [called()]) != []


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ('data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n', "answer"),
        ('data: {"choices":[{"delta":{"content":"a"}}]}\n\n', "cut"),
        ('data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"error":{"code":"answer_cut"}}\n\n', "error"),
        ('data: {"error":{"code":"answer_cut"}}\n\ndata: [DONE]\n\n', "cut"),
        (": keep-alive\n\n", "cut"),
    ],
    ids=["whole", "without its end", "an error event", "an error event and then DONE", "nothing"],
)
def test_a_stream_is_an_answer_only_with_its_end_and_without_an_error(text, end):
    assert _streamed(200, text)[0] == end


def test_a_whole_reply_is_an_answer_or_an_error():
    assert _read_whole(200, '{"choices":[{"message":{"content":"a"}}]}') == ("answer", "a", "")
    assert _read_whole(503, '{"error":{"code":"worker_failed"}}') == ("error", "", "worker_failed")


@pytest.mark.parametrize(
    ("result", "status"),
    [(Result(5, 5), 0), (Result(4, 5), 1), (Result(5, 5, ("d: one is open",)), 1)],
    ids=["reached", "short", "a fault"],
)
def test_the_command_prints_n_of_n_and_exits_by_it(result, status, monkeypatch, capsys):
    async def run(count: int, seed: int) -> Result:
        assert (count, seed) == (50, 9)
        return result

    row = Row("X1", "a goal", 1000, 50, run)
    monkeypatch.setattr("tests.torture.__main__.every_row", lambda: iter([row]))
    monkeypatch.setattr("sys.argv", ["torture", "X1", "--seed", "9"])
    assert main() == status
    assert f"{result.done} of 5" in capsys.readouterr().out


def test_a_broken_row_is_reported_and_the_next_one_runs(monkeypatch, capsys):
    async def breaks(count: int, seed: int) -> Result:
        raise RuntimeError("no server")

    async def runs(count: int, seed: int) -> Result:
        return Result(count, count)

    rows = [Row("X1", "a goal", 9, 5, breaks), Row("X2", "a goal", 9, 5, runs)]
    monkeypatch.setattr("tests.torture.__main__.every_row", lambda: iter(rows))
    monkeypatch.setattr("sys.argv", ["torture"])
    assert main() == 1
    said = capsys.readouterr().out
    assert "0 of 5" in said
    assert "no server" in said
    assert "5 of 5" in said


def test_rows_after_a_waiting_row_run_beside_it(monkeypatch, capsys):
    over = asyncio.Event()

    async def waits(count: int, seed: int) -> Result:
        await asyncio.wait_for(over.wait(), 10)
        return Result(count, count)

    async def works(count: int, seed: int) -> Result:
        over.set()
        return Result(count, count)

    rows = [Row("X1", "a goal", 9, 5, waits, waits=True), Row("X2", "a goal", 9, 5, works)]
    monkeypatch.setattr("tests.torture.__main__.every_row", lambda: iter(rows))
    monkeypatch.setattr("sys.argv", ["torture"])
    assert main() == 0
    assert [line[:2] for line in capsys.readouterr().out.splitlines()] == ["X2", "X1"]


def test_every_row_of_the_suite_has_a_name_of_its_own():
    names = [row.name for row in every_row()]
    assert len(names) == len(set(names))


def test_a_row_that_is_not_there_is_refused_by_name(monkeypatch, capsys):
    monkeypatch.setattr("tests.torture.__main__.every_row", lambda: iter([]))
    monkeypatch.setattr("sys.argv", ["torture", "Z9"])
    assert main() == 2
    assert "Z9" in capsys.readouterr().err
