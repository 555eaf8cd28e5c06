"""`dirigent serve` that ends itself with SIGKILL at a chosen point: no handler runs, nothing is tidied up.

    python -m tests.torture.kill_points serve --config FILE        # as `dirigent serve`, until it is armed

It is armed by a file `armed` in DIRIGENT_HOME that says where and when, such as `in-commit 3`: the third time that
the point is reached from then on. The points:

    before-intent   a call is about to be made, and nothing of it is written
    after-intent    its row is committed, and the call has not left
    in-commit       a row of the hot path is written (an attempt, a settlement, a trace), and not committed
    after-commit    all is committed, and no caller has an answer

Points that a client can see (in the middle of a stream, after the last byte) need no help: kill from outside.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dirigent.cli import main
from dirigent.limits import Hold, Quote
from dirigent.paths import home
from dirigent.store import writer
from dirigent.store.ledger import StoreLedger
from dirigent.store.statement import Statement

ARMED = "armed"
POINTS = ("before-intent", "after-intent", "in-commit", "after-commit")

_counted: dict[str, int] = {}


def reached(point: str) -> None:
    """Die here, if this is the time."""
    try:
        order = (home() / ARMED).read_text()
    except OSError:
        return
    where, _, number = order.partition(" ")
    if where == point:
        _counted[order] = _counted.get(order, 0) + 1
        if _counted[order] >= int(number):
            os.kill(os.getpid(), signal.SIGKILL)


def arm(folder: Path, point: str, number: int) -> None:
    """Let the server of this folder die the `number`-th time it comes to the point."""
    draft = folder / f"{ARMED}.new"
    draft.write_text(f"{point} {number}")
    draft.rename(folder / ARMED)


def disarm(folder: Path) -> None:
    (folder / ARMED).unlink(missing_ok=True)


def patch() -> None:
    """Put the points in. The code between them stays as it is."""
    reserve, run, tell = StoreLedger.reserve, Statement.run, writer._tell

    async def reserving(self: StoreLedger, quote: Quote) -> Hold:
        reached("before-intent")
        hold = await reserve(self, quote)
        reached("after-intent")
        return hold

    def running(self: Statement, *arguments: Any, **more: Any) -> Any:
        outcome = run(self, *arguments, **more)
        reached("in-commit")
        return outcome

    def telling(jobs: Sequence[Any]) -> None:
        reached("after-commit")
        tell(jobs)

    StoreLedger.reserve = reserving  # type: ignore[method-assign]
    Statement.run = running  # type: ignore[method-assign]
    writer._tell = telling


if __name__ == "__main__":
    patch()
    main()
