"""The demo's course: weights, pool, the built-in questions, then the user's own."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

from dirigent.cli.output import FAILED, print_text
from dirigent.cli.running import bring_weights, watched_run
from dirigent.conduct import Conductor
from dirigent.config import Config, parse_config
from dirigent.discover import Found, toml_of
from dirigent.errors import WorkerError
from dirigent.messages import Message, Request
from dirigent.runtime import open_runtime
from dirigent.show import draw_summary, print_drawing, seconds_text
from dirigent.trace import Trace
from dirigent.workers.weights import KNOWN, cached

NOTE = """\
The planner here is untrained: the same small model that answers writes the plans. Held to a grammar, they
are valid but seldom clever, and a model of 135 million parameters is often wrong. The machinery is real."""


async def demonstrate(questions: Sequence[str], *, interactive: bool) -> int:
    """Show the embedded default at work; 1 where a built-in question was not answered."""
    loaded = parse_config(toml_of(Found()))
    await bring_weights(loaded)
    _say_weights()
    async with open_runtime(loaded) as runtime:
        conductor = runtime.conductor("ultra")
        await _warm_up(conductor)
        print_text(f"\n{NOTE}")
        failed = 0
        for question in questions:
            trace = await _show_one(conductor, question, loaded.config)
            failed += trace.status != "done"
        if interactive and sys.stdin.isatty() and sys.stdout.isatty():
            await _converse(conductor, loaded.config)
        else:
            print_text('\nAsk your own:  dirigent ask "…"   With keys in the environment:  dirigent init')
    return FAILED if failed else 0


def _say_weights() -> None:
    for weights in KNOWN.values():
        if path := cached(weights):
            print_text(f"▸ weights          {path.name}  {weights.size_bytes / 1e6:.0f} MB  sha256 ok")


async def _warm_up(conductor: Conductor) -> None:
    """Start the model's process before the first question, so that its seconds are not the plan's."""
    began = time.monotonic()
    worker = conductor.pool[conductor.pool.names[0]]
    try:
        await worker.ask(Request((Message("user", "Hello"),), max_output_tokens=1))
    except WorkerError as error:
        raise WorkerError(f"the local model did not start: {error}") from error
    names = ", ".join(conductor.pool.names)
    print_text(
        f"▸ pool             {names} (one model on the CPU, up in {seconds_text(time.monotonic() - began)})"
    )


async def _show_one(conductor: Conductor, question: str, config: Config) -> Trace:
    print_text(f"\nQ  {question}")
    trace = await watched_run(conductor, question, config=config)
    print_text(f"A  {trace.answer}" if trace.status == "done" else f"✗  {trace.error}")
    print_drawing(draw_summary(trace), file=sys.stderr)
    return trace


async def _converse(conductor: Conductor, config: Config) -> None:
    print_text("\nAsk your own (empty line to stop). With keys in the environment:  dirigent init")
    while True:
        try:
            question = (await asyncio.to_thread(input, "> ")).strip()
        except EOFError:
            return
        if not question:
            return
        await _show_one(conductor, question, config)
