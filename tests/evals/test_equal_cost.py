"""Equal cost: sizes worked by hand, and votes that cost as much as the conductor on the same questions."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from dirigent.evals.costing import equal, in_lots, sizes_for
from dirigent.evals.page import as_html
from dirigent.evals.recorded import load_recorded
from dirigent.evals.report import Report, as_json, as_markdown, as_table
from dirigent.planners.examples import SampleCost
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Price
from tests.evals.samples import evaluate_recorded
from tests.evals.sized_samples import ALL, TASKS, pool, report_of
from tests.facts import says

IDS = ["a", "b", "c", "d"]
EVEN = dict.fromkeys(IDS, 1.0)
CENT = SampleCost(0.01, 0.01)
SYNTHESIS = SampleCost(0.01, 0.02, 0.02)
"""One alone is a cent; of several, each is two with the reading, and the synthesis two more: 1, 6, 8, 10 cents."""


@pytest.mark.parametrize(
    ("cost", "money_usd", "sizes"),
    [
        (CENT, 0.08, [2, 2, 2, 2]),
        (CENT, 0.10, [3, 3, 2, 2]),
        (CENT, 0.104, [3, 3, 2, 2]),
        (CENT, 0.106, [3, 3, 3, 2]),  # half a sample over is as far as half a sample under
        (CENT, 0.02, [1, 1, 1, 1]),  # one is the least
        (CENT, -1.0, [1, 1, 1, 1]),
        (CENT, 9.0, [31, 31, 31, 31]),  # and this the most
        (SYNTHESIS, 0.14, [2, 2, 1, 1]),
        (SYNTHESIS, 0.28, [3, 3, 2, 2]),
    ],
)
def test_samples_that_cost_a_sum_together_are_n_for_all_and_one_more_for_some(
    cost: SampleCost, money_usd: float, sizes: list[int]
) -> None:
    assert list(sizes_for(IDS, cost, money_usd + 1e-12, weights=EVEN).values()) == sizes


def test_a_question_that_costs_more_takes_more_of_the_money() -> None:
    # Two samples of all are 2 * (3 + 1 + 1 + 1) cents; of the other three, the first question takes all.
    assert sizes_for(IDS, CENT, 0.15, weights={**EVEN, "a": 3.0}) == {"a": 3, "b": 2, "c": 2, "d": 2}


def test_lots_depend_on_the_seed_and_the_question_alone() -> None:
    many = [str(i) for i in range(50)]
    order = in_lots(many, 1)
    assert in_lots(many[::-1], 1) == order
    assert in_lots(many, 2) != order
    assert [id for id in order if int(id) < 25] == in_lots(many[:25], 1)


def test_costs_are_equal_within_a_twentieth_and_unknown_ones_never() -> None:
    assert equal(1.0499, 1.0)
    assert not equal(1.051, 1.0)
    assert not equal(0.949, 1.0)
    assert not any((equal(None, 1.0), equal(1.0, None), equal(0.0, 0.0)))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("planners", [ALL, ALL[1:]])
async def test_votes_cost_as_much_as_the_conductor_on_the_same_questions(seed: int, planners: tuple[str, ...]) -> None:
    report = await report_of(*planners, workers=pool(seed=seed))
    target_usd = report.planners["conductor"].cost_usd_per_question
    for name in ("vote", "self-moa"):
        sizing = report.sizes[name]
        assert sizing.target_usd == pytest.approx(target_usd)
        assert sizing.cost_usd == pytest.approx(report.planners[name].cost_usd_per_question)
        assert sizing.ratio == pytest.approx(1.0, abs=0.05)
        assert (sizing.worker, sizing.measure, sizing.bound, sizing.why_not) == ("strong", "conductor", "", "")
    assert report.planners["conductor"].versus_equal_cost is not None


async def test_every_form_of_a_report_states_the_votes_real_cost() -> None:
    report = await report_of(*ALL)
    ratio = report.sizes["vote"].ratio
    for text in (as_table(report), as_markdown(report), as_html(report)):
        assert says(text, f"vote {ratio:.2f} conductor")
    assert json.loads(as_json(report))["sizes"]["vote"]["ratio"] == ratio
    assert as_markdown(msgspec.json.decode(as_json(report), type=Report)) == as_markdown(report)
    assert says(report.notes["vote"], f"strong {report.sizes['vote'].samples:.3g} {ratio:.2f} conductor")


async def test_only_planners_of_equal_cost_are_compared_at_equal_cost() -> None:
    report = await report_of(*ALL, "cheapest")
    assert report.planners["cheapest"].versus_best is not None
    assert report.planners["cheapest"].versus_equal_cost is None
    assert report.planners["best"].versus_equal_cost is None


ONLY = "only rows that cost as much as the vote are compared with it"


async def test_a_row_without_a_difference_at_equal_cost_is_explained_below_the_table() -> None:
    report = await report_of(*ALL, tasks=TASKS[:8])
    for text in (as_table(report), as_markdown(report), as_html(report)):
        assert " ".join(text.split()).count(ONLY) == 1
    assert ONLY not in as_table(await report_of("best", "vote:3", "conductor", tasks=TASKS[:4]))
    compared = msgspec.structs.replace(
        report, planners={name: report.planners[name] for name in ("vote", "conductor")}, by_task={}
    )
    row = msgspec.structs.replace(
        compared.planners["conductor"], versus_equal_cost=compared.planners["conductor"].versus_best
    )
    compared = msgspec.structs.replace(compared, planners={**compared.planners, "conductor": row})
    assert ONLY not in as_table(compared)


@pytest.mark.parametrize(
    ("planners", "plan", "workers", "why_not"),
    [
        (("best", "vote", "self-moa"), "", pool(), "conductor conductor:2 language moa moa:8"),
        (ALL, "Answer. | cheap 1 | -", pool(cheap=None), "conductor"),
        (ALL, "this is no plan", pool(), "conductor"),
        (ALL, "Answer. | cheap 1 | -", pool(strong=None), "strong"),
        (ALL, "Answer. | cheap 1 | -", pool(strong=Price()), "strong"),
    ],
)
async def test_a_vote_that_cannot_be_sized_takes_its_usual_samples_and_gives_the_reason(
    planners: tuple[str, ...], plan: str, workers: Pool, why_not: str
) -> None:
    report = await report_of(*planners, plan=plan, workers=workers, tasks=TASKS[:6])
    assert report.complete
    for name, samples in (("vote", 5), ("self-moa", 6)):
        assert (report.sizes[name].samples, report.sizes[name].ratio) == (samples, None)
        assert says(report.sizes[name].why_not, why_not)
        assert report.sizes[name].why_not in as_markdown(report)
        assert says(report.notes[name], f"strong {samples}")
    assert all(row.versus_equal_cost is None for name, row in report.planners.items() if name != "self-moa")


async def test_a_measure_cheaper_than_one_call_makes_equality_impossible_and_is_reported() -> None:
    report = await report_of(*ALL, plan="Answer. | cheap 1 | -")
    for name in ("vote", "self-moa"):
        sizing = report.sizes[name]
        assert (sizing.samples, sizing.bound) == (1.0, "least")
        assert sizing.ratio is not None
        assert sizing.ratio > 5
        assert says(as_table(report), f"{name} {sizing.ratio:.2f}")
    assert report.planners["conductor"].versus_equal_cost is None
    assert "equal-cost" not in report.verdict


async def test_a_measure_dearer_than_the_longest_vote_is_said_to_be() -> None:
    workers = pool(strong=Price(0.01, 0.01), cheap=Price(50.0, 50.0))
    report = await report_of("vote", "conductor", plan="Answer. | cheap 1 | -", workers=workers, tasks=TASKS[:5])
    assert (report.sizes["vote"].samples, report.sizes["vote"].bound) == (31.0, "most")
    assert says(as_table(report), f"vote {report.sizes['vote'].ratio:.2f}")


async def test_a_named_number_of_samples_is_not_sized_by_cost() -> None:
    report = await report_of("best", "vote:3", "self-moa:2", "conductor", tasks=TASKS[:4])
    assert report.sizes == {}
    assert report.planners["vote:3"].steps == 4.0


async def test_over_recorded_answers_nothing_is_called_equal_in_cost(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"q{i}",
            "question": f"What is {i} + 1?",
            "answer": str(i + 1),
            "grader": "number",
            "outputs": {m: {"text": str(i + 1), "cost_usd": 0.1} for m in ("m1", "m2", "m3")},
        }
        for i in range(20)
    ]
    file = tmp_path / "recorded.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    report = await evaluate_recorded(load_recorded(file), ["best", "vote", "escalate"])
    assert report.sizes == {}
    assert all(row.versus_equal_cost is None for row in report.planners.values())
    assert "equal cost" not in report.verdict
