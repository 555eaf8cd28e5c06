"""Recorded files become tables: costs, grades and equal answers, or an error that names the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dirigent.errors import ConfigError
from dirigent.learn.table import Table
from dirigent.learn.table_import import Prices, import_files, read_prices

SUM = {"id": "q1", "task": "gsm8k", "question": "2 + 2?", "answer": "4", "grader": "number", "meta": {"split": "train"}}
PROGRAM = {"id": "m1", "task": "mbpp", "question": "Write f.", "answer": "def f(): pass", "grader": "code", "meta": {}}


def reply(role: str, text: str, *, id: str = "q1", k: int = 0, **more: Any) -> dict[str, Any]:
    set_ = "mbpp" if id == "m1" else "gsm8k_train"
    row = {"id": id, "set": set_, "role": role, "k": k, "text": text, "tokens": 10, "prompt_tokens": 40, "ended": True}
    return row | {"part": "first"} | more


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


async def roles_table(
    folder: Path, replies: list[dict[str, Any]], questions: list[dict[str, Any]] | None = None
) -> Table:
    return await import_files(
        [write(folder / "roles_small.jsonl", replies)],
        questions=[write(folder / "questions_a.jsonl", questions or [SUM])],
    )


async def test_replies_are_graded_and_cost_a_quarter_of_their_prompt(tmp_path: Path) -> None:
    table = await roles_table(tmp_path, [reply("direct", "5"), reply("think", "So it is 4.", k=1)])
    assert [worker.name for worker in table.workers] == ["direct", "think"]
    assert [(a.worker, a.k, a.right, a.cost, a.same) for a in table.answers] == [
        ("direct", 0, 0.0, 20.0, 0),
        ("think", 1, 1.0, 20.0, 1),
    ]
    assert table.unit == "units"
    assert (table.questions[0].split, table.questions[0].part, table.questions[0].kind) == (
        "train",
        "first",
        "gsm8k_train",
    )


async def test_a_program_answers_with_its_last_line_and_a_failed_one_does_not(tmp_path: Path) -> None:
    good, bad = {"run": [0, "1\n4\n", ""]}, {"run": [1, "", "NameError"]}
    table = await roles_table(tmp_path, [reply("code", "print(4)", runs=good), reply("code", "x", k=1, runs=bad)])
    assert [(a.text, a.same, a.right, a.failed) for a in table.answers] == [("4", 0, 1.0, False), ("", -1, 0.0, True)]
    assert table.workers[0].runs


async def test_a_second_step_names_its_input(tmp_path: Path) -> None:
    ran = {"run": [0, "4", ""]}
    table = await roles_table(tmp_path, [reply("judge", "4"), reply("think", "4"), reply("code", "p", runs=ran)])
    judge = next(answer for answer in table.answers if answer.worker == "judge")
    assert judge.read == (("think", 0), ("code", 0))
    assert [worker.reads for worker in table.workers] == [False, False, True]


async def test_a_program_that_fails_the_visible_test_is_no_answer(tmp_path: Path) -> None:
    passed, failed = {"visible": [0, "", ""], "all": [1, "", ""]}, {"visible": [1, "", ""], "all": [1, "", ""]}
    replies = [reply("direct", "def f()", id="m1", runs=passed), reply("think", "def f()", id="m1", runs=failed)]
    table = await roles_table(tmp_path, replies, [PROGRAM])
    assert [(a.same, a.right, a.failed) for a in table.answers] == [(0, 0.0, False), (-1, 0.0, True)]
    assert table.questions[0].kind == "mbpp"


async def test_outputs_cost_list_prices_and_keep_the_sources_grade(tmp_path: Path) -> None:
    outputs = {
        "big": {"text": "It is 4.", "pred": "4", "correct": True, "est_tokens": 10},
        "small": {"text": "none", "pred": None, "correct": False, "est_tokens": 20},
    }
    file = write(tmp_path / "recorded_a.jsonl", [SUM | {"outputs": outputs}])
    prices = Prices({"big": (4.0, 10.0), "small": (0.0, 1.0)}, template_tokens=10)
    table = await import_files([file], prices=prices)
    assert [(a.worker, a.right, a.same) for a in table.answers] == [("big", 1.0, 0), ("small", 0.0, -1)]
    assert table.answers[0].cost == pytest.approx(((len("2 + 2?") / 4 + 10) * 4 + 10 * 10) / 1e6)
    assert table.unit == "usd"


async def test_outputs_with_a_stated_cost_need_no_prices_and_a_negative_score_is_ignored(tmp_path: Path) -> None:
    outputs = {"m": {"text": "4", "score": -0.03, "output_tokens": 3, "cost_usd": 0.002}}
    table = await import_files([write(tmp_path / "recorded_a.jsonl", [SUM | {"outputs": outputs}])])
    assert [(a.cost, a.right, a.final) for a in table.answers] == [(0.002, 0.0, "4")]


async def test_scores_are_answers_that_agree_with_no_other(tmp_path: Path) -> None:
    table = await import_files([write(tmp_path / "scores_a.jsonl", [SUM | {"scores": {"a": 0.5, "b": 0.5}}])])
    assert [(a.worker, a.right, a.same, a.text, a.cost) for a in table.answers] == [
        ("a", 0.5, 0, "", 1.0),
        ("b", 0.5, 1, "", 1.0),
    ]
    assert table.questions[0].grader is None


async def test_a_recorded_file_beside_replies_gives_its_questions(tmp_path: Path) -> None:
    outputs = {"m": {"text": "4", "pred": "4", "correct": True, "est_tokens": 3}}
    recorded = write(tmp_path / "recorded_a.jsonl", [SUM | {"outputs": outputs}])
    table = await import_files([write(tmp_path / "roles_a.jsonl", [reply("direct", "4")]), recorded])
    assert [answer.worker for answer in table.answers] == ["direct"]


async def test_comparisons_are_kept_for_the_next_import(tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    file = write(tmp_path / "roles_a.jsonl", [reply("direct", "4")])
    questions = write(tmp_path / "questions_a.jsonl", [SUM])
    first = await import_files([file], questions=[questions], cache=cache)
    kept = cache.read_bytes()
    assert await import_files([file], questions=[questions], cache=cache) == first
    assert cache.read_bytes() == kept != b"{}"


@pytest.mark.parametrize(
    ("replies", "questions", "fact"),
    [
        ([reply("direct", "4", id="q9")], [SUM], "'q9'"),
        ([reply("direct", "4"), reply("direct", "5")], [SUM], "direct 0 twice"),
        ([reply("code", "print(4)")], [SUM], r"runs\.run"),
        ([reply("direct", "f", id="m1", runs={"visible": [0, "", ""]})], [PROGRAM], r"runs\.all"),
        ([reply("direct", "4")], [SUM, SUM], "'q1' is there twice"),
        ([reply("direct", "4")], [SUM | {"grader": "vibes"}], "vibes"),
        ([{"id": "q1", "role": "direct", "k": 0}], [SUM], "line 1"),
    ],
)
async def test_a_fault_in_replies_is_named(
    tmp_path: Path, replies: list[dict[str, Any]], questions: list[dict[str, Any]], fact: str
) -> None:
    with pytest.raises(ConfigError, match=fact):
        await roles_table(tmp_path, replies, questions)


@pytest.mark.parametrize(
    ("row", "fact"),
    [
        (SUM | {"outputs": {"m": {"text": "4", "pred": "4", "correct": True, "est_tokens": 3}}}, "--prices"),
        (SUM | {"outputs": {"m": {"text": "4", "cost_usd": 0.1}}}, "`correct`"),
        (SUM | {"outputs": {"m": {"text": "4", "score": 2, "cost_usd": 0.1}}}, "at most 1"),
        (SUM | {"scores": {"m": 1.5}}, "1.5"),
        (SUM, "no file holds answers"),
    ],
)
async def test_a_fault_in_recorded_answers_is_named(tmp_path: Path, row: dict[str, Any], fact: str) -> None:
    with pytest.raises(ConfigError, match=fact):
        await import_files([write(tmp_path / "recorded_a.jsonl", [row])])


async def test_two_files_may_share_a_question_but_not_its_id_for_another(tmp_path: Path) -> None:
    files = [write(tmp_path / "questions_a.jsonl", [SUM]), write(tmp_path / "questions_b.jsonl", [SUM])]
    replies = write(tmp_path / "roles_a.jsonl", [reply("direct", "4")])
    assert len((await import_files([replies], questions=files)).questions) == 1
    write(files[1], [SUM | {"question": "3 + 3?"}])
    with pytest.raises(ConfigError, match="another question"):
        await import_files([replies], questions=files)


def test_prices_are_read_and_a_model_without_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text('{"unit": "USD", "template_tokens": 120, "prices": {"m": [1, 2]}}')
    assert read_prices(file).cost_usd("m", "x" * 40, 5) == pytest.approx((130 * 1 + 5 * 2) / 1e6)
    with pytest.raises(ConfigError, match="'other'"):
        read_prices(file).cost_usd("other", "", 0)
    file.write_text("[]")
    with pytest.raises(ConfigError, match=r"prices\.json"):
        read_prices(file)
