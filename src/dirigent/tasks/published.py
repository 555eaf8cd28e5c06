"""Convert rows of public benchmarks from their authors' form to ours: one small function for each set.

The functions are pure. Each takes a mapping with the published field names and returns a `Row`, or None for a row that
the set's own rules exclude. `hub.py` fetches, `graders.py` and `code.py` judge. Tests of code go into `meta.problem`,
which only the grader reads.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import pickle
import random
import re
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from dirigent.errors import GradeError
from dirigent.tasks.answers import COMPLETE_FUNCTION, FILL_STARTER, PASS_TEST, READ_STDIN, lettered
from dirigent.tasks.code import Case, CodeProblem, problem_of

RowGrader = Literal["number", "choice", "exact", "short", "literal", "math", "code"]

Raw = Mapping[str, Any]


class Row(msgspec.Struct, frozen=True):
    """A line of a file in our form; other fields of the line (`outputs`, `scores`) are ignored."""

    id: str
    question: str
    answer: str
    grader: RowGrader
    task: str = ""
    meta: dict[str, Any] = {}


def gsm8k(raw: Raw, index: int) -> Row:
    solution, _, answer = raw["answer"].rpartition("####")
    return Row(
        f"gsm8k-{index}", raw["question"], answer.strip().replace(",", ""), "number", "gsm8k", {"solution": solution}
    )


def math500(raw: Raw, index: int) -> Row:
    meta = {"subject": raw.get("subject", ""), "level": raw.get("level", "")}
    return Row(f"math500-{raw.get('unique_id', index)}", raw["problem"], raw["answer"], "math", "math500", meta)


def aime(raw: Raw, index: int) -> Row:
    """The answer is a whole number from 0 to 999. The set has leading zeros and, once, a degree sign after it."""
    question = raw["problem"] if "problem" in raw else raw["question"]
    answer = re.fullmatch(r"\$?(\d{1,3})(\.0*|°|\^\{?\\circ\}?)?\$?", str(raw["answer"]).strip())
    if answer is None:
        raise ValueError(f"its answer {raw['answer']!r} is not a whole number from 0 to 999")
    return Row(f"aime-{raw.get('id', index)}", question, str(int(answer[1])), "number")


def mmlu(raw: Raw, index: int) -> Row:
    """The set gives the answer as the option's number, counted from 0."""
    letter = _letter(raw["answer"], raw["choices"])
    meta = {"subject": raw.get("subject", "")}
    return Row(f"mmlu-{index}", lettered(raw["question"], raw["choices"]), letter, "choice", "mmlu", meta)


def mmlu_pro(raw: Raw, index: int) -> Row:
    """The set has up to ten options and gives the answer's letter; early files fill missing options with "N/A"."""
    options = list(raw["options"])
    while options and options[-1] == "N/A":
        options.pop()
    letter = _letter(raw["answer"], options)
    id, meta = f"mmlu-pro-{raw.get('question_id', index)}", {"subject": raw.get("category", "")}
    return Row(id, lettered(raw["question"], options), letter, "choice", "mmlu_pro", meta)


def _letter(answer: int | str, options: Sequence[str]) -> str:
    """Returns the letter of an existing option, from a letter or a number that counts from 0."""
    number = ord(answer) - 65 if isinstance(answer, str) and re.fullmatch("[A-Z]", answer) else int(answer)
    if not 0 <= number < len(options):
        raise ValueError(f"its answer {answer!r} is not one of its {len(options)} options")
    return chr(65 + number)


def gpqa(raw: Raw, index: int) -> Row:
    """The set lists the right option first. The record's id seeds the shuffle, so every worker sees one order."""
    right = raw["Correct Answer"].strip()
    options = [right, *(raw[f"Incorrect Answer {i}"].strip() for i in (1, 2, 3))]
    id = str(raw.get("Record ID", index))
    random.Random(f"gpqa {id}").shuffle(options)
    letter, meta = chr(65 + options.index(right)), {"subject": raw.get("High-level domain", "")}
    return Row(f"gpqa-{id}", lettered(raw["Question"], options), letter, "choice", "gpqa", meta)


MOST_RLPR_CHARS = 30
"""The Conductor paper keeps only ground truths up to this length, because rules cannot compare longer ones."""


