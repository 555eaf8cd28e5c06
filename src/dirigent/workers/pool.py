"""Pool: the ordered, named workers a plan may use.

A worker's id is its position. Pools are immutable: allowing, denying, sampling and permuting give a new Pool,
and with it new ids.
"""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from dirigent.errors import ConfigError
from dirigent.workers.worker import Ability, Worker, WorkerInfo

NAME = re.compile(r"(?=[^\s]*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,99}\Z")
"""No spaces, bars or quotes, so that every dialect can write a name; a letter somewhere, so that it is no id."""


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
        """These workers, in the order given."""
        return Pool(self[self.require(name)] for name in names)

    def without(self, names: Collection[str]) -> Pool:
        """All but these workers, order kept."""
        return Pool(worker for name, worker in self.items() if name not in names)

    def sample(self, size: int, rng: random.Random) -> Pool:
        """A random subset in random order: what training offers a policy, so that it reads the cards."""
        return self.subset(rng.sample(self.names, size))

    def require(self, name: str) -> str:
        """The name, if the pool has it; else an error that names the nearest one."""
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
    """Who takes over a step whose worker failed: the next in pool order that can do it, or nobody.

    The pool a run sees has already been narrowed to what the caller's key and region allow.
    """
    for name, worker in pool.items():
        info = worker.info
        if name in tried or (priced and info.price is None) or not info.abilities.issuperset(needs):
            continue
        return name
    return None
