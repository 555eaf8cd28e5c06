"""The time that a learned policy takes to decide, features included, with many requests at once.

    python benchmarks/policy_latency.py FOLDER [--requests 2000] [--concurrency 16] [--questions FILE] [--at POINT]

FOLDER is the folder that `dirigent learn` wrote. FILE has one question a line; without it, questions of several lengths
are made. POINT is an operating point; without it, the active one. Each request drafts a plan as a server does. Prints
the median and the 99th percentile in milliseconds, as a line and as one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from pathlib import Path

from dirigent.learn.policy import Policy
from dirigent.limits import Limits
from dirigent.messages import conversation
from dirigent.plan.planner import Brief
from dirigent.planners.learned import Learned
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted

TEXT = "how many boxes of tea does the train carry from Oslo to the harbour if each wagon holds twelve of them"
WORDS = TEXT.split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--at", default="")
    args = parser.parse_args()
    policy = Policy.load(args.folder)
    if not (args.at or policy.on):
        parser.error(f"the policy in {args.folder} is off: give --at, such as  --at 'price 0.05'")
    workers = [Scripted("x", name=name, fingerprint=mark) for name, mark in policy.fingerprints.items()]
    pool = Pool([*workers, *(Scripted("x", name=name, reads_results=True) for name in ("select", "vote"))])
    lines = args.questions.read_text().splitlines() if args.questions else made_questions(500)
    took_ms = asyncio.run(drafts(Learned(policy, at=args.at), pool, lines, args.requests, args.concurrency))
    found = {"p50_ms": took_ms[len(took_ms) // 2], "p99_ms": took_ms[int(0.99 * len(took_ms))]}
    print(f"decision: p50 {found['p50_ms']:.2f} ms, p99 {found['p99_ms']:.2f} ms, {args.concurrency} at once")
    print(json.dumps(found | {"requests": len(took_ms), "concurrency": args.concurrency}))


async def drafts(planner: Learned, pool: Pool, lines: list[str], requests: int, concurrency: int) -> list[float]:
    """Sorted milliseconds from the moment a request may begin until its plan, with other requests in progress."""
    took_ms: list[float] = []
    left = iter(range(requests))

    async def ask() -> None:
        for i in left:
            brief = Brief(conversation(lines[i % len(lines)]), pool, Limits(max_steps=11))
            began = time.perf_counter()
            await asyncio.sleep(0)  # every other request gets its turn first
            await planner.draft(brief)
            took_ms.append(1000 * (time.perf_counter() - began))

    await asyncio.gather(*(ask() for _ in range(concurrency)))
    return sorted(took_ms)


def made_questions(count: int) -> list[str]:
    rng = random.Random(1)
    return [" ".join(rng.choices(WORDS, k=rng.choice((8, 40, 200)))) + "?" for _ in range(count)]


if __name__ == "__main__":
    main()
