"""Public benchmarks by name: where their questions lie, how they are graded, where to get them.

Questions are read from JSON lines (gzipped or not), one object a line: `id`, `question`, `answer`, `grader` and perhaps
`task` and `meta`. A folder is searched for the benchmark's file; a file is taken as it is. Nothing is downloaded: what
is missing says where to get it. Adding a benchmark is adding a line to `BENCHMARKS`.
"""

from __future__ import annotations

import difflib
import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from dirigent.errors import ConfigError
from dirigent.tasks.task import Grader, Task


class Benchmark(msgspec.Struct, frozen=True):
    files: tuple[str, ...]
    """Names it may have in a data folder, without `.jsonl` and `.jsonl.gz`; the first that is there is taken."""
    source: str
    """Where to get it."""
    task: str = ""
    """Rows of this task alone, where a file holds several."""


BENCHMARKS: dict[str, Benchmark] = {
    "gsm8k": Benchmark(("questions_gsm8k_test", "gsm8k"), "https://github.com/openai/grade-school-math"),
    "math500": Benchmark(("questions_math500", "math500"), "https://huggingface.co/datasets/HuggingFaceH4/MATH-500"),
    "aime24": Benchmark(("questions_aime24", "aime24"), "https://huggingface.co/datasets/HuggingFaceH4/aime_2024"),
    "aime25": Benchmark(("questions_aime25", "aime25"), "https://huggingface.co/datasets/opencompass/AIME2025"),
    "bbh": Benchmark(("questions_bbh", "bbh"), "https://github.com/suzgunmirac/BIG-Bench-Hard"),
    "mmlu_pro": Benchmark(("recorded_mmlu_pro", "mmlu_pro"), "https://huggingface.co/datasets/TIGER-Lab/MMLU-Pro"),
    "mmlu": Benchmark(("scores_llmrouter_train", "mmlu"), "https://github.com/hendrycks/test", task="mmlu"),
    "math_l5": Benchmark(("recorded_zeroeval_math_l5", "math_l5"), "https://github.com/WildEval/ZeroEval"),
    "cruxeval_o": Benchmark(("recorded_zeroeval_cruxeval_o", "cruxeval_o"), "https://github.com/WildEval/ZeroEval"),
    "humaneval": Benchmark(("questions_humaneval", "humaneval"), "https://github.com/openai/human-eval"),
    "mbpp": Benchmark(
        ("questions_mbpp", "mbpp"), "https://github.com/google-research/google-research/tree/master/mbpp"
    ),
    "gpqa": Benchmark(("gpqa_diamond", "gpqa"), "https://huggingface.co/datasets/Idavidrein/gpqa (ask its authors)"),
    "rlpr": Benchmark(("rlpr",), "https://huggingface.co/datasets/openbmb/RLPR-Evaluation"),
    "livecodebench": Benchmark(
        ("livecodebench",), "https://huggingface.co/datasets/livecodebench/code_generation_lite"
    ),
    "bigcodebench": Benchmark(("bigcodebench",), "https://huggingface.co/datasets/bigcode/bigcodebench"),
}

RowGrader = Literal["number", "choice", "exact", "literal", "math", "code"]

FREE: dict[RowGrader, Grader] = {
    "number": "final_number",
    "choice": "choice",
    "exact": "exact",
    "literal": "literal",
    "math": "math",
    "code": "code",
}
"""A file's word for a grader, and ours: replies to these questions are free text."""

LITERAL_TASKS = frozenset({"cruxeval_o"})
"""Tasks whose `exact` means the same Python literal."""


class Row(msgspec.Struct, frozen=True):
    """A line of a file; what else it holds (`outputs`, `scores`) is left alone."""

    id: str
    question: str
    answer: str
    grader: RowGrader
    task: str = ""
    meta: dict[str, Any] = {}


def load_benchmark(name: str, data: Path, *, limit: int | None = None) -> list[Task]:
    """The questions of a benchmark, from a folder or a file of them."""
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"there are: {', '.join(BENCHMARKS)}"
        raise ConfigError(f'no benchmark is called "{name}"; {hint}')
    benchmark = BENCHMARKS[name]
    file = find_file(benchmark.files, data)
    if file is None:
        raise ConfigError(
            f"{data} has no {benchmark.files[-1]}.jsonl for {name}; get it from {benchmark.source} and write one "
            "object a line: id, question, answer, grader"
        )
    tasks = [task for task in load_tasks(file) if not benchmark.task or task.kind == benchmark.task]
    return tasks[:limit]


def load_tasks(file: Path) -> list[Task]:
    """Every question of a file."""
    return [task_of(row) for _, row in decoded(file, Row)]


def find_file(names: Sequence[str], data: Path) -> Path | None:
    if data.is_file():
        return data
    candidates = (data / f"{name}{ending}" for name in names for ending in (".jsonl.gz", ".jsonl"))
    return next((file for file in candidates if file.is_file()), None)


def decoded(file: Path, type_: type[Any]) -> Iterator[tuple[int, Any]]:
    """The lines of a file as structs, with their numbers; an error names the line."""
    try:
        data = file.read_bytes()
        lines = (gzip.decompress(data) if file.suffix == ".gz" else data).splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"questions cannot be read from {file}: {error}") from None
    decoder = msgspec.json.Decoder(type_)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}, line {number} is not a question: {error}") from None


def task_of(row: Row) -> Task:
    """A line of a file as a task."""
    grader = "literal" if row.task in LITERAL_TASKS and row.grader == "exact" else FREE[row.grader]
    tags = {name: _text(value) for name, value in row.meta.items()} | {"task": row.task}
    return Task(row.id, row.question, row.answer, grader=grader, kind=row.task, tags=tags)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
