"""Writes the smallest LoRA adapter that llama.cpp loads, so that tests need no training and no extra package.

The layout is GGUF version 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). The adapter adds a
rank-one matrix to the last feed-forward layer of SmolLM2-135M; with a large one the model babbles, which is
all that a test needs to see.
"""

from __future__ import annotations

import random
import struct
from array import array
from pathlib import Path

INPUT, OUTPUT, LAST_LAYER = 1536, 576, 29
STRING, FLOAT32 = 8, 6
ALIGNMENT = 32


def write_adapter(path: Path, *, size: float, seed: int = 0) -> Path:
    rng = random.Random(seed)
    name = f"blk.{LAST_LAYER}.ffn_down.weight"
    tensors = {
        f"{name}.lora_a": (INPUT, 1, [rng.gauss(0, size) for _ in range(INPUT)]),
        f"{name}.lora_b": (1, OUTPUT, [rng.gauss(0, 1) for _ in range(OUTPUT)]),
    }
    fields = [("general.architecture", "llama"), ("general.type", "adapter"), ("adapter.type", "lora")]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields) + 1)
    for key, text in fields:
        head += _text(key) + struct.pack("<I", STRING) + _text(text)
    head += _text("adapter.lora.alpha") + struct.pack("<If", FLOAT32, 1.0)
    body = b""
    for tensor, (columns, rows, values) in tensors.items():
        head += _text(tensor) + struct.pack("<IQQIQ", 2, columns, rows, 0, len(body))
        body += _padded(array("f", values).tobytes())
    path.write_bytes(_padded(head) + body)
    return path


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % ALIGNMENT)
