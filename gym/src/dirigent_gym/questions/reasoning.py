"""Questions of the public library `reasoning-gym`, from the families that the gym's specialists can answer.

Words, answers and scorer are the library's. This module only translates a question into steps, which gives the cheapest
right plan, and leaves out questions that no specialist can answer (numbers beyond its tables, days counted backwards,
base 7). Some questions get one more step of the gym at the end. They are reported beside the gym, never trained on.

    chain_sum            57 + 12 - 9             numbers, one step an operator
    basic_arithmetic     ( 3 * 7 ) + 2 * 4       numbers; brackets make fans
    products             18 * 7                  numbers
    base_conversion      base-10 45 to binary    convert
    calendar_arithmetic  17 days from a Tuesday  dates

`recorded_tasks` needs nothing: a sample is in the package (`reasoning_sample.jsonl`, made by the library, Apache-2.0).
`reasoning_tasks` draws new ones and needs the extra `reasoning`, about 250 MB. It knows nothing of planners and pools.
"""

from __future__ import annotations

import ast
import importlib
import random
from collections.abc import Iterator, Sequence
from datetime import date
from importlib import metadata, resources
from itertools import count
from typing import Any

import msgspec

from dirigent.errors import ConfigError
from dirigent.tasks.task import Sketch, SketchStep, Task
from dirigent_gym.questions.phrasing import direct, lowered, references, referring, templates
from dirigent_gym.questions.skills import OPERATIONS, RL_OPERATIONS, Operation, fits
from dirigent_gym.questions.tables import WEEKDAYS

FAMILIES: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 4, "max_digits": 2},
    "basic_arithmetic": {"min_terms": 3, "max_terms": 4, "max_digits": 2, "operators": ["+", "-", "*"]},
    "products": {"max_digits": 2},
    "base_conversion": {"max_base": 10, "max_value": 63},
    "calendar_arithmetic": {"tasks": ["weekday_offset"], "offset_upper_bound": 60},
}
"""The library's families with their settings: small numbers, because a specialist's tables are small."""

COMPOSED_SHARE = 0.5
MAX_STEPS = 5
BATCH, EMPTY_BATCHES = 1000, 5
"""Questions drawn from a family at a time, and batches without a find before it ends. Some families yield 1 in 100."""


class Entry(msgspec.Struct, frozen=True):
    """One question of the library."""

    family: str
    question: str
    answer: str
    metadata: dict[str, Any]


class Sample(msgspec.Struct, frozen=True):
    """The first line of a recorded sample, which names its source."""

    source: str
    version: str
    licence: str
    url: str
    seed: int


def recorded_tasks(*, seed: int = 1) -> list[Task]:
    """The sample in the package; about half of its questions get one more step of the gym at the end."""
    return tasks_of(read_sample()[1], seed=seed)


def reasoning_tasks(n: int, *, seed: int) -> list[Task]:
    """`n` new questions from the library itself."""
    return tasks_of(draw_entries(n, seed=seed), seed=seed)


def tasks_of(entries: Sequence[Entry], *, seed: int) -> list[Task]:
    """The entries as tasks, in their order. Raises ConfigError for an entry that has no translation."""
    rng = random.Random(f"reasoning {seed}")
    return [_task(f"reasoning-{seed}-{i}", entry, rng) for i, entry in enumerate(entries)]


def draw_entries(n: int, *, seed: int) -> list[Entry]:
    """`n` different questions that specialists can answer, families in turn; large families fill up for small ones."""
    if n < 1:
        raise ConfigError(f"the number of questions must be 1 or more, not {n}")
    _library()
    sources = {family: _answerable(family, seed=seed) for family in FAMILIES}
    found: list[Entry] = []
    while sources:
        for family in list(sources):
            entry = next(sources[family], None)
            if entry is None:
                del sources[family]
                continue
            found.append(entry)
            if len(found) == n:
                return found
    raise ConfigError(f"reasoning-gym has only {len(found)} such questions, not {n}; ask for fewer")


