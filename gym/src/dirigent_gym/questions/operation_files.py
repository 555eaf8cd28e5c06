"""Operations read from TOML files: their wordings, and for most warm-only ones their values.

`read_operations` reads the files in `warm/`. Their operations are many and unlike one another, so that a model learns
from them where a clause ends rather than a few phrases. No worker computes such an operation: its table only has to
lead to a value of the right type, so any value will do, and the files list values and wordings but no results.

`read_solved` reads a file whose operations have right results: a table of their own, or a domain in `solving.py`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import permutations, product
from pathlib import Path
from typing import TypeVar

import msgspec

from dirigent.errors import ConfigError
from dirigent_gym.questions.operation import Key, Operation, Phrases
from dirigent_gym.questions.solving import DOMAINS

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
    """Every operation of every file, files in order of their names."""
    return tuple(op for file in sorted(folder.glob("*.toml")) for op in _read(file))


def read_solved(file: Path) -> tuple[Operation, ...]:
    """The operations of this file, every key solved."""
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
                raise ConfigError(f"{file.name}: {entry.name} speaks of the type {kind!r}, which [types] does not have")
    return [_operation(entry, values) for entry in content.operation]


def _operation(entry: _Entry, values: dict[str, tuple[str, ...]]) -> Operation:
    takes = tuple(entry.takes.split())
    starts: Iterable[Key] = (
        permutations(values[takes[0]], 2) if len(takes) == 2 else ((value,) for value in values[takes[0]])
    )
    ends: list[Key] = [(parameter,) for parameter in entry.parameters] or [()]
    table = {(*start, *end): _any_of(values[entry.gives], (*start, *end)) for start, end in product(starts, ends)}
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


def _any_of(values: tuple[str, ...], key: Key) -> str:
    """One of the values, always the same for a key."""
    return values[zlib.crc32("|".join(key).encode()) % len(values)]
