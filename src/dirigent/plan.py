"""Plan: who does which subtask and which earlier results it may read."""

from __future__ import annotations

from typing import Literal

import msgspec

Dialect = Literal["lists", "lines", "json"]


class Step(msgspec.Struct, frozen=True):
    worker: str
    subtask: str
    access: tuple[int, ...] = ()
    """Earlier steps whose replies this step may read, ascending."""


class Plan(msgspec.Struct, frozen=True):
    steps: tuple[Step, ...] = ()
    """In order. Empty = accept the last round's answer."""
