"""Figures of a step worked by hand, and a watch that distinguishes a collapse from healthy training."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace
from tests.facts import Saying, says

from dirigent.plan.plan import Plan, Step
from dirigent.tasks.task import Task
from dirigent.workers.worker import WorkerInfo
from dirigent_gym.questions import find_specialist, generate, plan_for
from dirigent_gym.train.dataset import Row, kind_of
from dirigent_gym.train.metrics import Collapse, CollapseSettings, CollapseState, Metrics, step_metrics
from dirigent_gym.train.reward import Scored

NAMES = ("facts", "letters", "numbers", "lists", "dates", "convert", "roman", "cipher", "code", "guesser", "checker")
POOL = [find_specialist(name) for name in NAMES]
TASKS = generate("train", 300, seed=2)


def task_of(shape: str, depth: int) -> Task:
    return next(task for task in TASKS if task.tags["shape"] == shape and task.depth == depth)


def row_of(task: Task, names: tuple[str, ...] = NAMES) -> Row:
    return Row(f"{task.id}/{names[0]}", task, tuple(map(WorkerInfo, names)), names, (), kind_of(task))


def scored(plan: Plan | None, *, correct: bool = False, cost: float = 0.0) -> Scored:
    reward = (1.0 if correct else 0.1) if plan is not None else 0.0
    return Scored(plan is not None, correct, reward, cost=cost, plan=plan)


DROPPED = Scored(True, False, None)
CHAIN, ONE, FAN = row_of(task_of("chain", 2)), row_of(task_of("chain", 1)), row_of(task_of("fan", 2))


def right(row: Row) -> Plan:
    return plan_for(row.task, POOL)


def rerouted(plan: Plan, worker: str) -> Plan:
    return Plan(tuple(msgspec.structs.replace(step, worker=worker) for step in plan.steps))


def test_validity_and_accuracy_leave_dropped_rollouts_out() -> None:
    plan = right(CHAIN)
    found = step_metrics([CHAIN] * 5, [scored(plan, correct=True), scored(plan), scored(plan), scored(None), DROPPED])
    assert (found["rollouts"], found["dropped"]) == (4, 1)
    assert found["valid"] == 0.75
    assert found["accuracy"] == 0.25
    assert found["accuracy_given_valid"] == pytest.approx(1 / 3)
    assert found["reward_base"] == pytest.approx((1.0 + 0.1 + 0.1 + 0.0) / 4)


def test_decomposition_routing_and_access_are_measured_separately() -> None:
    plan = right(CHAIN)
    blind = Plan(tuple(msgspec.structs.replace(step, access=()) for step in plan.steps))
    plans = [plan, rerouted(plan, "checker"), blind, Plan(plan.steps[:1])]
    found = step_metrics([CHAIN] * 5, [*map(scored, plans), scored(None)])
    assert found["decomposition"] == 3 / 5
    assert found["routing_given_decomposition"] == pytest.approx(2 / 3)
    assert found["access_given_decomposition"] == pytest.approx(2 / 3)
    assert found["right_plan"] == 1 / 5


def test_steps_are_counted_and_held_against_the_fewest_among_correct_answers() -> None:
    plan = right(CHAIN)
    padded = Plan((*plan.steps, Step("facts", "Say it again.", (1,))))
    found = step_metrics(
        [CHAIN] * 4, [scored(plan, correct=True), scored(padded, correct=True), scored(padded), DROPPED]
    )
    assert found["steps"] == pytest.approx((2 + 3 + 3) / 3)
    assert found["steps_needed"] == 2.0
    assert found["steps_over_minimal"] == pytest.approx(5 / 4)
    assert found["steps_2"] == pytest.approx(1 / 3)
    assert found["steps_3"] == pytest.approx(2 / 3)


def test_a_figure_with_nothing_to_measure_is_left_out() -> None:
    found = step_metrics([CHAIN], [scored(None)])
    for name in ("steps_over_minimal", "accuracy_given_valid", "worker_entropy", "cost", "routing_given_decomposition"):
        assert name not in found
    assert found["valid"] == found["accuracy"] == found["decomposition"] == 0.0
    assert "valid" not in step_metrics([CHAIN], [DROPPED])


def test_accuracy_is_given_by_depth_and_shape() -> None:
    rows = [ONE, ONE, CHAIN, FAN]
    hits = [True, False, False, True]
    found = step_metrics(rows, [scored(right(row), correct=hit) for row, hit in zip(rows, hits, strict=True)])
    assert (found["accuracy_depth_1"], found["accuracy_depth_2"]) == (0.5, 0.5)
    assert found["accuracy_chain"] == pytest.approx(1 / 3)
    assert found["accuracy_fan"] == 1.0
    assert found["fans_in_parallel"] == 1.0
    assert "accuracy_depth_3" not in found


def test_accuracy_is_separate_for_wordings_that_training_never_shows() -> None:
    new = replace(ONE, task=replace(ONE.task, tags=ONE.task.tags | {"wording": "new"}))
    known = replace(ONE, task=replace(ONE.task, tags=ONE.task.tags | {"wording": "known"}))
    found = step_metrics([new, known, known], [scored(right(ONE), correct=hit) for hit in (True, True, False)])
    assert (found["accuracy_new_wording"], found["accuracy_known_wording"]) == (1.0, 0.5)


def test_routing_is_separate_for_workers_under_other_names() -> None:
    renamed = replace(ONE, infos=tuple(WorkerInfo(f"worker {i}") for i in range(len(ONE.names))))
    wrong = Plan(tuple(replace(step, worker="checker") for step in right(ONE).steps))
    plans = [right(ONE), right(ONE), wrong]
    found = step_metrics([ONE, renamed, renamed], [scored(plan, correct=True) for plan in plans])
    assert (found["routing_own_names"], found["routing_other_names"]) == (1.0, 0.5)


def test_cost_is_a_mean() -> None:
    plan = right(CHAIN)
    found = step_metrics([CHAIN] * 3, [scored(plan, cost=2), scored(plan, cost=4), scored(None)])
    assert found["cost"] == 3.0


def test_groups_that_differ_in_nothing_but_cost_have_zero_variance() -> None:
    plan = right(CHAIN)
    rows = [CHAIN, CHAIN, ONE, ONE, FAN, FAN]
    found = step_metrics(
        rows,
        [scored(plan, cost=1), scored(plan, cost=2), scored(plan), scored(None), scored(plan, correct=True), DROPPED],
    )
    assert found["zero_variance_groups"] == pytest.approx(2 / 3)


def test_an_even_choice_of_workers_has_entropy_one_and_a_single_choice_none() -> None:
    even = [scored(Plan((Step(name, "x"),))) for name in NAMES]
    found = step_metrics([CHAIN] * len(NAMES), even)
    assert found["worker_entropy"] == found["position_entropy"] == pytest.approx(1.0)
    one = step_metrics([CHAIN] * 4, [scored(Plan((Step("facts", "x"),)))] * 4)
    assert one["worker_entropy"] == one["position_entropy"] == 0.0


def test_always_taking_the_first_card_shows_in_the_entropy_of_positions() -> None:
    rows = [row_of(CHAIN.task, (*NAMES[i:], *NAMES[:i])) for i in range(len(NAMES))]
    found = step_metrics(rows, [scored(Plan((Step(row.names[0], "x"),))) for row in rows])
    assert found["worker_entropy"] == pytest.approx(1.0)
    assert found["position_entropy"] == 0.0


def test_lengths_that_differ_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        step_metrics([CHAIN], [])


# --- the watch ---


def step(accuracy: float, *, steps: float = 2.0, entropy: float = 0.95, valid: float = 1.0, **more: float) -> Metrics:
    return {
        "accuracy": accuracy,
        "valid": valid,
        "steps": steps,
        "steps_needed": 1.7,
        "worker_entropy": entropy,
        "position_entropy": 0.98,
        **more,
    }


def first_message(history: list[Metrics], watch: Collapse | None = None) -> tuple[int, str] | None:
    watch = watch or Collapse()
    return next(((i, said) for i, metrics in enumerate(history) if (said := watch.update(metrics))), None)


KNOWN_COLLAPSE = [
    step(0.23, steps=2.1, entropy=0.99),
    step(0.20, steps=1.8, entropy=0.90),
    step(0.18, steps=1.5, entropy=0.60),
    step(0.15, steps=1.2, entropy=0.35),
    step(0.13, steps=1.02, entropy=0.12),
    step(0.13, steps=1.0, entropy=0.06),
    step(0.13, steps=1.0, entropy=0.04),
    step(0.13, steps=1.0, entropy=0.02),
]
"""A step cost from the start: within ten updates one generic step on one arbitrary worker."""


def test_the_known_collapse_is_announced_in_words() -> None:
    assert first_message(KNOWN_COLLAPSE) == (6, Saying("stopped: 0.04 13% 1.00 docs/how-it-learns.md#collapse"))


def test_healthy_early_training_is_left_alone() -> None:
    climb = [step(0.1 + 0.03 * i, steps=2.5 - 0.03 * i, entropy=0.99 - 0.005 * i) for i in range(27)]
    assert first_message(climb) is None


def test_a_warm_start_that_is_nearly_always_wrong_and_long_is_left_alone() -> None:
    assert first_message([step(0.02, steps=2.5, entropy=1.0)] * 50) is None


def test_one_odd_batch_stops_nothing() -> None:
    odd = step(0.1, steps=1.0, entropy=0.05)
    assert first_message([odd, odd, step(0.3), odd, odd, step(0.3)] * 5) is None


def test_one_step_where_one_step_is_all_that_is_needed_is_no_collapse() -> None:
    assert first_message([step(0.4, steps=1.0, steps_needed=1.0)] * 20) is None


def test_a_policy_that_is_mostly_right_has_not_collapsed() -> None:
    assert first_message([step(0.9, steps=1.0, entropy=0.1)] * 20) is None


def test_a_policy_that_always_takes_one_position_is_named_by_that() -> None:
    found = first_message([step(0.2, position_entropy=0.01)] * 3)
    assert found is not None
    assert says(found[1], "0.01")
    assert says(found[1], "2.00")


def test_many_workers_but_one_step_each_is_a_collapse_of_its_own() -> None:
    found = first_message([step(0.3, steps=1.0, entropy=0.9)] * 3)
    assert found is not None
    assert says(found[1], "1.70")


def test_losing_the_language_of_plans_is_a_collapse_and_lacking_it_at_first_is_not() -> None:
    lost = [step(0.3, valid=0.95)] + [step(0.05, valid=0.2)] * 3
    found = first_message(lost)
    assert found is not None
    assert says(found[1], "20% 95%")
    assert first_message([step(0.0, valid=0.05 + 0.01 * i) for i in range(40)]) is None


def test_nothing_valid_at_all_leaves_the_other_alarms_silent() -> None:
    assert first_message([{"accuracy": 0.0, "valid": 0.0, "steps_needed": 1.7}] * 10) is None


def test_a_resumed_watch_remembers_how_long_it_has_looked_collapsed() -> None:
    watch = Collapse()
    for metrics in KNOWN_COLLAPSE[:6]:
        assert watch.update(metrics) is None
    saved = msgspec.json.encode(watch.state)
    resumed = Collapse(state=msgspec.json.decode(saved, type=CollapseState))
    assert resumed.update(KNOWN_COLLAPSE[6]) is not None


@pytest.mark.parametrize(
    ("accuracies", "update"),
    [
        ((0.006, 0.04, 0.07, 0.10, 0.12, 0.14, 0.16), 4),
        ((0.011, *(0.011 + 0.02 * i for i in range(12)), 0.26, 0.26, 0.26), 13),
    ],
)
def test_one_step_everywhere_is_noticed_in_the_gym_though_accuracy_rises(
    accuracies: tuple[float, ...], update: int
) -> None:
    """The first two runs on a GPU: one step a question from this update on, with growing accuracy."""
    steps = [1.9 if i < update else 1.0 for i in range(len(accuracies))]
    history = [
        step(accuracy, steps=n, entropy=0.8, plans_known=1.0, questions=64.0)
        for accuracy, n in zip(accuracies, steps, strict=True)
    ]
    found = first_message(history)
    assert found is not None
    assert found[0] == update + 2


def test_one_worker_is_noticed_in_the_gym_though_accuracy_rises() -> None:
    history = [step(0.1, plans_known=1.0, questions=64.0)] * 10
    history += [step(0.4, entropy=0.1, plans_known=1.0, questions=64.0)] * 3
    found = first_message(history)
    assert found is not None
    assert found[0] == 12


def own(accuracy: float, *, entropy: float, questions: float = 16.0) -> Metrics:
    """Tasks and a pool of a user's own: no plan is known to be right, and positions are names."""
    return step(
        accuracy, steps=1.0, entropy=entropy, position_entropy=entropy, steps_needed=1.0, plans_known=0.0,
        questions=questions,
    )  # fmt: skip


