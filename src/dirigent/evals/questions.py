"""The questions of an evaluation: those asked, and those that planners are fitted on.

Benchmarks come by name, from a folder or from the hub. A seeded sample of each is asked. Questions for fitting come
from the benchmark's training part. If it has none, or if that is another benchmark that cannot be fetched, they are
held out of the test, a third of it at most. Sets share questions: a question that one of them asks is not used to fit
for another. Held-out questions, and those that cannot be graded here, are left out and counted, never guessed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from dirigent.concurrency import gather_or_cancel
from dirigent.errors import ConfigError, GradeError
from dirigent.sandbox import Sandbox, open_sandbox
from dirigent.tasks.answers import closing_form
from dirigent.tasks.benchmarks import Part, benchmark, fetch_benchmark, load_benchmark
from dirigent.tasks.code import grade_code, missing_libraries, problem_in
from dirigent.tasks.hub import Addresses, Progress
from dirigent.tasks.task import Task

DOUBTED = frozenset({"bigcodebench", "bigcodebench_hard"})
"""Sets whose own reference solutions do not all pass in our sandbox: their tests patch the program's modules or share
files with it, but the sandbox keeps program and tests apart. So the references run first."""


class Questions(msgspec.Struct, frozen=True):
    names: tuple[str, ...]
    tasks: list[Task]
    """The questions of the test; `kind` is the benchmark's name."""
    fit: list[Task] = []
    """Questions for choosing and fitting planners. No question of the test is among them."""
    left_out: dict[str, int] = {}
    """Reason for leaving questions out -> how many."""


