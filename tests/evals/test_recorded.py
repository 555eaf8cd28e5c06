"""Recorded pools: replayed models, choices made on other folds, and figures worked by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dirigent.cli import app
from dirigent.errors import ConfigError
from dirigent.evals.metrics import figures, pareto
from dirigent.evals.record import Outcome, read_outcomes
from dirigent.evals.recorded import (
    ASSUMED,
    HOSTED,
    RecordedField,
    RecordedSettings,
    folds_of,
    load_recorded,
    of_benchmarks,
    recorded_price,
    usable_planners,
)
from dirigent.evals.report import Report, as_markdown
from dirigent.planners import PLANNERS
from dirigent.planners.table import log_odds
from dirigent.tasks import Task
from dirigent.workers.worker import Price
from tests.evals.samples import evaluate_recorded
from tests.facts import facts, says

PAGE = (Path(__file__).parents[2] / "docs" / "baselines.md").read_text(encoding="utf-8")
DEAR, MIDDLE, CHEAP, WEAK = "claude-3-5-sonnet-20241022", "gpt-4o-2024-08-06", "gpt-4o-mini-2024-07-18", "mathstral-7B"
WRONG_EVERY = {DEAR: 10, MIDDLE: 5, CHEAP: 4, WEAK: 2}
"""A model errs on every so-many-th question: 90, 80, 75 and 50% right."""


def rows(n: int = 40) -> list[dict[str, Any]]:
    """Sums, which each model gets wrong in its own way at its own times."""
    found = []
    for i in range(n):
        outputs = {}
        for shift, (model, every) in enumerate(WRONG_EVERY.items()):
            wrong = (i + shift) % every == 0
            outputs[model] = {"text": f"The answer is {1000 + shift if wrong else i + 1}.", "est_tokens": 100}
        found.append(question(i) | {"outputs": outputs})
    return found


def question(i: int) -> dict[str, Any]:
    return {
        "id": f"q{i}",
        "task": "sums",
        "question": f"What is {i} + 1 then?",
        "answer": str(i + 1),
        "grader": "number",
    }


def write(folder: Path, found: list[dict[str, Any]], name: str = "recorded.jsonl") -> Path:
    file = folder / name
    file.write_text("\n".join(json.dumps(row) for row in found))
    return file


async def report_of(file: Path, *planners: str, **settings: Any) -> Report:
    return await evaluate_recorded(load_recorded(file), planners, settings=RecordedSettings(**settings))


async def test_every_worker_alone_is_as_right_as_its_record(tmp_path: Path) -> None:
    report = await report_of(write(tmp_path, rows()), "each", "oracle")
    accuracy = {name.removeprefix("single:"): row.accuracy for name, row in report.planners.items()}
    assert accuracy == {DEAR: 0.9, MIDDLE: 0.8, CHEAP: 0.75, WEAK: 0.5, "oracle": 1.0}


async def test_best_is_chosen_on_the_other_folds_and_compared_with_the_best_in_hindsight(tmp_path: Path) -> None:
    report = await report_of(write(tmp_path, rows()), "best", "vote")
    assert report.chosen["best"] == [DEAR] * 5
    assert report.planners["best"].accuracy == 0.9
    assert report.chosen["hindsight"]["worker"] == DEAR
    assert report.chosen["hindsight"]["versus"]["best"].mean == 0.0
    draws = report.chosen["best_by_draw"]
    assert len(draws) == 20
    assert max(draws) == 0.9  # a draw of the folds that hides the best worker can only cost
    assert min(draws) < 0.9


async def test_the_ceiling_is_the_best_planner_of_each_kind_and_wins_nothing(tmp_path: Path) -> None:
    report = await report_of(write(tmp_path, rows()), "best", "vote", "ceiling")
    best = max(report.planners[name].accuracy for name in ("best", "vote"))
    assert report.planners["ceiling"].accuracy == max(best, 0.9)
    assert "ceiling" not in report.chosen["hindsight"]["versus"]
    assert "ceiling" not in report.chosen["pareto"]
    assert "ceiling" not in report.verdict
    assert report.complete


async def test_a_vote_of_three_is_right_where_two_are(tmp_path: Path) -> None:
    report = await report_of(write(tmp_path, rows()), "best", "vote", "weighted-vote")
    panel = list(WRONG_EVERY.values())[:3]
    errs = [[(i + shift) % every == 0 for shift, every in enumerate(panel)] for i in range(40)]
    # Wrong answers differ from model to model, so with one right model of three the first one's answer wins.
    expected = sum(sum(e) <= 1 or (sum(e) == 2 and not e[0]) for e in errs) / 40
    assert report.planners["vote"].accuracy == pytest.approx(expected)
    assert report.planners["vote"].calls == 3
    assert says(report.notes["vote"], "3")
    assert report.planners["weighted-vote"].calls == 4


async def test_a_number_behind_the_colon_sizes_panel_knn_and_smoothie_as_elsewhere(tmp_path: Path) -> None:
    report = await report_of(write(tmp_path, rows()), "vote", "panel", "panel:3", "panel:2", "panel:4", "knn", "knn:1")
    calls = {name: row.calls for name, row in report.planners.items()}
    assert calls == {"vote": 3, "panel": 3, "panel:3": 3, "panel:2": 2, "panel:4": 4, "knn": 1, "knn:1": 1}
    assert len({report.planners[name].accuracy for name in ("vote", "panel", "panel:3")}) == 1
    # Two different answers are a tie, which the first one wins: the best worker's own accuracy.
    assert report.planners["panel:2"].accuracy == 0.9
    assert report.recipe["planners"] == list(report.planners)
    report = await report_of(write(tmp_path, rows()), "smoothie", "smoothie:1", folds=2)
    assert [row.calls for row in report.planners.values()] == [4, 4]


@pytest.mark.parametrize(
    ("planner", "message"),
    [
        ("vote:5", "vote:5 panel:5"),
        ("panel:0", "panel:0 1 31"),
        ("panel:x", "panel:x 1 31"),
        ("panel:5", "panel:5 panel:4"),
        ("knn:0", "knn:0 1 1000"),
        ("smoothie:-1", "smoothie:-1 1 1000"),
        ("escalate:2", "escalate 2"),
        ("oracle:2", "oracle 2"),
        ("each:2", "each 2"),
        ("single:", "single:NAME"),
        ("masrouter", "masrouter"),
        ("pannel:3", "pannel:3"),
    ],
)
def test_a_planner_that_one_answer_a_model_cannot_give_is_refused_with_the_way_out(
    tmp_path: Path, planner: str, message: str
) -> None:
    questions = load_recorded(write(tmp_path, rows(10)))
    with pytest.raises(ConfigError, match=facts(message)):
        RecordedField(questions).lineup(["best", planner])


async def test_escalation_asks_the_best_only_where_two_cheaper_ones_disagree(tmp_path: Path) -> None:
    report = await report_of(write(tmp_path, rows()), "best", "escalate")
    disagree = sum((i + 1) % 5 == 0 or (i + 2) % 4 == 0 for i in range(40)) / 40
    assert [sorted(pair) for pair in report.chosen["escalate"]] == [[MIDDLE, CHEAP]] * 5
    assert report.chosen["escalated"] == pytest.approx(disagree)
    assert report.planners["escalate"].calls == pytest.approx(2 + disagree)
    shares = report.planners[
        "escalate"
    ].worker_shares  # workers whose answers were not used count too: 2 workers and a counter, then 1
    assert shares[DEAR] == pytest.approx(disagree / (3 + disagree))
    assert shares[MIDDLE] == shares[CHEAP] == pytest.approx(1 / (3 + disagree))


async def test_without_cheaper_workers_the_best_answers_alone(tmp_path: Path) -> None:
    found = rows()
    for row in found:
        row["outputs"] = {name: row["outputs"][name] for name in (DEAR, WEAK)}
    report = await report_of(write(tmp_path, found), "best", "escalate")
    assert report.planners["escalate"].accuracy == report.planners["best"].accuracy
    assert report.planners["escalate"].calls == 1


async def test_cost_is_tokens_times_the_price_of_each_model(tmp_path: Path) -> None:
    report = await report_of(write(tmp_path, rows()), f"single:{WEAK}")
    row = report.planners[f"single:{WEAK}"]
    price, source = recorded_price(WEAK)
    assert (price, "open-mistral-7b" in source) == (Price(0.25, 0.25), True)
    assert row.cost_usd_per_question == pytest.approx((row.input_tokens + 100) * 0.25 / 1e6)
    assert report.chosen["prices"][WEAK] == source


def test_the_price_tables_go_before_prices_typed_in_by_hand() -> None:
    assert recorded_price(CHEAP)[1] == "genai-prices"
    assert [model for model in (*HOSTED, *ASSUMED) if recorded_price(model)[1] == "genai-prices"] == []
    assert recorded_price("nobody-1b") == (None, "unknown")


async def test_scores_without_answers_are_averaged_and_routed_by_likeness(tmp_path: Path) -> None:
    words = ("apples pears", "verbs nouns", "rivers lakes", "kings queens", "sums products")
    found = []
    for i in range(80):
        scores = {"a": 1.0, "b": 0.0} if i % 5 < 3 else {"a": 0.0, "b": 0.5}
        told_apart = " ".join("xy"[int(bit)] for bit in f"{i:07b}")  # single letters are no words to the router
        found.append(question(i) | {"question": f"About {words[i % 5]} {told_apart}", "scores": scores})
    questions = load_recorded(write(tmp_path, found))
    assert not {"vote", "weighted-vote", "escalate", "smoothie"} & set(usable_planners(questions))
    report = await evaluate_recorded(questions, ["each", "best", "knn", "knn:1", "oracle"])
    accuracy = {name: row.accuracy for name, row in report.planners.items()}
    # One neighbour is not enough against a worker's own mean, which counts as five.
    expected = {"single:a": 0.6, "single:b": 0.2, "best": 0.6, "knn": 0.8, "knn:1": 0.6, "oracle": 0.8}
    assert accuracy == pytest.approx(expected)
    for planner in ("vote", "panel:2", "smoothie:5"):
        with pytest.raises(ConfigError, match=facts(f"{planner} recorded")):
            RecordedField(questions).lineup([planner])
    assert RecordedField(questions).lineup(["knn:5"]).rows == ("knn:5",)


@pytest.mark.parametrize("model", HOSTED)
def test_a_hosts_price_is_looked_up_and_named(model: str) -> None:
    price, source = recorded_price(model)
    assert price is not None
    assert source.startswith(f"genai-prices: {HOSTED[model][0]}, ")


def test_prices_outside_the_tables_are_called_assumed() -> None:
    assert len(ASSUMED) == 4
    assert all(recorded_price(model)[1].startswith("assumed: ") for model in ASSUMED)


def test_a_price_that_its_maker_published_names_the_page() -> None:
    price, source = recorded_price("deepseek-v2.5-0908")
    assert (price.input, price.output) == (0.14, 0.28)  # type: ignore[union-attr]
    assert "platform.deepseek.com" in source


async def test_learned_routers_and_the_picker_take_part(tmp_path: Path) -> None:
    report = await report_of(write(tmp_path, rows()), "best", "knn", "routerdc", "smoothie", folds=2)
    accuracy = {name: row.accuracy for name, row in report.planners.items()}
    assert report.planners["smoothie"].calls == 4
    assert {report.planners[name].calls for name in ("knn", "routerdc")} == {1}
    # Right answers are the same words and wrong ones all differ, so if two are right one of them is picked.
    assert accuracy["smoothie"] > accuracy["best"]
    assert min(accuracy.values()) >= 0.5


async def test_a_run_is_the_same_again_and_another_seed_draws_other_folds(tmp_path: Path) -> None:
    file = write(tmp_path, rows(20))
    first, again = [await report_of(file, "best", "random", "knn", "routerdc", folds=2) for _ in range(2)]
    assert [row.accuracy for row in first.planners.values()] == [row.accuracy for row in again.planners.values()]
    tasks = load_recorded(file).tasks
    assert folds_of(tasks, folds=5, seed=1) != folds_of(tasks, folds=5, seed=2)


def test_folds_are_equal_in_size_and_too_few_questions_are_refused() -> None:
    tasks = [Task(str(i), "?", "1") for i in range(12)]
    sizes = list(folds_of(tasks, folds=5, seed=1).values())
    assert sorted(sizes.count(fold) for fold in range(5)) == [2, 2, 2, 3, 3]
    with pytest.raises(ConfigError, match=facts("5")):
        folds_of(tasks[:4], folds=5, seed=1)
    with pytest.raises(ConfigError, match=facts("folds 2 1")):
        RecordedSettings(folds=1)


def test_the_front_has_the_planners_that_no_cheaper_one_beats() -> None:
    def row(accuracy: float, cost_usd: float) -> Any:
        return figures([Outcome("p", "t", score=accuracy, cost_usd=cost_usd, valid=True)])

    found = {"a": row(0.5, 1), "b": row(0.4, 2), "c": row(0.9, 3), "d": row(0.9, 4), "oracle": row(1.0, 0.1)}
    assert pareto(found) == ["a", "c"]


def test_a_juror_no_better_than_a_coin_hardly_counts() -> None:
    assert log_odds(0.75) == pytest.approx(1.0986, abs=1e-4)
    assert log_odds(0.2) == log_odds(0.5) == 0.01
    assert log_odds(1.0) == log_odds(0.999)


async def test_questions_that_cannot_be_graded_here_are_left_out_and_counted(tmp_path: Path) -> None:
    found = rows(10)
    found[0]["grader"] = "code"
    del found[1]["outputs"][WEAK]
    file = write(tmp_path, found)
    questions = load_recorded(file)
    assert (len(questions.tasks), questions.left_out) == (8, 2)
    assert re.search(r"\(2\)\.$", as_markdown(await report_of(file, "best")), re.MULTILINE)


def test_a_limit_draws_as_many_of_each_task_and_hides_nothing_that_was_left_out(tmp_path: Path) -> None:
    found = [row | {"task": "odd" if i % 2 else "even"} for i, row in enumerate(rows(40))]
    found[0]["grader"] = "code"
    file = write(tmp_path, found)
    drawn = load_recorded(file, limit=5, seed=3)
    assert [task.kind for task in drawn.tasks].count("odd") == 5 == len(drawn.tasks) / 2
    assert drawn.left_out == 1
    assert [task.id for task in drawn.tasks] != [task.id for task in load_recorded(file).tasks[:10]]
    assert drawn.tasks == load_recorded(file, limit=5, seed=3).tasks != load_recorded(file, limit=5, seed=4).tasks


async def test_several_tasks_have_rows_of_their_own_and_gains_are_shown_with_their_plans(tmp_path: Path) -> None:
    found = [row | {"task": "odd" if i % 2 else "even"} for i, row in enumerate(rows(40))]
    report = await report_of(write(tmp_path, found), "each", "best", "vote")
    assert {task: row["best"].n for task, row in report.by_task.items()} == {"even": 20, "odd": 20}
    assert report.capacity.keys() == {"all", "even", "odd"}
    assert {example.planner for example in report.examples} == {"vote"}
    assert all(example.correct != example.best_correct and len(example.steps) == 4 for example in report.examples)
    alone = await report_of(write(tmp_path, rows()), "best", "vote")
    assert alone.by_task == {}


def test_a_benchmark_is_asked_as_far_as_answers_are_recorded(tmp_path: Path) -> None:
    questions = load_recorded(write(tmp_path, rows(10)))
    wanted = [Task("x", "What is 3 + 1 then?", "4", "final_number"), Task("y", "Who?", "me", "exact")]
    assert [task.id for task in of_benchmarks(questions, wanted).tasks] == ["x"]
    with pytest.raises(ConfigError, match=facts("1")):
        of_benchmarks(questions, wanted[1:])


@pytest.mark.parametrize(
    ("found", "tasks", "message"),
    [
        ([], (), "recorded.jsonl"),
        ([question(1)], (), "outputs scores --pool"),
        (rows(1), ("algebra",), "algebra"),
    ],
)
def test_a_file_that_holds_nothing_to_replay_is_refused(
    tmp_path: Path, found: list[dict[str, Any]], tasks: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=facts(message)):
        load_recorded(write(tmp_path, found), tasks=tasks)


def test_every_planner_is_on_the_page() -> None:
    assert [
        spec.name for spec in PLANNERS if spec.replays and spec.name != "single" and f"`{spec.name}`" not in PAGE
    ] == []


def test_the_command_replays_a_file_and_continues_after_a_cut(tmp_path: Path) -> None:
    file, out = write(tmp_path, rows()), tmp_path / "r.json"
    arguments = ["eval", "--pool", f"recorded:{file}", "--planners", "each,best,oracle", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert says(result.stdout.splitlines()[0], "recorded 40 4 5-fold seed 1")
    assert says(result.stdout, "8")
    report = json.loads(out.read_text())
    assert report["planners"]["best"]["accuracy"] == 0.9
    assert (report["recipe"]["pool"], report["recipe"]["limit"]) == (f"recorded:{file}", 200)
    result = CliRunner().invoke(app, [*arguments, "--resume"])
    assert says(result.stderr, "200")


def test_outcomes_of_other_answers_are_not_gone_on_with(tmp_path: Path) -> None:
    """The questions are the same, and a model's answers were recorded anew."""
    file, out = write(tmp_path, rows()), tmp_path / "r.json"
    arguments = ["eval", "--pool", f"recorded:{file}", "--planners", "each", "--out", str(out)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    changed = rows()
    changed[3]["outputs"] = {model: said | {"text": "other"} for model, said in changed[3]["outputs"].items()}
    write(tmp_path, changed)
    result = CliRunner().invoke(app, [*arguments, "--resume"])
    assert result.exit_code == 2
    assert says(result.stderr, "answers")
    assert says(result.stderr, "--resume")


def test_the_command_takes_a_benchmark_from_the_data_folder(tmp_path: Path) -> None:
    file = write(tmp_path, rows())
    write(tmp_path, [question(i) for i in range(10)], name="gsm8k.jsonl")
    arguments = ["eval", "--pool", f"recorded:{file}", "--tasks", "gsm8k", "--data", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, [*arguments, "--planners", "best", "--out", str(tmp_path / "r.json")])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["planners"]["best"]["n"] == 10


def test_answers_are_not_written_over_by_the_outcomes_of_a_report_of_their_name(tmp_path: Path) -> None:
    file = write(tmp_path, rows(), name="mine.jsonl")
    before = file.read_bytes()
    result = CliRunner().invoke(app, ["eval", "--pool", f"recorded:{file}", "--out", str(tmp_path / "mine.json")])
    assert result.exit_code == 2, result.output
    assert says(result.stderr, "--out")
    assert file.read_bytes() == before


def test_nothing_is_chosen_by_a_part_of_the_workers_where_the_money_ends(tmp_path: Path) -> None:
    file = write(tmp_path, rows())
    arguments = ["eval", "--pool", f"recorded:{file}", "--planners", "best,vote", "--out", str(tmp_path / "r.json")]
    whole = CliRunner().invoke(app, [*arguments, "--json"])
    result = CliRunner().invoke(app, [*arguments, "--max-cost", "0.01"])
    assert result.exit_code == 2, result.output
    assert says(result.stderr, "--max-cost --resume")
    assert "best" not in {outcome.planner for outcome in read_outcomes(tmp_path / "r.jsonl")}
    result = CliRunner().invoke(app, [*arguments, "--max-cost", "10", "--resume", "--json"])
    rows_of = [json.loads(run.stdout)["planners"] for run in (whole, result)]
    assert [row["accuracy"] for row in rows_of[0].values()] == [row["accuracy"] for row in rows_of[1].values()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "gsm8k"], "--pool recorded:FILE"),
        (["--pool", "recorded:nowhere.jsonl"], "nowhere.jsonl"),
        (["--pool", "recorded:{file}", "--planners", "bst"], "bst best"),
        (["--pool", "recorded:{file}", "--planners", "best,moa:3x2"], "moa:3x2"),
        (["--pool", "recorded:{file}", "--limit", "3"], "3 5 --limit"),
        (["--pool", "recorded:{file}", "--planners", "single:gpt-5"], "gpt-5"),
        (["--pool", "recorded:{file}", "--data", "."], "--tasks"),
        (["--pool", "recorded:{file}", "--limit", "0"], "limit 1 0"),
    ],
)
def test_an_impossible_replay_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    file = write(tmp_path, rows())
    given = [argument.replace("{file}", str(file)) for argument in arguments]
    result = CliRunner().invoke(app, ["eval", *given, "--out", str(tmp_path / "r.json")])
    assert result.exit_code == 2, result.output
    assert says(result.stderr, message)
