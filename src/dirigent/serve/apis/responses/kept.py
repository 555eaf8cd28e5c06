"""Stored responses: written when they end, found by their own key alone, continued as a whole chain.

`store/responses.py` knows rows of JSON, the route knows structs; this module is between them.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from dirigent.errors import DirigentError
from dirigent.serve.apis.responses.wire import (
    CallItem,
    CallOutputItem,
    InputText,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ResponseObject,
)
from dirigent.serve.http.body import MAX_BODY_BYTES
from dirigent.serve.http.errors import Problem, problem_of
from dirigent.store import Store
from dirigent.store.keys import Caller
from dirigent.store.responses import KeptResponse, find_chain, find_response, finish_response, keep_response

MAX_CHAIN_BYTES = 4 * MAX_BODY_BYTES
"""The most that is read of a conversation. Each request adds up to one body to it, and has all of it in memory."""


async def keep(
    store: Store, response: ResponseObject, items: Sequence[Item], *, key_id: str, run_id: str
) -> KeptResponse:
    """Store a new response. Returns when it is committed."""
    kept = KeptResponse(
        id=response.id,
        key_id=key_id,
        run_id=run_id,
        status=response.status,
        items=msgspec.json.encode(numbered(items)),
        response=msgspec.json.encode(response),
        previous_id=response.previous_response_id,
    )
    try:
        await keep_response(store, kept)
    except DirigentError as error:
        raise problem_of(error) from error
    return kept


async def finish(store: Store, kept: KeptResponse, response: ResponseObject) -> bool:
    """Give an unfinished response its end. Returns False if it had ended already, or is gone."""
    encoded = msgspec.json.encode(response)
    return await finish_response(store, msgspec.structs.replace(kept, status=response.status, response=encoded))


async def found(store: Store, id: str, caller: Caller) -> KeptResponse:
    """The caller's response, or a 404. Another key's response does not exist."""
    kept = await find_response(store, id, key_id=caller.key_id)
    if kept is None:
        raise missing(id)
    return kept


async def conversation_before(store: Store, id: str, caller: Caller) -> tuple[tuple[Item, ...], str]:
    """All items up to and in the response with this id, answers included, and that response's run."""
    chain = await find_chain(store, id, key_id=caller.key_id, most_bytes=MAX_CHAIN_BYTES)
    if chain.missing_id:
        raise missing(chain.missing_id, param="previous_response_id")
    if chain.too_long:
        why = f"the conversation up to {id} holds more than {MAX_CHAIN_BYTES:,} bytes; begin a new one"
        raise Problem(413, why, code="too_large", param="previous_response_id")
    said: list[Item] = []
    for link in chain.links:
        response = read(link)
        if response.status in ("queued", "in_progress"):
            raise Problem(
                400, f"{link.id} has not ended: wait for its answer", code="not_ended", param="previous_response_id"
            )
        said += items_of(link) + response.output
    return tuple(said), chain.links[-1].run_id


async def items_used(store: Store, id: str, caller: Caller) -> tuple[Item, ...]:
    """The items that the response with this id was made from: the chain before it, then its own."""
    kept = await found(store, id, caller)
    if kept.previous_id is None:
        return items_of(kept)
    before, _ = await conversation_before(store, kept.previous_id, caller)
    return (*before, *items_of(kept))


def read(kept: KeptResponse) -> ResponseObject:
    return _RESPONSE.decode(kept.response)


def items_of(kept: KeptResponse) -> tuple[Item, ...]:
    return _ITEMS.decode(kept.items)


def missing(id: str, *, param: str = "") -> Problem:
    return Problem(404, f"no response has the id {id[:80]!r}", code="response_not_found", param=param)


def numbered(items: Sequence[Item]) -> list[Item]:
    """The items as they are stored: each with an id, its text as parts, without reasoning."""
    return [_numbered(item) for item in items if not isinstance(item, ReasoningItem)]


def _numbered(item: Item) -> Item:
    prefix = {MessageItem: "msg", CallItem: "fc", CallOutputItem: "fco"}[type(item)]
    id = item.id or f"{prefix}_{secrets.token_hex(12)}"
    if isinstance(item, MessageItem) and isinstance(item.content, str):
        part = OutputText(item.content) if item.role == "assistant" else InputText(item.content)
        item = msgspec.structs.replace(item, content=(part,))
    return msgspec.structs.replace(item, id=id, status=item.status or "completed")


_RESPONSE = msgspec.json.Decoder(ResponseObject)
_ITEMS: msgspec.json.Decoder[tuple[Item, ...]] = msgspec.json.Decoder(tuple[Item, ...])
