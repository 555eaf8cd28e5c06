"""The scripted workers that ship for users' tests."""

from __future__ import annotations

import asyncio

import pytest

from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Delta, Event, Message, Reply, Request, ToolCall, Usage, conversation
from dirigent.workers.scripted import FromFunction, Scripted
from tests.facts import facts

HELLO = Request(conversation("hello there"))


async def test_replies_come_in_turn_and_the_last_repeats():
    worker = Scripted("one", "two")
    assert [(await worker.ask(HELLO)).text for _ in range(4)] == ["one", "two", "two", "two"]
    assert worker.calls == 4


async def test_it_stores_its_requests():
    worker = Scripted("ok")
    await worker.ask(Request((Message("system", "be brief"), Message("user", "first"))))
    await worker.ask(Request(conversation("second")))
    assert worker.seen_text == "be brief\nfirst\nsecond"
    assert worker.requests[1].messages[0].text == "second"


async def test_a_reply_may_be_whole_computed_or_awaited():
    async def later(request: Request) -> str:
        await asyncio.sleep(0)
        return f"late {request.messages[-1].text}"

    called = Reply("", tool_calls=(ToolCall("1", "look", "{}"),), finish="tool_calls")
    worker = Scripted(called, lambda request: request.messages[-1].text.upper(), later)
    assert (await worker.ask(HELLO)).tool_calls[0].name == "look"
    assert (await worker.ask(HELLO)).text == "HELLO THERE"
    assert (await worker.ask(HELLO)).text == "late hello there"


async def test_an_exception_is_raised_and_a_worker_error_anew_each_time():
    worker = Scripted(WorkerError("down", fault="overloaded", status=503))
    errors = []
    for _ in range(2):
        with pytest.raises(WorkerError, match="down") as caught:
            await worker.ask(HELLO)
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert errors[1].fault == "overloaded"
    assert errors[1].status == 503


async def test_a_function_may_return_the_exception_to_raise():
    with pytest.raises(ZeroDivisionError):
        await Scripted(lambda request: ZeroDivisionError("x")).ask(HELLO)


async def test_anything_else_is_a_mistake_of_the_script():
    with pytest.raises(TypeError, match=facts("7")):
        await Scripted(lambda request: 7).ask(HELLO)  # type: ignore[arg-type, return-value]


def test_a_script_without_replies_is_refused():
    with pytest.raises(ConfigError, match=facts("mute")):
        Scripted(name="mute")


@pytest.mark.parametrize("text", ["a few words here", "  spaces\n\nkept  ", "", " ", "one"])
async def test_observers_see_the_text_word_by_word(text: str):
    seen: list[Event] = []
    reply = await Scripted(text).ask(HELLO, observe=seen.append)
    pieces = [event.text for event in seen if isinstance(event, Delta)]
    assert "".join(pieces) == reply.text == text
    assert len(pieces) == max(len(text.split()), 1 if text else 0)


async def test_tokens_are_estimated_unless_given():
    assert (await Scripted("12345").ask(HELLO)).usage == Usage(input_tokens=3, output_tokens=2)
    assert (await Scripted("12345", usage=Usage(7, 8)).ask(HELLO)).usage == Usage(7, 8)
    assert (await Scripted(Reply("x", usage=Usage(5, 6))).ask(HELLO)).usage == Usage(5, 6)


async def test_a_text_longer_than_allowed_is_cut():
    reply = await Scripted("a" * 100).ask(Request(conversation("q"), max_output_tokens=10))
    assert reply.finish == "length"
    assert reply.usage.output_tokens == 10
    assert reply.text == "a" * 40


async def test_it_can_be_cancelled_before_and_during_its_words():
    slow = Scripted("never", delay_s=60)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(slow.ask(HELLO), 0.01)
    seen: list[Event] = []
    wordy = Scripted("one two", word_delay_s=60)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wordy.ask(HELLO, observe=seen.append), 0.01)
    assert seen == [Delta("one")]


async def test_the_card_takes_any_field():
    info = Scripted("x", name="s", about="says x", skills=("x",), subtask_only=True, region="eu").info
    assert (info.name, info.about, info.kind, info.skills) == ("s", "says x", "scripted", ("x",))
    assert info.subtask_only
    assert info.region == "eu"


async def test_a_function_of_the_request_or_of_the_last_text_is_a_worker():
    async def count(request: Request) -> str:
        return str(len(request.messages))

    assert (await FromFunction(count, name="count").ask(HELLO)).text == "1"
    assert (await FromFunction.of_text(str.upper, name="loud").ask(HELLO)).text == "HELLO THERE"
    assert FromFunction.of_text(str.upper, name="loud", about="shouts").info.about == "shouts"


async def test_an_exception_of_the_function_is_the_workers_failure():
    def fail(request: Request) -> str:
        raise WorkerError("not today", fault="unanswerable")

    with pytest.raises(WorkerError, match="not today"):
        await FromFunction(fail).ask(HELLO)
