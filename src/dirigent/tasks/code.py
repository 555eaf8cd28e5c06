"""Grade a program with tests that it cannot see.

A reply is prose around code, a whole program, or only the body of a function. This module extracts the program from the
reply. The sandbox (`sandbox/`) runs it and hides the tests from it; `published.py` converts the published problems.

There are two ways to test. Test code in a second sandbox calls the functions of the answer (HumanEval, MBPP,
BigCodeBench, contest problems with a class to fill). Or this process compares the program's output with the expected
one (contest problems that read stdin).
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from dirigent.errors import GradeError
from dirigent.sandbox import Sandbox
from dirigent.tasks.task import Grade, Task


class Case(msgspec.Struct, frozen=True):
    """One run of a whole program."""

    stdin: str
    stdout: str


class CodeProblem(msgspec.Struct, frozen=True):
    """How to judge the code in a reply: by `tests` or `parts` that call the functions `names`, or by `cases`."""

    tests: str = ""
    """Test code that calls the functions in `names`."""
    names: tuple[str, ...] = ()
    prompt: str = ""
    """Code that the answer continues or redefines. The answer and the tests can both use its helpers."""
    before: str = ""
    """Code before the answer, such as the imports that a contest gives to every program."""
    after: str = ""
    """Code after the answer: it connects a function in `names` to the definitions of the answer."""
    cases: tuple[Case, ...] = ()
    libraries: tuple[str, ...] = ()
    """Modules outside the standard library that the answer or the tests import. The sandbox has none of them."""
    reference: str = ""
    """A right answer, if the set publishes one. No worker ever sees it."""
    parts: tuple[str, ...] = ()
    """Test code that replaces `tests`. The parts run one by one, each with the full time, as a contest's cases."""


