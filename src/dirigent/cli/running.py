"""What the commands that call workers share: the pool opened, weights brought, a run watched and kept.

Imported only when such a command runs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from dirigent.cli.output import say, short
from dirigent.conduct import Conductor
from dirigent.config import Config, Loaded
from dirigent.errors import DirigentError
from dirigent.messages import Event, Message
from dirigent.runtime import Runtime, load, open_runtime, open_store
from dirigent.show import LiveRun, cost_text
from dirigent.trace import RunEnded, Trace
from dirigent.workers.weights import KNOWN, cached, fetch


@asynccontextmanager
async def opened(config: Path | None) -> AsyncIterator[Runtime]:
    """The configured pool, its local weights brought first where they are missing."""
    loaded = await load(config)
    await bring_weights(loaded)
    async with open_runtime(loaded) as runtime:
        yield runtime


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


def known_weights(loaded: Loaded) -> list[str]:
    """The weights that local workers want and that can be fetched, each once."""
    names = [worker.weights for worker in loaded.config.worker if worker.kind == "local"]
    return [name for name in dict.fromkeys(names) if name in KNOWN]


async def bring_weights(loaded: Loaded) -> None:
    """Fetch what is missing, with a bar on a terminal."""
    for name in known_weights(loaded):
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
