"""The table of claims: each line worked by hand, gaps marked, verdicts by the figures."""

from __future__ import annotations

import random

import msgspec
import pytest
from tests.facts import facts

from dirigent.errors import ConfigError
from dirigent.evals.stats import wilson
from dirigent.plan.plan import Plan, format_plan
from dirigent_gym.questions import ROSTER, exact_pool
from dirigent_gym.questions.handwritten import handwritten
from dirigent_gym.train.claims import (
    KNOW_NO_OTHERS,
    OTHER_SETS,
    PLACED,
    START_SAMPLED,
    Claim,
    Evidence,
    Run,
    as_table,
    claims,
    join_seeds,
    missed,
)
from dirigent_gym.train.controls import (
    Followed,
    aliased_rows,
    novel_rows,
    plan_shares,
    reworded_rows,
    share,
    unevenness,
)
from dirigent_gym.train.dataset import Row, held_rows, make_row
from dirigent_gym.train.reward import Scored, score
from dirigent_gym.train.rows import right_plan

ROWS = tuple(row for row in held_rows("test", 150, seed=4) if right_plan(row) is not None)
RELIABLE = [msgspec.structs.replace(specialist, noise=0.0) for specialist in ROSTER]


async def run_right(rows: tuple[Row, ...]) -> Run:
    """The right plans, carried out by workers that answer exactly."""
    pool = exact_pool(RELIABLE)
    workers = {name: pool[name] for name in pool}
    plans = [(row, plan) for row in rows if (plan := right_plan(row)) is not None]
    texts = [format_plan(row.with_shown_names(plan), row.shown, dialect="lines") for row, plan in plans]
    return Run(rows, tuple(await score(rows, texts, workers)))


def all_wrong(run: Run, *, where: set[str]) -> Run:
    scored = (
        msgspec.structs.replace(one, correct=False) if row.task.id in where else one
        for row, one in zip(run.rows, run.scored, strict=True)
    )
    return Run(run.rows, tuple(scored))


def ids(run: Run, **tags: str) -> set[str]:
    return {row.task.id for row in run.rows if all(row.task.tags.get(k) == v for k, v in tags.items())}


CERTAIN = "(c) RL over rejection sampling, equal rollouts: interval above 0, p < 0.05"


def find(table: list[Claim], name: str) -> Claim:
    return next(claim for claim in table if claim.name == name)


@pytest.fixture(scope="module")
def ones() -> dict[str, float]:
    return {row.task.id: 1.0 for row in ROWS}


async def test_right_plans_meet_every_line_that_they_can_meet(ones: dict[str, float]) -> None:
    run = await run_right(ROWS)
    novel = tuple(row for row in novel_rows(20, seed=1) if right_plan(row) is not None)
    table = claims(
        Evidence(
            test=run,
            ceiling=ones,
            oracle=dict.fromkeys(ones, 0.2),
            reworded=await run_right(tuple(reworded_rows(ROWS, seed=1))),
            aliased=await run_right(tuple(aliased_rows(ROWS, seed=1))),
            novel=await run_right(novel),
            before={"greedy": plan_shares(run.rows, run.scored)},
        )
    )
    for name in ("share of the ceiling", "depth 3, share of its ceiling", "reworded cards, over seen ones"):
        assert find(table, name).value == 1.0
        assert find(table, name).verdict in ("goal", "met")
    assert find(table, "names that say nothing, over the workers' own").value == 1.0
    over = find(table, "depth 2 and more, over the oracle choice of one worker")
    assert over.value == pytest.approx(5.0)
    assert over.interval == pytest.approx((5.0, 5.0))
    assert find(table, "steps over minimal, correct answers").value == 1.0
    assert find(table, "one-step kinds answered in one step").verdict.partition(",")[0] == "met"
    assert find(table, "fan-out questions planned in parallel, correct answers").value == 1.0
    assert find(table, "minimal pairs: order swapped, both right").verdict == "reported"
    assert find(table, "before RL, greedy: right access").value == 1.0
    assert missed(table) == []


async def test_a_missing_measurement_has_a_line_that_says_so(ones: dict[str, float]) -> None:
    table = claims(Evidence(test=await run_right(ROWS[:40]), ceiling=ones))
    gaps = {claim.name for claim in table if claim.verdict == "not measured"}
    assert "reworded cards, over seen ones" in gaps
    assert "(e) two cards swapped: routing follows the card" in gaps
    assert "plan on 2 CPU cores, cold, median" in gaps
    assert "after RL, pass@16: right decomposition" in gaps
    assert "| (d) shuffled reward, gain | – | – | – | ≤ +3.0 |  | not measured |" in as_table(table)


