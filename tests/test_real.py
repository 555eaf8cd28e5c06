"""The table of the trained conductor: its arithmetic by hand, and a rehearsal with stand-ins over a made pool."""

from __future__ import annotations

import gzip
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from dirigent.errors import ConfigError
from dirigent.learn import values
from dirigent.learn.saved_conductor import SavedConductor
from dirigent.learn.selector import SelectorSettings
from dirigent.learn.table import Answer, Question, Table, TableWorker
from dirigent.learn.table_plans import PRICES, PlanValues, RecordedQuestions, read_plan, whole_pool
from dirigent.planners.routerdc import DualContrastive, fit_routerdc
from tests.learn.made_tables import QUICK, two_kinds

PROGRAM = Path(__file__).parent.parent / "benchmarks" / "real.py"


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    """The program's names, with few draws and quick fits."""
    names = runpy.run_path(str(PROGRAM), run_name="real")
    inside = names["Study"].figures.__globals__
    inside |= {
        "DRAWS": 40,
        "RIVAL_PRICES": (0.0, 0.2),
        "PolicySettings": lambda: QUICK,
        "fit_routerdc": lambda rows: fit_routerdc(rows, settings=DualContrastive(steps=20, dim=8, check_every=10)),
    }
    return inside


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Values of a made table with test questions: `cheap` answers sums, `dear` answers riddles too."""
    place = tmp_path_factory.mktemp("real")
    torch.set_num_threads(1)
    table = two_kinds(120)
    questions = tuple(
        msgspec.structs.replace(q, split="test" if i % 3 == 0 else "") for i, q in enumerate(table.questions)
    )
    msgspec.structs.replace(table, questions=questions).save(place / "table")
    fit = values.fit
    quick = SelectorSettings(subsets=10, trees=12, depth=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "fit", lambda rows, workers, **_: fit(rows, workers, settings=quick))
        values.main(["--table", str(place / "table"), "--out", str(place / "values")])
    return place


# ---- arithmetic ---------------------------------------------------------------------------------------------


def test_equal_cost_is_a_mix_of_the_two_settings_around_it(real: dict[str, Any]) -> None:
    curve = real["Curve"](np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[10.0, 10.0], [30.0, 30.0]]))
    weights = np.array([[0.5, 0.5]])
    assert [float(real["reached"](curve, weights, cost)[0]) for cost in (15, 5, 99)] == [0.625, 0.25, 1.0]
    only_second = np.array([[0.0, 1.0]])
    assert real["reached"](curve, only_second, 20).tolist() == [0.5]


def test_sets_count_alike_and_draws_keep_that(real: dict[str, Any]) -> None:
    groups = np.array([0, 0, 0, 1, -1])
    draws = real["drawn"](groups, 50)
    assert draws[0].tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2, 0])
    np.testing.assert_allclose(draws[:, :3].sum(1), 0.5)
    assert (draws[:, 3] == 0.5).all()
    some = real["drawn"](groups, 1, among=np.array([True, False, True, True, True]))
    assert some[0].tolist() == [0.25, 0, 0.25, 0.5, 0]


def test_a_claim_is_met_only_if_its_condition_holds(real: dict[str, Any]) -> None:
    claim = real["Claim"]
    assert claim("x", 5, 7, 6.0, 5.0, 7.0).met == "must"
    assert claim("x", 5, 7, 7.5, 7.0, 8.0).met == "goal"
    assert claim("x", 1, 2, 1.5, -0.1, 3.0, above_zero=True).met == "no"
    assert claim("x", 1, None, 1.5, 0.1, 3.0, at_most=True).met == "no"
    assert claim("x", None, None, -9.0, -10.0, -8.0).met == "reported"


def test_tasks_of_bbh_are_told_apart(real: dict[str, Any]) -> None:
    assert real["task_of"]("bbh-navigate-12", "bbh") == "bbh-navigate"
    assert real["task_of"]("gsm8k-7", "gsm8k") == "gsm8k"


def test_second_steps_are_paid_with_what_they_read(real: dict[str, Any]) -> None:
    def said(worker: str, k: int, right: float, cost: float, *, same: int = 0, read: str = "") -> Answer:
        return Answer("q", worker, k=k, same=same, right=right, cost=cost, read=((read, k),) if read else ())

    answers = (
        *(said("think", k, 0.0, 10) for k in (0, 1)),
        *(said("code", k, float(k), 5, same=-1 if k == 0 else 1) for k in (0, 1)),
        *(said("review", k, 1.0, 3, read="think") for k in (0, 1)),
        said("repair", 0, 1.0, 7, read="code"),
        said("judge", 1, 0.0, 2, read="think"),
    )
    workers = tuple(TableWorker(name) for name in ("think", "code", "review", "repair", "judge"))
    found = real["second_steps"](Table(workers, (Question("q", "?"),), answers, "units"), ["q", "unknown"])
    reflection, repaired, moa = found.values()
    assert (reflection.right[0, 0], reflection.cost[0, 0]) == (1.0, 13.0)
    assert np.isnan(reflection.right[0, 1]), "a question without second steps takes no part"
    assert (repaired.right[0, 0], repaired.cost[0, 0]) == (1.0, (12 + 5) / 2)
    # The failed program leaves the think's answer; where both answered, the judge chose wrongly.
    assert (moa.right[0, 0], moa.cost[0, 0]) == (0.0, (15 + 17) / 2)


# ---- a rehearsal --------------------------------------------------------------------------------------------


def stand_in(
    place: Path, run: Path, choose: Callable[[RecordedQuestions, int], str], *, recipe: str = "rehearsal"
) -> None:
    """A run's folder with these plans for every price; writing one costs 5 units."""
    recorded = RecordedQuestions.load(place / "values", device="cpu")
    run.mkdir(parents=True, exist_ok=True)
    for split in ("test", "dev", "train"):
        questions = recorded.places(split)
        plans = [choose(recorded, q) for q in questions]
        read = [read_plan(plan, whole_pool(recorded.pool)) for plan in plans]
        right, cost, calls = (one.tolist() for one in PlanValues(recorded).of(questions, read))
        with gzip.open(run / f"{split}.jsonl.gz", "wb") as file:
            for price in PRICES:
                for q, plan, r, c, n in zip(questions, plans, right, cost, calls, strict=True):
                    row = {"id": recorded.ids[q], "price": price, "plan": plan, "valid": 1.0, "right": r, "cost": c + 5}
                    file.write(
                        msgspec.json.encode({**row, "own_cost": 5.0, "saved_by_prefix": 2.0, "calls": n}) + b"\n"
                    )
    SavedConductor("stand-in", recorded.pool, {}, 24, recipe).save(run)


