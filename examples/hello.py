"""The smallest run: a planner, two workers, one question. No model and no key needed."""

import asyncio

from dirigent import Conductor, LanguagePlanner, Pool, Scripted

PLAN = """
model_id = [0, 1]
subtasks = ["Name the capital.", "Count its letters."]
access_list = [[], [0]]
"""


async def main() -> None:
    pool = Pool([Scripted("Oslo", name="facts"), Scripted("4", name="letters")])
    conductor = Conductor(LanguagePlanner(Scripted(PLAN)), pool)
    trace = await conductor.run("How many letters has the capital of Norway?")
    for step in trace.steps:
        print(step.index, step.worker, "|", step.subtask, "->", step.reply.text if step.reply else step.error)
    print("answer:", trace.answer)


asyncio.run(main())
