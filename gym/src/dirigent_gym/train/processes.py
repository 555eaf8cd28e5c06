"""Several processes of one run: how they meet, what they tell one another, and work that they divide.

Rows that are asked for the run as a whole (its start, its ceiling, its development questions) are divided among them:
what they cost is paid once, and every process has the figures of all of them. What is shared out beside rows, the
weights of a large model, is `shards.py`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from dirigent.errors import DirigentError

T = TypeVar("T")

LONGEST_WAIT = timedelta(minutes=30)
"""Of one process for the others; transformers' own."""


@contextmanager
def meeting() -> Iterator[None]:
    """Inside, the processes of a launch reach one another, in the way in which TRL's trainer would have them later.

    All of them wait for the last one to come. They part in good order, or Python's end may break a process off; after a
    fault they do not, as the others may never come to it.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield
        return
    import torch
    from accelerate import PartialState  # type: ignore[import-untyped]

    PartialState(cpu=not torch.cuda.is_available(), timeout=LONGEST_WAIT)
    yield
    torch.distributed.destroy_process_group()
    PartialState._reset_state()


def everyones(own: T) -> list[T]:
    """What each process brings, in the order of their numbers. All of them call it together; one alone has its own."""
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return [own]
    brought: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(brought, own)
    return brought


def own_seed(seed: int, process: int) -> int:
    """A process's seed: the first has the recipe's, and none draws what another does."""
    return seed + 7919 * process


def divided(keys: Sequence[str], work: Callable[[Sequence[int]], Sequence[T]]) -> list[T]:
    """What `work` makes of each place, done once among all processes; all of them have all of it, in order.

    `work` is given the places that fall to this process, in every process, even where they are none. Places with equal
    keys go to the same one: attempts at a question are counted, and equal plans for it carried out once. Where it fails
    in one process, it fails in all of them, instead of leaving the others to wait.
    """
    number, processes = _number()
    if processes == 1:
        return list(work(range(len(keys))))
    of_key = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    places = [place for place, key in enumerate(keys) if of_key[key] % processes == number]
    try:
        own = dict(zip(places, work(places), strict=True))
    except Exception as error:
        everyones(({}, f"{type(error).__name__}: {error}"))
        raise
    made: dict[int, T] = {}
    for other, (share, fault) in enumerate(everyones((own, ""))):
        if fault:
            raise DirigentError(f"process {other} could not do its share: {fault}")
        made |= share
    return [made[place] for place in range(len(keys))]


def _number() -> tuple[int, int]:
    """This process's, and how many there are."""
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()
