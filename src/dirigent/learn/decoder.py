"""A decoder of the Llama or Qwen2 family, as one function of its weights: it samples, and gradients pass through it.

Written for small models on one GPU, where many plans are sampled for each prompt. A prompt is read once, and all rows
of its group attend to the same keys and values. The adapter is added to the weights before a pass, so sampling and
learning use the same numbers, and a layer is one matrix product.

Names end in their dimensions: P prompts, G rows of a prompt, B = P * G rows, T tokens, H heads, K key heads,
D numbers of a head, S tokens of a prompt, C tokens of a completion.
"""

# ruff: noqa: N803, N806, N812, N815

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import torch.nn.functional as F

from dirigent.errors import ConfigError

LINEAR = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
"""The linear layers of a block, as transformers names them. An adapter has two small matrices for each."""


class Shape(msgspec.Struct, frozen=True):
    """What the code must know of a model besides its weights."""

    layers: int
    heads: int
    key_heads: int
    head_size: int
    norm_eps: float
    rope_theta: float

    @classmethod
    def of(cls, config: Any) -> Shape:
        """The shape in a transformers config; raises ConfigError for a family this decoder does not compute."""
        if config.model_type not in ("llama", "qwen2"):
            raise ConfigError(f"a base must be of the llama or qwen2 family, not {config.model_type!r}")
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type", "default") != "default":
            raise ConfigError(f"rotary positions of type {rope['rope_type']!r} are not supported; only 'default' is")
        theta = rope.get("rope_theta") or config.rope_theta
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            key_heads=config.num_key_value_heads,
            head_size=size,
            norm_eps=config.rms_norm_eps,
            rope_theta=float(theta),
        )


