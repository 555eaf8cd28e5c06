"""Shared by commands that call workers: open the pool, fetch weights, watch a run and store its trace.

Only such commands import this module, when they run.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Container, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from dirigent.cli.output import say, short
from dirigent.conduct import Conductor
from dirigent.config.file import Config, Loaded
from dirigent.config.runtime import Runtime, load, open_runtime, open_store
from dirigent.errors import ConfigError, DirigentError
from dirigent.messages import Event, Message
from dirigent.run.resume import RunState
from dirigent.run.trace import RunEnded, Trace
from dirigent.show import LiveRun, cost_text, seconds_text
from dirigent.workers.weights import KNOWN, cached, fetch


@asynccontextmanager
async def open_pool(config: Path | None) -> AsyncIterator[Runtime]:
    """Yields the configured pool, after fetching the missing weights of usable local workers."""
    async with open_runtime(await load(config)) as runtime:
        if runtime.loaded.note:
            say(f"note: {runtime.loaded.note}")
        await fetch_weights(runtime.loaded, unusable=runtime.problems)
        yield runtime


async def check_workers(loaded: Loaded) -> None:
    """Raises ConfigError if a worker is not usable, before weights are fetched in vain."""
    async with open_runtime(loaded) as runtime:
        if runtime.problem:
            raise ConfigError(runtime.problem)


async def watched_run(
    conductor: Conductor, question: str | Sequence[Message], *, config: Config, resume: RunState | None = None
) -> Trace:
    """Runs a question, shows the plan and its steps live, and stores the trace even of a failed run."""
    ended: list[Trace] = []
    try:
        with LiveRun() as live:

            def observe(event: Event) -> None:
                if isinstance(event, RunEnded):
                    ended.append(event.trace)
                live(event)

            trace = await conductor.run(question, observe=observe, resume=resume)
    except asyncio.CancelledError:
        for cut in ended:
            await keep(cut, config)
            say(f"cancelled: spent {cost_text(cut)} · trace {short(cut.id)}")
        raise
    await keep(trace, config)
    return trace


async def keep(trace: Trace, config: Config) -> None:
    """Stores a trace; a failing store only prints a warning."""
    try:
        async with open_store(config) as store:
            await store.save(trace)
    except DirigentError as error:
        say(f"warning: the trace was not stored: {error}")


def known_weights(loaded: Loaded, *, unusable: Container[str] = ()) -> list[str]:
    """Returns the weights of usable local workers that can be fetched, each once."""
    workers = [worker for worker in loaded.config.worker if worker.kind == "local" and worker.name not in unusable]
    return [name for name in dict.fromkeys(worker.weights for worker in workers) if name in KNOWN]


async def fetch_weights(loaded: Loaded, *, unusable: Container[str] = ()) -> None:
    """Fetches missing weights; shows their size first, then the progress, the rate and the time left."""
    for name in known_weights(loaded, unusable=unusable):
        if cached(name) is None:
            with progress(f"weights {name}", size_bytes=KNOWN[name].size_bytes) as observe:
                await fetch(name, progress=observe)


LINE_EVERY_S = 10.0


@contextmanager
def progress(what: str, *, size_bytes: int) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar for arriving bytes, or without a terminal a line every ten seconds."""
    say(f"{what}: {size_bytes / 1e6:,.0f} MB to download, once; interrupt it and it continues next time")
    if not sys.stderr.isatty():
        yield _Lines(what)
        say(f"{what}: downloaded and checked")
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=size_bytes)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Lines:
    """Prints how far a download is, how fast it is and how long it will take."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began: tuple[float, int] | None = None
        self._said = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._began is None or done < self._began[1]:
            self._began = now, done  # bytes of an earlier try cost no time
        if now - self._said < LINE_EVERY_S or done >= total:
            return
        self._said = now
        rate = (done - self._began[1]) / (now - self._began[0])
        left = f", {seconds_text((total - done) / rate)} left" if rate > 0 else ""
        say(f"{self._what}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB, {rate / 1e6:.1f} MB/s{left}")
