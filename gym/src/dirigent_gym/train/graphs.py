"""Turns captured as CUDA graphs: a small model's turn is hundreds of tiny kernels, and launching them takes longer
than running them.

Graphs for each size of batch and length of cache, of those last used. Whatever cannot be captured runs without,
and says so once: a graph is a matter of speed, never of results. Only where memory is out the error goes on to whoever
can say which setting needs less. A graph reads the weights where they lay when it was captured, so moved weights mean
a new one.

Caches are large, and only two are ever in use at once: a batch's, and while it is filled that of the batch it goes on
from. So all of them lie in two memories, used in turn.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from dirigent_gym.train.memory import ran_out
from dirigent_gym.train.turns import Allocate, FixedTurns, Space

if TYPE_CHECKING:
    from dirigent_gym.train.decode import DecodeSettings

WARM_UP_TURNS = 2
ALIGNED_BYTES = 256
"""Tensors begin at multiples of this, as they do where each is allocated for itself."""


class CacheMemory:
    """Memory for one cache at a time, and the turns that were captured over it.

    A graph reads the addresses it was captured with. So the memory stays where it is for as long as turns are kept in
    it: when more is wanted than there is, they all go before it does.
    """

    def __init__(self) -> None:
        self.turns: dict[Hashable, FixedTurns] = {}
        """In the order of their last use."""
        self._flat: dict[torch.dtype, torch.Tensor] = {}
        """Of each type apart. Memory begins as zeros, and what a cache leaves is numbers to the next one; bytes of
        another type might be none, and the bias that hides a number does not hide those."""

    def tensors(self, spaces: Sequence[Space]) -> list[torch.Tensor]:
        """A tensor for each, all of them over what was handed out before."""
        starts: list[int] = []
        ends: Counter[torch.dtype] = Counter()
        for shape, like in spaces:
            step = ALIGNED_BYTES // like.element_size()
            starts.append(-(-ends[like.dtype] // step) * step)
            ends[like.dtype] = starts[-1] + prod(shape)
        for dtype, end in ends.items():
            self._reserve(end, next(like for _, like in spaces if like.dtype == dtype))
        return [
            self._flat[like.dtype][start : start + prod(shape)].view(shape)
            for start, (shape, like) in zip(starts, spaces, strict=True)
        ]

    def _reserve(self, size: int, like: torch.Tensor) -> None:
        flat = self._flat.get(like.dtype)
        if flat is not None and len(flat) >= size and flat.device == like.device:
            return
        if flat is not None:
            # An eighth more than before: prompts grow by a step at a time, and every growth means capturing again.
            size = max(size, len(flat) + len(flat) // 8)
            self.turns.clear()
            del self._flat[like.dtype], flat
        self._flat[like.dtype] = like.new_zeros(size)


class Graphs:
    """What one model has captured so far."""

    def __init__(self, *, most: int = 24) -> None:
        self._most = most
        """In each memory. Apart from the cache a shape holds little: what its rows said, and a graph for each room."""
        self._memories = (CacheMemory(), CacheMemory())
        """Each as large as the largest cache it was asked for, or up to an eighth larger: about 10 GB for 128 prompts
        of 768 tokens and 2,048 plans of 160 of a 135M Llama."""
        self._of: Any = None
        self._parameters: list[torch.Tensor] = []
        """Of the model last written with: looking for them takes longer than looking where they are."""
        self._pool: Any = None
        """Memory for what lives within a turn: all graphs share it, as one turn ends before another begins. Torch
        takes none that had graphs and has none left, so after the last is gone there is a new one."""
        self.fault = ""
        """Why nothing can be captured, once that is known."""

    def turns(
        self,
        inner: Any,
        settings: DecodeSettings,
        shape: Hashable,
        *,
        narrowed: int,
        build: Callable[[Allocate], FixedTurns],
    ) -> FixedTurns:
        """Turns of this shape, captured now or before; called with everything around them as it will be.

        `narrowed` says how often the batch has moved to a smaller one: each lies in the memory that the one it goes on
        from does not lie in, and over the one before that.
        """
        if self._of is not inner:
            self._of, self._parameters = inner, list(inner.parameters())
        where = hash(tuple(tensor.data_ptr() for tensor in self._parameters))
        key = (shape, settings, where)
        memory = self._memories[narrowed % 2]
        found = memory.turns.pop(key, None)
        if found is None:
            while len(memory.turns) >= self._most:
                del memory.turns[next(iter(memory.turns))]
            found = build(memory.tensors)
            self._capture(found)
        memory.turns[key] = found  # at the end: the dict's order is that of last use
        return found

    def _capture(self, turns: FixedTurns) -> None:
        if self.fault or turns.settings.max_new_tokens < 2:
            return
        try:
            if not any(kept.replays for memory in self._memories for kept in memory.turns.values()):
                self._pool = torch.cuda.graph_pool_handle()
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
