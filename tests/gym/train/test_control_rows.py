"""Rows with cards swapped and reworded, a skill never met, and the figures of plans for them."""

from __future__ import annotations

import msgspec
import pytest
from tests.facts import facts

from dirigent.errors import ConfigError
from dirigent.plan.plan import Plan, Step
from dirigent.tasks.task import Task
from dirigent.workers.worker import WorkerInfo
from dirigent_gym.questions import ROSTER, find_specialist, generate, plan_for
from dirigent_gym.train.controls import (
    Share,
    Swapped,
    aliased_rows,
    followed,
    novel_rows,
    pairs_right,
    pass_at,
    plan_pass_at,
    plan_shares,
    reworded_rows,
    share,
    swapped_rows,
    unevenness,
)
from dirigent_gym.train.dataset import Row, held_rows, kind_of
from dirigent_gym.train.reward import Scored
from dirigent_gym.train.rows import right_plan

ROWS = held_rows("test", 60, seed=3)
SWAPPED = swapped_rows(ROWS, seed=1)


def scored(plan: Plan | None, *, correct: bool = False) -> Scored:
    return Scored(plan is not None, correct, 0.1 if plan else 0.0, plan=plan)


DROPPED = Scored(True, False, None)


def right(row: Row) -> Plan:
    plan = right_plan(row)
    assert plan is not None
    return plan


def routed(plan: Plan, names: dict[str, str]) -> Plan:
    steps = (msgspec.structs.replace(s, worker=names.get(s.worker, s.worker)) for s in plan.steps)
    return Plan(tuple(steps))


def solvable(swapped: list[Swapped]) -> list[Swapped]:
    return [one for one in swapped if right_plan(one.row) is not None]


def test_a_swap_exchanges_the_texts_of_two_cards_and_nothing_else() -> None:
    assert len(SWAPPED) > 30
    rows = {row.task.id: row for row in ROWS}
    for one in SWAPPED:
        before, after = rows[one.row.task.id], one.row
        said = {info.name: info.about for info in before.infos}
        now = {info.name: info.about for info in after.infos}
        assert (now[one.first], now[one.second]) == (said[one.second], said[one.first])
        assert after.names == before.names
        assert [info.price for info in after.infos] == [info.price for info in before.infos]
        assert {n: a for n, a in now.items() if n not in (one.first, one.second)} == {
            n: a for n, a in said.items() if n not in (one.first, one.second)
        }
        line = next(line for line in after.messages[0].text.splitlines() if f" | {one.first} " in line)
        assert line.startswith(said[one.second])
        assert after.messages[-1] == before.messages[-1]
        assert after.id != before.id


def test_only_plain_specialists_without_a_twin_are_swapped_and_one_is_needed() -> None:
    for one in SWAPPED:
        first, second = find_specialist(one.first), find_specialist(one.second)
        assert first.role == second.role == "solver"
        assert not first.noise + second.noise
        assert not {"sums", "numbers"} <= set(one.row.names) & {one.first, one.second, "sums"}
        assert one.row.task.sketch is not None
        assert set(first.skills) & set(one.row.task.sketch.skills)


def test_a_row_with_nothing_to_swap_is_left_out() -> None:
    alone = msgspec.structs.replace(ROWS[0], infos=(WorkerInfo("facts"),), names=("facts",))
    assert swapped_rows([alone], seed=1) == []


def test_routing_by_card_by_name_and_by_neither_are_distinguished() -> None:
    chosen = solvable(SWAPPED)
    by_name = [scored(right(one.row)) for one in chosen]
    by_card = [
        scored(routed(right(one.row), {one.first: one.second, one.second: one.first})) for one in chosen
    ]  # the plans of a policy that reads the swapped cards
    nobody = [scored(routed(right(one.row), {one.first: "checker", one.second: "checker"})) for one in chosen]
    assert followed(chosen, by_card).card == share([1] * len(chosen))
    assert followed(chosen, by_name).name == share([1] * len(chosen))
    assert followed(chosen, nobody).other == share([1] * len(chosen))
    mixed = followed(chosen, [*by_card[:1], *by_name[1:2], *[scored(None)] * (len(chosen) - 2)])
    assert mixed.card == Share(0.5, mixed.card.interval if mixed.card else (0, 1), 2)
    assert mixed.undecided == len(chosen) - 2
    assert followed(chosen[:1], [DROPPED]).card is None


