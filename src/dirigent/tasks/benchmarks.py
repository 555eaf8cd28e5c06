"""Public benchmarks by name: where their questions lie, how they are graded, where to get them.

Questions come from the hub (`fetch_benchmark`), or from a folder or file of one's own (`load_benchmark`): JSON lines,
gzipped or not, CSV or Parquet, as the authors publish them (`published.py`) or in our own form: `id`, `question`,
`answer`, `grader`, perhaps `task` and `meta`. Adding a benchmark is adding a line to `BENCHMARKS` and a function there.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from dirigent.errors import ConfigError, GradeError
from dirigent.tasks.code import answer_of
from dirigent.tasks.hub import Addresses, HubSet, Progress, fetch, where_to_get
from dirigent.tasks.published import PUBLISHED, Row, RowGrader, asked_question, code_problem
from dirigent.tasks.task import Grader, Task

Part = Literal["test", "train"]

HUB = "https://huggingface.co/datasets/"

BBH_TASKS = (
    "boolean_expressions", "causal_judgement", "date_understanding", "disambiguation_qa", "dyck_languages",
    "formal_fallacies", "geometric_shapes", "hyperbaton", "logical_deduction_five_objects",
    "logical_deduction_seven_objects", "logical_deduction_three_objects", "movie_recommendation",
    "multistep_arithmetic_two", "navigate", "object_counting", "penguins_in_a_table",
    "reasoning_about_colored_objects", "ruin_names", "salient_translation_error_detection", "snarks",
    "sports_understanding", "temporal_sequences", "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects", "tracking_shuffled_objects_three_objects", "web_of_lies",
    "word_sorting",
)  # fmt: skip


class Benchmark(msgspec.Struct, frozen=True):
    files: tuple[str, ...]
    """Names it may have in a data folder, without their ending; the first that is there is taken."""
    source: str
    """Where to get it."""
    task: str = ""
    """Rows of this task alone, where a file holds several."""
    hub: HubSet | None = None
    train_files: tuple[str, ...] = ()
    """The same of questions that planners may be fitted on."""
    train_hub: HubSet | None = None


BENCHMARKS: dict[str, Benchmark] = {
    "gsm8k": Benchmark(
        ("questions_gsm8k_test", "gsm8k"),
        "https://github.com/openai/grade-school-math",
        hub=HubSet("openai/gsm8k", configs=("main",)),
        train_files=("questions_gsm8k_train", "gsm8k_train"),
        train_hub=HubSet("openai/gsm8k", "train", ("main",)),
    ),
    "math500": Benchmark(
        ("questions_math500", "math500"),
        f"{HUB}HuggingFaceH4/MATH-500",
        hub=HubSet("HuggingFaceH4/MATH-500"),
        train_files=("questions_math_train", "math_train"),
    ),
    "aime24": Benchmark(
        ("questions_aime24", "aime24"),
        f"{HUB}HuggingFaceH4/aime_2024",
        hub=HubSet("HuggingFaceH4/aime_2024", "train"),
    ),
    "aime25": Benchmark(
        ("questions_aime25", "aime25"),
        f"{HUB}opencompass/AIME2025",
        hub=HubSet("opencompass/AIME2025", configs=("AIME2025-I", "AIME2025-II")),
    ),
    "bbh": Benchmark(
        ("questions_bbh", "bbh"),
        "https://github.com/suzgunmirac/BIG-Bench-Hard",
        hub=HubSet("lukaemon/bbh", configs=BBH_TASKS),
    ),
    "mmlu_pro": Benchmark(
        ("recorded_mmlu_pro", "mmlu_pro"),
        f"{HUB}TIGER-Lab/MMLU-Pro",
        hub=HubSet("TIGER-Lab/MMLU-Pro"),
        train_files=("mmlu_pro_validation",),
        train_hub=HubSet("TIGER-Lab/MMLU-Pro", "validation"),
    ),
    "mmlu": Benchmark(
        ("scores_llmrouter_train", "mmlu"),
        "https://github.com/hendrycks/test",
        task="mmlu",
        hub=HubSet("cais/mmlu", configs=("all",)),
        train_files=("mmlu_validation",),
        train_hub=HubSet("cais/mmlu", "validation", ("all",)),
    ),
    "math_l5": Benchmark(("recorded_zeroeval_math_l5", "math_l5"), "https://github.com/WildEval/ZeroEval"),
    "cruxeval_o": Benchmark(("recorded_zeroeval_cruxeval_o", "cruxeval_o"), "https://github.com/WildEval/ZeroEval"),
    "humaneval": Benchmark(
        ("questions_humaneval", "humaneval"),
        "https://github.com/openai/human-eval",
        hub=HubSet("openai/openai_humaneval", configs=("openai_humaneval",)),
    ),
    "mbpp": Benchmark(
        ("questions_mbpp", "mbpp"),
        "https://github.com/google-research/google-research/tree/master/mbpp",
        hub=HubSet("google-research-datasets/mbpp", configs=("sanitized",)),
        train_files=("mbpp_train",),
        train_hub=HubSet("google-research-datasets/mbpp", "train", ("sanitized",)),
    ),
    "gpqa": Benchmark(
        ("gpqa_diamond", "gpqa"),
        f"{HUB}Idavidrein/gpqa (its authors ask for consent)",
        hub=HubSet("Idavidrein/gpqa", "train", ("gpqa_diamond",), gated=True),
    ),
    "rlpr": Benchmark(
        ("rlpr",),
        f"{HUB}openbmb/RLPR-Train-Dataset",
        hub=HubSet("openbmb/RLPR-Train-Dataset", "train"),
    ),
    "livecodebench": Benchmark(
        ("test6", "livecodebench"),
        f"{HUB}livecodebench/code_generation_lite",
        hub=HubSet("livecodebench/code_generation_lite", files=("test6.jsonl",)),
        train_files=("test", "livecodebench_v1"),
        train_hub=HubSet("livecodebench/code_generation_lite", files=("test.jsonl",)),
    ),
    "bigcodebench": Benchmark(
        ("bigcodebench",),
        f"{HUB}bigcode/bigcodebench",
        hub=HubSet("bigcode/bigcodebench", "v0.1.4"),
    ),
    "bigcodebench_hard": Benchmark(
        ("bigcodebench_hard",),
        f"{HUB}bigcode/bigcodebench-hard",
        hub=HubSet("bigcode/bigcodebench-hard", "v0.1.4"),
    ),
}

FREE: dict[RowGrader, Grader] = {
    "number": "final_number",
    "choice": "choice",
    "exact": "exact",
    "short": "short",
    "literal": "literal",
    "math": "math",
    "code": "code",
}
"""A file's word for a grader, and ours: replies to these questions are free text."""

