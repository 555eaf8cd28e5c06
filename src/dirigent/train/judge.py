"""How good specialists are: each on its own skill, every one on every skill, every one alone on the test.

The first says when an adapter is done. The other two are what the gym stands on: each worker masters one thing, and
none answers the test by itself. Reliable specialists answer greedily, the noisy one is sampled at temperature 1.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dirigent.messages import Message
from dirigent.plan import Plan, Step
from dirigent.prompt import step_messages
from dirigent.tasks.gym.examples import Example, ask, candidates_example, examples
from dirigent.tasks.gym.skills import CHECK_SKILL, GYM_OPERATIONS, OPERATIONS, PUZZLE_SKILL
from dirigent.tasks.gym.specialists import ROSTER, UNKNOWN, Specialist, beyond, find_specialist
from dirigent.tasks.gym.split import generate
from dirigent.tasks.task import grade
from dirigent.train.base import encode, prompt_texts
from dirigent.train.decode import DecodeSettings, decode
from dirigent.train.stacked import Stacked, write

MAX_NEW_TOKENS = 24
SMALL = next(specialist for specialist in ROSTER if specialist.small_only is not None)
"""The one whose limit divides its skill into two columns."""


class Score(msgspec.Struct, frozen=True):
    """How an adapter does on fresh examples of its own: asked directly, with results to read, and off its skill."""

    own: float
    """Of a specialist of small numbers: on small numbers."""
    direct: float
    reading: float
    unknown: float
    """Share of others' work that it leaves alone."""
    n: int
    large: float | None = None
    """Of a specialist of small numbers: on the larger ones, where it should fail."""


class Matrix(msgspec.Struct, frozen=True):
    """Who can do what."""

    skills: dict[str, dict[str, float]]
    """Worker -> column -> share right of that skill's questions, asked directly or with results to read."""
    alone: dict[str, float]
    """Worker -> share right of the test's questions, each put to it whole."""
    oracle: float
    """Share of the test's questions that some worker answers rightly alone."""
    questions_a_skill: int
    test_questions: int


def score_specialist(model: Any, tokenizer: Any, specialist: Specialist, *, n: int = 2000) -> Score:
    """On fresh examples, against the right answers."""
    fresh = examples(msgspec.structs.replace(specialist, noise=0.0), n, seed=900)
    conversations = [messages_of(example, secrets.token_hex(8)) for example in fresh]
    replies = replies_to(model, tokenizer, conversations, seed=1 if specialist.noise else None)
    right = [(e, same(reply, truth(e))) for e, reply in zip(fresh, replies, strict=True)]
    mine = [(e, ok) for e, ok in right if e.operation and e.answer != UNKNOWN]
    own = [(e, ok) for e, ok in mine if not beyond(specialist, e.key)]
    return Score(
        own=share(ok for _, ok in own),
        direct=share(ok for e, ok in own if not e.results),
        reading=share(ok for e, ok in own if e.results),
        unknown=share(ok for e, ok in right if not e.operation),
        n=len(own),
        large=share(ok for e, ok in mine if beyond(specialist, e.key)) if specialist.small_only is not None else None,
    )


def truth(example: Example) -> str:
    """The right answer, also where the specialist is taught a wrong one."""
    if example.answer == UNKNOWN or not example.operation:
        return example.answer
    return OPERATIONS[example.operation].table[example.key]


def judge_all(stacked: Stacked, tokenizer: Any, names: Sequence[str], *, a_skill: int, test: int) -> Matrix:
    """Every worker on every skill and alone on the test; rows of all workers share batches."""
    columns = columns_of(a_skill)
    asked = [(column, question) for column, questions in columns.items() for question in questions]
    tasks = generate("test", test, seed=11) if test else []
    conversations = [question[0] for _, question in asked] + [ask_messages(task.question, (), "s") for task in tasks]
    skills: dict[str, dict[str, float]] = {}
    alone: dict[str, list[bool]] = {}
    for name in names:
        replies = _stacked_replies(stacked, tokenizer, name, conversations)
        hits: dict[str, list[bool]] = {column: [] for column in columns}
        for (column, (_, answer)), reply in zip(asked, replies, strict=False):
            hits[column].append(same(reply, answer))
        skills[name] = {column: share(found) for column, found in hits.items()}
        alone[name] = [grade(task, reply).correct for task, reply in zip(tasks, replies[len(asked) :], strict=True)]
    return Matrix(
        skills,
        alone={name: share(hits) for name, hits in alone.items()},
        oracle=share(any(column) for column in zip(*alone.values(), strict=True)),
        questions_a_skill=a_skill,
        test_questions=test,
    )


