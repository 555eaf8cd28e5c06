"""Import recorded answers into a `Table`: models' outputs, bare scores, and the replies of one model in roles.

Three kinds of files hold answers; the fields of a file's first row say which kind it is:

    outputs     one row a question, every model's answer in it, graded by the source
    scores      one row a question, every model's score in it, and no text
    role, k     one row a reply; the questions come from other files, and replies are graded here

Which answers are equal is found by `answer_classes`, which never sees the right answer. Replies in roles cost their
output tokens and a quarter of their prompt's; outputs cost what the file states, else list prices by the rule in
`Prices`. A table has one unit of cost, so the two cannot share one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dirigent.errors import ConfigError
from dirigent.learn.roles_table import Comparisons, QuestionRow, ReplyRow, answer_classes
from dirigent.learn.table import Answer, Question, Table, TableWorker
from dirigent.tasks.answer_forms import answer_of
from dirigent.tasks.benchmarks import FREE, LITERAL_TASKS
from dirigent.tasks.tables import decoded
from dirigent.tasks.task import Grader, Task

READS = {
    "review": ("think",),
    "repair": ("code",),
    "judge": ("think", "code"),
    "repair-direct": ("direct",),
    "repair-think": ("think",),
}
"""Second steps of the roles files, and the first steps of the same sample number that each reads."""
RUNS = ("code", "repair")
"""Roles whose replies are programs that were run for their output."""
ROLES = {
    "direct": "answers at once",
    "think": "thinks step by step",
    "code": "writes a program, which is run",
    "review": "reviews a step-by-step answer",
    "repair": "repairs a program that failed",
    "judge": "judges between a step-by-step answer and a program's",
    "repair-direct": "repairs a program written at once",
    "repair-think": "repairs a program written step by step",
}
BATCH = 500
"""Questions compared at a time."""


class Prices(msgspec.Struct, frozen=True):
    """List prices, and the rule that counts a recorded answer's cost by them.

    A call costs (characters of the question / 4 + `template_tokens`) x input + estimated output tokens x output.
    """

    prices: dict[str, tuple[float, float]]
    """USD per million tokens of input and of output, by model."""
    template_tokens: float = 0.0

    def cost_usd(self, model: str, question: str, output_tokens: float) -> float:
        if model not in self.prices:
            raise ConfigError(f"the prices name no model {model!r}; they have: {', '.join(sorted(self.prices))}")
        paid, earned = self.prices[model]
        return ((len(question) / 4 + self.template_tokens) * paid + output_tokens * earned) / 1e6


class RecordedOutput(msgspec.Struct, frozen=True):
    text: str
    pred: str | None = None
    correct: bool | None = None
    score: float | None = None
    est_tokens: int | None = None
    input_tokens: int = 0
    output_tokens: int | None = None
    cost_usd: float | None = None
    truncated: bool = False


class RecordedRow(QuestionRow, frozen=True, kw_only=True):
    meta: dict[str, Any] = msgspec.field(default_factory=dict)
    outputs: dict[str, RecordedOutput] | None = None
    scores: dict[str, float] | None = None


class TableReplyRow(ReplyRow, frozen=True, kw_only=True):
    part: str = ""


async def import_files(
    files: Sequence[Path],
    *,
    questions: Sequence[Path] = (),
    prices: Prices | None = None,
    cache: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Table:
    """The table of all answers in the files; raises ConfigError that names the file and the line of a fault.

    Files without answers count as questions. Comparisons made earlier are read from the file `cache`, and new ones
    are added to it.
    """
    kinds = {file: _kind_of(file) for file in dict.fromkeys(files)}
    replies = [file for file, kind in kinds.items() if kind == "replies"]
    # Recorded answers cost USD and cannot join replies that cost tokens; a roles file may need such a file's questions.
    asked = [file for file, kind in kinds.items() if kind == "questions" or (replies and kind != "replies")]
    recorded = [file for file in kinds if file not in replies and file not in asked]
    if not replies and not recorded:
        raise ConfigError(f"no file holds answers (outputs, scores, or role and k): {', '.join(map(str, files))}")
    known = Comparisons(cache)
    try:
        if replies:
            rows = _question_rows([*questions, *asked])
            table = await _of_replies(replies, rows, known, say)
        else:
            table = await _of_recorded(recorded, prices, known)
    finally:
        known.save()
    table.check("the imported table")
    return table


def read_prices(file: Path) -> Prices:
    """Prices from a JSON file such as `prices_2024.json`."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Prices)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{file} holds no prices: {error}") from None


