"""Child: the process that serves a local model, from its start to its end, and the places in it.

`spawn` hands over the settings on stdin (the key among them), waits for the line that says where the server
listens, and gives the child an owner. A failed start leaves no process behind. The last lines of its stderr are kept,
because they alone explain a crash.

`Slots` are the places of the server; requests wait here for one. A slot remembers the last prompt it read: a prompt
with the same beginning costs only its end. The server itself would give a request to any slot that has a tenth of its
prompt, and a short question would then overwrite a planner's long prefix. So `choose_slot` chooses.

Knows nothing of requests or adapters; the other side of the pipe is `local_server.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence

import msgspec

from dirigent.errors import ConfigError, WorkerError
from dirigent.workers.local_server import Ready, ServerSettings
from dirigent.workers.secret import Secret

START_S = 120.0
"""Loading 100 MB takes a second; large models on cold disks take a minute."""
STOP_S = 3.0
DEATH_S = 0.5
STDERR_BYTES = 1500


async def spawn(settings: ServerSettings) -> Child:
    """Start a server process and wait until it can be called."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # do not import from the user's current folder
        "-m",
        "dirigent.workers.local_server",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_child_environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    said = _Tail(process.stderr)
    try:
        async with asyncio.timeout(START_S):
            process.stdin.write(msgspec.json.encode(settings) + b"\n")
            line = await process.stdout.readline()
        if not line:
            await process.wait()
            # The file is named here: llama.cpp logs from a thread, and its last words are not always written in time.
            raise WorkerError(f"it did not start: {await _epitaph(process, said)} (weights: {settings.weights})")
        ready = msgspec.json.decode(line, type=Ready)
    except BaseException as error:  # cancelled included: no process without an owner
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if isinstance(error, TimeoutError):
            late = f"the local model's process was not ready within {START_S:g} s"
            raise WorkerError(late, fault="timeout") from None
        raise
    return Child(process, port=ready.port, key=Secret(settings.key), said=said)


def _child_environment() -> dict[str, str]:
    """Ours, without other providers' keys, and with threads that soon sleep when they wait for one another.

    OpenMP's threads spin by default, and on busy cores take the time from the very thread they wait for. Measured
    on two cores: idle 75 tokens a second (90 by default, 32 without any spinning); beside two busy programs 20,
    where the default did not write 20 tokens in 20 seconds.
    """
    kept = {name: value for name, value in os.environ.items() if not name.upper().endswith(("_KEY", "_TOKEN"))}
    return {"GOMP_SPINCOUNT": "1000"} | kept


class Child:
    """A running server: its address, its key, and its end."""

    def __init__(self, process: asyncio.subprocess.Process, *, port: int, key: Secret, said: _Tail) -> None:
        self.port = port
        self.key = key
        self.process = process
        self._said = said

    async def death(self) -> str:
        """How it died; empty if it lives. A killed process takes a moment to be known as such."""
        try:
            async with asyncio.timeout(DEATH_S):
                await self.process.wait()
        except TimeoutError:
            return ""
        return await _epitaph(self.process, self._said)

    def kill(self) -> None:
        """End it from outside its event loop, which is closed and can no longer wait for it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def stop(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        await self._said.ended()


class _Tail:
    """Reads a process's stderr, so that it never blocks, and keeps the end of it for an error message."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._kept = b""
        self._task = asyncio.create_task(self._read(stream))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(STDERR_BYTES):
            self._kept = (self._kept + chunk)[-STDERR_BYTES:]

    async def ended(self) -> str:
        """Returns the kept lines, once the process has closed its end."""
        await asyncio.wait({self._task})  # where its loop ends, it was cancelled
        return self._kept.decode(errors="replace").strip()


async def _epitaph(process: asyncio.subprocess.Process, said: _Tail) -> str:
    code = process.returncode or 0
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    words = await said.ended()
    return f"the local model's process {how}" + (f", saying: {words}" if words else "")


# ---- the places of the server --------------------------------------------------------------------------------


SHARED_CHARS = 256
"""A shorter common beginning does not decide the slot: reading it again takes half a second."""


class Slot(msgspec.Struct, frozen=True):
    """The content of one place of the server."""

    index: int
    adapter: int | None = None
    prompt: str = ""


class Slots:
    """The places of a server. Each serves one request at a time; requests wait in order."""

    def __init__(self, count: int) -> None:
        if not 1 <= count <= 64:
            raise ConfigError(f"slots must be 1 to 64, not {count}")
        self._count = count
        self._turn = asyncio.Semaphore(count)
        self._idle = [Slot(index) for index in range(count)]

    def __len__(self) -> int:
        return self._count

    @contextlib.asynccontextmanager
    async def lease(self, adapter: int | None, prompt: str) -> AsyncIterator[int]:
        """Hold a slot and yield its number. The slot remembers this prompt afterwards."""
        async with self._turn:
            slot = choose_slot(self._idle, adapter=adapter, prompt=prompt)
            self._idle.remove(slot)
            try:
                yield slot.index
            finally:
                self._idle.append(Slot(slot.index, adapter, prompt))

    def forget(self) -> None:
        """Mark all slots as empty, after a new server has started."""
        self._idle = [Slot(slot.index) for slot in self._idle]


def choose_slot(idle: Sequence[Slot], *, adapter: int | None, prompt: str) -> Slot:
    """Return the slot with the longest common beginning; if none has enough, the slot with the shortest prompt.

    A prompt that one adapter has read is of no use to another adapter: the server drops it.
    """
    shared = {slot.index: _shared_chars(slot.prompt, prompt) if slot.adapter == adapter else 0 for slot in idle}
    best = max(idle, key=lambda slot: shared[slot.index])
    if shared[best.index] >= SHARED_CHARS:
        return best
    return min(idle, key=lambda slot: len(slot.prompt))


def _shared_chars(left: str, right: str) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
