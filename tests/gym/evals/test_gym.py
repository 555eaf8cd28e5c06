"""The gym under evaluation, with specialists that answer exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.facts import facts
from tests.gym.evals.samples import evaluate_gym
from tests.workers.gguf_adapter import write_adapter

from dirigent.errors import ConfigError
from dirigent.evals.entries import Evaluated
from dirigent.evals.metrics import figures, versus
from dirigent.evals.record import Outcome, Record, read_outcomes
from dirigent.evals.report import Report
from dirigent.limits import Budget
from dirigent.messages import Event
from dirigent.plan.plan import format_plan
from dirigent.plan.planner import Planner
from dirigent.planners.fixed import Written
from dirigent.tasks import Task
from dirigent.workers.pool import Pool
from dirigent_gym.evals.evaluation import GymField
from dirigent_gym.evals.pools import Gym, GymSettings
from dirigent_gym.evals.workers import adapters_digest, exact_worker, find_adapters, gym_workers
from dirigent_gym.questions import RL_ROSTER, ROSTER, plan_for, solvable

SETTINGS = GymSettings(limit=60, seed=5, calibration=60, noise_seeds=2)


class Made:
    """A report with the outcomes that it was made from."""

    def __init__(self, report: Report, outcomes: Sequence[Outcome]) -> None:
        self.report = report
        self.outcomes = outcomes

    def of(self, planner: str) -> list[Outcome]:
        return [o for o in self.outcomes if o.planner == planner and o.tags["split"] == "test"]


def scholar(task: Task, pool: Pool) -> Planner:
    """Plays a trained conductor: writes the right plan in the small planners' dialect, and at times nonsense."""
    offered = [s for s in ROSTER if s.name in pool]
    if task.depth == 1 or not solvable(task, offered):
        return Written("| nobody |", name="conductor")
    return Written(format_plan(plan_for(task, offered), pool, dialect="lines"), name="conductor")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    path = tmp_path_factory.mktemp("gym") / "o.jsonl"
    planners = ["best", "random", "oracle", "conductor", "right", "ceiling", "single:facts"]
    with Record.open(path, {}) as record:
        work = evaluate_gym(
            Gym(SETTINGS, exact_worker),
            planners,
            factories={"conductor": scholar},
            record=record,
        )
        report = asyncio.run(work)
    return Made(report, read_outcomes(path))


def test_every_planner_has_its_row_in_the_order_asked(made: Made) -> None:
    assert list(made.report.planners) == ["best", "random", "oracle", "conductor", "right", "ceiling", "single:facts"]
    assert all(row.n == 60 for row in made.report.planners.values())
    assert made.report.complete


def test_a_single_worker_is_a_comparison_and_cannot_win(made: Made) -> None:
    assert made.report.planners["single:facts"].versus_best is not None
    assert "single:" not in made.report.verdict


def test_the_figures_are_those_of_the_outcomes(made: Made) -> None:
    for name in ("best", "random", "conductor", "right", "ceiling", "single:facts"):
        row = made.report.planners[name]
        again = figures(made.of(name))
        assert (row.accuracy, row.tokens, row.cost_usd) == (again.accuracy, again.tokens, again.cost_usd)
        if name != "best":
            assert row.versus_best == versus(made.of(name), made.of("best"), seed=5)


def test_no_single_worker_gets_far_but_right_plans_do(made: Made) -> None:
    rows = made.report.planners
    assert rows["best"].accuracy <= rows["oracle"].accuracy < 0.45
    assert rows["ceiling"].accuracy > 0.8
    assert rows["right"].marks["routing"] > 0.8
    assert rows["right"].steps_over_minimal == 1.0


def test_a_right_plan_fails_only_for_want_of_a_worker_or_by_the_guessers_luck(made: Made) -> None:
    gym = Gym(SETTINGS, exact_worker)
    could = {task.id: solvable(task, gym.offered(task)) for task in gym.tasks}
    assert all(o.correct for o in made.of("right") if could[o.task] and o.tags["shape"] != "check")


def test_a_conductor_from_outside_runs_like_any_other_and_its_nonsense_is_invalid(made: Made) -> None:
    row = made.report.planners["conductor"]
    assert row.by_depth["1"].accuracy == 0.0
    assert row.by_depth["2"].accuracy > 0.8
    assert row.valid < 0.75
    assert row.versus_best is not None
    assert made.report.verdict.startswith("conductor ")


