"""Turns captured as CUDA graphs: a small model's turn is hundreds of tiny kernels, and launching them takes longer
than running them.

Graphs for each size of batch and length of cache, of those last used. Whatever cannot be captured runs without,
and says so once: a graph is a matter of speed, never of results. Only where memory is out the error goes on to whoever
can say which setting needs less. A graph reads the weights where they lay when it was captured, so moved weights mean
a new one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch

from dirigent.train.memory import ran_out
from dirigent.train.turns import FixedTurns

if TYPE_CHECKING:
    from dirigent.train.decode import DecodeSettings

WARM_UP_TURNS = 2


class Graphs:
    """What one model has captured so far."""

    def __init__(self, *, most: int = 16) -> None:
        self._most = most
        """Each holds a cache of its own: about 4 GB for 64 prompts of 768 tokens and 1,024 plans of a 135M Llama."""
        self._turns: dict[Hashable, FixedTurns] = {}
        self._of: Any = None
        self._parameters: list[torch.Tensor] = []
        """Of the model last written with: looking for them takes longer than looking where they are."""
        self._pool: Any = None
        """Memory for what lives within a turn: all graphs share it, as one turn ends before another begins."""
        self.fault = ""
        """Why nothing can be captured, once that is known."""

    def turns(
        self,
        inner: Any,
        settings: DecodeSettings,
        shape: Hashable,
        *,
        build: Callable[[], FixedTurns],
    ) -> FixedTurns:
        """Turns of this shape, captured now or before; called with everything around them as it will be."""
        if self._of is not inner:
            self._of, self._parameters = inner, list(inner.parameters())
        where = hash(tuple(tensor.data_ptr() for tensor in self._parameters))
        key = (shape, settings, where)
        found = self._turns.pop(key, None)
        if found is None:
            while len(self._turns) >= self._most:
                del self._turns[next(iter(self._turns))]
            found = build()
            self._capture(found)
        self._turns[key] = found  # at the end: the dict's order is that of last use
        return found

    def _capture(self, turns: FixedTurns) -> None:
        if self.fault or turns.settings.max_new_tokens < 2:
            return
        try:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            turns.replays = {room: captured(turns, columns=room, pool=self._pool) for room in turns.rooms}
        except RuntimeError as error:
            if ran_out(error):  # without graphs there would be no more room for the next batch, and less speed
                raise
            self.fault = str(error).splitlines()[0]
            print(f"decoding goes on without CUDA graphs: {self.fault}", file=sys.stderr)
        turns.restart()


def captured(turns: FixedTurns, *, columns: int, pool: Any) -> Callable[[], None]:
    """One turn that reads so many columns, as a graph. Before it a few on a stream of their own: first calls allocate,
    and may not while capturing."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_TURNS):
            turns.restart()
            turns.take_reading(columns)
    torch.cuda.current_stream().wait_stream(stream)
    turns.restart()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        turns.take_reading(columns)
    replay: Callable[[], None] = graph.replay
    return replay
