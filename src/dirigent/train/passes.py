"""Passes through a small Llama with less around the arithmetic: what is computed stays the same, up to rounding.

A model of a hundred million parameters spends most of a pass on what lies between its large products: seven kernels for
a norm, six more for the adapter beside each linear layer. Here a norm is one kernel, and an adapter is added to the
weights it adapts, once a pass, so that gradients reach it through the sum. The policy that is learned from is then also
the one that was sampled from, which writes with merged weights too.

On a GPU only, unless told otherwise: on a CPU the products themselves are what takes the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch


@contextmanager
def quick_passes(model: Any, *, on: str = "cuda") -> Iterator[None]:
    """Inside, a pass through this model, with the adapter that is active as it is entered, takes fewer kernels.

    Not where activations are computed again on the way back: by then the model is as it was.
    """
    if next(model.parameters()).device.type != on or getattr(model, "is_gradient_checkpointing", False):
        yield
        return
    with fused_norms(model), merged_adapters(model):
        yield


@contextmanager
def fused_norms(model: Any) -> Iterator[None]:
    """Inside, each RMS norm of a Llama is one kernel."""
    norms = [module for module in model.modules() if type(module).__name__ == "LlamaRMSNorm"]
    with _computed_by({norm: partial(_rms_norm, norm.weight, norm.variance_epsilon) for norm in norms}):
        yield


@contextmanager
def merged_adapters(model: Any) -> Iterator[None]:
    """Inside, each adapted layer multiplies once, by the sum of its weights and its active adapter's."""
    layers = [module for module in model.modules() if hasattr(module, "get_delta_weight")]
    merged = {
        layer: partial(_linear, _sum_of(layer, layer.active_adapters[0]), layer.get_base_layer().bias)
        for layer in layers
        if len(layer.active_adapters) == 1 and not layer.disable_adapters
    }
    with _computed_by(merged):
        yield


def _sum_of(layer: Any, adapter: str) -> torch.Tensor:
    """As a part of the graph: what flows back into the sum flows on into the adapter."""
    weight, down, up = (
        layer.get_base_layer().weight,
        layer.lora_A[adapter].weight,
        layer.lora_B[adapter].weight,
    )
    with torch.autocast(weight.device.type, enabled=False):
        total = torch.addmm(weight.float(), up.float(), down.float(), alpha=layer.scaling[adapter])
    return total.to(weight.dtype)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None, hidden: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(hidden, weight, bias)


def _rms_norm(weight: torch.Tensor, epsilon: float, hidden: torch.Tensor) -> torch.Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        return torch.nn.functional.rms_norm(hidden, weight.shape, weight.to(hidden.dtype), epsilon)


@contextmanager
def _computed_by(ways: dict[Any, Any]) -> Iterator[None]:
    """Inside, these modules compute otherwise."""
    for module, way in ways.items():
        module.forward = way
    try:
        yield
    finally:
        for module in ways:
            del module.forward
