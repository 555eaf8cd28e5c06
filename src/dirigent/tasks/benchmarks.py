"""Public benchmarks by name: their files, their graders and their sources.

`fetch_benchmark` gets questions from the hub; `load_benchmark` reads them from a folder or a file of the user. A file
is any table (`tables.py`), either in the authors' form (`published.py`) or in our own: `id`, `question`, `answer`,
`grader`, optionally `task` and `meta`. A folder may also hold a copy of the hub's repository, or one file for each
configuration. A new benchmark needs a line in `BENCHMARKS` and a function in `published.py`; a plugin adds one as an
entry of `dirigent.tasks` that is a `Benchmark`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from dirigent import plugins
from dirigent.errors import ConfigError, GradeError
from dirigent.tasks.code import answer_of
from dirigent.tasks.hub import Addresses, HubSet, Progress, config_of, fetch, where_to_get
from dirigent.tasks.published import PUBLISHED, Row, RowGrader, asked_question, code_problem
from dirigent.tasks.tables import ENDINGS, raw_rows
from dirigent.tasks.tables import decoded as decoded
from dirigent.tasks.task import Grader, Task
from dirigent.toml import nearest

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
    """File names that a data folder may use, without their ending. The first one found is read."""
    source: str
    """Where users get the questions."""
    task: str = ""
    """If a file holds several tasks, only the rows of this one are read."""
    hub: HubSet | None = None
    train_files: tuple[str, ...] = ()
    """The same for the questions that planners may be fitted on."""
    train_hub: HubSet | None = None
    train_from: str = ""
    """The name of another benchmark. Its questions are the training part of this one."""
    most_train: int | None = None
    """The most training questions to read, for sets that do not fit into memory."""
    row: Callable[[Mapping[str, Any], int], Row | None] | None = None
    """Converts a row in the authors' form; `published.py` has these functions for our own benchmarks."""


def _shard(split: str, folder: str) -> str:
    """Returns the file name that the hub gives to a split of one file."""
    return f"{folder}/{split}-00000-of-00001.parquet"


def _one(dataset: str, split: str = "test", config: str = "default", file: str = "") -> HubSet:
    """Returns a split that is one file: the named file, or the hub's file in the configuration's folder."""
    folder = "data" if config == "default" else config
    return HubSet(dataset, split, (config,), (file or _shard(split, folder),))


