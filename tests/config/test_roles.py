"""Roles, local workers and the sizes of a local model in the config file, and the errors for faulty ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.facts import facts
from tests.stub_provider import StubProvider

from dirigent.config.file import Loaded, parse_config
from dirigent.config.runtime import open_runtime
from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Message, Request
from dirigent.plan.plan import Plan, Step
from dirigent.sandbox import programs
from dirigent.workers.breaker import Breaker
from dirigent.workers.worker import Price, layers

MODEL = """\
[[worker]]
name = "qwen"
kind = "scripted"
replies = ["The answer is 77."]
price = { input = 1, output = 2 }
"""
THINKER = """\
[[worker]]
name = "thinker"
model_of = "qwen"
about = "thinks first"
role = { instruction = "Think step by step.", temperature = 0.7, max_output_tokens = 400 }
"""
CODER = """\
[[worker]]
name = "coder"
kind = "scripted"
replies = ["```python\\nprint(7 * 11)\\n```"]
role = { instruction = "Write a program.", runs = "python" }
"""
LOCAL = """\
[[worker]]
name = "vote"
kind = "vote"
[[worker]]
name = "python"
kind = "python"
"""


def loaded(text: str) -> Loaded:
    return parse_config(text, path=Path("dirigent.toml"))


async def test_a_role_shares_its_models_price_limits_and_breaker_but_not_its_card() -> None:
    async with open_runtime(loaded(MODEL + THINKER)) as runtime:
        model, thinker = runtime.pool["qwen"], runtime.pool["thinker"]
        assert (thinker.info.name, thinker.info.about, thinker.info.kind) == ("thinker", "thinks first", "scripted")
        assert thinker.info.price == model.info.price == Price(1, 2)
        assert thinker.info.output_tokens == 400
        assert thinker.info.fingerprint not in ("", model.info.fingerprint)
        breakers = [next(layer for layer in layers(w) if isinstance(layer, Breaker)) for w in (model, thinker)]
        assert breakers[0] is breakers[1]


async def test_the_roles_words_and_sampling_reach_the_wire_of_its_model() -> None:
    async with StubProvider() as stub:
        text = f"""
[[worker]]
name = "m"
kind = "openai"
model = "big"
base_url = "{stub.url("openai")}"
system = "Be kind."
{THINKER.replace("qwen", "m")}
"""
        async with open_runtime(loaded(text)) as runtime:
            await runtime.pool["thinker"].ask(Request((Message("user", "Why?"),), temperature=0.0))
        (call,) = stub.calls
    assert call.body["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Why?\n\nThink step by step."},
    ]
    assert (call.body["model"], call.body["temperature"], call.body["max_tokens"]) == ("big", 0.7, 400)


async def test_a_role_may_stand_without_a_second_worker() -> None:
    text = MODEL + 'role = { instruction = "Be brief." }\n'
    async with open_runtime(loaded(text)) as runtime:
        assert (await runtime.pool["qwen"].ask(Request((Message("user", "x"),)))).text == "The answer is 77."


async def test_a_program_is_run_and_a_vote_taken_from_the_configuration_alone() -> None:
    if programs.confinement_problem():
        pytest.skip(programs.confinement_problem())
    plan = Plan((Step("qwen", "a"), Step("coder", "b"), Step("vote", "Count.", (0, 1))))
    async with open_runtime(loaded(MODEL + CODER + LOCAL)) as runtime:
        trace = await runtime.conductor("mini", plan=plan, changes={"max_steps": 3}).run("How much is 7 times 11?")
    assert (trace.status, trace.answer) == ("done", "The answer is 77."), trace.error
    coder, vote = (step.reply for step in trace.steps[1:])
    assert coder is not None
    assert coder.ran is not None
    assert coder.ran.confined_by in ("bubblewrap", "landlock")
    assert vote is not None
    assert vote.chosen is not None
    assert (vote.chosen.votes, vote.chosen.of) == (2, 2)
    assert (trace.steps[2].usage.output_tokens, trace.steps[2].cost_usd) == (0, 0)


async def test_where_nothing_can_be_confined_the_role_is_off_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "confinement_problem", lambda: "this machine can confine no program. Install it")
    async with open_runtime(loaded(MODEL + CODER + LOCAL)) as runtime:
        assert set(runtime.problems) == {"coder", "python"}
        with pytest.raises(WorkerError, match=facts("coder confine Install")):
            await runtime.pool["coder"].ask(Request((Message("user", "x"),)))
    async with open_runtime(loaded(MODEL + CODER + '[sandbox]\nprograms = "unconfined"\n')) as runtime:
        assert not runtime.problems
        reply = await runtime.pool["coder"].ask(Request((Message("user", "x"),)))
    assert reply.ran is not None
    assert (reply.text, reply.ran.confined_by) == ("77", "unconfined")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MODEL + THINKER.replace('"qwen"', '"qwem"'), "thinker qwem qwen line 6"),
        (MODEL + THINKER.replace('"qwen"', '"gpt"'), "thinker gpt qwen"),
        (MODEL + THINKER + THINKER.replace('"thinker"', '"two"').replace('"qwen"', '"thinker"'), "two thinker qwen"),
        (THINKER.replace('"qwen"', '"thinker"'), "thinker no worker"),
        (MODEL + LOCAL + THINKER.replace('"qwen"', '"vote"'), "thinker vote kind"),
        (MODEL + '[[worker]]\nname = "t"\nmodel_of = "qwen"\n', "t role instruction"),
        (MODEL + THINKER + "temperature = 0.2\n", "temperature thinker qwen"),
        (MODEL + THINKER + "price = { input = 0, output = 0 }\n", "price thinker qwen"),
        (MODEL + THINKER.replace("Think step by step.", " "), "instruction empty line 10"),
        (MODEL + THINKER.replace("0.7", "7"), "temperature 0 2 7"),
        (MODEL + THINKER.replace("400", "0"), "max_output_tokens 0"),
        (CODER.replace('"python" }', '"bash" }'), "bash python runs line 5"),
        (CODER.replace("runs", "run"), "run runs"),
        (LOCAL + 'role = { instruction = "x" }\n', "role python"),
        (MODEL + "slots = 2\n", "slots local scripted"),
        ('[sandbox]\nprograms = "free"\n', "programs free confined unconfined"),
    ],
)
def test_every_mistake_is_named_with_its_place_and_the_fix(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=facts(said)):
        loaded(text)


async def test_workers_of_one_file_of_weights_share_one_process_and_agree_on_its_size(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF")
    base = (
        f'[[worker]]\nname = "qwen"\nkind = "local"\nweights = "{file}"\nslots = 2\nthreads = 1\ncontext_tokens = 512\n'
    )
    roles = THINKER + THINKER.replace('"thinker"', '"quick"')
    async with open_runtime(loaded(base + roles)) as runtime:
        inner = [[*layers(runtime.pool[name])][-1] for name in ("qwen", "thinker", "quick")]
        assert len({id(worker) for worker in inner}) == 1
        assert runtime.pool["quick"].info.context_tokens == 512
        assert runtime.pool["quick"].info.model == "tiny"
    second = base.replace('"qwen"', '"other"').replace("slots = 2", "slots = 3")
    async with open_runtime(loaded(base + second)) as runtime:
        assert all("slots" in problem and "3" in problem for problem in runtime.problems.values())
        assert runtime.problems
