"""Adapters as GGUF files, which llama.cpp loads: written from a PEFT folder, and read back to train from.

    python -m dirigent.learn.export adapters/facts facts.gguf [--base SmolLM2-135M-Instruct.Q4_1.gguf]

An adapter has two small matrices for each layer. They are copied in float16 under llama.cpp's names. Only one thing
changes: for the Llama family, llama.cpp rotates neighbouring pairs of numbers while transformers rotates the two halves
of a head. The rows of the query and key layers therefore have another order there, and so must the rows of their
`lora_b`. For the Qwen2 family both rotate halves, and no row moves. The scale is not multiplied in: llama.cpp divides
`adapter.lora.alpha` by the rank itself.

The base is read for its shapes and heads only, so that an adapter that does not fit fails here and not when a user's
model starts. Knows nothing of how adapters are trained. `export_base` writes a whole model; tests compare torch and
llama.cpp on the same weights with it.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from dirigent.errors import ConfigError
from dirigent.learn.base import Base
from dirigent.learn.decoder import LINEAR, Adapter, Shape

LAYERS: Mapping[str, str] = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}
"""Linear layers of a block: the names in transformers and in llama.cpp."""
FAMILIES = ("llama", "qwen2")
INTERLEAVED = "llama"
"""The family whose query and key rows llama.cpp keeps in another order."""

LORA_KEY = re.compile(r"(?:.*\.)?layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)\.lora_([AB])\.weight")
GGUF_KEY = re.compile(r"blk\.(\d+)\.(\w+)\.weight\.lora_([ab])")
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "use_dora": (False, None),
    "use_rslora": (False, None),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
    "bias": ("none",),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "layer_replication": (None,),
    "trainable_token_indices": (None, []),
}
"""Settings of PEFT that change what an adapter computes, and the values that llama.cpp's format can express."""

Precision = Literal["f16", "f32"]


class ModelShapes(msgspec.Struct, frozen=True):
    """What an adapter must fit: the linear layers and heads of a base."""

    name: str
    architecture: str
    heads: int
    key_value_heads: int
    shapes: dict[str, tuple[int, int]]
    """Of each linear layer, by llama.cpp's name: rows out, columns in."""

    def heads_of(self, layer: str) -> int | None:
        """How many heads the rows of this layer hold, if llama.cpp keeps them in another order; else None."""
        if self.architecture != INTERLEAVED:
            return None
        return {"q_proj": self.heads, "k_proj": self.key_value_heads}.get(layer)


class Exported(msgspec.Struct, frozen=True):
    """What was written."""

    path: Path
    rank: int
    alpha: float
    targets: tuple[str, ...]
    size_bytes: int
    sha256: str