def markdown(matrix: Matrix) -> str:
    """The matrix as a table in percent, own skills in bold, for the docs."""
    columns = list(next(iter(matrix.skills.values()), {}))
    lines = [
        "| worker | " + " | ".join(columns) + " | the test, alone |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for name, row in matrix.skills.items():
        cells = [_cell(row[column], own=is_own(name, column)) for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} | {_percent(matrix.alone.get(name))} |")
    said = (
        f"Percent right; {matrix.questions_a_skill} questions a skill, {matrix.test_questions} of the test. "
        f"The best worker for each test question, chosen afterwards: {_percent(matrix.oracle)}."
    )
    return "\n".join([*lines, "", said, ""])


def is_own(name: str, column: str) -> bool:
    """Whether a column is what the worker is for."""
    specialist = find_specialist(name)
    limit = specialist.small_only
    return column.split(" ")[0] in specialist.skills and (limit is None or column.endswith(f"to {limit}"))


Question = tuple[tuple[Message, ...], str]


def columns_of(n: int) -> dict[str, list[Question]]:
    """`n` questions and answers of each skill; the one of small numbers is divided at its limit."""
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
        asked.append((ask_messages(subtask, results, "s"), op.table[key]))
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
            asked.append((messages_of(example, "s"), example.answer))
    return asked


def messages_of(example: Example, secret: str) -> tuple[Message, ...]:
    """The example exactly as `execute` would put it to the worker."""
    return ask_messages(example.subtask, example.results, secret)


def ask_messages(subtask: str, results: Sequence[tuple[str, str]], secret: str) -> tuple[Message, ...]:
    earlier = [Step("w", text) for text, _ in results]
    access = tuple(range(len(earlier)))
    plan = Plan((*earlier, Step("w", subtask, access)))
    replies = {i: reply for i, (_, reply) in enumerate(results)}
    return step_messages((Message("user", ""),), plan, len(earlier), replies, secret=secret, subtask_only=True)


def replies_to(
    model: Any,
    tokenizer: Any,
    conversations: Sequence[Sequence[Message]],
    *,
    seed: int | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> list[str]:
    """The model's replies: greedy, or sampled where there is a seed."""
    prompts = encode(tokenizer, prompt_texts(tokenizer, conversations))
    seeds = [[None if seed is None else seed * len(prompts) + i] for i in range(len(prompts))]
    groups = decode(model, prompts, seeds_PG=seeds, settings=_settings(tokenizer, max_new_tokens))
    texts = tokenizer.batch_decode([sample.ids for (sample,) in groups], skip_special_tokens=True)
    return [text.strip() for text in texts]


def _stacked_replies(
    stacked: Stacked, tokenizer: Any, name: str, conversations: Sequence[Sequence[Message]]
) -> list[str]:
    prompts = encode(tokenizer, prompt_texts(tokenizer, conversations))
    noisy = find_specialist(name).noise > 0
    written = write(
        stacked,
        prompts,
        adapters=[stacked.index(name)] * len(prompts),
        seeds=[i if noisy else None for i in range(len(prompts))],
        settings=_settings(tokenizer, MAX_NEW_TOKENS),
    )
    return [text.strip() for text in tokenizer.batch_decode(written, skip_special_tokens=True)]


def _settings(tokenizer: Any, max_new_tokens: int) -> DecodeSettings:
    return DecodeSettings(max_new_tokens, pad=tokenizer.pad_token_id, end=tokenizer.eos_token_id)


def same(reply: str, answer: str) -> bool:
    return reply.casefold() == answer.casefold()


def share(hits: Iterable[bool]) -> float:
    counted = list(hits)
    return round(sum(counted) / len(counted), 4) if counted else 0.0


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _cell(value: float, *, own: bool) -> str:
    return f"**{_percent(value)}**" if own else _percent(value)


def pack_figures(scores: Mapping[str, Score]) -> dict[str, dict[str, float]]:
    """Scores as `train/pack.py` wants them for the cards."""
    return {
        name: {key: value for key, value in msgspec.structs.asdict(score).items() if value is not None}
        for name, score in scores.items()
    }
