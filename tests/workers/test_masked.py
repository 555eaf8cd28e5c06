"""Masked: live keys leave no worker, neither whole nor in pieces; everything else passes as it is."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from dirigent.messages import Delta, Event, Message, Observe, Reply, Request, ToolCall, ignore
from dirigent.workers.secret import Secret
from dirigent.workers.worker import WorkerInfo
from dirigent.workers.wrappers import Masked, MaskedPieces, masked

ASKED = Request((Message("user", "?"),))
KEY = "a-live-key-0123456789"
FOREIGN = "sk-proj-abcdefghijklmnopqrstuvwx"


class Telling:
    """A worker that streams these pieces."""

    info = WorkerInfo("telling")

    def __init__(self, *pieces: str, arguments: str = "{}") -> None:
        self.pieces, self.arguments = pieces, arguments

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        for piece in self.pieces:
            observe(Delta(piece))
        return Reply(
            "".join(self.pieces), tool_calls=(ToolCall("1", "send", self.arguments),), reasoning=self.pieces[0]
        )


async def test_a_reply_that_quotes_a_live_key_is_masked_whole_and_in_pieces() -> None:
    key = Secret(KEY)
    worker = Masked(
        Telling("your key is a-live", "-key-0123", f"456789, not {FOREIGN}", arguments=f'{{"key": "{KEY}"}}')
    )
    seen: list[Event] = []
    reply = await worker.ask(ASKED, observe=seen.append)
    assert reply.text == f"your key is ***, not {FOREIGN}"
    assert "".join(event.text for event in seen if isinstance(event, Delta)) == reply.text
    assert reply.tool_calls[0].arguments == '{"key": "***"}'
    assert (await worker.ask(ASKED)).text == reply.text
    assert key.reveal() == KEY, "it is live"


async def test_a_key_that_is_no_longer_live_passes() -> None:
    key, said = Secret("b-" + KEY), "b-" + KEY
    assert (await Masked(Telling(said)).ask(ASKED)).text == "***"
    del key
    assert (await Masked(Telling(said)).ask(ASKED)).text == said


async def test_an_end_that_might_become_a_key_is_given_when_it_does_not() -> None:
    key = Secret(KEY)
    seen: list[Event] = []
    reply = await Masked(Telling("it ends with a-live-key")).ask(ASKED, observe=seen.append)
    assert [event.text for event in seen if isinstance(event, Delta)] == ["it ends with ", "a-live-key"]
    assert reply.text == "it ends with a-live-key"
    assert key.reveal() == KEY, "it is live"


VALUES = frozenset({"ababab", "abababcc", "cabc", "bcab"})


@given(st.lists(st.text("abc", max_size=6), max_size=30))
def test_pieces_are_masked_like_the_whole_and_less_than_the_longest_key_is_held_back(pieces: list[str]) -> None:
    stream, out = MaskedPieces(VALUES), ""
    for piece in pieces:
        out += stream.feed(piece)
        assert len(stream.held) < max(map(len, VALUES))
    out += stream.finish()
    assert out == masked("".join(pieces), VALUES)
    assert not any(re.search(value, out) for value in VALUES)