def export_adapter(folder: Path, out: Path, *, base: ModelShapes) -> Exported:
    """Write the PEFT adapter in `folder` as one GGUF file. The same adapter gives the same bytes."""
    config = _read_config(folder)
    pairs = _read_pairs(folder)
    tensors = {}
    for (block, layer), (a, b) in sorted(pairs.items()):
        name = f"blk.{block}.{LAYERS[layer]}.weight"
        _check_fit(name, a, b, base=base, rank=config.r)
        tensors[f"{name}.lora_a"] = _half(f"{name}.lora_a", a)
        heads = base.heads_of(layer)
        tensors[f"{name}.lora_b"] = _half(f"{name}.lora_b", b if heads is None else interleaved(b, heads=heads))
    _write_adapter(out, tensors, name=folder.name, alpha=config.lora_alpha, base=base)
    data = out.read_bytes()
    return Exported(
        path=out,
        rank=config.r,
        alpha=config.lora_alpha,
        targets=tuple(layer for layer in LAYERS if any(layer == pair_layer for _, pair_layer in pairs)),
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def export_trained(folder: Path, out: Path, *, base: Base) -> Exported:
    """Write the adapter that `learn.grpo` saved in `folder` as GGUF, for the base it was trained on."""
    return export_adapter(folder, out, base=shapes_of(base))


def shapes_of(base: Base) -> ModelShapes:
    """The shapes of a base that is loaded for training."""
    attention = "model.layers.0.self_attn"
    if f"{attention}.o_proj.bias" in base.weights:
        raise ConfigError(f"{base.name} has a bias in o_proj; adapters are exported for plain llama and qwen2 models")
    shapes = {}
    for part in LINEAR:
        for block in range(base.shape.layers):
            rows, columns = base.weights[f"model.layers.{block}.{part}.weight"].shape
            shapes[f"blk.{block}.{LAYERS[part.rpartition('.')[2]]}.weight"] = (rows, columns)
    family = "qwen2" if f"{attention}.q_proj.bias" in base.weights else "llama"
    return ModelShapes(base.name, family, base.shape.heads, base.shape.key_heads, shapes)


def read_base(gguf: Path) -> ModelShapes:
    """The shapes of the model in a GGUF file, at any quantisation."""
    from gguf import GGUFReader

    if not gguf.is_file():
        raise ConfigError(f"there is no base model {str(gguf)!r}; `dirigent pool pull` brings the default one")
    reader = GGUFReader(gguf)
    family = _known_family(reader.fields["general.architecture"].contents(), gguf.name)
    return ModelShapes(
        name=gguf.stem,
        architecture=family,
        heads=int(reader.fields[f"{family}.attention.head_count"].contents()),
        key_value_heads=int(reader.fields[f"{family}.attention.head_count_kv"].contents()),
        shapes={t.name: (int(t.shape[1]), int(t.shape[0])) for t in reader.tensors if len(t.shape) == 2},
    )


def base_of(config: Any) -> ModelShapes:
    """The shapes of a transformers model, from its config."""
    family = _known_family(config.model_type, "the base")
    shape = Shape.of(config)
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = shape.heads * shape.head_size, shape.key_heads * shape.head_size
    sizes = {
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }
    shapes = {f"blk.{n}.{LAYERS[layer]}.weight": size for n in range(shape.layers) for layer, size in sizes.items()}
    return ModelShapes("the base", family, shape.heads, shape.key_heads, shapes)


def _known_family(family: Any, model: str) -> str:
    if family not in FAMILIES:
        raise ConfigError(f"{model} is a {family!r} model; adapters are exported for {' and '.join(FAMILIES)} only")
    return str(family)


class Matrices(msgspec.Struct, frozen=True):
    """An adapter as its GGUF file holds it, rows in the order of transformers."""

    alpha: float
    pairs: dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]
    """By block and linear layer: A [rank, width in] and B [width out, rank], in full precision."""


def read_matrices(gguf: Path, *, heads: int, key_heads: int) -> Matrices:
    """The matrices in a GGUF adapter. `heads` and `key_heads` are the base's."""
    from gguf import GGUFReader

    if not gguf.is_file():
        raise ConfigError(f"there is no adapter {str(gguf)!r}")
    reader = GGUFReader(gguf)
    kind = reader.fields.get("adapter.type")
    if kind is None or kind.contents() != "lora":
        raise ConfigError(f"{gguf} is no LoRA adapter: adapter.type is {kind.contents() if kind else 'missing'!r}")
    family = _known_family(reader.fields["general.architecture"].contents(), str(gguf))
    base = ModelShapes("", family, heads, key_heads, {})
    ours = {theirs: layer for layer, theirs in LAYERS.items()}
    halves: dict[tuple[int, str], dict[str, torch.Tensor]] = {}
    for tensor in reader.tensors:
        match = GGUF_KEY.fullmatch(tensor.name)
        if match is None or match[2] not in ours:
            raise ConfigError(f"{gguf} holds {tensor.name}, which is no half of a pair of LoRA matrices")
        halves.setdefault((int(match[1]), ours[match[2]]), {})[match[3]] = torch.from_numpy(tensor.data.copy()).float()
    if not halves or any(len(pair) != 2 for pair in halves.values()):
        raise ConfigError(f"{gguf} holds no whole pairs of LoRA matrices")
    pairs = {}
    for (block, layer), pair in halves.items():
        rows_of = base.heads_of(layer)
        b = pair["b"] if rows_of is None else in_halves(pair["b"], heads=rows_of)
        pairs[block, layer] = (pair["a"], b)
    return Matrices(float(reader.fields["adapter.lora.alpha"].contents()), pairs)


