"""Traces for the store, as a run would leave them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dirigent.limits import Limits
from dirigent.messages import Attempt, Image, Message, Reply, Text, Usage
from dirigent.plan.plan import Plan, Step
from dirigent.run.trace import DraftRecord, Round, RunStatus, StepRecord, Trace
from dirigent.store import Store
from dirigent.workers.worker import Price, WorkerInfo


def a_trace(
    id: str = "7f3a0000",
    *,
    created_at: str = "2026-11-15T02:00:00+00:00",
    question: str = "What is the capital of Norway?",
    answer: str = "Oslo",
    status: RunStatus = "done",
    profile: str = "ultra",
    error: str = "",
) -> Trace:
    """Two steps and two calls besides the planner's, 60 tokens, $0.003."""
    attempt = Attempt("facts", 0.2, Usage(15, 5), cost_usd=0.001)
    messages = (Message("user", (Text(question), Image(data="aGk=", media_type="image/png"))),)
    step = StepRecord(0, "facts", "Name it.", messages=messages, reply=Reply(answer), attempts=(attempt,))
    last = StepRecord(1, "facts", "Check it.", (0,), reply=Reply(answer), attempts=(attempt,))
    draft = DraftRecord("conductor", "Name it. | facts 0 | -", "lines", attempts=(attempt,), ended_s=0.5)
    plan = Plan((Step("facts", "Name it."), Step("facts", "Check it.", (0,))))
    return Trace(
        id=id,
        created_at=created_at,
        question=(Message("system", "Be brief."), Message("user", question)),
        pool=(WorkerInfo("facts", price=Price(1, 2), abilities=frozenset({"images"})),),
        limits=Limits(max_cost_usd=1.0),
        planner="conductor",
        profile=profile,
        rounds=(Round((draft,), plan, (step, last)),),
        status=status,
        answer=answer,
        error=error,
        seconds=1.5,
    )


@contextmanager
def busy_writer(store: Store) -> Iterator[None]:
    """The writer is held at work, so that whatever is handed in meanwhile shares the commit after it."""
    release = threading.Event()
    held = asyncio.ensure_future(store.write(lambda _connection, _prepared: release.wait(30), prepare=lambda: None))
    try:
        yield
    finally:
        release.set()
        assert not held.cancelled()