def rlpr(raw: Raw, index: int) -> Row | None:
    answer = str(raw["reward_model"]["ground_truth"]).strip()
    if not 0 < len(answer) <= MOST_RLPR_CHARS:
        return None
    question = next(turn["content"] for turn in reversed(raw["prompt"]) if turn["role"] == "user")
    return Row(f"rlpr-{index}", question, answer, "short", "rlpr", {"subject": raw.get("ability", "")})


def bbh(raw: Raw, index: int) -> Row:
    target, name = raw["target"].strip(), raw.get("config", "")
    letter = re.fullmatch(r"\(([A-Z])\)", target)
    kind: RowGrader = "choice" if letter else "exact"
    return Row(f"bbh-{name}-{index}", raw["input"], letter[1] if letter else target, kind, "bbh", {"subject": name})


def humaneval(raw: Raw, index: int) -> Row:
    meta = {"entry_point": raw["entry_point"], "test": raw["test"]}
    return Row(raw["task_id"], raw["prompt"], raw["canonical_solution"], "code", "humaneval", meta)


def mbpp(raw: Raw, index: int) -> Row:
    question = raw["prompt"] if "prompt" in raw else raw["text"]
    imports = raw.get("test_imports") or ([raw["test_setup_code"]] if raw.get("test_setup_code") else [])
    meta = {"test_list": list(raw["test_list"]), "test_imports": list(imports)}
    return Row(f"mbpp-{raw['task_id']}", question, raw["code"], "code", "mbpp", meta)


def bigcodebench(raw: Raw, index: int) -> Row:
    """The row in its instruct form: the question gives the code to start with."""
    name = raw["entry_point"]
    problem = CodeProblem(
        tests=f"{raw['test']}\n\n{_RUN_UNITTEST}",
        names=(name,),
        libraries=_libraries(f"{raw['test']}\n{raw['code_prompt']}\n    pass\n", raw.get("libs", "")),
        reference=f"{raw['code_prompt']}{raw['canonical_solution']}",
    )
    meta = {"problem": msgspec.to_builtins(problem)}
    return Row(raw["task_id"], raw["instruct_prompt"], problem.reference, "code", "bigcodebench", meta)


_RUN_UNITTEST = """\
import unittest as _unittest
_found = _unittest.TestResult()
_unittest.defaultTestLoader.loadTestsFromTestCase(TestCases).run(_found)
_bad = [str(case) + ": " + said.strip().splitlines()[-1] for case, said in _found.failures + _found.errors]
assert _found.testsRun and not _bad, "; ".join(_bad) or "no tests were found"
"""


def livecodebench(raw: Raw, index: int) -> Row:
    """A program that reads stdin, or a class to fill. Public and private cases both count.

    Output is compared as in the set's own runner: lines without the space around them, numbers by value.
    """
    cases = [*_cases(raw["public_test_cases"]), *_cases(raw["private_test_cases"])]
    starter = raw.get("starter_code", "").strip()
    if any(case["testtype"] == "functional" for case in cases):
        problem = _calls(cases, json.loads(raw["metadata"])["func_name"])
        form = f"{FILL_STARTER}\n\n```python\n{starter}\n```"
    else:
        cases_read = tuple(Case(case["input"], case["output"]) for case in cases)
        problem = CodeProblem(cases=cases_read, before=_TAKEN_FOR_GRANTED)
        form = READ_STDIN
    meta = {"problem": msgspec.to_builtins(problem), "subject": raw.get("difficulty", "")}
    question = f"{raw['question_content'].strip()}\n\n{form}"
    return Row(f"livecodebench-{raw['question_id']}", question, "tests", "code", "livecodebench", meta)


_CALL = "call_solution"

_MODULES = (
    "bisect", "collections", "copy", "datetime", "functools", "heapq", "io", "itertools", "json", "math", "operator",
    "random", "re", "statistics", "string", "sys",
)  # fmt: skip

_TAKEN_FOR_GRANTED = (
    "".join(f"from {module} import *\n" for module in _MODULES)
    + "from builtins import *\nfrom typing import *\n"
    + f"import {', '.join(_MODULES)}\nsys.setrecursionlimit(50000)\n"
)
"""What the set's runner imports for every program; starter code uses `List` without importing it. The builtins come
last, because `math.pow` would hide the builtin `pow`, which takes a modulus."""