def load_adapter(path: Path, *, base: Base) -> Adapter:
    """The adapter in a PEFT folder or a GGUF file, on the device of the base.

    A linear layer that it adapts at all it must adapt in every block.
    """
    device = str(base.weights["model.norm.weight"].device)
    if path.suffix != ".gguf":
        return Adapter.load(path, device=device)
    found = read_matrices(path, heads=base.shape.heads, key_heads=base.shape.key_heads)
    shapes = shapes_of(base)
    rank = max(len(a) for a, _ in found.pairs.values())
    stacked: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] = ({}, {})
    adapted = {layer for _, layer in found.pairs}
    parts = [part for part in LINEAR if part.rpartition(".")[2] in adapted]
    for part in parts:
        layer = part.rpartition(".")[2]
        blocks = []
        for block in range(base.shape.layers):
            name = f"blk.{block}.{LAYERS[layer]}.weight"
            if (block, layer) not in found.pairs:
                raise ConfigError(f"{path} has no {name}; an adapter must cover a layer in every block or in none")
            blocks.append(found.pairs[block, layer])
            _check_fit(name, *blocks[-1], base=shapes, rank=rank)
        for side, matrices in zip(stacked, zip(*blocks, strict=True), strict=True):
            side[part] = torch.stack(list(matrices)).to(device)
    if len(found.pairs) != base.shape.layers * len(parts):
        raise ConfigError(f"{path} is for a model of more layers than the {base.shape.layers} of {base.name}")
    return Adapter(*stacked, rank=rank, alpha=found.alpha)


class _LoraConfig(msgspec.Struct):
    r: int
    lora_alpha: float


def _read_config(folder: Path) -> _LoraConfig:
    path = folder / "adapter_config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        config = msgspec.convert(raw, _LoraConfig)
    except FileNotFoundError:
        raise ConfigError(f"there is no adapter in {str(folder)!r}: {path.name} is missing") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path} is not PEFT's: {error}") from None
    for key, allowed in PLAIN.items():
        if key in raw and raw[key] not in allowed:
            raise ConfigError(
                f"{path} has {key} = {raw[key]!r}, which a GGUF adapter cannot express; "
                f"train with {key} = {allowed[0]!r}"
            )
    return config


Pair = tuple[torch.Tensor, torch.Tensor]


def _read_pairs(folder: Path) -> dict[tuple[int, str], Pair]:
    """`lora_A` and `lora_B` of every layer that has them."""
    from safetensors.torch import load_file

    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        raise ConfigError(f"there is no adapter in {str(folder)!r}: {path.name} is missing")
    halves: dict[tuple[int, str], dict[str, torch.Tensor]] = {}
    for key, tensor in load_file(path).items():
        match = LORA_KEY.fullmatch(key)
        if match is None or match[2] not in LAYERS:
            raise ConfigError(f"{path} has {key!r}; adapters may stand on these layers only: {', '.join(LAYERS)}")
        halves.setdefault((int(match[1]), match[2]), {})[match[3]] = tensor.float()
    for (block, layer), found in halves.items():
        if len(found) != 2:
            raise ConfigError(f"{path}: {layer} of layer {block} has lora_{next(iter(found))} but not its other half")
    if not halves:
        raise ConfigError(f"{path} holds no tensors")
    return {place: (found["A"], found["B"]) for place, found in halves.items()}


def _check_fit(name: str, a: torch.Tensor, b: torch.Tensor, *, base: ModelShapes, rank: int) -> None:
    if name not in base.shapes:
        raise ConfigError(f"{base.name} has no {name}: the adapter is for another model")
    rows, columns = base.shapes[name]
    if a.shape != (rank, columns) or b.shape != (rows, rank):
        raise ConfigError(
            f"{name} of {base.name} is {rows} x {columns}; an adapter of rank {rank} for it is "
            f"{rank} x {columns} and {rows} x {rank}, not {_size(a)} and {_size(b)}"
        )


def _size(tensor: torch.Tensor) -> str:
    return " x ".join(str(n) for n in tensor.shape)


def interleaved(rows: torch.Tensor, *, heads: int) -> torch.Tensor:
    """Rows of a query or key matrix in llama.cpp's order for the Llama family.

    Within each head the first half's rows and the second half's alternate: 0 1 2 3 becomes 0 2 1 3.
    """
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, -1).transpose(1, 2).reshape(rows.shape)