async def test_a_shortfall_shows_in_its_own_line(ones: dict[str, float]) -> None:
    run = await run_right(ROWS)
    short = all_wrong(run, where=ids(run, combination="held_out", shape="chain"))
    table = claims(Evidence(test=short, ceiling=ones))
    assert find(table, "held-out combinations of skills, over seen ones").value == 0.0
    assert "held-out combinations of skills, over seen ones" in missed(table)
    assert find(table, "depth 1, share of its ceiling").verdict.partition(",")[0] == "goal"


async def test_padding_counts_and_a_lucky_shortcut_makes_up_for_nothing(ones: dict[str, float]) -> None:
    run = await run_right(tuple(row for row in ROWS if row.task.depth == 2 and row.task.tags["shape"] == "chain")[:2])
    first, second = run.scored
    assert first.plan is not None
    assert second.plan is not None
    padded = msgspec.structs.replace(first, plan=Plan((first.plan.steps[0], *first.plan.steps)))
    lucky = msgspec.structs.replace(second, plan=Plan(second.plan.steps[1:]))
    table = claims(Evidence(test=Run(run.rows, (padded, lucky)), ceiling=ones))
    assert find(table, "steps over minimal, correct answers").value == pytest.approx(5 / 4)
    assert "steps over minimal, correct answers" in missed(table)


async def test_controls_are_paired_with_their_own_base(ones: dict[str, float]) -> None:
    run = await run_right(ROWS)
    half = {task: float(i % 2) for i, task in enumerate(sorted(ones))}
    start = all_wrong(run, where={task for task, x in half.items() if not x})
    table = claims(
        Evidence(
            test=run,
            ceiling=ones,
            warm_start=start,
            rejection=half,
            online_rejection=ones,
            format_only=half,
            shuffled=ones,
            local=dict.fromkeys(ones, 0.99),
            rounds=(half, ones),
            plan_s=(0.4, 3.5),
            swapped=Followed(share([1] * 9 + [0]), share([0] * 9 + [1]), share([0] * 10), 0),
        )
    )
    assert find(table, CERTAIN).verdict.partition(",")[0] == "met"
    assert find(table, "(c) RL over online rejection sampling, equal rollouts").value == 0.0
    assert find(table, "(d) format-only reward, gain").value == pytest.approx(0.0)
    assert find(table, "(d) shuffled reward, gain").verdict == "MISSED"
    assert find(table, "shipped files on CPU, 4-bit base, over torch").verdict.partition(",")[0] == "met"
    assert find(table, "two rounds: right turned wrong").value == 0.0
    assert find(table, "two rounds, over one").verdict.partition(",")[0] == "met"
    assert find(table, "plan on 2 CPU cores, cards cached, median").verdict.partition(",")[0] == "met"
    assert find(table, "plan on 2 CPU cores, cold, median").verdict == "MISSED"
    assert find(table, "(e) two cards swapped: routing follows the card").value == 0.9
    assert find(table, "warm start, greedy: valid plans").verdict.partition(",")[0] == "met"
    assert find(table, START_SAMPLED).verdict == "not measured"


