"""LoRA adapters as matrices in memory, read from PEFT folders or from the GGUF files that ship.

Both hold plain LoRA of any rank; other kinds raise ConfigError. Training can continue from the files that users run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from dirigent.errors import ConfigError
from dirigent.learn.export import LAYERS, read_matrices
from dirigent_gym.weights import FOLDER

PACKAGED = "packaged"
"""What stands for the package's own folder where folders of adapters are named."""


class Adapter(msgspec.Struct, frozen=True):
    """One adapter's matrices by the layer they belong to; B already scaled by alpha over rank."""

    name: str
    rank: int
    """The largest of its layers."""
    pairs: dict[str, tuple[torch.Tensor, torch.Tensor]]
    """Layer -> A [r, I] and B [O, r]."""


def find_adapters(folders: Sequence[str], names: Sequence[str]) -> list[Path]:
    """Where each of these adapters lies: a PEFT folder or a GGUF file of its name, in the first folder that has one."""
    places = [FOLDER if folder == PACKAGED else Path(folder) for folder in folders]
    found, missing = [], []
    for name in names:
        candidates = [path for place in places for path in (place / name, place / f"{name}.gguf") if path.exists()]
        found += candidates[:1]
        missing += [] if candidates else [name]
    if missing:
        raise ConfigError(
            f"no adapter for {', '.join(missing)} in: {', '.join(folders)}; "
            "`dirigent train gym/recipes/specialists.toml` makes them, workers.adapters names the folders"
        )
    return found


def load_adapters(paths: Sequence[Path], *, config: Any) -> list[Adapter]:
    """These adapters, for a model of this config."""
    return [load_adapter(path, config=config) for path in paths]


def load_adapter(path: Path, *, config: Any) -> Adapter:
    """A PEFT folder or a GGUF file as an adapter of its name, for a model of this config."""
    return _from_gguf(path, config=config) if path.suffix == ".gguf" else _from_peft(path)


def adapter_named(name: str) -> Path:
    """An adapter by its path, or by the name of one that ships."""
    return Path(name) if Path(name).exists() else find_adapters((PACKAGED,), (name,))[0]


def put_adapter(model: Any, name: str, adapter: Adapter) -> None:
    """Give a PEFT model's adapter of that name these matrices: the same layers, the same rank, its own scale."""
    left = dict(adapter.pairs)
    for module_name, module in model.named_modules():
        if name in getattr(module, "lora_A", ()):
            own = module.lora_A[name].weight, module.lora_B[name].weight
            given = left.pop(module_name.removeprefix("base_model.model."), None)
            if given is None or any(one.shape != two.shape for one, two in zip(own, given, strict=True)):
                found = "nothing" if given is None else f"rank {len(given[0])}"
                raise ConfigError(
                    f"the adapter {adapter.name} has {found} for {module_name}, where rank {len(own[0])} is wanted; "
                    "policy.rank and policy.targets must be those it was trained with"
                )
            with torch.no_grad():
                own[0].copy_(given[0])
                own[1].copy_(given[1] / module.scaling[name])
    if left:
        raise ConfigError(f"the adapter {adapter.name} also has {next(iter(left))}, which policy.targets leaves out")


def _from_peft(folder: Path) -> Adapter:
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
            first, second = tensors[name], tensors[other]
            pairs[layer] = (first, second * _scaling(settings, rank=len(first)))
        elif kind != "B.weight" or other not in tensors:
            raise ConfigError(f"{folder} holds {name}, which is no half of a pair of LoRA matrices")
    if not pairs:
        raise ConfigError(f"{folder} holds no LoRA matrices")
    return Adapter(folder.name, max(len(A) for A, _ in pairs.values()), pairs)


def _scaling(settings: dict[str, Any], *, rank: int) -> float:
    """alpha / r, or alpha / sqrt(r) with rsLoRA; a layer with a rank of its own is scaled by that."""
    alpha = float(settings["lora_alpha"])
    return alpha / math.sqrt(rank) if settings.get("use_rslora") else alpha / rank


def _from_gguf(path: Path, *, config: Any) -> Adapter:
    heads = config.num_attention_heads
    found = read_matrices(path, heads=heads, key_heads=getattr(config, "num_key_value_heads", heads))
    pairs = {}
    for (block, layer), (first, second) in found.pairs.items():
        part = f"{'mlp' if LAYERS[layer].startswith('ffn') else 'self_attn'}.{layer}"
        pairs[f"model.layers.{block}.{part}"] = (first, second * (found.alpha / len(first)))
    return Adapter(path.stem, max(len(A) for A, _ in pairs.values()), pairs)