class Adapter:
    """LoRA matrices for linear layers, in full precision: the delta of a weight is `scale * b @ a`.

    The matrices of all blocks are stacked, so that a model of thirty blocks takes seven products and not two hundred.
    An adapter that leaves a linear layer out leaves it out in every block.
    """

    def __init__(self, a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor], *, rank: int, alpha: float):
        self.a = dict(a)
        """By linear layer: [blocks, rank, width in]."""
        self.b = dict(b)
        """By linear layer: [blocks, width out, rank]."""
        self.rank = rank
        self.alpha = alpha

    @classmethod
    def fresh(
        cls,
        weights: Mapping[str, torch.Tensor],
        shape: Shape,
        *,
        rank: int,
        alpha: float,
        seed: int,
        parts: Sequence[str] = LINEAR,
    ) -> Adapter:
        """A new adapter for these linear layers, which changes nothing yet: `a` is random, `b` is zero."""
        generator = torch.Generator().manual_seed(seed)
        a, b = {}, {}
        for part in parts:
            first = weights[f"model.layers.0.{part}.weight"]
            out, width = first.shape
            drawn = torch.rand(shape.layers, rank, width, generator=generator) * 2 - 1
            a[part] = (drawn / math.sqrt(width)).to(first.device)  # as PEFT draws it: Kaiming with a slope of sqrt(5)
            b[part] = torch.zeros(shape.layers, out, rank, device=first.device)
        return cls(a, b, rank=rank, alpha=alpha)

    def delta(self, part: str) -> torch.Tensor:
        """What the adapter adds to this linear layer: [blocks, width out, width in]."""
        return (self.b[part] @ self.a[part]) * (self.alpha / self.rank)

    def parameters(self) -> Iterator[torch.Tensor]:
        yield from self.a.values()
        yield from self.b.values()

    def copy(self) -> Adapter:
        """A copy that shares no memory and takes no gradient."""
        return Adapter(
            {part: stacked.detach().clone() for part, stacked in self.a.items()},
            {part: stacked.detach().clone() for part, stacked in self.b.items()},
            rank=self.rank,
            alpha=self.alpha,
        )

    def save(self, folder: Path, *, base: str) -> None:
        """Write the adapter as PEFT does, so that PEFT and the GGUF export read it."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for letter, matrices in (("A", self.a), ("B", self.b)):
            for part, stacked in matrices.items():
                for i, matrix in enumerate(stacked.detach().to("cpu", torch.float16)):
                    tensors[f"base_model.model.model.layers.{i}.{part}.lora_{letter}.weight"] = matrix.contiguous()
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": sorted(part.rsplit(".", 1)[1] for part in self.a),
        }
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path, *, device: str) -> Adapter:
        """Read what `save` or PEFT wrote."""
        from safetensors.torch import load_file

        config = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors")
        parts = [part for part in LINEAR if any(f".{part}.lora_A." in name for name in tensors)]
        layers = sum(f".{parts[0]}.lora_A." in name for name in tensors)

        def stacked(part: str, letter: str) -> torch.Tensor:
            names = [f"base_model.model.model.layers.{i}.{part}.lora_{letter}.weight" for i in range(layers)]
            return torch.stack([tensors[name] for name in names]).to(device, torch.float32)

        a = {part: stacked(part, "A") for part in parts}
        b = {part: stacked(part, "B") for part in parts}
        return cls(a, b, rank=config["r"], alpha=config["lora_alpha"])


class Read(NamedTuple):
    """What reading prompts leaves behind: keys and values of each layer, the last hidden state of each prompt."""

    keys: list[torch.Tensor]
    """PKSD of each layer."""
    values: list[torch.Tensor]
    last_PM: torch.Tensor
    lengths_P: torch.Tensor


class Decoder:
    """The model with its adapter added: made anew for every step, because the adapter has changed since."""

    def __init__(self, weights: Mapping[str, torch.Tensor], shape: Shape, adapter: Adapter | None = None) -> None:
        self.shape = shape
        self.embedding = weights["model.embed_tokens.weight"]
        self.head = weights.get("lm_head.weight", self.embedding)
        self.norm = weights["model.norm.weight"]
        self.dtype = self.embedding.dtype
        self.device = self.embedding.device
        size = shape.head_size
        inverse = torch.arange(0, size, 2, device=self.device).float() / size
        self._frequencies = shape.rope_theta**-inverse

        def stacked(part: str) -> torch.Tensor:
            plain = torch.stack([weights[f"model.layers.{i}.{part}.weight"] for i in range(shape.layers)])
            if adapter is None or part not in adapter.a:
                return plain
            return (plain.float() + adapter.delta(part)).to(self.dtype)

        def bias(layer: int) -> torch.Tensor | None:
            names = [f"model.layers.{layer}.self_attn.{letter}_proj.bias" for letter in "qkv"]
            return torch.cat([weights[name] for name in names]) if names[0] in weights else None

        qkv = torch.cat([stacked(f"self_attn.{letter}_proj") for letter in "qkv"], dim=1).unbind()
        gate_up = torch.cat([stacked("mlp.gate_proj"), stacked("mlp.up_proj")], dim=1).unbind()
        out, down = stacked("self_attn.o_proj").unbind(), stacked("mlp.down_proj").unbind()
        self._layers = [
            _Layer(
                before_attention=weights[f"model.layers.{i}.input_layernorm.weight"],
                qkv=qkv[i],
                qkv_bias=bias(i),
                out=out[i],
                before_mlp=weights[f"model.layers.{i}.post_attention_layernorm.weight"],
                gate_up=gate_up[i],
                down=down[i],
            )
            for i in range(shape.layers)
        ]

    def read(self, prompts: Sequence[Sequence[int]]) -> Read:
        """Read prompts side by side. They are padded behind their end, where nothing attends to the padding."""
        lengths_P = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        ids_PS = _padded(prompts, self.device)
        turns = self._turns(torch.arange(ids_PS.shape[1], device=self.device)[None])
        x = self.embedding[ids_PS]
        keys, values = [], []
        for layer in self._layers:
            q, k, v = self._qkv(x, layer, turns)
            repeats = self.shape.heads // self.shape.key_heads
            wide = (k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1))
            found = F.scaled_dot_product_attention(q, *wide, is_causal=True)
            x = self._after_attention(x, found, layer)
            keys.append(k)
            values.append(v)
        last_PM = x[torch.arange(len(prompts), device=self.device), lengths_P - 1]
        return Read(keys, values, last_PM, lengths_P)

    def extend(
        self,
        read: Read,
        ids_BT: torch.Tensor,
        columns_T: torch.Tensor,
        own: list[tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> torch.Tensor:
        """Hidden states of tokens that follow the prompts: rows of one prompt stand next to one another.

        `columns_T` counts tokens from the end of the prompt. `own` holds keys and values of what rows said before, a
        pair [B, K, C, D] a layer; these tokens are written to their columns. Without it the tokens are the first.
        """
        group = len(ids_BT) // len(read.lengths_P)
        turns = self._turns(read.lengths_P.repeat_interleave(group)[:, None] + columns_T)
        longest = read.keys[0].shape[2]
        beyond = torch.arange(longest, device=self.device)[None] >= read.lengths_P[:, None]
        prompt_bias_PS = torch.zeros_like(beyond, dtype=torch.float).masked_fill(beyond, float("-inf"))
        width = ids_BT.shape[1] if own is None else own[0][0].shape[2]
        later = torch.arange(width, device=self.device)[None] > columns_T[:, None]
        own_bias_TC = torch.zeros_like(later, dtype=torch.float).masked_fill(later, float("-inf"))
        x = self.embedding[ids_BT]
        for index, layer in enumerate(self._layers):
            q, k, v = self._qkv(x, layer, turns)
            if own is not None:
                k, v = own[index][0].index_copy_(2, columns_T, k), own[index][1].index_copy_(2, columns_T, v)
            found = _attend(q, read.keys[index], read.values[index], k, v, prompt_bias_PS, own_bias_TC)
            x = self._after_attention(x, found, layer)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(self._normed(hidden, self.norm), self.head).float()

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.shape.norm_eps)

    def _turns(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions.float()[..., None] * self._frequencies
        angles = torch.cat([angles, angles], -1)[:, None]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def _qkv(
        self, x: torch.Tensor, layer: _Layer, turns: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        shape = self.shape
        rows, tokens, _ = x.shape
        qkv = F.linear(self._normed(x, layer.before_attention), layer.qkv, layer.qkv_bias)
        heads = qkv.view(rows, tokens, -1, shape.head_size).transpose(1, 2)
        q, k, v = heads.split([shape.heads, shape.key_heads, shape.key_heads], 1)
        return _turned(q, *turns), _turned(k, *turns), v

    def _after_attention(self, x: torch.Tensor, found_BHTD: torch.Tensor, layer: _Layer) -> torch.Tensor:
        x = x + F.linear(found_BHTD.transpose(1, 2).flatten(2), layer.out)
        gate, up = F.linear(self._normed(x, layer.before_mlp), layer.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, layer.down)


class _Layer(NamedTuple):
    before_attention: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    out: torch.Tensor
    before_mlp: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


def logprobs(
    decoder: Decoder, prompts: Sequence[Sequence[int]], completions_PG: Sequence[Sequence[Sequence[int]]]
) -> torch.Tensor:
    """The log-probability of every token of every completion, row after row, in one flat tensor.

    All groups have the same size. Gradients reach the adapter that the decoder was made with.
    """
    group = len(completions_PG[0])
    rows = [list(ids) for completions in completions_PG for ids in completions]
    ids_BT = _padded(rows, decoder.device)
    read = decoder.read(prompts)
    first = read.last_PM.repeat_interleave(group, 0)[:, None]
    columns = torch.arange(ids_BT.shape[1] - 1, device=decoder.device)
    later = decoder.extend(read, ids_BT[:, :-1], columns) if len(columns) else first[:, :0]
    lengths = torch.tensor([len(row) for row in rows], device=decoder.device)
    real = torch.arange(ids_BT.shape[1], device=decoder.device)[None] < lengths[:, None]
    logits = decoder.logits(torch.cat([first, later], 1)[real])
    return logits.gather(1, ids_BT[real][:, None])[:, 0] - logits.logsumexp(-1)


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([list(row) + [0] * (longest - len(row)) for row in rows], device=device)


def _turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


def _attend(
    q_BHTD: torch.Tensor,
    prompt_keys_PKSD: torch.Tensor,
    prompt_values_PKSD: torch.Tensor,
    own_keys_BKCD: torch.Tensor,
    own_values_BKCD: torch.Tensor,
    prompt_bias_PS: torch.Tensor,
    own_bias_TC: torch.Tensor,
) -> torch.Tensor:
    """Attention of rows to their prompt and to what they said themselves. Rows of one prompt, and heads that share a
    key head, are to the prompt's keys what more queries of one sequence would be: nothing is copied for them."""
    rows, heads, tokens, size = q_BHTD.shape
    prompts, key_heads, longest, _ = prompt_keys_PKSD.shape
    group, repeats = rows // prompts, heads // key_heads
    # [P, G, K, R, T, D] is how a query is addressed; prompts want [P, K, G R T, D], own tokens [B, K, R T, D].
    q = (q_BHTD * size**-0.5).view(prompts, group, key_heads, repeats, tokens, size)
    to_prompt = q.transpose(1, 2).reshape(prompts, key_heads, -1, size) @ prompt_keys_PKSD.transpose(2, 3)
    to_prompt = to_prompt.float() + prompt_bias_PS[:, None, None]
    to_prompt = to_prompt.view(prompts, key_heads, group, repeats, tokens, longest).transpose(1, 2)
    to_own = q.reshape(rows, key_heads, -1, size) @ own_keys_BKCD.transpose(2, 3)
    to_own = to_own.float().view(prompts, group, key_heads, repeats, tokens, -1) + own_bias_TC
    weights = torch.cat([to_prompt, to_own], -1).softmax(-1).to(q.dtype)
    of_prompt, of_own = weights.split([longest, own_keys_BKCD.shape[2]], -1)
    from_prompt = of_prompt.transpose(1, 2).reshape(prompts, key_heads, -1, longest) @ prompt_values_PKSD
    from_prompt = from_prompt.view(prompts, key_heads, group, repeats, tokens, size).transpose(1, 2)
    from_own = of_own.reshape(rows, key_heads, repeats * tokens, -1) @ own_values_BKCD
    found = from_prompt + from_own.view(prompts, group, key_heads, repeats, tokens, size)
    mixed: torch.Tensor = found.reshape(rows, heads, tokens, size)
    return mixed
