"""Guardrails: size bounds, a blocklist, personal data that stays in its region, replies that must be replies."""

from __future__ import annotations

import json
import sys
import time
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dirigent.config.file import parse_config
from dirigent.config.server_settings import Guardrails
from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Delta, Message, Reply, Request, Text, ToolCall
from dirigent.serve.http.errors import Problem
from dirigent.serve.policy.guardrails import (
    Bounded,
    Regional,
    check_request,
    guarded,
    is_card,
    is_iban,
    redactor,
    without_personal_data,
)
from dirigent.serve.policy.json_schema import Answering, is_refusal
from dirigent.serve.runs.asked import Asked
from dirigent.workers.metering import Metered
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted
from tests.facts import facts, says
from tests.serve.conftest import CONFIG, Server, Start
from tests.stub_wires import StubCall, StubReply


def asking(*question: Message) -> Asked:
    return Asked(model="m", question=question, options=Request(()))


async def railed(start: Start, rails: str) -> Server:
    return await start(config=CONFIG + "\n[guardrails]\n" + rails)


# ---- what comes in ----------------------------------------------------------------------------------------


async def test_a_request_over_the_bound_is_a_413_and_costs_nothing(start: Start) -> None:
    server = await railed(start, "max_request_chars = 10")
    assert (await server.chat("0123456789")).status == 200
    refused = await server.chat("0123456789x")
    assert (refused.status, refused.error["code"], refused.error["param"]) == (413, "too_large", "messages")
    assert len(server.stub.calls) == 1


def test_the_bound_is_on_all_messages_together() -> None:
    rails = Guardrails(max_request_chars=10)
    check_request(asking(Message("system", "01234"), Message("user", "56789")), rails)
    with pytest.raises(Problem, match=facts("11 10")):
        check_request(asking(Message("system", "01234"), Message("user", "56789x")), rails)


async def test_blocked_words_are_refused_without_naming_the_rule(start: Start) -> None:
    server = await railed(start, r"block = ['project\s+zeus', 'forbidden']")
    answer = await server.chat(
        [{"role": "system", "content": "be kind"}, {"role": "user", "content": "Project  ZEUS?"}]
    )
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "content_policy", "messages[1]")
    assert "zeus" not in answer.error["message"].lower()
    assert server.stub.calls == []
    assert (await server.chat("project hera")).status == 200


# ---- what leaves ------------------------------------------------------------------------------------------

SECRETS = ["ann@example.org", "+49 30 1234567", "DE89 3704 0044 0532 0130 00", "4111 1111 1111 1111"]


async def test_personal_data_does_not_leave_the_home_region_in_any_step_nor_to_the_planner(start: Start) -> None:
    server = await railed(start, 'home_region = "eu"\nredact = "personal"')
    said = f"Write to {SECRETS[0]} or {SECRETS[1]}, from {SECRETS[2]} or {SECRETS[3]}."
    assert (await server.chat(said, model="ultra")).status == 200
    calls = {call.model: json.dumps(call.body) for call in server.stub.calls}
    assert calls.keys() == {"boss", "alpha", "beta"}
    for secret in SECRETS:
        assert secret in calls["alpha"], "alpha is of the home region"
        assert secret not in calls["beta"]
        assert secret not in calls["boss"]
    for kind in ("email", "phone", "iban", "card"):
        assert f"[{kind} " in calls["beta"]


async def test_without_a_home_region_personal_data_is_sent_to_no_worker() -> None:
    nowhere, abroad = Scripted("ok", name="nowhere"), Scripted("ok", name="abroad", region="us")
    pool = guarded(Pool([nowhere, abroad]), Guardrails(redact="personal"))
    for worker in pool.values():
        await worker.ask(Request((Message("user", f"Write to {SECRETS[0]}."),)))
    assert all(SECRETS[0] not in asked.seen_text for asked in (nowhere, abroad))


async def test_a_speakers_name_is_checked_like_the_text(start: Start) -> None:
    server = await railed(start, 'home_region = "eu"\nredact = "personal"\nblock = ["zeus"]')
    said = [{"role": "user", "content": "hi", "name": name} for name in ("bob", "ann@example.org")]
    assert (await server.chat(said, model="worker/alpha")).status == 200
    assert (await server.chat(said, model="worker/beta")).status == 200
    home, abroad = [[m.get("name") for m in call.body["messages"]] for call in server.stub.calls]
    assert (home, abroad) == (["bob", "ann@example.org"], ["bob", None])
    blocked = await server.chat([{"role": "user", "content": "hi", "name": "zeus"}])
    assert (blocked.status, blocked.error["code"]) == (400, "content_policy")


