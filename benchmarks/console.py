"""How fast the console draws large runs and scrolls long conversations, in Chromium.

    python benchmarks/console.py [--rounds 5] [--json]

Starts a server over a fresh SQLite store with made runs and opens its pages: a run of 5 steps with replies of 100 KB,
one of 40 steps in two rounds, a conversation of 2,000 messages in a run and in Play, and a list of 10,000 runs. Prints
for each page the milliseconds until it is drawn, and the time between frames while it scrolls: the median of the
rounds, and the longest frame of all. Other work on the machine makes every figure worse, so its load is printed too.
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
        print(json.dumps({"rounds": args.rounds, "frames": args.frames, "load": round(load, 2), "figures": found}))
        return
    for name, value in found.items():
        print(f"{name:58} {value:8.1f}")
    print(f"{'load of the machine before the start':58} {load:8.2f}")


async def measured(rounds: int, frames: int) -> dict[str, float]:
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
                    for name, value in (await one_round(page, url, frames)).items():
                        figures.setdefault(name, []).append(value)
                    await page.context.close()
    return {name: (max if "longest" in name else statistics.median)(values) for name, values in figures.items()}


async def one_round(page: Any, url: str, frames: int) -> dict[str, float]:
    await page.goto(f"{url}/#/pool")
    await page.wait_for_selector("table")
    found = {}
    steps = "document.querySelectorAll('.svelte-flow__node').length === {} && document.querySelector('.waterfall')"
    answer = " && document.querySelector('section.answer .prose p')"
    rows = "document.querySelectorAll('a.row').length"
    for name, hash, ready in (
        ("5 steps with replies of 100 KB, drawn (ms)", "#/run/five", steps.format(5) + answer),
        ("40 steps in two rounds, drawn (ms)", "#/run/forty", steps.format(40) + answer),
        ("list of 10,000 runs, drawn (ms)", "#/runs", f"{rows} === 50"),
        ("2,000 messages in a run, drawn (ms)", "#/run/long", "document.querySelector('.said')"),
    ):
        found[name] = await page.evaluate(DRAWN.replace("READY", ready), hash)
    found |= await scrolled(page, "2,000 messages in a run", '[aria-label="Conversation"]', ".said", frames)
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
    found[f"{name}, drawn (ms)"] = await page.evaluate(DRAWN.replace("READY", ready), "#/play")
    return found | await scrolled(page, name, ".log > .box", ".turn", frames)


async def scrolled(page: Any, name: str, box: str, row: str, frames: int) -> dict[str, float]:
    gaps = await page.evaluate(SCROLLED, [box, frames])
    return {
        f"{name}, rows in the page": await page.locator(row).count(),
        f"{name}, scrolled: median frame (ms)": statistics.median(gaps),
        f"{name}, scrolled: longest frame (ms)": max(gaps),
    }


if __name__ == "__main__":
    main()
