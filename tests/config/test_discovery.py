"""The models and keys that `dirigent init` finds, and the file that it writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from tests.facts import says

from dirigent.config import discovery
from dirigent.config.build import card
from dirigent.config.discovery import (
    MODELS_PER_SERVER,
    PROBE_S,
    Machine,
    Server,
    discover,
    small_pool_reason,
    toml_of,
)
from dirigent.config.file import BUILT_IN_PROFILES, parse_config
from dirigent.config.presets import presets

NO_KEYS: dict[str, str] = {}
FILE = Path("dirigent.toml")
WEIGHTS = Path(__file__).parents[2] / "weights" / "src" / "dirigent_weights"


@asynccontextmanager
async def serving(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    """A real server on a free port of this machine."""
    app = web.Application()
    app.router.add_get("/v1/models", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def listing(*ids: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": i} for i in ids]})

    return handle


async def test_a_key_in_the_environment_is_found_by_its_providers_variable() -> None:
    found = await discover(environment={"GOOGLE_API_KEY": "x", "OPENAI_API_KEY": " "}, ports={})
    assert found.keys == {"google": "GOOGLE_API_KEY"}


async def test_a_server_on_its_port_is_found_with_its_chat_models() -> None:
    async with serving(listing("llama3.2:3b", "nomic-embed-text")) as port:
        found = await discover(environment=NO_KEYS, ports={"ollama": port})
    assert found.servers == (Server("ollama", f"http://127.0.0.1:{port}/v1", ("llama3.2:3b",)),)


async def test_another_dirigent_is_no_server_of_models() -> None:
    async def ours(request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": "dirigent-mini", "owned_by": "dirigent"}]})

    async with serving(ours) as port:
        assert not (await discover(environment=NO_KEYS, ports={"vllm": port})).has_models


async def test_a_closed_port_a_web_page_and_a_hanging_server_are_no_model_servers() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>hello</html>", content_type="text/html")

    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError("this wait must not end")

    async with serving(page) as page_port, serving(hang) as hanging_port, serving(listing()) as closed_port:
        pass_ports = {"vllm": page_port, "llama.cpp": hanging_port}
        began = time.monotonic()
        found = await discover(environment=NO_KEYS, ports=pass_ports)
        assert time.monotonic() - began < PROBE_S + 1
    assert not found.has_models
    assert not (await discover(environment=NO_KEYS, ports={"vllm": closed_port})).has_models


async def test_a_long_shelf_of_models_is_cut_to_a_pool() -> None:
    async with serving(listing(*(f"m{i}" for i in range(40)))) as port:
        found = await discover(environment=NO_KEYS, ports={"lm-studio": port})
    assert len(found.servers[0].models) == MODELS_PER_SERVER


def test_nothing_found_gives_the_embedded_pool_in_roles_and_its_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    monkeypatch.setattr(discovery, "folders", lambda: [WEIGHTS])
    config = parse_config(toml_of(Machine(free_bytes=8 * 10**9)), path=FILE).config
    assert [worker.name for worker in config.worker] == [
        "plain",
        "calculator",
        "quick",
        "thinker",
        "programmer",
        "vote",
    ]
    assert {worker.weights for worker in config.worker if worker.kind == "local"} == {"qwen2.5-coder-1.5b"}
    caps = {worker.name: worker.role.max_output_tokens for worker in config.worker if worker.role}
    assert caps == {"calculator": 320, "quick": 48, "thinker": 400, "programmer": 320}
    assert {worker.role.temperature for worker in config.worker if worker.role} == {0, 0.7}
    profiles = {name: (profile.planner, profile.unlike) for name, profile in config.profile.items()}
    assert profiles == {"ultra": ("learned", "program"), "mini": ("learned", "program")}


def test_without_the_packaged_policy_a_rule_decides_and_the_file_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "folders", list)
    text = toml_of(Machine())
    assert says(text, "no policy decides dirigent-weights not installed")
    assert {profile.planner for profile in parse_config(text).config.profile.values()} == {"program"}


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (Machine(free_bytes=2_900_000_000), "2.9 1.5 3 135 reliable"),
        (Machine(free_bytes=8 * 10**9, small=True), "DIRIGENT_POOL=small 135"),
    ],
    ids=["little memory", "asked for"],
)
def test_the_small_pool_takes_its_place_with_a_word(machine: Machine, why: str) -> None:
    assert {worker.weights for worker in parse_config(toml_of(machine)).config.worker} == {"smollm2-135m"}
    assert says(small_pool_reason(machine), why)


def test_memory_that_is_unknown_or_enough_keeps_the_embedded_pool() -> None:
    assert small_pool_reason(Machine()) == small_pool_reason(Machine(free_bytes=3_000_000_000)) == ""
    assert small_pool_reason(Machine(free_bytes=1, keys={"openai": "OPENAI_API_KEY"})) == ""


def test_where_no_program_can_be_confined_there_is_no_programmer_and_the_file_says_why() -> None:
    text = toml_of(Machine(unconfined="this machine can confine no program"))
    assert [w.name for w in parse_config(text).config.worker] == ["plain", "quick", "thinker", "vote"]
    assert says(text, "programmer this machine can confine no program")


async def test_free_memory_comes_from_the_machine_and_a_users_value_overrides_it() -> None:
    found = await discover(environment={"DIRIGENT_POOL": "small"}, ports={})
    assert found.small
    assert found.free_bytes is None or found.free_bytes > 0
    assert not (await discover(environment=NO_KEYS, ports={})).small


def test_every_provider_found_gives_its_starters() -> None:
    everything = Machine(keys={name: provider.api_key_env[0] for name, provider in presets().provider.items()})
    config = parse_config(toml_of(everything), path=FILE).config
    wanted = [starter for provider in presets().provider.values() for starter in provider.starters]
    assert [worker.name for worker in config.worker] == wanted


def test_the_variable_that_was_found_is_the_one_written() -> None:
    text = toml_of(Machine(keys={"google": "GOOGLE_API_KEY"}))
    assert {worker.api_key_env for worker in parse_config(text, path=FILE).config.worker} == {"GOOGLE_API_KEY"}


def test_models_with_odd_names_become_workers_with_usable_ones() -> None:
    odd = ("/models/My Model.Q4.gguf", "a b", "a b", '" \\ 文', "42")
    text = toml_of(Machine(servers=(Server("llama.cpp", "http://127.0.0.1:8080/v1", odd),)))
    config = parse_config(text, path=FILE).config
    assert [worker.model for worker in config.worker] == list(odd)
    assert [worker.name for worker in config.worker][:3] == ["My-Model.Q4", "a-b", "a-b+"]


def test_no_instruction_to_the_user_reaches_a_planner() -> None:
    text = toml_of(Machine(servers=(Server("ollama", "http://127.0.0.1:11434/v1", ("llama3.2:3b",)),)))
    assert "strengths" in text, "the user reads it in the file"
    (worker,) = parse_config(text, path=FILE).config.worker
    assert worker.about == "llama3.2:3b on this machine (ollama)"


def test_a_server_of_ones_own_is_free_and_gets_no_vendors_key() -> None:
    text = toml_of(Machine(servers=(Server("vllm", "http://127.0.0.1:8000/v1", ("gpt-5",)),)))
    worker = parse_config(text, path=FILE).config.worker[0]
    assert worker.api_key_env == ""
    assert worker.price is not None
    assert worker.price.output == 0


async def test_no_flagship_plans_by_default_and_one_request_is_one_call() -> None:
    everything = Machine(keys={name: provider.api_key_env[0] for name, provider in presets().provider.items()})
    profiles = parse_config(toml_of(everything), path=FILE).config.profile
    assert {profile.planner for profile in profiles.values()} == {"single"}
    assert {profile.planner for profile in BUILT_IN_PROFILES.values()} == {"best", "cheapest"}


def test_mini_is_the_cheapest_worker_and_ultra_the_dearest() -> None:
    keys = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
    config = parse_config(toml_of(Machine(keys=keys)), path=FILE).config
    price = {worker.name: card(worker).price for worker in config.worker}
    output = {name: found.input + found.output for name, found in price.items() if found is not None}
    assert config.profile["ultra"].planner_worker == max(output, key=lambda name: output[name])
    assert config.profile["mini"].planner_worker == min(output, key=lambda name: output[name])


def test_the_file_says_how_to_learn_and_how_to_let_a_worker_plan() -> None:
    text = toml_of(Machine(keys={"openai": "OPENAI_API_KEY"}))
    assert "dirigent calibrate" in text
    assert "dirigent learn" in text
    assert 'planner = "language"' in text, "the one line that changes ultra"


def test_a_fitting_policy_decides_for_mini() -> None:
    text = toml_of(Machine(keys={"openai": "OPENAI_API_KEY"}), policy="policy")
    mini = parse_config(text, path=FILE).config.profile["mini"]
    assert (mini.planner, mini.policy, mini.operating_point) == ("learned", "policy", "")


def test_measured_workers_are_chosen_by_their_figures() -> None:
    machine = Machine(keys={"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"})
    dear, cheap = "gpt-6.1-sol", "gpt-6-luna"
    for right, strong, mini in (
        ({dear: 0.70, cheap: 0.72}, cheap, cheap),  # the dearest is not the best
        ({dear: 0.80, cheap: 0.77}, dear, cheap),  # near enough for quick answers
        ({dear: 0.80, cheap: 0.40}, dear, dear),  # too bad to be cheap
    ):
        config = parse_config(toml_of(machine, right=right), path=FILE).config
        chosen = (config.profile["ultra"].planner_worker, config.profile["mini"].planner_worker)
        assert chosen == (strong, mini)