def in_halves(rows: torch.Tensor, *, heads: int) -> torch.Tensor:
    """The same rows back in the order of transformers: 0 2 1 3 becomes 0 1 2 3."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, -1).transpose(1, 2).reshape(rows.shape)


def _half(name: str, tensor: torch.Tensor) -> Any:
    array = tensor.to(torch.float16)
    if not bool(torch.isfinite(array).all()):
        worst = float(tensor.abs().max())
        raise ConfigError(f"{name} has a value of size {worst:g}, beyond float16's 65504: the training diverged")
    return array.contiguous().numpy()


def _write_adapter(out: Path, tensors: Mapping[str, Any], *, name: str, alpha: float, base: ModelShapes) -> None:
    from gguf import GGUFWriter

    partial = out.with_name(out.name + ".partial")
    writer = GGUFWriter(partial, base.architecture)
    writer.add_type("adapter")
    writer.add_name(name)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    _finish(writer, tensors, partial=partial, out=out)


def _finish(writer: Any, tensors: Mapping[str, Any], *, partial: Path, out: Path) -> None:
    """Write everything, then give the file its name: a cut run leaves no file that looks whole."""
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(out)


# ---- a whole model, for comparing torch and llama.cpp on the same weights ---------------------------------------


def export_base(model: Any, out: Path, *, like: Path, precision: Precision = "f16") -> Path:
    """Write a Llama or Qwen2 of transformers as GGUF, with the tokenizer and chat template of the file `like`."""
    from gguf import GGUFWriter

    partial = out.with_name(out.name + ".partial")
    writer = GGUFWriter(partial, _known_family(model.config.model_type, "the base"))
    for name, value, kind, item_kind in _tokenizer_fields(like):
        writer.add_key_value(name, value, kind, sub_type=item_kind)
    writer.add_type("model")
    writer.add_name(out.stem)
    writer.add_file_type({"f32": 0, "f16": 1}[precision])
    _add_sizes(writer, model.config)
    _finish(writer, _base_tensors(model, precision=precision), partial=partial, out=out)
    return out


@functools.cache  # a vocabulary takes seconds to read, and a comparison writes several models with the same one
def _tokenizer_fields(like: Path) -> list[tuple[str, Any, Any, Any]]:
    """Name, value, type and type of items of every field about the tokenizer."""
    from gguf import GGUFReader

    fields = [field for field in GGUFReader(like).fields.values() if field.name.startswith("tokenizer.")]
    return [(f.name, f.contents(), f.types[0], f.types[-1] if len(f.types) > 1 else None) for f in fields]


def _add_sizes(writer: Any, config: Any) -> None:
    shape = Shape.of(config)
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        raise ConfigError("a Llama whose linear layers have a bias is not exported")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_vocab_size(config.vocab_size)


def _base_tensors(model: Any, *, precision: Precision) -> dict[str, Any]:
    """Every tensor under llama.cpp's name. Norms and biases stay float32, as llama.cpp's own converter leaves them."""
    shapes = base_of(model.config)
    linear = torch.float16 if precision == "f16" else torch.float32
    tensors = {}
    for key, weight in model.state_dict().items():
        if key == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        heads = shapes.heads_of(key.split(".")[-2])
        rows = weight if heads is None else interleaved(weight, heads=heads)
        dtype = torch.float32 if weight.dim() == 1 else linear
        tensors[_llama_name(key)] = rows.detach().cpu().to(dtype).contiguous().numpy()
    return tensors


OUTSIDE: Mapping[str, str] = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
NORMS: Mapping[str, str] = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def _llama_name(key: str) -> str:
    if key in OUTSIDE:
        return OUTSIDE[key]
    match = re.fullmatch(r"model\.layers\.(\d+)\.(?:\w+\.)?(\w+)\.(weight|bias)", key)
    inner = {**LAYERS, **NORMS}
    if match is None or match[2] not in inner:
        raise ConfigError(f"a plain Llama or Qwen2 has no tensor {key!r}; only such models are exported")
    return f"blk.{match[1]}.{inner[match[2]]}.{match[3]}"


# ---- the command -------------------------------------------------------------------------------------------------


def main() -> None:
    args = _arguments()
    try:
        base = read_base(args.base or default_base())
        done = export_adapter(args.folder, args.out, base=base)
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
    print(
        f"{done.path}  {done.size_bytes / 1e6:.2f} MB  rank {done.rank}, alpha {done.alpha:g}, "
        f"{', '.join(done.targets)}  sha256 {done.sha256}"
    )


def default_base() -> Path:
    """The weights that users run, where they were fetched before."""
    from dirigent.workers.weights import cached, known

    name = "smollm2-135m"
    path = cached(name)
    if path is None:
        raise ConfigError(f"{known(name).file_name} is not here: `dirigent pool pull` brings it, or say --base FILE")
    return path


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dirigent.learn.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="the PEFT adapter: adapter_config.json, adapter_model.safetensors")
    parser.add_argument("out", type=Path, help="the GGUF file to write")
    parser.add_argument("--base", type=Path, help="GGUF of the model it is for (default: the fetched smollm2-135m)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
