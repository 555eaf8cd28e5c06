"""`dirigent table`: import, show, export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.facts import says


@pytest.fixture
def recorded(own_place: Path) -> Path:
    file = own_place / "recorded_sums.jsonl"
    rows = []
    for i in range(4):
        outputs = {
            "big": {"text": "4", "pred": "4", "correct": True, "est_tokens": 4},
            "small": {"text": "5", "pred": "5", "correct": i == 0, "est_tokens": 4},
        }
        row = {"id": f"q{i}", "task": "sums", "question": "2 + 2?", "answer": "4", "grader": "number", "meta": {}}
        rows.append(row | {"outputs": outputs})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (own_place / "prices_a.json").write_text('{"prices": {"big": [10, 10], "small": [1, 1]}}')
    return file


def test_a_table_is_imported_shown_and_exported(run: Run, recorded: Path, own_place: Path) -> None:
    folder = own_place / "table"
    made = run("table", "import", str(recorded), "--out", str(folder), "--json")
    assert made.object == {"table": str(folder), "unit": "usd", "questions": 4, "workers": 2, "answers": 8}
    assert says(made.err, "prices_a.json")
    big, small = run("table", "show", str(folder), "--json").object["workers"]
    assert (big["name"], big["all"]["right"], big["kinds"]["sums"]["questions"]) == ("big", 1.0, 4)
    assert small["all"]["low"] < small["all"]["right"] == 0.25 < small["all"]["high"]
    assert small["cost"] < big["cost"]
    shown = run("table", "show", str(folder))
    assert "25.0 [" in shown.out
    lines = [json.loads(line) for line in run("table", "export", str(folder)).out.splitlines()]
    assert [line["question"]["id"] for line in lines] == ["q0", "q1", "q2", "q3"]
    assert {answer["worker"] for answer in lines[0]["answers"]} == {"big", "small"}


def test_a_table_is_never_written_over(run: Run, recorded: Path, own_place: Path) -> None:
    assert run("table", "import", str(recorded), "--out", str(own_place / "table")).code == 0
    again = run("table", "import", str(recorded), "--out", str(own_place / "table"))
    assert again.code == 2
    assert says(again.err, "holds a table already")


def test_an_answer_without_a_price_is_named(run: Run, recorded: Path, own_place: Path) -> None:
    (own_place / "prices_a.json").unlink()
    refused = run("table", "import", str(recorded), "--out", str(own_place / "table"))
    assert refused.code == 2
    assert says(refused.err, "line 1")
    assert says(refused.err, "--prices")


def test_the_error_for_a_folder_without_a_table_names_the_command(run: Run, own_place: Path) -> None:
    refused = run("table", "show", str(own_place))
    assert refused.code == 2
    assert says(refused.err, "dirigent calibrate")


def test_many_kinds_of_questions_become_lines(run: Run, recorded: Path, own_place: Path) -> None:
    rows = [json.loads(line) for line in recorded.read_text().splitlines()]
    many = [row | {"id": f"{row['id']}-{i}", "task": f"kind{i}"} for i in range(9) for row in rows]
    recorded.write_text("".join(json.dumps(row) + "\n" for row in many))
    assert run("table", "import", str(recorded), "--out", str(own_place / "table")).code == 0
    first = run("table", "show", str(own_place / "table")).out.splitlines()[0]
    assert first.split() == ["worker", "big", "small"]
