"""Several LoRA adapters as one: rows of different workers in the same batch, each under its own adapter.

Over every linear layer that any adapter touches, all their A matrices are stacked into one, and all their B matrices,
scaled, into another. A row's adapter is then a mask over the stacked rank: x -> W x + B_all (mask * (A_all x)), two
small dense products whatever the number of adapters. Rows with no adapter have a mask of zeros.

`stack` leaves the model it is given alone: the copy it makes shares every weight and differs only in those layers, so
a policy can be trained on the same base meanwhile. `decode` is the loop that writes replies: left padding, one cache,
shapes that depend on nothing but the batch. Knows nothing of workers, prompts or plans.

Dimensions: B rows of a batch, T tokens, R stacked rank, I and O a layer's inputs and outputs, V vocabulary.
"""

# ruff: noqa: N803, N806 -- suffixes name dimensions

from __future__ import annotations

import copy
import hashlib
import json
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import torch

from dirigent.errors import ConfigError

NO_ADAPTER = -1


class Adapter(msgspec.Struct, frozen=True):
    """One adapter's matrices by the layer they belong to; B already scaled by alpha over rank."""

    name: str
    rank: int
    """The largest of its layers."""
    pairs: dict[str, tuple[torch.Tensor, torch.Tensor]]
    """Layer -> A [r, I] and B [O, r]."""


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

    @contextmanager
    def use(self, adapters_B: Sequence[int]) -> Iterator[None]:
        """Put the rows of the batches run inside under these adapters."""
        index = torch.tensor(adapters_B, dtype=torch.long, device=self._table_NR.device)
        self.rows_BR = self._table_NR[index]
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


def load_adapters(folder: Path, names: Sequence[str]) -> list[Adapter]:
    """These adapters out of a folder that holds one PEFT folder each."""
    return [load_adapter(folder / name) for name in names]


def load_adapter(folder: Path) -> Adapter:
    """A PEFT folder as an adapter of the folder's name. Plain LoRA of any rank; anything else is refused."""
    from safetensors.torch import load_file

    try:
        settings = json.loads((folder / "adapter_config.json").read_bytes())
        tensors = load_file(str(folder / "adapter_model.safetensors"))
    except FileNotFoundError as error:
        raise ConfigError(f"{folder} is no adapter: it has no {Path(error.filename or '').name or 'weights'}") from None
    for key in ("use_dora", "alpha_pattern", "modules_to_save", "fan_in_fan_out", "lora_bias"):
        if settings.get(key):
            raise ConfigError(f"{folder} uses {key} = {settings[key]!r}, which cannot be stacked; train it without")
    pairs = {}
    for name in sorted(tensors):
        layer, _, kind = name.removeprefix("base_model.model.").partition(".lora_")
        other = name.replace(".lora_A.", ".lora_B.") if kind == "A.weight" else name.replace(".lora_B.", ".lora_A.")
        if kind == "A.weight" and other in tensors:
            A, B = tensors[name], tensors[other]
            pairs[layer] = (A, B * _scaling(settings, rank=len(A)))
        elif kind != "B.weight" or other not in tensors:
            raise ConfigError(f"{folder} holds {name}, which is no half of a pair of LoRA matrices")
    if not pairs:
        raise ConfigError(f"{folder} holds no LoRA matrices")
    return Adapter(folder.name, max(len(A) for A, _ in pairs.values()), pairs)


@torch.no_grad()
def decode(
    stacked: Stacked,
    prompts: Sequence[Sequence[int]],
    *,
    adapters: Sequence[int],
    seeds: Sequence[int | None],
    pad: int,
    end: int,
    max_new_tokens: int,
    chunk_tokens: int = 262_144,
) -> list[list[int]]:
    """What each prompt's adapter writes, end mark left out: greedy, or sampled at temperature 1 where there is a seed.

    A row's reply depends on its prompt, adapter and seed and, up to rounding, not on which rows share its batch.
    Prompts of like length run together, as many as fit into `chunk_tokens` with their padding.
    """
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    replies: list[list[int]] = [[] for _ in prompts]
    with stacked.lock:
        for chunk in _chunks(order, [len(prompt) + max_new_tokens for prompt in prompts], chunk_tokens):
            with stacked.mask.use([adapters[i] for i in chunk]):
                tokens_BT = _decode_chunk(
                    stacked.model,
                    [prompts[i] for i in chunk],
                    [seeds[i] for i in chunk],
                    pad=pad,
                    end=end,
                    max_new_tokens=max_new_tokens,
                )
            for i, tokens in zip(chunk, tokens_BT.tolist(), strict=True):
                replies[i] = tokens[: tokens.index(end)] if end in tokens else tokens
    return replies