def by_kind(recorded: RecordedQuestions, q: int) -> str:
    return "ask: cheap" if recorded.families[q] == "sums" else "ask: dear"


def rehearsed(real: dict[str, Any], place: Path, runs: Path, *more: str) -> dict[str, Any]:
    real["main"](["--values", str(place / "values"), "--runs", str(runs), "--out", str(runs / "real.json"), *more])
    found: dict[str, Any] = json.loads((runs / "real.json").read_text())
    return found


def test_a_rehearsal_fills_the_table_and_says_that_it_is_one(real: dict[str, Any], place: Path, tmp_path: Path) -> None:
    for seed in ("seed-1", "seed-2"):
        stand_in(place, tmp_path / seed, by_kind)
    for name in ("warm-start", "format", "without-riddles", "without-thinker"):
        stand_in(place, tmp_path / name, lambda recorded, q: "ask: cheap")
    found = rehearsed(real, place, tmp_path)
    claims = {claim["name"]: claim for claim in found["claims"]}
    # Half of the questions are sums: `cheap` has all of them right, `dear` nine of ten of everything.
    ours = found["by_set"]["sums"]["conductor"]["900"]
    assert ours == pytest.approx(1.0)
    assert found["by_set"]["riddles"]["warm-start"]["900"] == 0.0
    single = next(claim for name, claim in claims.items() if name.startswith("best single role"))
    assert single["by_seed"][0] == single["by_seed"][1]
    assert claims["control format: gain over the warm start, mean of the four costs"]["value"] == 0.0
    lost = claims["plans shuffled within a task: points lost, seed-1, mean of the four costs"]
    assert lost["value"] == pytest.approx(0.0), (
        "one plan for all questions of a task loses nothing when it is dealt out"
    )
    assert found["missing"] == [name for name in real["EXPECTED"] if not (tmp_path / name).is_dir()]
    text = (tmp_path / "real.md").read_text()
    assert "**A rehearsal" in text
    assert "seed-3" in text
    with gzip.open(tmp_path / "real.outcomes.jsonl.gz") as file:
        assert {msgspec.json.decode(line)["run"] for line in file} >= {"seed-1", "seed-2", "warm-start"}


