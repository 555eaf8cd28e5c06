"""A table is whole, or the fault is named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dirigent.errors import ConfigError
from dirigent.learn.table import Answer, Question, Table, TableWorker

TABLE = Table(
    workers=(TableWorker("quick", model="small"), TableWorker("careful", reads=True)),
    questions=(Question("q1", "What is 2 + 2?", kind="sums", answer="4", grader="final_number"),),
    answers=(
        Answer("q1", "quick", text="4", final="4", same=0, right=1.0, cost=3.5),
        Answer("q1", "quick", k=1, text="5", final="5", same=1, right=0.0),
        Answer("q1", "careful", text="4", final="4", same=0, read=(("quick", 1),)),
    ),
    unit="units",
)


def test_a_written_table_is_read_back(tmp_path: Path) -> None:
    TABLE.save(tmp_path)
    assert Table.load(tmp_path) == TABLE


def test_equal_tables_are_equal_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        TABLE.save(tmp_path / name)
    files = [sorted((tmp_path / name).iterdir()) for name in ("one", "two")]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]


def test_a_table_that_was_cut_off_is_not_taken_for_one(tmp_path: Path) -> None:
    TABLE.save(tmp_path)
    (tmp_path / "answers.jsonl.gz").unlink()
    with pytest.raises(ConfigError, match=r"answers\.jsonl\.gz"):
        Table.load(tmp_path)
    (tmp_path / "table.json").unlink()
    with pytest.raises(ConfigError, match="dirigent calibrate"):
        Table.load(tmp_path)


@pytest.mark.parametrize(
    ("answer", "fact"),
    [
        (Answer("q2", "quick"), "'q2'"),
        (Answer("q1", "nobody"), "'nobody'"),
        (Answer("q1", "quick", k=1), "twice"),
        (Answer("q1", "quick", k=2, right=1.5), "1.5"),
        (Answer("q1", "quick", k=2, cost=-1.0), "-1"),
        (Answer("q1", "quick", k=2, cost=float("nan")), "nan"),
    ],
)
def test_a_fault_in_an_answer_is_named(answer: Answer, fact: str) -> None:
    table = msgspec.structs.replace(TABLE, answers=(*TABLE.answers, answer))
    with pytest.raises(ConfigError, match=fact):
        table.check("here")


def test_two_questions_may_not_share_an_id() -> None:
    table = msgspec.structs.replace(TABLE, questions=TABLE.questions * 2)
    with pytest.raises(ConfigError, match="'q1'"):
        table.check("here")
