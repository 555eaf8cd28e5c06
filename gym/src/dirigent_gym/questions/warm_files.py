"""Warm-only operations that are data: the TOML files in `warm/`, read into operations like any other.

They are many and unlike one another, so that whoever learns from them learns where a clause ends rather than a few
phrases. What such an operation gives is never asked for and never carried out: a table only has to lead on to a value
of the right type, so any will do, and the files list values and wordings but no results.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import permutations, product
from pathlib import Path

import msgspec

from dirigent.errors import ConfigError
from dirigent_gym.questions.operation import Key, Operation, Phrases

FOLDER = Path(__file__).with_name("warm")
NUMBERS = tuple(str(n) for n in range(2, 51))
"""The values of the type that all files share."""


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    takes: str
    gives: str
    nouns: tuple[str, ...]
    orders: tuple[str, ...]
    asks: tuple[str, ...]
    parameters: tuple[str, ...] = ()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    types: dict[str, tuple[str, ...]]
    operation: tuple[_Entry, ...]


def read_operations(folder: Path = FOLDER) -> tuple[Operation, ...]:
    """Every operation of every file, files in order of their names."""
    return tuple(op for file in sorted(folder.glob("*.toml")) for op in _read(file))


def _read(file: Path) -> list[Operation]:
    try:
        content = msgspec.toml.decode(file.read_bytes(), type=_File)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file.name} is not a file of operations: {error}") from None
    values = {"number": NUMBERS, **content.types}
    for entry in content.operation:
        for kind in (*entry.takes.split(), entry.gives):
            if kind not in values:
                raise ConfigError(f"{file.name}: {entry.name} speaks of the type {kind!r}, which [types] does not have")
    return [_operation(entry, values) for entry in content.operation]


def _operation(entry: _Entry, values: dict[str, tuple[str, ...]]) -> Operation:
    skill, _, short = entry.name.partition(".")
    takes = tuple(entry.takes.split())
    starts: Iterable[Key] = (
        permutations(values[takes[0]], 2) if len(takes) == 2 else ((value,) for value in values[takes[0]])
    )
    ends: list[Key] = [(parameter,) for parameter in entry.parameters] or [()]
    table = {(*start, *end): _any_of(values[entry.gives], (*start, *end)) for start, end in product(starts, ends)}
    return Operation(skill, short, takes, entry.gives, table, Phrases(entry.nouns, entry.orders, entry.asks))


def _any_of(values: tuple[str, ...], key: Key) -> str:
    """One of the values, always the same for a key."""
    return values[zlib.crc32("|".join(key).encode()) % len(values)]
