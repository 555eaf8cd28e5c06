from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dirigent.errors import CostError
from dirigent.limits import Budget, Hold, Ledger, Limits, Quote
from tests.facts import facts


def quote(input_usd: float = 0.0, token_usd: float = 0.001, tokens: int | None = 100) -> Quote:
    return Quote("w", input_usd, token_usd, tokens)


async def test_the_worst_case_is_set_aside_and_replaced_by_what_was_used():
    budget = Budget(max_cost_usd=1.0)
    hold = await budget.reserve(quote(input_usd=0.5, token_usd=0.004, tokens=100))
    assert hold.cost_usd == pytest.approx(0.9)
    with pytest.raises(CostError, match=facts("$1 $0.1")):
        await budget.reserve(quote(input_usd=0.2))
    budget.settle(hold, cost_usd=0.1, output_tokens=7)
    assert (budget.spent_usd, budget.spent_tokens) == (0.1, 7)
    assert (await budget.reserve(quote(input_usd=0.2))).max_output_tokens == 100


async def test_fewer_tokens_are_granted_if_less_money_is_left():
    budget = Budget(max_cost_usd=1.0)
    assert (await budget.reserve(quote(input_usd=0.5, token_usd=0.01, tokens=400))).max_output_tokens == 50
    assert (await Budget(max_output_tokens=30).reserve(quote(tokens=None))).max_output_tokens == 30
    assert (await Budget(max_cost_usd=1.0).reserve(quote(tokens=None))).max_output_tokens == 1_000


async def test_noise_of_the_arithmetic_costs_no_token():
    budget = Budget(max_cost_usd=1.0)
    budget.settle(await budget.reserve(quote(input_usd=0.9, tokens=0)), cost_usd=0.9, output_tokens=0)
    assert (await budget.reserve(quote(tokens=400))).max_output_tokens == 100, "1 - 0.9 is a little below 0.1"


async def test_a_call_cut_to_almost_nothing_is_refused():
    with pytest.raises(CostError, match=facts("w $0.015")):
        await Budget(max_cost_usd=0.015).reserve(quote())
    assert (await Budget(max_cost_usd=0.016).reserve(quote())).max_output_tokens == 16
    assert (await Budget(max_cost_usd=0.005).reserve(quote(tokens=5))).max_output_tokens == 5


async def test_output_tokens_of_a_run_are_a_budget_too():
    budget = Budget(max_output_tokens=100)
    hold = await budget.reserve(quote(tokens=60))
    assert (await budget.reserve(quote(tokens=60))).max_output_tokens == 40
    with pytest.raises(CostError, match=facts("100 w max_run_output_tokens")):
        await budget.reserve(quote(tokens=1))
    budget.settle(hold, cost_usd=0, output_tokens=10)
    assert (await budget.reserve(quote(tokens=60))).max_output_tokens == 50


async def test_without_caps_nothing_is_narrowed():
    assert (await Budget().reserve(quote(input_usd=1e9, tokens=None))).max_output_tokens is None
    free = await Budget(max_cost_usd=0.0).reserve(quote(token_usd=0.0, tokens=None))
    assert free.max_output_tokens is None


async def test_settling_twice_counts_once():
    budget = Budget()
    hold = await budget.reserve(quote())
    for _ in range(2):
        budget.settle(hold, cost_usd=1.0, output_tokens=1)
    assert (budget.spent_usd, budget.spent_tokens) == (1.0, 1)


async def test_a_step_spends_the_runs_money():
    run = Budget(max_cost_usd=1.0, what="the run")
    step = Budget(max_cost_usd=0.5, parent=run, what="step 1")
    hold = await step.reserve(quote(input_usd=0.1, token_usd=0.01, tokens=100))
    assert hold.max_output_tokens == 40
    other = await run.reserve(quote(token_usd=0.01, tokens=100))
    assert other.max_output_tokens == 50
    step.settle(hold, cost_usd=0.2, output_tokens=10)
    run.settle(other, cost_usd=0.5, output_tokens=50)
    assert (step.spent_usd, run.spent_usd) == (0.2, 0.7)


