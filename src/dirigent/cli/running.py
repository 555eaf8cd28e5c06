"""Shared by commands that call workers: open the pool, fetch weights, watch a run and store its trace.

Only such commands import this module, when they run.
"""

from __future__ import annotations

import asyncio
import sys
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
from dirigent.show import LiveRun, cost_text
from dirigent.workers.weights import KNOWN, cached, fetch


@asynccontextmanager
async def open_pool(config: Path | None) -> AsyncIterator[Runtime]:
    """Yields the configured pool, after fetching the missing weights of usable local workers."""
    async with open_runtime(await load(config)) as runtime:
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


def say_advice(trace: Trace, loaded: Loaded) -> None:
    """Prints the advice of the pool's plugin on an answer by which its workers give up."""
    if not any(worker.adapter for worker in loaded.config.worker):
        return  # no worker comes from a plugin, so none is imported
    from dirigent import plugins

    for name in plugins.entries("pools"):
        if text := plugins.load("pools", name).advice(trace.answer, loaded):
            say(text)


def known_weights(loaded: Loaded, *, unusable: Container[str] = ()) -> list[str]:
    """Returns the weights of usable local workers that can be fetched, each once."""
    workers = [worker for worker in loaded.config.worker if worker.kind == "local" and worker.name not in unusable]
    return [name for name in dict.fromkeys(worker.weights for worker in workers) if name in KNOWN]


async def fetch_weights(loaded: Loaded, *, unusable: Container[str] = ()) -> None:
    """Fetches missing weights, with a bar on a terminal."""
    for name in known_weights(loaded, unusable=unusable):
        if cached(name) is None:
            with progress(f"weights {name}") as observe:
                await fetch(name, progress=observe)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar for arriving bytes, or without a terminal a line before and after."""
    if not sys.stderr.isatty():
        say(f"{what}: downloading…")
        yield lambda done, total: None
        say(f"{what}: downloaded and checked")
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