def test_the_oracle_is_as_good_as_any_offered_worker_on_every_question(made: Made) -> None:
    gym = Gym(SETTINGS, exact_worker)
    offered = {task.id: {s.name for s in gym.offered(task)} for task in gym.tasks}
    solved = {
        o.task
        for o in made.outcomes
        if o.planner.startswith("single:") and o.correct and o.planner[7:] in offered.get(o.task, ())
    }
    assert made.report.planners["oracle"].accuracy == len(solved) / 60


def test_best_is_ranked_on_the_training_split_and_takes_the_first_that_is_offered(made: Made) -> None:
    ranking = made.report.chosen["best"]
    assert sorted(ranking) == sorted(s.name for s in RL_ROSTER)
    gym = Gym(SETTINGS, exact_worker)
    offered = {task.id: {s.name for s in gym.offered(task)} for task in gym.tasks}
    for o in made.of("best"):
        assert o.plan is not None
        assert o.plan.steps[0].worker == next(name for name in ranking if name in offered[o.task])
    trained = {o.task for o in made.outcomes if o.tags["split"] == "train"}
    assert len(trained) == 60


def test_the_ceiling_is_the_mean_of_several_noise_seeds(made: Made) -> None:
    assert {o.repeat for o in made.of("ceiling")} == {0, 1}
    assert set(made.report.chosen["ceiling"]) >= {"chain 1", "check 2", "fan 2"}


def test_pools_are_the_same_for_everybody_and_ids_are_permuted_from_question_to_question() -> None:
    gym, again = Gym(SETTINGS, exact_worker), Gym(SETTINGS, exact_worker)
    first = [gym.pool_for(task, 0).infos for task in gym.tasks]
    assert first == [again.pool_for(task, 1).infos for task in again.tasks]
    assert len({pool[0].name for pool in first}) > 5
    assert all(3 <= len(pool) <= 8 for pool in first)


def test_held_out_cards_are_in_other_words_on_the_same_workers() -> None:
    held_out = Gym(GymSettings(limit=20, seed=5, cards="held_out"), exact_worker)
    known = {about for s in ROSTER for about in s.abouts}
    abouts = {info.about for task in held_out.tasks for info in held_out.pool_for(task, 0).infos}
    assert abouts.isdisjoint(known)


async def test_the_novel_split_offers_the_worker_that_training_never_met() -> None:
    settings = GymSettings(split="novel", limit=8, seed=2, calibration=4)
    report = await evaluate_gym(Gym(settings, exact_worker), ["right", "single:planets"])
    assert report.planners["right"].accuracy > 0.7
    assert "planets" in report.prices


async def test_a_resumed_evaluation_asks_no_worker_again(tmp_path: Path) -> None:
    seen: list[Event] = []
    settings = GymSettings(limit=10, seed=1, calibration=10, noise_seeds=1)
    reports = []
    for resume in (False, True):
        with Record.open(tmp_path / "o.jsonl", {}, resume=resume) as record:
            before = record.count
            reports.append(
                await evaluate_gym(Gym(settings, exact_worker), ["best", "ceiling"], record=record, observe=seen.append)
            )
            if resume:
                assert record.count == before
    assert reports[0] == reports[1]
    assert len([event for event in seen if isinstance(event, Evaluated)]) % 2 == 0


def test_named_workers_are_asked_everything_and_the_oracles_only_questions_that_offer_them() -> None:
    gym = Gym(GymSettings(limit=20, seed=1), exact_worker)
    field = GymField(gym)
    assert set(field.lineup(["single:facts", "oracle"]).alone) == {s.name for s in RL_ROSTER}
    assert all(field.alone("facts", for_row=True).wants(task) for task in gym.tasks)
    assert not all(field.alone("roman", for_row=False).wants(task) for task in gym.tasks)


@pytest.mark.parametrize(
    ("planners", "message"),
    [
        ([], "--planners"),
        (["best", "best"], "best"),
        (["bset"], "bset best"),
        (["single:fact"], "fact facts"),
        (["conductor"], "conductor"),
    ],
)
def test_an_unknown_planner_is_refused(planners: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=facts(message)):
        GymField(Gym(GymSettings(limit=1), exact_worker)).lineup(planners)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match=facts("limit 1 0")):
        GymSettings(limit=0)


