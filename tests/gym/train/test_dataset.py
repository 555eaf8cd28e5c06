"""The rows drawn for training: by stage, by how much they teach, and the same again after a resume."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import msgspec
import pytest
from tests.facts import facts

from dirigent.plan.plan import Plan, Step, format_plan
from dirigent_gym.questions import RL_ROSTER, find_specialist, generate, solvable
from dirigent_gym.train.dataset import (
    LEAST_GROUPS,
    MEMORY,
    Estimate,
    Row,
    RowSettings,
    RowSource,
    RowState,
    held_rows,
    kind_weight,
    make_row,
    next_stage,
)
from dirigent_gym.train.reward import Scored, score
from dirigent_gym.train.rows import right_plan
from dirigent_gym.train.workers import exact_workers

RIGHT, WRONG, DROPPED = Scored(True, True, 1.0), Scored(True, False, 0.1), Scored(True, False, None)


def depths(rows: list[Row]) -> set[int]:
    return {row.task.depth for row in rows}


def test_a_row_shows_its_cards_and_then_its_question() -> None:
    row = RowSource(1).draw(1)[0]
    system, user = row.messages
    assert user.text == row.task.question
    assert [line.rpartition(" | ")[2] for line in system.text.splitlines()[1:]] == [
        f"{name} {i}" for i, name in enumerate(row.shown)
    ]
    assert all(info.about in system.text for info in row.infos)


def test_some_training_rows_but_no_measured_row_hide_worker_names() -> None:
    rows = RowSource(1, RowSettings(rename=0.25, misname=0.25)).draw(80)
    assert 20 < sum(row.shown != row.names for row in rows) < 60
    assert any(set(row.shown) == set(row.names) for row in rows if row.shown != row.names)
    assert any(not set(row.shown) & set(row.names) for row in rows)
    assert all(row.shown == row.names for row in held_rows("dev", 20, seed=1))
    for row in rows:
        plan = Plan(tuple(Step(name, "Do it.", ()) for name in row.names))
        assert [step.worker for step in row.with_shown_names(plan).steps] == list(row.shown)
        assert row.with_worker_names(row.with_shown_names(plan)) == plan


def test_more_rows_may_hide_worker_names_after_the_first_stage() -> None:
    settings = RowSettings(rename=0.0, misname=0.0, later_rename=0.5, later_misname=0.5)
    assert all(row.shown == row.names for row in RowSource(1, settings).draw(20))
    later = RowSource(1, settings, state=RowState(stage=1)).draw(20)
    assert all(row.shown != row.names for row in later if len(row.names) > 1)
    assert RowSettings(rename=0.3, misname=0.1).names_at(2) == (0.3, 0.1)


@pytest.mark.parametrize("shares", [{"rename": 0.9}, {"misname": -0.1}, {"later_rename": 0.8, "later_misname": 0.3}])
def test_names_that_are_no_shares_are_an_error(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=facts("rename misname 1")):
        RowSettings(**{"rename": 0.2, "misname": 0.2, **shares})  # type: ignore[arg-type]


def test_each_way_of_naming_has_its_own_share_of_the_rows() -> None:
    rows = RowSource(1, RowSettings(rename=0.6, misname=0.1)).draw(200)
    unnamed = sum(not set(row.shown) & set(row.names) for row in rows)
    anothers = sum(row.shown != row.names and set(row.shown) == set(row.names) for row in rows)
    assert 90 < unnamed < 150
    assert 5 < anothers < 40


def test_a_plan_in_shown_names_is_carried_out_by_those_behind_them() -> None:
    source = RowSource(3, RowSettings(rename=0.5, misname=0.5))
    rows = [row for row in source.draw(60) if right_plan(row) is not None and row.task.depth == 1]
    texts = [format_plan(row.with_shown_names(right_plan(row) or Plan(())), row.shown, dialect="lines") for row in rows]
    assert any(row.shown != row.names for row in rows)
    scored = asyncio.run(score(rows, texts, exact_workers(RL_ROSTER)))
    assert all(one.correct for one in scored)


def test_a_share_of_training_rows_and_no_measured_row_has_everyday_words() -> None:
    settings = RowSettings(everyday=0.5)
    drawn = Counter(row.task.tags["style"] for row in RowSource(1, settings).draw(200))
    assert 60 <= drawn["everyday"] <= 120
    for rows in (held_rows("dev", 60, seed=1, settings=settings), RowSource(1).draw(60)):
        assert "everyday" not in {row.task.tags["style"] for row in rows}
    with pytest.raises(ValueError, match=facts("everyday 0 1 1.5")):
        RowSettings(everyday=1.5)


def test_the_same_seed_draws_the_same_rows_and_another_seed_others() -> None:
    assert RowSource(1).draw(8) == RowSource(1).draw(8)
    assert RowSource(1).draw(8) != RowSource(2).draw(8)


def test_draws_follow_one_another_and_can_be_taken_up_from_the_state() -> None:
    source = RowSource(1)
    first = source.draw(8)
    source.update(first, [RIGHT, WRONG] * 4)
    saved = msgspec.json.encode(source.state)
    second = source.draw(8)
    assert {row.id for row in first}.isdisjoint(row.id for row in second)
    assert RowSource(1, state=msgspec.json.decode(saved, type=RowState)).draw(8) == second


def test_all_rows_are_of_the_train_split_and_different() -> None:
    rows = RowSource(3, state=RowState(stage=2)).draw(200)
    assert {row.task.tags["split"] for row in rows} == {"train"}
    assert len({row.id for row in rows}) == len({row.task.question for row in rows}) == 200


def test_nine_pools_in_ten_can_solve_their_question_and_no_pool_holds_the_held_out_worker() -> None:
    rows = RowSource(4, state=RowState(stage=2)).draw(400)
    able = [solvable(row.task, [find_specialist(name) for name in row.names]) for row in rows]
    assert 0.9 <= sum(able) / 400 < 1.0
    assert not any("planets" in row.names for row in rows)


def test_every_worker_occurs_at_every_position() -> None:
    rows = RowSource(5).draw(400)
    seen = Counter((name, i) for row in rows for i, name in enumerate(row.names[:3]))
    assert len(seen) == 3 * len(RL_ROSTER)


def test_the_first_stage_has_shallow_questions_over_small_pools() -> None:
    rows = RowSource(6).draw(100)
    assert depths(rows) == {1, 2}
    assert max(len(row.names) for row in rows) <= 5


def test_depth_three_opens_when_depth_two_is_right_often_enough_and_large_pools_after_that() -> None:
    source = RowSource(7)
    source.note_dev({1: 0.9, 2: 0.59})
    assert depths(source.draw(60)) == {1, 2}
    source.note_dev({1: 0.9, 2: 0.6, 3: 0.0})
    rows = source.draw(60)
    assert depths(rows) == {1, 2, 3}
    assert max(len(row.names) for row in rows) <= 5
    source.note_dev({1: 0.9, 2: 0.6, 3: 0.6})
    assert max(len(row.names) for row in source.draw(60)) > 5


def test_stages_come_one_at_a_time_and_never_go_back() -> None:
    assert next_stage(0, {2: 1.0, 3: 1.0}, at=0.6) == 1
    assert next_stage(1, {2: 0.0, 3: 0.0}, at=0.6) == 1
    assert next_stage(2, {2: 0.0, 3: 0.0}, at=0.6) == 2
    assert next_stage(0, {}, at=0.6) == 0


def test_accuracy_in_training_opens_a_stage_only_after_enough_groups() -> None:
    source = RowSource(8)
    rows = [row for row in source.draw(200) if row.task.depth == 2]
    few = rows[: int(LEAST_GROUPS) - 5]
    source.update(few, [RIGHT] * len(few))
    assert source.state.stage == 0
    source.update(rows[:40], [RIGHT] * 40)
    assert source.state.stage == 1


def test_a_kind_right_half_of_the_time_weighs_most_and_no_kind_less_than_the_floor() -> None:
    assert kind_weight(0.5, floor=0.2) == pytest.approx(1.0)
    assert kind_weight(0.0, floor=0.2) == kind_weight(1.0, floor=0.2) == pytest.approx(0.2)
    assert kind_weight(0.9, floor=0.2) == pytest.approx(0.2 + 0.8 * 0.36)


def test_kinds_that_are_always_right_are_asked_less_but_still_asked() -> None:
    source = RowSource(9, RowSettings(kind_floor=0.2))
    before = sum(row.task.depth == 1 for row in source.draw(400))
    for _ in range(4):
        rows = source.draw(100)
        source.update(rows, [RIGHT if row.task.depth == 1 else (RIGHT, WRONG)[i % 2] for i, row in enumerate(rows)])
    after = sum(row.task.depth == 1 for row in source.draw(400))
    assert 0 < after < 0.6 * before


def test_questions_of_a_depth_are_drawn_as_often_as_their_weight_says() -> None:
    def shallow(**weights: float) -> float:
        rows = RowSource(4, RowSettings(depth_weights={name[1:]: weight for name, weight in weights.items()})).draw(400)
        return sum(row.task.depth == 1 for row in rows) / len(rows)

    assert shallow(d1=0.2) < 0.6 * shallow() < shallow() < shallow(d2=0.2)


@pytest.mark.parametrize(("stage", "often"), [(0, False), (1, False), (2, True)])
def test_in_the_last_stage_depths_have_weights_of_their_own(stage: int, often: bool) -> None:
    settings = RowSettings(depth_weights={"1": 0.05}, later_depth_weights={"1": 5.0})
    rows = RowSource(4, settings, state=RowState(stage=stage)).draw(200)
    assert (sum(row.task.depth == 1 for row in rows) > 100) is often
    assert settings.depth_weight(2, stage=stage) == 1.0


def test_an_invalid_depth_and_a_zero_weight_are_refused() -> None:
    with pytest.raises(ValueError, match=facts("two 1.0")):
        RowSettings(depth_weights={"two": 1.0})
    with pytest.raises(ValueError, match=facts("2 0.0")):
        RowSettings(depth_weights={"2": 0.0})
    with pytest.raises(ValueError, match=facts("1 -1.0")):
        RowSettings(later_depth_weights={"1": -1.0})


def test_an_estimate_is_its_own_groups_filled_up_with_those_of_its_depth() -> None:
    state = RowState(kinds={"known": Estimate(6.0, 8.0)}, depths={2: Estimate(1.5, 9.0)})
    source = RowSource(1, state=state)
    by_depth = (1.5 + 0.5) / 10
    assert source.estimate("never seen", 2) == pytest.approx(by_depth)
    assert source.estimate("known", 2) == pytest.approx((6 + 2 * by_depth) / 10)
    assert source.estimate("never seen", 3) == pytest.approx(0.5)


def test_a_group_counts_once_however_many_rollouts_it_has_and_dropped_ones_not_at_all() -> None:
    source = RowSource(2)
    row, lost = source.draw(2)
    source.update([row] * 4 + [lost] * 2, [RIGHT, WRONG, DROPPED, RIGHT, DROPPED, DROPPED])
    assert source.state.kinds == {row.kind: Estimate(pytest.approx(2 / 3), 1.0)}


def test_old_results_fade() -> None:
    source = RowSource(2)
    (row,) = source.draw(1)
    source.update([row], [RIGHT])
    source.update([row], [WRONG])
    assert source.state.kinds[row.kind] == Estimate(pytest.approx(MEMORY), 1.0 + MEMORY)


def test_held_rows_cover_every_depth_of_their_split() -> None:
    assert depths(held_rows("dev", 60, seed=1)) == {1, 2, 3}
    assert depths(held_rows("test", 60, seed=1)) == {1, 2, 3, 4}
    assert held_rows("dev", 10, seed=1) == held_rows("dev", 10, seed=1)


def test_held_out_cards_are_worded_as_training_never_does() -> None:
    task = generate("dev", 1, seed=1)[0]
    train = make_row(task, random.Random(1), size=4)
    other = make_row(task, random.Random(1), size=4, wording="held_out")
    assert train.names == other.names
    assert {info.about for info in train.infos}.isdisjoint(info.about for info in other.infos)
