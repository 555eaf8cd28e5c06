"""Passes through a small Llama with less around the arithmetic: what is computed stays the same, up to rounding.

A model of a hundred million parameters spends most of a pass on what lies between its large products: seven kernels for
a norm, six more for the adapter beside each linear layer. Here a norm is one kernel, and an adapter is added to the
weights it adapts, once a pass, so that gradients reach it through the sum. The policy that is learned from is then also
the one that was sampled from, which writes with merged weights too.

On a GPU only, unless told otherwise: on a CPU the products themselves are what takes the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch


@contextmanager
def quick_passes(model: Any, *, on: str = "cuda", sums: Sums | None = None) -> Iterator[None]:
    """Inside, a pass through this model, with the adapter that is active as it is entered, takes fewer kernels.

    Not where activations are computed again on the way back: by then the model is as it was.
    """
    if next(model.parameters()).device.type != on or recomputes(model):
        yield
        return
    with fused_norms(model), merged_adapters(model, sums=sums):
        yield


@contextmanager
def fused_norms(model: Any) -> Iterator[None]:
    """Inside, each RMS norm of a Llama is one kernel."""
    norms = _parts(model).norms
    with computed_by({norm: partial(_rms_norm, norm.weight, norm.variance_epsilon) for norm in norms}):
        yield


@contextmanager
def merged_adapters(model: Any, *, sums: Sums | None = None) -> Iterator[None]:
    """Inside, each adapted layer multiplies once, by the sum of its weights and its active adapter's."""
    layers = [layer for layer in _parts(model).adapted if _adapts(layer)]
    with torch.autocast(next(model.parameters()).device.type, enabled=False):
        totals = [_sum_of(layer, layer.active_adapters[0]) for layer in layers] if sums is None else sums.of(layers)
    merged = {
        layer: partial(_linear, total, layer.get_base_layer().bias) for layer, total in zip(layers, totals, strict=True)
    }
    with computed_by(merged):
        yield


def _adapts(layer: Any) -> bool:
    active = layer.active_adapters
    return len(active) == 1 and active[0] in layer.lora_A and not layer.disable_adapters


class Sums:
    """The sums of weights and an adapter that is not learned from, kept from one pass to the next.

    For a reference, which never moves: where some tensor did after all, everything is added up again.
    """

    def __init__(self) -> None:
        self._parts: list[torch.Tensor] = []
        """Held on to: what takes the place of a tensor that is gone could look like it."""
        self._states: list[tuple[int, int, int]] = []
        self._totals: list[torch.Tensor] = []

    def of(self, layers: Sequence[Any]) -> list[torch.Tensor]:
        parts = [part for layer in layers for part in _summed(layer, layer.active_adapters[0])]
        states = [(id(part), part.data_ptr(), part._version) for part in parts]
        if states != self._states:
            with torch.no_grad():
                self._totals = [_sum_of(layer, layer.active_adapters[0]) for layer in layers]
            self._parts, self._states = parts, states
        return self._totals


class _Parts(NamedTuple):
    """The modules of a model that passes ask for."""

    adapters: tuple[str, ...]
    """The adapters it had when they were looked for: with others there may be other modules."""
    norms: list[Any]
    adapted: list[Any]
    may_recompute: list[Any]


def _parts(model: Any) -> _Parts:
    """Looked for once, and kept with the model: going through thousands of modules takes milliseconds."""
    adapters = tuple(getattr(model, "peft_config", ()))
    parts: _Parts | None = vars(model).get(PARTS)
    if parts is None or parts.adapters != adapters:
        modules = list(model.modules())
        parts = vars(model)[PARTS] = _Parts(
            adapters,
            [module for module in modules if type(module).__name__ == "LlamaRMSNorm"],
            [module for module in modules if hasattr(module, "get_delta_weight")],
            [module for module in modules if hasattr(module, "gradient_checkpointing")],
        )
    return parts


PARTS = "_dirigent_parts"


def recomputes(model: Any) -> bool:
    """Whether activations are computed again on the way back."""
    return any(module.gradient_checkpointing for module in _parts(model).may_recompute)


def _sum_of(layer: Any, adapter: str) -> torch.Tensor:
    """As a part of the graph: what flows back into the sum flows on into the adapter."""
    weight, down, up = _summed(layer, adapter)
    return torch.addmm(weight.float(), up.float(), down.float(), alpha=layer.scaling[adapter]).to(weight.dtype)


def _summed(layer: Any, adapter: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return layer.get_base_layer().weight, layer.lora_A[adapter].weight, layer.lora_B[adapter].weight


def _linear(weight: torch.Tensor, bias: torch.Tensor | None, hidden: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(hidden, weight, bias)


def _rms_norm(weight: torch.Tensor, epsilon: float, hidden: torch.Tensor) -> torch.Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        return torch.nn.functional.rms_norm(hidden, weight.shape, weight.to(hidden.dtype), epsilon)


@contextmanager
def computed_by(ways: dict[Any, Any]) -> Iterator[None]:
    """Inside, these modules compute otherwise."""
    for module, way in ways.items():
        module.forward = way
    try:
        yield
    finally:
        for module in ways:
            del module.forward
