"""Code in a reply is found, run and judged: right programs pass, wrong ones fail."""

from __future__ import annotations

import pytest
from tests.facts import Saying, facts
from tests.programs import need

from dirigent.errors import GradeError
from dirigent.sandbox import Profile, Sandbox, open_untested
from dirigent.sandbox.inside import literals
from dirigent.tasks import Task
from dirigent.tasks.code import (
    Case,
    CodeProblem,
    answer_of,
    extract,
    free_names,
    grade_code,
    grade_code_task,
    grade_output,
    problem_of,
    program,
)

PROMPT = '''from typing import List

def shift(n: int) -> int:
    return n + 10

def middle(numbers: List[int]) -> int:
    """The middle of an odd list."""
'''
PROMPTED = problem_of(
    {
        "id": "own/0",
        "question": PROMPT,
        "meta": {
            "entry_point": "middle",
            "test": "def check(f):\n    assert f([3, 1, 2]) == 2\n    assert shift(f([5])) == 15",
        },
    }
)
BODY = "    return sorted(numbers)[len(numbers) // 2]\n"
WHOLE = f"def middle(numbers: List[int]) -> int:\n{BODY}"
RETURNED = "def f(x): return x"
LISTED = {"id": "own/1", "question": "Write a function.", "meta": {"test_imports": ["import math"]}}

RIGHT = {
    "a body": (PROMPTED, BODY),
    "a body without its indent": (PROMPTED, BODY.strip()),
    "a whole function": (PROMPTED, WHOLE),
    "a whole function in prose": (PROMPTED, f"Sure!\n```python\n{WHOLE}```\nIt sorts the list."),
    "a lambda": (PROMPTED, "middle = lambda numbers: sorted(numbers)[len(numbers) // 2]"),
    "an object handed back": (
        CodeProblem("assert area([Box(2, 3), Box(1, 1)]) == 7", ("Box", "area")),
        "class Box:\n    def __init__(self, a, b): self.size = a * b\ndef area(bs): return sum(b.size for b in bs)",
    ),
    "a generator listed": (
        CodeProblem("assert list(up(3)) == [0, 1, 2]", ("up",)),
        "def up(n):\n    yield from range(n)",
    ),
    "an error that is expected": (
        CodeProblem("try:\n    f(0)\nexcept ZeroDivisionError:\n    pass\nelse:\n    assert False", ("f",)),
        "def f(n): return 1 / n",
    ),
    "keywords, and printing on the way": (
        CodeProblem("assert f(a=1, b=[2]) == {1: {2}}", ("f",)),
        "def f(a, b):\n    print(a)\n    return {a: set(b)}",
    ),
    "a dataclass and a main part": (
        CodeProblem("assert f(2) == (2, None)", ("f",)),
        "from dataclasses import dataclass, astuple\n@dataclass\nclass P:\n    a: int\n    b: object = None\n"
        "def f(n): return astuple(P(n))\nif __name__ == '__main__':\n    raise SystemExit(1)",
    ),
}
WRONG = {
    "another value": (PROMPTED, "    return numbers[0]\n"),
    "nothing": (PROMPTED, ""),
    "prose": (PROMPTED, "I would sort the list and take the middle."),
    "only the first test right": (PROMPTED, "    return 2\n"),
    "an error": (PROMPTED, "    raise ValueError\n"),
    "a generator where a list is asked for": (
        CodeProblem("assert up(3) == [0, 1, 2]", ("up",)),
        "def up(n):\n    yield from range(n)",
    ),
    "a tuple where a list is asked for": (CodeProblem("assert f() == [1]", ("f",)), "def f(): return (1,)"),
}


@pytest.mark.system
@pytest.mark.parametrize("name", RIGHT)
async def test_a_right_program_passes(name: str, sandbox: Sandbox) -> None:
    problem, reply = RIGHT[name]
    grade = await grade_code(problem, reply, sandbox=sandbox)
    assert (grade.correct, grade.got) == (True, "passed")


@pytest.mark.system
@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_program_fails(name: str, sandbox: Sandbox) -> None:
    problem, reply = WRONG[name]
    assert not (await grade_code(problem, reply, sandbox=sandbox)).correct


@pytest.mark.system
async def test_a_task_carries_its_problem_as_its_answer(sandbox: Sandbox) -> None:
    task = Task("own/0", PROMPT, answer_of(PROMPTED))
    assert (await grade_code_task(task, WHOLE, sandbox=sandbox)).correct
    with pytest.raises(GradeError, match=facts("'t' CodeProblem")):
        await grade_code_task(Task("t", "?", "42"), WHOLE, sandbox=sandbox)


