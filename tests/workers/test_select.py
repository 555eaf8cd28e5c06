"""The local worker that repeats the result a fitted selector picks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from dirigent.errors import WorkerError
from dirigent.messages import Choice, Delta, Event, Request, Result
from dirigent.workers.reader import Select


class Picked(msgspec.Struct):
    place: int
    chance: float | None
    votes: int
    of: int


class Picks:
    def __init__(self, picked: Picked) -> None:
        self.picked = picked
        self.seen: tuple[str, Sequence[Result]] = ("", ())

    def choose(self, question: str, results: Sequence[Result]) -> Picked:
        self.seen = (question, results)
        return self.picked


RESULTS = (Result(0, "quick", "answer", "It is 4."), Result(1, "thinker", "answer", "I think\nso: 5", ended=False))


async def test_it_repeats_the_picked_workers_whole_reply_with_its_confidence() -> None:
    picks = Picks(Picked(1, 0.8, 1, 2))
    events: list[Event] = []
    reply = await Select(picks).ask(Request((), question="2+2?", results=RESULTS), observe=events.append)
    assert (reply.text, reply.confidence, reply.finish) == ("I think\nso: 5", 0.8, "length")
    assert reply.chosen == Choice(1, 1, 2)
    assert (reply.cost_usd, reply.usage.output_tokens, reply.attempts) == (0.0, 0, ())
    assert picks.seen == ("2+2?", list(RESULTS))
    assert "".join(event.text for event in events if isinstance(event, Delta)) == reply.text


async def test_empty_results_are_not_chosen_from() -> None:
    picks = Picks(Picked(0, None, 1, 1))
    results = (Result(0, "quick", "answer", "  "), RESULTS[0])
    reply = await Select(picks).ask(Request((), results=results))
    assert (reply.text, reply.confidence) == ("It is 4.", None)
    assert picks.seen[1] == [RESULTS[0]]


async def test_the_error_without_a_result_names_the_remedy() -> None:
    with pytest.raises(WorkerError, match="let its step read them"):
        await Select(Picks(Picked(0, 0.5, 1, 1))).ask(Request(()))


def test_its_card_lets_a_plan_with_until_end_in_it() -> None:
    info = Select(Picks(Picked(0, 0.5, 1, 1)), name="judge").info
    assert (info.name, info.selects, info.reads_results, info.kind) == ("judge", True, True, "select")
    assert info.price is not None
    assert info.price.output == 0
