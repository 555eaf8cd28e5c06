"""Traffic: graded runs of the store as rows of a table.

A run counts if feedback says how good its answer was, or a label what is right. Its answers to the question become
rows: those of first steps, and the answer that was returned. A score grades the returned answer and those equal to it;
a label grades every answer of its run. Each row names the key whose feedback it rests on (`Answer.source`), so that
learning can bound what one key may change, and the chance with which an exploring policy chose it.

Answers that a worker gave before its fingerprint changed say nothing of it now, and are left out.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

import msgspec

from dirigent.errors import ConfigError, GradeError
from dirigent.learn.question_file import guessed_grader
from dirigent.learn.roles_table import Comparisons, answer_classes
from dirigent.learn.table import Answer, Question, Table, TableWorker, Unit, cost_in, unit_of
from dirigent.run.step_prompt import ANSWER
from dirigent.run.trace import StepRecord, Trace
from dirigent.store import Store
from dirigent.store.feedback import Verdict, export
from dirigent.tasks.answer_forms import answer_of, normal_form
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


class Judged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of `dirigent feedback import`: a score or a label."""

    trace_id: str
    score: float | None = None
    label: str | None = None
    comment: str = ""


class _Row(msgspec.Struct, frozen=True):
    answer: Answer
    """Without its class."""
    returned: bool
    """The run returned it."""


class _Run(msgspec.Struct, frozen=True):
    id: str
    verdicts: list[Verdict]
    rows: list[_Row]


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
    by_question: dict[str, list[_Run]] = defaultdict(list)
    texts: dict[str, str] = {}
    for trace, verdicts in runs:
        text = "\n".join(message.text for message in trace.question)
        id = f"traffic-{hashlib.sha1(text.encode(errors='replace')).hexdigest()[:16]}"
        rows = _rows(trace, text, id, infos, unit, counts)
        if rows:
            texts[id] = text
            by_question[id].append(_Run(trace.id, verdicts, rows))
    known = Comparisons(None)
    answers: list[Answer] = []
    questions = []
    for id, found in by_question.items():
        label = next((said for run in found if (said := _label(run, labels)) is not None), None)
        grader = (label.grader or guessed_grader(texts[id], label.answer)) if label is not None else None
        questions.append(Question(id, texts[id], KIND, label.answer if label is not None else "", grader))
        answers += await _graded(questions[-1], found, labels, known)
    used = {answer.worker for answer in answers}
    return Table(
        workers=tuple(_worker(info) for name, info in infos.items() if name in used),
        questions=tuple(questions),
        answers=tuple(answers),
        unit=unit,
    )


class Joined(msgspec.Struct, frozen=True):
    table: Table
    """To fit orders on: every question has an answer of every worker."""
    rows: Table
    """To measure cards on, and to fit a selector: all rows."""
    live: frozenset[str]
    """The ids of the judged questions of traffic."""
    left_out: tuple[str, ...] = ()
    """What of the traffic has no part in orders, and which workers have become worse, as sentences."""


def with_traffic(table: Table, traffic: Table) -> Joined:
    """Returns a table with the rows of traffic behind its own.

    Rows of workers that the table does not have as they are now are left out. So is the word of a key that contradicts
    the other keys: it may be false, and must change nothing for others. A question that some workers were not asked
    cannot say what asking them would have been worth, so it supports no order. A worker that traffic shows to be much
    worse than the table does is left out of the orders until it is calibrated again.
    """
    if table.unit != traffic.unit:
        raise ConfigError(
            f"the table counts cost in {table.unit} and traffic in {traffic.unit}: the pool's prices have changed; "
            "calibrate again"
        )
    left_out = []
    then = {worker.name: worker.fingerprint for worker in table.workers}
    known = {worker.name for worker in traffic.workers if then.get(worker.name) == worker.fingerprint}
    if others := [worker.name for worker in traffic.workers if worker.name not in known]:
        left_out.append(f"traffic of {', '.join(others)} is left out: the table does not have them as they are now")
    answers = [answer for answer in traffic.answers if answer.worker in known]
    contradicting = contradicting_keys(answers)
    left_out += [f"feedback of key {key} is left out: {why}" for key, why in contradicting.items()]
    answers = [
        msgspec.structs.replace(answer, right=None) if answer.source in contradicting else answer for answer in answers
    ]
    asked: dict[str, set[str]] = defaultdict(set)
    for answer in answers:
        if answer.right is not None:
            asked[answer.question].add(answer.worker)
    worse = worse_workers(table.answers, answers)
    left_out += [f"{name} takes no part until it is calibrated again: {why}" for name, why in worse.items()]
    needed = {worker.name for worker in table.workers if not worker.reads} - worse.keys()
    whole = {question for question, names in asked.items() if needed <= names}
    if part := len(asked) - len(whole):
        left_out.append(
            f"{part:,} judged questions were not asked of every worker: they count for cards and the selector, and "
            "support no order"
        )
        if not any(answer.propensity is not None for answer in answers):
            left_out.append(
                "no run explored, so nobody knows what the workers would have answered that were not asked; "
                "`explore = 0.05` in the profile measures them"
            )
    fitted = _joined(table, traffic, [answer for answer in answers if answer.question in whole])
    return Joined(
        table=msgspec.structs.replace(
            fitted,
            workers=tuple(worker for worker in fitted.workers if worker.name not in worse),
            answers=tuple(answer for answer in fitted.answers if answer.worker not in worse),
        ),
        rows=_joined(table, traffic, [answer for answer in answers if answer.question in asked]),
        live=frozenset(asked),
        left_out=tuple(left_out),
    )


