"""Two training-free baselines of the gym, `ask-all` and `spans`. Both ask every worker and read no card.

`ask-all` asks every worker the question once, drops `unknown`, and takes the commonest other answer.

`spans` searches. It goes through the question sentence by sentence and asks every worker runs of its words, the longest
first. An answer replaces its words, and the search continues until an answer covers the sentence or no worker answers
any run. So it finds by trial the clauses that the workers know. It assumes of English that a clause begins after
punctuation, at a number, an article, a question word, a verb at the head of a sentence or after a function word; and
that `that`, `it`, `both` may refer to earlier answers, which are then shown. It shows how much of a question can be
answered with enough calls; the column of right answers per call shows how much a planner saves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from dirigent.messages import Attempt, Message, Observe, Reply, Request, ignore
from dirigent.plan.plan import Plan, Step
from dirigent.planners import Fitted, Fitting, PlannerName
from dirigent.planners.fixed import Single
from dirigent.planners.vote_counter import Counting, Same
from dirigent.planners.voting import Panel
from dirigent.run.step_prompt import ANSWER, step_messages
from dirigent.tasks.task import Task, tidy
from dirigent.workers.metering import metered
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Price, Worker, WorkerInfo
from dirigent_gym.questions.specialists import UNKNOWN

ASK_ALL, SPANS = "ask-all", "spans"

MOST_STEPS = 9
"""A question comes with at most eight workers; the ninth step is the counter's."""

GUESSES = 4
"""Tries of a worker that gives different answers to the same words."""

TOKEN = re.compile(r"`[^`]*`\S*|\S+")
SENTENCE = re.compile(r"(?<=[.?!;:])\s+")
STARTS = frozenset({"the", "a", "an", "how", "what", "which", "who", "where", "when", "whose"})
BEHIND = frozenset(
    {"as", "of", "by", "to", "and", "is", "in", "on", "that", "between", "among", "than", "from", "with", "find",
     "know", "are", "adding", "after", "before", "please", "now", "then", "out", "give", "me", "determine", "convert"}
)  # fmt: skip
REFERS = re.compile(r"\b(that|this|it|its|these|those|both|results?|two|them|comes)\b", re.IGNORECASE)
AS_MANY = re.compile(r"\b(?:as|so) many (\w+) as (\d+)\b")
"""`as many days as 12` becomes `12 days` once the number is known."""


async def ask_all(name: PlannerName, fitting: Fitting) -> Fitted:
    """Asks every worker of the question's pool once and takes the commonest answer other than `unknown`."""

    def helpers(task: Task, pool: Pool) -> list[Worker]:
        return [Counting(_known(fitting.same_for(task)))]

    return Fitted(
        str(name),
        lambda task, pool: Panel([worker for worker in pool.names if worker != "count"], name=str(name)),
        helpers,
        max_steps=MOST_STEPS,
        note="every worker once",
    )


async def spans(name: PlannerName, fitting: Fitting) -> Fitted:
    """The search as one step of a local worker; its calls of the pool's workers count as its own."""
    return Fitted(
        str(name),
        lambda task, pool: Single(SPANS, name=str(name)),
        lambda task, pool: [SpanSearch(pool)],
        note="training-free, every worker, span by span",
    )


def _known(same: Same) -> Same:
    """Equality of answers in which `unknown` equals nothing, not even itself, and so has no vote."""

    async def equal(first: str, second: str) -> bool:
        return UNKNOWN not in (tidy(first), tidy(second)) and await same(first, second)

    return equal


class SpanSearch:
    """Reads a question, asks the workers of a pool runs of its words, and returns the last answer."""

    keeps_book = True
    """It bills nothing itself; every call of a worker is metered separately."""

    def __init__(self, pool: Pool) -> None:
        self._workers = [metered(worker) for worker in pool.values()]
        self.info = WorkerInfo(SPANS, about="asks every worker spans of the question", price=Price(), subtask_only=True)

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        search = _Search(self._workers, request)
        text = request.messages[-1].text.removesuffix(ANSWER).strip()
        for sentence in SENTENCE.split(text):
            while sentence:
                sentence = await search.replaced(sentence)
        return Reply(search.answers[-1][1] if search.answers else UNKNOWN, attempts=tuple(search.attempts))


