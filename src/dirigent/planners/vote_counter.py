"""Counting: the local worker that takes a vote. It reads the results of earlier steps and repeats the commonest answer.

A function decides whether two replies give the same answer, so that a vote compares as the task's grader does, not
letter by letter. The reply says what share of the answers agree (`Reply.chosen`). A tie goes to an answer that a
program printed, then to the answer that was given first. A reply without an answer has no vote, and neither has a
program that failed or printed nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from dirigent.messages import Reply, Request, Result
from dirigent.workers.reader import Reader, repeated

Same = Callable[[str, str], Awaitable[bool]]
"""Returns whether two replies give the same answer; a reply equals itself only if it gives an answer."""

UNDECIDED = "The answers differ."
"""The reply of a counter that needs agreement and does not find it."""


class Counting(Reader):
    """Repeats the answer with the most votes; with `unanimous`, only if all agree."""

    def __init__(
        self,
        same: Same,
        *,
        name: str = "count",
        about: str = "counts equal answers",
        kind: str = "counting",
        weights: Sequence[float] = (),
        unanimous: bool = False,
    ) -> None:
        super().__init__(name, about=about, kind=kind)
        self._same = same
        self._weights = weights
        self._unanimous = unanimous

    async def read(self, results: Sequence[Result], request: Request) -> Reply:
        votes = await count_votes(results, self._same, weights=self._weights)
        if self._unanimous and (len(votes) != 1 or len(votes[0].results) < 2):
            return Reply(UNDECIDED)
        if not votes:
            return repeated(results[0], votes=0, of=0)
        best = max(votes, key=lambda vote: (vote.weight, vote.printed))  # the first of several equals: max keeps order
        return repeated(best.results[0], votes=len(best.results), of=sum(len(vote.results) for vote in votes))


class Vote:
    """One answer, and the results that gave it."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.weight = 0.0

    @property
    def printed(self) -> bool:
        """Whether a program printed this answer."""
        return any(result.ran is not None and result.ran.printed for result in self.results)


async def count_votes(results: Sequence[Result], same: Same, *, weights: Sequence[float] = ()) -> list[Vote]:
    """Returns the answers in the order they first came. A weight belongs to a step number; without one it is 1."""
    votes: list[Vote] = []
    for result in results:
        failed = result.ran is not None and not result.ran.printed
        if failed or not await same(result.text, result.text):
            continue
        for vote in votes:
            if await same(vote.results[0].text, result.text):
                break
        else:
            vote = Vote()
            votes.append(vote)
        vote.results.append(result)
        vote.weight += weights[result.step] if result.step < len(weights) else 1.0
    return votes
