"""The child process of a local model: `python -m dirigent.workers.local_server`.

Reads one JSON line of settings from stdin, serves the model on a loopback port of the system's choosing,
prints one JSON line with that port, and ends when stdin does. A process of its own because xllamacpp in
process can neither cancel a generation nor survive a program that exits during one, and a crash here costs
one ask, not the program.

The key comes with the settings: neither the command line nor the environment shows it. Nobody outlives the
parent: stdin ends when the parent does, however it does, and on Linux the kernel sends SIGKILL on top, for
the second in which loading the model keeps the thread that watches stdin from running.

Knows nothing of workers or requests; `local.py` speaks to it over HTTP.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dirigent.errors import ConfigError
from dirigent.workers.local_merge import merged_file

BATCH_TOKENS = 64
"""Tokens of a prompt that are read at once. The server notices a cancelled request between batches only:
64 are about 0.3 s on two cores, and are read at nearly the speed of 512."""

COPY_AFTER_TOKENS = 3
"""The last tokens written that must stand somewhere before for those which followed them there to be guessed."""
COPY_TOKENS = 5
"""Tokens guessed at once. A subtask is largely copied from its question: a plan took 0.86 s in place of 1.17 (mean of
nine). What the model would not have written is dropped; only rounding can differ, in near ties."""

PR_SET_PDEATHSIG = 1


class ServerSettings(msgspec.Struct, frozen=True):
    """What the parent says on stdin."""

    weights: str
    key: str
    alias: str
    """What replies call the model: the path of the file is nobody's business."""
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
    """What the child says on stdout, once it can be called."""

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
    if os.getppid() != parent:  # it died before the kernel was told
        os._exit(1)


def _take_stdout() -> int:
    """Keep stdout for the one line that is promised; whatever llama.cpp prints goes to stderr."""
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

    Where one cannot be merged (no package `gguf`, no room on the disk), it is always on instead: the same, but slower.
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


if __name__ == "__main__":
    main()
