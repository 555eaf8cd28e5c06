"""Several LoRA adapters as one: rows of different workers in the same batch, each under its own adapter.

Over every linear layer that any adapter touches, all their A matrices are stacked into one, and all their B matrices,
scaled, into another. A row's adapter is then a mask over the stacked rank: x -> W x + B_all (mask * (A_all x)), two
small dense products whatever the number of adapters. Rows with no adapter have a mask of zeros.

`stack` leaves the model it is given alone: the copy it makes shares every weight and differs only in those layers, so
a policy can be trained on the same base meanwhile. `write` is `decode` with a row's adapter put around it. Knows
nothing of workers, prompts or plans.

Dimensions: B rows of a batch, T tokens, R stacked rank, I and O a layer's inputs and outputs, V vocabulary.
"""

# ruff: noqa: N803, N806 -- suffixes name dimensions

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import Any

import torch

from dirigent.errors import ConfigError
from dirigent_gym.train.adapters import Adapter
from dirigent_gym.train.decode import ROW_BUCKETS, DecodeSettings, decode
from dirigent_gym.train.graphs import Graphs

NO_ADAPTER = -1


def stack(model: Any, adapters: Sequence[Adapter]) -> Stacked:
    """A copy of the model, weights shared, under all these adapters at once."""
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    copied = copy.deepcopy(model, shared)
    weight = next(copied.parameters())
    mask = RowMask([adapter.rank for adapter in adapters], device=weight.device)
    for layer in sorted({name for adapter in adapters for name in adapter.pairs}):
        base = _linear(copied, layer)
        A_RI, B_OR = _stacked_pair(adapters, layer, base)
        _replace(copied, layer, StackedLora(base, A_RI, B_OR, mask))
    return Stacked(copied.eval(), tuple(adapter.name for adapter in adapters), mask)


class Stacked:
    """A model that answers each row of a batch under the adapter asked for."""

    def __init__(self, model: Any, names: tuple[str, ...], mask: RowMask) -> None:
        self.model = model
        self.names = names
        self.mask = mask
        self.graphs = Graphs()
        self.lock = threading.Lock()
        """The mask is the model's, not the call's: one batch at a time."""

    def index(self, name: str) -> int:
        """Which adapter a name is."""
        if name not in self.names:
            raise ConfigError(f"no adapter is called {name!r}; there are: {', '.join(self.names) or 'none'}")
        return self.names.index(name)


class RowMask:
    """Which adapter each row of the present batch is under. One for all layers of a model."""

    def __init__(self, ranks: Sequence[int], *, device: Any) -> None:
        # One more row than there are adapters: all zeros, and the last, so that index -1 is "no adapter".
        self._table_NR = torch.zeros(len(ranks) + 1, sum(ranks), device=device)
        start = 0
        for i, rank in enumerate(ranks):
            self._table_NR[i, start : start + rank] = 1.0
            start += rank
        self.rows_BR: torch.Tensor | None = None
        self._kept: dict[int, torch.Tensor] = {}

    @contextmanager
    def use(self, adapters_B: Sequence[int]) -> Iterator[None]:
        """Put the rows of the batches run inside under these adapters."""
        index = torch.tensor(adapters_B, dtype=torch.long, device=self._table_NR.device)
        rows_BR = self._table_NR[index]
        if len(index) in ROW_BUCKETS:
            # A captured graph reads the mask where it lay then, so for sizes that are captured it stays there.
            rows_BR = self._kept.setdefault(len(index), torch.empty_like(rows_BR)).copy_(rows_BR)
        self.rows_BR = rows_BR
        try:
            yield
        finally:
            self.rows_BR = None


class StackedLora(torch.nn.Module):
    """A linear layer and the stacked pair over it. Outside `RowMask.use` it is the linear layer alone."""

    A_RI: torch.Tensor
    B_OR: torch.Tensor

    def __init__(self, base: torch.nn.Linear, A_RI: torch.Tensor, B_OR: torch.Tensor, mask: RowMask) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("A_RI", A_RI, persistent=False)
        self.register_buffer("B_OR", B_OR, persistent=False)
        self.mask = mask

    def forward(self, x_BTI: torch.Tensor) -> torch.Tensor:
        y_BTO: torch.Tensor = self.base(x_BTI)
        rows_BR = self.mask.rows_BR
        if rows_BR is None:
            return y_BTO
        low_BTR = torch.nn.functional.linear(x_BTI, self.A_RI)
        low_BTR = low_BTR * rows_BR[:, None, :].to(low_BTR.dtype)
        return y_BTO + torch.nn.functional.linear(low_BTR, self.B_OR)


@torch.no_grad()
def write(
    stacked: Stacked,
    prompts: Sequence[Sequence[int]],
    *,
    adapters: Sequence[int],
    seeds: Sequence[int | None],
    settings: DecodeSettings,
) -> list[list[int]]:
    """What each prompt's adapter writes, end mark left out: greedy, or sampled where there is a seed."""

    def under(prompt_of_row: Sequence[int]) -> AbstractContextManager[None]:
        return stacked.mask.use([adapters[i] for i in prompt_of_row])

    with stacked.lock:
        groups = decode(
            stacked.model,
            prompts,
            seeds_PG=[[seed] for seed in seeds],
            settings=settings,
            around=under,
            graphs=stacked.graphs,
        )
    return [[token for token in sample.ids if token != settings.end] for (sample,) in groups]


def _linear(model: Any, layer: str) -> torch.nn.Linear:
    try:
        found = model.get_submodule(layer)
    except AttributeError:
        raise ConfigError(f"the model has no layer {layer}; the adapter was made for another base") from None
    if not isinstance(found, torch.nn.Linear):
        kind = type(found).__name__
        raise ConfigError(f"{layer} is a {kind}, not a plain linear layer; stack before wrapping the model with PEFT")
    return found


def _stacked_pair(adapters: Sequence[Adapter], layer: str, base: torch.nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """A [R, I] and B [O, R] of a layer, zeros wherever an adapter has less than its full rank there, or nothing."""
    total = sum(adapter.rank for adapter in adapters)
    A_RI = torch.zeros(total, base.in_features, dtype=base.weight.dtype, device=base.weight.device)
    B_OR = torch.zeros(base.out_features, total, dtype=base.weight.dtype, device=base.weight.device)
    start = 0
    for adapter in adapters:
        if layer in adapter.pairs:
            A, B = adapter.pairs[layer]
            if A.shape[1] != base.in_features or B.shape[0] != base.out_features:
                raise ConfigError(
                    f"adapter {adapter.name} maps {A.shape[1]} to {B.shape[0]} at {layer}, the model "
                    f"{base.in_features} to {base.out_features}; it was made for another base"
                )
            A_RI[start : start + len(A)] = A.to(A_RI)
            B_OR[:, start : start + len(A)] = B.to(B_OR)
        start += adapter.rank
    return A_RI, B_OR


def _replace(model: Any, layer: str, module: torch.nn.Module) -> None:
    parent, _, name = layer.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
