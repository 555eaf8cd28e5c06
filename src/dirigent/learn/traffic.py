"""Traffic: graded runs of the store as rows of a table.

A run counts if feedback says how good its answer was, or a label what is right. Its answers to the question become
rows: those of first steps, and the answer that was returned. Feedback grades the returned answer and those equal to it;
a label grades all of them. Each row names the key whose feedback it rests on (`Answer.source`), so that learning can
bound what one key may change, and the chance with which an exploring policy chose it.

Answers that a worker gave before its fingerprint changed say nothing of it now, and are left out.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from dirigent.errors import ConfigError, GradeError
from dirigent.learn.question_file import guessed_grader
from dirigent.learn.roles_table import Comparisons, answer_classes
from dirigent.learn.table import Answer, Question, Table, TableWorker, Unit, cost_in, unit_of
from dirigent.run.step_prompt import ANSWER
from dirigent.run.trace import StepRecord, Trace
from dirigent.store import Store
from dirigent.store.feedback import Verdict, export
from dirigent.tasks.answer_forms import answer_of
from dirigent.tasks.graders import judge
from dirigent.tasks.tables import decoded
from dirigent.tasks.task import Grader, Task
from dirigent.workers.worker import WorkerInfo

KIND = "traffic"
LABEL = "label"
"""The source of a grade that rests on a label."""


class Label(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was right for one run."""

    trace_id: str
    answer: str
    grader: Grader | None = None
    """None: one that fits the answer's form."""


class _Row(msgspec.Struct, frozen=True):
    answer: Answer
    """Without its class."""
    returned: bool
    """The run returned it."""


async def traffic_table(store: Store, *, labels: Mapping[str, Label] | None = None) -> Table:
    """Returns the answers of every run that has feedback or a label; raises ConfigError if there is none."""
    runs: list[tuple[Trace, list[Verdict]]] = []
    labels = labels or {}
    async for trace, verdicts in export(store, status="done"):
        if verdicts or trace.id in labels:
            runs.append((trace, verdicts))
    if unknown := set(labels) - {trace.id for trace, _ in runs}:
        raise ConfigError(f"the store holds no finished run with the id {min(unknown)!r}, which a label names")
    if not runs:
        raise ConfigError("no run has feedback or a label: send some to POST /v1/feedback, or give labels")
    infos = _newest_infos([trace for trace, _ in runs])
    unit = unit_of([info for info in infos.values() if not info.reads_results])
    counts: Counter[tuple[str, str]] = Counter()
    by_question: dict[str, list[tuple[Trace, list[Verdict], list[_Row]]]] = defaultdict(list)
    texts: dict[str, str] = {}
    for trace, verdicts in runs:
        text = "\n".join(message.text for message in trace.question)
        id = f"traffic-{hashlib.sha1(text.encode(errors='replace')).hexdigest()[:16]}"
        rows = _rows(trace, text, id, infos, unit, counts)
        if rows:
            texts[id] = text
            by_question[id].append((trace, verdicts, rows))
    known = Comparisons(None)
    answers: list[Answer] = []
    questions = []
    for id, found in by_question.items():
        label = next((labels[trace.id] for trace, _, _ in found if trace.id in labels), None)
        grader = (label.grader or guessed_grader(texts[id], label.answer)) if label is not None else None
        questions.append(Question(id, texts[id], KIND, label.answer if label is not None else "", grader))
        answers += await _graded(questions[-1], found, known)
    used = {answer.worker for answer in answers}
    return Table(
        workers=tuple(_worker(info) for name, info in infos.items() if name in used),
        questions=tuple(questions),
        answers=tuple(answers),
        unit=unit,
    )


def read_labels(file: Path) -> dict[str, Label]:
    """Returns the labels of a JSON lines file, by run: `{"trace_id": "…", "answer": "…"}`."""
    labels: dict[str, Label] = {}
    for number, label in decoded(file, Label):
        if label.trace_id in labels:
            raise ConfigError(f'{file}, line {number}: "trace_id" {label.trace_id!r} has a label already')
        if not label.answer.strip():
            raise ConfigError(f'{file}, line {number}: "answer" is empty')
        labels[label.trace_id] = label
    return labels


def _newest_infos(traces: Sequence[Trace]) -> dict[str, WorkerInfo]:
    """The workers as the newest run knew them; `traces` has the oldest first."""
    infos: dict[str, WorkerInfo] = {}
    for trace in traces:
        infos |= {info.name: info for info in trace.pool}
    return infos


