"""Models: dated names beside floating ones, what each key sees, which planner `dirigent-mini` has, breakers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dirigent.config.file import parse_config
from dirigent.config.runtime import open_runtime
from dirigent.config.server_settings import Override
from dirigent.errors import ConfigError
from dirigent.messages import Request
from dirigent.planners import profile_planners
from dirigent.serve.http.errors import Problem
from dirigent.serve.policy import models
from dirigent.serve.policy.models import Models
from dirigent.serve.runs.asked import Asked
from dirigent.store.keys import LOCAL_ADMIN, Caller, create_key
from dirigent.workers.adapters import Card
from tests.facts import facts, says
from tests.serve.conftest import CONFIG, Server, Start

DATED = (
    CONFIG.replace("[profile.ultra]", '[profile.ultra]\nversion = "2026-11-15"')
    + """
[profile.ultra-2026-06-01]
planner = "single"
"""
)

WORKERS = """
[[worker]]
name = "plain"
kind = "scripted"
replies = ["x"]

[[worker]]
name = "chief"
kind = "local"
adapter = "checker"  # ships; its card is replaced below
region = "eu"
"""


def asking(model: str) -> Asked:
    return Asked(model=model, question=(), options=Request(()))


def card(date: str) -> Callable[[], dict[str, Card]]:
    made = Card(
        role="conductor",
        base="b",
        data="d",
        recipe="r",
        commit="c",
        rank=1,
        alpha=1.0,
        size_bytes=1,
        sha256="s",
        date=date,
    )
    return lambda: {"checker": made}


async def test_a_dated_name_is_the_same_model_and_names_its_pin(start: Start) -> None:
    server = await start(config=DATED)
    listed = {model["id"]: model for model in (await server.get("/v1/models")).object["data"]}
    for floating in ("dirigent-ultra", "ultra"):
        pinned = listed[f"{floating}-2026-11-15"]
        assert pinned["pins"] == floating
        assert "pins" not in listed[floating]
        assert pinned["workers"] == listed[floating]["workers"]
    answer = await server.chat(model="dirigent-ultra-2026-11-15")
    assert (answer.status, answer.object["model"]) == (200, "dirigent-ultra-2026-11-15")


async def test_an_older_policy_is_kept_as_a_profile_of_that_name(start: Start) -> None:
    server = await start(config=DATED)
    answer = await server.chat(model="dirigent-ultra-2026-06-01", dirigent={"trace": True})
    assert answer.object["dirigent"]["planner"] == "single"


async def test_a_pin_whose_policy_is_gone_is_a_404_that_names_the_floating_name(start: Start) -> None:
    server = await start(config=DATED)
    for answer in (
        await server.chat(model="dirigent-ultra-2025-01-31"),
        await server.get("/v1/models/ultra-2025-01-31"),
    ):
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert says(answer.error["message"], "ultra") or says(answer.error["message"], "dirigent-ultra")
    assert says((await server.chat(model="dirigent-ultra-2025-01-31")).error["message"], "dirigent-ultra")
    assert not says((await server.chat(model="nobody-2025-01-31")).error["message"], "nobody")


def test_a_version_is_a_date() -> None:
    with pytest.raises(ConfigError, match=facts("version 2026-11-15 v2")):
        parse_config('[profile.ultra]\nversion = "v2"')


async def found(text: str, monkeypatch: pytest.MonkeyPatch, date: str = "2026-10-01") -> tuple[Models, Any]:
    monkeypatch.setattr(models, "read_cards", card(date))
    async with open_runtime(parse_config(text)) as runtime:
        return Models(runtime), runtime


async def test_the_trained_conductor_dates_its_models_by_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    text = WORKERS + '[profile.ultra]\nplanner = "conductor"\nplanner_worker = "chief"\n'
    here, _ = await found(text, monkeypatch)
    ids = [model.id for model in here.cards(LOCAL_ADMIN)]
    assert {"dirigent-ultra", "dirigent-ultra-2026-10-01", "dirigent-mini-2026-10-01"} <= set(ids)
    undated, _ = await found(text, monkeypatch, date="")
    assert not any("2026" in model.id for model in undated.cards(LOCAL_ADMIN))


@pytest.mark.parametrize(
    ("profiles", "planner"),
    [
        ("", "conductor"),  # nothing said: the trained conductor plans one step
        ('[profile.ultra]\nplanner = "language"\n', "conductor"),
        ('[profile.ultra]\nplanner = "language"\n[profile.mini]\nplanner = "single"\n', "single"),
    ],
)
async def test_mini_is_one_step_by_the_quickest_planner_at_hand(
    monkeypatch: pytest.MonkeyPatch, profiles: str, planner: str
) -> None:
    here, _ = await found(WORKERS + profiles, monkeypatch)
    mini = here.conductor(asking("dirigent-mini"), caller=LOCAL_ADMIN)
    assert mini.planner.name == planner
    if planner == "conductor":
        assert mini.limits.max_steps == mini.limits.max_rounds == 1
        assert mini.pool.names == ("plain",)


async def test_with_workers_elsewhere_mini_is_not_planned_by_the_local_conductor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remote = '[[worker]]\nname = "far"\nkind = "openai"\nmodel = "m"\nbase_url = "http://127.0.0.1:1/v1"\n'
    here, _ = await found(WORKERS + remote + '[profile.ultra]\nplanner = "single"\n', monkeypatch)
    mini = here.conductor(asking("dirigent-mini"), caller=LOCAL_ADMIN)
    assert (mini.planner.name, mini.limits.max_steps) == ("single", 1)


async def test_a_rule_that_denies_the_planning_worker_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    text = WORKERS + '[profile.ultra]\nplanner = "conductor"\nplanner_worker = "chief"\n'
    here, _ = await found(text, monkeypatch)
    rule = Override(name="not the chief", model="ultra", deny=("chief",))
    with pytest.raises(Problem, match=facts("chief")):
        here.conductor(asking("ultra"), caller=LOCAL_ADMIN, rule=rule)


async def test_without_a_trained_conductor_mini_is_the_default_held_to_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = '[[worker]]\nname = "plain"\nkind = "scripted"\nreplies = ["x"]\n[profile.ultra]\nplanner = "reflect"\n'
    here, _ = await found(text, monkeypatch)
    mini = here.conductor(asking("dirigent-mini"), caller=LOCAL_ADMIN)
    assert (mini.planner.name, mini.limits.max_steps) == ("reflect", 1)


async def test_every_planner_that_can_work_here_is_a_model(server: Server) -> None:
    ids = {model["id"] for model in (await server.get("/v1/models")).object["data"]}
    made = {f"planner/{planner}" for planner in profile_planners()}
    assert {"planner/language", "planner/single", "planner/moa", "planner/reflect", "planner/vote"} <= ids & made


async def test_a_key_does_not_see_models_whose_planner_or_workers_are_not_its_own(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = WORKERS + '[profile.ultra]\nplanner = "conductor"\nplanner_worker = "chief"\n'
    here, _ = await found(text, monkeypatch)
    barred = Caller("k", deny=("chief",))
    ids = {model.id for model in here.cards(barred)}
    assert "worker/plain" in ids
    assert not {"dirigent-ultra", "worker/chief", "planner/conductor"} & ids
    with pytest.raises(Problem) as caught:
        here.conductor(asking("dirigent-ultra"), caller=barred)
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


async def test_breakers_are_shown_to_admins_only(start: Start, tmp_path: Path) -> None:
    server = await start(keys_required=True)
    headers = {}
    for role in ("admin", "inference"):
        made = await create_key(server.service.store, Caller("", label=role, role=role))  # type: ignore[arg-type]
        headers[role] = {"Authorization": f"Bearer {made.text}"}
    shown = (await server.get("/v1/models/mini", headers=headers["admin"])).object
    assert shown["breakers"] == {"alpha": "closed", "beta": "closed", "boss": "closed"}
    server.stub.faults = ["500"] * 11
    for _ in range(11):
        await server.chat(headers=headers["inference"])
    shown = (await server.get("/v1/models/mini", headers=headers["admin"])).object
    assert shown["breakers"]["alpha"] == "open"
    assert "breakers" not in (await server.get("/v1/models/mini", headers=headers["inference"])).object
