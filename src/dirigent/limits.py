"""How much a run may do, and the ledger in which every paid call is reserved before it is made.

`Limits` is a setting; `Ledger` is the protocol that `Metered` workers use; `Budget` is the ledger of one run, in
memory. The durable ledger is in `store/` and is the parent of a `Budget`.
"""

from __future__ import annotations

import itertools
import math
from typing import Protocol

import msgspec

from dirigent.errors import CostError

HARD_MAX_STEPS = 32


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a run, frozen for the run. No text of a user, a planner or a worker can change them."""

    max_steps: int = 5
    """Steps in the plan of one round; at most 32."""
    max_rounds: int = 1
    """How often the planner may plan: with 2 it sees all results once, and accepts the answer or plans on."""
    deadline_s: float = 300.0
    """Wall-clock seconds for the whole run, planning included."""
    step_deadline_s: float | None = None
    """Seconds for one step, retries and re-assignment included."""
    max_cost_usd: float | None = None
    """Most the whole run may cost. Needs a price for every worker."""
    max_step_cost_usd: float | None = None
    """Most one step may cost."""
    max_output_tokens: int = 4096
    """Most tokens one step may write."""
    max_run_output_tokens: int | None = None
    """Most tokens the whole run may write, planning included."""
    max_tool_rounds: int = 16
    """How often one step may ask for tools and get their results."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_steps <= HARD_MAX_STEPS:
            raise ValueError(f"max_steps must be 1 to {HARD_MAX_STEPS}, not {self.max_steps}")
        if not 1 <= self.max_rounds <= 8:
            raise ValueError(f"max_rounds must be 1 to 8, not {self.max_rounds}")
        positive = ("deadline_s", "step_deadline_s", "max_output_tokens", "max_run_output_tokens", "max_tool_rounds")
        for name in positive:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:  # a trace with another value could not be read back
                raise ValueError(f"{name} must be above 0 and finite, not {value}")
        for name in ("max_cost_usd", "max_step_cost_usd"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be 0 or more and finite, not {value}")


class Hold(msgspec.Struct, frozen=True):
    """Money and tokens reserved for one call. `max_output_tokens` is the most that the call may write."""

    id: int
    cost_usd: float
    max_output_tokens: int | None
    parent: Hold | None = None


class Quote(msgspec.Struct, frozen=True):
    """The worst case of a call, and the price by which it can be made smaller."""

    worker: str
    input_usd: float
    """The most that the input can cost."""
    output_token_usd: float
    """Price of one output token."""
    max_output_tokens: int | None
    priced: bool = True
    """False if the price of the call is unknown; the sums above are 0 then."""


class Ledger(Protocol):
    """Every attempt is reserved before its call and settled after it."""

    async def reserve(self, quote: Quote) -> Hold:
        """Reserves the worst case, with fewer output tokens if less is left; raises `CostError` if too little is left.

        A caller that is cancelled meanwhile never sees its hold, so the ledger itself releases it.
        """
        ...

    def settle(self, hold: Hold, *, cost_usd: float, output_tokens: int) -> None:
        """Replaces the hold by the real cost. It does not wait, so it cannot be cancelled; a ledger on a disk hands the
        writing over."""
        ...


LEAST_OUTPUT_TOKENS = 16
"""A call that could write fewer tokens than this is refused."""


class Budget:
    """The ledger of one run (or of one step, with the run's budget as its parent)."""

    def __init__(
        self,
        *,
        max_cost_usd: float | None = None,
        max_output_tokens: int | None = None,
        parent: Ledger | None = None,
        what: str = "the run",
    ) -> None:
        self.max_cost_usd = max_cost_usd
        self.max_output_tokens = max_output_tokens
        self.spent_usd = 0.0
        self.spent_tokens = 0
        self._parent = parent
        self._what = what
        self._held: dict[int, Hold] = {}
        self._ids = itertools.count()

    async def reserve(self, quote: Quote) -> Hold:
        hold = _hold(next(self._ids), quote, self._affordable_tokens(quote))
        # Held before the parent is asked: while the parent writes, no other call may be promised the same money.
        self._held[hold.id] = hold
        if self._parent is None:
            return hold
        wanted = msgspec.structs.replace(quote, max_output_tokens=hold.max_output_tokens)
        try:
            granted = await self._parent.reserve(wanted)
        except BaseException:
            del self._held[hold.id]
            raise
        self._held[hold.id] = _hold(hold.id, quote, granted.max_output_tokens, parent=granted)
        return self._held[hold.id]

    def settle(self, hold: Hold, *, cost_usd: float, output_tokens: int) -> None:
        if self._held.pop(hold.id, None) is None:
            return
        self.spent_usd += cost_usd
        self.spent_tokens += output_tokens
        if self._parent is not None and hold.parent is not None:
            self._parent.settle(hold.parent, cost_usd=cost_usd, output_tokens=output_tokens)

    def _affordable_tokens(self, quote: Quote) -> int | None:
        tokens = quote.max_output_tokens
        if self.max_cost_usd is not None and not quote.priced:
            raise CostError(
                f"{self._what} has a cost cap, and no price is known for {quote.worker}; "
                "add  price = { input = 0, output = 0 }  if it is free"
            )
        if self.max_output_tokens is not None:
            held = sum(hold.max_output_tokens or 0 for hold in self._held.values())
            left = self.max_output_tokens - self.spent_tokens - held
            tokens = left if tokens is None else min(tokens, left)
            if tokens < 1:
                raise CostError(
                    f"{self._what} may write {self.max_output_tokens} output tokens and has none left "
                    f"for {quote.worker}; raise max_run_output_tokens"
                )
        if self.max_cost_usd is None:
            return tokens
        left_usd = self.max_cost_usd - self.spent_usd - sum(hold.cost_usd for hold in self._held.values())
        wanted = msgspec.structs.replace(quote, max_output_tokens=tokens)
        return affordable_tokens(wanted, max_cost_usd=self.max_cost_usd, left_usd=left_usd, what=self._what)


def affordable_tokens(quote: Quote, *, max_cost_usd: float, left_usd: float, what: str) -> int | None:
    """The output tokens that the rest of a cap pays for, at most those wanted; raises `CostError` if too few."""
    for_output_usd = left_usd - quote.input_usd
    if for_output_usd >= 0 and quote.output_token_usd == 0:
        return quote.max_output_tokens
    affordable = _tokens_for(for_output_usd, quote.output_token_usd) if for_output_usd > 0 else 0
    wanted = affordable if quote.max_output_tokens is None else quote.max_output_tokens
    if affordable < min(wanted, LEAST_OUTPUT_TOKENS) or affordable < 1:
        raise CostError(
            f"{what} may cost ${max_cost_usd:.6g} and has ${max(left_usd, 0):.6g} left: "
            f"too little to ask {quote.worker}; raise the cost cap"
        )
    return min(wanted, affordable)


def _hold(id: int, quote: Quote, max_output_tokens: int | None, *, parent: Hold | None = None) -> Hold:
    cost_usd = quote.input_usd + (max_output_tokens or 0) * quote.output_token_usd
    return Hold(id, cost_usd, max_output_tokens, parent)


def _tokens_for(usd: float, token_usd: float) -> int:
    """How many tokens a sum buys. Bounded, because an infinite sum or a tiny price has no integer result."""
    return int(min(usd / token_usd + 1e-9, 1e12))
