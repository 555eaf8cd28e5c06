"""Local: workers on one GGUF model that runs on this machine's CPU, each with a LoRA adapter or none.

A `LocalModel` holds the weights, the adapters and the child process that serves them; it starts on the
first ask and is shared by all its workers. A `Local` is one such worker: the openai wire over loopback,
plus the fields that only llama.cpp knows. Prompts are built by the child from the model's own chat
template.

Requests go to the slot that knows most of their prompt (`slots.py`). Those under the same adapter are
computed together; the server does not mix adapters, so others take turns.

Every reply is streamed, with or without an observer: the server notices a closed connection only when it writes
(measured: a cancelled request that is not streamed runs to its end). Retrying and metering belong to
`wrappers.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import secrets
import threading
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Event, Observe, Reply, Request, ignore
from dirigent.paths import home
from dirigent.workers.http import HttpClient, HttpWorker, Timeouts
from dirigent.workers.local_child import Child, Slots, spawn
from dirigent.workers.local_server import ServerSettings, physical_cores
from dirigent.workers.openai import Lora, OpenAIWire
from dirigent.workers.weights import KNOWN, Progress, fetch, known
from dirigent.workers.wire import HttpCall, uncarried
from dirigent.workers.worker import Ability, Price, WorkerInfo

ABILITIES: frozenset[Ability] = frozenset({"schema", "json_mode", "grammar", "seed", "stop"})

TIMEOUTS = Timeouts(connect_s=5.0, first_byte_s=120.0, chunk_s=60.0, total_s=900.0)
"""A CPU is slow but does not hang: it says how far it has read after every batch."""

CLOSED = "the local model was closed before the reply was whole"

SLOTS = 4
CONTEXT_TOKENS = 4096
"""Of each slot. Its memory is taken at the start, used or not."""
MERGED_SLOTS = 2
"""A process more should not take all the memory again: 92 MB a slot of 4,096 tokens on the default base."""


class Local:
    """A worker on a local model. Free of charge; returns replies without attempts, as `HttpWorker` does."""

    def __init__(
        self,
        model: LocalModel,
        *,
        name: str,
        adapter: str | None = None,
        about: str = "",
        skills: tuple[str, ...] = (),
        subtask_only: bool = False,
        timeout: Timeouts = TIMEOUTS,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = model
        self._adapter = model.adapter_id(adapter)
        self._timeout = timeout
        self._extra = dict(extra or {})
        """Fields that only llama.cpp knows, such as `min_p`."""
        self.info = WorkerInfo(
            name=name,
            about=about,
            kind="local",
            model=model.name if adapter is None else f"{model.name}+{Path(adapter).stem}",
            price=Price(),
            context_tokens=model.context_tokens,
            skills=skills,
            abilities=ABILITIES,
            subtask_only=subtask_only,
        )

    def __repr__(self) -> str:
        return f"Local({self.info.name!r}, {self.info.model!r})"

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        started, closings = time.monotonic(), self._model.closings
        try:
            _check(request)
            self._model.take_up()
            async with (
                _until(request.deadline),
                self._model.slots.lease(self._adapter, prompt_text(request)) as slot,
            ):
                reply = await self._ask_child(await self._model.running(closings), slot, request, observe)
        except WorkerError as error:
            closed = closings != self._model.closings
            raise _named(WorkerError(CLOSED) if closed else error, self.info.name) from error.__cause__
        return msgspec.structs.replace(reply, model=self.info.model, seconds=time.monotonic() - started)

    async def _ask_child(self, child: Child, slot: int, request: Request, observe: Observe) -> Reply:
        http = HttpWorker(
            self.info,
            _wire(self._adapter, slot, self._extra),
            self._model.client,
            base_url=f"http://127.0.0.1:{child.port}/v1",
            key=child.key,
            timeout=self._timeout,
        )
        try:
            return await http.ask(request, observe=_look_away if observe is ignore else observe)
        except WorkerError as error:
            if error.fault in ("connect", "reply") and (death := await child.death()):
                raise WorkerError(f"{death}; it starts again with the next ask", fault="connect") from None
            raise


class _LocalWire(OpenAIWire, frozen=True):
    """Chat completions over a connection of their own: the server drops idle ones after 5 s, sometimes in
    the very moment in which the next request is sent on them."""

    def build(self, request: Request, *, info: WorkerInfo, base_url: str, stream: bool) -> HttpCall:
        call = super().build(request, info=info, base_url=base_url, stream=stream)
        return msgspec.structs.replace(call, headers=call.headers | {"Connection": "close"})


def _wire(adapter: int | None, slot: int, extra: Mapping[str, Any]) -> _LocalWire:
    return _LocalWire(
        max_tokens_field="max_tokens",
        lora=None if adapter is None else (Lora(adapter),),
        # `return_progress`: the server writes after every batch of the prompt, and so notices a cancel.
        extra={**extra, "id_slot": slot, "cache_prompt": True, "return_progress": True},
    )


class LocalModel:
    """One GGUF file, its adapters, and the process that serves them. `close()` it, or `async with` it.

    `weights` is a path, or a known name that is fetched on the first ask. Adapters are LoRA files in GGUF, by
    the names that workers ask for them. One more may be `merged` into the weights (`local_merge.py`): every worker of
    this model has it, at no cost per token.
    """

    def __init__(
        self,
        weights: str | Path,
        *,
        adapters: Mapping[str, str | Path] | None = None,
        merged: str | Path | None = None,
        slots: int = SLOTS,
        context_tokens: int = CONTEXT_TOKENS,
        threads: int | None = None,
        cache: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        if importlib.util.find_spec("xllamacpp") is None:
            raise ConfigError("local models need xllamacpp: pip install 'dirigent[local]'")
        self._weights = _checked_weights(weights)
        self._adapters = {name: _checked_file(path, "adapter") for name, path in (adapters or {}).items()}
        self._merged = None if merged is None else _checked_file(merged, "adapter")
        self._threads = threads if threads is not None else physical_cores()
        self._cache = cache
        self._progress = progress
        self._start: asyncio.Task[Child] | None = None
        self.name = self._weights.stem if isinstance(self._weights, Path) else self._weights
        if self._merged is not None:
            self.name += f"+{self._merged.stem}"
        self.context_tokens = context_tokens
        self.slots = Slots(slots)
        self.client = HttpClient()
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where the child was started, and is watched and ended."""
        self._guard = threading.Lock()
        self.closings = 0
        """How often it was closed: who asked before is not served after."""

    def __repr__(self) -> str:
        return f"LocalModel({self.name!r}, adapters={list(self._adapters)})"

    async def __aenter__(self) -> LocalModel:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def adapter_id(self, name: str | None) -> int | None:
        """The adapter's place in the server's list."""
        if name is None:
            return None
        if name not in self._adapters:
            there = ", ".join(self._adapters) or "none"
            raise ConfigError(f"{self.name} has no adapter called {name!r}; there are: {there}")
        return list(self._adapters).index(name)

    def take_up(self) -> None:
        """Belong to the running event loop from now on; the one before must have ended, and the child with it."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        with self._guard:
            if self._loop is not None:
                self._let_go()
            self._loop, self.slots = loop, Slots(len(self.slots))

    def _let_go(self) -> None:
        """Of a loop that is closed. Most have ended the child before."""
        assert self._loop is not None
        if not self._loop.is_closed():
            raise WorkerError(
                f"the local model {self.name} belongs to another event loop, which still is open: "
                "give every thread a model of its own, or close it there first"
            )
        start, self._start = self._start, None
        if start is not None and not _ended(start) and start.done():
            start.result().kill()
        self._loop = None

    async def running(self, closings: int | None = None) -> Child:
        """Returns the child; starts one if there is none or the last one died. Simultaneous callers share one start.
        `closings` is how often the model had been closed when the call began: a call that waited for a slot meanwhile
        must not start a child that no code would close.
        """
        if closings not in (None, self.closings):
            raise WorkerError(CLOSED)
        self.take_up()
        if self._start is None or _ended(self._start):
            self.slots.forget()
            self._start = asyncio.create_task(self._launch())
        start = self._start
        await asyncio.wait({start})  # an ask that is cancelled does not take the start with it
        if start.cancelled():
            raise WorkerError(CLOSED)
        return start.result()

    async def close(self) -> None:
        """Stop the child and wait until it is gone. A later ask starts a new one."""
        if self._loop is not asyncio.get_running_loop():
            if self._loop is not None:
                self._let_go()
            return
        self.closings += 1
        start, self._start, self._loop = self._start, None, None
        if start is not None:
            start.cancel()  # has no effect on a start that is done
            await asyncio.wait({start})
            if not start.cancelled() and start.exception() is None:
                await start.result().stop()
        await self.client.close()  # last: the end of the child wakes the requests that still read from it

    async def _launch(self) -> Child:
        settings = ServerSettings(
            weights=str(await self._file()),
            key=secrets.token_urlsafe(32),
            alias=self.name,
            adapters=tuple(str(path) for path in self._adapters.values()),
            slots=len(self.slots),
            slot_context_tokens=self.context_tokens,
            merged="" if self._merged is None else str(self._merged),
            merged_folder=str((self._cache or home() / "weights") / "merged"),
            threads=self._threads,
        )
        return await spawn(settings)

    async def _file(self) -> Path:
        if isinstance(self._weights, Path):
            return self._weights
        try:
            return await fetch(self._weights, cache=self._cache, progress=self._progress)
        except ConfigError as error:
            raise WorkerError(str(error)) from None


def _ended(start: asyncio.Task[Child]) -> bool:
    if not start.done():
        return False
    return start.cancelled() or start.exception() is not None or start.result().process.returncode is not None


def prompt_text(request: Request) -> str:
    """The conversation as one text, for comparing beginnings only: the server applies the real template."""
    return "\n".join(f"{message.role}: {message.text}" for message in request.messages)


def _checked_weights(weights: str | Path) -> str | Path:
    if isinstance(weights, str) and weights in KNOWN:
        return weights
    path = Path(weights).expanduser()
    if isinstance(weights, str) and path.suffix != ".gguf":
        return known(weights).name  # raises, and names the nearest
    return _checked_file(path, "weights")


def _checked_file(path: str | Path, what: str) -> Path:
    found = Path(path).expanduser().resolve()
    if not found.is_file():
        raise ConfigError(f"{what}: there is no file {str(path)!r}")
    return found


def _check(request: Request) -> None:
    """Refuses fields that a small text model cannot honour, rather than ignore them."""
    if request.tools:
        raise uncarried("tools", "a local model calls none; give the step to another worker")
    if any(message.images for message in request.messages):
        raise uncarried("images", "a local model reads text only")
    if request.effort not in (None, "none"):
        raise uncarried("effort", f"a local model has no setting for {request.effort!r}")


@contextlib.asynccontextmanager
async def _until(deadline: float | None) -> AsyncIterator[None]:
    """Bound starting and waiting for a slot as well; the call itself has the wire's own time-outs."""
    left_s = None if deadline is None else deadline - time.monotonic()
    scope = asyncio.timeout(left_s)
    try:
        async with scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        raise WorkerError("the request's deadline passed before the reply was whole", fault="timeout") from None


def _look_away(event: Event) -> None:
    """Not `ignore`, so that the reply is streamed even without an observer."""


def _named(error: WorkerError, name: str) -> WorkerError:
    if error.worker == name:
        return error
    said = error.said and f"{name}: {error.said}"
    return WorkerError(f"{name}: {error}", said=said, worker=name, fault=error.fault, status=error.status)
