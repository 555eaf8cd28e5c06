"""Reader: the base of local workers that read the results of earlier steps (a vote, a selector), and the selector.

A reader is a program on this machine. It reads the results on its access list as data (`Request.results`): whose they
are, whether they are whole, and how the program behind a result ended. It calls no model, costs nothing and writes no
tokens.

`Select` says which result is right, and how sure it is. A fitted selector knows how often each worker is right, alone
and against the others (`learn/selector.py`). Its choice is the whole reply of a worker that gave the chosen answer. A
plan with `until` ends in such a worker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import msgspec

from dirigent.errors import WorkerError
from dirigent.messages import Choice, Finish, Observe, Reply, Request, Result, ignore
from dirigent.workers.scripted import stream_words
from dirigent.workers.worker import Price, WorkerInfo


class Reader:
    """A free local worker. A subclass gives it a card and `read`, which returns the reply."""

    keeps_book = True
    """No call leaves and nothing is billed: there is nothing to meter."""

    def __init__(self, name: str, *, about: str, kind: str, subtask_only: bool = True, selects: bool = False) -> None:
        self.info = WorkerInfo(
            name,
            about=about,
            kind=kind,
            price=Price(),
            subtask_only=subtask_only,
            reads_results=True,
            selects=selects,
        )

    async def read(self, results: Sequence[Result], request: Request) -> Reply:
        """Returns the reply to at least one result; none of them is empty."""
        raise NotImplementedError

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        started = time.monotonic()
        results = [result for result in request.results if result.text.strip()]
        if not results:
            raise WorkerError(
                f"{self.info.name} reads the results of earlier steps and was shown none; let its step read them",
                worker=self.info.name,
                fault="request",
            )
        reply = await self.read(results, request)
        await stream_words(reply.text, observe)
        return msgspec.structs.replace(reply, model=self.info.name, seconds=time.monotonic() - started)


def repeated(result: Result, *, votes: int, of: int) -> Reply:
    """The result as the reply of a worker that chose it, and how many results agree with it."""
    finish: Finish = "stop" if result.ended else "length"
    return Reply(result.text, finish=finish, chosen=Choice(result.step, votes, of))


# ---- the selector --------------------------------------------------------------------------------------------


ABOUT = "picks the answer most likely right, and says how sure it is"


class Selection(Protocol):
    """The result that a selector picks."""

    @property
    def place(self) -> int:
        """Its place among the results."""
        ...

    @property
    def chance(self) -> float | None:
        """The chance that it is right; None if the selector cannot say."""
        ...

    @property
    def votes(self) -> int:
        """How many results gave this answer."""
        ...

    @property
    def of(self) -> int:
        """How many results gave any answer."""
        ...


class Chooses(Protocol):
    """A fitted selector."""

    def choose(self, question: str, results: Sequence[Result]) -> Selection:
        """The result most likely right, of at least one, within milliseconds."""
        ...


class Select(Reader):
    """Repeats the result that a fitted selector picks."""

    def __init__(self, selector: Chooses, *, name: str = "select", about: str = ABOUT) -> None:
        super().__init__(name, about=about, kind="select", selects=True)
        self._selector = selector

    async def read(self, results: Sequence[Result], request: Request) -> Reply:
        picked = self._selector.choose(request.question, results)
        reply = repeated(results[picked.place], votes=picked.votes, of=picked.of)
        return msgspec.structs.replace(reply, confidence=picked.chance)
