"""The matrix of specialists: the questions for each specialist, the marks of its replies, and the resulting table.

`dirigent_gym/train/specialists.py` asks adapters in torch, and `gym/benchmarks/specialists.py` asks the shipped files
in llama.cpp, as users do. Both use these functions, which ask no worker. A worker gets exactly the prompt that
`execute` would send. Replies are compared without regard to letter case.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dirigent.errors import ConfigError
from dirigent.messages import Message
from dirigent.plan.plan import Plan, Step
from dirigent.run.step_prompt import step_messages
from dirigent.tasks.task import Task, grade
from dirigent_gym.questions.examples import Example, ask, candidates_example
from dirigent_gym.questions.skills import CHECK_SKILL, GYM_OPERATIONS, PUZZLE_SKILL
from dirigent_gym.questions.specialists import ROSTER, UNKNOWN, beyond, find_specialist
from dirigent_gym.questions.split import generate

SMALL = next(specialist for specialist in ROSTER if specialist.small_only is not None)
"""The specialist whose limit divides its skill into two columns."""

TEST_SEED = 11


class Question(msgspec.Struct, frozen=True):
    """One subtask as a worker sees it, and its right answer."""

    messages: tuple[Message, ...]
    answer: str
    reads: bool
    """Whether it is asked with earlier results."""
    operation: str
    """The operation's full name. All operations of a skill are asked equally often, however large their tables are."""


class Exam(msgspec.Struct, frozen=True):
    """The questions for all workers."""

    columns: dict[str, list[Question]]
    """Questions by skill; the skill of small numbers is divided at its limit."""
    tasks: list[Task]
    """Questions of the test. Each worker must answer each of them whole and alone."""
    others: int
    """The number of questions of a column for workers with another skill; workers with this skill get all of them."""


class Marks(msgspec.Struct, frozen=True):
    """The marks of one worker's replies."""

    skills: dict[str, tuple[bool, ...]]
    """Column -> right or wrong, in the order of the exam."""
    alone: tuple[bool, ...]
    """Right or wrong, for every task."""


class Matrix(msgspec.Struct, frozen=True):
    """Accuracy by worker and skill."""

    skills: dict[str, dict[str, float]]
    """Worker -> column -> share right of that skill's questions, asked directly or with results to read."""
    alone: dict[str, float]
    """Worker -> share of the test's questions that it answers rightly alone."""
    oracle: float
    """The share of the test's questions that at least one worker answers rightly alone."""
    questions_a_skill: int
    test_questions: int
    own_questions: int | None = None
    """The number of questions of a worker's own skill, if it is larger than `questions_a_skill`."""


def exam_of(a_skill: int, *, test: int, own: int = 0) -> Exam:
    """`a_skill` questions of each skill, `test` of the test, and for each worker `own` of its own skill, if more."""
    for what, count in (("a skill", a_skill), ("of the test", test), ("of a worker's own skill", own)):
        if count < 0:
            raise ConfigError(f"{count} questions {what} cannot be asked; give 0 or more")
    tasks = generate("test", test, seed=TEST_SEED) if test else []
    return Exam(columns_of(max(a_skill, own)), tasks, others=a_skill)


def questions_for(exam: Exam, name: str) -> dict[str, list[Question]]:
    """The questions about skills that this worker is asked."""
    return {
        column: questions if is_own(name, column) else questions[: exam.others]
        for column, questions in exam.columns.items()
    }


def conversations_for(exam: Exam, name: str) -> list[tuple[Message, ...]]:
    """All questions for a worker, in the order in which `mark_replies` expects the replies."""
    skills = [question.messages for questions in questions_for(exam, name).values() for question in questions]
    return [*skills, *(ask_messages(task.question, (), "s") for task in exam.tasks)]


def mark_replies(exam: Exam, name: str, replies: Sequence[str]) -> Marks:
    """The marks of the replies to `conversations_for`."""
    asked = questions_for(exam, name)
    wanted = sum(len(questions) for questions in asked.values()) + len(exam.tasks)
    if len(replies) != wanted:
        raise ConfigError(f"{name} was asked {wanted} questions, but there are {len(replies)} replies")
    rest = iter(replies)
    skills = {
        column: tuple(same(next(rest), question.answer) for question in questions)
        for column, questions in asked.items()
    }
    return Marks(skills, tuple(grade(task, next(rest)).correct for task in exam.tasks))


