"""What the commands that call workers share: the pool opened, weights brought, a run watched and kept.

Imported only when such a command runs.
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
from dirigent.run.trace import RunEnded, Trace
from dirigent.show import LiveRun, cost_text
from dirigent.workers.weights import KNOWN, cached, fetch


@asynccontextmanager
async def opened(config: Path | None) -> AsyncIterator[Runtime]:
    """The configured pool, its local weights brought where they are missing and can be used."""
    async with open_runtime(await load(config)) as runtime:
        await bring_weights(runtime.loaded, unusable=runtime.problems)
        yield runtime


async def check_workers(loaded: Loaded) -> None:
    """Refuse a pool in which a worker cannot be used; for whoever would fetch weights for nothing."""
    async with open_runtime(loaded) as runtime:
        if runtime.problem:
            raise ConfigError(runtime.problem)


async def watched_run(conductor: Conductor, question: str | Sequence[Message], *, config: Config) -> Trace:
    """Run with the plan and its steps shown as they go, and keep the trace whatever becomes of the run."""
    ended: list[Trace] = []
    try:
        with LiveRun() as live:

            def observe(event: Event) -> None:
                if isinstance(event, RunEnded):
                    ended.append(event.trace)
                live(event)

            trace = await conductor.run(question, observe=observe)
    except asyncio.CancelledError:
        for cut in ended:
            await keep(cut, config)
            say(f"cancelled: spent {cost_text(cut)} · trace {short(cut.id)}")
        raise
    await keep(trace, config)
    return trace


async def keep(trace: Trace, config: Config) -> None:
    """Save a trace; a store that fails costs a warning."""
    try:
        async with open_store(config) as store:
            await store.save(trace)
    except DirigentError as error:
        say(f"warning: the trace was not kept: {error}")


def say_advice(trace: Trace, loaded: Loaded) -> None:
    """Print the advice of the plugin that brought the pool, for an answer with which its workers give up."""
    if not any(worker.adapter for worker in loaded.config.worker):
        return  # no worker of a plugin: nothing of it is imported
    from dirigent import plugins

    for name in plugins.entries("pools"):
        if text := plugins.load("pools", name).advice(trace.answer, loaded):
            say(text)


def known_weights(loaded: Loaded, *, unusable: Container[str] = ()) -> list[str]:
    """The weights that local workers want and that can be fetched, each once; not for workers that are unusable."""
    workers = [worker for worker in loaded.config.worker if worker.kind == "local" and worker.name not in unusable]
    return [name for name in dict.fromkeys(worker.weights for worker in workers) if name in KNOWN]


async def bring_weights(loaded: Loaded, *, unusable: Container[str] = ()) -> None:
    """Fetch what is missing, with a bar on a terminal."""
    for name in known_weights(loaded, unusable=unusable):
        if cached(name) is None:
            with progress(f"weights {name}") as told:
                await fetch(name, progress=told)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for bytes that arrive; one line before and after where there is no terminal."""
    if not sys.stderr.isatty():
        say(f"{what}: downloading…")
        yield lambda done, total: None
        say(f"{what}: here and checked")
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
