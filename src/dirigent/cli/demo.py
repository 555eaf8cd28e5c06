"""`dirigent demo`: three real questions to the embedded pool, then the user's own. `make demo` runs it.

It needs no key and ignores any config file. Each question is planned, and asked once more without a plan, to show what
the plan was for. One of the three is answered wrong, and the demo says so: a model of this size often is. Nothing
confirms the answers to the user's own questions, and they are marked so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from dirigent.cli.output import FAILED, carry_out, print_text, say

if TYPE_CHECKING:
    from dirigent.conduct import Conductor
    from dirigent.config.runtime import Runtime
    from dirigent.run.trace import Trace

QUESTIONS = {
    "How many days are there between 3 March 2024 and 9 May 2024?": "67",
    "What is the capital of Australia?": "Canberra",
    "Who wrote the novel The Leopard?": "Giuseppe Tomasi di Lampedusa",
}
"""Questions and their right answers: by a program that is run; in one plain call; one that this model does not know."""

SMALL_QUESTIONS = {
    "Which city is the capital of France?": "Paris",
    "What is water made of?": "hydrogen and oxygen",
    "What is 17 times 23?": "391",
}
"""For the small pool; the last one is beyond it."""


def demo(
    ask: Annotated[bool, typer.Option(help="Take your own questions afterwards, on a terminal.")] = True,
    small: Annotated[bool, typer.Option("--small", help="Use the small pool of a model with 135M parameters.")] = False,
) -> None:
    """Answer three questions with a model on this machine's CPU, then yours. Needs no key.

    The model is fetched once: 1.1 GB, or 98 MB with --small.

    Example:  dirigent demo
    """

    async def work() -> int:
        from dirigent.cli.running import check_workers, fetch_weights
        from dirigent.config.discovery import Machine as Found
        from dirigent.config.discovery import free_memory_bytes, small_pool_reason, toml_of
        from dirigent.config.file import parse_config
        from dirigent.config.runtime import open_runtime
        from dirigent.sandbox.programs import confinement_problem

        machine = Found(free_bytes=free_memory_bytes(), small=small, unconfined=confinement_problem())
        reason = small_pool_reason(machine)
        if reason and not small:
            say(f"note: {reason}")
        if machine.unconfined and not reason:
            say(f"note: no program is run: {machine.unconfined}")
        loaded = parse_config(toml_of(machine))
        await check_workers(loaded)
        await fetch_weights(loaded)
        async with open_runtime(loaded) as runtime:
            await _start(runtime)
            course = SMALL_QUESTIONS if reason else QUESTIONS
            traces = [await _shown(runtime, question, right=right) for question, right in course.items()]
            await _own_questions(runtime, wanted=ask)
        return FAILED if any(trace.status != "done" for trace in traces) else 0

    carry_out(work)


async def _start(runtime: Runtime) -> None:
    """Starts the model's process before the first question, so that its seconds are not the plan's."""
    import time

    from dirigent.messages import Message, Request
    from dirigent.show import seconds_text

    began = time.monotonic()
    plain = runtime.pool.infos[0]
    await runtime.pool[plain.name].ask(Request((Message("user", "Hello"),), max_output_tokens=1))
    took = seconds_text(time.monotonic() - began)
    print_text(f"▸ pool   {', '.join(runtime.pool.names)}: one model, {plain.model}, on this CPU; up in {took}")


async def _shown(runtime: Runtime, question: str, *, right: str) -> Trace:
    """Answers a question of the course, judges the answer by the right one, and shows what one plain call says."""
    trace = await _answered(runtime.conductor(), runtime, question)
    if trace.status == "done":
        print_text(f"   {_judged(trace.answer, right)}")
    if len(trace.steps) == 1 and trace.steps[0].worker == runtime.pool.names[0]:
        print_text("   The plan was one plain call.")
    else:
        print_text(f"   One plain call: {await _plain(runtime, question, right=right)}")
    return trace


async def _plain(runtime: Runtime, question: str, *, right: str) -> str:
    import time

    from dirigent.errors import WorkerError
    from dirigent.messages import Message, Request
    from dirigent.show import one_line, seconds_text

    began = time.monotonic()
    try:
        reply = await runtime.pool[runtime.pool.names[0]].ask(Request((Message("user", question),)))
    except WorkerError as error:
        return f"failed: {error}"
    took = seconds_text(time.monotonic() - began)
    said = one_line(reply.text)
    return f'"{said if len(said) <= 120 else "…" + said[-119:]}" ({took}); {_judged(reply.text, right)}'


def _judged(answer: str, right: str) -> str:
    """Returns whether an answer is right, by the words of the right answer; numbers count in the final answer alone."""
    import re

    from dirigent.tasks.answers import final_answer

    said = (final_answer(answer) or answer.strip().splitlines()[-1] if answer.strip() else "").casefold()
    words = right.casefold().split(" and ") if not right.isdigit() else [right]
    found = all(re.search(rf"(?<![\w.,]){re.escape(word)}(?![\w]|[.,]\d)", said) for word in words)
    return "right" if found else f"wrong: it is {right}"


async def _answered(conductor: Conductor, runtime: Runtime, question: str) -> Trace:
    from dirigent.cli.running import watched_run
    from dirigent.show import draw_trace, print_drawing, width_of

    print_text(f"\nQ  {question}")
    trace = await watched_run(conductor, question, config=runtime.config)
    print_drawing(draw_trace(trace, width=width_of()))
    print_text(f"A  {trace.answer}" if trace.status == "done" else f"✗  {trace.error}")
    return trace


async def _own_questions(runtime: Runtime, *, wanted: bool) -> None:
    import sys

    from dirigent.show.confirmation import confirmation

    if not (wanted and sys.stdin.isatty() and sys.stdout.isatty()):
        print_text('\nAsk your own:  dirigent ask "…"   With keys in the environment:  dirigent init')
        return
    conductor = runtime.conductor()
    async with _console(runtime) as address:
        place = f", or open {address}" if address else ""
        print_text(f"\nAsk your own (empty line to stop){place}. With keys in the environment:  dirigent init")
        while question := (await typed_line("> ")).strip():
            trace = await _answered(conductor, runtime, question)
            if trace.status == "done":
                print_text(f"   {confirmation(trace)}")


@asynccontextmanager
async def _console(runtime: Runtime) -> AsyncIterator[str]:
    """Serves the console over the demo's own pool while the block runs; yields its address.

    Without the extra `serve`, or where port 8000 is taken, the address is empty or another port's.
    """
    try:
        from dirigent.serve.http.server import bound, serving
        from dirigent.serve.service import Service
    except ModuleNotFoundError:
        yield ""
        return
    from dirigent.config.runtime import open_store
    from dirigent.errors import ConfigError

    try:
        listener = bound("127.0.0.1", 8000)
    except ConfigError:
        listener = bound("127.0.0.1", 0)
    async with open_store(runtime.config) as store:
        service = Service(runtime, store)
        await service.read_switches()
        async with serving(service, listener) as address:
            try:
                yield address
            finally:
                await service.close()


async def typed_line(prompt: str) -> str:
    """Returns a line from the terminal, waited for on the loop, so that Ctrl-C ends the wait; empty at end of file."""
    import asyncio
    import sys

    sys.stdout.write(prompt)
    sys.stdout.flush()
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        if not line.done():
            line.set_result(sys.stdin.readline())

    loop.add_reader(sys.stdin, read)
    try:
        return await line
    finally:
        loop.remove_reader(sys.stdin)
