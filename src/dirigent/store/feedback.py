"""Feedback: a caller's score and comment on a run. A key can judge only its own runs, and each of them once.

Feedback is stored apart from the trace, which is never rewritten. Nothing learns from it by itself: it is only
exported, together with the trace that it judges.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Literal

import msgspec
from sqlalchemy import Connection, select

from dirigent.run.trace import RunStatus, Trace
from dirigent.store import PAGE, Store
from dirigent.store.engine import insert_if_new
from dirigent.store.tables import feedback, now, traces, utc_text
from dirigent.store.traces import keys_of
from dirigent.workers.secret import redact

LOCAL = "local"
"""The key of callers on this machine, on a server without keys."""


class Verdict(msgspec.Struct, frozen=True):
    """A caller's judgement of one run."""

    run_id: str
    key_id: str
    score: float
    """0 to 1."""
    comment: str = ""
    created_at: str = ""
    label: str | None = None
    """The right answer; None if the caller gave only a score."""


async def add_feedback(store: Store, verdict: Verdict) -> Literal["kept", "again", "unknown"]:
    """Store a verdict. Returns `again` if this key has judged the run already, `unknown` if it has no such run."""
    row = _clean(verdict)
    return await store.write(_add, prepare=lambda: row)


async def add_for_owner(store: Store, verdict: Verdict) -> Literal["kept", "again", "unknown"]:
    """Store an operator's verdict in the name of the key that asked for the run; its own `key_id` is not read.

    A run that no key asked for, such as one of `dirigent ask`, is judged in the name of `local`.
    """
    row = _clean(verdict)
    return await store.write(_add_for_owner, prepare=lambda: row)


def _clean(verdict: Verdict) -> Verdict:
    def text(value: str) -> str:
        return redact(value).replace("\0", "\ufffd")

    label = None if verdict.label is None else text(verdict.label)
    return msgspec.structs.replace(verdict, comment=text(verdict.comment), label=label, created_at=utc_text(now()))


async def feedback_of(store: Store, run_id: str) -> list[Verdict]:
    """Returns every verdict on a run."""
    return await store.read(partial(_verdicts, run_ids=[run_id]))


async def export(
    store: Store, *, status: RunStatus | None = None, search: str = ""
) -> AsyncIterator[tuple[Trace, list[Verdict]]]:
    """Yields whole traces, the oldest first, each with its verdicts; holds one page in memory at a time."""
    page: list[Trace] = []
    async for trace in store.export(status=status, search=search):
        page.append(trace)
        if len(page) == PAGE:
            for judged in await _judged(store, page):
                yield judged
            page = []
    for judged in await _judged(store, page):
        yield judged


async def _judged(store: Store, page: Sequence[Trace]) -> list[tuple[Trace, list[Verdict]]]:
    verdicts = await store.read(partial(_verdicts, run_ids=[trace.id for trace in page]))
    return [(trace, [verdict for verdict in verdicts if verdict.run_id == trace.id]) for trace in page]


def _verdicts(connection: Connection, *, run_ids: Sequence[str]) -> list[Verdict]:
    columns = [feedback.c[name] for name in Verdict.__struct_fields__]
    query = select(*columns).where(feedback.c.run_id.in_(run_ids)).order_by(feedback.c.run_id, feedback.c.key_id)
    return [Verdict(*row) for row in connection.execute(query)]


def _add(connection: Connection, verdict: Verdict) -> Literal["kept", "again", "unknown"]:
    if verdict.key_id not in keys_of(connection, verdict.run_id):
        return "unknown"
    return "kept" if insert_if_new(connection, feedback, msgspec.structs.asdict(verdict)) else "again"


def _add_for_owner(connection: Connection, verdict: Verdict) -> Literal["kept", "again", "unknown"]:
    keys = sorted(keys_of(connection, verdict.run_id))
    if not keys and connection.execute(select(traces.c.id).where(traces.c.id == verdict.run_id)).first() is None:
        return "unknown"
    owner = msgspec.structs.replace(verdict, key_id=keys[0] if keys else LOCAL)
    return "kept" if insert_if_new(connection, feedback, msgspec.structs.asdict(owner)) else "again"