def library_score(entry: Entry, reply: str) -> float:
    """Returns the library's own score of a reply, between 0 and 1."""
    scorer = _library().get_score_answer_fn(entry.family)
    raw = {"question": entry.question, "answer": entry.answer, "metadata": entry.metadata}
    return float(scorer(answer=reply, entry=raw))


def read_sample() -> tuple[Sample, list[Entry]]:
    """The recorded sample and its source."""
    text = resources.files("dirigent_gym.questions").joinpath("reasoning_sample.jsonl").read_text()
    head, *lines = text.splitlines()
    return msgspec.json.decode(head, type=Sample), [msgspec.json.decode(line, type=Entry) for line in lines]


def write_sample(n: int, *, seed: int) -> str:
    """A new sample as the text of its file."""
    version = metadata.version("reasoning-gym")
    url = "https://github.com/open-thought/reasoning-gym"
    head = Sample("reasoning-gym", version, "Apache-2.0", url, seed)
    return "".join(msgspec.json.encode(one).decode() + "\n" for one in (head, *draw_entries(n, seed=seed)))


def sketch_of_entry(entry: Entry) -> Sketch | None:
    """The cheapest right plan; None if no specialist can do a step of it."""
    try:
        steps = _TRANSLATE[entry.family](entry.metadata)
    except _Beyond:
        return None
    return Sketch(tuple(steps)) if steps and len(steps) < MAX_STEPS else None


class _Beyond(Exception):
    """No specialist's table has the answer."""


def _library() -> Any:
    try:
        return importlib.import_module("reasoning_gym")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"questions of reasoning-gym need it installed ({error.name} is missing): pip install 'dirigent[reasoning]'"
        ) from None


def _answerable(family: str, *, seed: int) -> Iterator[Entry]:
    library, seen = _library(), set[str]()
    last_fresh = 0
    for batch in count():
        # The library seeds its question i with seed + i, so batches must be a whole batch apart.
        first = BATCH * (1000 * seed + batch)
        drawn = library.create_dataset(family, size=BATCH, seed=first, **FAMILIES[family])
        for raw in drawn:
            notes = {name: value for name, value in raw["metadata"].items() if name in _KEPT[family]}
            entry = Entry(family, raw["question"].strip(), raw["answer"], notes)
            if entry.question not in seen and sketch_of_entry(entry) is not None:
                seen.add(entry.question)
                last_fresh = batch
                yield entry
        if batch - last_fresh >= EMPTY_BATCHES:
            return


_KEPT = {
    "chain_sum": {"expression"},
    "basic_arithmetic": {"expression"},
    "products": {"expression"},
    "base_conversion": {"source_base", "target_base", "source_repr", "target_repr", "decimal_value"},
    "calendar_arithmetic": {"task", "start_date", "offset_days", "target_date"},
}
"""The parts of the library's metadata that are kept: enough to translate and to score."""


def _task(task_id: str, entry: Entry, rng: random.Random) -> Task:
    sketch = sketch_of_entry(entry)
    if sketch is None or sketch.steps[-1].gold != entry.answer:
        got = "nothing" if sketch is None else repr(sketch.steps[-1].gold)
        raise ConfigError(f"{entry.family}: specialists give {got} for {entry.question!r}, not {entry.answer!r}")
    question, composed = entry.question, ""
    if rng.random() < COMPOSED_SHARE and (added := _one_more(rng, sketch)):
        step, sentence = added
        question, composed = f"{question}\n{sentence}", step.operation
        sketch = Sketch((*sketch.steps, step))
    last = sketch.steps[-1]
    return Task(
        id=task_id,
        question=question,
        answer=last.gold,
        grader=OPERATIONS[last.operation].grader,
        kind=f"reasoning {entry.family}{' +' if composed else ''}",
        depth=sketch.depth,
        sketch=sketch,
        tags={
            "split": "reasoning",
            "shape": "fan" if any(len(step.access) > 1 for step in sketch.steps) else "chain",
            "family": entry.family,
            "composed": composed,
            "skills": ">".join(sketch.skills),
        },
    )


