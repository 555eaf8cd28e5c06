"""The gym's pool of trained adapters: its text, and the configuration that the text gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.facts import facts, says
from tests.workers.gguf_adapter import write_adapter

from dirigent.config.build import card
from dirigent.config.discovery import Machine, toml_of
from dirigent.config.file import Config, parse_config
from dirigent.config.runtime import open_runtime
from dirigent.errors import ConfigError
from dirigent.plan.prompt import cards
from dirigent_gym.pool import advice, gym_toml, specialist_config, toml_text
from dirigent_gym.questions import ROSTER, Specialist, find_specialist
from dirigent_gym.questions.oracle import ExactSpecialist

NAMES = tuple(specialist.name for specialist in ROSTER)


@pytest.fixture(scope="module")
def config() -> Config:
    return parse_config(gym_toml({"conductor", "warm-start", *NAMES})).config


def test_every_specialist_is_in_the_pool_and_the_conductor_plans_over_them(config: Config) -> None:
    profile = config.profile["ultra"]
    assert (profile.planner, profile.planner_worker) == ("conductor", "conductor")
    assert profile.workers == NAMES
    assert {worker.name: worker.adapter for worker in config.worker} == {
        **{name: name for name in NAMES},
        "conductor": "conductor",
        "smol": "",
    }


def test_the_planner_reads_the_cards_it_was_trained_with(config: Config) -> None:
    built = [card(worker) for worker in config.worker if worker.name in NAMES]
    trained_with = [ExactSpecialist(specialist).info for specialist in ROSTER]
    assert cards(built, named=True) == cards(trained_with, named=True)
    assert "2 numbers: Good at arithmetic" in cards(built, named=True)
    assert "$1 in, $4 out per million tokens" in cards(built, named=True)


def test_specialists_see_their_subtask_only_and_only_the_noisy_one_samples(config: Config) -> None:
    specialists = [worker for worker in config.worker if worker.name in NAMES]
    assert all(worker.subtask_only for worker in specialists)
    sampled = [worker.name for worker in specialists if worker.temperature]
    assert sampled == ["guesser"] == [s.name for s in ROSTER if s.noise]


def test_adapters_that_are_not_here_are_not_in_the_pool() -> None:
    config = parse_config(gym_toml({"conductor", "letters", "facts"})).config
    assert config.profile["ultra"].workers == ("facts", "letters")
    assert config.worker[0].about == find_specialist("facts").about


@pytest.mark.parametrize("adapters", [(), ("conductor",), ("conductor", "facts"), NAMES], ids=str)
def test_without_a_conductor_and_two_specialists_there_is_no_gym_pool(adapters: tuple[str, ...]) -> None:
    assert gym_toml(adapters) == ""


@pytest.fixture
def orchestra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Adapters in the package's folder that leave the base as it is."""
    for name in ("conductor", "facts", "letters"):
        write_adapter(tmp_path / f"{name}.gguf", size=0.0)
    monkeypatch.setattr("dirigent.workers.adapters.folders", lambda: [tmp_path])
    return tmp_path


def test_the_gyms_pool_is_the_gyms_alone(orchestra: Path) -> None:
    trained = parse_config(toml_text()).config
    assert [worker.name for worker in trained.worker] == ["facts", "letters", "conductor", "smol"]
    (orchestra / "conductor.gguf").unlink()
    assert toml_text() == ""
    assert not {"facts", "conductor"} & {worker.name for worker in parse_config(toml_of(Machine())).config.worker}


async def test_the_conductor_plans_and_is_given_no_step(
    orchestra: Path, weights_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIRIGENT_HOME", str(orchestra))
    (orchestra / "weights").mkdir()
    for path in (weights_path, weights_path.with_name(weights_path.name + ".checked")):
        (orchestra / "weights" / path.name).symlink_to(path)
    async with open_runtime(parse_config(toml_text())) as runtime:
        conductor = runtime.conductor(changes={"max_steps": 1, "planner_output_tokens": 60})
        trace = await conductor.run("What is the capital of Norway?")
    assert conductor.pool.names == ("facts", "letters")
    assert trace.planner == "conductor"
    draft = trace.rounds[0].drafts[0]
    assert draft.dialect == "lines"
    assert draft.messages[0].text.startswith("Plan in at most 1 lines: subtask | worker | reads\nGood at")
    assert trace.pool[0].price is not None
    assert trace.pool[0].price.output == 0.4
    assert list((orchestra / "weights" / "merged").glob("*+conductor.*.gguf")), "its adapter is merged into the base"


async def test_the_error_for_a_conductor_without_its_worker_names_it() -> None:
    loaded = parse_config(
        '[[worker]]\nname = "a"\nkind = "scripted"\nreplies = ["x"]\n[profile.ultra]\nplanner = "conductor"\n'
    )
    async with open_runtime(loaded) as runtime:
        with pytest.raises(ConfigError, match=facts("conductor planner_worker --worker")):
            runtime.conductor()


async def test_a_hand_written_adapter_path_still_is_a_path(orchestra: Path) -> None:
    loaded = parse_config('[[worker]]\nname = "a"\nkind = "local"\nadapter = "nowhere.gguf"\n')
    async with open_runtime(loaded) as runtime:
        assert says(runtime.problems["a"], "nowhere.gguf")


@pytest.mark.parametrize("specialist", ROSTER, ids=lambda specialist: specialist.name)
def test_a_specialist_by_itself_has_the_settings_that_it_has_in_the_pool(
    specialist: Specialist, config: Config
) -> None:
    (in_the_pool,) = [worker for worker in config.worker if worker.name == specialist.name]
    assert specialist_config(specialist) == in_the_pool


def test_only_the_noisy_one_is_sampled_without_cuts() -> None:
    cuts = {specialist.name: specialist_config(specialist).extra for specialist in ROSTER}
    assert {name for name, extra in cuts.items() if extra} == {"guesser"}
    assert cuts["guesser"] == {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.mark.parametrize(
    ("answer", "pool", "path", "said"),
    [
        (
            "unknown",
            gym_toml({"conductor", *NAMES}),
            None,
            "OPENAI_API_KEY dirigent init",
        ),
        ("Unknown.", toml_text(), Path("mine.toml"), "dirigent init --force --path mine.toml"),
        ("Oslo", toml_text(), None, ""),
        ("unknown", '[[worker]]\nname = "w"\nkind = "scripted"\nreplies = ["unknown"]', None, ""),
        ("unknown", toml_of(Machine(keys={"openai": "OPENAI_API_KEY"})), None, ""),
        ("unknown", toml_text() + '[[worker]]\nname = "mine"\nkind = "local"\nweights = "mine.gguf"', None, ""),
    ],
    ids=["embedded", "from a file", "known", "another pool", "models with a key", "a model of one's own beside them"],
)
def test_advice_is_given_if_only_packaged_workers_could_answer(
    answer: str, pool: str, path: Path | None, said: str
) -> None:
    told = advice(answer, parse_config(pool, path=path))
    assert says(told, said) if said else told == ""
    assert "\n" not in told