def recorded_models(files: Iterable[Path]) -> set[str]:
    """The models that the first rows of these files hold outputs of."""
    found: set[str] = set()
    for file in files:
        for _, row in decoded(file, RecordedRow) if _kind_of(file) == "recorded" else ():
            found |= set(row.outputs or ())
            break
    return found


def _kind_of(file: Path) -> str:
    for _, row in decoded(file, dict[str, Any]):
        if row.get("outputs") or row.get("scores"):
            return "recorded"
        return "replies" if "role" in row and "k" in row else "questions"
    raise ConfigError(f"{file} has no rows")


def _question_rows(files: Iterable[Path]) -> dict[str, RecordedRow]:
    """Questions by id. Two files may hold the same question; one id for two questions is an error."""
    found: dict[str, RecordedRow] = {}
    for file in dict.fromkeys(files):
        here: set[str] = set()
        for number, row in decoded(file, RecordedRow):
            if row.id in here:
                raise ConfigError(f"{file}, line {number}: the question id {row.id!r} is there twice")
            if row.id in found and found[row.id].question != row.question:
                raise ConfigError(f"{file}, line {number}: another file has the id {row.id!r} for another question")
            here.add(row.id)
            found.setdefault(row.id, row)
    return found


def _grader_of(row: QuestionRow) -> Grader:
    return "literal" if row.task in LITERAL_TASKS and row.grader == "exact" else FREE[row.grader]


# ---- replies in roles ---------------------------------------------------------------------------------------


async def _of_replies(
    files: Sequence[Path], rows: dict[str, RecordedRow], known: Comparisons, say: Callable[[str], None]
) -> Table:
    replies: dict[str, list[TableReplyRow]] = defaultdict(list)
    seen: set[tuple[str, str, int]] = set()
    model = ""
    for file in files:
        model = file.name.split(".")[0].removeprefix("roles_")
        for number, reply in decoded(file, TableReplyRow):
            if reply.id not in rows:
                raise ConfigError(f"{file}, line {number}: no questions file holds {reply.id!r}; add --questions FILE")
            if (reply.id, reply.role, reply.k) in seen:
                raise ConfigError(f"{file}, line {number}: {reply.id!r} has {reply.role} {reply.k} twice")
            seen.add((reply.id, reply.role, reply.k))
            replies[reply.id].append(reply)
    questions, answers = [], []
    together = list(replies.items())
    for start in range(0, len(together), BATCH):
        for id, own in together[start : start + BATCH]:
            row = rows[id]
            graded = await _graded(
                row, sorted(own, key=lambda reply: (reply.role in READS, reply.role, reply.k)), known
            )
            answers += graded
            questions.append(_question(row, kind=own[0].set, part=own[0].part))
        known.save()
        say(f"graded {len(questions):,} of {len(together):,} questions")
    roles = sorted({reply.role for own in replies.values() for reply in own}, key=_place)
    workers = tuple(
        TableWorker(role, about=ROLES.get(role, ""), model=model, reads=role in READS, runs=role in RUNS)
        for role in roles
    )
    return Table(workers, tuple(questions), tuple(answers), "units")


def _place(role: str) -> tuple[int, str]:
    return (list(ROLES).index(role) if role in ROLES else len(ROLES), role)


def _question(row: RecordedRow, *, kind: str = "", part: str = "", graded_here: bool = True) -> Question:
    return Question(
        row.id,
        row.question,
        kind=kind or row.task,
        answer=row.answer,
        grader=_grader_of(row) if graded_here else None,
        split=str(row.meta.get("split", "")),
        part=part,
    )


