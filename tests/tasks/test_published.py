"""Every benchmark is read as its authors publish it, and a right reply to it is graded right, a wrong one wrong."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.facts import facts
from tests.programs import need
from tests.published_rows import PUBLISHED_ROWS, published
from tests.tasks.stub_hub import written

from dirigent.errors import ConfigError, GradeError
from dirigent.sandbox import Sandbox, open_untested
from dirigent.tasks.benchmarks import BENCHMARKS, load_benchmark, load_tasks
from dirigent.tasks.code import problem_in
from dirigent.tasks.graders import judge
from dirigent.tasks.published import PUBLISHED, aime, livecodebench, mmlu, mmlu_pro
from dirigent.tasks.task import Task

CODE = ("humaneval", "mbpp", "bigcodebench", "bigcodebench_hard", "livecodebench")


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    need("bwrap")
    async with open_untested() as opened:
        yield opened


def write(folder: Path, name: str, n: int = 3, **changes: Any) -> Path:
    file = folder / f"{BENCHMARKS[name].files[-1]}.jsonl"
    file.write_text("\n".join(json.dumps({**row, **changes}) for row, _ in published(name, n)))
    return folder


def test_every_benchmark_with_a_published_form_has_made_up_rows_here() -> None:
    assert set(PUBLISHED) == set(PUBLISHED_ROWS)


def reply_of(name: str, task: Task, right: str) -> str:
    """GPQA's options are shuffled, so its right reply depends on the question."""
    if name != "gpqa":
        return right
    return f"The answer is ({next(line[0] for line in task.question.splitlines() if line.endswith(right))})."


@pytest.mark.parametrize("name", [name for name in PUBLISHED_ROWS if name not in CODE])
async def test_a_right_reply_is_right_and_a_wrong_one_wrong(tmp_path: Path, name: str) -> None:
    tasks = load_benchmark(name, write(tmp_path, name))
    assert len(tasks) == 3
    for task, (_, right) in zip(tasks, published(name, 3), strict=True):
        assert (await judge(task, reply_of(name, task, right))).correct
        assert not (await judge(task, "The answer is (Z) 77")).correct


@pytest.mark.system
@pytest.mark.parametrize("name", CODE)
async def test_a_right_program_passes_and_a_wrong_one_fails(tmp_path: Path, name: str, sandbox: Sandbox) -> None:
    tasks = load_benchmark(name, write(tmp_path, name, n=2))
    for task, (_, right) in zip(tasks, published(name, 2), strict=True):
        assert (await judge(task, right, sandbox=sandbox)).correct
        wrong = right.replace("return", "return None #").replace("print(", "print('x', ")
        assert not (await judge(task, wrong, sandbox=sandbox)).correct


async def test_code_without_a_sandbox_is_no_wrong_answer_but_an_error(tmp_path: Path) -> None:
    (task, *_) = load_benchmark("humaneval", write(tmp_path, "humaneval"))
    with pytest.raises(GradeError, match=facts("HumanEval/0")):
        await judge(task, "pass")


async def test_libraries_that_the_sandbox_lacks_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path, "bigcodebench", libs="['numpy', 'random', 'pandas.io']")
    (task, *_) = load_benchmark("bigcodebench", folder)
    assert problem_in(task).libraries == ("numpy", "pandas")


async def test_a_test_program_that_imports_a_library_is_found_out_without_the_list(tmp_path: Path) -> None:
    row, _ = published("bigcodebench", 1)[0]
    (tmp_path / "bigcodebench.jsonl").write_text(json.dumps({**row, "test": "import numpy as np\n" + row["test"]}))
    (task,) = load_benchmark("bigcodebench", tmp_path)
    assert problem_in(task).libraries == ("numpy",)


def test_a_model_is_shown_the_function_or_a_test_but_never_the_expected_solution(tmp_path: Path) -> None:
    (human, *_) = load_benchmark("humaneval", write(tmp_path, "humaneval"))
    assert "def add_0" in human.question
    assert "check(" not in human.question
    (mbpp, *_) = load_benchmark("mbpp", write(tmp_path, "mbpp"))
    assert "assert double_0(2) == 4" in mbpp.question
    assert "assert double_0(-0)" not in mbpp.question


def test_a_pickle_that_would_run_something_is_refused_and_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return Path.touch, (tmp_path / "touched",)  # type: ignore[return-value]

    row, _ = published("livecodebench", 1)[0]
    packed = base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()
    with pytest.raises(GradeError, match=facts("pathlib.Path.touch")):
        livecodebench({**row, "private_test_cases": packed}, 0)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("packed", ["no base64!", "AAAA", base64.b64encode(zlib.compress(b"no pickle")).decode()])
