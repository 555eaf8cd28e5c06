"""Recorded replies of one model in several roles: their answers, grades, costs, and which answers are equal.

Reads `questions_*.jsonl.gz` (and `recorded_*` files, which hold questions too) and `roles_*.jsonl.gz` from a folder.
A question counts if all ten samples were recorded: two of `direct`, four of `think`, four of `code`. Questions that
are answered by a program (MBPP) are left out: their replies have no answer that can be compared or voted on.

The final answer of a program is the last line that it printed, if it exited with 0. Answers of one question fall into
classes of equal answers. The gold answer has no part in that, because a server has none.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dirigent.errors import ConfigError
from dirigent.tasks.answer_forms import MATHEMATICAL, MOST_MATH_CHARS, answer_of, normal_form
from dirigent.tasks.answers import final_answer
from dirigent.tasks.benchmarks import FREE, LITERAL_TASKS
from dirigent.tasks.graders import judge
from dirigent.tasks.mathematics import same_mathematics
from dirigent.tasks.published import RowGrader
from dirigent.tasks.tables import decoded
from dirigent.tasks.task import Grader, Task

SAMPLES = {"direct": 2, "think": 4, "code": 4}
SLOTS = tuple((role, k) for role, count in SAMPLES.items() for k in range(count))
"""Role and number of each of a question's ten samples, in the order of their bits."""

MOST_GRADED_MATH_CHARS = 100
"""Longer mathematical answers are cut-off sentences: they are wrong, unless the right answer is about as long."""


class QuestionRow(msgspec.Struct, frozen=True):
    id: str
    task: str
    question: str
    answer: str
    grader: RowGrader


class ReplyRow(msgspec.Struct, frozen=True):
    id: str
    set: str
    role: str
    k: int
    text: str
    tokens: int
    prompt_tokens: int
    ended: bool
    runs: dict[str, tuple[int | None, str, str]] = {}


class Answered(msgspec.Struct, frozen=True):
    """A question with its ten samples. Tuples of ten follow SLOTS."""

    id: str
    set: str
    text: str
    answers: tuple[str, ...]
    """One answer of each class, by which its form is known."""
    classes: tuple[int, ...]
    """The class of each sample's answer; -1 if it has no answer."""
    ended: tuple[bool, ...]
    right: tuple[bool, ...]
    cost: tuple[float, ...]


def load_table(folder: Path, *, cache: Path | None = None) -> list[Answered]:
    """Every question with ten samples, graded; comparisons made earlier are read from the file `cache`."""
    files = sorted([*folder.glob("questions_*.jsonl*"), *folder.glob("recorded_*.jsonl*")])
    tables = sorted(folder.glob("roles_*.jsonl*"))
    if not files or not tables:
        raise ConfigError(
            f"{folder} needs questions_*.jsonl.gz and roles_*.jsonl.gz; it holds {sorted(_names(folder))}"
        )
    questions: dict[str, QuestionRow] = {}
    for file in files:
        questions |= {row.id: row for _, row in decoded(file, QuestionRow)}
    replies: dict[str, dict[tuple[str, int], ReplyRow]] = defaultdict(dict)
    for file in tables:
        for number, reply in decoded(file, ReplyRow):
            if (reply.role, reply.k) not in SLOTS:
                continue  # a second step, such as a review
            if reply.id not in questions:
                raise ConfigError(f"{file}, line {number}: no questions file holds the question {reply.id!r}")
            if (reply.role, reply.k) in replies[reply.id]:
                raise ConfigError(f"{file}, line {number}: {reply.id!r} has {reply.role} {reply.k} twice")
            replies[reply.id][reply.role, reply.k] = reply
    whole = [
        (questions[id], [found[slot] for slot in SLOTS])
        for id, found in replies.items()
        if len(found) == len(SLOTS) and questions[id].grader != "code"
    ]
    known = Comparisons(cache)
    try:
        return asyncio.run(_answered_all(whole, known))
    finally:
        known.save()


