"""Operation: one thing that a specialist can do, over a closed table of inputs.

Everything an operation may ever be asked is in its table, so that a small model can learn all of it and an answer
can be looked up rather than trusted. A key holds the values first (those an earlier step may supply), then the
parameter (always written in the subtask): `("Oslo",)`, `("28", "7")` for 28 times 7, `("3", "9")` for the larger.

Phrases are noun phrases, orders and questions with slots: `{x}` the value, `{y}` a second value, `{k}` the parameter,
`{x's}` the value as an owner. In every list the last entry is kept from a conductor's training.
"""

from __future__ import annotations

import msgspec

from dirigent.tasks.task import Grader

Key = tuple[str, ...]

WORDS = frozenset({"country", "capital", "currency", "element", "month", "weekday", "planet"})
"""Types whose values are ordinary words, which the operations on letters take."""

NUMERIC = frozenset({"number"})


class Phrases(msgspec.Struct, frozen=True):
    nouns: tuple[str, ...]
    orders: tuple[str, ...]
    asks: tuple[str, ...]


class Operation(msgspec.Struct, frozen=True):
    skill: str
    name: str
    takes: tuple[str, ...]
    """Types of the values it works on: one, or two for an operation that joins results."""
    gives: str
    table: dict[Key, str]
    phrases: Phrases

    @property
    def full_name(self) -> str:
        return f"{self.skill}.{self.name}"

    @property
    def arity(self) -> int:
        return len(self.takes)

    @property
    def grader(self) -> Grader:
        if self.gives in NUMERIC:
            return "number"
        return "list" if self.gives == "list" else "word"


def fits(gives: str, *, takes: str) -> bool:
    """Whether a result of one type may be given to an operation that takes another."""
    return gives == takes or (takes == "word" and gives in WORDS)
