"""Pool: the ordered, named workers that a plan may use.

A worker's id is its position. Pools are immutable: to allow, deny, sample or permute workers makes a new Pool, and so
new ids.
"""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from dirigent.errors import ConfigError
from dirigent.workers.worker import Ability, Worker, WorkerInfo

NAME = re.compile(r"(?=[^\s]*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,99}\Z")
"""No spaces, bars or quotes: every dialect can write the name. At least one letter: a name is never an id."""


class Pool(Mapping[str, Worker]):
    """Ordered workers by name."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._workers: dict[str, Worker] = {}
        for worker in workers:
            name = worker.info.name
            if not NAME.match(name):
                raise ConfigError(
                    f"worker name {name!r} is not usable: letters, digits and . _ / : @ + - only, "
                    "at most 100, with at least one letter"
                )
            if name in self._workers:
                raise ConfigError(f"two workers are called {name!r}; names in a pool are unique")
            self._workers[name] = worker
        self.names: tuple[str, ...] = tuple(self._workers)
        self.infos: tuple[WorkerInfo, ...] = tuple(worker.info for worker in self._workers.values())

    def __getitem__(self, name: str) -> Worker:
        return self._workers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def __repr__(self) -> str:
        return f"Pool({', '.join(self.names)})"

    def subset(self, names: Iterable[str]) -> Pool:
        """Return a pool of these workers, in the given order."""
        return Pool(self[self.require(name)] for name in names)

    def without(self, names: Collection[str]) -> Pool:
        """Return the pool without these workers, in the same order."""
        return Pool(worker for name, worker in self.items() if name not in names)

    def sample(self, size: int, rng: random.Random) -> Pool:
        """Return a random subset in random order. Training samples pools so that the policy reads the cards."""
        return self.subset(rng.sample(self.names, size))

    def require(self, name: str) -> str:
        """Return the name if the pool has it; else raise an error with the nearest name."""
        if name in self._workers:
            return name
        near = difflib.get_close_matches(name, self.names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(self.names) or 'none'}"
        raise ConfigError(f"no worker is called {name!r}{hint}")


def substitute(
    pool: Pool | Mapping[str, Worker],
    *,
    tried: Collection[str],
    needs: Collection[Ability] = (),
    priced: bool = False,
) -> str | None:
    """Return the worker that takes over a failed step: the next in pool order that can do it; None if there is none.

    The pool of a run holds only the workers that the caller's key and region allow.
    """
    for name, worker in pool.items():
        info = worker.info
        if (
            name in tried
            or info.reads_results
            or (priced and info.price is None)
            or not info.abilities.issuperset(needs)
        ):
            continue
        return name
    return None