async def test_the_tighter_of_two_budgets_decides_and_a_refusal_leaves_no_hold():
    run = Budget(max_cost_usd=0.1, what="the run")
    step = Budget(max_cost_usd=0.5, parent=run, what="step 1")
    with pytest.raises(CostError, match=facts("$0.1 w")):
        await step.reserve(quote(input_usd=0.2))
    assert (await step.reserve(quote(token_usd=0.001, tokens=400))).max_output_tokens == 100
    with pytest.raises(CostError, match=facts("1 $0.5 $0.4 w")):
        await step.reserve(quote(input_usd=0.45))


class SlowLedger:
    """A parent that takes turns of the event loop over a reservation, as a database does."""

    def __init__(self, parent: Ledger, rng: random.Random) -> None:
        self.parent = parent
        self.rng = rng

    async def reserve(self, quote: Quote) -> Hold:
        await self._dawdle()
        hold = await self.parent.reserve(quote)
        await self._dawdle()
        return hold

    def settle(self, hold: Hold, *, cost_usd: float, output_tokens: int) -> None:
        self.parent.settle(hold, cost_usd=cost_usd, output_tokens=output_tokens)

    async def _dawdle(self) -> None:
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    run_usd=st.floats(0, 2),
    step_usd=st.floats(0, 2),
    run_tokens=st.integers(1, 2_000),
    calls=st.lists(
        st.tuples(st.floats(0, 0.3), st.floats(0, 0.001), st.one_of(st.none(), st.integers(1, 500))),
        min_size=1,
        max_size=12,
    ),
)
def test_concurrent_calls_never_overspend(
    seed: int,
    run_usd: float,
    step_usd: float,
    run_tokens: int,
    calls: list[tuple[float, float, int | None]],
):
    rng = random.Random(seed)
    run = Budget(max_cost_usd=run_usd, max_output_tokens=run_tokens)
    step = Budget(max_cost_usd=step_usd, parent=SlowLedger(run, rng))

    async def call(input_usd: float, token_usd: float, tokens: int | None) -> None:
        try:
            hold = await step.reserve(Quote("w", input_usd, token_usd, tokens))
        except CostError:
            return
        assert hold.max_output_tokens is not None, "a run with a token cap promises no endless reply"
        await asyncio.sleep(0)
        written = hold.max_output_tokens if rng.random() < 0.7 else rng.randint(0, hold.max_output_tokens)
        step.settle(hold, cost_usd=input_usd + written * token_usd, output_tokens=written)

    async def all_at_once() -> None:
        await asyncio.gather(*(call(*each) for each in calls))

    asyncio.run(all_at_once())
    assert step.spent_usd <= step_usd + 1e-9
    assert run.spent_usd <= run_usd + 1e-9
    assert run.spent_tokens <= run_tokens
    assert step.spent_usd == pytest.approx(run.spent_usd)
    assert not step._held
    assert not run._held


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_steps", 0),
        ("max_steps", 33),
        ("max_rounds", 0),
        ("max_rounds", 9),
        ("deadline_s", 0),
        ("step_deadline_s", -1),
        ("max_output_tokens", 0),
        ("max_run_output_tokens", 0),
        ("max_cost_usd", -0.01),
        ("max_step_cost_usd", float("nan")),
    ],
)
def test_limits_that_make_no_sense_are_refused_by_name(field: str, value: float):
    with pytest.raises(ValueError, match=field):
        Limits(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_steps", 1), ("max_steps", 32), ("max_rounds", 8), ("max_cost_usd", 0.0), ("max_step_cost_usd", 0.0)],
)
def test_the_ends_of_what_may_be_set_may_be_set(field: str, value: float):
    assert getattr(Limits(**{field: value}), field) == value  # type: ignore[arg-type]
