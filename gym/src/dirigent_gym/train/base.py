"""The base model and its tokenizer, read from the same GGUF file that users run.

Training on the de-quantised weights of that very file means that an adapter is fitted to what it will meet.
Prompts are built from the model's own chat template, the same in torch and in llama.cpp.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dirigent.errors import ConfigError
from dirigent.messages import Message

# The oneDNN of some torch builds believes a CPU's claim to AMX and dies of it; this keeps bf16 on AVX-512.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


END_OF_TURN = "<|im_end|>"
"""What ends every turn of the ChatML template, replies included."""


def load_base(gguf: Path, *, device: str | None = None, dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """Model and tokenizer from a GGUF file: bf16 on a GPU, float32 on a CPU, unless told otherwise."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype or (torch.bfloat16 if device == "cuda" else torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.padding_side = "left"
    # Not every release of transformers takes these two from the file. Models with another template end turns otherwise.
    if END_OF_TURN in tokenizer.get_vocab():
        tokenizer.eos_token = END_OF_TURN
    tokenizer.pad_token = tokenizer.eos_token
    with _without_bar():
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=dtype
        )
    # Saving and training are refused on a model that still says it is quantised.
    model.config.__dict__.pop("quantization_config", None)
    model.is_quantized = False
    model.hf_quantizer = None
    return model.to(device).eval(), tokenizer


def weights_file(name: str) -> Path:
    """A GGUF file by its path, or by the name of known weights that were fetched before."""
    from dirigent.workers.weights import KNOWN, cached

    if name in KNOWN:
        path = cached(name)
        if path is None:
            raise ConfigError(f"the weights {name} are not here yet; `dirigent pool pull` brings them")
        return path
    if not Path(name).is_file():
        raise ConfigError(f"base.weights is {name!r}, which is no file and none of: {', '.join(KNOWN)}")
    return Path(name)


@contextmanager
def _without_bar() -> Iterator[None]:
    """Inside, no bar shows how far the conversion of a GGUF file is. No setting of transformers turns it off."""
    from transformers import modeling_gguf_pytorch_utils as reading

    shown = reading.tqdm
    reading.tqdm = partial(shown, disable=True)
    try:
        yield
    finally:
        reading.tqdm = shown


def prompt_texts(tokenizer: Any, conversations: Sequence[Sequence[Message]]) -> list[str]:
    """Each conversation as the model reads it, up to where its reply begins."""
    turns = [[{"role": message.role, "content": message.text} for message in c] for c in conversations]
    return [tokenizer.apply_chat_template(t, tokenize=False, add_generation_prompt=True) for t in turns]


def encode(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text, with no special token added: the template has them all."""
    ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return ids
