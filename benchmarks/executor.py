"""The time of a run beside its critical path, and beside the same steps in order.

    python benchmarks/executor.py [--plans 1000] [--rate 200] [--seed 1] [--json]

Draws random plans of 1-5 steps whose workers take 0.2-1.0 s each, starts them through `Conductor.run` at a fixed
rate whether or not earlier ones are done (open loop), and compares each run's time with the longest chain of
drawn delays. The peer is in-order execution of the same plan, as the RL Conductor paper describes it: the sum of
the delays, which is that peer's best case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import time

from dirigent.conduct import Conductor
from dirigent.messages import Request
from dirigent.plan.plan import Plan, Step
from dirigent.planners.fixed import Fixed
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import FromFunction


def main() -> None:
    args = _arguments()
    rng = random.Random(args.seed)
    drawn = [_draw(rng) for _ in range(args.plans)]
    seconds = asyncio.run(_run_all(drawn, rate=args.rate))
    paths = [_critical_path_s(plan, delays) for plan, delays in drawn]
    in_order = [sum(delays) for _, delays in drawn]
    ratios = sorted(took / path for took, path in zip(seconds, paths, strict=True))
    result = {
        "plans": args.plans,
        "rate": args.rate,
        "seed": args.seed,
        "ratio_p50": round(statistics.median(ratios), 4),
        "ratio_p95": round(ratios[int(0.95 * len(ratios))], 4),
        "ratio_max": round(ratios[-1], 4),
        "speedup": round(sum(in_order) / sum(seconds), 3),
        "load": round(os.getloadavg()[0], 1),
    }
    if not args.json:
        print(f"{args.plans} plans of 1-5 steps at {args.rate}/s, step delays 0.2-1.0 s")
        print(f"run time over critical path   p50 {result['ratio_p50']}  p95 {result['ratio_p95']}")
        print(f"against in-order execution    {result['speedup']}x quicker")
    print(json.dumps(result))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=200.0, help="runs started a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    return parser.parse_args()


def _draw(rng: random.Random) -> tuple[Plan, list[float]]:
    delays = [rng.uniform(0.2, 1.0) for _ in range(rng.randint(1, 5))]
    steps = []
    for index, delay in enumerate(delays):
        access = tuple(sorted(rng.sample(range(index), rng.randint(0, index))))
        steps.append(Step("sleeper", f"wait {delay:.6f}", access))
    return Plan(tuple(steps)), delays


async def _run_all(drawn: list[tuple[Plan, list[float]]], *, rate: float) -> list[float]:
    pool = Pool([FromFunction(_sleep, name="sleeper")])
    await Conductor(Fixed(Plan((Step("sleeper", "wait 0.0"),))), pool).run("warm up")
    started = time.monotonic()
    runs = []
    for number, (plan, _) in enumerate(drawn):
        await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
        runs.append(asyncio.create_task(_timed(Conductor(Fixed(plan), pool))))
    return list(await asyncio.gather(*runs))


async def _timed(conductor: Conductor) -> float:
    began = time.monotonic()
    trace = await conductor.run("a question")
    assert trace.status == "done", trace.error
    return time.monotonic() - began


async def _sleep(request: Request) -> str:
    await asyncio.sleep(float(request.messages[-1].text.rsplit(" ", 1)[1]))
    return "done"


def _critical_path_s(plan: Plan, delays: list[float]) -> float:
    ends: list[float] = []
    for step, delay in zip(plan.steps, delays, strict=True):
        ends.append(delay + max((ends[j] for j in step.access), default=0.0))
    return max(ends)


if __name__ == "__main__":
    main()