def gumbel_noise(seeds_B: torch.Tensor, turn: int, vocabulary: int) -> torch.Tensor:
    """Noise whose argmax with logits is a sample at temperature 1: the same for a seed and turn on every device.

    A counter run through the finaliser of splitmix64; torch's own generators differ between devices and batches.
    """
    counter_V = torch.arange(vocabulary, device=seeds_B.device, dtype=torch.int64) + turn * vocabulary
    x = seeds_B[:, None] + counter_V * _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    x = x ^ _shifted(x, 31)
    uniform_BV = (_shifted(x, 11).double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform_BV))


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


def _scaling(settings: dict[str, Any], *, rank: int) -> float:
    """alpha / r, or alpha / sqrt(r) with rsLoRA; a layer with a rank of its own is scaled by that."""
    alpha = float(settings["lora_alpha"])
    return alpha / math.sqrt(rank) if settings.get("use_rslora") else alpha / rank


def _chunks(order: Sequence[int], widths: Sequence[int], chunk_tokens: int) -> Iterator[list[int]]:
    """Runs of rows, shortest first, whose padded size stays within the bound; a row too long for it stands alone."""
    chunk: list[int] = []
    for i in order:
        if chunk and (len(chunk) + 1) * widths[i] > chunk_tokens:
            yield chunk
            chunk = []
        chunk.append(i)
    if chunk:
        yield chunk


def _decode_chunk(
    model: Any,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int | None],
    *,
    pad: int,
    end: int,
    max_new_tokens: int,
) -> torch.Tensor:
    """New tokens [B, T]; rows that have ended are filled up with `pad`."""
    from transformers import DynamicCache

    device = next(model.parameters()).device
    longest = max(len(prompt) for prompt in prompts)
    ids_BT = torch.tensor([[pad] * (longest - len(p)) + list(p) for p in prompts], device=device)
    width = longest + max_new_tokens
    mask_BT = torch.ones(len(prompts), width, dtype=torch.long, device=device)
    mask_BT[:, :longest] = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
    noisy, seeds_N = _noise_rows(seeds, device)
    tokens_BT = torch.full((len(prompts), max_new_tokens), pad, dtype=torch.long, device=device)
    done_B = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    cache, start, upto = DynamicCache(config=model.config), 0, longest
    for turn in range(max_new_tokens):
        logits_BV = _next_logits(model, ids_BT, mask_BT[:, :upto], positions_BT[:, start:upto], cache)
        if len(noisy):
            logits_BV[noisy] += gumbel_noise(seeds_N, turn, logits_BV.shape[1]).to(logits_BV)
        token_B = logits_BV.argmax(-1).masked_fill(done_B, pad)
        tokens_BT[:, turn] = token_B
        done_B |= token_B == end
        if bool(done_B.all()):
            break
        ids_BT, start, upto = token_B[:, None], upto, upto + 1
    return tokens_BT


def _next_logits(
    model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor, positions_BT: torch.Tensor, cache: Any
) -> torch.Tensor:
    """Logits after the last token. The one place that runs the model: what a captured graph would replace."""
    with torch.autocast(ids_BT.device.type, dtype=torch.bfloat16, enabled=ids_BT.device.type == "cuda"):
        hidden_BTD = model.model(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            position_ids=positions_BT,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        logits_BV: torch.Tensor = model.lm_head(hidden_BTD[:, -1])
    return logits_BV.float()


def _noise_rows(seeds: Sequence[int | None], device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that are sampled, and where the counter of each begins: hashed, so that near seeds are far apart."""
    noisy = [i for i, seed in enumerate(seeds) if seed is not None]
    digests = [hashlib.blake2b(str(seeds[i]).encode(), digest_size=8).digest() for i in noisy]
    starts = [int.from_bytes(digest, "big", signed=True) for digest in digests]
    return (
        torch.tensor(noisy, dtype=torch.long, device=device),
        torch.tensor(starts, dtype=torch.int64, device=device),
    )


def _signed(value: int) -> int:
    """An unsigned 64-bit constant as the int64 with the same bits."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right and fill with zeros; torch's own shift keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
