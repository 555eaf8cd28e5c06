"""How fast the console draws large runs and scrolls long conversations, in Chromium.

    python benchmarks/console.py [--rounds 5] [--json]

Starts a server over a fresh SQLite store with made runs and opens its pages: a run of 5 steps with replies of 100 KB,
one of 40 steps in two rounds, a conversation of 2,000 messages in a run and in Play, and a list of 10,000 runs. Prints
for each page the milliseconds until it is drawn, and the time between frames while it scrolls: the median of the
rounds, and the longest frame of all. Other work on the machine makes these figures worse, so its load is printed too,
and beside each figure the CPU time of the page's main thread: of the whole drawing, or of the longest task while it
scrolls. On an idle machine both come close to each other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.console.conftest import launched
from tests.console.long_runs import long_conversation, many_steps
from tests.programs import need
from tests.serve.conftest import CONFIG
from tests.serve.test_console_api import fill

from dirigent.config.file import parse_config
from dirigent.serve.http.server import bound, serving
from dirigent.serve.service import open_service

# Milliseconds from the change of the address until `ready` is true and the frame after it was drawn.
DRAWN = """async (hash) => {
  const is = () => READY;
  const began = performance.now();
  location.hash = hash;
  while (!is()) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  await new Promise((done) => setTimeout(done));
  return performance.now() - began;
}"""
# Scrolls a box from its beginning to its end and back, a part of its height each frame; gives the gaps between frames.
SCROLLED = """async ([selector, frames]) => {
  const box = document.querySelector(selector);
  const gaps = [];
  let last = await new Promise(requestAnimationFrame);
  for (let i = 1; i <= frames; i++) {
    const part = i <= frames / 2 ? (2 * i) / frames : 2 - (2 * i) / frames;
    box.scrollTop = part * (box.scrollHeight - box.clientHeight);
    const now = await new Promise(requestAnimationFrame);
    gaps.push(now - last);
    last = now;
  }
  return gaps;
}"""
LONG = ("word " * 19 + "and **more**\n\n") * 950
TURNS = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--frames", type=int, default=240, help="Frames in which a box is scrolled there and back.")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    found = asyncio.run(measured(args.rounds, args.frames))
    if args.json:
        print(json.dumps({"rounds": args.rounds, "frames": args.frames, "load": round(load), "figures": found}))
        return
    for name, value in found.items():
        print(f"{name:58} {value:8}")
    print(f"{'load of the machine before the start':58} {load:8.0f}")


async def measured(rounds: int, frames: int) -> dict[str, int]:
    """The median of each figure over the rounds; the longest gap of frames is the longest of all rounds."""
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DIRIGENT_HOME"] = folder
        config = parse_config(CONFIG.format(url="http://127.0.0.1:9/v1", store=Path(folder) / "store.db"))
        async with open_service(config) as service, serving(service, bound("127.0.0.1", 0)) as url:
            five = many_steps(5, id="five", reply=LONG)
            for trace in (five, many_steps(28, 12, id="forty"), long_conversation(2_000, id="long")):
                await service.store.save(trace, key_id="local")
            await fill(service.store, 10_000)
            async with launched(need("chromium")) as browser:
                for _ in range(rounds):
                    page = await (await browser.new_context(viewport={"width": 1280, "height": 800})).new_page()
                    for name, value in (await one_round(Traced(browser, page), url, frames)).items():
                        figures.setdefault(name, []).append(value)
                    await page.context.close()
    return {name: round((max if "longest" in name else statistics.median)(values)) for name, values in figures.items()}


class Traced:
    """A page whose evaluations are traced, for the CPU time of its main thread."""

    def __init__(self, browser: Any, page: Any) -> None:
        self._browser, self.page = browser, page

    async def evaluate(self, script: str, argument: Any) -> tuple[Any, list[float]]:
        """What the script returns, and the CPU milliseconds of each task meanwhile."""
        await self._browser.start_tracing(page=self.page, categories=["toplevel"])
        try:
            found = await self.page.evaluate(script, argument)
        finally:
            events = json.loads(await self._browser.stop_tracing())["traceEvents"]
        mains = {(e["pid"], e["tid"]) for e in events if e.get("args", {}).get("name") == "CrRendererMain"}
        return found, [e["tdur"] / 1000 for e in events if "tdur" in e and (e["pid"], e["tid"]) in mains]


async def one_round(traced: Traced, url: str, frames: int) -> dict[str, float]:
    page = traced.page
    await page.goto(f"{url}/#/pool")
    await page.wait_for_selector("table")
    found = {}
    steps = "document.querySelectorAll('.svelte-flow__node').length === {} && document.querySelector('.waterfall')"
    answer = " && document.querySelector('section.answer .prose p')"
    rows = "document.querySelectorAll('a.row').length"
    for name, hash, ready in (
        ("5 steps with replies of 100 KB, drawn", "#/run/five", steps.format(5) + answer),
        ("40 steps in two rounds, drawn", "#/run/forty", steps.format(40) + answer),
        ("list of 10,000 runs, drawn", "#/runs", f"{rows} === 50"),
        ("2,000 messages in a run, drawn", "#/run/long", "document.querySelector('.said')"),
    ):
        found |= await drawn(traced, name, hash, ready)
    found |= await scrolled(traced, "2,000 messages in a run", '[aria-label="Conversation"]', ".said", frames)
    live = {"model": "worker/alpha", "planner": "single", "phase": "over", "steps": [], "plannedUsd": 0, "rejected": []}
    live |= {"lastIndex": 0, "until": None, "status": "done", "error": "", "costUsd": 0.001, "seconds": 1}
    said = long_conversation(2 * TURNS).question
    turns = [
        {
            "question": said[i].text,
            "files": [],
            "model": "ultra",
            "live": live | {"id": str(i), "answer": said[i + 1].text},
        }
        for i in range(0, 2 * TURNS, 2)
    ]
    kept = json.dumps({"turns": turns, "model": "ultra", "conversation": "c", "planningUsd": 0})
    await page.evaluate("(kept) => sessionStorage.setItem('dirigent.play', kept)", kept)
    name, ready = "2,000 messages in Play", "document.querySelector('.turn .prose')"
    found |= await drawn(traced, f"{name}, drawn", "#/play", ready)
    return found | await scrolled(traced, name, ".log > .box", ".turn", frames)


async def drawn(traced: Traced, name: str, hash: str, ready: str) -> dict[str, float]:
    took_ms, tasks_ms = await traced.evaluate(DRAWN.replace("READY", ready), hash)
    return {f"{name} (ms)": took_ms, f"{name} (CPU ms)": sum(tasks_ms)}


async def scrolled(traced: Traced, name: str, box: str, row: str, frames: int) -> dict[str, float]:
    gaps_ms, tasks_ms = await traced.evaluate(SCROLLED, [box, frames])
    return {
        f"{name}, rows in the page": await traced.page.locator(row).count(),
        f"{name}, scrolled: median frame (ms)": statistics.median(gaps_ms),
        f"{name}, scrolled: longest frame (ms)": max(gaps_ms),
        f"{name}, scrolled: longest task (CPU ms)": max(tasks_ms),
    }


if __name__ == "__main__":
    main()
