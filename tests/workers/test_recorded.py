"""Recorded workers: they replay answers of a file with its counts and costs."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Delta, Event, Message, Request, Tool, Usage, conversation
from dirigent.workers.recorded import Recorded
from dirigent.workers.worker import Price
from tests.facts import facts

ROWS: list[dict[str, Any]] = [
    {
        "id": "1",
        "question": "What is two plus two?",
        "outputs": {"big": {"text": "It is 4.", "est_tokens": 9, "correct": True}, "small": {"text": "5"}},
    },
    {
        "id": "2",
        "question": " What is two plus two? And three more?\n",
        "outputs": {
            "big": {"text": "7", "input_tokens": 30, "output_tokens": 12, "cost_usd": 0.25, "score": 1.0},
            "small": {"text": ""},
        },
    },
    {"id": "3", "question": "2 + 2", "outputs": {"big": {"text": "four"}}},
]


def asked(text: str) -> Request:
    return Request(conversation(text))


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
async def test_a_recorded_question_gets_its_models_answer(tmp_path: Path, name: str):
    path = written(tmp_path / name, ROWS)
    assert (await Recorded(path, model="big").ask(asked("What is two plus two?"))).text == "It is 4."
    assert (await Recorded(path, model="small").ask(asked("What is two plus two?"))).text == "5"


async def test_words_around_the_question_do_not_matter_and_the_longest_counts():
    worker = Recorded(ROWS, model="big")
    wrapped = "You are one of several.\nThe request:\nWhat is two plus two?\n\nYour subtask: answer."
    assert (await worker.ask(asked(wrapped))).text == "It is 4."
    longer = "The request:\nWhat is two plus two? And three more?\nYour subtask: answer."
    assert (await worker.ask(asked(longer))).text == "7"
    assert (await worker.ask(asked("Please: 2 + 2?"))).text == "four"


async def test_a_question_inside_longer_words_is_not_the_question():
    with pytest.raises(WorkerError):
        await Recorded(ROWS, model="big").ask(asked("12 + 21"))
    assert (await Recorded(ROWS, model="big").ask(asked("12 + 21, or 2 + 2"))).text == "four"


async def test_only_the_users_last_turn_is_looked_at():
    earlier = (Message("user", "What is two plus two?"), Message("assistant", "4"), Message("user", "Sure?"))
    with pytest.raises(WorkerError, match=facts("Sure?")):
        await Recorded(ROWS, model="big").ask(Request(earlier))
    split = (
        Message("system", "2 + 2"),
        Message("user", "What is two plus two?"),
        Message("user", "Be brief."),
    )
    assert (await Recorded(ROWS, model="big").ask(Request(split))).text == "It is 4."


async def test_an_unknown_question_is_unanswerable_and_shows_its_start_and_the_file(tmp_path: Path):
    worker = Recorded(written(tmp_path / "rows.jsonl", ROWS), model="big", name="replay")
    with pytest.raises(WorkerError, match=facts("rows.jsonl big")) as caught:
        await worker.ask(asked("Why? " * 100))
    assert caught.value.fault == "unanswerable"
    assert caught.value.worker == "replay"
    assert not caught.value.retryable
    assert len(str(caught.value)) < 200


async def test_a_question_that_another_model_answered_is_unanswerable():
    with pytest.raises(WorkerError, match=facts("small")):
        await Recorded(ROWS, model="small").ask(asked("2 + 2"))


async def test_recorded_counts_and_costs_are_used_if_there_are_any():
    worker = Recorded(ROWS, model="big")
    reply = await worker.ask(asked("What is two plus two? And three more?"))
    assert (reply.usage, reply.cost_usd, reply.model) == (Usage(30, 12), 0.25, "big")
    estimated = await worker.ask(asked("What is two plus two?"))
    assert (estimated.usage, estimated.cost_usd) == (Usage(6, 9), 0.0)
    assert (await worker.ask(asked("2 + 2"))).usage == Usage(2, 1)


async def test_a_stated_price_overrides_the_recorded_cost():
    worker = Recorded(ROWS, model="big", price=Price(1, 2))
    assert (await worker.ask(asked("What is two plus two? And three more?"))).cost_usd == 0.0
    assert worker.info.price == Price(1, 2)


async def test_an_answer_longer_than_allowed_is_cut():
    request = Request(conversation("What is two plus two?"), max_output_tokens=3)
    reply = await Recorded(ROWS, model="big").ask(request)
    assert (reply.text, reply.finish, reply.usage.output_tokens) == ("It", "length", 3)


async def test_an_empty_recorded_answer_is_an_answer():
    assert (await Recorded(ROWS, model="small").ask(asked(ROWS[1]["question"]))).text == ""


async def test_observers_see_the_answer():
    seen: list[Event] = []
    await Recorded(ROWS, model="big").ask(asked("What is two plus two?"), observe=seen.append)
    assert seen == [Delta("It"), Delta(" is"), Delta(" 4.")]


@pytest.mark.parametrize(
    "extra",
    [{"tools": (Tool("look", {}),)}, {"json_mode": True}, {"grammar": "root ::= 'a'"}],
)
async def test_a_request_that_a_recording_cannot_honour_is_refused(extra: dict[str, Any]):
    with pytest.raises(WorkerError, match=facts(next(iter(extra)))) as caught:
        await Recorded(ROWS, model="big").ask(Request(conversation("2 + 2"), **extra))
    assert caught.value.fault == "request"


def test_a_model_without_answers_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=facts("bik big")):
        Recorded(ROWS, model="bik")
    with pytest.raises(ConfigError, match=facts("big small")):
        Recorded(ROWS, model="zzz")


def test_a_missing_broken_or_foreign_file_is_a_configuration_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=facts("none.jsonl")):
        Recorded(tmp_path / "none.jsonl", model="big")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b"{}" * 1000)[:20])
    with pytest.raises(ConfigError, match=facts("cut.jsonl.gz")):
        Recorded(tmp_path / "cut.jsonl.gz", model="big")
    (tmp_path / "odd.jsonl").write_text(json.dumps(ROWS[0]) + '\n\n{"question": "q"}\n')
    with pytest.raises(ConfigError, match=facts("odd.jsonl 3 outputs")):
        Recorded(tmp_path / "odd.jsonl", model="big")


def test_workers_of_one_file_share_it_and_a_changed_file_is_read_again(tmp_path: Path):
    path = written(tmp_path / "rows.jsonl", ROWS)
    assert Recorded(path, model="big")._book is Recorded(str(path), model="small")._book
    written(path, [{"question": "q", "outputs": {"new": {"text": "n"}}}])
    assert Recorded(path, model="new").info.model == "new"
    with pytest.raises(ConfigError, match=facts("big new")):
        Recorded(path, model="big")


async def test_five_thousand_questions_with_equal_beginnings_are_found_quickly():
    head = "Read the table below and answer with one number. "
    rows = [{"question": f"{head}Row {i}?", "outputs": {"m": {"text": str(i)}}} for i in range(5_000)]
    worker = Recorded(rows, model="m")
    began = time.process_time()
    for i in range(0, 5_000, 250):
        assert (await worker.ask(asked(f"The request:\n{rows[i]['question']}\n{'words ' * 500}"))).text == str(i)
    assert time.process_time() - began < 2.0, "20 look-ups take milliseconds, not seconds"