def _one_more(rng: random.Random, sketch: Sketch) -> tuple[SketchStep, str] | None:
    """A step of another skill on the result, and the sentence that asks for it."""
    last = sketch.steps[-1]
    gives = OPERATIONS[last.operation].gives
    nexts = [op for op in RL_OPERATIONS if op.arity == 1 and op.skill != last.skill and fits(gives, takes=op.takes[0])]
    keys = [(op, key) for op in nexts for key in op.table if key[0] == last.gold]
    if not keys:
        return None
    op = rng.choice(sorted({op.full_name for op, _ in keys}))
    key = rng.choice([key for found, key in keys if found.full_name == op])
    step = _step(OPERATIONS[op], key, access=(len(sketch.steps) - 1,))
    return step, rng.choice(("Then {}", "After that, {}", "Now {}")).format(lowered(step.subtask))


def _step(operation: Operation, key: tuple[str, ...], *, access: tuple[int, ...] = ()) -> SketchStep:
    """A step in words that specialists know."""
    if key not in operation.table:
        raise _Beyond
    template = next(t for t in templates(operation.full_name) if t.mood == "order")
    subtask = referring(template, key, references(template)[0][0]) if access else direct(template, key)
    return SketchStep(operation.skill, operation.full_name, subtask, access, key, operation.table[key])


def _arithmetic(notes: dict[str, Any]) -> list[SketchStep]:
    """An expression as steps, one for each operator."""
    steps: list[SketchStep] = []
    _evaluate(ast.parse(notes["expression"].strip(), mode="eval").body, steps)
    return steps


def _evaluate(node: ast.expr, steps: list[SketchStep]) -> int | str:
    """The index of the step whose result is the node's value, or the number written there."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return str(node.value)
    if not isinstance(node, ast.BinOp):
        raise _Beyond
    left, right = _evaluate(node.left, steps), _evaluate(node.right, steps)
    steps.append(_binary(type(node.op), left, right, steps))
    return len(steps) - 1


def _binary(op: type[ast.operator], left: int | str, right: int | str, steps: Sequence[SketchStep]) -> SketchStep:
    values = tuple(side if isinstance(side, str) else steps[side].gold for side in (left, right))
    access = tuple(side for side in (left, right) if isinstance(side, int))
    if len(access) == 2:
        return _joined(op, values, access)
    name = {ast.Add: "numbers.plus", ast.Sub: "numbers.minus", ast.Mult: "numbers.times"}.get(op)
    if name is None:
        raise _Beyond
    # A result comes first. Two written numbers come in the order that the table has; only minus has no choice.
    orders = [values, values[::-1]] if op is not ast.Sub else [values]
    if isinstance(right, int):
        orders = [key for key in orders if key == values[::-1]] if op is not ast.Sub else []
    elif access:
        orders = orders[:1]
    for key in orders:
        if key in OPERATIONS[name].table:
            return _step(OPERATIONS[name], key, access=access)
    raise _Beyond


def _joined(op: type[ast.operator], values: tuple[str, ...], access: tuple[int, ...]) -> SketchStep:
    """A step on two results: their sum, or their difference if the first is larger."""
    if op is ast.Add:
        return _step(OPERATIONS["numbers.sum"], values, access=access)
    if op is ast.Sub and int(values[0]) > int(values[1]):
        return _step(OPERATIONS["numbers.difference"], values, access=access)
    raise _Beyond


def _bases(notes: dict[str, Any]) -> list[SketchStep]:
    name = {(10, 2): "convert.binary", (2, 10): "convert.decimal"}.get((notes["source_base"], notes["target_base"]))
    if name is None:
        raise _Beyond
    return [_step(OPERATIONS[name], (notes["source_repr"],))]


def _calendar(notes: dict[str, Any]) -> list[SketchStep]:
    start = WEEKDAYS[date.fromisoformat(notes["start_date"]).weekday()]
    return [_step(OPERATIONS["dates.weekday"], (str(notes["offset_days"]), start))]


_TRANSLATE = {
    "chain_sum": _arithmetic,
    "basic_arithmetic": _arithmetic,
    "products": _arithmetic,
    "base_conversion": _bases,
    "calendar_arithmetic": _calendar,
}