def _calls(cases: Sequence[Raw], name: str) -> CodeProblem:
    """The published input has one JSON value a line, one for each argument. A bare function may replace the class."""
    called = [
        ([json.loads(line) for line in case["input"].splitlines() if line.strip()], json.loads(case["output"]))
        for case in cases
    ]
    parts = tuple(
        f"import json\narguments, wanted = json.loads({json.dumps(json.dumps(case))})\n"
        f"got = {_CALL}(*arguments)\n"
        "got = list(got) if isinstance(got, tuple) else got\n"
        "assert got == wanted, 'another result than expected'\n"
        for case in called
    )
    door = (
        f"\ndef {_CALL}(*arguments):\n"
        f"    found = getattr(Solution(), {name!r}) if 'Solution' in globals() else globals()[{name!r}]\n"
        f"    return found(*arguments)\n"
    )
    return CodeProblem(parts=parts, names=(_CALL,), before=_TAKEN_FOR_GRANTED, after=door)


MOST_CASES_BYTES = 1 << 30
"""The most bytes of one unpacked problem: a few packed kilobytes could fill all memory."""


def _cases(published: Any) -> list[dict[str, str]]:
    """Returns test cases from JSON, or from the set's packing: base64 of zlib of a pickled JSON text."""
    if not isinstance(published, str):
        return list(published)
    try:
        return list(json.loads(published))
    except ValueError:
        found = _unpacked(published)
        return list(json.loads(found) if isinstance(found, str | bytes) else found)


def _unpacked(published: str) -> Any:
    try:
        opened = zlib.decompressobj()
        packed = opened.decompress(base64.b64decode(published, validate=True), MOST_CASES_BYTES)
        if not opened.eof:
            raise GradeError(f"test cases of the file are cut off or larger than {MOST_CASES_BYTES} bytes")
        return _PlainText(io.BytesIO(packed)).load()
    except (zlib.error, pickle.PickleError, ValueError, EOFError, LookupError, TypeError, AttributeError) as error:
        raise GradeError(f"test cases of the file cannot be unpacked: {error}") from None


class _PlainText(pickle.Unpickler):
    """Reads a pickled text only; refuses a pickle that names any class or function, without running it."""

    def find_class(self, module: str, name: str) -> Any:
        raise GradeError(f"a test case of the file asks to load {module}.{name}; the file is not a list of test cases")


def _libraries(source: str, listed: str) -> tuple[str, ...]:
    """Returns the modules outside the standard library that a problem's code imports or the set lists."""
    try:
        named = {str(name) for name in ast.literal_eval(listed)} if listed else set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                named.add(node.module)
    except (ValueError, SyntaxError) as error:
        raise GradeError(f"the libraries of a problem cannot be read: {error}") from None
    return tuple(sorted({name.split(".")[0] for name in named} - sys.stdlib_module_names))


PUBLISHED: dict[str, Callable[[Raw, int], Row | None]] = {
    "gsm8k": gsm8k,
    "math500": math500,
    "aime24": aime,
    "aime25": aime,
    "mmlu": mmlu,
    "mmlu_pro": mmlu_pro,
    "gpqa": gpqa,
    "rlpr": rlpr,
    "bbh": bbh,
    "humaneval": humaneval,
    "mbpp": mbpp,
    "bigcodebench": bigcodebench,
    "bigcodebench_hard": bigcodebench,
    "livecodebench": livecodebench,
}
"""The converter of each benchmark, by the benchmark's name."""


def asked_question(row: Row) -> str:
    """Returns the question of a code row for a model: the function to complete, or the task with one test."""
    if "entry_point" in row.meta and "test" in row.meta:
        return f"{COMPLETE_FUNCTION}\n\n```python\n{row.question.rstrip()}\n```"
    if row.meta.get("test_list"):
        return f"{row.question.strip()}\n\n{PASS_TEST}\n\n{row.meta['test_list'][0]}"
    return row.question


def code_problem(row: Row) -> CodeProblem | None:
    """Returns how to judge a row of code, or None if its file has no tests for it."""
    try:
        return problem_of({"id": row.id, "question": row.question, "answer": row.answer, "meta": row.meta})
    except (GradeError, SyntaxError):
        return None
