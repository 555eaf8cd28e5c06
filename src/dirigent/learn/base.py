"""The base model of a conductor: weights, shape and tokenizer, read from the same GGUF file that users run.

Training on the de-quantised weights of that very file fits an adapter to what it will meet. Reading a GGUF file takes
a minute for a billion parameters, so `save` keeps the result and `load` reads it back in seconds.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from dirigent.learn.decoder import Shape
from dirigent.messages import Message

# The oneDNN of some torch builds believes a CPU's claim to AMX and crashes; this keeps bf16 on AVX-512.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

END_OF_TURN = "<|im_end|>"
"""What ends every turn of the ChatML template, replies included."""


class Base:
    """Frozen weights, their shape, and the tokenizer that goes with them."""

    def __init__(self, name: str, weights: dict[str, torch.Tensor], shape: Shape, tokenizer: Any) -> None:
        self.name = name
        self.weights = weights
        self.shape = shape
        self.tokenizer = tokenizer
        end = tokenizer.convert_tokens_to_ids(END_OF_TURN) if END_OF_TURN in tokenizer.get_vocab() else None
        self.end: int = tokenizer.eos_token_id if end is None else end
        self._ids = functools.lru_cache(maxsize=16_384)(self._encoded)

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.weights.values())

    def prompt_ids(self, messages: Sequence[Message], opening: str = "") -> list[int]:
        """The conversation as the model reads it, up to where its reply begins, or goes on after `opening`."""
        turns = [{"role": message.role, "content": message.text} for message in messages]
        text = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return list(self._ids(text + opening))

    def _encoded(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def reply_ids(self, text: str) -> list[int]:
        """A whole reply, with the token that ends its turn."""
        return [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.end]

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode([i for i in ids if i != self.end], skip_special_tokens=True))

    def save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: tensor.cpu().contiguous() for name, tensor in self.weights.items()}, folder / "base.safetensors"
        )
        self.tokenizer.save_pretrained(folder)
        (folder / "shape.json").write_bytes(msgspec.json.encode({"name": self.name, "shape": self.shape}))

    @classmethod
    def load(cls, folder: Path, *, device: str | None = None) -> Base:
        """Read what `save` wrote."""
        from safetensors.torch import load_file
        from transformers import AutoTokenizer

        class Saved(msgspec.Struct):
            name: str
            shape: Shape

        saved = msgspec.json.decode((folder / "shape.json").read_bytes(), type=Saved)
        device, dtype = placed(device)
        weights = {name: t.to(device, dtype) for name, t in load_file(folder / "base.safetensors").items()}
        return cls(saved.name, weights, saved.shape, AutoTokenizer.from_pretrained(folder))

    @classmethod
    def from_gguf(cls, file: Path, *, device: str | None = None) -> Base:
        """De-quantise a GGUF file: bf16 on a GPU, float32 on a CPU."""
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        device, dtype = placed(device)
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True), dtype=dtype
        )
        shape = Shape.of(model.config)
        weights = {name: tensor.to(device, dtype) for name, tensor in model.state_dict().items()}
        if model.config.tie_word_embeddings:
            weights.pop("lm_head.weight", None)
        return cls(file.stem, weights, shape, tokenizer)


def placed(device: str | None) -> tuple[str, torch.dtype]:
    """The device to use, a GPU where there is one, and the precision that suits it."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return device, torch.bfloat16 if device.startswith("cuda") else torch.float32