async def gather(
    names: Sequence[str],
    *,
    data: Path | None = None,
    limit: int | None = None,
    fit: int = 0,
    seed: int = 1,
    cache: Path | None = None,
    addresses: Addresses | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Questions:
    """The questions of these benchmarks: `limit` and `fit` of each."""
    if not names:
        raise ConfigError("no benchmark is named; add  --tasks gsm8k,math500")
    for name, number in (("limit", limit), ("fit", fit)):
        if number is not None and number < (1 if name == "limit" else 0):
            raise ConfigError(f"{name} must be {1 if name == 'limit' else 0} or more, not {number}")
    tasks: list[Task] = []
    fitted: list[tuple[str, Task]] = []
    texts: set[str] = set()
    left_out: Counter[str] = Counter()
    for name in dict.fromkeys(names):
        bring = _Bringer(name, data, cache, addresses, progress)
        test = _gradable(await bring.part("test"), left_out)
        train, why_none = await bring.training(names) if fit else ([], "")
        train = _gradable(train, left_out)
        if not test:
            raise ConfigError(f"no question of {name} can be asked: {dict(left_out)}; leave it out of  --tasks")
        if held := 0 if train else held_out(len(test), fit=fit):
            left_out[_why_held(name, held, fit=fit, why=why_none)] += held
        asked, known = _sampled(test, train, limit=limit, fit=fit, seed=seed)
        tasks += [_shown(task, name) for task in asked]
        texts |= {task.question.strip() for task in asked}
        fitted += [(name, task) for task in known]
    fit_on: list[Task] = []
    for name, task in fitted:
        if task.question.strip() in texts:
            left_out[f"{name}: not fitted on, as another of these sets asks it"] += 1
        else:
            fit_on.append(_shown(task, name, split="train"))
    return Questions(tuple(dict.fromkeys(names)), tasks, fit_on, dict(left_out))


def held_out(size: int, *, fit: int) -> int:
    """Returns how many questions leave a set's test for fitting, if the set has no training part.

    A third at most, so that a small set keeps most of its test. At least one question remains to ask.
    """
    return min(fit, max(1, size // 3), size - 1)


@asynccontextmanager
async def grading(questions: Questions) -> AsyncIterator[tuple[Questions, Sandbox | None]]:
    """Opens one sandbox for the whole evaluation, only if code is graded. The sandbox attacks itself first.

    Questions whose own reference fails in it are left out.
    """
    if not any(task.grader == "code" for task in (*questions.tasks, *questions.fit)):
        yield questions, None
        return
    async with open_sandbox() as sandbox:
        yield await _verified(questions, sandbox), sandbox


class _Bringer(msgspec.Struct, frozen=True):
    """The source of a benchmark: a folder or the hub."""

    name: str
    data: Path | None
    cache: Path | None
    addresses: Addresses | None
    progress: Progress

    async def training(self, asked: Sequence[str]) -> tuple[list[Task], str]:
        """Questions to fit on, or the reason for having none. One year of AIME trains for the other only if it is not
        asked itself. If the training part cannot be fetched, the benchmark is asked all the same."""
        other = benchmark(self.name).train_from
        if other in asked:
            return [], f"{other}, its training part, is asked itself"
        try:
            found = await self.part("train")
        except ConfigError as error:
            if not other or self.data is not None:
                raise
            return [], f"{other}, its training part, cannot be had ({str(error).partition(';')[0]})"
        return found, f"{other}, its training part, is not there" if other else "no training part of it is there"

    async def part(self, part: Part) -> list[Task]:
        if self.data is not None:
            return await asyncio.to_thread(load_benchmark, self.name, self.data, part=part)
        return await fetch_benchmark(
            self.name, part=part, cache=self.cache, addresses=self.addresses, progress=self.progress
        )


def _gradable(tasks: Sequence[Task], left_out: Counter[str]) -> list[Task]:
    """The tasks that can be judged here; the reasons for leaving others out are counted."""
    kept = []
    for task in tasks:
        why = _against(task)
        if why:
            left_out[why] += 1
        else:
            kept.append(task)
    return kept


def _against(task: Task) -> str:
    if task.grader != "code":
        return ""
    try:
        problem = problem_in(task)
    except GradeError:
        return f"{task.kind}: no tests in its file"
    return f"{task.kind}: {missing_libraries(problem.libraries)}" if problem.libraries else ""


def _sampled(
    test: Sequence[Task], train: Sequence[Task], *, limit: int | None, fit: int, seed: int
) -> tuple[list[Task], list[Task]]:
    """The questions to ask and to fit on, both drawn by lot; without a training part, the latter are held out."""
    shuffled = random.Random(f"questions {seed}").sample(list(test), len(test))
    if train:
        known = {task.question for task in test}
        fresh = [task for task in train if task.question not in known]
        return shuffled[:limit], random.Random(f"fit {seed}").sample(fresh, min(fit, len(fresh)))
    held = held_out(len(test), fit=fit)
    return shuffled[held:][:limit], shuffled[:held]


def _why_held(name: str, held: int, *, fit: int, why: str) -> str:
    most = f"; a third of it at most, so {held:,} in place of {fit:,}" if held < fit else ""
    return f"{name}: held out of the test to fit on, as {why}{most}"


def _shown(task: Task, name: str, *, split: str = "test") -> Task:
    """The task as planners get it: with its benchmark's name and an instruction on how to end the answer.

    Sets number the questions of each part from 0, and outcomes are found by their question's id. So questions for
    fitting get a mark: otherwise an answer to one would be taken for the answer to the other.
    """
    id = task.id if task.id.startswith(name) else f"{name}:{task.id}"
    return msgspec.structs.replace(
        task,
        id=f"{id}:fit" if split == "train" else id,
        kind=name,
        question=closing_form(task.question, task.grader),
        tags={**task.tags, "split": split, "task": name},
    )


async def _verified(questions: Questions, sandbox: Sandbox) -> Questions:
    left_out = Counter(questions.left_out)
    tasks = await _passing(questions.tasks, sandbox, left_out)
    fit = await _passing(questions.fit, sandbox, left_out)
    if not tasks:
        raise ConfigError(f"no question is left to ask: {dict(left_out)}")
    return msgspec.structs.replace(questions, tasks=tasks, fit=fit, left_out=dict(left_out))


async def _passing(tasks: Sequence[Task], sandbox: Sandbox, left_out: Counter[str]) -> list[Task]:
    async def passes(task: Task) -> bool:
        problem = problem_in(task) if task.kind in DOUBTED else None
        if problem is None or not problem.reference:
            return True
        return (await grade_code(problem, problem.reference, sandbox=sandbox)).correct

    right = await gather_or_cancel(passes(task) for task in tasks)
    for task, passed in zip(tasks, right, strict=True):
        if not passed:
            left_out[f"{task.kind}: its own reference does not pass in the sandbox"] += 1
    return [task for task, passed in zip(tasks, right, strict=True) if passed]
