"""A worker of unknown price makes costs unknown, never free: in the figures, the choices and the pages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benchmarks import recorded as program

from dirigent.evals.entries import Entry, ask_entries
from dirigent.evals.metrics import capacity, ceiling, figures, oracle, pareto
from dirigent.evals.page import as_html, pareto_front
from dirigent.evals.planners import examples_of, fit_planners
from dirigent.evals.questions import Questions
from dirigent.evals.record import Outcome
from dirigent.evals.recorded import load_recorded
from dirigent.evals.report import Facts, Report, as_json, as_markdown, as_table, make_report
from dirigent.messages import Usage
from dirigent.plan.plan import Plan, Step
from dirigent.plan.planner import LanguagePlanner
from dirigent.planners import Fitting
from dirigent.planners.examples import Example
from dirigent.planners.spec import UNKNOWN_USD
from dirigent.tasks import Task
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import FromFunction, Scripted
from dirigent.workers.worker import Price, Worker
from tests.evals.samples import PRICE, evaluate_live, evaluate_recorded, outcome, single, sums
from tests.facts import Saying, says

DEAR, CHEAP, OURS = "claude-3-5-sonnet-20241022", "gpt-4o-mini-2024-07-18", "ours-1b"
"""The last one is in no table of prices."""
WRONG_EVERY = {DEAR: 10, CHEAP: 4, OURS: 5}
FACTS = Facts(recipe={}, commit="", seed=1, date="", version="", tasks={}, workers="", prices={"a": None})


def file_of(folder: Path, *, stated: Sequence[float | None] = (None,)) -> Path:
    """Sums on which each model errs at its own questions; `stated` are the file's costs of ours, in turn."""
    rows = []
    for i in range(40):
        outputs: dict[str, dict[str, Any]] = {
            model: {"text": f"The answer is {0 if (i + shift) % every == 0 else i + 1}.", "est_tokens": 100}
            for shift, (model, every) in enumerate(WRONG_EVERY.items())
        }
        cost_usd = stated[i % len(stated)]
        outputs[OURS] |= {} if cost_usd is None else {"cost_usd": cost_usd}
        rows.append({"id": f"q{i}", "question": f"What is {i} + 1 then?", "answer": str(i + 1), "grader": "number"})
        rows[-1]["outputs"] = outputs  # type: ignore[assignment]
    file = folder / "recorded.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


async def recorded_report(file: Path, *planners: str) -> Report:
    return await evaluate_recorded(load_recorded(file), planners)


async def test_a_recorded_model_in_no_table_has_an_unknown_cost(tmp_path: Path) -> None:
    report = await recorded_report(file_of(tmp_path), "each", "best", "cheapest", "vote", "escalate", "oracle")
    found = json.loads(as_json(report))
    assert found["planners"][f"single:{OURS}"]["cost_usd"] is None
    assert found["planners"]["vote"]["cost_usd_per_question"] is None  # it asks all three
    assert found["prices"][OURS] is None
    assert found["capacity"]["all"]["workers"][OURS]["cost_usd_per_question"] is None
    assert found["unpriced"] == [OURS]
    assert report.chosen["prices"][OURS] == "unknown"
    assert report.planners["best"].cost_usd == pytest.approx(report.planners[f"single:{DEAR}"].cost_usd)
    assert not {f"single:{OURS}", "vote"} & set(report.chosen["pareto"])


async def test_an_unknown_cost_is_neither_the_cheapest_nor_cheaper_than_the_best(tmp_path: Path) -> None:
    report = await recorded_report(file_of(tmp_path), "best", "cheapest", "escalate", "oracle")
    assert report.notes["cheapest"] == CHEAP
    assert report.chosen["escalate"] == [[]] * 5  # CHEAP alone is known to be cheaper than DEAR
    asked = report.planners["oracle"].worker_shares
    both_wrong = sum(i % 10 == 0 and (i + 1) % 4 == 0 and (i + 2) % 5 != 0 for i in range(40)) / 40
    assert asked.get(OURS, 0.0) == both_wrong  # only if no worker of known price is right


@pytest.mark.parametrize(
    ("stated", "cost_usd", "source"),
    [((0.002,), 0.08, "file"), ((0.0,), 0.0, "file"), ((0.002, None), None, "unknown")],
)
async def test_a_cost_that_the_file_states_is_known(
    tmp_path: Path, stated: Sequence[float | None], cost_usd: float | None, source: str
) -> None:
    report = await recorded_report(file_of(tmp_path, stated=stated), "each")
    found = report.planners[f"single:{OURS}"].cost_usd
    assert found is None if cost_usd is None else found == pytest.approx(cost_usd)
    assert source in report.chosen["prices"][OURS]
    assert report.unpriced == ((OURS,) if cost_usd is None else ())


