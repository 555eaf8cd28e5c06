"""Show a run while it happens: an observer that updates a few lines on the terminal.

On a terminal each step has a line with a spinner and its seconds, and the answer streams below. After the run the
steps stay and the streamed text disappears, because the caller prints the answer to standard output. Elsewhere (a pipe,
a log) each event is one plain line. The observer writes to standard error and only watches: its failures never change
the run.

    with LiveRun() as live:
        trace = await conductor.run(question, observe=live)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import IO, TYPE_CHECKING, Literal

import msgspec

from dirigent.messages import Delta, Event
from dirigent.plan.plan import Plan
from dirigent.run.trace import (
    Drafted,
    Planned,
    RunEnded,
    StepDelta,
    StepEnded,
    StepReassigned,
    StepRecord,
    StepStarted,
    StepStatus,
)
from dirigent.show.drawing import how_text, plan_figures, print_plain
from dirigent.show.words import escape, one_line, seconds_text, usd_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FRAMES_PER_S = 8
ANSWER_LINES = 6
"""The number of last lines of the streamed answer that are shown."""

_TAIL_CHARS = 4000
_MOST_NAME = 24


class LiveRun:
    """Shows a run. Call it with events, and use it as a context manager so that the terminal is left tidy."""

    def __init__(self, *, file: IO[str] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._state = Progress(since=clock())
        self._live: Live | None = None
        self._console: Console | None = None

    def __enter__(self) -> LiveRun:
        from rich.console import Console

        self._console = Console(file=self._file or sys.stderr, highlight=False, markup=False, emoji=False)
        self._state = Progress(since=self._clock())
        if _can_redraw(self._console):
            self._live = self._start_live(self._console)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._state = msgspec.structs.replace(self._state, ended=True, answer="")
            self._live.stop()
            self._live = None

    def __call__(self, event: Event) -> None:
        now = self._clock()
        before, self._state = self._state, after(self._state, event, now)
        if self._live is None and self._console is not None:
            with suppress(OSError):  # the run must go on if the reader of the progress has gone
                for line in event_lines(before, event, now):
                    print_plain(line, file=self._console.file)

    def _start_live(self, console: Console) -> Live:
        from rich.live import Live

        live = Live(
            get_renderable=lambda: draw_progress(self._state, self._clock(), width=console.width),
            console=console,
            refresh_per_second=FRAMES_PER_S,
            redirect_stdout=False,
            redirect_stderr=console.file is sys.stderr,
        )
        live.start()
        return live


def _can_redraw(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")


class Line(msgspec.Struct, frozen=True):
    """A step so far."""

    number: int
    worker: str
    subtask: str
    access: tuple[int, ...] = ()
    status: Literal["waiting", "working"] | StepStatus = "waiting"
    since: float = 0.0
    record: StepRecord | None = None
    note: str = ""


class Progress(msgspec.Struct, frozen=True):
    """The current state of a run. Each event replaces it as a whole, because another thread draws it."""

    since: float
    """When the run, or the planning of its present round, began."""
    rounds: tuple[tuple[Line, ...], ...] = ()
    heads: tuple[str, ...] = ()
    """For each round, the line above its steps."""
    notes: tuple[str, ...] = ()
    """Refused drafts."""
    planning: bool = True
    answer: str = ""
    ended: bool = False


def after(state: Progress, event: Event, now: float) -> Progress:
    """Returns the run's state after an event. Events of other kinds change nothing."""
    match event:
        case Drafted(draft=draft) if draft.error:
            note = f"✗ draft by {draft.planner} refused: {draft.error}"
            return msgspec.structs.replace(state, notes=(*state.notes, note))
        case Planned(plan=plan):
            return _planned(state, plan, event.fallback, now)
        case StepStarted():
            return _with_line(state, event.index, worker=event.worker, status="working", since=now)
        case StepReassigned():
            if _is_last(state, event.index):  # the substitute starts a new answer
                state = msgspec.structs.replace(state, answer="")
            return _with_line(state, event.index, note=f"{event.error}; {event.to} takes over")
        case StepEnded(step=step):
            state = msgspec.structs.replace(state, planning=_is_last(state, step.index), since=now)
            return _with_line(state, step.index, worker=step.worker, status=step.status, record=step)
        case StepDelta() if _is_last(state, event.index):
            return msgspec.structs.replace(state, answer=(state.answer + event.text)[-_TAIL_CHARS:])
        case Delta() if not state.rounds:  # a worker that runs without a plan
            text = (state.answer + event.text)[-_TAIL_CHARS:]
            return msgspec.structs.replace(state, answer=text, planning=False)
        case RunEnded():
            return msgspec.structs.replace(state, ended=True, answer="", planning=False)
    return state


