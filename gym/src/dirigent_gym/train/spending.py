"""What the workers of a pool have cost a run, and the most they may cost it.

Every call is reserved at its worst case before it is made. In training many wait at once, so a call that finds too
little left waits for those before it to be settled, rather than be refused for money that they will not use; and none
is granted fewer tokens than it asked for, as an answer cut short would be held against the plan. A call that cannot be
paid for with all others settled is refused, and so is every one after it: the run is to end.

What was paid stands in the run's folder, call by call, so that a run that was killed remembers it. Processes of one run
share the file, and what is left of the cap evenly.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from dirigent.errors import CostError, LimitError
from dirigent.limits import Budget, Hold, Quote

FILE = "spent.jsonl"


class CapReached(LimitError):
    """The run's workers have cost what they may."""


class Spending(Budget):
    """The ledger of one process of a run. Without a folder it remembers nothing from before."""

    def __init__(self, out: Path | None = None, *, max_cost_usd: float | None = None, processes: int = 1) -> None:
        self.cap_usd = max_cost_usd
        self.refused = False
        self._file = None if out is None else out / FILE
        self._settled = asyncio.Event()
        before = self.total_usd if self._file is not None else 0.0
        share = None if max_cost_usd is None else before + max(0.0, max_cost_usd - before) / processes
        super().__init__(max_cost_usd=share)
        self.spent_usd = before

    @property
    def total_usd(self) -> float:
        """Of the whole run: all its processes, and its parts before."""
        return self.spent_usd if self._file is None else _sum(self._file)

    @property
    def reached(self) -> str:
        """What to say where no more may be paid."""
        return (
            f"workers have cost ${self.total_usd:.4g} of the ${self.cap_usd or 0.0:.6g} that workers.max_cost_usd "
            "allows, too little to go on; raise it"
        )

    def covers(self, usd: float) -> bool:
        """Whether so much more may be paid."""
        return self.max_cost_usd is None or self.spent_usd + usd <= self.max_cost_usd

    async def reserve(self, quote: Quote) -> Hold:
        while not self.refused:
            try:
                return await super().reserve(quote)
            except CostError:
                if not self._held:
                    self.refused = True
                    self._settled.set()
                    raise
            self._settled.clear()
            await self._settled.wait()
        raise CostError("the cost cap of the run is reached")

    def settle(self, hold: Hold, *, cost_usd: float, output_tokens: int) -> None:
        super().settle(hold, cost_usd=cost_usd, output_tokens=output_tokens)
        self._settled.set()
        if self._file is not None and cost_usd:
            with self._file.open("a", encoding="ascii") as file:
                file.write(f"{cost_usd:.9f}\n")

    def _affordable_tokens(self, quote: Quote) -> int | None:
        tokens = super()._affordable_tokens(quote)
        if tokens != quote.max_output_tokens:
            raise CostError(f"too little is left to ask {quote.worker} for {quote.max_output_tokens} tokens")
        return tokens


def _sum(file: Path) -> float:
    """A line that was cut while it was written counts as far as it is a number."""
    try:
        lines = file.read_text(encoding="ascii").split()
    except FileNotFoundError:
        return 0.0
    return sum(float(line) for line in lines if line.replace(".", "", 1).isdigit())
