"""The demo: fetches weights, opens the pool, asks a few built-in questions, then the user's own.

The trained conductor plans over its specialists; then each of them is asked the same question alone, to show what the
plan adds. One question is of a kind that the conductor often gets wrong. Without a packaged conductor, the demo shows
three other plans and names them: a fixed plan, a handwritten plan, and a plan by an untrained planner.
"""

from __future__ import annotations

import sys
import time

import msgspec

from dirigent.cli.demo import typed_line
from dirigent.cli.output import FAILED, print_text, say
from dirigent.cli.running import check_workers, fetch_weights, watched_run
from dirigent.conduct import Conductor
from dirigent.config.discovery import LOCAL_POOL, LOCAL_PROFILES
from dirigent.config.file import Config, Loaded, parse_config
from dirigent.config.runtime import Runtime, open_runtime
from dirigent.errors import WorkerError
from dirigent.messages import Message, Request
from dirigent.plan.plan import Plan, Step
from dirigent.run.trace import Trace
from dirigent.show import draw_summary, print_drawing, seconds_text
from dirigent.workers.adapters import read_cards
from dirigent.workers.weights import KNOWN, cached
from dirigent_gym.pool import CONDUCTOR, advice, toml_text


class Shown(msgspec.Struct, frozen=True):
    """One question of the demo and its planner."""

    question: str
    story: str
    profile: str = "ultra"
    plan: Plan | None = None
    expected: str = ""
    """The right answer. If given, every worker of the profile is then asked alone."""


SUN_AND_MOON = Plan(
    (
        Step("smol-brief", "Tell me one fact about the sun in one sentence."),
        Step("smol-brief", "Tell me one fact about the moon in one sentence."),
        Step("smol", "Write a short paragraph about the sun and the moon with these facts.", (0, 1)),
    )
)

COURSE = (
    Shown("Which city is the capital of France?", "a fixed plan: one worker answers alone"),
    Shown("What is water made of?", "the same"),
    Shown(
        "Tell me a fact about the sun and a fact about the moon.",
        "a plan written by hand: two steps at the same time, a third reads both",
        plan=SUN_AND_MOON,
    ),
    Shown(
        "Name three animals that live in the sea.",
        "an UNTRAINED planner: the same small model writes the plan, held to a grammar; if it fails, "
        "the fixed plan is run",
        profile="untrained",
    ),
)
"""The questions for a pool without a packaged conductor."""

PLANNED = "the trained conductor writes the plan; each step goes to a specialist that sees nothing else"

TRAINED_COURSE = (
    Shown(
        "What is the capital of Norway? Count its letters. Then what is that number as a Roman numeral?",
        PLANNED,
        expected="IV",
    ),
    Shown("Add the letter count of Tuesday and the atomic number of zinc together.", PLANNED),
    Shown(
        "If today is a Friday, which weekday is it after as many days as Rome has letters?",
        "it is a Tuesday: asked in words that training never shows, the conductor often misses a step",
    ),
)
"""The questions for the packaged conductor. None of its workers can answer the first two alone."""


async def demonstrate(*, interactive: bool) -> int:
    """Show the gym's pool at work. Returns 1 if a built-in question got no answer."""
    loaded = parse_config(toml_text() or f"{LOCAL_POOL}\n{LOCAL_PROFILES}")
    await check_workers(loaded)
    await fetch_weights(loaded)
    for weights in KNOWN.values():
        if path := cached(weights):
            print_text(f"▸ weights          {path.name}  {weights.size_bytes / 1e6:.0f} MB  sha256 ok")
    async with open_runtime(loaded) as runtime:
        await _warm_up(runtime)
        trained = runtime.config.profile["ultra"].planner == "conductor"
        traces = [await _show(runtime, shown) for shown in (TRAINED_COURSE if trained else COURSE)]
        # The card's figure, so that no user takes three questions for a measurement.
        card = read_cards().get(CONDUCTOR)
        if card is not None and (right := card.figures.get("test_accuracy")) is not None:
            print_text(
                f"\nOn held-out questions of the gym this conductor is right in {right:.0%}: docs/how-it-learns.md"
            )
        if interactive and sys.stdin.isatty() and sys.stdout.isatty():
            await _converse(runtime.conductor("ultra"), loaded)
        else:
            print_text('\nAsk your own:  dirigent ask "…"   With keys in the environment:  dirigent init')
    return FAILED if any(trace.status != "done" for trace in traces) else 0


async def _warm_up(runtime: Runtime) -> None:
    """Start the model's process before the first question, so that its start does not count as planning time."""
    began = time.monotonic()
    worker = runtime.pool["smol"]
    try:
        await worker.ask(Request((Message("user", "Hello"),), max_output_tokens=1))
    except WorkerError as error:
        raise WorkerError(f"the local model did not start: {error}") from error
    names, up = ", ".join(runtime.pool.names), seconds_text(time.monotonic() - began)
    print_text(f"▸ pool             {names} (one model of 135 million parameters on the CPU, up in {up})")


async def _show(runtime: Runtime, shown: Shown) -> Trace:
    """Answers a question with its planner; then, if the right answer is known, asks every worker for it alone."""
    conductor = runtime.conductor(shown.profile, plan=shown.plan)
    trace = await _answer(conductor, shown.question, runtime.config, story=shown.story)
    if shown.expected:
        right = 0
        for worker in conductor.pool.values():
            reply = await worker.ask(Request((Message("user", shown.question),), max_output_tokens=24, temperature=0))
            right += reply.text.strip().rstrip(".") == shown.expected
        print_text(f"   The same question to each worker alone: {right} of {len(conductor.pool)} right.")
    return trace


async def _answer(conductor: Conductor, question: str, config: Config, *, story: str = "") -> Trace:
    print_text(f"\nQ  {question}" + (f"\n   ({story})" if story else ""))
    trace = await watched_run(conductor, question, config=config)
    print_text(f"A  {trace.answer}" if trace.status == "done" else f"✗  {trace.error}")
    print_drawing(draw_summary(trace), file=sys.stderr)
    return trace


async def _converse(conductor: Conductor, loaded: Loaded) -> None:
    print_text("\nAsk your own (empty line to stop). With keys in the environment:  dirigent init")
    while True:
        question = (await typed_line("> ")).strip()
        if not question:
            return
        trace = await _answer(conductor, question, loaded.config)
        if text := advice(trace.answer, loaded):
            say(text)
