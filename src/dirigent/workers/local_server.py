"""The child process of a local model: `python -m dirigent.workers.local_server`.

Reads one JSON line of settings from stdin, serves the model on a loopback port of the system's choosing,
prints one JSON line with that port, and ends when stdin does. A process of its own because xllamacpp in
process can neither cancel a generation nor survive a program that exits during one, and a crash here costs
one ask, not the program.

The key comes with the settings: neither the command line nor the environment shows it. The child never outlives its
parent: stdin ends when the parent does, in any way, and on Linux the kernel sends SIGKILL too, for the second in which
loading the model keeps the thread that watches stdin from running. Before it serves, the child merges an adapter into
the weights if the settings name one (`merged_file`).

Knows nothing of workers or requests; `local.py` speaks to it over HTTP.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dirigent.errors import ConfigError

BATCH_TOKENS = 64
"""Tokens of a prompt that are read at once. The server notices a cancelled request between batches only:
64 are about 0.3 s on two cores, and are read at nearly the speed of 512."""

COPY_AFTER_TOKENS = 3
"""The last tokens written that must stand somewhere before for those which followed them there to be guessed."""
COPY_TOKENS = 5
"""Tokens guessed at once. A subtask is largely copied from its question: a plan took 0.86 s in place of 1.17 (mean of
nine). Guesses that the model would not have written are dropped; only rounding can differ, in near ties."""

PR_SET_PDEATHSIG = 1


class ServerSettings(msgspec.Struct, frozen=True):
    """The parent's settings, read from stdin."""

    weights: str
    key: str
    alias: str
    """The model's name in replies, so that they do not reveal the file's path."""
    adapters: tuple[str, ...] = ()
    slots: int = 1
    slot_context_tokens: int = 4096
    merged: str = ""
    """An adapter that is added into the weights; empty: none is."""
    merged_folder: str = ""
    """Where the sum is kept."""
    threads: int = 1
    """For reading prompts and checking guesses. One fewer writes, if there are more: see `writing_threads`."""


class Ready(msgspec.Struct, frozen=True):
    """The child's line on stdout, once it serves."""

    port: int


def main() -> None:
    parent = os.getppid()
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    answer_fd = _take_stdout()
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=ServerSettings)
    threading.Thread(target=_exit_at_eof, daemon=True).start()
    try:
        server = _serve(settings)
    except (ConfigError, ValueError) as error:  # of files that do not fit or are broken
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    except RuntimeError:  # llama.cpp has said why, in its own words, on stderr
        os._exit(1)
    port = urlsplit(server.listening_address).port
    if port is None:
        raise SystemExit(f"the server listens at {server.listening_address!r}, which has no port")
    os.write(answer_fd, msgspec.json.encode(Ready(port)) + b"\n")
    threading.Event().wait()


def _die_with(parent: int) -> None:
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel knew of it
        os._exit(1)


def _take_stdout() -> int:
    """Reserves stdout for the one promised line; llama.cpp's own output goes to stderr."""
    ours = os.dup(1)
    os.dup2(2, 1)
    return ours


def _exit_at_eof() -> None:
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)  # at once: an orderly exit would wait for a generation, or crash in it


