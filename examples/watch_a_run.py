"""Streaming is watching: an observer gets every event of a run, and the run does not know."""

import asyncio

from dirigent import Conductor, FanOut, Pool, Scripted
from dirigent.messages import Event
from dirigent.run.trace import Planned, RunEnded, StepDelta, StepEnded, StepStarted


def show(event: Event) -> None:
    match event:
        case Planned(plan=plan):
            print(f"a plan of {len(plan.steps)} steps")
        case StepStarted(index=index, worker=worker):
            print(f"step {index} starts on {worker}")
        case StepDelta(index=index, text=text):
            print(f"step {index} writes {text!r}")
        case StepEnded(step=step):
            print(f"step {step.index} {step.status}")
        case RunEnded(trace=trace):
            print(f"{trace.status}: {trace.answer} ({trace.usage.calls} calls)")


async def main() -> None:
    pool = Pool(
        [
            Scripted("Perhaps 41.", "I take 42.", name="first"),
            Scripted("It is 42.", name="second"),
        ]
    )
    await Conductor(FanOut("first"), pool).run("What is six times seven?", observe=show)


asyncio.run(main())