BENCHMARKS: dict[str, Benchmark] = {
    "gsm8k": Benchmark(
        ("questions_gsm8k_test", "gsm8k"),
        "https://github.com/openai/grade-school-math",
        hub=_one("openai/gsm8k", config="main"),
        train_files=("questions_gsm8k_train", "gsm8k_train"),
        train_hub=_one("openai/gsm8k", "train", "main"),
    ),
    "math500": Benchmark(
        ("questions_math500", "math500"),
        f"{HUB}HuggingFaceH4/MATH-500",
        hub=_one("HuggingFaceH4/MATH-500", file="test.jsonl"),
        train_files=("questions_math_train", "math_train"),
    ),
    "aime24": Benchmark(
        ("questions_aime24", "aime24"),
        f"{HUB}HuggingFaceH4/aime_2024",
        hub=_one("HuggingFaceH4/aime_2024", "train"),
        train_from="aime25",  # thirty questions are too few to hold any out, and the two years share no question
    ),
    "aime25": Benchmark(
        ("questions_aime25", "aime25"),
        f"{HUB}opencompass/AIME2025",
        hub=HubSet(
            "opencompass/AIME2025",
            configs=("AIME2025-I", "AIME2025-II"),
            files=("aime2025-I.jsonl", "aime2025-II.jsonl"),
        ),
        train_from="aime24",
    ),
    "bbh": Benchmark(
        ("questions_bbh", "bbh"),
        "https://github.com/suzgunmirac/BIG-Bench-Hard",
        # The better known set, lukaemon/bbh, is a script without data, and the hub no longer runs scripts.
        hub=HubSet("SaylorTwift/bbh", configs=BBH_TASKS, files=tuple(_shard("test", task) for task in BBH_TASKS)),
    ),
    "mmlu_pro": Benchmark(
        ("recorded_mmlu_pro", "mmlu_pro"),
        f"{HUB}TIGER-Lab/MMLU-Pro",
        hub=_one("TIGER-Lab/MMLU-Pro"),
        train_files=("mmlu_pro_validation",),
        train_hub=_one("TIGER-Lab/MMLU-Pro", "validation"),
    ),
    "mmlu": Benchmark(
        ("scores_llmrouter_train", "mmlu"),
        f"{HUB}cais/mmlu",
        task="mmlu",
        hub=_one("cais/mmlu", config="all"),
        train_files=("mmlu_validation",),
        train_hub=_one("cais/mmlu", "validation", "all"),
    ),
    "math_l5": Benchmark(("recorded_zeroeval_math_l5", "math_l5"), "https://github.com/WildEval/ZeroEval"),
    "cruxeval_o": Benchmark(("recorded_zeroeval_cruxeval_o", "cruxeval_o"), "https://github.com/WildEval/ZeroEval"),
    "humaneval": Benchmark(
        ("questions_humaneval", "humaneval"),
        "https://github.com/openai/human-eval",
        hub=_one("openai/openai_humaneval", config="openai_humaneval"),
    ),
    "mbpp": Benchmark(
        ("questions_mbpp", "mbpp"),
        "https://github.com/google-research/google-research/tree/master/mbpp",
        hub=_one("google-research-datasets/mbpp", config="sanitized"),
        train_files=("mbpp_train",),
        train_hub=_one("google-research-datasets/mbpp", "train", "sanitized"),
    ),
    "gpqa": Benchmark(
        ("gpqa_diamond", "gpqa"),
        f"{HUB}Idavidrein/gpqa (its authors ask for consent)",
        hub=HubSet("Idavidrein/gpqa", "train", ("gpqa_diamond",), ("gpqa_diamond.csv",), gated=True),
    ),
    "rlpr": Benchmark(
        ("rlpr_train", "rlpr"),
        f"{HUB}openbmb/RLPR-Train-Dataset",
        hub=_one("openbmb/RLPR-Train-Dataset", "train", file="rlpr_train.parquet"),
    ),
    "livecodebench": Benchmark(
        ("test6", "livecodebench"),
        f"{HUB}livecodebench/code_generation_lite",
        hub=_one("livecodebench/code_generation_lite", config="v6", file="test6.jsonl"),
        train_files=("test", "livecodebench_v1"),
        train_hub=_one("livecodebench/code_generation_lite", config="v1", file="test.jsonl"),
        most_train=100,  # the packed tests of this set are a gigabyte
    ),
    "bigcodebench": Benchmark(
        ("bigcodebench",),
        f"{HUB}bigcode/bigcodebench",
        hub=_one("bigcode/bigcodebench", "v0.1.4"),
    ),
    "bigcodebench_hard": Benchmark(
        ("bigcodebench_hard",),
        f"{HUB}bigcode/bigcodebench-hard",
        hub=_one("bigcode/bigcodebench-hard", "v0.1.4"),
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
"""A file's name of a grader -> our grader. Replies to these questions are free text."""

LITERAL_TASKS = frozenset({"cruxeval_o"})
"""Tasks of which `exact` means "the same Python literal"."""

MOST_TAG_CHARS = 200
"""Longer notes on a question (its solution, its tests) are dropped, so that not every outcome carries them."""


def benchmark(name: str) -> Benchmark:
    """Returns the benchmark of this name; raises ConfigError with the nearest name if no benchmark has it."""
    if (found := find_benchmark(name)) is not None:
        return found
    raise ConfigError(f'no benchmark is called "{name}"{nearest(name, known_benchmarks())}')


def find_benchmark(name: str) -> Benchmark | None:
    """Returns the benchmark of this name, ours or a plugin's, else None. A plugin's family of tasks counts as None."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    found = plugins.load("tasks", name) if name in plugins.entries("tasks") else None
    return found if isinstance(found, Benchmark) else None


def known_benchmarks() -> tuple[str, ...]:
    """Returns every name that `--tasks` takes, ours first, without importing plugins."""
    return tuple(dict.fromkeys((*BENCHMARKS, *plugins.entries("tasks"))))


def load_benchmark(name: str, data: Path, *, limit: int | None = None, part: Part = "test") -> list[Task]:
    """Returns the questions of a benchmark from a folder or a file; an empty list if it lacks this part."""
    wanted = benchmark(name)
    if part == "train":
        if not data.is_dir():
            return []
        if other := wanted.train_from:
            its = benchmark(other)
            return _tasks(_files(other, its.files, its.hub, data), benchmark=other)[:limit]
        files = _files(name, wanted.train_files, wanted.train_hub, data)
        return _tasks(files, benchmark=name, most=wanted.most_train)[:limit]
    files = _files(name, wanted.files, wanted.hub, data)
    if not files:
        raise ConfigError(
            f"{data} has no {wanted.files[-1]}.jsonl for {name}; get the file from {wanted.source} and put it there "
            "unchanged, or write one object a line: id, question, answer, grader"
        )
    tasks = [task for task in _tasks(files, benchmark=name) if not wanted.task or task.kind == wanted.task]
    return tasks[:limit]


async def fetch_benchmark(
    name: str,
    *,
    part: Part = "test",
    cache: Path | None = None,
    addresses: Addresses | None = None,
    progress: Progress = lambda what, done, total: None,
) -> list[Task]:
    """Returns the questions of a benchmark from the hub or from the local cache of an earlier fetch."""
    wanted = benchmark(name)
    if part == "train" and wanted.train_from:
        return await fetch_benchmark(wanted.train_from, cache=cache, addresses=addresses, progress=progress)
    source = wanted.hub if part == "test" else wanted.train_hub
    if source is None:
        if part == "train":
            return []
        raise ConfigError(f"{name} is not on the hub; get it from {wanted.source} and name its folder with --data")
    file = await fetch(source, cache=cache, addresses=addresses, progress=progress)
    tasks = _tasks([_File(file)], benchmark=name, most=wanted.most_train if part == "train" else None)
    if not tasks:
        raise ConfigError(f"{source.dataset} has no questions; {where_to_get(source)}")
    return tasks


def load_tasks(file: Path, *, benchmark: str = "") -> list[Task]:
    """Returns every question of a file, in our form or the authors' form. A repeated question counts once."""
    return _tasks([_File(file)], benchmark=benchmark)


def find_file(names: Sequence[str], data: Path) -> Path | None:
    if data.is_file():
        return data
    candidates = (data / f"{name}{ending}" for name in names for ending in ENDINGS)
    return next((file for file in candidates if file.is_file()), None)


class _File(msgspec.Struct, frozen=True):
    path: Path
    config: str = ""
    """The configuration of its rows, for rows without the field `config`."""


def _files(name: str, names: Sequence[str], source: HubSet | None, data: Path) -> list[_File]:
    """Returns the file of a known name, else the files of the hub's repository or of each configuration."""
    if file := find_file(names, data):
        return [_File(file)]
    if source is None:
        return []
    for folder in (data / name, data / source.dataset.rpartition("/")[2], data):
        published = [_File(folder / file, config_of(file)) for file in source.files]
        if published and all(file.path.is_file() for file in published):
            return published
        single = [(config, find_file([config], folder)) for config in source.configs if folder.is_dir()]
        if single and all(file is not None for _, file in single):
            return [_File(file, config) for config, file in single if file is not None]
    return []


def _tasks(files: Sequence[_File], *, benchmark: str, most: int | None = None) -> list[Task]:
    found: dict[str, Task] = {}
    numbers = itertools.count()
    for file in files:
        for index, raw in enumerate(raw_rows(file.path)):
            if most is not None and len(found) >= most:
                return list(found.values())
            row = _row(
                {"config": file.config, **raw}, next(numbers), benchmark=benchmark, at=f"{file.path}, line {index + 1}"
            )
            if row is not None:
                task = task_of(row if row.task else msgspec.structs.replace(row, task=benchmark))
                found.setdefault(task.id, task)
    return list(found.values())


def task_of(row: Row) -> Task:
    """Converts a row into a task. The answer of a code row becomes its tests, if the row has tests."""
    grader = "literal" if row.task in LITERAL_TASKS and row.grader == "exact" else FREE[row.grader]
    tags = {name: _text(value) for name, value in row.meta.items()} | {"task": row.task}
    kept = {name: value for name, value in tags.items() if len(value) <= MOST_TAG_CHARS}
    problem = code_problem(row) if grader == "code" else None
    if problem is None:
        return Task(row.id, row.question, row.answer, grader=grader, kind=row.task, tags=kept)
    return Task(row.id, asked_question(row), answer_of(problem), grader=grader, kind=row.task, tags=kept)


def _row(raw: Mapping[str, Any], index: int, *, benchmark: str, at: str) -> Row | None:
    """Reads a row in our form if it names a grader, else in the authors' form."""
    try:
        brought = find_benchmark(benchmark) if benchmark else None
        read = (brought.row if brought is not None else None) or PUBLISHED.get(benchmark)
        if "grader" in raw or read is None:
            return msgspec.convert(raw, Row)
        return read(raw, index)
    except (msgspec.ValidationError, KeyError, TypeError, ValueError, StopIteration, GradeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"{at} is not a question: {reason}") from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