LITERAL_TASKS = frozenset({"cruxeval_o"})
"""Tasks whose `exact` means the same Python literal."""

ENDINGS = (".jsonl.gz", ".jsonl", ".parquet", ".csv", ".json")

MOST_TAG_CHARS = 200
"""Longer notes on a question (its solution, its tests) are not carried through every outcome."""


def benchmark(name: str) -> Benchmark:
    """The benchmark of this name; else an error that names the nearest."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    near = difflib.get_close_matches(name, BENCHMARKS, n=1)
    hint = f'did you mean "{near[0]}"?' if near else f"there are: {', '.join(BENCHMARKS)}"
    raise ConfigError(f'no benchmark is called "{name}"; {hint}')


def load_benchmark(name: str, data: Path, *, limit: int | None = None, part: Part = "test") -> list[Task]:
    """The questions of a benchmark, from a folder or a file of them. A part it does not have has no questions."""
    wanted = benchmark(name)
    if part == "train":
        file = find_file(wanted.train_files, data) if data.is_dir() else None
        return load_tasks(file, benchmark=name)[:limit] if file else []
    file = find_file(wanted.files, data)
    if file is None:
        raise ConfigError(
            f"{data} has no {wanted.files[-1]}.jsonl for {name}; get it from {wanted.source} and put it there as "
            "published, or write one object a line: id, question, answer, grader"
        )
    tasks = [task for task in load_tasks(file, benchmark=name) if not wanted.task or task.kind == wanted.task]
    return tasks[:limit]


async def fetch_benchmark(
    name: str,
    *,
    part: Part = "test",
    cache: Path | None = None,
    addresses: Addresses | None = None,
    progress: Progress = lambda what, done, total: None,
) -> list[Task]:
    """The questions of a benchmark, from the hub or from what was fetched before."""
    wanted = benchmark(name)
    source = wanted.hub if part == "test" else wanted.train_hub
    if source is None:
        if part == "train":
            return []
        raise ConfigError(f"{name} is not on the hub; get it from {wanted.source} and name its folder with --data")
    file = await fetch(source, cache=cache, addresses=addresses, progress=progress)
    tasks = load_tasks(file, benchmark=name)
    if not tasks:
        raise ConfigError(f"{source.dataset} has no questions; {where_to_get(source)}")
    return tasks


def load_tasks(file: Path, *, benchmark: str = "") -> list[Task]:
    """Every question of a file, in our form or as its authors publish it; a question that stands twice counts once."""
    found: dict[str, Task] = {}
    for number, raw in enumerate(_raw_rows(file)):
        row = _row(raw, number, benchmark=benchmark, file=file)
        if row is not None:
            task = task_of(row if row.task else msgspec.structs.replace(row, task=benchmark))
            found.setdefault(task.id, task)
    return list(found.values())


def find_file(names: Sequence[str], data: Path) -> Path | None:
    if data.is_file():
        return data
    candidates = (data / f"{name}{ending}" for name in names for ending in ENDINGS)
    return next((file for file in candidates if file.is_file()), None)


def decoded(file: Path, type_: type[Any]) -> Iterator[tuple[int, Any]]:
    """The lines of a file as structs, with their numbers; an error names the line."""
    decoder = msgspec.json.Decoder(type_)
    for number, line in enumerate(_content(file).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield number, decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}, line {number} is not a question: {error}") from None


def task_of(row: Row) -> Task:
    """A line of a file as a task. Of code, the answer is how it is judged; without tests it stays as it is."""
    grader = "literal" if row.task in LITERAL_TASKS and row.grader == "exact" else FREE[row.grader]
    tags = {name: _text(value) for name, value in row.meta.items()} | {"task": row.task}
    kept = {name: value for name, value in tags.items() if len(value) <= MOST_TAG_CHARS}
    problem = code_problem(row) if grader == "code" else None
    if problem is None:
        return Task(row.id, row.question, row.answer, grader=grader, kind=row.task, tags=kept)
    return Task(row.id, asked_question(row), answer_of(problem), grader=grader, kind=row.task, tags=kept)


def _row(raw: Mapping[str, Any], index: int, *, benchmark: str, file: Path) -> Row | None:
    """Our form where it says how to grade, else the authors' own."""
    try:
        if "grader" in raw or benchmark not in PUBLISHED:
            return msgspec.convert(raw, Row)
        return PUBLISHED[benchmark](raw, index)
    except (msgspec.ValidationError, KeyError, TypeError, ValueError, StopIteration, GradeError) as error:
        said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"{file}, line {index + 1} is not a question: {said}") from None