def test_aliased_rows_keep_question_pool_and_wording_and_show_no_workers_own_name() -> None:
    rows = aliased_rows(ROWS, seed=1)
    own = {specialist.name for specialist in ROSTER}
    for before, after in zip(ROWS, rows, strict=True):
        assert after.task == before.task
        assert after.names == before.names
        assert [info.about for info in after.infos] == [info.about for info in before.infos]
        assert not own & set(after.shown)
        assert after.id != before.id
    assert aliased_rows(ROWS, seed=1) == rows
    assert aliased_rows(ROWS, seed=2) != rows


def test_reworded_rows_keep_question_and_pool_and_show_only_held_out_wordings() -> None:
    rows = reworded_rows(ROWS, seed=1)
    for before, after in zip(ROWS, rows, strict=True):
        assert (after.names, after.task) == (before.names, before.task)
        for info in after.infos:
            assert info.about in find_specialist(info.name).held_out_abouts
            assert info.about in after.messages[0].text
    assert reworded_rows(ROWS, seed=1) == rows


def test_novel_rows_need_the_skill_that_rl_never_met() -> None:
    rows = novel_rows(20, seed=1)
    assert all(row.task.sketch and "planets" in row.task.sketch.skills for row in rows)
    assert sum("planets" in row.names for row in rows) >= 15


def test_shares_of_plans_count_a_row_once_however_many_rollouts_it_has() -> None:
    row, other = solvable(SWAPPED)[0].row, solvable(SWAPPED)[1].row
    good, bad = scored(right(row), correct=True), scored(Plan((Step(row.names[0], "nothing"),)))
    found = plan_shares([row, row, other, other], [good, bad, scored(None), DROPPED])
    assert found.decomposition == share([0.5, 0.0])
    assert found.answer == share([0.5, 0.0])
    assert plan_shares([], []).access is None


def test_pass_at_k_is_the_chance_that_k_draws_hold_a_right_one() -> None:
    assert pass_at(4, 1, 2) == pytest.approx(0.5)
    assert pass_at(4, 3, 2) == 1.0
    assert pass_at(16, 0, 16) == 0.0
    row = solvable(SWAPPED)[0].row
    good, bad = scored(right(row), correct=True), scored(None)
    found = plan_pass_at([row] * 4, [good, bad, bad, bad], k=2)
    assert found.routing is not None
    assert found.routing.value == pytest.approx(0.5)
    with pytest.raises(ConfigError, match=facts("pass@16 16 1")):
        plan_pass_at([row], [good])


def test_a_rollout_that_was_dropped_costs_pass_at_k_its_row_and_not_the_table() -> None:
    row, other = (one.row for one in solvable(SWAPPED)[:2])
    good, bad = scored(right(row), correct=True), scored(None)
    found = plan_pass_at([row] * 2 + [other] * 2, [good, bad, bad, DROPPED], k=2)
    assert found.answer == share([1.0])
    assert plan_pass_at([row] * 2, [good, DROPPED], k=2).answer is None


def test_a_minimal_pair_is_right_when_both_of_it_are() -> None:
    tasks = [task for task in generate("test", 200, seed=5) if task.tags.get("pair_kind") == "swap"]
    rows = [row_of(task) for task in tasks]
    assert pairs_right(rows, [scored(None, correct=True)] * len(rows))["swap"].value == 1.0
    pairs: dict[str, int] = {}
    one_each = [scored(None, correct=pairs.setdefault(row.task.tags["pair"], i) == i) for i, row in enumerate(rows)]
    found = pairs_right(rows, one_each)["swap"]
    assert (found.value, found.n) == (0.0, len(rows) // 2)
    assert pairs_right(rows[:1], one_each[:1]) == {}


def row_of(task: Task) -> Row:
    names = tuple(s.name for s in ROSTER)
    return Row(task.id, task, tuple(map(WorkerInfo, names)), names, (), kind_of(task))


def test_unevenness_is_how_far_the_favourite_is_from_an_even_choice() -> None:
    row = msgspec.structs.replace(row_of(ROWS[0].task), names=("a", "b", "c", "d"))
    even = [scored(Plan((Step(name, "x"),))) for name in row.names]
    assert unevenness([row] * 4, even) == pytest.approx(0.0)
    assert unevenness([row] * 4, [even[0]] * 4) == pytest.approx(0.75)
    assert unevenness([row], [scored(None)]) == 0.0
    assert plan_for(ROWS[0].task, ROSTER).steps
