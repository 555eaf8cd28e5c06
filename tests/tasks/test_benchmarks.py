"""Benchmarks come from files, by name; the error for a missing one names its source."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.facts import facts

from dirigent.errors import ConfigError
from dirigent.tasks.benchmarks import BENCHMARKS, load_benchmark

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def row(**fields: Any) -> dict[str, Any]:
    return {"id": "1", "task": "gsm8k", "question": "1 + 1?", "answer": "2", "grader": "number", "meta": {}, **fields}


def write(file: Path, *rows: dict[str, Any]) -> Path:
    text = "\n".join(json.dumps(r) for r in rows).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    return file


@pytest.mark.parametrize("name", ["gsm8k.jsonl", "questions_gsm8k_test.jsonl.gz"])
def test_a_folder_is_searched_for_the_benchmarks_file(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, row(), row(id="2"))
    tasks = load_benchmark("gsm8k", tmp_path)
    assert [task.id for task in tasks] == ["1", "2"]
    assert (tasks[0].grader, tasks[0].kind) == ("final_number", "gsm8k")
    assert len(load_benchmark("gsm8k", tmp_path, limit=1)) == 1


def test_a_file_is_read_unchanged_with_the_facts_of_each_question(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", row(grader="code", meta={"entry_point": "f", "test_list": ["assert f()"]}))
    (task,) = load_benchmark("mbpp", file)
    assert task.grader == "code"
    assert (task.tags["entry_point"], json.loads(task.tags["test_list"])) == ("f", ["assert f()"])


def test_exact_means_a_python_literal_where_the_task_asks_for_one(tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", row(task="cruxeval_o", grader="exact"), row(id="2", task="bbh", grader="exact"))
    assert [task.grader for task in load_benchmark("cruxeval_o", file)] == ["literal", "exact"]


def test_a_benchmark_that_is_part_of_a_file_takes_its_own_rows(tmp_path: Path) -> None:
    write(tmp_path / "mmlu.jsonl", row(task="mmlu", grader="choice"), row(id="2", task="other"))
    assert [task.id for task in load_benchmark("mmlu", tmp_path)] == ["1"]


def test_the_error_for_a_missing_benchmark_names_its_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=facts("gpqa.jsonl")):
        load_benchmark("gpqa", tmp_path)


def test_a_misspelt_name_finds_its_neighbour(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=facts("gms8k gsm8k")):
        load_benchmark("gms8k", tmp_path)


@pytest.mark.parametrize(
    "line", ['{"id": "1"}', "no json", '{"id": "1", "question": "q", "answer": "a", "grader": "x"}']
)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "gsm8k.jsonl").write_text(json.dumps(row()) + "\n" + line)
    with pytest.raises(ConfigError, match=facts("2")):
        load_benchmark("gsm8k", tmp_path)


def test_a_broken_archive_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "gsm8k.jsonl.gz").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match=facts("gsm8k.jsonl.gz")):
        load_benchmark("gsm8k", tmp_path)


def test_the_page_says_where_each_benchmark_comes_from() -> None:
    for name, known in BENCHMARKS.items():
        if known.hub is None:
            continue
        (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{name}` | ["))
        assert f"[{known.hub.dataset}]({known.hub.page})" in line
        assert f", {known.hub.split}" in line
        assert name == "bbh" or all(config in line for config in known.hub.configs)
        assert name == "bbh" or all(f"`{file}`" in line for file in known.hub.files)
        assert ("**gated**" in line) is known.hub.gated
        assert known.train_hub is None or known.train_hub.split in line


def test_every_benchmark_is_on_the_page() -> None:
    assert [name for name in BENCHMARKS if f"`{name}`" not in PAGE] == []
