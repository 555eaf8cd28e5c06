"""A cap on cost: a call that could pass it is not made, and the trace has the cost of the run."""

import asyncio

from dirigent import Conductor, Fixed, Limits, Plan, Pool, Price, Scripted, Step, estimate

PLAN = Plan((Step("writer", "Write an essay."), Step("writer", "Shorten it.", (0,)), Step("writer", "Again.", (1,))))


async def main() -> None:
    pool = Pool([Scripted("word " * 2000, name="writer", price=Price(input=3.0, output=15.0))])
    limits = Limits(max_cost_usd=0.02, max_output_tokens=2000)
    price = estimate(PLAN, pool, "Tell me about rivers.", limits=limits)
    print(f"estimate ${price.low_usd:.4f} to ${price.high_usd:.4f}, {price.critical_path} steps one after another")
    trace = await Conductor(Fixed(PLAN), pool, limits=limits).run("Tell me about rivers.")
    print(trace.status, f"after ${trace.cost_usd:.4f}:", trace.error or "within the cap")
    assert trace.cost_usd <= 0.02


asyncio.run(main())
