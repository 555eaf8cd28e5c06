"""LoRA adapters as matrices in memory, whichever way they were written: PEFT's folders or the GGUF files that ship.

Both are plain LoRA of any rank; anything else is refused. The two differ in names and scale, and in the order of rows
in query and key layers, which `export.py` changes on the way out and this changes back. So training can go on from
the very files that users run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from dirigent.errors import ConfigError
from dirigent_gym.train.export import LAYERS
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


def load_adapters(paths: Sequence[Path], *, config: Any = None) -> list[Adapter]:
    """These adapters. `config` is the model's, for those that stand on query or key layers of a GGUF file."""
    return [load_adapter(path, config=config) for path in paths]


def load_adapter(path: Path, *, config: Any = None) -> Adapter:
    """A PEFT folder or a GGUF file as an adapter of its name."""
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


GGUF_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.weight\.lora_([ab])")
INNER: dict[str, str] = {
    theirs: f"{'mlp' if theirs.startswith('ffn') else 'self_attn'}.{ours}" for ours, theirs in LAYERS.items()
}
"""llama.cpp's names of linear layers, and where they stand in a layer of transformers' Llama."""


def _from_gguf(path: Path, *, config: Any) -> Adapter:
    from gguf import GGUFReader

    if not path.is_file():
        raise ConfigError(f"there is no adapter {str(path)!r}")
    reader = GGUFReader(path)
    kind = reader.fields.get("adapter.type")
    if kind is None or kind.contents() != "lora":
        raise ConfigError(f"{path} is no LoRA adapter: adapter.type is {kind.contents() if kind else 'missing'!r}")
    alpha = float(reader.fields["adapter.lora.alpha"].contents())
    halves: dict[str, dict[str, torch.Tensor]] = {}
    for tensor in reader.tensors:
        match = GGUF_NAME.fullmatch(tensor.name)
        if match is None or match[2] not in INNER:
            raise ConfigError(f"{path} holds {tensor.name}, which is no half of a pair of LoRA matrices")
        layer = f"model.layers.{match[1]}.{INNER[match[2]]}"
        halves.setdefault(layer, {})[match[3]] = torch.from_numpy(tensor.data.copy()).float()
    if not halves or any(len(pair) != 2 for pair in halves.values()):
        raise ConfigError(f"{path} holds no whole pairs of LoRA matrices")
    pairs = {
        layer: (pair["a"], _in_halves(layer, pair["b"], path=path, config=config) * (alpha / len(pair["a"])))
        for layer, pair in halves.items()
    }
    return Adapter(path.stem, max(len(A) for A, _ in pairs.values()), pairs)


def _in_halves(layer: str, rows: torch.Tensor, *, path: Path, config: Any) -> torch.Tensor:
    """Rows of a query or key layer back in transformers' order: 0 2 1 3 becomes 0 1 2 3. Others as they are."""
    kind = layer.rpartition(".")[2]
    if kind not in ("q_proj", "k_proj"):
        return rows
    if config is None:
        raise ConfigError(f"{path} stands on {kind}; its rows can be read only with the config of the model")
    heads = config.num_attention_heads if kind == "q_proj" else config.num_key_value_heads
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, -1).transpose(1, 2).reshape(rows.shape)