async def _graded(row: RecordedRow, replies: Sequence[TableReplyRow], known: Comparisons) -> list[Answer]:
    """The answers of one question. Its programs were run before: of MBPP's the tests, of others the output."""
    grader = _grader_of(row)
    finals, right, failed = [], [], []
    task = Task(row.id, row.question, row.answer, grader=grader)
    for reply in replies:
        if grader == "code":
            visible, everything = (_ended_well(reply, test) for test in ("visible", "all"))
            failed.append(not visible)
            finals.append(reply.text.strip() if visible else "")
            right.append(everything)
            continue
        said = _said(reply)
        failed.append(reply.role in RUNS and not said.strip())
        finals.append(answer_of(said, question=row.question, grader=grader))
        right.append(bool(said.strip()) and await known.grade(task, said))
    classes = await answer_classes(finals, known, grader=grader)
    return [
        Answer(
            row.id,
            reply.role,
            k=reply.k,
            text=reply.text if grader == "code" else _said(reply),
            final="" if grader == "code" else final,
            same=same,
            right=float(good),
            cost=reply.tokens + reply.prompt_tokens / 4,
            input_tokens=reply.prompt_tokens,
            output_tokens=reply.tokens,
            ended=reply.ended,
            failed=bad,
            read=tuple((role, reply.k) for role in READS.get(reply.role, ())),
        )
        for reply, final, same, good, bad in zip(replies, finals, classes, right, failed, strict=True)
    ]


def _ended_well(reply: TableReplyRow, test: str) -> bool:
    if test not in reply.runs:
        raise ConfigError(f"{reply.id!r}, {reply.role} {reply.k}: the row has no `runs.{test}`")
    return reply.runs[test][0] == 0


def _said(reply: TableReplyRow) -> str:
    """The reply as it is graded: of a program the last line that it printed, empty if it failed or printed nothing."""
    if reply.role not in RUNS:
        return reply.text
    if "run" not in reply.runs:
        raise ConfigError(f"{reply.id!r}, {reply.role} {reply.k}: the row has no `runs.run`")
    status, printed, _ = reply.runs["run"]
    lines = printed.strip().splitlines()
    return lines[-1] if status == 0 and lines else ""


# ---- recorded outputs and scores ----------------------------------------------------------------------------


async def _of_recorded(files: Sequence[Path], prices: Prices | None, known: Comparisons) -> Table:
    questions, answers = [], []
    models: dict[str, None] = {}
    for file in files:
        for number, row in decoded(file, RecordedRow):
            models |= dict.fromkeys([*(row.outputs or {}), *(row.scores or {})])
            if not row.outputs and not row.scores:
                raise ConfigError(f"{file}, line {number}: {row.id!r} has neither outputs nor scores")
            questions.append(_question(row, graded_here=bool(row.outputs)))
            answers += await _outputs(row, prices, known, f"{file}, line {number}")
            answers += _scores(row, f"{file}, line {number}")
    workers = tuple(TableWorker(name, model=name) for name in models)
    return Table(workers, tuple(questions), tuple(answers), "usd" if any(a.cost for a in answers) else "calls")


async def _outputs(row: RecordedRow, prices: Prices | None, known: Comparisons, where: str) -> list[Answer]:
    outputs = row.outputs or {}
    grader = _grader_of(row)
    # A source that graded says what it read as the final answer; null if it found none.
    finals = [
        answer_of(output.text, question=row.question, grader=grader)
        if output.pred is None and output.score is not None
        else output.pred or ""
        for output in outputs.values()
    ]
    classes = await answer_classes(finals, known, grader=grader)
    found = []
    for (model, output), final, same in zip(outputs.items(), finals, classes, strict=True):
        right = output.score if output.score is not None else output.correct
        if right is None or not right <= 1:
            raise ConfigError(f"{where}: the answer of {model} needs `correct`, or a `score` of at most 1")
        tokens = output.est_tokens if output.output_tokens is None else output.output_tokens
        cost = output.cost_usd
        if cost is None:
            if prices is None:
                raise ConfigError(f"{where}: the answer of {model} states no cost_usd; give  --prices FILE")
            cost = prices.cost_usd(model, row.question, tokens or 0)
        found.append(
            Answer(
                row.id,
                model,
                text=output.text,
                final=final,
                same=same,
                right=max(0.0, float(right)),  # some metrics subtract the score of chance
                cost=cost,
                input_tokens=output.input_tokens,
                output_tokens=tokens or 0,
                ended=not output.truncated,
            )
        )
    return found


def _scores(row: RecordedRow, where: str) -> list[Answer]:
    """Bare scores: nobody knows which answers are equal, so each is a class of its own; a call costs 1."""
    found = []
    for place, (model, score) in enumerate((row.scores or {}).items()):
        if not 0 <= score <= 1:
            raise ConfigError(f"{where}: the score of {model} is {score:g}; it must be from 0 to 1")
        found.append(Answer(row.id, model, same=place, right=score, cost=1.0))
    return found
