"""Skills: the operations of specialists, each over a closed table of inputs, read from TOML files.

A table has every input that an operation may ever be asked, so a small model can learn all of it and answers can be
looked up. A key holds the values first (those that an earlier step may supply), then the parameter (always written in
the subtask): `("Oslo",)`, `("28", "7")` for 28 times 7, `("3", "9")` for the larger. Phrases are noun phrases, orders
and questions with slots: `{x}` the value, `{y}` a second value, `{k}` the parameter, `{x's}` the value as an owner. The
last entry of every list is kept from a conductor's training.

A conductor is trained and tested on RL skills. Warm-only skills teach the language of plans and appear nowhere else:
they are many and unlike one another, so that a model learns from them where a clause ends and not a few phrases. No
question asks for the result of such an operation: a table only has to lead on to a value of the right type, so the
files in `warm/` list values and wordings but no results. The held-out skill and its worker appear first in the test.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import permutations, product
from pathlib import Path
from typing import TypeVar

import msgspec

from dirigent.errors import ConfigError
from dirigent.tasks.task import Grader
from dirigent_gym.questions.solving import DOMAINS, Key

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
    """Whether an operation that takes one type accepts a result of the other."""
    return gives == takes or (takes == "word" and gives in WORDS)


# ---- reading the files

FOLDER = Path(__file__).with_name("warm")
NUMBERS = tuple(str(n) for n in range(2, 51))
"""The values of the type that all files of `warm/` share."""

F = TypeVar("F")


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    takes: str
    gives: str
    nouns: tuple[str, ...]
    orders: tuple[str, ...]
    asks: tuple[str, ...]
    parameters: tuple[str, ...] = ()


class _Solved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    takes: str
    gives: str
    nouns: tuple[str, ...]
    orders: tuple[str, ...]
    asks: tuple[str, ...]
    table: dict[str, str] | None = None


class _SolvedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    operation: tuple[_Solved, ...]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    types: dict[str, tuple[str, ...]]
    operation: tuple[_Entry, ...]


def read_operations(folder: Path = FOLDER) -> tuple[Operation, ...]:
    """Every operation of every file, in the order of the files' names."""
    return tuple(op for file in sorted(folder.glob("*.toml")) for op in _read(file))


def read_solved(file: Path) -> tuple[Operation, ...]:
    """The operations of this file, with the result of every key."""
    content = _decoded(file, _SolvedFile)
    found = []
    for entry in content.operation:
        if entry.table is None and entry.name not in DOMAINS:
            raise ConfigError(f"{file.name}: {entry.name} has neither a table nor a domain in solving.py")
        if entry.table is not None:
            table: dict[Key, str] = {(value,): result for value, result in entry.table.items()}
        else:
            keys, solve = DOMAINS[entry.name]
            table = {key: str(solve(*key)) for key in keys}
        found.append(_built(entry, table))
    return tuple(found)


def _read(file: Path) -> list[Operation]:
    content = _decoded(file, _File)
    values = {"number": NUMBERS, **content.types}
    for entry in content.operation:
        for kind in (*entry.takes.split(), entry.gives):
            if kind not in values:
                raise ConfigError(f"{file.name}: {entry.name} uses the type {kind!r}, which [types] does not have")
    return [_operation(entry, values) for entry in content.operation]


def _operation(entry: _Entry, values: dict[str, tuple[str, ...]]) -> Operation:
    takes = tuple(entry.takes.split())
    starts: Iterable[Key] = (
        permutations(values[takes[0]], 2) if len(takes) == 2 else ((value,) for value in values[takes[0]])
    )
    ends: list[Key] = [(parameter,) for parameter in entry.parameters] or [()]
    results = values[entry.gives]
    keys: Iterable[Key] = ((*start, *end) for start, end in product(starts, ends))
    # Any value will do as the result, the same one each time for a key.
    table = {key: results[zlib.crc32("|".join(key).encode()) % len(results)] for key in keys}
    return _built(entry, table)


def _built(entry: _Entry | _Solved, table: dict[Key, str]) -> Operation:
    skill, _, short = entry.name.partition(".")
    phrases = Phrases(entry.nouns, entry.orders, entry.asks)
    return Operation(skill, short, tuple(entry.takes.split()), entry.gives, table, phrases)


def _decoded(file: Path, kind: type[F]) -> F:
    try:
        return msgspec.toml.decode(file.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file.name} is not a file of operations: {error}") from None


# ---- all skills, by the part they play

HELD_OUT_SKILL = "planets"
PUZZLE_SKILL = "puzzles"
CHECK_SKILL = "checking"

_solved = read_solved(Path(__file__).with_name("skills.toml"))
PUZZLE_OPERATIONS: tuple[Operation, ...] = tuple(op for op in _solved if op.skill == PUZZLE_SKILL)
HELD_OUT_OPERATIONS: tuple[Operation, ...] = tuple(op for op in _solved if op.skill == HELD_OUT_SKILL)
RL_OPERATIONS: tuple[Operation, ...] = tuple(op for op in _solved if op.skill not in (PUZZLE_SKILL, HELD_OUT_SKILL))
WARM_OPERATIONS: tuple[Operation, ...] = (
    *read_solved(Path(__file__).with_name("skills_warm.toml")),
    *read_operations(),
)

GYM_OPERATIONS: tuple[Operation, ...] = (*RL_OPERATIONS, *PUZZLE_OPERATIONS, *HELD_OUT_OPERATIONS)
"""All operations that a specialist can do."""

OPERATIONS: dict[str, Operation] = {op.full_name: op for op in (*GYM_OPERATIONS, *WARM_OPERATIONS)}

RL_SKILLS: tuple[str, ...] = tuple(dict.fromkeys(op.skill for op in RL_OPERATIONS))
WARM_SKILLS: tuple[str, ...] = tuple(dict.fromkeys(op.skill for op in WARM_OPERATIONS))


def find_operation(full_name: str) -> Operation:
    if full_name not in OPERATIONS:
        raise ConfigError(f"the gym has no operation {full_name!r}; there are: {', '.join(OPERATIONS)}")
    return OPERATIONS[full_name]