def test_plans_that_suit_their_questions_lose_when_they_are_shuffled(
    real: dict[str, Any], place: Path, tmp_path: Path
) -> None:
    recorded = RecordedQuestions.load(place / "values", device="cpu")
    dear_right = recorded.single[:, recorded.pool.bits("dear")].mean(1) > 0.5

    def knows(_: RecordedQuestions, q: int) -> str:
        return "ask: dear" if dear_right[q] or recorded.families[q] == "riddles" else "ask: cheap"

    stand_in(place, tmp_path / "seed-1", knows)
    found = rehearsed(real, place, tmp_path)
    lost = next(claim for claim in found["claims"] if claim["name"].startswith("plans shuffled"))
    # Only sums have two plans. The wrong `dear` of a sum is one that another question's plan would have asked.
    sums = [q for q in recorded.places("test") if recorded.families[q] == "sums"]
    wrong = sum(not dear_right[q] for q in sums)
    n = len(sums)
    # A question whose `dear` is wrong gets `dear` from n - wrong of the other n - 1 questions.
    expected = 100 * 0.5 * wrong / n * (n - wrong) / (n - 1)
    assert wrong > 0
    assert lost["value"] == pytest.approx(expected, abs=1.0)


def test_the_imported_table_adds_the_learned_policy(real: dict[str, Any], place: Path, tmp_path: Path) -> None:
    stand_in(place, tmp_path / "seed-1", by_kind)
    found = rehearsed(real, place, tmp_path, "--table", str(place / "table"))
    assert found["at"]["mini"]["900"] > 0.8
    assert any(claim["name"].startswith("mini, at 176") for claim in found["claims"])


def test_a_conductor_behind_the_policy_is_compared_with_the_policy_alone(
    real: dict[str, Any], place: Path, tmp_path: Path
) -> None:
    stand_in(place, tmp_path / "seed-1", by_kind)
    stand_in(place, tmp_path / "follow-up-1", by_kind)
    file = tmp_path / "follow-up-1" / "test.jsonl.gz"
    with gzip.open(file) as lines:
        rows = [msgspec.json.decode(line) for line in lines]
    with gzip.open(file, "wb") as packed:
        for row in rows:
            packed.write(
                msgspec.json.encode({**row, "right": 1.0, "alone_right": 0.5, "alone_cost": row["cost"]}) + b"\n"
            )
    saved = SavedConductor.load(tmp_path / "follow-up-1")
    msgspec.structs.replace(saved, environment="policy-first").save(tmp_path / "follow-up-1")
    found = rehearsed(real, place, tmp_path)
    gained = [claim for claim in found["claims"] if claim["name"].startswith("follow-up-1")]
    assert len(gained) == 4
    assert gained[-1]["value"] == pytest.approx(50.0)
    assert "follow-up-1" not in found["missing"]


def test_nothing_of_a_rehearsal_goes_into_the_results(real: dict[str, Any], place: Path, tmp_path: Path) -> None:
    files = ["--values", str(place / "values"), "--runs", str(tmp_path)]
    stand_in(place, tmp_path / "seed-1", by_kind)
    with pytest.raises(ConfigError, match="seed-1 are rehearsals"):
        real["main"](files)
    stand_in(place, tmp_path / "seed-1", by_kind, recipe="real-135m")
    with pytest.raises(ConfigError, match="lacks seed-2, seed-3"):
        real["main"](files)


def test_missing_seeds_and_missing_questions_are_named(real: dict[str, Any], place: Path, tmp_path: Path) -> None:
    stand_in(place, tmp_path / "warm-start", by_kind)
    with pytest.raises(ConfigError, match="no folder seed-1"):
        rehearsed(real, place, tmp_path)
    stand_in(place, tmp_path / "seed-1", by_kind)
    with gzip.open(tmp_path / "seed-1" / "test.jsonl.gz", "wb") as file:
        file.write(b"")
    with pytest.raises(ConfigError, match="lacks"):
        rehearsed(real, place, tmp_path)
