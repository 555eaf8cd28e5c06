"""Fingerprint: a short name for everything in a worker's settings that shapes its answers.

The measured figures of a worker, and a policy learned from them, hold for one fingerprint: another model, system
message or
temperature under the same name is another worker. The address, the price and the limits of calls have no part in it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from dirigent.config.worker_config import WorkerConfig
from dirigent.workers.adapters import packaged
from dirigent.workers.weights import KNOWN

SHAPING = (
    "kind", "model", "temperature", "effort", "sampling", "system", "extra", "max_output_tokens", "subtask_only",
    "second_step", "role", "adapter", "replies",
)  # fmt: skip

SAMPLED_BYTES = 1 << 20
"""Read of each end of a file: a gigabyte of weights must not delay every start."""


def fingerprint(worker: WorkerConfig, *, folder: Path) -> str:
    """Returns sixteen hexadecimal digits; relative paths in the settings start at `folder`."""
    settings = {name: getattr(worker, name) for name in SHAPING}
    files = [_file_digest(folder / Path(worker.path).expanduser())] if worker.path else []
    if worker.kind == "local":
        known = worker.weights in KNOWN
        files.append(worker.weights if known else _file_digest(folder / Path(worker.weights).expanduser()))
    if worker.adapter:
        files.append(_file_digest(packaged().get(worker.adapter) or folder / Path(worker.adapter).expanduser()))
    text = msgspec.json.encode([settings, files], order="deterministic")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _file_digest(file: Path) -> str:
    """Returns a digest of a file's size and both of its ends; empty if it cannot be read, which its worker reports."""
    try:
        with file.open("rb") as content:
            size = content.seek(0, os.SEEK_END)
            content.seek(0)
            first = content.read(SAMPLED_BYTES)
            content.seek(max(0, size - SAMPLED_BYTES))
            return hashlib.blake2b(b"%d " % size + first + content.read(), digest_size=8).hexdigest()
    except OSError:
        return ""
