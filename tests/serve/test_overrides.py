"""Overrides: an operator's rules go before the conductor, within what a key may use, and leave a note and a record."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dirigent.config.file import parse_config
from dirigent.config.server_settings import Override
from dirigent.errors import ConfigError
from dirigent.messages import Image, Message, Request, Schema, Text, Tool
from dirigent.serve.policy.routing_rules import rule_for, task_kind
from dirigent.serve.runs.asked import Asked
from dirigent.show import draw_trace
from dirigent.store import audit
from dirigent.store.keys import Caller, create_key
from tests.facts import says
from tests.serve.conftest import CONFIG, Server, Start

RULES = """
[[override]]
name = "money to beta"
matches = "invoice|salary"
pin = "beta"

[[override]]
name = "code is planned by one"
kind = "code"
planner = "single"

[[override]]
name = "no boss for team a"
key = "team a"
model = "ultra"
deny = ["alpha"]

[[override]]
name = "small talk is cheap"
kind = "chat"
model = "dirigent-ultra"
profile = "mini"
"""


async def ruled(start: Start, **settings: object) -> Server:
    return await start(config=CONFIG + RULES, **settings)


async def steps(server: Server, said: str, **more: object) -> list[str]:
    answer = await server.chat(said, dirigent={"trace": True}, **more)
    assert answer.status == 200, answer.text
    return [step["worker"] for step in answer.object["dirigent"]["steps"]]


async def test_a_rule_on_the_words_pins_a_worker_also_against_the_callers_choice(start: Start) -> None:
    server = await ruled(start)
    assert await steps(server, "Check this INVOICE", model="worker/alpha") == ["beta"]
    assert await steps(server, "Check this invoice", model="mini") == ["beta"]
    refused = await server.chat("my salary", model="ultra", dirigent={"pool": {"allow": ["alpha"]}})
    assert (refused.status, refused.error["param"]) == (400, "dirigent.pool.allow")


async def test_it_is_on_the_trace_and_in_the_audit_log(start: Start) -> None:
    server = await ruled(start)
    answer = await server.chat("an invoice", model="worker/alpha")
    id = answer.object["dirigent"]["trace_id"]
    trace = (await server.get(f"/v1/traces/{id}")).object
    assert [says(note, "money to beta") for note in trace["notes"]] == [True]
    rows = [row async for row in audit.export(server.service.store)][:1]
    assert [(row.actor, row.action) for row in rows] == [("local", "override.apply")]
    details = msgspec.json.decode(rows[0].details)
    assert (details["rule"], details["run_id"], details["model"]) == ("money to beta", id, "worker/alpha")
    told = await server.chat("an invoice", model="worker/alpha", dirigent={"trace": True})
    assert told.object["dirigent"]["notes"] == trace["notes"]
    shown = draw_trace(await server.service.store.get(id)).plain
    assert trace["notes"][0] in shown
    plain = await server.chat("weather", model="worker/alpha")
    assert (await server.get(f"/v1/traces/{plain.object['dirigent']['trace_id']}")).object["notes"] == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "my salary"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "my salary"}], "max_tokens": 50}),
    ],
)
async def test_rules_hold_on_every_route(start: Start, path: str, body: dict[str, object]) -> None:
    server = await ruled(start)
    answer = await server.request("POST", path, json={"model": "worker/alpha"} | body)
    assert answer.status == 200, answer.text
    assert [call.model for call in server.stub.calls] == ["beta"]


async def test_a_kind_forces_a_planner_or_a_profile(start: Start) -> None:
    server = await ruled(start)
    assert await steps(server, "Write a python function", model="ultra") == ["boss"]  # `single`: the profile's worker
    assert await steps(server, "Good morning", model="dirigent-ultra") == ["alpha"]  # the profile mini
    said = {"model": "dirigent-ultra", "metadata": {"task_kind": "maths"}}
    assert len(await steps(server, "Good morning", **said)) == 2


async def test_a_rule_for_one_key_leaves_the_others_alone(start: Start) -> None:
    server = await ruled(start, keys_required=True)
    keys = {}
    for label in ("team a", "team b"):
        made = await create_key(server.service.store, Caller("", label=label))
        keys[label] = {"Authorization": f"Bearer {made.text}"}
    plan = {"model": "ultra", "headers": keys["team b"]}
    assert await steps(server, "tell me", **plan) == ["alpha", "beta"]
    assert "alpha" not in await steps(server, "tell me", **(plan | {"headers": keys["team a"]}))


async def test_a_rule_never_widens_the_rights_of_a_key(start: Start) -> None:
    server = await ruled(start, keys_required=True)
    made = await create_key(server.service.store, Caller("", label="x", allow=("alpha",)))
    headers = {"Authorization": f"Bearer {made.text}"}
    for model in ("worker/alpha", "mini"):
        answer = await server.chat("my salary", model=model, headers=headers)
        assert (answer.status, answer.error["code"]) == (403, "override")
    assert server.stub.calls == []


NOTHING = Request(())


def asking(*question: Message, options: Request = NOTHING, **more: Any) -> Asked:
    return Asked(model="m", question=question, options=options, **more)


def test_the_first_rule_that_fits_counts_and_all_its_conditions_must() -> None:
    rules = (
        Override(name="both", key="k", matches="x", pin="a"),
        Override(name="id", key="k", pin="b"),
        Override(name="words", matches="x", pin="c"),
    )

    def found(key_id: str, said: str, label: str = "") -> str | None:
        rule = rule_for(
            rules,
            asking(Message("user", "x once"), Message("assistant", "x"), Message("user", said)),
            caller=Caller(key_id, label=label),
        )
        return rule.name if rule else None

    assert found("k", "X") == "both"
    assert found("k", "y") == "id"
    assert found("other", "y", label="k") == "id"
    assert found("other", "x") == "words"
    assert found("other", "y") is None


@pytest.mark.parametrize(
    ("message", "options", "kind"),
    [
        (Message("user", "Good morning"), Request(()), "chat"),
        (Message("user", "```\nx = 1\n```"), Request(()), "code"),
        (Message("user", "Refactor this"), Request(()), "code"),
        (Message("user", "What is 3 * 4?"), Request(()), "maths"),
        (Message("user", "Solve for x"), Request(()), "maths"),
        (Message("user", "x"), Request((), tools=(Tool("t", {}),)), "tools"),
        (Message("user", "x"), Request((), schema=Schema({})), "json"),
        (Message("user", (Text("python"), Image(url="http://x/y"))), Request(()), "images"),
    ],
)
def test_the_topic_of_a_request(message: Message, options: Request, kind: str) -> None:
    for label, found in (("", kind), ("tools", "tools"), ("our own word", kind)):
        assert task_kind(asking(message, options=options, metadata={"task_kind": label})) == found


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ('name = "r"\npin = "alpha"', "key model kind matches"),
        ('name = "r"\nmodel = "m"', "pin deny planner profile"),
        ('name = "r"\nmodel = "m"\npin = "alhpa"', "alhpa alpha"),
        ('name = "r"\nmodel = "m"\nprofile = "ulta"', "ulta ultra"),
        ('name = "r"\nmodel = "m"\nplanner = "singel"', "singel single"),
        ('name = "r"\nmatches = "("\npin = "alpha"', "matches ("),
        ('name = "r"\nmodel = "m"\npin = "alpha"\ndeny = ["alpha"]', "pin alpha deny"),
        ('name = "r"\nkind = "poem"\npin = "alpha"', "code maths poem"),
        ('name = "r"\nmodle = "m"\npin = "alpha"', "modle model"),
    ],
)
def test_a_rule_that_cannot_work_is_refused_before_the_server_starts(rule: str, said: str) -> None:
    text = CONFIG.format(url="http://127.0.0.1:1/v1", store="x") + "\n[[override]]\n" + rule
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert says(str(caught.value), said)