def test_one_worker_that_is_rightly_best_in_a_pool_of_ones_own_is_no_collapse() -> None:
    assert first_message([own(0.3, entropy=0.9)] * 10 + [own(0.42, entropy=0.05)] * 50) is None
    assert first_message([own(0.4, entropy=0.0)] * 60) is None, "the start chose it already: nothing fell"
    swinging = [own(accuracy, entropy=0.05) for accuracy in (0.25, 0.5, 0.31, 0.44) * 12]
    assert first_message([own(0.38, entropy=0.9)] * 10 + swinging) is None


def test_one_worker_that_is_right_less_often_than_the_choice_before_it_is_a_collapse_anywhere() -> None:
    found = first_message([own(0.45, entropy=0.9)] * 10 + [own(0.2, entropy=0.05)] * 20)
    assert found is not None
    assert 12 <= found[0] <= 16
    assert says(found[1], "0.05 20% 1.00")


def test_the_watchs_state_is_kept_in_checkpoints() -> None:
    watch = Collapse()
    for metrics in [own(0.45, entropy=0.9)] * 10 + [own(0.2, entropy=0.05)] * 2:
        assert watch.update(metrics) is None
    resumed = Collapse(state=msgspec.json.decode(msgspec.json.encode(watch.state), type=CollapseState))
    found = first_message([own(0.2, entropy=0.05)] * 10, resumed)
    assert found is not None
    assert found == first_message([own(0.2, entropy=0.05)] * 10, Collapse(state=watch.state))


def test_whether_right_plans_are_known_is_a_figure() -> None:
    unknown = replace(CHAIN, id="own", task=replace(CHAIN.task, sketch=None))
    plan = Plan((Step("facts", "x"),))
    found = step_metrics([CHAIN, CHAIN, ONE, unknown], [scored(plan)] * 4)
    assert (found["questions"], found["plans_known"]) == (3.0, 0.75)
    assert step_metrics([unknown] * 2, [scored(plan)] * 2)["plans_known"] == 0.0


def test_patience_is_a_setting() -> None:
    found = first_message(KNOWN_COLLAPSE, Collapse(CollapseSettings(patience=1)))
    assert found is not None
    assert found[0] == 4
