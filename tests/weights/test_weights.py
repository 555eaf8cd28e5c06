"""The content of dirigent-weights: whole, small, and bound to this version's embedded pool."""

from __future__ import annotations

import json
import time
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from dirigent.config.file import parse_config
from dirigent.config.runtime import open_runtime
from dirigent.errors import ConfigError
from dirigent.learn import policy as policies
from dirigent.learn.policy import FILES, Policy, policy_folder
from dirigent.learn.selector import Selector
from dirigent.messages import Result
from dirigent.version import __version__

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "weights" / "src" / "dirigent_weights"
EMBEDDED = PACKAGE / "policies" / "embedded"
POOL = ("quick", "thinker", "programmer")


@pytest.fixture(scope="module")
def embedded() -> Policy:
    return Policy.load(EMBEDDED)


def test_the_versions_of_all_distributions_are_equal() -> None:
    for project in ("gym", "weights"):
        facts = tomllib.loads((ROOT / project / "pyproject.toml").read_text())["project"]
        assert facts["version"] == __version__
        assert next(one for one in facts["dependencies"] if one.startswith("dirigent")).endswith(f"=={__version__}")


def test_the_package_is_small_and_whole(embedded: Policy) -> None:
    sizes = [(EMBEDDED / name).stat().st_size for name in FILES]
    assert sum(sizes) < 2_000_000
    assert embedded.on
    assert embedded.workers == POOL
    assert Selector.load(EMBEDDED).workers == POOL
    assert not (EMBEDDED / "versions").exists()


def test_the_card_has_the_policys_figures_on_test_questions(embedded: Policy) -> None:
    card = (EMBEDDED / "README.md").read_text(encoding="utf-8")
    assert f"{embedded.questions:,} graded training questions" in card
    assert "test questions that nothing was learned from" in card


async def test_it_is_bound_to_the_configured_embedded_pool(embedded: Policy) -> None:
    text = resources.files("dirigent.config").joinpath("embedded.toml").read_text(encoding="utf-8")
    async with open_runtime(parse_config(text)) as runtime:
        there = {info.name: info.fingerprint for info in runtime.pool.infos}
    assert {name: there[name] for name in POOL} == embedded.fingerprints


def test_a_question_like_those_it_was_fitted_on_is_planned_within_milliseconds(embedded: Policy) -> None:
    question = (
        "If you follow these instructions, do you return to the starting point? Turn left. Take 5 steps. Turn around. "
        "Take 5 steps. Turn right.\nOptions:\n- Yes\n- No"
    )
    decision = embedded.plan_for(question, POOL)
    assert set(decision.order) <= set(POOL)
    assert decision.accuracy is not None
    began = time.perf_counter()
    for _ in range(20):
        embedded.plan_for(question, POOL)
    assert (time.perf_counter() - began) / 20 < 0.1, "a decision takes about a millisecond on a machine at rest"


def test_everyday_questions_are_unlike_all_that_it_was_fitted_on(embedded: Policy) -> None:
    """Its workers do worse on them than the calculator and the plain model, which the embedded pool asks then."""
    lines = (ROOT / "benchmarks" / "everyday_questions.jsonl").read_text().splitlines()
    assert all(embedded.plan_for(json.loads(line)["question"], POOL).novel for line in lines)


def test_the_selector_believes_what_two_programs_agree_on() -> None:
    question = "Tom buys 3 boxes of 12 pencils and gives 5 pencils to his sister. How many pencils does he have left?"
    shown = [Result(0, "programmer", "", "31"), Result(1, "programmer", "", "31"), Result(2, "quick", "", "36")]
    selection = Selector.load(EMBEDDED).choose(question, shown)
    assert (selection.place, selection.votes) == (0, 2)
    assert selection.chance is not None
    assert selection.chance > 0.5


def test_a_packaged_policy_is_found_by_name_and_a_missing_one_names_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(policies, "folders", lambda: [PACKAGE])
    assert policy_folder("packaged:embedded", tmp_path) == EMBEDDED
    assert policy_folder("mine", tmp_path) == tmp_path / "mine"
    with pytest.raises(ConfigError, match="embedded"):
        policy_folder("packaged:other", tmp_path)
    monkeypatch.setattr(policies, "folders", list)
    with pytest.raises(ConfigError, match="dirigent-weights"):
        policy_folder("packaged:embedded", tmp_path)