def _joined(table: Table, traffic: Table, answers: Sequence[Answer]) -> Table:
    there = {answer.question for answer in answers}
    return msgspec.structs.replace(
        table,
        questions=(*table.questions, *(question for question in traffic.questions if question.id in there)),
        answers=(*table.answers, *answers),
    )


def worse_workers(calibrated: Sequence[Answer], traffic: Sequence[Answer]) -> dict[str, str]:
    """Returns the workers that traffic shows to be much worse than calibration did, each with the reason.

    The other workers' change is taken off first, because live questions may be harder than calibrated ones. At least
    one worker is always left. If the policy explored, the shares are those of `explored_shares`: a worker that is kept
    for hard questions would else look worse than it is.
    """
    before = _graded_by_worker(calibrated)
    now = {
        name: (share := fmean(grades), math.sqrt(max(share * (1 - share), 0.05) / len(grades)))
        for name, grades in _graded_by_worker(traffic).items()
        if name in before and len(grades) >= LEAST_GRADED
    }
    if explored := explored_shares(calibrated, traffic):
        now = {name: found for name, found in explored.items() if name in before}
    drops = {name: fmean(before[name]) - share for name, (share, _) in now.items()}
    found: dict[str, str] = {}
    for name, drop in drops.items():
        others = [other for key, other in drops.items() if key != name]
        usual = max(0.0, median(others)) if others else 0.0
        mean, (share, error) = fmean(before[name]), now[name]
        noise = math.hypot(error, math.sqrt(max(mean * (1 - mean), 0.05) / len(before[name])))
        if drop - usual > FAR and drop - usual > SURE_Z * noise and len(found) + 1 < len(before):
            found[name] = f"right {share:.0%} of the time in traffic, {mean:.0%} when it was calibrated"
    return found


def explored_shares(calibrated: Sequence[Answer], traffic: Sequence[Answer]) -> dict[str, tuple[float, float]]:
    """Returns each worker's share of right answers over all explored questions of traffic, and its standard error.

    The estimate is doubly robust. It starts from the worker's calibrated share, and corrects it by the worker's own
    graded answers, each weighted by one over the chance with which the lot or the policy asked it first. So it is right
    if the chances are, however the policy deals questions out. Empty if nothing was explored; workers with few such
    answers are left out.
    """
    first = [answer for answer in traffic if answer.propensity and answer.right is not None]
    before = {name: fmean(grades) for name, grades in _graded_by_worker(calibrated).items()}
    found = {}
    for name, usual in before.items():
        own = [answer for answer in first if answer.worker == name]
        if len(own) < LEAST_GRADED:
            continue
        corrections = [((answer.right or 0.0) - usual) / (answer.propensity or 1.0) for answer in own]
        mean = sum(corrections) / len(first)
        spread = sum(one**2 for one in corrections) / len(first) - mean**2
        found[name] = (min(1.0, max(0.0, usual + mean)), math.sqrt(max(spread, 0.0) / len(first)))
    return found


def _graded_by_worker(answers: Sequence[Answer]) -> dict[str, list[float]]:
    grades: dict[str, list[float]] = defaultdict(list)
    for answer in answers:
        if answer.right is not None and not answer.estimated and not answer.read:
            grades[answer.worker].append(answer.right)
    return grades


LEAST_GRADED = 25
"""Graded answers of live traffic below which a worker is not said to have become worse."""
LEAST_ROWS = 5
"""Rows of a key on one worker below which it can contradict nobody."""
FAR = 0.15
"""The distance between a key's mean grade of a worker and the other keys' that matters."""
SURE_Z = 3.5
"""Standard errors of that distance that are no chance."""


