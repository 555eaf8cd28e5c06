"""Progress of an evaluation on stderr: each planner's accuracy and cost so far.

Bars on a terminal, a line for each planner elsewhere. It observes the evaluation and decides nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dirigent.cli.output import say
from dirigent.evals.entries import Evaluated, OutOfMoney
from dirigent.evals.live import CeilingTrials
from dirigent.evals.record import Outcome
from dirigent.messages import Event, Observe
from dirigent.show.words import usd_text


@contextmanager
def progress(planners: Sequence[str]) -> Iterator[Observe]:
    """A bar for each planner with its accuracy and cost so far; off a terminal, a line when each is done."""
    with _bars(planners) as bars:
        tallies: dict[str, _Tally] = {}

        def observe(event: Event) -> None:
            if isinstance(event, OutOfMoney):
                say(f"stopped: {event.error}")
            elif isinstance(event, CeilingTrials):
                say(_trials_line(event))
            elif isinstance(event, Evaluated):
                name = event.outcome.planner
                if event.outcome.tags.get("split") == "train":
                    name += " on the training split"
                tally = tallies.setdefault(name, _Tally(name, event.total))
                tally.add(event.outcome)
                bars.show(tally)

        yield observe


def _trials_line(event: CeilingTrials) -> str:
    cost = "at an unknown cost" if event.cost_usd is None else f"about {usd_text(event.cost_usd)}"
    return f"ceiling: {event.plans} plans are tried on {event.questions:,} questions: {event.calls:,} calls, {cost}"


class _Tally:
    """One planner's runs so far."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total = name, total
        self.done = self.right = 0
        self.cost_usd = 0.0

    def add(self, outcome: Outcome) -> None:
        self.done += 1
        self.right += outcome.correct
        self.cost_usd += outcome.cost_usd

    @property
    def text(self) -> str:
        return f"right {self.right / max(self.done, 1):6.1%}  {usd_text(self.cost_usd)}"


@contextmanager
def _bars(planners: Sequence[str]) -> Iterator[_Lines]:
    if not sys.stderr.isatty():
        yield _Lines(planners)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[said]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bars(planners, progress)


LINE_EVERY_S = 60.0


class _Lines:
    """A line for each planner that is done, and one a minute for a slow one. Runs that only prepare are silent."""

    def __init__(self, planners: Sequence[str]) -> None:
        self._planners = planners
        self._said = time.monotonic()

    def show(self, tally: _Tally) -> None:
        if tally.name not in self._planners:
            return
        if tally.done == tally.total:
            say(f"{tally.name}: {tally.text}")
        elif time.monotonic() - self._said >= LINE_EVERY_S:
            say(f"{tally.name}: {tally.done} of {tally.total}  {tally.text}")
        else:
            return
        self._said = time.monotonic()


class _Bars(_Lines):
    """A bar for each planner, and for runs that prepare as long as they last."""

    def __init__(self, planners: Sequence[str], progress: Any) -> None:
        super().__init__(planners)
        self._progress = progress
        self._ids: dict[str, Any] = {}

    def show(self, tally: _Tally) -> None:
        if tally.name not in self._ids:
            self._ids[tally.name] = self._progress.add_task(tally.name, total=tally.total, said="")
        shown = tally.name in self._planners or tally.done < tally.total
        self._progress.update(self._ids[tally.name], completed=tally.done, said=tally.text, visible=shown)


@contextmanager
def bringing() -> Iterator[Callable[[str, int, int], None]]:
    """Reports a download: a line at its start, and on a terminal its progress."""
    begun: set[str] = set()

    def brought(what: str, done: int, total: int) -> None:
        if what not in begun:
            begun.add(what)
            say(f"fetching {what}" + (f" ({total:,})" if total else ""))
        if sys.stderr.isatty():
            print(f"\r{what}: {done:,} of {total:,}", end="" if done < total else "\n", file=sys.stderr, flush=True)

    yield brought