def _worker(info: WorkerInfo) -> TableWorker:
    return TableWorker(info.name, info.about, info.model, info.fingerprint, reads=bool(info.second_step))


def _rows(
    trace: Trace,
    text: str,
    question: str,
    infos: Mapping[str, WorkerInfo],
    unit: Unit,
    counts: Counter[tuple[str, str]],
) -> list[_Row]:
    """The answers of a run to its question."""
    then = {info.name: info for info in trace.pool}
    steps = {step.index: step for step in trace.steps if step.status == "done" and step.reply is not None}
    returned = _returned(trace, steps)
    reason = trace.reason
    rows: list[_Row] = []
    numbers: dict[int, tuple[str, int]] = {}
    for index, step in steps.items():
        info, reply = then.get(step.worker), step.reply
        if info is None or info.reads_results or reply is None or infos[info.name].fingerprint != info.fingerprint:
            continue
        alone = not step.access and step.subtask in (ANSWER, text)
        if not alone and index != returned:
            continue  # it did a part of the work, and answered no question
        if not alone and not all(number in numbers for number in step.access):
            continue  # it read a part of the work, which is no answer of the table
        key = (question, step.worker)
        numbers[index] = (step.worker, counts[key])
        counts[key] += 1
        failed = reply.ran is not None and not reply.ran.printed
        chosen = reason is not None and step.worker in reason.chosen
        answer = Answer(
            question=question,
            worker=step.worker,
            k=numbers[index][1],
            text=reply.text,
            cost=cost_in(
                unit,
                cost_usd=step.cost_usd,
                seconds=step.seconds,
                input_tokens=step.usage.input_tokens,
                output_tokens=step.usage.output_tokens,
            ),
            seconds=step.seconds,
            input_tokens=step.usage.input_tokens,
            output_tokens=step.usage.output_tokens,
            ended=reply.finish != "length",
            failed=failed,
            read=tuple(numbers[number] for number in step.access),
            propensity=reason.propensity if reason is not None and chosen else None,
        )
        rows.append(_Row(answer, index == returned))
    return rows


def _returned(trace: Trace, steps: Mapping[int, StepRecord]) -> int:
    """The step whose text the run returned; where a local worker chose among results, the chosen one."""
    answering = [step for step in trace.steps if step.index in steps]
    if not answering:
        return -1
    last = answering[-1]
    while (reply := last.reply) is not None and reply.chosen is not None and reply.chosen.step in steps:
        if reply.chosen.step == last.index:
            break
        last = steps[reply.chosen.step]
    return last.index


async def _graded(
    question: Question, found: Sequence[tuple[Trace, list[Verdict], list[_Row]]], known: Comparisons
) -> list[Answer]:
    """The answers to one question with their classes; a label grades all, feedback the returned one of each run."""
    grader = question.grader or "short"
    rows = [row for _, _, own in found for row in own]
    finals = [
        "" if row.answer.failed else answer_of(row.answer.text, question=question.text, grader=grader) for row in rows
    ]
    try:
        classes = await answer_classes(finals, known, grader=grader)
    except GradeError:  # math-verify is not installed
        classes = await answer_classes(finals, known, grader="short")
    placed = {
        id(row): msgspec.structs.replace(row.answer, final=final, same=same)
        for row, final, same in zip(rows, finals, classes, strict=True)
    }
    answers = []
    for _, verdicts, own in found:
        score = fmean(verdict.score for verdict in verdicts) if verdicts else None
        good = {placed[id(row)].same for row in own if row.returned}
        for row in own:
            answer = placed[id(row)]
            if question.answer:
                right, source = await _by_label(question, answer), LABEL
            elif row.returned or (answer.same >= 0 and answer.same in good):
                right, source = score, verdicts[0].key_id if verdicts else ""
            else:
                right, source = None, ""
            answers.append(msgspec.structs.replace(answer, right=right, source=source if right is not None else ""))
    return answers


async def _by_label(question: Question, answer: Answer) -> float | None:
    if answer.failed or not answer.text.strip():
        return 0.0
    task = Task(question.id, question.text, question.answer, grader=question.grader or "short")
    try:
        grade = await judge(task, answer.text)
    except GradeError:
        return None
    return float(grade.correct) if grade.score is None else grade.score
