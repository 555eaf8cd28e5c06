"""An unconfirmed answer is marked so; agreement is never called a proof."""

from __future__ import annotations

import pytest
from tests.facts import says

from dirigent import Conductor, Pool, Scripted
from dirigent.messages import Choice, Ran, Reply
from dirigent.planners.fixed import Single
from dirigent.show.confirmation import confirmation, is_unmeasured


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply("x"), "unchecked nothing"),
        (Reply("77", ran=Ran("print(77)", 0, "77")), "unchecked program printed"),
        (Reply("The program failed.", ran=Ran("1/0", 1)), "unchecked nothing"),
        (Reply("77", chosen=Choice(0, 3, 4)), "unchecked 3 of 4 no proof"),
        (Reply("77", chosen=Choice(0, 1, 4)), "unchecked nothing"),
        (Reply("77", confidence=0.83, chosen=Choice(0, 3, 4)), "83% before"),
    ],
)
async def test_the_support_for_an_answer_is_shown(reply: Reply, said: str) -> None:
    trace = await Conductor(Single(), Pool([Scripted(reply, name="a")])).run("?")
    assert says(confirmation(trace), said)
    assert ("unchecked" in confirmation(trace)) is (reply.confidence is None)


async def test_only_answers_of_this_machine_get_the_word() -> None:
    local, far = Scripted("x", name="a", kind="local"), Scripted("x", name="b", kind="openai")
    assert is_unmeasured(await Conductor(Single("a"), Pool([local, far])).run("?"))
    assert not is_unmeasured(await Conductor(Single("b"), Pool([local, far])).run("?"))