def matrix_of(exam: Exam, marks: Mapping[str, Marks]) -> Matrix:
    """All workers' marks as shares."""
    longest = max((len(questions) for questions in exam.columns.values()), default=0)
    return Matrix(
        {name: {column: share(hits) for column, hits in mark.skills.items()} for name, mark in marks.items()},
        alone={name: share(mark.alone) for name, mark in marks.items()},
        oracle=share(any(hits) for hits in zip(*(mark.alone for mark in marks.values()), strict=True)),
        questions_a_skill=exam.others,
        test_questions=len(exam.tasks),
        own_questions=longest if longest > exam.others else None,
    )


def markdown(matrix: Matrix) -> str:
    """The matrix as a Markdown table in percent, own skills in bold, for the docs."""
    columns = list(next(iter(matrix.skills.values()), {}))
    lines = [
        "| worker | " + " | ".join(columns) + " | the test, alone |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for name, row in matrix.skills.items():
        cells = [f"**{percent(row[c])}**" if is_own(name, c) else percent(row[c]) for c in columns]
        lines.append(f"| {name} | {' | '.join(cells)} | {percent(matrix.alone.get(name))} |")
    own = f" ({matrix.own_questions} of a worker's own)" if matrix.own_questions else ""
    said = (
        f"Percent right; {matrix.questions_a_skill} questions a skill{own}, {matrix.test_questions} of the test. "
        f"The best worker for each test question, chosen afterwards: {percent(matrix.oracle)}."
    )
    return "\n".join([*lines, "", said, ""])


def is_own(name: str, column: str) -> bool:
    """Returns whether a column is the worker's own skill."""
    specialist = find_specialist(name)
    limit = specialist.small_only
    return column.split(" ")[0] in specialist.skills and (limit is None or column.endswith(f"to {limit}"))


def columns_of(n: int) -> dict[str, list[Question]]:
    """`n` questions of each skill; the first questions are the same for any `n`."""
    wanted = {skill for specialist in ROSTER for skill in specialist.skills}
    columns: dict[str, list[Question]] = {}
    for skill in dict.fromkeys(op.skill for op in GYM_OPERATIONS):
        if skill in SMALL.skills:
            columns[f"{skill} to {SMALL.small_only}"] = _questions(skill, n, large=False)
            columns[f"{skill} above"] = _questions(skill, n, large=True)
        elif skill in wanted:
            columns[skill] = _questions(skill, n)
    columns[CHECK_SKILL] = _checks(n)
    return columns


def _questions(skill: str, n: int, *, large: bool | None = None) -> list[Question]:
    rng = random.Random(f"matrix {skill} {large}")
    ops = [op for op in GYM_OPERATIONS if op.skill == skill]
    keys = {op.full_name: [key for key in op.table if large is None or beyond(SMALL, key) == large] for op in ops}
    asked = []
    for _ in range(n):
        op = rng.choice([op for op in ops if keys[op.full_name]])
        key = rng.choice(keys[op.full_name])
        subtask, results = ask(rng, op, key)
        asked.append(Question(ask_messages(subtask, results, "s"), op.table[key], bool(results), op.full_name))
    return asked


def _checks(n: int) -> list[Question]:
    """Puzzles with candidates to choose from, the right one among them."""
    rng = random.Random("matrix checking")
    checker = next(specialist for specialist in ROSTER if specialist.role == "checker")
    ops = [op for op in GYM_OPERATIONS if op.skill == PUZZLE_SKILL]
    asked: list[Question] = []
    while len(asked) < n:
        op = rng.choice(ops)
        example = candidates_example(rng, checker, op, rng.choice(list(op.table)), "")
        if example.answer != UNKNOWN:
            asked.append(Question(messages_of(example, "s"), example.answer, True, op.full_name))
    return asked


def messages_of(example: Example, secret: str) -> tuple[Message, ...]:
    """The messages in which `execute` would send this example to the worker."""
    return ask_messages(example.subtask, example.results, secret)


def ask_messages(subtask: str, results: Sequence[tuple[str, str]], secret: str) -> tuple[Message, ...]:
    earlier = [Step("w", text) for text, _ in results]
    access = tuple(range(len(earlier)))
    plan = Plan((*earlier, Step("w", subtask, access)))
    replies = {i: reply for i, (_, reply) in enumerate(results)}
    return step_messages((Message("user", ""),), plan, len(earlier), replies, secret=secret, subtask_only=True)


def same(reply: str, answer: str) -> bool:
    return reply.casefold() == answer.casefold()


def share(hits: Iterable[bool]) -> float:
    counted = list(hits)
    return round(sum(counted) / len(counted), 4) if counted else 0.0


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
