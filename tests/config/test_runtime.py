"""The runtime of a configuration: it opens workers, pools and conductors, and closes them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.facts import facts
from tests.stub_provider import StubProvider

from dirigent.config.build import card
from dirigent.config.file import Loaded, parse_config
from dirigent.config.runtime import load, open_runtime, open_store
from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Message, Request
from dirigent.plan.plan import Plan, Step
from dirigent.plan.planner import LanguagePlanner
from dirigent.planners import planner as planner_named
from dirigent.planners import profile_planners

TWO = """\
[[worker]]
name = "a"
kind = "scripted"
replies = ["A"]
[[worker]]
name = "b"
kind = "scripted"
replies = ["B"]
"""


def loaded(text: str, folder: Path = Path()) -> Loaded:
    return parse_config(text, path=folder / "dirigent.toml")


def question(text: str = "hello") -> Request:
    return Request((Message("user", text),))


async def test_a_profile_becomes_a_conductor_with_its_limits() -> None:
    text = TWO + '[profile.p]\nplanner = "single"\nplanner_worker = "b"\nmax_steps = 2\nreassign = false\n'
    async with open_runtime(loaded(text)) as runtime:
        conductor = runtime.conductor("p")
        trace = await conductor.run("q")
    assert (trace.answer, trace.profile, trace.limits.max_steps) == ("B", "p", 2)
    assert conductor.reassign is False


async def test_a_profile_may_narrow_and_order_the_pool() -> None:
    text = TWO + '[profile.p]\nplanner = "single"\nworkers = ["b"]\n'
    async with open_runtime(loaded(text)) as runtime:
        assert runtime.conductor("p").pool.names == ("b",)


async def test_a_planner_outside_the_profile_has_another_error_than_a_missing_one() -> None:
    narrow = TWO + '[profile.narrow]\nworkers = ["b"]\nplanner_worker = "a"\n'
    async with open_runtime(loaded(narrow)) as runtime:
        with pytest.raises(ConfigError, match=facts("planner_worker a")):
            runtime.conductor("narrow")
        with pytest.raises(ConfigError, match=facts("c a b")):
            runtime.conductor("narrow", changes={"planner_worker": "c"})


async def test_an_empty_pool_says_how_to_fill_it() -> None:
    async with open_runtime(loaded("")) as runtime:
        with pytest.raises(ConfigError, match=facts("dirigent init --force")):
            runtime.conductor()


@pytest.mark.parametrize("workers", ["", 'workers = ["a", "b"]\n'])
@pytest.mark.parametrize("planner", [name for name in profile_planners() if not planner_named(name).by_policy])
async def test_every_planner_can_take_the_place_of_a_trained_one(planner: str, workers: str) -> None:
    trained = '[[worker]]\nname = "t"\nkind = "scripted"\nreplies = ["T"]\n'
    profile = f'[profile.p]\nplanner = "conductor"\nplanner_worker = "t"\n{workers}'
    async with open_runtime(loaded(TWO + trained + profile)) as runtime:
        conductor = runtime.conductor("p", changes={"planner": planner})
        assert conductor.pool.names == ("a", "b"), "who was trained to plan is given no step"
        chosen = runtime.conductor("p", changes={"planner": "single", "planner_worker": "b"})
        assert (await chosen.run("q")).answer == "B"


async def test_a_problem_of_several_workers_is_reported_once(tmp_path: Path) -> None:
    local = "".join(f'[[worker]]\nname = "{n}"\nkind = "local"\nweights = "none.gguf"\n' for n in "xyz")
    async with open_runtime(loaded(TWO + local, tmp_path)) as runtime:
        assert sorted(runtime.problems) == ["x", "y", "z"]
        assert runtime.problem == runtime.problems["x"]
    async with open_runtime(loaded(TWO)) as runtime:
        assert runtime.problem == ""


async def test_a_plan_by_hand_has_no_fallback_and_must_name_workers_of_the_pool() -> None:
    async with open_runtime(loaded(TWO)) as runtime:
        assert runtime.conductor(plan=Plan((Step("a", "do it"),))).fallback is None
        with pytest.raises(ConfigError, match=facts("c a b")):
            runtime.conductor(plan=Plan((Step("c", "do it"),)))


async def test_the_fallback_can_be_switched_off() -> None:
    async with open_runtime(loaded(TWO + '[profile.p]\nfallback = "none"\n')) as runtime:
        assert runtime.conductor("p").fallback is None


async def test_a_missing_key_is_a_problem_until_the_worker_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    keyless = '[[worker]]\nname = "k"\nkind = "openai"\nmodel = "m"\napi_key_env = "NO_SUCH_KEY"\n'
    text = TWO + keyless + '[profile.p]\nplanner = "single"\nworkers = ["a"]\n[profile.q]\n'
    async with open_runtime(loaded(text)) as runtime:
        assert (await runtime.conductor("p").run("q")).answer == "A"
        with pytest.raises(ConfigError, match=facts("k NO_SUCH_KEY 9")):
            runtime.conductor("q")
        with pytest.raises(WorkerError, match=facts("k NO_SUCH_KEY")):
            await runtime.pool["k"].ask(question())


async def test_a_workers_own_settings_reach_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_KEY", "stub-key-0123456789")
    async with StubProvider(key="stub-key-0123456789") as stub:
        text = f"""