def test_cases_that_cannot_be_unpacked_are_an_error_that_names_the_line(tmp_path: Path, packed: str) -> None:
    folder = write(tmp_path, "livecodebench", n=1, private_test_cases=packed)
    with pytest.raises(ConfigError, match=facts("livecodebench.jsonl 1")):
        load_benchmark("livecodebench", folder)


def test_cases_that_would_fill_the_memory_are_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dirigent.tasks.published.MOST_CASES_BYTES", 1000)
    row, _ = published("livecodebench", 1)[0]
    packed = base64.b64encode(zlib.compress(pickle.dumps(" " * 2000 + "[]"))).decode()
    with pytest.raises(GradeError, match=facts("1000")):
        livecodebench({**row, "private_test_cases": packed}, 0)


@pytest.mark.system
@pytest.mark.parametrize(
    ("row", "code", "right"),
    [
        (0, "print(int(stdin.readline()))", True),
        (0, "from __future__ import annotations\nprint(int(input()))", True),
        (0, "print(f'  {int(input()):.2f}')", True),
        (0, "print(int(input()) + 0.001)", False),
        (1, "class Solution:\n    def scale(self, ns, by):\n        return tuple(n * pow(by, 1, 7) for n in ns)", True),
        (1, "def scale(ns: List[int], by: int) -> List[int]:\n    return [n * by for n in ns]", True),
        (1, "print('nothing to call')", False),
    ],
)
async def test_contest_programs_find_the_imports_of_the_sets_own_runner(
    tmp_path: Path, row: int, code: str, right: bool, sandbox: Sandbox
) -> None:
    tasks = load_benchmark("livecodebench", write(tmp_path, "livecodebench", n=2))
    assert (await judge(tasks[row], f"```python\n{code}\n```", sandbox=sandbox)).correct is right


@pytest.mark.parametrize(
    ("published_as", "answer"),
    [("204", "204"), (33, "33"), ("025", "25"), ("336^\\circ", "336"), ("$70$", "70"), ("468.0", "468"), ("0", "0")],
)
def test_an_answer_of_aime_is_a_whole_number(published_as: Any, answer: str) -> None:
    row = {"id": 60, "problem": "?", "solution": "", "answer": published_as, "url": "", "year": "2024"}
    assert aime(row, 0).answer == answer


@pytest.mark.parametrize("published_as", ["", "1/2", "-3", "1000", "3.5", "n"])
def test_an_answer_that_aime_cannot_have_is_an_error(published_as: str) -> None:
    with pytest.raises(ValueError, match=facts("0 999")):
        aime({"question": "?", "answer": published_as}, 0)


def test_an_answer_of_mmlu_is_a_number_or_a_letter_of_an_option() -> None:
    row, _ = published("mmlu", 1)[0]
    assert [mmlu({**row, "answer": answer}, 0).answer for answer in (0, 3, "B", "2")] == ["A", "D", "B", "C"]
    with pytest.raises(ValueError, match=facts("4")):
        mmlu({**row, "answer": 4}, 0)


def test_options_of_mmlu_pro_keep_their_letters() -> None:
    row, _ = published("mmlu_pro", 1)[0]
    made = mmlu_pro({**row, "options": ["1", "N/A", "2", "N/A", "N/A"], "answer": "C"}, 0)
    assert made.question.splitlines()[-3:] == ["A. 1", "B. N/A", "C. 2"]
    ten = mmlu_pro({**row, "options": list("abcdefghij"), "answer": "J", "answer_index": 9}, 0)
    assert (ten.answer, ten.question.splitlines()[-1]) == ("J", "J. j")
    with pytest.raises(ValueError, match=facts("K 10")):
        mmlu_pro({**row, "options": list("abcdefghij"), "answer": "K"}, 0)


def test_rlpr_keeps_only_answers_that_can_be_compared(tmp_path: Path) -> None:
    long = {"reward_model": {"ground_truth": "x" * 31, "style": "rule"}}
    assert load_benchmark("rlpr", write(tmp_path, "rlpr", **long)) == []


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".json"])
def test_tables_of_other_kinds_are_read_too(tmp_path: Path, ending: str) -> None:
    rows = [row for row, _ in published("gpqa", 2)]
    file = tmp_path / f"gpqa_diamond{ending}"
    if ending == ".csv":
        header = list(rows[0])
        lines = [header, *([row[name] for name in header] for row in rows)]
        file.write_text("\n".join(",".join(f'"{cell}"' for cell in line) for line in lines))
    elif ending == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(rows), file)
    else:
        file.write_text(json.dumps({"canary": "x", "examples": rows}))
    assert [task.grader for task in load_benchmark("gpqa", tmp_path)] == ["choice", "choice"]