def contradicting_keys(answers: Sequence[Answer]) -> dict[str, str]:
    """Returns the keys whose grades of a worker lie far from those of the other keys, each with the reason.

    The others are taken at the median of their means, which no single key moves far. With fewer than three keys, nobody
    can tell whose word is false, and no key is named.
    """
    grades: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for answer in answers:
        if answer.right is not None and answer.source not in ("", LABEL):
            grades[answer.worker][answer.source].append(answer.right)
    found: dict[str, str] = {}
    for worker, by_key in grades.items():
        enough = {key: rows for key, rows in by_key.items() if len(rows) >= LEAST_ROWS}
        for key, rows in enough.items():
            others = [fmean(own) for other, own in enough.items() if other != key]
            if len(others) < 2:
                continue
            usual, mean = median(others), fmean(rows)
            spread = max(usual * (1 - usual), 0.05)
            far = abs(mean - usual)
            if far > FAR and far > SURE_Z * math.sqrt(spread / len(rows)):
                found[key] = f"it grades {worker} {mean:.2f} on average, where the other keys give {usual:.2f}"
    return found


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


def read_judged(file: Path) -> list[Judged]:
    """Returns the judgements of a JSON lines file; raises ConfigError with the line and the field of a fault."""
    rows = []
    for number, row in decoded(file, Judged):
        at = f"{file}, line {number}"
        if (row.score is None) == (row.label is None):
            raise ConfigError(f'{at}: give "score" or "label", one of the two')
        if row.score is not None and not 0 <= row.score <= 1:
            raise ConfigError(f'{at}: "score" is {row.score:g}; it must be from 0 to 1')
        if row.label is not None and not row.label.strip():
            raise ConfigError(f'{at}: "label" is empty')
        rows.append(row)
    if not rows:
        raise ConfigError(f'{file} holds no judgement; write one object a line: {{"trace_id": "…", "score": 1}}')
    return rows


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
        chosen = reason is not None and reason.chosen[:1] == (step.worker,) and index == trace.steps[0].index
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


def _label(run: _Run, labels: Mapping[str, Label]) -> Label | None:
    """What is right for a run: as the operator says, else as its key says."""
    if run.id in labels:
        return labels[run.id]
    return next((Label(run.id, verdict.label) for verdict in run.verdicts if verdict.label is not None), None)


async def _graded(
    question: Question, found: Sequence[_Run], labels: Mapping[str, Label], known: Comparisons
) -> list[Answer]:
    """The answers to one question with their classes and, where somebody said so, how right they are."""
    grader = question.grader or "short"
    rows = [row for run in found for row in run.rows]
    finals = [
        "" if row.answer.failed else answer_of(row.answer.text, question=question.text, grader=grader) for row in rows
    ]
    try:
        classes = await answer_classes(finals, known, grader=grader)
    except GradeError:  # math-verify is not installed
        classes = await answer_classes(finals, known, grader="short")
    placed = iter(
        msgspec.structs.replace(row.answer, final=final, same=same)
        for row, final, same in zip(rows, finals, classes, strict=True)
    )
    answers = []
    for run in found:
        own = [(row, next(placed)) for row in run.rows]
        good = {answer.same for row, answer in own if row.returned}
        label = _label(run, labels)
        score = fmean(verdict.score for verdict in run.verdicts) if run.verdicts else None
        source = LABEL if run.id in labels else run.verdicts[0].key_id
        for row, answer in own:
            right = None
            if label is not None:
                failed = answer.failed or not answer.text.strip()
                right = 0.0 if failed else await _compared(question.text, answer.text, label)
            elif row.returned or (answer.same >= 0 and answer.same in good):
                right = score
            answers.append(msgspec.structs.replace(answer, right=right, source=source if right is not None else ""))
    return answers


async def label_score(trace: Trace, label: str) -> float:
    """Returns 1 if the answer of a run is the same as the label, else 0."""
    question = "\n".join(message.text for message in trace.question)
    return await _compared(question, trace.answer, Label(trace.id, label)) if trace.answer.strip() else 0.0


async def _compared(question: str, text: str, label: Label) -> float:
    grader = label.grader or guessed_grader(question, label.answer)
    try:
        grade = await judge(Task(label.trace_id, question, label.answer, grader=grader), text)
    except GradeError:  # math-verify is not installed, or programs cannot be run here
        final = answer_of(text, question=question, grader=grader)
        return float(normal_form(final, grader="short") == normal_form(label.answer, grader="short"))
    return float(grade.correct) if grade.score is None else grade.score
