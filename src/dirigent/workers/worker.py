"""The one contract everything hangs on: a Worker is anything that answers messages.

Features come by wrapping (`workers/wrappers.py`): a retried, cached, metered worker is still a Worker,
and so is a whole Conductor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, Protocol

import msgspec

from dirigent.messages import Observe, Reply, Request, Usage, ignore

Ability = Literal["images", "tools", "schema", "json_mode", "grammar", "effort", "seed", "stop"]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """USD per million tokens."""

    input: float = 0.0
    output: float = 0.0
    cached_input: float | None = None
    """None: cached input costs as much as other input."""
    cache_write_input: float | None = None
    """Input that the provider puts into its cache (Anthropic). None: it costs as much as other input."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be 0 or more, not {value:g}")  # below, a call would be money back

    def of(self, usage: Usage) -> float:
        """What a call with this usage costs, in USD."""
        read_rate = self.input if self.cached_input is None else self.cached_input
        write_rate = self.input if self.cache_write_input is None else self.cache_write_input
        read, written = usage.cached_input_tokens, usage.cache_write_input_tokens
        fresh = max(0, usage.input_tokens - read - written)  # some servers count the parts beside it
        total = fresh * self.input + read * read_rate + written * write_rate + usage.output_tokens * self.output
        return total / 1e6

    def most_of_input(self, tokens: int) -> float:
        """What so many tokens of input cost at most, in USD: all of them put into a cache, where that is dearer."""
        return tokens * max(self.input, self.cache_write_input or 0.0) / 1e6


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker's card: what planners, reports and traces know of it. Holds no secret."""

    name: str
    about: str = ""
    """What it is good at, in a line; planners read this."""
    kind: str = ""
    model: str = ""
    price: Price | None = None
    """None = unknown; a run with a cost cap refuses such a worker."""
    region: str = ""
    context_tokens: int | None = None
    output_tokens: int | None = None
    """Most tokens the model can write in one reply."""
    speed_tps: float | None = None
    skills: tuple[str, ...] = ()
    abilities: frozenset[Ability] = frozenset()
    subtask_only: bool = False
    """Wants its subtask and what it may read, never the user's question."""


class Worker(Protocol):
    """Anything that answers messages."""

    @property
    def info(self) -> WorkerInfo: ...

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        """Answer, or raise `WorkerError`. `observe` gets `Delta` events while the reply is written."""
        ...


def layers(worker: Worker) -> Iterator[Worker]:
    """The worker, the one it wraps, and so on down to the wire. A wrapper keeps what it wraps in `.worker`."""
    layer: Worker | None = worker
    while layer is not None:
        yield layer
        layer = getattr(layer, "worker", None)