class _Search:
    """The search through one question."""

    def __init__(self, workers: Sequence[Worker], request: Request) -> None:
        self._workers = workers
        self._request = request
        self._barren: set[tuple[str, int]] = set()
        """Runs of words that no worker answered, with the number of answers that could be shown."""
        self.answers: list[tuple[str, str]] = []
        """Words and their answers."""
        self.attempts: list[Attempt] = []

    async def replaced(self, sentence: str) -> str:
        """Returns the sentence with one answer in place of its words; empty if the sentence is answered or has no run
        that a worker answers."""
        for start, end, words in runs(sentence):
            shown = len(self.answers) if REFERS.search(words) else 0
            if (words, shown) in self._barren or words in (answer for _, answer in self.answers):
                continue
            answer = await self._answer(words, shown=bool(shown))
            if not answer:
                self._barren.add((words, shown))
                continue
            self.answers.append((words, answer))
            covered = not sentence[:start].strip() and not sentence[end:].strip(" .,?!;:")
            return "" if covered else AS_MANY.sub(r"\2 \1", sentence[:start] + answer + sentence[end:])
        return ""

    async def _answer(self, words: str, *, shown: bool) -> str:
        """Returns the workers' answer to these words; empty if no worker knows one."""
        earlier = self.answers if shown else []
        replies = [await self._ask(worker, words, earlier) for worker in self._workers]
        answering = [i for i, reply in enumerate(replies) if reply]
        if not answering:
            return ""
        # If several answers differ, the dearest worker is asked again; a worker that contradicts itself guesses.
        votes = Counter(replies[i] for i in answering)
        best = max(answering, key=lambda i: (votes[replies[i]], self._price(i)))
        found = [replies[best], await self._ask(self._workers[best], words, earlier)]
        if found[0] == found[1]:
            return found[0]
        while len(found) < GUESSES:
            found.append(await self._ask(self._workers[best], words, earlier))
        guesses = [(words, guess) for guess in dict.fromkeys(found) if guess]
        for i, worker in enumerate(self._workers):
            if not replies[i] and (checked := await self._ask(worker, words, guesses)):
                return checked
        return Counter(found).most_common(1)[0][0]

    async def _ask(self, worker: Worker, words: str, earlier: Sequence[tuple[str, str]]) -> str:
        """One worker's answer to these words; empty for `unknown`."""
        steps = [Step("earlier", subtask) for subtask, _ in earlier]
        plan = Plan((*steps, Step("spans", words, tuple(range(len(steps))))))
        replies = {i: reply for i, (_, reply) in enumerate(earlier)}
        messages: tuple[Message, ...] = step_messages((), plan, len(steps), replies, secret="", subtask_only=True)
        reply = await worker.ask(msgspec.structs.replace(self._request, messages=messages))
        self.attempts.extend(reply.attempts)
        answer = str(reply.text).strip()
        return "" if tidy(answer) == UNKNOWN else answer

    def _price(self, index: int) -> float:
        price = self._workers[index].info.price
        return price.input + price.output if price is not None else 0.0


def runs(sentence: str) -> Iterator[tuple[int, int, str]]:
    """Runs of at least two words that may be a clause, the longest first: each with begin, end and words."""
    tokens = [(match.start(), match.end(), match[0]) for match in TOKEN.finditer(sentence)]
    starts = [i for i in range(len(tokens)) if _may_start(tokens, i)]
    found = [(i, j) for i in starts for j in range(i + 2, len(tokens) + 1)]
    for i, j in sorted(found, key=lambda run: (run[0] - run[1], run[0])):
        start, end = tokens[i][0], tokens[j - 1][1]
        words = sentence[start:end].rstrip(",;:.?!" if i else ",;:")  # a clause inside does not end the sentence
        yield start, start + len(words), words


def _may_start(tokens: Sequence[tuple[int, int, str]], i: int) -> bool:
    word = tokens[i][2].lower()
    if i == 0 or word in STARTS or word[0].isdigit() or word[0] == "`":
        return True
    before = tokens[i - 1][2].lower()
    return before[-1] in ",;:.?!" or before.strip(",") in BEHIND