class Comparisons:
    """Comparisons with their results, kept in a file: a grading by computer algebra takes up to seconds."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known: dict[str, bool] = {}
        if file is not None and file.is_file():
            self._known = msgspec.json.decode(file.read_bytes(), type=dict[str, bool])
        self._places = asyncio.Semaphore(2)

    async def grade(self, task: Task, text: str) -> bool:
        if task.grader == "math" and len(final_answer(text)) > max(MOST_GRADED_MATH_CHARS, 2 * len(task.answer)):
            return False
        key = _key("grade", task.grader, task.answer, text)
        if key not in self._known:
            async with self._places:
                self._known[key] = (await judge(task, text)).correct
        return self._known[key]

    async def same(self, left: str, right: str) -> bool:
        key = _key("same", *sorted((left, right)))
        if key not in self._known:
            async with self._places:
                self._known[key] = await same_mathematics(left, right)
        return self._known[key]

    def save(self) -> None:
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            beside = self._file.with_suffix(".part")
            beside.write_bytes(msgspec.json.encode(self._known))
            beside.replace(self._file)


async def answer_classes(answers: Sequence[str], known: Comparisons, *, grader: Grader) -> tuple[int, ...]:
    """The class of each answer, counted from 0 in order of appearance; -1 for an empty answer.

    Mathematical answers of different forms are compared by computer algebra, short ones only.
    """
    forms: dict[str, int] = {}
    shown: list[str] = []
    classes = []
    for answer in answers:
        form = normal_form(answer, grader=grader) if answer else ""
        if form and form not in forms:
            forms[form] = len(shown)
            for other in shown if grader == "math" else ():
                short = max(len(answer), len(other)) <= MOST_MATH_CHARS
                symbols = MATHEMATICAL.search(answer) or MATHEMATICAL.search(other)
                if short and symbols and await known.same(other, answer):
                    forms[form] = forms[normal_form(other, grader=grader)]
                    break
            else:
                shown.append(answer)
        classes.append(forms[form] if form else -1)
    return tuple(classes)


async def _answered_all(whole: Sequence[tuple[QuestionRow, list[ReplyRow]]], known: Comparisons) -> list[Answered]:
    table = []
    for start in range(0, len(whole), 500):
        part = whole[start : start + 500]
        table += await asyncio.gather(*(_answered(question, replies, known) for question, replies in part))
        known.save()
    return table


async def _answered(question: QuestionRow, replies: Sequence[ReplyRow], known: Comparisons) -> Answered:
    grader = "literal" if question.task in LITERAL_TASKS else FREE[question.grader]
    task = Task(question.id, question.question, question.answer, grader=grader)
    said = [final_text(reply) for reply in replies]
    answers = [answer_of(text, question=question.question, grader=grader) for text in said]
    right = tuple([bool(text.strip()) and await known.grade(task, text) for text in said])
    classes = await answer_classes(answers, known, grader=grader)
    return Answered(
        id=question.id,
        set=replies[0].set,
        text=question.question,
        answers=tuple(answers[classes.index(i)] for i in range(max(classes) + 1)),
        classes=classes,
        ended=tuple(reply.ended for reply in replies),
        right=right,
        cost=tuple(reply.tokens + reply.prompt_tokens / 4 for reply in replies),
    )


def final_text(reply: ReplyRow) -> str:
    """The reply as it is graded: of a program the last line that it printed, empty if it failed or printed nothing."""
    if reply.role != "code":
        return reply.text
    if "run" not in reply.runs:
        raise ConfigError(f"{reply.id!r}, code {reply.k}: the row has no `runs.run`")
    status, printed, _ = reply.runs["run"]
    lines = printed.strip().splitlines()
    return lines[-1] if status == 0 and lines else ""


def _key(*parts: str) -> str:
    return hashlib.sha1("\0".join(parts).encode()).hexdigest()


def _names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()] if folder.is_dir() else []
