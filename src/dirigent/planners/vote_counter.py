"""Counting: the local worker that takes a vote. It reads the results of earlier steps and repeats the commonest answer.

Whether two replies give the same answer is asked of a function, so that a vote compares as the task's grader does, not
letter by letter. It calls no model and costs nothing. Ties go to the answer that was given first; a step that gave no
answer has no vote.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from dirigent.errors import WorkerError
from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.plan.marks import read_results
from dirigent.workers.scripted import stream_words
from dirigent.workers.worker import Price, WorkerInfo

Same = Callable[[str, str], Awaitable[bool]]
"""Whether two replies give the same answer; a reply compared with itself tells whether it gives one at all."""

UNDECIDED = "The answers differ."
"""What a counter says that wants agreement and finds none."""


class Counting:
    """Repeats the answer with the most votes; with `unanimous`, only where nobody disagrees."""

    keeps_book = True
    """No call leaves and nothing is billed: there is nothing to meter."""

    def __init__(
        self, same: Same, *, name: str = "count", weights: Sequence[float] = (), unanimous: bool = False
    ) -> None:
        self._same = same
        self._weights = weights
        self._unanimous = unanimous
        self.info = WorkerInfo(name, about="counts equal answers", kind="counting", price=Price(), subtask_only=True)

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        results = read_results(request.messages)
        if not results:
            raise WorkerError(
                f"{self.info.name} counts the results of earlier steps and was shown none; let its step read them",
                worker=self.info.name,
                fault="request",
            )
        text = await self._decided(results)
        await stream_words(text, observe)
        return Reply(text, model=self.info.name)

    async def _decided(self, results: Mapping[int, str]) -> str:
        votes = await count_votes(results, self._same, weights=self._weights)
        if self._unanimous:
            agreed = len(votes) == 1 and len(votes[0].steps) >= 2
            return votes[0].text if agreed else UNDECIDED
        if not votes:
            return next(iter(results.values()))
        return max(votes, key=lambda vote: vote.weight).text  # the first of several equals: max keeps order


class Vote:
    """One answer, and who gave it."""

    def __init__(self, text: str) -> None:
        self.text = text
        """The first reply that gave it, whole."""
        self.steps: list[int] = []
        self.weight = 0.0


async def count_votes(results: Mapping[int, str], same: Same, *, weights: Sequence[float] = ()) -> list[Vote]:
    """The answers in the order they first came. A weight belongs to a step number; without one a vote counts 1."""
    votes: list[Vote] = []
    for step, reply in sorted(results.items()):
        if not await same(reply, reply):
            continue
        for vote in votes:
            if await same(vote.text, reply):
                break
        else:
            vote = Vote(reply)
            votes.append(vote)
        vote.steps.append(step)
        vote.weight += weights[step] if step < len(weights) else 1.0
    return votes
