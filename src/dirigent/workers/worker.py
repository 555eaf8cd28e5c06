"""Worker, the contract of the whole package: anything that answers messages.

Wrappers add behaviour (`workers/wrappers.py`): a worker with retries, a cache and metering is still a Worker, and so
is a whole Conductor.

`WorkerKind` is a kind of worker that a plugin brings, for `kind = "NAME"` of a `[[worker]]`; the kinds that ship are
built by `config/build.py`. A plugin's entry in `dirigent.workers` is a `WorkerKind`, and its worker gets the wrappers
that every worker gets: retries, limits, cache, defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from dirigent.messages import Observe, Reply, Request, Usage, ignore
from dirigent.workers.secret import Secret

SecondStep = Literal["", "review", "repair", "judge"]
"""The part of a worker that reads other workers' answers: it checks one, mends a failed program, or decides between two
answers that differ."""

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
                raise ValueError(f"{name} must be 0 or more, not {value:g}")  # a negative price would pay the caller

    def of(self, usage: Usage) -> float:
        """Return the cost of a call with this usage, in USD."""
        read_rate = self.input if self.cached_input is None else self.cached_input
        write_rate = self.input if self.cache_write_input is None else self.cache_write_input
        read, written = usage.cached_input_tokens, usage.cache_write_input_tokens
        fresh = max(0, usage.input_tokens - read - written)  # some servers do not include the parts in it
        total = fresh * self.input + read * read_rate + written * write_rate + usage.output_tokens * self.output
        return total / 1e6

    def most_of_input(self, tokens: int) -> float:
        """Return the most that this many input tokens can cost, in USD. Writing them to a cache may cost more."""
        return tokens * max(self.input, self.cache_write_input or 0.0) / 1e6


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker's card: what planners, reports and traces know about the worker. It holds no secret."""

    name: str
    about: str = ""
    """One line on the worker's strengths. Planners read it."""
    kind: str = ""
    model: str = ""
    price: Price | None = None
    """None: unknown. A run with a cost cap refuses such a worker."""
    region: str = ""
    context_tokens: int | None = None
    output_tokens: int | None = None
    """The most tokens that the model can write in one reply."""
    speed_tps: float | None = None
    skills: tuple[str, ...] = ()
    abilities: frozenset[Ability] = frozenset()
    subtask_only: bool = False
    """The worker gets its subtask and the results it may read, but not the user's question."""
    fingerprint: str = ""
    """Changes with the model and the settings that shape its answers: older measurements do not hold for it."""
    second_step: SecondStep = ""
    """It answers after it has read another worker's answer; calibration asks it so."""
    runs_programs: bool = False
    """The worker runs the program that it writes, and replies with what the program prints."""
    reads_results: bool = False
    """The worker is a program that reads the results of earlier steps, so it cannot be asked a question alone."""
    selects: bool = False
    """The worker chooses among results and says how sure it is (`Reply.confidence`). A plan with `until` ends in it."""


def needed(request: Request) -> set[Ability]:
    """The abilities that a worker must have to honour this request."""
    needs: set[Ability] = set()
    if any(message.images for message in request.messages):
        needs.add("images")
    if request.tools:
        needs.add("tools")
    if request.schema is not None:
        needs.add("schema")
    if request.json_mode:
        needs.add("json_mode")
    if request.grammar:
        needs.add("grammar")
    return needs


class Worker(Protocol):
    """Anything that answers messages."""

    @property
    def info(self) -> WorkerInfo: ...

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        """Return the reply or raise `WorkerError`. `observe` gets `Delta` events while the worker writes."""
        ...


class Wrapper:
    """Base of workers that ask another worker. A wrapper shows the card of the worker inside."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.info: WorkerInfo = worker.info
        self.keeps_book: bool = getattr(worker, "keeps_book", False)
        """A worker inside enters every call in the ledger (`metering.py`)."""


def layers(worker: Worker) -> Iterator[Worker]:
    """Yield the worker, the worker inside it, and so on. Every wrapper holds the inner worker as `worker`."""
    layer: Worker | None = worker
    while layer is not None:
        yield layer
        layer = getattr(layer, "worker", None)


# ---- kinds of workers that plugins bring ---------------------------------------------------------------------


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the `[[worker]]` beside its card."""

    model: str = ""
    base_url: str = ""
    key: Secret | None = None
    path: Path | None = None
    """Of a file, relative to the configuration's folder."""
    extra: Mapping[str, Any] = {}


class WorkerKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind: its description, the settings that its `[[worker]]` needs, and the function that makes a worker."""

    about: str
    """One sentence without a full stop, for help and documentation."""
    make: Callable[[WorkerInfo, WorkerOptions], Worker]
    """The worker with this card. Raises ConfigError if it cannot be used yet."""
    needs: tuple[str, ...] = ("model",)
    """Keys that its `[[worker]]` must set."""
    abilities: frozenset[Ability] = frozenset()
    """The abilities of the kind; `abilities = {…}` overrides them."""
