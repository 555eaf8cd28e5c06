"""Specialists that answer exactly, by the tables, as perfectly trained workers would.

They read a subtask with `recognition.recognise` and nothing else, so they show the worth of a plan independently of any
model's training. The guesser is wrong as often as its card says, the cheap adder on the numbers that its card names,
and the checker never solves. `answer` is pure; `ExactSpecialist` wraps it as a Worker for tests and examples.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from dirigent.messages import Message, Observe, Reply, Request, ignore
from dirigent.tasks.task import tidy
from dirigent.workers.pool import Pool
from dirigent.workers.worker import WorkerInfo
from dirigent_gym.questions.recognition import Reading, recognise
from dirigent_gym.questions.skills import OPERATIONS, PUZZLE_SKILL
from dirigent_gym.questions.solving import Key
from dirigent_gym.questions.specialists import UNKNOWN, Specialist, beyond

Result = tuple[str, str]
"""An earlier subtask and its reply."""


def answer(
    specialist: Specialist, subtask: str, results: Sequence[Result] = (), *, seed: str = "", misled: float = 0.0
) -> str:
    """Returns the specialist's reply. `seed` names the question and the attempt; only the guesser uses it.

    `misled` is the share of subtasks on which it errs if it sees results that it does not need. These are always the
    same subtasks with the same results, so one attempt each distinguishes two plans that differ in access.
    """
    for reading in recognise(subtask):
        if specialist.role == "checker":
            return _select(reading, results)
        if OPERATIONS[reading.operation].skill in specialist.skills:
            key = resolve(reading, results)
            if key is None:
                return UNKNOWN
            needed = OPERATIONS[reading.operation].arity if reading.refers else 0
            luck = random.Random(f"misled {subtask} {list(results)}")
            if misled and len(results) > needed and luck.random() < misled:
                return distractors(reading.operation, key)[0]
            return _reply(specialist, reading.operation, key, seed=seed)
    return UNKNOWN


def resolve(reading: Reading, results: Sequence[Result]) -> Key | None:
    """The key that a reading means: its own key, or a key made of the latest results that fit."""
    if not reading.refers:
        return reading.key
    known = _known_keys(reading.operation)
    replies = [tidy(reply) for _, reply in results]
    parameter = (reading.parameter.casefold(),) if reading.parameter else ()
    if OPERATIONS[reading.operation].arity == 1:
        wanted: Iterable[Key] = ((reply, *parameter) for reply in reversed(replies))
    else:
        last_first = range(len(replies) - 1, -1, -1)
        wanted = ((replies[i], replies[j]) for j in last_first for i in range(j - 1, -1, -1))
    return next((known[key] for key in wanted if key in known), None)


def distractors(operation: str, key: Key) -> tuple[str, ...]:
    """Three wrong answers that look right, or fewer if there are no more; the same ones each time for a key."""
    op = OPERATIONS[operation]
    gold = op.table[key]
    rng = random.Random(f"{operation} {key}")
    if gold.isdigit():
        near = [str(int(gold) + d) for d in (-10, -2, -1, 1, 2, 10) if int(gold) + d >= 0]
        return tuple(rng.sample(near, 3))
    others = sorted({value for value in op.table.values() if value != gold}, key=lambda v: (abs(len(v) - len(gold)), v))
    return tuple(rng.sample(others[:12], min(3, len(others))))


class ExactSpecialist:
    """A specialist as a Worker that answers as a perfectly trained one would; noisy specialists keep their noise.

    With a seed, attempts differ by the count of earlier requests for the same subtask; without one, by the seed of each
    request. `misled` is the share of subtasks on which results that it does not need lead it to a wrong answer.
    """

    def __init__(self, specialist: Specialist, *, seed: int | None = 0, misled: float = 0.0) -> None:
        self.specialist = specialist
        self.info = WorkerInfo(
            specialist.name,
            about=specialist.about,
            kind="exact",
            price=specialist.price,
            skills=specialist.skills,
            abilities=frozenset({"seed"} if seed is None else ()),
            subtask_only=True,
        )
        self._seed = seed
        self._misled = misled
        self._asked: Counter[str] = Counter()

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        subtask, results = read_view(request.messages[-1])
        if self._seed is None:
            luck = str(request.seed or 0)
        else:
            luck = f"{self._seed} {subtask} {self._asked[subtask]}"
            self._asked[subtask] += 1
        return Reply(answer(self.specialist, subtask, results, seed=luck, misled=self._misled))


def exact_pool(specialists: Iterable[Specialist], *, seed: int = 0) -> Pool:
    return Pool(ExactSpecialist(specialist, seed=seed) for specialist in specialists)


_RESULT = re.compile(r"<(\w+) step \d+>\nSubtask: (.*?)\nResult: (.*?)\n</\1>\n", re.DOTALL)


def read_view(message: Message) -> tuple[str, list[Result]]:
    """Reads the subtask and the results from the prompt of a worker that wants only its subtask (`step_messages`)."""
    results = [(match[2], match[3]) for match in _RESULT.finditer(message.text)]
    end = max((match.end() for match in _RESULT.finditer(message.text)), default=0)
    return message.text[end:].strip(), results


def _select(reading: Reading, results: Sequence[Result]) -> str:
    op = OPERATIONS[reading.operation]
    if op.skill != PUZZLE_SKILL or reading.refers:
        return UNKNOWN
    gold = op.table[reading.key]
    return gold if any(tidy(reply) == tidy(gold) for _, reply in results) else UNKNOWN


def _reply(specialist: Specialist, operation: str, key: Key, *, seed: str) -> str:
    if beyond(specialist, key):
        return distractors(operation, key)[0]
    rng = random.Random(f"noise {seed}")
    if specialist.noise and rng.random() < specialist.noise:
        return rng.choice(distractors(operation, key))
    return OPERATIONS[operation].table[key]


@cache
def _known_keys(operation: str) -> dict[Key, Key]:
    return {tuple(tidy(part) for part in key): key for key in OPERATIONS[operation].table}
