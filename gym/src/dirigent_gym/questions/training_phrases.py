"""Wordings that only training uses: `training_phrases.toml`, read into phrases by operation.

With the few wordings of its skills an operation can be remembered rather than read; with many more of another build it
cannot. They are apart from the skills because no test asks them and no specialist learns them, so that more of them
change neither. phrasing.py defines the slots and the forms of a phrase.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from dirigent.errors import ConfigError
from dirigent_gym.questions.operation import Phrases
from dirigent_gym.questions.skills import PUZZLE_OPERATIONS, RL_OPERATIONS

FILE = Path(__file__).with_name("training_phrases.toml")

NONE = Phrases((), (), ())


@cache
def training_phrases() -> Mapping[str, Phrases]:
    """The phrases that ship, by the full name of their operation."""
    return read_phrases(FILE)


def read_phrases(file: Path) -> dict[str, Phrases]:
    """Phrases from such a file; every table must be of an operation that training asks about."""
    try:
        found = msgspec.toml.decode(file.read_bytes(), type=dict[str, Phrases])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file.name} is not a file of phrases: {error}") from None
    asked = {op.full_name for op in (*RL_OPERATIONS, *PUZZLE_OPERATIONS)}
    if unknown := [name for name in found if name not in asked]:
        raise ConfigError(f"{file.name}: training never asks about {unknown[0]!r}; take its table out")
    return found