async def test_the_substitute_of_a_step_obeys_it_too(start: Start) -> None:
    server = await railed(start, 'home_region = "eu"\nredact = "personal"')
    server.stub.faults = ["500"]
    assert (await server.chat("I am ann@example.org", model="mini")).status == 200
    assert [call.model for call in server.stub.calls] == ["alpha", "beta"]
    assert "ann@" not in json.dumps(server.stub.calls[1].body)


@pytest.mark.parametrize(
    "text",
    [
        "ann@example.org",
        "ann.b+tag@mail.example.co.uk",
        "+49 30 1234567",
        "+1 (415) 555-2671",
        "0049 30 1234567",
        "030 1234567",
        "415-555-2671",
        "DE89370400440532013000",
        "GB82 WEST 1234 5698 7654 32",
        "4111-1111-1111-1111",
        "378282246310005",
    ],
)
def test_personal_data_is_found(text: str) -> None:
    masked = without_personal_data(f"before {text}, after")
    assert text not in masked
    assert masked.startswith("before [")
    assert masked.endswith("], after")


@pytest.mark.parametrize(
    "text",
    [
        "version 1.2.3",
        "in 2026, on 2026-11-15 at 12:30",
        "3.14159265358979",
        "1234567890123456",  # no card: its checksum is wrong
        "0000000000000000",
        "GB00 WEST 1234 5698 7654 32",  # no IBAN: its checksum is wrong
        "a@b",
        "192.168.100.200",
        "call 42 times",
        "x = 10000000000",
    ],
)
def test_other_text_is_left_as_it_is(text: str) -> None:
    assert without_personal_data(text) == text


def test_the_same_person_has_the_same_placeholder_and_another_has_another() -> None:
    text = without_personal_data("ann@example.org wrote to bob@example.org; Ann@example.org waits")
    first, second, third = (part.split("]")[0] for part in text.split("[email ")[1:])
    assert first == third != second


@settings(deadline=None)
@given(st.text(max_size=300))
def test_masking_never_fails_and_is_done_in_one_pass(text: str) -> None:
    once = without_personal_data(text)
    assert without_personal_data(once) == once