async def test_every_page_shows_unknown_and_names_the_model(tmp_path: Path) -> None:
    report = await recorded_report(file_of(tmp_path), "each", "best", "vote")
    table, markdown, page = as_table(report), as_markdown(report), as_html(report)
    assert all(says(text, f"unknown {OURS}") for text in (table, markdown, page, program.page([report])))
    (row,) = [line for line in table.splitlines() if line.startswith(f"single:{OURS}")]
    assert " unknown " in row
    assert f"| {OURS} | unknown | unknown |" in markdown
    assert f": single:{OURS}, vote." in page
    assert "| vote | " in program.page([report])
    assert f"| {OURS} | unknown | unknown | unknown |" in program.page([report])
    read = msgspec.json.decode(as_json(report), type=Report)
    assert as_table(read) == table
    priced = await recorded_report(file_of(tmp_path, stated=(0.1,)), "each", "best", "vote")
    assert priced.unpriced == ()
    assert "unknown" not in as_table(priced)


def test_one_unknown_cost_makes_the_sum_unknown() -> None:
    row = figures([outcome("p", "1", cost_usd=0.5), outcome("p", "2", cost_usd=0.1, unpriced=("a",))])
    assert (row.cost_usd, row.cost_usd_per_question) == (None, None)
    assert figures([]).cost_usd == 0.0


def test_among_right_workers_the_oracle_takes_those_of_known_cost_first() -> None:
    alone = [
        outcome("single:a", "1", unpriced=("a",)),
        outcome("single:b", "1", cost_usd=5),
        outcome("single:a", "2", unpriced=("a",)),
        outcome("single:b", "2", cost_usd=5, correct=False),
        outcome("single:a", "3", unpriced=("a",), correct=False),
        outcome("single:b", "3", cost_usd=5, correct=False),
    ]
    assert [(o.task, o.correct, o.known_cost_usd) for o in oracle(alone)] == [
        ("1", True, 5),
        ("2", True, None),
        ("3", False, 5),
    ]


def test_of_two_planners_as_good_the_ceiling_takes_the_one_of_known_cost() -> None:
    found = ceiling([outcome("a", "1", unpriced=("a",)), outcome("b", "1", cost_usd=5.0)])
    assert [o.known_cost_usd for o in found] == [5.0]


def test_of_two_workers_as_good_the_one_of_known_cost_ranks_first() -> None:
    found = capacity([outcome("single:a", "1", unpriced=("a",)), outcome("single:b", "1", cost_usd=5.0)])
    assert found is not None
    assert {name: alone.cost_usd_per_question for name, alone in found.workers.items()} == {"b": 5.0, "a": None}
    assert found.best == "b"


def rows(planner: str, right: int, **fields: Any) -> list[Outcome]:
    return [outcome(planner, str(i), correct=i < right, **fields) for i in range(40)]


def report_of(*found: list[Outcome]) -> Report:
    outcomes = [o for of in found for o in of]
    names = list(dict.fromkeys(o.planner for o in outcomes))
    return make_report(outcomes, names, facts=FACTS, references=(), complete=True, equal_cost="vote")


def test_the_front_leaves_out_planners_of_unknown_cost() -> None:
    report = report_of(rows("best", 10, cost_usd=0.1), rows("knn", 30, unpriced=("a",)), rows("moa", 20, cost_usd=0.2))
    assert pareto(report.planners) == pareto_front(report.planners) == ["best", "moa"]


def test_a_comparison_at_equal_cost_leaves_out_an_unknown_one() -> None:
    best, vote = rows("best", 10, cost_usd=0.1), rows("vote", 12, cost_usd=0.3)
    report = report_of(best, vote, rows("knn", 30, unpriced=("a",)), rows("moa", 30, cost_usd=0.3))
    assert report.planners["knn"].versus_equal_cost is None
    assert report.planners["knn"].versus_best is not None
    assert report.planners["moa"].versus_equal_cost is not None
    unknown = report_of(best, rows("vote", 12, unpriced=("a",)), rows("moa", 30, cost_usd=0.3))
    assert unknown.planners["moa"].versus_equal_cost is None


def test_the_verdict_compares_no_unknown_cost() -> None:
    verdict = report_of(rows("best", 10, cost_usd=0.1), rows("knn", 30, unpriced=("a",))).verdict
    assert says(verdict, "+50.0 0.001 unknown")
    verdict = report_of(rows("best", 10, unpriced=("a",)), rows("knn", 30, cost_usd=0.1)).verdict
    assert says(verdict, "unknown")


async def outcome_with(worker: Worker, *, planner: LanguagePlanner | None = None) -> Outcome:
    entry = Entry("p", lambda task, pool: planner) if planner else single(worker.info.name)
    (found,) = await ask_entries([entry], sums(1), pool_for=lambda task, repeat: Pool([worker]))
    assert not found.error, found.error
    return found