[[worker]]
name = "w"
kind = "openai"
model = "m"
base_url = "{stub.url("openai")}"
api_key_env = "STUB_KEY"
system = "Be brief."
temperature = 0.5
effort = "low"
max_output_tokens = 50
extra = {{ top_k = 7 }}
"""
        async with open_runtime(loaded(text)) as runtime:
            reply = await runtime.pool["w"].ask(question())
            await runtime.pool["w"].ask(Request((Message("user", "x"),), temperature=0.0, max_output_tokens=9))
        first, second = (call.body for call in stub.calls)
    assert len(reply.attempts) == 1
    assert first["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (first["temperature"], first["reasoning_effort"], first["top_k"]) == (0.5, "low", 7)
    assert (first["max_tokens"], second["max_tokens"], second["temperature"]) == (50, 9, 0.0)


async def test_models_that_refuse_sampling_settings_are_sent_none() -> None:
    async with StubProvider() as stub:
        text = f'[[worker]]\nname = "w"\nkind = "openai"\nmodel = "gpt-5"\nbase_url = "{stub.url("openai")}"'
        async with open_runtime(loaded(text)) as runtime:
            await runtime.pool["w"].ask(Request((Message("user", "x"),), temperature=0.0, top_p=0.9))
        assert not {"temperature", "top_p"} & set(stub.calls[0].body)


async def test_recorded_answers_are_found_beside_the_config_file(tmp_path: Path) -> None:
    row = {"question": "2+2?", "outputs": {"m": {"text": "4"}}}
    with gzip.open(tmp_path / "answers.jsonl.gz", "wt") as file:
        file.write(json.dumps(row) + "\n")
    text = '[[worker]]\nname = "r"\nkind = "recorded"\nmodel = "m"\npath = "answers.jsonl.gz"\n'
    async with open_runtime(loaded(text, tmp_path)) as runtime:
        assert (await runtime.pool["r"].ask(question("2+2?"))).text == "4"


async def test_a_recording_that_is_not_there_is_that_workers_problem(tmp_path: Path) -> None:
    text = '[[worker]]\nname = "r"\nkind = "recorded"\nmodel = "m"\npath = "none.jsonl"\n'
    async with open_runtime(loaded(text, tmp_path)) as runtime:
        assert "none.jsonl" in runtime.problems["r"]


async def test_the_dialect_is_the_one_the_planning_worker_can_be_held_to() -> None:
    for ability, dialect in (("grammar", "lines"), ("schema", "json"), ("seed", "lists")):
        text = TWO.replace("[[worker]]", f"[[worker]]\nabilities = {{ {ability} = true }}", 1)
        async with open_runtime(loaded(text)) as runtime:
            planner = runtime.conductor(changes={"planner": "language"}).planner
            assert isinstance(planner, LanguagePlanner)
            assert planner._dialect == dialect


def test_prices_come_from_the_vendor_and_a_server_of_ones_own_has_none() -> None:
    vendor = loaded('[[worker]]\npreset = "gpt-5"').config.worker[0]
    own = loaded('[[worker]]\nname = "w"\nkind = "openai"\nmodel = "gpt-5"\nbase_url = "http://127.0.0.1:1/v1"')
    price = card(vendor).price
    assert price is not None
    assert price.output > price.input > 0
    assert card(own.config.worker[0]).price is None


@pytest.mark.parametrize(("kind", "model"), [("anthropic", "claude-sonnet-4"), ("gemini", "gemini-2.5-pro")])
def test_a_vendors_own_wire_has_the_vendors_price_behind_a_gateway_too(kind: str, model: str) -> None:
    text = f'[[worker]]\nname = "w"\nkind = "{kind}"\nmodel = "{model}"\nbase_url = "http://127.0.0.1:1"'
    assert card(loaded(text).config.worker[0]).price is not None


def test_abilities_are_the_vendors_as_corrected() -> None:
    worker = loaded('[[worker]]\npreset = "gpt-5"\nabilities = { images = false, seed = true }').config.worker[0]
    assert "images" not in card(worker).abilities
    assert {"seed", "tools"} <= card(worker).abilities


async def test_without_a_file_the_pool_has_the_workers_that_the_machine_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DIRIGENT_CONFIG", raising=False)
    monkeypatch.setattr("dirigent.config.discovery.USUAL_PORTS", {})
    monkeypatch.setenv("XAI_API_KEY", "x")
    found = await load()
    assert found.path is None
    assert "grok-4.7" in [worker.name for worker in found.config.worker]


async def test_the_store_is_the_configs_else_under_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIRIGENT_HOME", str(tmp_path / "home"))
    async with open_store(loaded("").config) as store:
        assert store.where == str(tmp_path / "home" / "dirigent.db")
    async with open_store(loaded(f'[store]\nurl = "{tmp_path}/mine.db"').config) as store:
        assert store.where == f"{tmp_path}/mine.db"
    monkeypatch.setenv("STORE_URL", f"sqlite:///{tmp_path}/third.db")
    async with open_store(loaded('[store]\nurl_env = "STORE_URL"').config) as store:
        assert store.where == f"{tmp_path}/third.db"
    monkeypatch.delenv("STORE_URL")
    with pytest.raises(ConfigError, match=facts("[store] STORE_URL url_env")):
        open_store(loaded('[store]\nurl_env = "STORE_URL"').config)


async def test_a_local_worker_answers_through_the_same_door(weights_path: Path) -> None:
    text = f'[[worker]]\nname = "smol"\nkind = "local"\nweights = "{weights_path}"\ntemperature = 0\n'
    async with open_runtime(loaded(text + '[profile.p]\nplanner = "single"\nmax_output_tokens = 8\n')) as runtime:
        trace = await runtime.conductor("p").run("Which city is the capital of France?")
    assert trace.status == "done"
    assert "France" in trace.answer


async def test_weights_that_are_not_there_are_that_workers_problem() -> None:
    text = '[[worker]]\nname = "smol"\nkind = "local"\nweights = "none.gguf"\n'
    async with open_runtime(loaded(text)) as runtime:
        assert "none.gguf" in runtime.problems["smol"]


async def test_kept_replies_are_those_of_the_worker_as_it_is_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DIRIGENT_HOME", str(tmp_path))
    text = '[[worker]]\nname = "w"\nkind = "scripted"\nreplies = ["{}", "again"]\ncache = true\n'
    said = []
    for reply in ("one", "one", "two"):
        async with open_runtime(parse_config(text.format(reply))) as runtime:
            asked = await runtime.pool["w"].ask(Request(question().messages, temperature=0))
            said.append((asked.text, asked.attempts[0].cached))
    assert said == [("one", False), ("one", True), ("two", False)]
