"""A greedy reply is computed once for equal requests of all planners, and counted for each of them."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dirigent import Scripted
from dirigent.errors import ConfigError, CostError, WorkerError
from dirigent.evals.reply_cache import ENDING, SHARED, Replies, Shared, took_s, weights_digest
from dirigent.evals.tables import times_note
from dirigent.limits import Budget, Limits
from dirigent.messages import Attempt, Delta, Event, Message, Reply, Request, Usage
from dirigent.plan.plan import Plan
from dirigent.run.trace import DraftRecord, Round, StepRecord, Trace
from dirigent.workers.worker import Price
from tests.facts import facts


def greedy(text: str = "Plan this.", **settings: Any) -> Request:
    return Request((Message("user", text),), temperature=0.0, max_output_tokens=64, **settings)


def shared(worker: Scripted, replies: Replies | None = None, *, weights: str = "w") -> Shared:
    return Shared(worker, replies or Replies(), weights=weights)


async def test_the_same_greedy_request_is_written_once_and_counted_for_both() -> None:
    writer = Scripted("a plan", name="conductor", usage=Usage(100, 10), price=Price(1.0, 2.0), delay_s=0.02)
    worker, book = shared(writer), Budget(max_cost_usd=1.0)
    first = await worker.ask(greedy(ledger=book, deadline=1e9, seed=1))
    again = await worker.ask(greedy(ledger=book, deadline=2e9, seed=2))
    assert writer.calls == 1
    assert again == first
    assert again.attempts[0].usage == Usage(100, 10)
    assert again.attempts[0].seconds >= 0.02
    assert not again.attempts[0].cached
    assert book.spent_usd == pytest.approx(2 * 120e-6)
    assert book.spent_tokens == 20


async def test_an_observer_sees_a_shared_reply() -> None:
    worker = shared(Scripted("a plan"))
    await worker.ask(greedy())
    seen: list[Event] = []
    await worker.ask(greedy(), observe=seen.append)
    assert seen == [Delta("a plan")]


async def test_a_planner_without_money_gets_no_reply_that_others_paid() -> None:
    worker = shared(Scripted("a plan", usage=Usage(100, 10), price=Price(1.0, 2.0)))
    await worker.ask(greedy())
    with pytest.raises(CostError, match=facts("scripted")):
        await worker.ask(greedy(ledger=Budget(max_cost_usd=1e-9)))


@pytest.mark.parametrize("temperature", [1.0, 0.1, None])
async def test_a_sampled_worker_is_asked_every_time(temperature: float | None) -> None:
    guesser = Scripted("7", "8")
    worker = shared(guesser)
    request = msgspec.structs.replace(greedy(), temperature=temperature, seed=3)
    assert [(await worker.ask(request)).text for _ in range(2)] == ["7", "8"]


@pytest.mark.parametrize(
    "other",
    [
        greedy("Plan that."),
        greedy(grammar='root ::= "x"'),
        msgspec.structs.replace(greedy(), max_output_tokens=8),
    ],
    ids=["prompt", "grammar", "length"],
)
async def test_another_question_is_another_call(other: Request) -> None:
    writer = Scripted("one", "two")
    worker = shared(writer)
    assert [(await worker.ask(request)).text for request in (greedy(), other)] == ["one", "two"]


async def test_workers_and_weights_are_part_of_the_key() -> None:
    replies = Replies()
    asked = [
        shared(Scripted("one", name="facts"), replies),
        shared(Scripted("two", name="roman"), replies),
        shared(Scripted("three", name="facts"), replies, weights="trained anew"),
    ]
    assert [(await worker.ask(greedy())).text for worker in asked] == ["one", "two", "three"]


async def test_settings_outside_the_request_are_part_of_the_key() -> None:
    replies = Replies()

    async def said(text: str, extra: dict[str, Any] | None) -> str:
        return (await Shared(Scripted(text), replies, weights="w", extra=extra).ask(greedy())).text

    assert await said("as it is", None) == "as it is"
    assert await said("penalised", {"repeat_penalty": 1.3, "top_k": 0}) == "penalised"
    assert await said("not asked", {}) == "as it is"
    assert await said("not asked", {"top_k": 0, "repeat_penalty": 1.3}) == "penalised"


async def test_marks_drawn_anew_make_no_difference_but_the_text_between_them_does() -> None:
    def reads(mark: str, result: str) -> Request:
        return greedy(f"Data:\n<{mark} step 0>\nResult: {result}\n</{mark}>\nDouble it.")

    doubler = Scripted("14", "16")
    worker = shared(doubler)
    said = [(await worker.ask(reads(*what))).text for what in (("0a1b2c3d", "7"), ("ffffffff", "7"), ("0a1b2c3d", "8"))]
    assert said == ["14", "14", "16"]
    assert "<0a1b2c3d step 0>" in doubler.requests[0].messages[0].text  # the worker is shown them as they are


async def test_simultaneous_requests_share_one_call() -> None:
    writer = Scripted("a plan", delay_s=0.01)
    worker = shared(writer)
    replies = await asyncio.gather(*(worker.ask(greedy()) for _ in range(5)))
    assert writer.calls == 1
    assert {reply.text for reply in replies} == {"a plan"}


async def test_a_call_that_failed_is_not_shared_and_the_next_one_asks() -> None:
    writer = Scripted(WorkerError("the server is down"), "a plan", delay_s=0.01)
    worker = shared(writer)
    first, second = await asyncio.gather(worker.ask(greedy()), worker.ask(greedy()), return_exceptions=True)
    assert isinstance(first, WorkerError)
    assert isinstance(second, Reply)
    assert writer.calls == 2


async def test_a_cancelled_request_leaves_the_call_to_the_next() -> None:
    asked = asyncio.Event()

    async def slow_at_first(request: Request) -> str:
        if not asked.is_set():
            asked.set()
            await asyncio.Event().wait()
        return "a plan"

    worker = shared(Scripted(slow_at_first))
    gives_up = asyncio.create_task(worker.ask(greedy()))
    waits = asyncio.create_task(worker.ask(greedy()))
    await asked.wait()
    gives_up.cancel()
    assert (await waits).text == "a plan"
    assert gives_up.cancelled()


async def test_a_reply_cut_short_by_the_budget_is_not_shared() -> None:
    cut = Reply("a pl", finish="length", usage=Usage(10, 8))
    writer = Scripted(cut, Reply("a plan", usage=Usage(10, 12)))
    worker = shared(writer)
    await worker.ask(greedy())
    assert (await worker.ask(greedy())).text == "a plan"
    rambling = shared(Scripted(msgspec.structs.replace(cut, usage=Usage(10, 64)), "never asked"))
    assert [(await rambling.ask(greedy())).text for _ in range(2)] == ["a pl", "a pl"]  # all that it was allowed


async def test_stored_replies_are_read_on_resume_and_only_then(tmp_path: Path) -> None:
    outcomes = tmp_path / "gym.jsonl"
    file = tmp_path / f"gym{ENDING}"
    replies = Replies()
    with replies.stored_beside(outcomes, resume=False):
        assert not file.exists()  # without a model there is nothing to store
        first = await shared(Scripted("a plan", usage=Usage(9, 3)), replies).ask(greedy())

    async def asked_with(*, resume: bool, weights: str = "w") -> Reply:
        later = Replies()
        with later.stored_beside(outcomes, resume=resume):
            return await shared(Scripted("another"), later, weights=weights).ask(greedy())

    assert await asked_with(resume=True) == first
    assert (await asked_with(resume=True, weights="other")).text == "another"
    assert (await asked_with(resume=False)).text == "another"
    assert len(file.read_bytes().splitlines()) == 1


async def test_a_cut_or_invalid_line_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outcomes, file = tmp_path / "gym.jsonl", tmp_path / f"gym{ENDING}"
    replies = Replies()
    with replies.stored_beside(outcomes, resume=False):
        await shared(Scripted("a plan"), replies).ask(greedy())
    whole = file.read_bytes()
    file.write_bytes(b'{"key": 7}\n' + whole + whole[:40])
    later = Replies()
    with caplog.at_level(logging.WARNING), later.stored_beside(outcomes, resume=True):
        kept = Scripted("never asked")
        assert (await shared(kept, later).ask(greedy())).text == "a plan"
        await shared(Scripted("new"), later).ask(greedy("Plan that."))
    assert "line 1 of" in caplog.text
    assert file.read_bytes().startswith(b'{"key": 7}\n' + whole + b'{"key":"')


async def test_an_unreadable_file_is_named_and_an_unwritable_one_costs_no_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / f"a{ENDING}").mkdir()
    with pytest.raises(ConfigError, match=facts("a.shared.jsonl --out")):  # noqa: SIM117
        with Replies().stored_beside(tmp_path / "a.jsonl", resume=True):
            pass
    replies = Replies()
    with caplog.at_level(logging.WARNING), replies.stored_beside(tmp_path / "b.jsonl", resume=False):
        (tmp_path / f"b{ENDING}").mkdir()
        worker = shared(Scripted("a plan"), replies)
        assert [(await worker.ask(greedy())).text for _ in range(2)] == ["a plan", "a plan"]
    assert f"b{ENDING}" in caplog.text


def trace(*rounds: Round, seconds: float) -> Trace:
    return Trace("t", "", (), (), Limits(), "conductor", rounds=rounds, seconds=seconds)


def step(index: int, access: tuple[int, ...], began_s: float, ended_s: float, *attempts_s: float) -> StepRecord:
    attempts = tuple(Attempt("facts", seconds) for seconds in attempts_s)
    return StepRecord(index, "facts", "", access, attempts=attempts, started_s=began_s, ended_s=ended_s)


def test_a_run_that_made_all_its_calls_took_the_measured_seconds() -> None:
    draft = DraftRecord("conductor", "", "lines", attempts=(Attempt("conductor", 1.9),), ended_s=2.0)
    retried = step(0, (), 2.0, 5.0, 1.0, 1.5)
    assert took_s(trace(Round((draft,), steps=(retried,)), seconds=5.0)) == 5.0


def test_a_run_that_was_given_replies_took_as_long_as_they_did() -> None:
    """The draft: 2 s. Steps 0 and 1 side by side: 3 s, given again, and 1 s by the clock; step 2 after both: 0.5 s."""
    draft = DraftRecord("conductor", "", "lines", attempts=(Attempt("conductor", 2.0),))
    steps = (step(0, (), 0.0, 0.0, 3.0), step(1, (), 0.0, 1.0, 1.0), step(2, (0, 1), 1.0, 1.5, 0.5))
    assert took_s(trace(Round((draft,), Plan(()), steps), seconds=1.5)) == pytest.approx(2.0 + 3.0 + 0.5)


def test_a_report_explains_the_times_of_shared_calls() -> None:
    assert "shared" not in times_note({"concurrency": 8})
    assert times_note({"concurrency": 8, "shared": SHARED}) != times_note({"concurrency": 8})


def test_weights_are_named_by_their_content(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b", "c")]
    for file, content in zip(files, (b"1", b"1", b"2"), strict=True):
        file.write_bytes(content)
    digests = [weights_digest(file) for file in files]
    assert digests[0] == digests[1] != digests[2]


def test_weights_are_read_again_only_once_their_file_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "base.gguf"
    file.write_bytes(b"1")
    first, written_ns = weights_digest(file), file.stat().st_mtime_ns
    file.write_bytes(b"2")
    os.utime(file, ns=(written_ns, written_ns))
    assert weights_digest(file) == first  # by size and time it is the same file
    os.utime(file, ns=(written_ns, written_ns + 1))
    second = weights_digest(file)
    assert second != first
    file.write_bytes(b"22")
    os.utime(file, ns=(written_ns, written_ns + 1))
    assert weights_digest(file) not in (first, second)
