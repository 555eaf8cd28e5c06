"""Runs that wait for their caller's tools: found again by the ids that their tool calls left under.

A caller sends its whole history again, with the tools' results at the end. Where those answer calls of a run that
waits, of the same key and model, that run goes on at exactly the steps that asked: the state is in the store, so
any server process can do it, also after a restart. One request wins; another that comes meanwhile is told so (409).
Where the state is gone or the conversation is another one, the request is a new run over all of it, and says so.

Another key's run does not exist. A request without such ids at its end costs nothing here.
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
from dirigent.serve.apis.chat.wire import ChatRequest
from dirigent.store import Store, run_states
from dirigent.store.timestamps import now
from dirigent.store.run_states import RunRow

KEPT_S = 7 * 24 * 3600.0
"""How long a run waits for its tools' results."""

NOT_RESUMED = "the run that asked for these tools is not kept any more, or its conversation changed: planned anew"


class Kept(msgspec.Struct, frozen=True):
    """All that is needed to go on with a run."""

    state: RunState
    model: str
    seen: str
    """A digest of the conversation that the run has seen: results must come after exactly this one."""
    chat: ChatRequest | None = None
    """Of a background run: what was asked, to make its conductor from again."""
    purpose: dict[str, str] = {}
    """Of a background run: why it is made (`background.py`)."""


class Waiting(msgspec.Struct, frozen=True):
    """A run that waits for tool results, as it was found."""

    row: RunRow
    kept: Kept


def kept(state: RunState, *, model: str, question: tuple[Message, ...]) -> Kept:
    """What is kept of a run when it pauses; `question` is the conversation as its caller last sent it."""
    return Kept(state, model, _digest(question))


def referenced_run(question: tuple[Message, ...]) -> str | None:
    """The run whose tool calls the end of this conversation answers; None where it answers none of ours."""
    if question[-1].role != "tool":
        return None
    runs = {run_of_reference(call_id) for call_id in _results(question)}
    return runs.pop() if len(runs) == 1 else None


async def waiting_run(
    store: Store,
    run_id: str,
    question: tuple[Message, ...],
    *,
    key_id: str,
    model: str,
    workers: Collection[str],
) -> Waiting | None:
    """Returns the run that waits for these results, or None. A row that cannot be read is a `Problem`."""
    row = await run_states.find(store, run_id)
    if row is None or row.key_id != key_id:
        return None
    try:
        found = row.read(Kept)
    except StoreError as error:
        raise Problem(409, str(error), code="run_not_readable", param="messages") from error
    if not _continues(found, question, model=model, workers=workers):
        return None
    results = _results(question)
    missing = [c.id for c in pending_calls(run_id, found.state.trace.rounds) if c.id not in results]
    if missing:
        said = f"results are missing for the tool calls {', '.join(missing)}; send all of them"
        raise Problem(400, said, code="missing_tool_results", param="messages")
    if row.state != "waiting" and not row.abandoned(now()):
        raise _busy()
    return Waiting(row, found)


async def take_up(store: Store, waiting: Waiting) -> None:
    """Make the run this request's alone. It is given back if the request is cancelled meanwhile."""
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
    """The run's state with its tools' results put in."""
    # As the caller wrote it, not as it was kept: what looked like a key was masked on its way to the disk.
    trace = msgspec.structs.replace(found.state.trace, question=question[: len(found.state.trace.question)])
    return with_results(msgspec.structs.replace(found.state, trace=trace), _results(question))


def _continues(found: Kept, question: tuple[Message, ...], *, model: str, workers: Collection[str]) -> bool:
    """Whether this conversation is the one the run waits in, and the run can still be carried out."""
    trace = found.state.trace
    pending = {call.id for call in pending_calls(trace.id, trace.rounds)}
    return (
        found.model == model
        and found.seen == _digest(question[: _asked_at(question)])
        and set(_results(question)) <= pending
        and bool(pending)
        and unfinished_workers(trace) <= set(workers)
    )


def _asked_at(question: tuple[Message, ...]) -> int:
    """Where the assistant's message stands whose calls the end of the conversation answers."""
    index = len(question) - 1
    while index > 0 and question[index].role == "tool":
        index -= 1
    return index


def _results(question: tuple[Message, ...]) -> dict[str, Message]:
    return {message.tool_call_id: message for message in question[_asked_at(question) + 1 :]}


def _digest(question: tuple[Message, ...]) -> str:
    """Of what was said, in the parts that clients send back unchanged. Instructions are left out: many clients
    write the time of day into them."""
    said = [
        (message.role, message.content, [call.id for call in message.tool_calls], message.tool_call_id)
        for message in question
        if message.role != "system"
    ]
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()


def _busy() -> Problem:
    said = "another request is going on with this run; wait for its answer"
    return Problem(409, said, code="run_busy", retry_after_s=1)
