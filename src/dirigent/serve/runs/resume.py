"""Runs that wait for their caller's tools, found again by the ids of their tool calls.

A caller sends its whole history again, with the tools' results at the end. If those answer calls of a waiting run of
the same key and model, that run continues at exactly the steps that asked. The state is in the store, so any server
process can do it, also after a restart. One request wins; another that comes meanwhile gets a 409. If the state is gone
or the conversation differs, the request is a new run over all of it, and its trace says so.

Another key's run does not exist here. A request without such ids at its end costs nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection

import msgspec

from dirigent.errors import StoreError
from dirigent.messages import Message
from dirigent.run.resume import RunState, pending_calls, run_of_reference, unfinished_workers, with_results
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.asked import Asked
from dirigent.store import Store, run_states
from dirigent.store.run_states import RunRow
from dirigent.store.tables import now

KEPT_S = 7 * 24 * 3600.0
"""Seconds that a run waits for the results of its tools."""

NOT_RESUMED = "the run that asked for these tools is not kept any more, or its conversation changed: planned anew"


class Kept(msgspec.Struct, frozen=True):
    """The stored state of a run that continues later."""

    state: RunState
    model: str
    seen: str
    """A digest of the conversation that the run has seen: results must come after exactly this one."""
    asked: Asked | None = None
    """The request of a background run, from which its conductor is made again."""
    purpose: dict[str, str] = {}
    """Why a background run is made (`takeover.py`)."""


class Waiting(msgspec.Struct, frozen=True):
    """A stored run that waits for tool results."""

    row: RunRow
    kept: Kept


def kept(state: RunState, asked: Asked) -> Kept:
    """Makes the stored state of a run that pauses. `asked` has the conversation as its caller last sent it."""
    return Kept(state, asked.model, _digest(asked.question))


def referenced_run(question: tuple[Message, ...]) -> str | None:
    """The run whose tool calls the end of this conversation answers; None if it answers no call of ours."""
    if question[-1].role != "tool":
        return None
    runs = {run_of_reference(call_id) for call_id in _results(question)}
    return runs.pop() if len(runs) == 1 else None


async def waiting_run(
    store: Store, run_id: str, asked: Asked, *, key_id: str, workers: Collection[str]
) -> Waiting | None:
    """Returns the run that waits for these results, or None. A row that cannot be read is a `Problem`."""
    row = await run_states.find(store, run_id)
    if row is None or row.key_id != key_id:
        return None
    try:
        found = row.read(Kept)
    except StoreError as error:
        raise Problem(409, str(error), code="run_not_readable", param=asked.fields.messages) from error
    question = asked.question
    pending = [call.id for call in pending_calls(run_id, found.state.trace.rounds)]
    results = _results(question)
    is_the_same = (
        found.model == asked.model
        and found.seen == _digest(question[: _asked_at(question)])
        and bool(pending)
        and set(results) <= set(pending)
        and unfinished_workers(found.state.trace) <= set(workers)
    )
    if not is_the_same:
        return None
    if missing := [id for id in pending if id not in results]:
        said = f"results are missing for the tool calls {', '.join(missing)}; send all of them"
        raise Problem(400, said, code="missing_tool_results", param=asked.fields.messages)
    if row.state != "waiting" and not row.abandoned(now()):
        raise _busy()
    return Waiting(row, found)


async def take_up(store: Store, waiting: Waiting) -> None:
    """Take the run for this request alone, and give it back if the request is cancelled meanwhile."""
    taking = asyncio.ensure_future(run_states.take(store, waiting.row))
    try:
        won = await asyncio.shield(taking)
    except asyncio.CancelledError:
        await asyncio.wait([taking])
        if not taking.cancelled() and taking.exception() is None and taking.result():
            await run_states.give_back(store, waiting.row.run_id)
        raise
    if not won:
        raise _busy()


def going_on(found: Kept, question: tuple[Message, ...]) -> RunState:
    """The run's state with the results of its tools."""
    # As the caller wrote it: in the stored copy, everything that looks like a key is masked.
    trace = msgspec.structs.replace(found.state.trace, question=question[: len(found.state.trace.question)])
    return with_results(msgspec.structs.replace(found.state, trace=trace), _results(question))


def _asked_at(question: tuple[Message, ...]) -> int:
    """The index of the assistant's message whose calls the end of the conversation answers."""
    index = len(question) - 1
    while index > 0 and question[index].role == "tool":
        index -= 1
    return index


def _results(question: tuple[Message, ...]) -> dict[str, Message]:
    return {message.tool_call_id: message for message in question[_asked_at(question) + 1 :]}


def _digest(question: tuple[Message, ...]) -> str:
    """A digest of the parts that clients send back unchanged. Without instructions: many clients write the time of day
    into them."""
    said = [
        (message.role, message.content, [call.id for call in message.tool_calls], message.tool_call_id)
        for message in question
        if message.role != "system"
    ]
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()


def _busy() -> Problem:
    said = "another request is going on with this run; wait for its answer"
    return Problem(409, said, code="run_busy", retry_after_s=1)