def draw_progress(state: Progress, now: float, *, width: int) -> Text:
    """Draws the picture of this moment for a terminal."""
    from rich.text import Text

    spinner = SPINNER[int(now * FRAMES_PER_S) % len(SPINNER)]
    lines = [Text(one_line(note, width), "red") for note in state.notes]
    for head, steps in zip(state.heads, state.rounds, strict=True):
        lines.append(_head(head))
        lines.extend(line for step in steps for line in _step_lines(steps, step.number, now, width, spinner))
    if state.planning and not state.ended:
        lines.append(Text(f"{spinner} planning… {seconds_text(now - state.since)}", "dim"))
    if state.answer:
        shown = escape(state.answer).splitlines()[-ANSWER_LINES:]
        lines.extend(Text("  " + one_line(line, width - 3), "dim") for line in shown)
    return Text("\n").join(lines)


def event_lines(before: Progress, event: Event, now: float, *, width: int = 120) -> Iterator[Text]:
    """Yields the plain lines of an event, for outputs that cannot be redrawn."""
    from rich.text import Text

    state = after(before, event, now)
    yield from (Text(one_line(note)) for note in state.notes[len(before.notes) :])
    yield from (_head(head) for head in state.heads[len(before.heads) :])
    if not state.rounds:
        return
    steps = state.rounds[-1]
    if isinstance(event, StepReassigned):
        yield Text(f"  {event.index}  {one_line(_line(steps, event.index).note)}")
    if isinstance(event, StepEnded):
        row, *notes = _step_lines(steps, event.step.index, now, width, "")
        yield row
        yield from (note for note in notes if event.step.error)


def _planned(state: Progress, plan: Plan, fallback: bool, now: float) -> Progress:
    head = f"{plan_figures(plan)}{', the fixed one' if fallback else ''} ({seconds_text(now - state.since)})"
    lines = tuple(Line(i, step.worker, step.subtask, step.access) for i, step in plan.numbered())
    return msgspec.structs.replace(
        state,
        rounds=(*state.rounds, lines),
        heads=(*state.heads, head),
        planning=False,
        since=now,
        answer="" if plan.steps else state.answer,
    )


def _with_line(state: Progress, index: int, **changes: object) -> Progress:
    if not state.rounds:
        return state
    lines = tuple(
        msgspec.structs.replace(line, **changes) if line.number == index else line for line in state.rounds[-1]
    )
    return msgspec.structs.replace(state, rounds=(*state.rounds[:-1], lines))


def _is_last(state: Progress, index: int) -> bool:
    return bool(state.rounds) and bool(state.rounds[-1]) and index == state.rounds[-1][-1].number


def _head(head: str) -> Text:
    from rich.text import Text

    return Text.assemble(("plan   ", "bold"), head)


def _step_lines(steps: tuple[Line, ...], index: int, now: float, width: int, spinner: str) -> Iterator[Text]:
    """`  1  letters  How many letters are in it?  ← 0  4   0.2 s`, then the step's errors."""
    from rich.text import Text

    line = _line(steps, index)
    name_cells = min(max(len(step.worker) for step in steps), _MOST_NAME)
    reads = f" ← {' '.join(str(j) for j in line.access)}" if line.access else ""
    figures = _figures(line, now, spinner)
    room = max(width - name_cells - len(reads) - len(figures) - 11, 24)
    reply = one_line(line.record.reply.text if line.record and line.record.reply else "", room // 3)
    how = how_text(line.record) if line.record else ""
    row = Text.assemble(
        (f"  {index}  ", "bold"),
        (one_line(line.worker, name_cells).ljust(name_cells), "cyan"),
        "  ",
        one_line(line.subtask, room - room // 3),
        (reads, "cyan"),
        (f" → {how}{reply}" if reply else "", ""),
        (f"   {figures}" if figures else "", "dim"),
    )
    yield row
    if line.note:
        yield Text(f"     ↳ {one_line(line.note, width - 8)}", "yellow")
    if line.record is not None and line.record.error:
        mark, style = ("–", "yellow") if line.status == "skipped" else ("✗", "red")
        yield Text(f"     {mark} {one_line(line.record.error, width - 8)}", style)


def _line(steps: tuple[Line, ...], number: int) -> Line:
    return steps[number - steps[0].number]


def _figures(line: Line, now: float, spinner: str) -> str:
    if line.status == "waiting":
        return "asks for a tool" if line.record is not None else ""
    if line.status == "working":
        return f"{spinner} {seconds_text(now - line.since)}"
    record = line.record
    if record is None or line.status != "done":
        return line.status
    return seconds_text(record.seconds) + (f"  {usd_text(record.cost_usd)}" if record.cost_usd else "")
