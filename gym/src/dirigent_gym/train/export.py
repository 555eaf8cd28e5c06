"""Weights that ship: a PEFT adapter as the GGUF file that llama.cpp loads.

    python -m dirigent_gym.train.export adapters/facts facts.gguf [--base SmolLM2-135M-Instruct.Q4_1.gguf]

An adapter is a pair of small matrices a layer. They are copied as they are, in float16, under llama.cpp's names, but
for one thing: llama.cpp turns pairs of neighbouring numbers where transformers turns the two halves of a head, so the
rows of the query and key layers stand in another order there, and so must the rows of their `lora_b`. The scale is not
multiplied in: llama.cpp divides `adapter.lora.alpha` by the rank itself.

The base is read for its shapes and heads only. Whatever does not fit it is found here, not when a user's model starts.
Knows nothing of how adapters are trained or what they are for. `export_base` writes a whole model; it is how torch and
llama.cpp are compared on the same weights (`gym/benchmarks/parity.py`), and its files are not shipped.
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

LAYERS: Mapping[str, str] = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}
"""Linear layers of a Llama: transformers' names and llama.cpp's."""

LORA_KEY = re.compile(r"(?:.*\.)?layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)\.lora_([AB])\.weight")
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


class Base(msgspec.Struct, frozen=True):
    """What an adapter must fit."""

    name: str
    architecture: str
    heads: int
    key_value_heads: int
    shapes: dict[str, tuple[int, int]]
    """Of each linear layer, by llama.cpp's name: rows out, columns in."""


class Exported(msgspec.Struct, frozen=True):
    """What was written."""

    path: Path
    rank: int
    alpha: float
    targets: tuple[str, ...]
    size_bytes: int
    sha256: str


def export_adapter(folder: Path, out: Path, *, base: Base) -> Exported:
    """Write the PEFT adapter in `folder` as one GGUF file. The same adapter gives the same bytes."""
    config = _read_config(folder)
    pairs = _read_pairs(folder)
    tensors = {}
    for (block, layer), (a, b) in sorted(pairs.items()):
        name = f"blk.{block}.{LAYERS[layer]}.weight"
        _check_fit(name, a, b, base=base, rank=config.r)
        tensors[f"{name}.lora_a"] = _half(f"{name}.lora_a", a)
        tensors[f"{name}.lora_b"] = _half(f"{name}.lora_b", _in_llama_order(layer, b, base=base))
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


def read_base(gguf: Path) -> Base:
    """Shapes and heads of the model in a GGUF file, whatever its quantisation."""
    from gguf import GGUFReader

    if not gguf.is_file():
        raise ConfigError(f"there is no base model {str(gguf)!r}; `dirigent pool pull` brings the default one")
    reader = GGUFReader(gguf)
    architecture = reader.fields["general.architecture"].contents()
    if architecture != "llama":
        raise ConfigError(f"{gguf.name} is a {architecture!r} model; adapters are exported for llama models only")
    return Base(
        name=gguf.stem,
        architecture=architecture,
        heads=int(reader.fields["llama.attention.head_count"].contents()),
        key_value_heads=int(reader.fields["llama.attention.head_count_kv"].contents()),
        shapes={t.name: (int(t.shape[1]), int(t.shape[0])) for t in reader.tensors if len(t.shape) == 2},
    )


def base_of(config: Any) -> Base:
    """The same of a model in memory, by its config: what its GGUF file would say."""
    if config.model_type != "llama":
        raise ConfigError(f"the base is a {config.model_type!r} model; adapters are exported for llama models only")
    heads, key_value_heads, hidden = config.num_attention_heads, config.num_key_value_heads, config.hidden_size
    queries, keys, inner = heads * config.head_dim, key_value_heads * config.head_dim, config.intermediate_size
    sizes = {
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }
    blocks = range(config.num_hidden_layers)
    shapes = {f"blk.{n}.{LAYERS[layer]}.weight": size for n in blocks for layer, size in sizes.items()}
    return Base("the base", "llama", heads, key_value_heads, shapes)


def export_if_possible(folder: Path, out: Path, *, config: Any) -> str:
    """Write the PEFT adapter in `folder` as GGUF for the model of this config; or say why not, in a line.

    A file of an earlier adapter is not left under that name.
    """
    out.unlink(missing_ok=True)
    try:
        export_adapter(folder, out, base=base_of(config))
    except ImportError as error:
        return f"the package {error.name} is missing; pip install 'dirigent[train]'"
    except ConfigError as error:
        return str(error)
    return ""


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


def _check_fit(name: str, a: torch.Tensor, b: torch.Tensor, *, base: Base, rank: int) -> None:
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


def _in_llama_order(layer: str, b: torch.Tensor, *, base: Base) -> torch.Tensor:
    heads = {"q_proj": base.heads, "k_proj": base.key_value_heads}.get(layer)
    return b if heads is None else interleaved(b, heads=heads)


def interleaved(rows: torch.Tensor, *, heads: int) -> torch.Tensor:
    """Rows of a query or key matrix in llama.cpp's order.

    Within each head the first half's rows and the second half's alternate: 0 1 2 3 becomes 0 2 1 3.
    """
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, -1).transpose(1, 2).reshape(rows.shape)


def _half(name: str, tensor: torch.Tensor) -> Any:
    array = tensor.to(torch.float16)
    if not bool(torch.isfinite(array).all()):
        worst = float(tensor.abs().max())
        raise ConfigError(f"{name} has a value of size {worst:g}, beyond float16's 65504: the training diverged")
    return array.contiguous().numpy()


def _write_adapter(out: Path, tensors: Mapping[str, Any], *, name: str, alpha: float, base: Base) -> None:
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
    """Write a Llama of transformers as GGUF, with the tokenizer and chat template of the file `like`."""
    from gguf import GGUFWriter

    partial = out.with_name(out.name + ".partial")
    writer = GGUFWriter(partial, "llama")
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
    rope = config.rope_parameters
    if rope["rope_type"] != "default" or config.attention_bias or config.mlp_bias:
        raise ConfigError(f"only plain Llama models are exported, not rope {rope!r} or layers with a bias")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)


def _base_tensors(model: Any, *, precision: Precision) -> dict[str, Any]:
    """Every tensor under llama.cpp's name. Norms stay float32, as llama.cpp's own converter leaves them."""
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    linear = torch.float16 if precision == "f16" else torch.float32
    tensors = {}
    for key, weight in model.state_dict().items():
        if key == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        layer = key.split(".")[-2]
        rows = interleaved(weight, heads=heads[layer]) if layer in heads else weight
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
    match = re.fullmatch(r"model\.layers\.(\d+)\.(?:\w+\.)?(\w+)\.weight", key)
    inner = {**LAYERS, **NORMS}
    if match is None or match[2] not in inner:
        raise ConfigError(f"a plain Llama has no tensor {key!r}; only such models are exported")
    return f"blk.{match[1]}.{inner[match[2]]}.weight"


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
        prog="python -m dirigent_gym.train.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="the PEFT adapter: adapter_config.json, adapter_model.safetensors")
    parser.add_argument("out", type=Path, help="the GGUF file to write")
    parser.add_argument("--base", type=Path, help="GGUF of the model it is for (default: the fetched smollm2-135m)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