async def grade_code(problem: CodeProblem, reply: str, *, sandbox: Sandbox) -> Grade:
    """Returns a correct grade if every test passes. `got` is "passed" or the first failure."""
    if problem.libraries:
        raise GradeError(missing_libraries(problem.libraries))
    if problem.cases:
        return await grade_output(problem.cases, reply, sandbox=sandbox, before=problem.before)
    source = program(problem, reply)
    try:
        compile(source, "<answer>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        return Grade(False, f"not a program: {error}")
    for tests in problem.parts or (problem.tests,):
        verdict = await sandbox.judge(source, tests=tests, names=problem.names, preamble=problem.prompt)
        if not verdict.passed:
            return Grade(False, verdict.why)
    return Grade(True, "passed")


async def grade_code_task(task: Task, reply: str, *, sandbox: Sandbox) -> Grade:
    """Grades a task whose answer is a problem as JSON, as `answer_of` writes it."""
    return await grade_code(problem_in(task), reply, sandbox=sandbox)


def missing_libraries(libraries: Sequence[str]) -> str:
    return (
        f"the program needs {', '.join(libraries)}, but the sandbox has only the standard library; "
        "such questions are skipped"
    )


def answer_of(problem: CodeProblem) -> str:
    """Returns the problem as the text that a `Task` has for an answer."""
    return msgspec.json.encode(problem).decode()


def problem_in(task: Task) -> CodeProblem:
    """Returns the problem in a task's answer; raises GradeError if the answer holds none."""
    try:
        return msgspec.json.decode(task.answer, type=CodeProblem)
    except msgspec.MsgspecError as error:
        raise GradeError(f"task {task.id!r} is graded by code, but its answer is not a CodeProblem: {error}") from error


async def grade_output(cases: Sequence[Case], reply: str, *, sandbox: Sandbox, before: str = "") -> Grade:
    """Returns a correct grade if the program prints the expected output of each case, each in a fresh sandbox.

    Space around a line is ignored, and numbers are compared by value: "1.50" equals "1.5". `before` is the field of
    `CodeProblem`. If a reply has several code blocks, the last one is the program, as in LiveCodeBench's own runner: a
    draft in an earlier block would read the input first.
    """
    if not cases:
        raise GradeError("no cases to run the program on")
    source = _preceded(before, _blocks(reply)[-1])
    for number, case in enumerate(cases):
        ran = await sandbox.run(source, stdin=case.stdin.encode())
        if ran.ended != "exited" or ran.code != 0:
            return Grade(False, f"case {number}: {ran.ended} with code {ran.code}")
        if not _same_output(ran.stdout.decode(errors="replace"), case.stdout):
            return Grade(False, f"case {number}: the output differs from the expected one")
    return Grade(True, "passed")


def problem_of(row: Mapping[str, Any]) -> CodeProblem:
    """Returns the problem of a row: HumanEval (`meta.entry_point`), MBPP (`meta.test_list`), any (`meta.problem`)."""
    meta = row["meta"]
    if "problem" in meta:
        try:
            return msgspec.convert(meta["problem"], CodeProblem)
        except msgspec.ValidationError as error:
            raise GradeError(f"row {row.get('id')!r} has no problem that can be graded: {error}") from None
    if "entry_point" in meta and "test" in meta:
        name = meta["entry_point"]
        return CodeProblem(
            f"{meta['test']}\n\ncheck({name})\n", (name,), row["question"], reference=row.get("answer", "")
        )
    if "test_list" in meta:
        tests = "\n".join([*meta.get("test_imports", ()), *meta["test_list"]])
        tests = "".join(f"import {module}\n" for module in unimported(tests)) + tests
        # A few problems ask for a function with the name of a builtin, such as `sum`. The reference shows which.
        reference = row.get("answer", "")
        return CodeProblem(tests, free_names(tests) or _defined(reference), reference=reference)
    raise GradeError(
        f"row {row.get('id')!r} has no tests: need meta.problem, meta.entry_point and meta.test, or meta.test_list"
    )


def free_names(tests: str) -> tuple[str, ...]:
    """Returns the names that test code uses but does not define: the functions that the answer must define."""
    used: list[str] = []
    bound = set(dir(builtins))
    for node in ast.walk(ast.parse(tests)):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                used.append(node.id)
            else:
                bound.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    return tuple(dict.fromkeys(name for name in used if name not in bound))


def unimported(tests: str) -> tuple[str, ...]:
    """Returns the standard library modules that test code uses without importing them (`sys.getsizeof`)."""
    bases = {
        node.value.id
        for node in ast.walk(ast.parse(tests))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    return tuple(sorted(bases & sys.stdlib_module_names & set(free_names(tests))))


def _defined(source: str) -> tuple[str, ...]:
    return tuple(node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef))


def program(problem: CodeProblem, reply: str) -> str:
    """Returns the program in a reply: whole functions, or the prompt plus the body that continues it."""
    code = _preceded(problem.before, _continued(problem, extract(reply)))
    return f"{code}\n{problem.after}" if problem.after else code


def _preceded(before: str, code: str) -> str:
    """Returns `before` plus the code. `__future__` imports must come first, so such code gets no `before`."""
    return f"{before}\n{code}" if before and "from __future__" not in code else code


def _continued(problem: CodeProblem, code: str) -> str:
    if not problem.prompt:
        return code
    if any(re.search(rf"^(async )?(def|class) +{re.escape(name)}\b", code, re.M) for name in problem.names) or any(
        re.search(rf"^{re.escape(name)} *[=:]", code, re.M) for name in problem.names
    ):
        return f"{problem.prompt}\n\n{code}"
    indented = code if re.match(r"\s*\n*[ \t]", code) else textwrap.indent(code, "    ")
    return f"{problem.prompt}{indented}"


def extract(reply: str) -> str:
    """Returns the code in a reply: its blocks marked as Python, else all of its blocks, else the whole reply."""
    return "\n".join(_blocks(reply))


def _blocks(reply: str) -> list[str]:
    blocks = re.findall(r"^[ \t]*```([\w+-]*)[^\n]*\n(.*?)^[ \t]*```", reply + "\n", re.M | re.S)
    python = [body for language, body in blocks if language.lower() in ("python", "py", "python3")]
    return python or [body for _, body in blocks] or [reply]


def _same_output(got: str, wanted: str) -> bool:
    left, right = _lines(got), _lines(wanted)
    return len(left) == len(right) and all(a == b or _same_numbers(a, b) for a, b in zip(left, right, strict=True))


def _same_numbers(left: str, right: str) -> bool:
    """Compares exactly: as floats, 50000000000000000 and 50000000000000001 would be equal."""
    try:
        return [Decimal(part) for part in left.split()] == [Decimal(part) for part in right.split()]
    except ArithmeticError:
        return False


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]