def _raw_rows(file: Path) -> Iterable[Mapping[str, Any]]:
    if file.suffix == ".parquet":
        return _parquet(file)
    if file.suffix == ".csv":
        return csv.DictReader(io.StringIO(_content(file).decode(errors="replace")))
    if file.suffix == ".json":
        return _json_rows(file)
    return (raw for _, raw in decoded(file, dict[str, Any]))


def _json_rows(file: Path) -> list[Mapping[str, Any]]:
    """A list of rows, or an object that holds one, as BIG-Bench Hard's files do under `examples`."""
    try:
        found = json.loads(_content(file))
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from None
    rows = (
        next((value for value in found.values() if isinstance(value, list)), None) if isinstance(found, dict) else found
    )
    if not isinstance(rows, list):
        raise ConfigError(f"{file} holds no list of questions")
    return rows


def _parquet(file: Path) -> list[Mapping[str, Any]]:
    try:
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError(f"{file} needs pyarrow to be read: pip install pyarrow, or give JSON lines") from None
    try:
        rows: list[Mapping[str, Any]] = pyarrow.parquet.read_table(file).to_pylist()
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise ConfigError(f"questions cannot be read from {file}: {error}") from None
    return rows


def _content(file: Path) -> bytes:
    try:
        data = file.read_bytes()
        return gzip.decompress(data) if file.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"questions cannot be read from {file}: {error}") from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
