"""WorkerKind: a kind of worker that a plugin brings, for `kind = "NAME"` of a `[[worker]]`.

The kinds that ship are built by `config/build.py`. A plugin's entry in `dirigent.workers` is one of these values; its
worker gets the wrappers that every worker gets: retries, limits, cache, defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dirigent.workers.secret import Secret
from dirigent.workers.worker import Ability, Worker, WorkerInfo


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the `[[worker]]` says beside its card."""

    model: str = ""
    base_url: str = ""
    key: Secret | None = None
    path: Path | None = None
    """Of a file, relative to the configuration's folder."""
    extra: Mapping[str, Any] = {}


class WorkerKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind: what it is, what its `[[worker]]` must say, and how a worker is made."""

    about: str
    """One sentence without a full stop, for help and documentation."""
    make: Callable[[WorkerInfo, WorkerOptions], Worker]
    """The worker with this card. Raises ConfigError if it cannot be used yet."""
    needs: tuple[str, ...] = ("model",)
    """Keys that its `[[worker]]` must set."""
    abilities: frozenset[Ability] = frozenset()
    """What it honours unless `abilities = {…}` says otherwise."""
