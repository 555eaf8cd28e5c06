"""Select: the local worker that says which result is right, and how sure it is.

A fitted selector knows how often each worker is right, alone and against the others (`learn/selector.py`). Its choice
is the whole reply of a worker that gave the chosen answer. A plan with `until` ends in such a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from dirigent.messages import Reply, Request, Result
from dirigent.workers.reader import Reader, repeated

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