async def test_exact_workers_need_no_model() -> None:
    async with gym_workers("exact", ["best", "oracle"], RL_ROSTER) as (worker_for, factories):
        assert worker_for is exact_worker
        assert factories == {}


async def test_all_missing_adapters_are_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "facts.gguf").touch()
    with pytest.raises(ConfigError, match=facts("conductor letters --adapters --workers exact")):
        async with gym_workers("local", ["conductor"], RL_ROSTER[:2], adapters=tmp_path):
            pass
    with pytest.raises(ConfigError, match=facts("locl local")):
        async with gym_workers("locl", ["best"], RL_ROSTER):
            pass


def test_adapters_are_found_by_name_and_identified_by_content(tmp_path: Path) -> None:
    assert adapters_digest(tmp_path) == ""
    (tmp_path / "facts.gguf").write_bytes(b"one")
    first = adapters_digest(tmp_path)
    assert find_adapters(tmp_path, ["facts"]) == {"facts": tmp_path / "facts.gguf"}
    (tmp_path / "facts.gguf").write_bytes(b"two")
    assert adapters_digest(tmp_path) not in ("", first)


async def test_adapters_on_a_real_model_answer_and_plan(
    weights_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Untrained workers: their replies are nonsense, but they are asked, counted and priced."""
    monkeypatch.setattr("dirigent_gym.evals.workers.PLAN_TOKENS", 40)  # nonsense under a grammar is slow to write
    for seed, name in enumerate([*(s.name for s in ROSTER), "conductor"]):
        write_adapter(tmp_path / f"{name}.gguf", size=0.001, seed=seed)
    settings = GymSettings(limit=1, seed=1, pool_sizes=(3, 3))
    planners = ["conductor", "right"]
    async with gym_workers("local", planners, ROSTER, adapters=tmp_path, weights=weights_path) as (worker_for, models):
        report = await evaluate_gym(Gym(settings, worker_for), planners, factories=models)
    conductor, right = report.planners["conductor"], report.planners["right"]
    assert conductor.failed == right.failed == 0
    assert conductor.calls >= 1
    assert conductor.input_tokens > 100  # the cards, at least
    assert conductor.orchestration_tokens > 0
    assert right.output_tokens > 0
    assert right.cost_usd > 0  # the card's price, though the machine is ours


async def test_every_baseline_can_take_part_and_reports_the_cost_of_fitting() -> None:
    gym = Gym(GymSettings(limit=6, calibration=8), exact_worker)
    names = [
        "best",
        "cheapest",
        "vote",
        "self-moa:2",
        "moa:3x2",
        "reflect:2",
        "pipeline",
        "escalate",
        "knn",
        "routerdc",
    ]
    names += ["smoothie", "masrouter"]
    report = await evaluate_gym(gym, names)
    assert report.complete
    assert all(row.n == 6 and row.valid == 1.0 for row in report.planners.values())
    assert report.planners["moa:3x2"].steps > report.planners["best"].steps == 1.0
    assert report.fit["n"] == 8
    assert report.fit["cost_usd"] > 0
    assert report.sizes == {}
    assert all(row.versus_equal_cost is None for row in report.planners.values()), "five samples are one answer"


async def test_where_nothing_is_fitted_no_training_question_is_asked() -> None:
    record = Record()
    report = await evaluate_gym(Gym(GymSettings(limit=3), exact_worker), ["random", "right"], record=record)
    assert report.fit == {}
    assert record.count == 6


@pytest.mark.parametrize(
    ("planner", "left", "before"),
    [
        ("knn", 0.5, "--max-cost --resume"),
        ("masrouter", 1.1, "masrouter --max-cost --resume"),
        ("ceiling", 1.1, "ceiling --max-cost --resume"),
    ],
)
async def test_nothing_is_chosen_by_a_part_of_the_trials(planner: str, left: float, before: str) -> None:
    settings = GymSettings(limit=6, calibration=20, noise_seeds=2)
    ranking = await evaluate_gym(Gym(settings, exact_worker), ["best"])
    budget = Budget(max_cost_usd=ranking.fit["cost_usd"] * left)
    record = Record()
    with pytest.raises(ConfigError, match=facts(before)):
        await evaluate_gym(Gym(settings, exact_worker), ["best", planner], budget=budget, record=record)
    assert all(
        record.finished(name, task.id) is None
        for name in ("best", planner)
        for task in Gym(settings, exact_worker).tasks
    )
