"""Public benchmarks over a live pool: a real server on loopback answers, and everything else is the real code."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from dirigent.cli.evaluating import carried_out
from dirigent.errors import ConfigError
from dirigent.evals.metrics import by_planner, figures
from dirigent.evals.questions import Questions, gather, grading
from dirigent.evals.recipe import EvalRecipe
from dirigent.evals.record import Outcome, outcome_of, read_outcomes
from dirigent.evals.report import figures_by_planner
from dirigent.run.trace import Trace
from dirigent.tasks.graders import judge
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import FromFunction
from dirigent.workers.worker import Price
from tests.evals.samples import evaluate_live
from tests.facts import facts, says
from tests.programs import need
from tests.published_rows import published
from tests.stub_provider import StubProvider
from tests.stub_wires import StubCall

POOL = """
[[worker]]
name = "strong"
kind = "openai"
model = "strong"
base_url = "{url}"
price = {{ input = 1.0, output = 4.0 }}

[[worker]]
name = "weak"
kind = "openai"
model = "weak"
base_url = "{url}"
price = {{ input = 0.1, output = 0.4 }}
"""

RIGHT = {
    (name, i): reply for name in ("gsm8k", "math500", "humaneval") for i, (_, reply) in enumerate(published(name, 60))
}


def known(text: str, *, model: str) -> str:
    """The strong model is always right, the weak one on some questions."""
    name, i = re.findall(r"\[(\w+) #(\d+)\]", text)[-1]
    lucky = hashlib.blake2b(f"{name} {i}".encode()).digest()[0] < 100
    return RIGHT[name, int(i)] if model == "strong" or lucky else "The answer is 0."


def unsure(text: str, *, model: str) -> str:
    """As `known`, but even the strong model errs on some questions until it sees other answers to them."""
    name, i = re.findall(r"\[(\w+) #(\d+)\]", text)[-1]
    unlucky = hashlib.blake2b(f"{i} {name}".encode()).digest()[0] < 80
    has_seen_answers = "answer is" in text or RIGHT[name, int(i)] in text
    return "The answer is 0." if unlucky and not has_seen_answers else known(text, model=model)


def answer(call: StubCall) -> str:
    return known(call.text, model=call.model)


@pytest.fixture
async def stub() -> AsyncIterator[StubProvider]:
    async with StubProvider(answer) as provider:
        yield provider


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("gsm8k", "math500", "humaneval"):
        lines = (json.dumps(row) for row, _ in published(name, 60))
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder


def recipe(stub: StubProvider, data: Path, **fields: object) -> EvalRecipe:
    pool = data.parent / "dirigent.toml"
    pool.write_text(POOL.format(url=stub.url("openai")))
    settings: dict[str, object] = {
        "tasks": ("gsm8k", "math500"),
        "planners": ("best", "cheapest", "vote:3", "oracle"),
        "pool": str(pool),
        "data": str(data),
        "limit": 10,
        "fit": 6,
    }
    return EvalRecipe(**{**settings, **fields})  # type: ignore[arg-type]


async def test_a_comparison_over_a_configured_pool_is_whole(stub: StubProvider, data: Path, tmp_path: Path) -> None:
    report = await carried_out(recipe(stub, data), tmp_path / "r.json", resume=False, traces=False)
    assert report.complete
    assert list(report.planners) == ["best", "cheapest", "vote:3", "oracle"]
    assert report.planners["best"].accuracy == 1.0
    assert report.notes["best"] == "strong"
    assert report.planners["cheapest"].accuracy < 1.0
    assert report.tasks["by_task"] == {"gsm8k": 10, "math500": 10}
    assert set(report.by_task) == {"gsm8k", "math500"}
    assert report.by_task["gsm8k"]["best"].n == 10
    assert report.capacity["all"].best == "strong"
    assert report.capacity["all"].complementarity == 0.0
    assert report.prices["strong"] == Price(1.0, 4.0)
    assert says(report.verdict, "100.0%")
    assert not report.sandbox  # no code was graded


async def test_fitting_is_paid_apart_and_never_on_the_questions_asked(
    stub: StubProvider, data: Path, tmp_path: Path
) -> None:
    report = await carried_out(recipe(stub, data), tmp_path / "r.json", resume=False, traces=False)
    found = read_outcomes(tmp_path / "r.jsonl")
    fit = [o for o in found if o.tags["split"] == "train"]
    assert report.fit["n"] == 12
    assert len(fit) == 12 * 2
    assert report.fit["cost_usd"] == pytest.approx(sum(o.cost_usd for o in fit))
    assert not {o.task for o in fit} & {o.task for o in found if o.tags["split"] == "test"}


async def test_best_is_not_paid_for_where_its_worker_answers_alone_anyway(
    stub: StubProvider, data: Path, tmp_path: Path
) -> None:
    wanted = recipe(stub, data, planners=("best", "oracle"), tasks=("gsm8k",))
    await carried_out(wanted, tmp_path / "r.json", resume=False, traces=False)
    assert len(stub.calls) == 2 * (6 + 10)


async def test_resuming_pays_for_nothing_twice(stub: StubProvider, data: Path, tmp_path: Path) -> None:
    first = await carried_out(recipe(stub, data), tmp_path / "r.json", resume=False, traces=False)
    paid = len(stub.calls)
    again = await carried_out(recipe(stub, data), tmp_path / "r.json", resume=True, traces=False)
    assert len(stub.calls) == paid
    assert again.planners == first.planners
    assert again.fit == first.fit


async def test_after_a_kill_only_unfinished_questions_are_asked(
    stub: StubProvider, data: Path, tmp_path: Path, wait_until: Callable[..., Awaitable[None]]
) -> None:
    wanted = recipe(stub, data, planners=("single:strong", "single:weak"))
    stub.delay_s = 0.05
    outcomes, home = tmp_path / "r.jsonl", tmp_path / "home"
    command = ["-m", "dirigent", "eval", "--tasks", "gsm8k,math500", "--planners", ",".join(wanted.planners)]
    command += ["--pool", wanted.pool, "--data", str(data), "--limit", "10", "--concurrency", "2"]
    environ = os.environ | {"DIRIGENT_HOME": str(home)}
    arguments = [*command, "--out", str(tmp_path / "r.json")]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, env=environ, stderr=-3, stdout=-3)
    try:
        await wait_until(lambda: outcomes.exists() and outcomes.read_bytes().count(b"\n") > 8, within_s=60)
    finally:
        process.kill()
        await process.wait()
    kept = len(read_outcomes(outcomes))
    before, stub.delay_s = len(stub.calls), 0.0
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, "--resume", env=environ, stderr=-1, stdout=-1
    )
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert says(said.decode(), f"{kept}")
    assert len(stub.calls) - before == 40 - kept
    assert len({(o.planner, o.task) for o in read_outcomes(outcomes)}) == 40


async def test_a_cap_on_the_whole_run_holds_and_is_reported(stub: StubProvider, data: Path, tmp_path: Path) -> None:
    capped = recipe(stub, data, planners=("single:strong",), max_cost=0.05, max_output_tokens=2048)
    report = await carried_out(capped, tmp_path / "r.json", resume=False, traces=False)
    assert report.complete
    tight = recipe(stub, data, planners=("best",), max_cost=0.0001)
    with pytest.raises(ConfigError, match=facts("--max-cost --resume")):
        await carried_out(tight, tmp_path / "t.json", resume=False, traces=False)


@pytest.mark.system
async def test_code_is_graded_in_one_sandbox_for_the_whole_evaluation(
    stub: StubProvider, data: Path, tmp_path: Path
) -> None:
    need("bwrap")
    wanted = recipe(stub, data, tasks=("humaneval",), planners=("single:strong", "single:weak"), limit=4)
    report = await carried_out(wanted, tmp_path / "r.json", resume=False, traces=False)
    assert report.planners["single:strong"].accuracy == 1.0
    assert report.planners["single:weak"].accuracy < 1.0
    assert str(report.sandbox).startswith("bubblewrap, seccomp, ")


async def test_questions_that_need_missing_libraries_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [row | {"libs": "['numpy']"} if i % 2 else row for i, (row, _) in enumerate(published("bigcodebench", 6))]
    (tmp_path / "bigcodebench.jsonl").write_text("\n".join(map(json.dumps, rows)))
    questions = await gather(["bigcodebench"], data=tmp_path)
    assert len(questions.tasks) == 3
    ((why, count),) = questions.left_out.items()
    assert count == 3
    assert says(why, "bigcodebench: numpy")


@pytest.mark.system
async def test_a_question_with_a_failing_reference_is_left_out(tmp_path: Path) -> None:
    need("bwrap")
    rows = [row for row, _ in published("bigcodebench", 2)]
    rows[1] = rows[1] | {"canonical_solution": "    return {}\n"}
    (tmp_path / "bigcodebench.jsonl").write_text("\n".join(map(json.dumps, rows)))
    async with grading(await gather(["bigcodebench"], data=tmp_path)) as (questions, sandbox):
        assert sandbox is not None
        assert len(questions.tasks) == 1
        assert [(says(why, "bigcodebench:"), n) for why, n in questions.left_out.items()] == [(True, 1)]


async def test_without_code_no_sandbox_is_opened(data: Path) -> None:
    async with grading(await gather(["gsm8k"], data=data, limit=2)) as (_, sandbox):
        assert sandbox is None


async def test_the_sample_is_seeded_and_a_held_out_part_is_never_asked(data: Path) -> None:
    first = await gather(["gsm8k"], data=data, limit=20, fit=10, seed=3)
    again = await gather(["gsm8k"], data=data, limit=20, fit=10, seed=3)
    other = await gather(["gsm8k"], data=data, limit=20, fit=10, seed=4)
    assert first == again
    assert first.tasks != other.tasks
    assert not {t.question for t in first.fit} & {t.question for t in first.tasks}


async def test_a_training_part_is_fitted_on_where_there_is_one(data: Path) -> None:
    (data / "gsm8k_train.jsonl").write_text(json.dumps({"question": "[train] 1 + 1", "answer": "#### 2"}))
    questions = await gather(["gsm8k"], data=data, limit=60, fit=10)
    assert len(questions.tasks) == 60
    assert [task.question.startswith("[train]") for task in questions.fit] == [True]


async def test_questions_tell_how_to_close_an_answer(data: Path) -> None:
    questions = await gather(["gsm8k", "math500"], data=data, limit=1)
    assert "The answer is N." in questions.tasks[0].question
    assert "\\boxed{}" in questions.tasks[1].question


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"planners": ("bset",)}, "bset best"),
        ({"planners": ("ceiling",), "fit": 0}, "--fit"),
        ({"planners": ("single:nobody",)}, "nobody strong weak"),
        ({"planners": ("conductor:2",)}, "conductor:2 planner"),
        ({"planners": ("best",), "fit": 0}, "--fit"),
    ],
)
async def test_an_impossible_evaluation_is_refused_before_anything_is_paid(
    stub: StubProvider, data: Path, tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=facts(message)):
        await carried_out(recipe(stub, data, **fields), tmp_path / "r.json", resume=False, traces=False)
    assert stub.calls == []


async def test_figures_of_a_report_are_those_of_its_traces(data: Path) -> None:
    questions = await gather(["gsm8k", "math500"], data=data, limit=12, fit=6)
    traces: list[Trace] = []
    worker = {
        name: FromFunction.of_text(lambda text, name=name: unsure(text, model=name), name=name, price=Price(1.0, 2.0))
        for name in ("strong", "weak")
    }

    async def keep(trace: Trace) -> None:
        traces.append(trace)

    planners = ["best", "cheapest", "reflect:2", "moa", "vote", "random"]
    report = await evaluate_live(questions, planners, Pool(worker.values()), keep=keep)
    again = await _recomputed(traces, questions, report.planners)
    for name, row in report.planners.items():
        found = figures(again[name])
        assert (row.n, row.accuracy, row.interval, row.valid) == (found.n, found.accuracy, found.interval, found.valid)
        assert (row.calls, row.tokens, row.orchestration_tokens) == (
            found.calls,
            found.tokens,
            found.orchestration_tokens,
        )
        assert row.cost_usd == pytest.approx(found.cost_usd)
        assert (row.steps_histogram, row.worker_shares) == (found.steps_histogram, found.worker_shares)
        seconds = [trace.seconds for trace in traces if trace.id in {o.trace_id for o in again[name]}]
        assert len(seconds) == row.n == 24
        assert row.seconds_p50 == pytest.approx(statistics.median(seconds))
        assert row.seconds_p95 == pytest.approx(statistics.quantiles(seconds, n=20, method="inclusive")[-1])
    everything = [outcome for found in again.values() for outcome in found]
    rows = figures_by_planner(everything, planners, seed=1, equal_cost="vote")
    for name, row in report.planners.items():
        assert (row.versus_best, row.versus_equal_cost) == (rows[name].versus_best, rows[name].versus_equal_cost)


async def test_the_difference_at_equal_cost_is_that_of_the_answers_in_the_traces(data: Path) -> None:
    questions = await gather(["gsm8k", "math500"], data=data, limit=12, fit=6)
    traces: list[Trace] = []
    worker = FromFunction.of_text(lambda text: unsure(text, model="strong"), name="strong", price=Price(1.0, 2.0))

    async def keep(trace: Trace) -> None:
        traces.append(trace)

    report = await evaluate_live(questions, ["best", "moa", "vote"], Pool([worker]), keep=keep)
    again = await _recomputed(traces, questions, report.planners)
    right = {name: {o.task for o in of if o.correct} for name, of in again.items()}
    cost_usd = {name: sum(o.cost_usd for o in of) for name, of in again.items()}
    assert cost_usd["vote"] == pytest.approx(cost_usd["moa"], rel=0.05)
    found = report.planners["moa"].versus_equal_cost
    assert found is not None
    assert found.n == 24
    assert found.mean == pytest.approx((len(right["moa"]) - len(right["vote"])) / 24)
    assert found.mean > 0
    assert report.planners["vote"].versus_equal_cost is None


async def _recomputed(traces: list[Trace], questions: Questions, names: dict[str, object]) -> dict[str, list[Outcome]]:
    """Outcomes from traces and questions alone, in the order of the questions."""
    by_text: dict[str, Task] = {task.question: task for task in questions.tasks}
    found = []
    for trace in traces:
        task = by_text.get(trace.question[0].text)
        if task is not None and trace.planner in names:
            grade = await judge(task, trace.answer)
            found.append(outcome_of(trace, task, grade=grade, planner=trace.planner))
    order = {task.id: i for i, task in enumerate(questions.tasks)}
    return {name: sorted(of, key=lambda o: order[o.task]) for name, of in by_planner(found).items()}