@pytest.mark.parametrize("piece", ["a@", "1", "1 ", "+1", "AA11 ", "a.", "0 1", "(0", "1-", "@a.b", "AA11A1A1A1A1 "])
def test_masking_takes_time_in_step_with_the_text(piece: str) -> None:
    began = time.process_time()
    without_personal_data(piece * (200_000 // len(piece)))
    assert time.process_time() - began < 5


def test_checksums_against_numbers_worked_by_hand() -> None:
    assert not is_card("4111 1111 1111 1112")
    assert is_card("4539 1488 0343 6467")
    assert not is_card("4539 1488 0343 6468")
    assert is_iban("GB82WEST12345698765432")
    assert not is_iban("GB82WEST12345698765433")


def test_card_numbers_of_13_to_19_digits_are_cards() -> None:
    assert is_card("4222222222222")
    assert is_card("6000000000000000004")
    assert not is_card("400000000002"), "12 digits with a right checksum"
    assert not is_card("40000000000000000002"), "20 digits with a right checksum"


async def test_parts_tool_calls_and_tool_results_are_masked_and_images_left() -> None:
    worker = Scripted("done", name="far")
    said = "ann@example.org"
    messages = (
        Message("user", (Text(said),)),
        Message("assistant", "", tool_calls=(ToolCall("1", "mail", json.dumps({"to": said})),)),
        Message("tool", said, tool_call_id="1", name="mail"),
    )
    await Regional(worker, without_personal_data).ask(Request(messages))
    assert said not in repr(worker.requests[0].messages)
    assert json.loads(worker.requests[0].messages[1].tool_calls[0].arguments)["to"].startswith("[email ")


async def test_a_function_of_the_operators_own_can_take_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("own_rules")
    module.hide = lambda text: text.replace("Zeus", "[project]")  # type: ignore[attr-defined]
    module.broken = lambda text: 1 / 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_rules", module)
    hide = redactor(Guardrails(redact="hook", redact_hook="own_rules:hide"))
    broken = redactor(Guardrails(redact="hook", redact_hook="own_rules:broken"))
    assert hide is not None
    assert broken is not None
    worker = Scripted("done", name="far")
    await Regional(worker, hide).ask(Request((Message("user", "Zeus is late"),)))
    assert worker.requests[0].messages[0].text == "[project] is late"
    with pytest.raises(WorkerError, match=facts("far redact_hook ZeroDivisionError")):
        await Regional(worker, broken).ask(Request((Message("user", "x"),)))
    assert len(worker.requests) == 1
    with pytest.raises(ConfigError, match=facts("redact_hook own_rules:missing")):
        redactor(Guardrails(redact="hook", redact_hook="own_rules:missing"))


async def test_a_function_of_the_operators_that_gives_no_text_lets_nothing_through() -> None:
    worker = Scripted("done", name="far")
    with pytest.raises(WorkerError, match=facts("far redact_hook NoneType")):
        await Regional(worker, lambda text: None).ask(Request((Message("user", "x"),)))  # type: ignore[arg-type, return-value]
    assert worker.requests == []


# ---- what comes back --------------------------------------------------------------------------------------


async def test_a_reply_over_the_bound_fails_its_step_and_is_not_passed_on_while_it_is_written() -> None:
    worker = Bounded(Scripted("0123456789" * 3, name="w"), max_chars=20)
    seen: list[str] = []
    with pytest.raises(WorkerError, match=facts("w 30 max_reply_chars 20")):
        await worker.ask(Request((Message("user", "x"),)), observe=lambda e: seen.append(getattr(e, "text", "")))
    assert len("".join(seen)) <= 20
    assert (await Bounded(Scripted("short", name="w"), max_chars=20).ask(Request(()))).text == "short"


async def test_a_reply_of_just_the_bound_is_passed_on_whole() -> None:
    seen: list[str] = []
    worker = Bounded(Scripted("0123456789 123456789", name="w"), max_chars=20)
    reply = await worker.ask(Request(()), observe=lambda e: seen.append(getattr(e, "text", "")))
    assert "".join(seen) == reply.text == "0123456789 123456789"


async def test_a_reply_over_the_bound_is_on_the_bill() -> None:
    worker = Bounded(Metered(Scripted("0123456789", name="w")), max_chars=5)
    with pytest.raises(WorkerError) as caught:
        await worker.ask(Request((Message("user", "x"),)))
    assert [attempt.worker for attempt in caught.value.attempts] == ["w"]


async def test_an_empty_reply_is_asked_for_once_more_and_both_are_on_the_bill(start: Start) -> None:
    server = await railed(start, "check_empty = true")
    server.stub.answer = lambda call: StubReply("" if len(server.stub.calls) == 1 else "here")
    answer = await server.chat()
    assert answer.object["choices"][0]["message"]["content"] == "here"
    assert "empty" in json.dumps(server.stub.calls[1].body)
    trace = (await server.get(f"/v1/traces/{answer.object['dirigent']['trace_id']}")).object
    assert len(trace["rounds"][0]["steps"][0]["attempts"]) == 2


async def test_a_second_empty_reply_fails_the_step_and_another_takes_over(start: Start) -> None:
    server = await railed(start, "check_empty = true")
    server.stub.answer = lambda call: "" if call.model == "alpha" else "beta is here"
    answer = await server.chat(model="mini")
    assert answer.object["choices"][0]["message"]["content"] == "beta is here"


async def test_without_the_check_an_empty_reply_is_the_answer(server: Server) -> None:
    server.stub.answer = lambda call: ""
    assert (await server.chat()).status == 200
    assert len(server.stub.calls) == 1


async def test_a_refusal_is_asked_again_once_and_a_second_is_the_answer(start: Start) -> None:
    server = await railed(start, "check_refusal = true")
    server.stub.answer = refuse_first
    assert (await server.chat()).object["choices"][0]["message"]["content"] == "well then"
    server.stub.answer = lambda call: "I'm sorry, but I can't help with that."
    assert "can't help" in (await server.chat()).object["choices"][0]["message"]["content"]
    assert len(server.stub.calls) == 4


def refuse_first(call: StubCall) -> str:
    asked_again = "I cannot assist" in json.dumps(call.body)
    return "well then" if asked_again else "I cannot assist with this request."


async def test_a_refusal_that_was_streamed_is_not_taken_back() -> None:
    inner = Scripted("I can't help with that.", "other words", name="w")
    worker = Answering(inner, empty=True, refusal=True)
    seen: list[str] = []
    reply = await worker.ask(
        Request((Message("user", "x"),)), observe=lambda e: seen.append(e.text) if isinstance(e, Delta) else None
    )
    assert reply.text == "".join(seen) == "I can't help with that."
    assert len(inner.requests) == 1


@pytest.mark.parametrize("text", ["I’m sorry, but I can’t assist with that.", "Sorry, I cannot provide this."])
def test_refusals_by_their_words(text: str) -> None:
    assert is_refusal(Reply(text))
    assert is_refusal(Reply("", finish="refused"))
    assert not is_refusal(Reply(f"The letter says: {text}"))
    assert not is_refusal(Reply("I can help with that."))


@pytest.mark.parametrize(
    ("rails", "said"),
    [
        ("max_request_chars = 0", "max_request_chars 1 0"),
        ("block = ['(']", "block ("),
        ('redact = "hook"', "redact_hook module:function"),
        ('redact = "hook"\nredact_hook = "nonsense"', "redact_hook module:function nonsense"),
        ("max_reqest_chars = 5", "max_reqest_chars max_request_chars"),
    ],
)
def test_settings_that_cannot_work_are_refused(rails: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config("[guardrails]\n" + rails)
    assert says(str(caught.value), said)
