"""Slots: the slot of each request, and the requests that wait."""

from __future__ import annotations

import asyncio

import pytest

from dirigent.errors import ConfigError
from dirigent.workers.local_child import Slot, Slots, choose_slot
from tests.facts import facts

PREFIX = "You plan. " * 100


def test_a_prompt_gets_the_slot_that_has_read_most_of_it() -> None:
    idle = [Slot(0, None, "short"), Slot(1, None, PREFIX + "old question"), Slot(2)]
    assert choose_slot(idle, adapter=None, prompt=PREFIX + "new question").index == 1


def test_a_prompt_that_shares_little_gets_the_slot_with_the_least_loss() -> None:
    idle = [Slot(0, None, PREFIX), Slot(1, None, "a step"), Slot(2, None, "a longer step")]
    assert choose_slot(idle, adapter=None, prompt="You plan nothing.").index == 1


def test_a_prefix_read_by_another_adapter_does_not_count() -> None:
    idle = [Slot(0, 3, PREFIX), Slot(1, None, "x" * 2000)]
    assert choose_slot(idle, adapter=4, prompt=PREFIX).index == 0, "only because it is the shorter one"
    idle = [Slot(0, 3, PREFIX + "x" * 2000), Slot(1, None, "x" * 2000)]
    assert choose_slot(idle, adapter=4, prompt=PREFIX).index == 1


async def test_a_planners_prefix_survives_the_steps_in_between() -> None:
    slots = Slots(2)
    async with slots.lease(None, PREFIX + "one") as planner:
        pass
    for step in range(5):
        async with slots.lease(None, f"step {step}") as other:
            assert other != planner
    async with slots.lease(None, PREFIX + "two") as again:
        assert again == planner


async def test_a_slot_has_one_user_and_later_requests_wait() -> None:
    slots, order = Slots(1), []

    async def hold(name: str, release: asyncio.Event) -> None:
        async with slots.lease(None, name):
            order.append(name)
            await release.wait()

    releases = [asyncio.Event() for _ in range(3)]
    tasks = [asyncio.create_task(hold(str(i), release)) for i, release in enumerate(releases)]
    await asyncio.sleep(0)
    assert order == ["0"]
    tasks[1].cancel()
    releases[0].set()
    releases[2].set()
    await asyncio.gather(tasks[0], tasks[2])
    assert order == ["0", "2"], "one that is cancelled while it waits never had its turn"


async def test_a_new_server_remembers_nothing() -> None:
    slots = Slots(2)
    async with slots.lease(None, PREFIX + "y" * 1000) as first:
        pass
    slots.forget()
    async with slots.lease(None, "z") as second, slots.lease(None, "z") as third:
        assert {second, third} == {0, 1}
    assert first in (0, 1)


@pytest.mark.parametrize("count", [0, 65])
def test_an_impossible_number_of_slots_is_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=facts(str(count))):
        Slots(count)