def _serve(settings: ServerSettings) -> Any:
    from xllamacpp import CommonAdapterLoraInfo, CommonParams, Server, common_speculative_type

    weights, scales = _files(settings)
    params = CommonParams()
    params.model.path = weights
    params.model_alias = {settings.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings.key]
    params.cors_origins = ""
    params.ui = False
    params.n_parallel = settings.slots
    params.n_ctx = settings.slots * settings.slot_context_tokens
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.cpuparams.n_threads = writing_threads(settings.threads)
    params.cpuparams_batch.n_threads = settings.threads
    params.speculative.types = [common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    params.speculative.ngram_simple.size_n = COPY_AFTER_TOKENS
    params.speculative.ngram_simple.size_m = COPY_TOKENS
    params.n_gpu_layers = 0
    params.fit_params = False  # would shrink the context silently
    params.warmup = False  # half a second of every start
    params.verbosity = 1
    # The server's store of old prompts is found by their tokens alone, whichever adapter computed them.
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    adapters = []
    for path, scale in scales.items():
        adapter = CommonAdapterLoraInfo()
        adapter.path, adapter.scale = path, scale
        adapters.append(adapter)
    params.lora_adapters = adapters
    return Server(params)


def _files(settings: ServerSettings) -> tuple[str, dict[str, float]]:
    """The weights, and the adapters with their scales: off, until a request switches one on.

    If one cannot be merged (no package `gguf`, no room on the disk), it is always on instead: the same, but slower.
    """
    scales = dict.fromkeys(settings.adapters, 0.0)
    if not settings.merged:
        return settings.weights, scales
    adapter = Path(settings.merged)
    try:
        merged = merged_file(Path(settings.weights), adapter, folder=Path(settings.merged_folder))
    except (OSError, ImportError) as error:
        print(f"{adapter.name} is not merged: {error}", file=sys.stderr)
        return settings.weights, scales | {settings.merged: 1.0}
    return str(merged), scales


def writing_threads(threads: int) -> int:
    """One core is left to the program that takes the tokens, and to others.

    Writing a token means hundreds of meetings of all threads, and each waits for the one whose core was taken. Measured
    on two cores without guesses: idle 16 ms a token with two threads and 22 with one; beside a busy program the plan
    took 3.0 s with two and 1.4 s with one.
    """
    return max(1, threads - 1)


def physical_cores() -> int:
    """Cores this process may use: hyper-threads counted once, a container's quota respected."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = {_siblings(cpu) for cpu in allowed}
    return max(1, min(len(cores), _quota_cores()))


def _siblings(cpu: int) -> str:
    """The hyper-threads that share a core with this one, as the kernel lists them."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def _quota_cores() -> int:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):  # no such file, or `max`: no quota
        return os.cpu_count() or 1


# ---- the model with an adapter added in ----------------------------------------------------------------------


FORM = "q8-1"
"""Part of every file's name: a file that was made in another way has another name."""
UNUSED_S = 7 * 24 * 3600.0
"""A file that was not used for so long is deleted when the next one is made. Its time is that of its last use."""


def merged_file(weights: Path, adapter: Path, *, folder: Path) -> Path:
    """Return the file of the model with the adapter added in; made once, and kept.

    An adapter beside its base costs four more small operations a matrix, 840 a token, a fifth of the time; llama.cpp
    has no fast routine for the 4-bit form of the default base (Q4_1) either. Added in, and kept in 8 bits (Q8_0),
    neither is paid: each number is within 0.4% of the largest of its 32 neighbours, so only near ties between tokens
    can fall otherwise. Measured on two cores with the conductor: a tenth to a third less CPU a plan. The price is a
    process and a file of its own (145 MB for the default base), so it is for one adapter that writes much.
    """
    name = f"{weights.stem}+{adapter.stem}"
    # Named after its sources, so it is never out of date.
    merged = folder / f"{name}.{_digest(weights, adapter)[:16]}.{FORM}.gguf"
    if not merged.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f"{name}.lock"):
            if not merged.exists():  # another process made it while we waited
                _remove_unused(folder, name)
                _make(weights, adapter, merged)
    with contextlib.suppress(OSError):  # a folder that may only be read is no fault
        os.utime(merged)
    return merged


def _digest(*files: Path) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time. The lock dies with its holder, so that a killed process blocks no other."""
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_unused(folder: Path, name: str) -> None:
    """Deletes files of replaced adapters of this name. Not at once: a process may be about to open one."""
    for old in folder.glob(f"{glob.escape(name)}.*.gguf"):
        if time.time() - old.stat().st_mtime > UNUSED_S:
            old.unlink()


def _make(weights: Path, adapter: Path, merged: Path) -> None:
    """Whole or not at all: the file gets its name when it is on the disk."""
    partial = merged.with_name(merged.name + ".partial")
    try:
        _write(weights, adapter, partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(merged)
    except BaseException:
        partial.unlink(missing_ok=True)  # it may be what fills the disk
        raise


def _write(weights: Path, adapter: Path, out: Path) -> None:
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType, quants

    base, changes = GGUFReader(weights), _changes(adapter)
    writer = GGUFWriter(out, base.fields["general.architecture"].contents())
    for field in base.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue  # the writer's own
        value = int(LlamaFileType.MOSTLY_Q8_0) if field.name == "general.file_type" else field.contents()
        writer.add_key_value(field.name, value, field.types[0], sub_type=field.types[-1] if field.types[1:] else None)
    for tensor in base.tensors:
        if tensor.name in changes:
            matrix = quants.dequantize(tensor.data, tensor.tensor_type)
            numbers = quants.quantize(_sum(matrix, *changes.pop(tensor.name)), GGMLQuantizationType.Q8_0)
            writer.add_tensor(tensor.name, numbers, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    if changes:
        raise ConfigError(f"{weights.name} has no {next(iter(changes))}: {adapter.name} is for another model")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


Change = tuple[Any, Any, float]
"""`lora_a`, `lora_b`, and how much of their product is added."""


def _changes(adapter: Path) -> dict[str, Change]:
    """The matrices that an adapter adds to its base, by name."""
    from gguf import GGUFReader, quants

    reader = GGUFReader(adapter)
    halves = {tensor.name: quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    alpha = reader.fields.get("adapter.lora.alpha")
    names = dict.fromkeys(name.removesuffix(".lora_a").removesuffix(".lora_b") for name in halves)
    return {name: _change(name, halves, float(alpha.contents()) if alpha else 0.0) for name in names}


def _change(name: str, halves: Mapping[str, Any], alpha: float) -> Change:
    try:
        a, b = halves[f"{name}.lora_a"], halves[f"{name}.lora_b"]
    except KeyError as error:
        raise ConfigError(f"the adapter has something for {name}, but no {error}") from None
    # As llama.cpp scales: by alpha over the rank, or not at all without an alpha.
    return a, b, alpha / a.shape[0] if alpha else 1.0


def _sum(matrix: Any, a: Any, b: Any, scale: float) -> Any:
    if (b.shape[0], a.shape[-1]) != matrix.shape or a.shape[0] != b.shape[-1]:
        raise ConfigError(f"an adapter of {b.shape} x {a.shape} does not fit a matrix of {matrix.shape}")
    return matrix + scale * (b @ a)


if __name__ == "__main__":
    main()