def test_a_published_row_without_its_fields_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "gsm8k.jsonl").write_text(json.dumps({"question": "1 + 1?"}))
    with pytest.raises(ConfigError, match=facts("1 answer")):
        load_benchmark("gsm8k", tmp_path)


def test_options_of_gpqa_are_shuffled_the_same_way_each_time(tmp_path: Path) -> None:
    first = load_benchmark("gpqa", write(tmp_path, "gpqa", n=9))
    assert [t.answer for t in first] == [t.answer for t in load_benchmark("gpqa", tmp_path)]
    assert len({t.answer for t in first}) > 1


@pytest.mark.parametrize(
    ("gold", "reply", "right"),
    [
        ("3.50 m/s", "The answer is 3.5 m/s", True),
        ("3.50 m/s", "The answer is 3.5", True),
        ("3.50 m/s", "The answer is 3.5 km/h", False),
        ("$1,200", "The answer is 1200", True),
        ("12%", "The answer is 12 %", True),
        ("0.3333", "The answer is 0.33333", True),
        ("0.3333", "The answer is 0.34", False),
        ("-5 m", "The answer is −5 m", True),
        ("$5", "The answer is 5 million dollars", False),
        ("5 million dollars", "The answer is 5.0 million dollars", True),
        ("5 million", "The answer is 5", False),
        ("Blue whale", "The answer is blue whale.", True),
        ("Blue whale", "The answer is whale", False),
        ("5", "", False),
    ],
)
async def test_short_answers_are_compared_with_units_and_a_thousandth_of_tolerance(
    gold: str, reply: str, right: bool
) -> None:
    assert (await judge(Task("1", "?", gold, grader="short"), reply)).correct is right


@pytest.mark.parametrize("name", [name for name in PUBLISHED_ROWS if not name.startswith("bigcode")])
def test_a_copy_of_the_hubs_repository_is_taken_as_it_lies(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow")
    source = BENCHMARKS[name].hub
    assert source is not None
    rows = [{key: value for key, value in row.items() if value != {}} for row, _ in published(name, 2)]
    for file in source.files:
        path = tmp_path / source.dataset.rpartition("/")[2] / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(written(rows, file))
    assert load_benchmark(name, tmp_path)


def test_the_27_files_of_big_bench_hard_are_one_benchmark(tmp_path: Path) -> None:
    (tmp_path / "bbh").mkdir()
    source = BENCHMARKS["bbh"].hub
    assert source is not None
    for config in source.configs:
        rows = [{"input": f"{config} {i}", "target": "(A)"} for i in range(2)]
        (tmp_path / "bbh" / f"{config}.json").write_bytes(written(rows, "x.json"))
    tasks = load_benchmark("bbh", tmp_path)
    assert len(tasks) == 54
    assert {task.tags["subject"] for task in tasks} == set(source.configs)
    (tmp_path / "bbh" / "snarks.json").unlink()
    with pytest.raises(ConfigError, match=facts("bbh.jsonl")):
        load_benchmark("bbh", tmp_path)


def test_a_table_with_a_mark_at_its_begin_and_long_lines_in_its_cells_is_read(tmp_path: Path) -> None:
    row, right = published("gpqa", 1)[0]
    table = written([{**row, "Explanation": "so\n" * 70_000}], "x.csv")
    (tmp_path / "gpqa_diamond.csv").write_bytes(b"\xef\xbb\xbf" + table)
    (task,) = load_benchmark("gpqa", tmp_path)
    assert next(line for line in task.question.splitlines() if line.startswith(f"{task.answer}. ")).endswith(right)


def test_of_a_training_part_that_is_too_large_the_first_are_taken(tmp_path: Path) -> None:
    rows = [dict(row) for _ in range(60) for row, _ in published("livecodebench", 2)]
    for i, row in enumerate(rows):
        row["question_id"] = f"q{i}"
    (tmp_path / "test.jsonl").write_bytes(written(rows, "test.jsonl"))
    assert len(load_benchmark("livecodebench", tmp_path, part="train")) == 100


def test_our_own_form_needs_no_benchmark(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"id": "a", "question": "1 + 1?", "answer": "2", "grader": "number"}))
    assert [task.id for task in load_tasks(file)] == ["a"]