async def test_a_call_without_a_price_is_noted_and_a_free_one_is_not() -> None:
    assert (await outcome_with(Scripted("1", name="w"))).unpriced == ("w",)
    assert (await outcome_with(Scripted("1", name="w", price=Price()))).known_cost_usd == 0.0
    assert (await outcome_with(Scripted("1", name="w", price=PRICE))).unpriced == ()


@pytest.mark.parametrize(("kind", "unpriced"), [("openai", ("planner",)), ("local", ())])
async def test_a_planner_outside_the_pool_needs_a_price_unless_it_runs_at_home(
    kind: str, unpriced: tuple[str, ...]
) -> None:
    plan = "model_id = [0]\nsubtasks = ['Answer.']\naccess_list = [[]]"
    planner = LanguagePlanner(Scripted(plan, name="planner", kind=kind, usage=Usage(10, 10)))
    assert (await outcome_with(Scripted("1", name="w", price=PRICE), planner=planner)).unpriced == unpriced


SCORES = {"a": (1, 1, 1), "b": (1, 1, 0), "c": (1, 0, 0)}


def fitting(*unpriced: str) -> Fitting:
    """Workers of which `a` is best, at a cent an answer if the cost is known."""
    tasks = [Task(str(i), f"question {i}", "5", "final_number") for i in range(3)]
    alone = [
        outcome(
            f"single:{name}",
            str(i),
            correct=bool(scores[i]),
            cost_usd=0.0 if name in unpriced else 0.01,
            unpriced=(name,) if name in unpriced else (),
            input_tokens=100,
            output_tokens=50,
        )
        for name, scores in SCORES.items()
        for i in range(3)
    ]
    pool = Pool(FromFunction.of_text(lambda text: "5", name=name, price=PRICE) for name in SCORES)
    return Fitting(examples_of(tasks, alone), pool, seed=1)


async def test_no_vote_is_sized_by_an_unknown_cost() -> None:
    known = await fit_planners(["vote", "self-moa"], fitting())
    assert [baseline.sampled.why_not for baseline in known if baseline.sampled] == ["", ""]
    unknown = await fit_planners(["vote", "self-moa"], fitting("a"))
    assert [baseline.note for baseline in unknown] == [Saying("a 5"), Saying("a 6")]
    why_nots = [baseline.sampled.why_not for baseline in unknown if baseline.sampled]
    assert [says(why_not, "a unknown") for why_not in why_nots] == [True, True]


async def test_no_worker_is_cheaper_than_an_unknown_cost() -> None:
    (baseline,) = await fit_planners(["escalate"], fitting("a"))
    assert says(baseline.note, "a")
    (baseline,) = await fit_planners(["cheapest"], fitting("a", "b"))
    assert baseline.note == "c"


async def test_masrouter_leaves_cost_aside_where_some_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    masrouter = pytest.importorskip("dirigent.planners.masrouter")
    plan, earned = Plan((Step("a", "Answer."),)), []

    async def rollout(question: str, plan: Plan) -> tuple[float, float] | None:
        return (1.0, 0.7) if question == "question 0" else None

    async def fit(questions: Sequence[str], workers: object, rollout: Any, **_: Any) -> LanguagePlanner:
        earned.extend([await rollout(question, plan) for question in questions[:2]])
        return LanguagePlanner(Scripted("", name="w"))

    monkeypatch.setattr(masrouter, "fit_masrouter", fit)
    for fits, cost_usd, said in ((fitting(), 0.7, ""), (fitting("b"), 0.0, "price b")):
        earned.clear()
        (baseline,) = await fit_planners(["masrouter"], msgspec.structs.replace(fits, rollout=rollout))
        assert earned == [(1.0, cost_usd), None]
        assert says(baseline.note, said)


async def test_over_a_live_pool_fitting_too_has_an_unknown_cost() -> None:
    tasks = [Task(str(i), f"What is {i} + 1?", str(i + 1), "final_number", kind="sums") for i in range(6)]
    pool = Pool([Scripted("The answer is 1.", name="a", price=PRICE), Scripted("The answer is 2.", name="b")])
    questions = Questions(("sums",), tasks[:3], tasks[3:])
    report = await evaluate_live(questions, ["best", "oracle"], pool)
    assert report.fit["cost_usd"] is None
    said = as_markdown(report)
    assert any(says(line, "3 unknown") for line in said.splitlines())
    assert report.prices == {"a": PRICE, "b": None}
    assert report.unpriced == ("b",)


def test_fitting_ranks_unknown_costs_behind_every_known_cost() -> None:
    assert fitting("b").unpriced == ("b",)
    assert fitting("b").examples[0].costs_usd["b"] == UNKNOWN_USD
    assert Fitting((Example("q", {"a": 1.0}),), fitting().pool).unpriced == ()
