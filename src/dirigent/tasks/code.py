"""Grade a program by tests it never sees.

A reply is prose around code, a whole program or just the body of a function; what is taken out of it, and how, is
settled here. Running it, and keeping it from what it should not see, is the sandbox's part (`sandbox/`); where the
published problems come from is `published.py`'s.

Two ways of testing: functions called by test code in another sandbox (HumanEval, MBPP, BigCodeBench, contest problems
with a class to fill), or a program whose output is compared here, in the parent (contest problems that read stdin).
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
    """How the code in a reply is judged: by `tests` or `parts` that call the functions in `names`, or by `cases`."""

    tests: str = ""
    """Test code; it calls the functions in `names`."""
    names: tuple[str, ...] = ()
    prompt: str = ""
    """Code the answer continues or defines anew; its helpers are there for answer and tests alike."""
    before: str = ""
    """Code put before the answer: what a contest lets programs take for granted."""
    after: str = ""
    """Code put behind the answer: how a function in `names` calls what the answer defines."""
    cases: tuple[Case, ...] = ()
    libraries: tuple[str, ...] = ()
    """What answer or tests import beyond the standard library, which is all that the sandbox has."""
    reference: str = ""
    """A right answer, where the set publishes one. Never shown to anybody."""
    parts: tuple[str, ...] = ()
    """In place of `tests`, test code that is run part by part, each with all of the time: a contest's cases."""


async def grade_code(problem: CodeProblem, reply: str, *, sandbox: Sandbox) -> Grade:
    """Right if every test passes. `got` is "passed" or what failed first."""
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
    """The same for a task whose answer is a problem as JSON, which is how `answer_of` writes it."""
    return await grade_code(problem_in(task), reply, sandbox=sandbox)


def missing_libraries(libraries: Sequence[str]) -> str:
    return (
        f"the program needs {', '.join(libraries)}, and the sandbox has the standard library alone; "
        "such questions are left out"
    )


def answer_of(problem: CodeProblem) -> str:
    """A problem as the answer of a `Task`."""
    return msgspec.json.encode(problem).decode()


def problem_in(task: Task) -> CodeProblem:
    """The problem that a task's answer holds."""
    try:
        return msgspec.json.decode(task.answer, type=CodeProblem)
    except msgspec.MsgspecError as error:
        raise GradeError(f"task {task.id!r} is graded by code, but its answer is no CodeProblem: {error}") from error


async def grade_output(cases: Sequence[Case], reply: str, *, sandbox: Sandbox, before: str = "") -> Grade:
    """Right if the program prints what each case expects; a fresh sandbox for each.

    Space around a line is forgiven, and numbers are compared by value: "1.50" is "1.5". `before`: as a problem's. Of
    several blocks of code the last is the program, as in LiveCodeBench's own runner: run together with a draft before
    it, it would find its input read.
    """
    if not cases:
        raise GradeError("no cases to run the program on")
    source = _preceded(before, _blocks(reply)[-1])
    for number, case in enumerate(cases):
        ran = await sandbox.run(source, stdin=case.stdin.encode())
        if ran.ended != "exited" or ran.code != 0:
            return Grade(False, f"case {number}: {ran.ended} with code {ran.code}")
        if not _same_output(ran.stdout.decode(errors="replace"), case.stdout):
            return Grade(False, f"case {number}: another output than expected")
    return Grade(True, "passed")


def problem_of(row: Mapping[str, Any]) -> CodeProblem:
    """A row as problem: HumanEval (`meta.test`, `meta.entry_point`), MBPP (`meta.test_list`), any (`meta.problem`)."""
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
        # A few problems ask for a function called like a builtin, `sum` for one: then the reference tells.
        reference = row.get("answer", "")
        return CodeProblem(tests, free_names(tests) or _defined(reference), reference=reference)
    raise GradeError(
        f"row {row.get('id')!r} has no tests: need meta.problem, meta.entry_point and meta.test, or meta.test_list"
    )


def free_names(tests: str) -> tuple[str, ...]:
    """What test code uses and does not define: the functions it expects of the answer."""
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
    """Modules of the standard library that test code uses but leaves to the answer to import (`sys.getsizeof`)."""
    bases = {
        node.value.id
        for node in ast.walk(ast.parse(tests))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    return tuple(sorted(bases & sys.stdlib_module_names & set(free_names(tests))))


def _defined(source: str) -> tuple[str, ...]:
    return tuple(node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef))


def program(problem: CodeProblem, reply: str) -> str:
    """The program a reply stands for: whole functions, or the body that continues the prompt."""
    code = _preceded(problem.before, _continued(problem, extract(reply)))
    return f"{code}\n{problem.after}" if problem.after else code


def _preceded(before: str, code: str) -> str:
    """Nothing may stand before an import from `__future__`; who writes one brings the other imports too."""
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
    """The code in a reply: its fenced blocks marked as Python, else all its blocks, else the whole of it."""
    return "\n".join(_blocks(reply))


def _blocks(reply: str) -> list[str]:
    blocks = re.findall(r"^[ \t]*```([\w+-]*)[^\n]*\n(.*?)^[ \t]*```", reply + "\n", re.M | re.S)
    python = [body for language, body in blocks if language.lower() in ("python", "py", "python3")]
    return python or [body for _, body in blocks] or [reply]


def _same_output(got: str, wanted: str) -> bool:
    left, right = _lines(got), _lines(wanted)
    return len(left) == len(right) and all(a == b or _same_numbers(a, b) for a, b in zip(left, right, strict=True))


def _same_numbers(left: str, right: str) -> bool:
    """Exact: floats would call 50000000000000000 and 50000000000000001 the same."""
    try:
        return [Decimal(part) for part in left.split()] == [Decimal(part) for part in right.split()]
    except ArithmeticError:
        return False


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]
