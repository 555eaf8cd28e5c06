"""Made-up rows in the very form that each benchmark's authors publish, and a right reply to each.

Every question carries a mark, `[gsm8k #3]`, so that a stub can tell which one it is asked, whatever a planner makes of
it.
"""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Callable
from typing import Any

Published = tuple[dict[str, Any], str]
"""A row and a right reply."""


def mark(name: str, i: int) -> str:
    return f"[{name} #{i}]"


def _gsm8k(i: int) -> Published:
    row = {"question": f"{mark('gsm8k', i)} Ann has {i} apples and buys 1,000.", "answer": f"Add.\n#### {i + 1000:,}"}
    return row, f"The answer is {i + 1000}."


def _math500(i: int) -> Published:
    row = {
        "problem": f"{mark('math500', i)} What is half of ${2 * i + 1}$?",
        "solution": "Halve it.",
        "answer": f"\\frac{{{2 * i + 1}}}{{2}}",
        "subject": "Algebra",
        "level": 1,
        "unique_id": f"test/algebra/{i}.json",
    }
    return row, f"Halving gives \\boxed{{{i + 0.5}}}"


def _aime(name: str) -> Callable[[int], Published]:
    def row(i: int) -> Published:
        published = {"question": f"{mark(name, i)} Find ${i} + 100$.", "answer": str(i + 100)}
        return published, f"The answer is {i + 100}."

    return row


def _mmlu(i: int) -> Published:
    row = {
        "question": f"{mark('mmlu', i)} Which letter comes first?",
        "subject": "reading",
        "choices": ["B", "C", "A", "D"],
        "answer": 2,
    }
    return row, "The answer is (C)."


def _mmlu_pro(i: int) -> Published:
    row = {
        "question_id": i,
        "question": f"{mark('mmlu_pro', i)} Which is even?",
        "options": ["1", "3", "5", "7", "9", "11", "12", "N/A"],
        "answer": "G",
        "answer_index": 6,
        "category": "math",
    }
    return row, "The answer is (G)."


def _gpqa(i: int) -> Published:
    row = {
        "Record ID": f"rec{i}",
        "Question": f"{mark('gpqa', i)} Which of these is a noble gas?",
        "Correct Answer": "Argon",
        "Incorrect Answer 1": "Iron",
        "Incorrect Answer 2": "Tin",
        "Incorrect Answer 3": "Lead",
        "High-level domain": "Chemistry",
    }
    return row, "Argon"


def _rlpr(i: int) -> Published:
    row = {
        "data_source": "WebInstruct",
        "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": f"{mark('rlpr', i)} How far?"}],
        "ability": "Physics",
        "reward_model": {"ground_truth": f"{i + 1}.50 m/s", "style": "rule"},
        "extra_info": {},
    }
    return row, f"The answer is {i + 1}.5 m/s"


def _bbh(i: int) -> Published:
    row = {"input": f"{mark('bbh', i)} not ( True ) is", "target": "False", "config": "boolean_expressions"}
    return row, "The answer is False"


def _humaneval(i: int) -> Published:
    row = {
        "task_id": f"HumanEval/{i}",
        "prompt": f'def add_{i}(a: int, b: int) -> int:\n    """{mark("humaneval", i)} Add two numbers and {i}."""\n',
        "canonical_solution": f"    return a + b + {i}\n",
        "test": f"def check(candidate):\n    assert candidate(1, 2) == {i + 3}\n",
        "entry_point": f"add_{i}",
    }
    return row, f"```python\ndef add_{i}(a, b):\n    return a + b + {i}\n```"


def _mbpp(i: int) -> Published:
    row = {
        "source_file": "made up",
        "task_id": i,
        "prompt": f"{mark('mbpp', i)} Write a function to double a number.",
        "code": f"def double_{i}(n):\n    return 2 * n",
        "test_imports": [],
        "test_list": [f"assert double_{i}(2) == 4", f"assert double_{i}(-{i}) == -{2 * i}"],
    }
    return row, f"```python\ndef double_{i}(n):\n    return n + n\n```"


def _bigcodebench(name: str) -> Callable[[int], Published]:
    def row(i: int) -> Published:
        head = "import collections\n\ndef task_func(words):\n"
        body = "    return dict(collections.Counter(words))\n"
        test = (
            "import unittest\nclass TestCases(unittest.TestCase):\n"
            "    def test_counts(self):\n        self.assertEqual(task_func(['a', 'b', 'a']), {'a': 2, 'b': 1})\n"
            f"    def test_many(self):\n        self.assertEqual(task_func(['x'] * {i + 1}), {{'x': {i + 1}}})\n"
        )
        published = {
            "task_id": f"BigCodeBench/{i}",
            "complete_prompt": head,
            "instruct_prompt": f"{mark(name, i)} Count the words. Start with:\n```\n{head}```",
            "canonical_solution": body,
            "code_prompt": head,
            "test": test,
            "entry_point": "task_func",
            "doc_struct": "{}",
            "libs": "['collections']",
        }
        return published, f"```python\n{head}{body}```"

    return row


def _livecodebench(i: int) -> Published:
    functional = i % 2 == 1
    cases = [
        {"input": f"[1, {i}]\n2", "output": f"[2, {2 * i}]", "testtype": "functional"}
        if functional
        else {"input": f"{n}\n", "output": f"{n + i}\n", "testtype": "stdin"}
        for n in range(2)
    ]
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases[1:])))).decode()
    row = {
        "question_title": "Made up",
        "question_content": f"{mark('livecodebench', i)} Scale a list, or add {i}.",
        "platform": "leetcode" if functional else "atcoder",
        "question_id": f"q{i}",
        "contest_id": "c",
        "contest_date": "2025-01-01T00:00:00",
        "starter_code": "class Solution:\n    def scale(self, ns: List[int], by: int) -> List[int]:\n        "
        if functional
        else "",
        "difficulty": "easy",
        "public_test_cases": json.dumps(cases[:1]),
        "private_test_cases": packed,
        "metadata": json.dumps({"func_name": "scale"} if functional else {}),
    }
    if functional:
        code = "class Solution:\n    def scale(self, ns: List[int], by: int):\n        return [n * by for n in ns]"
    else:
        code = f"print(int(input()) + {i})"
    return row, f"```python\n{code}\n```"


PUBLISHED_ROWS: dict[str, Callable[[int], Published]] = {
    "gsm8k": _gsm8k,
    "math500": _math500,
    "aime24": _aime("aime24"),
    "aime25": _aime("aime25"),
    "mmlu": _mmlu,
    "mmlu_pro": _mmlu_pro,
    "gpqa": _gpqa,
    "rlpr": _rlpr,
    "bbh": _bbh,
    "humaneval": _humaneval,
    "mbpp": _mbpp,
    "bigcodebench": _bigcodebench("bigcodebench"),
    "bigcodebench_hard": _bigcodebench("bigcodebench_hard"),
    "livecodebench": _livecodebench,
}


def published(name: str, n: int) -> list[Published]:
    return [PUBLISHED_ROWS[name](i) for i in range(n)]