async def test_a_start_with_invalid_sampled_plans_misses_though_its_greedy_ones_are_valid(
    ones: dict[str, float],
) -> None:
    """Four sampled plans a question, of which one in four questions has one that is no plan: 15 of 16 are."""
    run = await run_right(ROWS[:40])
    none = Scored(valid=False, correct=False, reward_base=0.0)
    rows = [row for row in run.rows for _ in range(4)]
    drawn = [none if i % 16 == 3 else run.scored[i // 4] for i in range(len(rows))]
    table = claims(Evidence(test=run, ceiling=ones, warm_start=run, warm_start_sampled=Run(tuple(rows), tuple(drawn))))
    assert find(table, "warm start, greedy: valid plans").verdict.partition(",")[0] == "met"
    sampled = find(table, START_SAMPLED)
    assert (sampled.value, sampled.n, sampled.verdict) == (15 / 16, 40, "MISSED")  # a question counts once
    uneven = find(table, "warm start, sampled: worker farthest from an even choice")
    assert uneven.value == unevenness(rows, drawn)
    assert uneven.verdict == "MISSED"  # right plans are anything but even
    names = [claim.name for claim in table]
    assert names.index(START_SAMPLED) == names.index("warm start, greedy: valid plans") + 1


async def test_other_sets_also_have_a_line_on_plans_and_a_note_on_exact_workers(
    ones: dict[str, float],
) -> None:
    """A right plan whose subtasks keep the person's words: the tables know nothing, the right workers were asked."""
    drawn = [
        (row, right_plan(row)) for row in (make_row(task, random.Random(task.id), size=8) for task in handwritten())
    ]
    rows = tuple(row for row, plan in drawn if plan is not None)[:30]
    plans = [plan for _, plan in drawn if plan is not None][:30]
    right = tuple(Scored(valid=True, correct=False, reward_base=0.1, plan=plan) for plan in plans)
    nobody = msgspec.structs.replace(right[0], plan=None, valid=False)
    lost = msgspec.structs.replace(right[1], reward_base=None)
    others = {"handwritten": Run(rows, (nobody, lost, *right[2:]))}
    test = await run_right(ROWS[:10])
    table = claims(Evidence(test=test, ceiling=ones, others=others, by_table=True))
    answers, placed = find(table, OTHER_SETS["handwritten"]), find(table, PLACED["handwritten"])
    assert (answers.value, answers.n, answers.note) == (0.0, 29, KNOW_NO_OTHERS)
    assert (placed.value, placed.n, placed.note) == (28 / 29, 29, "")
    assert f"| {OTHER_SETS['handwritten']} ({KNOW_NO_OTHERS}) | 0.0% |" in as_table(table)
    assert find(table, PLACED["reasoning"]).verdict == "not measured"
    assert find(table, OTHER_SETS["second-seed"]).note == ""
    over_models = claims(Evidence(test=test, ceiling=ones, others=others))
    assert find(over_models, OTHER_SETS["handwritten"]).note == ""


def test_a_gain_that_may_be_nothing_is_missed_and_a_distance_counts_both_ways() -> None:
    gain = Claim("x", "points", 0.02, (-0.01, 0.05), must=0.0, certain=True, p=0.04)
    assert gain.verdict == "MISSED"
    gain = msgspec.structs.replace(gain, interval=(0.001, 0.05))
    assert gain.verdict.partition(",")[0] == "met"
    assert msgspec.structs.replace(gain, p=0.05).verdict == "MISSED"
    assert msgspec.structs.replace(gain, p=None).verdict == "MISSED"
    near = Claim("x", "points", 0.03, must=0.02, within=True)
    assert near.verdict == "MISSED"
    assert msgspec.structs.replace(near, value=-0.02).verdict.partition(",")[0] == "met"


@pytest.mark.parametrize(("gains", "p", "verdict"), [(5, 0.0625, "MISSED"), (6, 0.03125, "met")])
async def test_a_gain_on_few_questions_is_not_certain_though_its_interval_is_above_0(
    ones: dict[str, float], gains: int, p: float, verdict: str
) -> None:
    """Five gains and no loss: every resample finds a gain or nothing, but so may one fair coin in sixteen."""
    lost = set(sorted(ones)[:gains])
    rejection = {task: float(task not in lost) for task in ones}
    table = claims(Evidence(test=await run_right(ROWS), ceiling=ones, rejection=rejection))
    line = find(table, CERTAIN)
    assert line.interval is not None
    assert line.interval[0] > 0
    assert line.p == p
    assert line.verdict == verdict
    assert f", p {p:.2g} | {len(ones)} | > +0.0 |  | {verdict} |" in as_table(table)


def test_seeds_are_put_together_as_mean_and_spread() -> None:
    tables = [[Claim("a", value=v, interval=(v - 0.1, v + 0.1), n=10, must=0.8)] for v in (0.7, 0.9, 0.95)]
    (line,) = join_seeds(tables)
    assert line.value == pytest.approx(0.85)
    assert line.spread == (0.7, 0.95)
    assert line.interval == pytest.approx((0.6, 1.05))
    assert "| a | 85.0% (70.0% to 95.0%) |" in as_table([line])
    gains = [[Claim("c", "points", 0.02, (0.01, 0.03), must=0.0, certain=True, p=p)] for p in (0.01, 0.06)]
    assert [line.verdict for line in join_seeds([gains[0], gains[0]])] == ["met"]
    assert [(line.p, line.verdict) for line in join_seeds(gains)] == [(0.06, "MISSED")]
    assert join_seeds([gains[0], [msgspec.structs.replace(gains[0][0], p=None)]])[0].verdict == "MISSED"
    assert join_seeds([[Claim("b")], [Claim("b")]]) == [Claim("b")]
    with pytest.raises(ConfigError):
        join_seeds([[Claim("a")], [Claim("b")]])


def test_distances_either_way_do_not_cancel_out_over_seeds() -> None:
    far = [[Claim("over torch", "points", value, must=0.02, within=True)] for value in (0.03, -0.03)]
    (line,) = join_seeds(far)
    assert (line.value, line.verdict) == (0.0, "MISSED")
    near = [[Claim("over torch", "points", value, must=0.02, within=True)] for value in (0.02, -0.01)]
    assert join_seeds(near)[0].verdict.partition(",")[0] == "met"


def test_a_share_of_zero_in_every_seed_gets_the_interval_of_all_answers() -> None:
    none = [[Claim("broken", value=0.0, interval=wilson(0, n), n=n, must=0.01, at_most=True)] for n in (181, 179, 177)]
    (line,) = join_seeds(none)
    assert (line.n, line.interval) == (537, wilson(0, 537))
    assert line.interval[1] < 0.01 < wilson(0, 181)[1]
    assert "| broken (none in any seed; n is all seeds' answers) | 0.0% (0.0% to 0.0%) | 0.0% to 0.7% | 537 |" in (
        as_table([line])
    )
    once = msgspec.structs.replace(none[0][0], value=1 / 181, interval=wilson(1, 181))
    (line,) = join_seeds([[once], *none[1:]])
    assert (line.n, line.note) == (177, "")  # the fewest that any of them answered
    (line,) = join_seeds([none[0], [Claim("broken", must=0.01, at_most=True)]])
    assert (line.n, line.seeds, line.note) == (181, 1, "")
    (points,) = join_seeds([[Claim("gain", "points", 0.0, (0.0, 0.0), n=9)]] * 2)
    assert (points.n, points.note) == (9, "")


def test_a_note_follows_the_name_and_lists_its_seeds() -> None:
    lines = [Claim("a", value=0.5, note=note) for note in ("96 of 100 updates", "", "96 of 100 updates", "80 of 100")]
    (line,) = join_seeds([[line] for line in lines])
    assert line.note == "seed 1 and 3: 96 of 100 updates; seed 4: 80 of 100"
    assert join_seeds([[lines[0]], [lines[2]]])[0].note == "96 of 100 updates"
    assert "| a (seed 1 and 3: 96 of 100 updates; seed 4: 80 of 100) | 50.0%" in as_table([line])
    assert join_seeds([[Claim("a", note="open")], [lines[1]]])[0].note == ""  # only of measured lines


def test_a_line_that_was_measured_for_one_of_three_seeds_is_no_mean_of_three() -> None:
    all_three = Claim("a", value=0.7, interval=(0.6, 0.8), n=10)
    once = Claim("control", "points", 0.2, (0.1, 0.3), n=10)
    table = join_seeds([[all_three, once], *([[all_three, Claim("control", "points")]] * 2)])
    assert [(line.seeds, line.spread) for line in table] == [(3, (0.7, 0.7)), (1, None)]
    assert "| control | +20.0 (1 seed) | +10.0 to +30.0 |" in as_table(table)
    assert "| a | 70.0% (70.0% to 70.0%) |" in as_table(table)


def test_a_run_needs_a_rollout_for_every_row() -> None:
    with pytest.raises(ConfigError, match=facts("1 0")):
        Run(ROWS[:1], ())


def test_dropped_rollouts_are_no_evidence(ones: dict[str, float]) -> None:
    rows = ROWS[:3]
    run = Run(rows, (Scored(True, True, 1.0), Scored(True, False, None), Scored(True, True, 1.0)))
    assert find(claims(Evidence(test=run, ceiling=ones)), "share of the ceiling").n == 2


@pytest.mark.parametrize(
    ("value", "interval", "verdict"),
    [
        (0.85, (0.82, 0.88), "met"),
        (0.85, (0.78, 0.90), "met, not certain"),
        (0.95, (0.88, 0.98), "goal, not certain"),
        (0.95, (0.92, 0.98), "goal"),
        (0.75, (0.70, 0.90), "MISSED"),
        (0.85, None, "met"),
    ],
)
def test_a_bound_that_only_the_figure_reaches_is_met_and_not_certain(
    value: float, interval: tuple[float, float] | None, verdict: str
) -> None:
    assert Claim("a", value=value, interval=interval, n=100, must=0.8, goal=0.9).verdict == verdict


def test_an_upper_bound_and_a_distance_are_certain_only_with_the_whole_interval() -> None:
    assert Claim("a", value=0.4, interval=(0.3, 0.6), must=0.5, at_most=True).verdict == "met, not certain"
    assert Claim("a", value=0.01, interval=(-0.06, 0.02), must=0.03, within=True).verdict == "met, not certain"
    assert Claim("a", value=0.01, interval=(-0.02, 0.02), must=0.03, within=True).verdict == "met"
