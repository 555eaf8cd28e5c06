"""The embedded default of a machine with trained adapters: its text, and what it says when parsed."""

from __future__ import annotations

import pytest

from dirigent.build import card
from dirigent.config import Config, parse_config
from dirigent.gympool import gym_toml
from dirigent.prompt import cards
from dirigent.tasks.gym import ROSTER, find_specialist
from dirigent.tasks.gym.oracle import ExactSpecialist

NAMES = tuple(specialist.name for specialist in ROSTER)


@pytest.fixture(scope="module")
def config() -> Config:
    return parse_config(gym_toml({"conductor", "warm-start", *NAMES})).config


def test_every_specialist_stands_in_the_pool_and_the_conductor_plans_over_them(config: Config) -> None:
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
def test_without_a_conductor_and_somebody_to_conduct_there_is_no_such_pool(adapters: tuple[str, ...]) -> None:
    assert gym_toml(adapters) == ""
