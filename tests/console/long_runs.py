"""Traces that are hard to draw: many steps, long replies, a long conversation."""

from __future__ import annotations

import random

from dirigent.limits import Limits
from dirigent.messages import Attempt, Message, Reply, Usage
from dirigent.plan.plan import Plan, Step
from dirigent.run.trace import DraftRecord, Round, StepRecord, Trace
from dirigent.workers.worker import WorkerInfo

WORKERS = ("alpha", "beta", "boss")
SUBTASKS = (
    "Read the log and list the likeliest causes",
    "Inspect the code paths named in the log",
    "Compare both findings and say where they differ",
    "اقرأ التقرير واذكر الأسباب",
    "Averyveryverylongwordthatneverendsandneverbreaks" * 3,
)


def many_steps(*rounds: int, id: str = "f" * 16, reply: str = "The **nightly rotation** closes the socket.") -> Trace:
    """A run whose rounds have so many steps; most steps read one or two earlier ones, and the last reads five."""
    rng = random.Random(1)
    made, first, ends = [], 0, [0.0]
    for number, count in enumerate(rounds):
        steps, records = [], []
        for i in range(first, first + count):
            access = tuple(sorted(rng.sample(range(max(0, i - 7), i), min(rng.choice((0, 1, 1, 2)), i))))
            if i == first + count - 1:
                access = tuple(range(max(0, i - 5), i))
            done_s = _ends(made, records)
            began_s = max([ends[number], *(done_s[j] for j in access)])
            ended_s = began_s + rng.uniform(0.4, 3.0)
            worker, subtask = WORKERS[i % 3], SUBTASKS[i % len(SUBTASKS)]
            attempt = Attempt(worker, ended_s - began_s, Usage(300, 120), cost_usd=0.002)
            steps.append(Step(worker, subtask, access))
            messages = (Message("user", subtask),)
            records.append(
                StepRecord(
                    i, worker, subtask, access, messages=messages, reply=Reply(reply), attempts=(attempt,),
                    started_s=began_s, ended_s=ended_s, round=number,
                )
            )  # fmt: skip
        draft = DraftRecord("language:boss", "a plan", "json", started_s=ends[number], ended_s=ends[number])
        made.append(Round((draft,), Plan(tuple(steps), first=first), tuple(records)))
        ends.append(max(record.ended_s for record in records))
        first += count
    return _trace(id, (Message("user", "Why does this test fail?"),), tuple(made), answer=reply, seconds=ends[-1])


def long_conversation(messages: int, *, id: str = "e" * 16) -> Trace:
    """A run of one step whose question has so many messages, of one line to a page."""
    rng = random.Random(2)
    said = []
    for i in range(messages):
        text = f"message {i}: " + "words and more words " * rng.choice((1, 3, 10, 40))
        if i % 2:
            text += f"\n\n- a list\n- of **{i}** things\n\n`code()`"
        said.append(Message("assistant" if i % 2 else "user", text))
    record = StepRecord(0, "alpha", "Answer.", reply=Reply("So it is."), ended_s=1.0)
    draft = DraftRecord("single", "", "json")
    round = Round((draft,), Plan((Step("alpha", "Answer."),)), (record,))
    return _trace(id, tuple(said), (round,), answer="So it is.", seconds=1.0)


def _ends(rounds: list[Round], records: list[StepRecord]) -> dict[int, float]:
    return {step.index: step.ended_s for step in (*(step for round in rounds for step in round.steps), *records)}


def _trace(id: str, question: tuple[Message, ...], rounds: tuple[Round, ...], *, answer: str, seconds: float) -> Trace:
    return Trace(
        id=id, created_at="2026-11-19T10:00:00.000000Z", question=question, pool=tuple(map(WorkerInfo, WORKERS)),
        limits=Limits(), planner="language:boss", profile="ultra", rounds=rounds, answer=answer, seconds=seconds,
    )  # fmt: skip