@pytest.mark.system
async def test_output_is_compared_line_by_line_and_space_at_the_end_forgiven(sandbox: Sandbox) -> None:
    cases = [Case("abc\n", "cba"), Case("xy\n", "yx\n")]
    assert (await grade_output(cases, "print(input()[::-1] + '  ')", sandbox=sandbox)).correct
    assert (await grade_output(cases, "print('cba')", sandbox=sandbox)).got == Saying("case 1:")
    assert (await grade_output(cases, "print(input()[::-1]); raise SystemExit(3)", sandbox=sandbox)).got == Saying(
        "case 0: 3"
    )
    with pytest.raises(GradeError):
        await grade_output([], "print(1)", sandbox=sandbox)


@pytest.mark.system
async def test_of_a_draft_and_a_program_that_prints_the_last_one_counts(sandbox: Sandbox) -> None:
    cases = [Case("3\n", "6")]
    draft, program = "```python\nprint(int(input()) * 3)\n```", "```python\nprint(int(input()) * 2)\n```"
    reply = f"First try:\n{draft}\nThat is three times as much. So:\n{program}\n```text\n6\n```"
    assert (await grade_output(cases, reply, sandbox=sandbox)).correct
    assert not (await grade_output(cases, f"{program}\nor rather\n{draft}", sandbox=sandbox)).correct


@pytest.mark.system
async def test_each_part_of_the_tests_has_all_of_the_time() -> None:
    need("bwrap")
    parts = ("assert f(1) == 1", "assert f(2) == 2")
    slow = "import time\ndef f(x):\n    time.sleep(2.2)\n    return x"
    async with open_untested(Profile(wall_s=4)) as box:
        assert (await grade_code(CodeProblem(parts=parts, names=("f",)), slow, sandbox=box)).correct
        assert not (await grade_code(CodeProblem("\n".join(parts), ("f",)), slow, sandbox=box)).correct
        wrong = await grade_code(CodeProblem(parts=(*parts, "assert f(3) == 4"), names=("f",)), RETURNED, sandbox=box)
        assert not wrong.correct


@pytest.mark.system
async def test_long_tests_are_run_and_too_long_ones_never_make_an_answer_wrong(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = f"assert len({'x' * 5_000_000!r}) == f(5_000_000)"
    assert (await grade_code(CodeProblem(long, ("f",)), RETURNED, sandbox=sandbox)).correct
    monkeypatch.setattr(literals, "MAX_JOB_BYTES", 1000)
    with pytest.raises(GradeError, match=facts("5,000,030")):
        await grade_code(CodeProblem(long, ("f",)), RETURNED, sandbox=sandbox)


def test_the_functions_a_test_expects_are_those_it_uses_and_does_not_define() -> None:
    tests = (
        "import math\ndef near(a, b): return abs(a - b) < 1\nassert near(area(2), math.pi)\nassert [f for f in rows()]"
    )
    assert set(free_names(tests)) == {"area", "rows"}


def test_a_listed_row_may_shadow_a_builtin_or_leave_an_import_to_the_answer() -> None:
    row = LISTED | {"answer": "def sum(a, b):\n    return a", "meta": {"test_list": ["assert sum(1, 2) == 1"]}}
    assert problem_of(row).names == ("sum",)
    row = LISTED | {"answer": "", "meta": {"test_list": ["assert size(1) == sys.getsizeof(1)"]}}
    assert problem_of(row) == CodeProblem("import sys\nassert size(1) == sys.getsizeof(1)", ("size",))


def test_a_row_without_tests_cannot_be_graded() -> None:
    with pytest.raises(GradeError, match=facts("own/1")):
        problem_of(LISTED)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("x = 1", "x = 1"),
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```py\na = 1\n```\nthen\n```python\nb = 2\n```", "a = 1\n\nb = 2\n"),
        ("```text\nno\n```\n```python\nyes = 1\n```", "yes = 1\n"),
        ("  ```python\nx = 1\n  ```", "x = 1\n"),
    ],
)
def test_the_code_of_a_reply_is_the_text_in_its_fences(reply: str, code: str) -> None:
    assert extract(reply) == code


def test_a_reply_without_the_function_continues_the_prompt() -> None:
    assert program(PROMPTED, BODY) == PROMPT + BODY
    assert program(PROMPTED, WHOLE).endswith("\n\n" + WHOLE)
