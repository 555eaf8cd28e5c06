"""Draw a plan or a finished run at a given width.

    ultra · conductor · 1.5 s (critical path 0.6 s + plan 0.8 s) · 3 calls · 214 tokens · $0
    0 facts   ████████                  0.2 s           "What is the capital of Norway?" → "Oslo"
    1 letters         ████████          0.2 s  reads 0  "How many letters are in it?" → "4"

Each step is a line: its worker, its time (bars share one axis over all rounds), the steps it read, its subtask and its
reply. Errors follow in their own words. The tree shows the same steps from the answer down; a step of an earlier round
that a later round read is drawn once and then only named.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Literal

import msgspec

from dirigent.messages import Ran
from dirigent.plan.plan import Plan, critical_path
from dirigent.run.trace import DraftRecord, Round, StepRecord, Trace, critical_path_s, saved_usd_estimate
from dirigent.show.words import count_text, one_line, seconds_text, usd_text
from dirigent.workers.worker import WorkerInfo

if TYPE_CHECKING:
    from rich.text import Text

Style = Literal["timeline", "tree"]

DEFAULT_WIDTH = 100
"""The width if there is no terminal to ask."""

_LEAST_TEXT = 14
_ENOUGH_TEXT = 24
"""On a narrow terminal the bars shrink until the text has this many cells."""
_LEAST_BAR = 4
_MOST_NAME = 24
_GAPS = 5
"""Cells between the columns of a timeline."""
_PLAIN = str.maketrans(
    {
        "█": "#",
        "→": ">",
        "←": "<",
        "·": "-",
        "…": "~",
        "✗": "x",
        "↳": ">",
        "└": "`",
        "├": "|",
        "│": "|",
        "─": "-",
        "–": "-",
        "▸": ">",
    }
)
"""Replacements for terminals whose encoding lacks these characters."""


def draw_trace(trace: Trace, *, width: int = DEFAULT_WIDTH, style: Style = "timeline") -> Text:
    """Draws a run: a line of figures, then its steps as a timeline or as a tree from the answer down."""
    lines = [_header(trace), *(_text((f"note   {one_line(note, width - 7)}", "yellow")) for note in trace.notes)]
    frame = _frame_of(trace, width)
    saved_usd = saved_usd_estimate(trace)
    if saved_usd and trace.reason is not None:
        word = "less" if saved_usd >= 0 else "more"
        lines.append(
            _text((f"cost   about {usd_text(abs(saved_usd))} {word} than {trace.reason.baseline} alone", "dim"))
        )
    earlier: dict[int, StepRecord] = {}
    rounds = [round for round in trace.rounds if not _accepted_by_program(round)]
    for number, round in enumerate(rounds):
        if len(rounds) > 1:
            lines.append(_text((f"round {number + 1}", "bold")))
        lines.extend(_round_notes(round, width))
        if style == "tree":
            lines.extend(_tree(round.steps, earlier, width))
        else:
            lines.extend(_timeline(round.steps, frame))
        earlier |= {step.index: step for step in round.steps}
    lines.extend(_outcome(trace, width))
    return _joined(lines)


def draw_plan(plan: Plan, infos: Sequence[WorkerInfo] = (), *, width: int = DEFAULT_WIDTH) -> Text:
    """Draws a plan before it runs: each step's worker, subtask, reads, parallel step and price."""
    lines = [_text(("plan   ", "bold"), plan_figures(plan))]
    prices = {info.name: _price_text(info) for info in infos}
    name_cells = min(max((len(step.worker) for step in plan.steps), default=0), _MOST_NAME)
    together = _together(plan)
    for index, step in plan.numbered():
        reads = f"   ← {_numbers(step.access)}" if step.access else ""
        beside = f"   (with {together[index]})" if together[index] is not None else ""
        price = f"   {prices[step.worker]}" if prices.get(step.worker) else ""
        room = width - name_cells - 7 - len(reads + beside + price)
        lines.append(
            _text(
                (f"  {index}  ", "bold"),
                (one_line(step.worker, name_cells).ljust(name_cells), "cyan"),
                "  " + one_line(step.subtask, max(room, _LEAST_TEXT)),
                (reads, "cyan"),
                (beside + price, "dim"),
            )
        )
    return _joined(lines)


def draw_summary(trace: Trace) -> Text:
    """Draws one line: 3 calls · 214 tokens · 1.5 s · $0 · trace 7f3a9c21"""
    figures = [*_spent(trace)[:-1], seconds_text(trace.seconds), _spent(trace)[-1], f"trace {trace.id[:8]}"]
    return _text((" · ".join(figures), "dim"))


def print_drawing(drawing: Text, *, file: IO[str] | None = None) -> None:
    """Prints to standard output (or `file`): in colour on a terminal, else plain and unwrapped."""
    from rich.console import Console

    console = Console(file=file, highlight=False, markup=False, emoji=False)
    if console.is_terminal and console.encoding.startswith("utf"):
        console.print(drawing, soft_wrap=True)
    else:
        print_plain(drawing, file=console.file)


def print_plain(drawing: Text, *, file: IO[str]) -> None:
    """Prints characters only. It avoids `rich`, which ends the program if the reader of a pipe has gone."""
    file.write(encodable(drawing.plain, file) + "\n")


def encodable(text: str, file: IO[str]) -> str:
    """Returns the text with plain characters in place of ours if the file's encoding cannot hold them."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text


def width_of(file: IO[str] | None = None) -> int:
    """Returns the width of drawings for this file."""
    from rich.console import Console

    console = Console(file=file)
    return console.width if console.is_terminal else DEFAULT_WIDTH


def plan_figures(plan: Plan) -> str:
    """Returns `3 steps, critical path 2`, or `at most 3 steps, in order, until 70% sure`."""
    if not plan.steps:
        return "accepts the answer unchanged"
    if plan.until is not None:
        return f"at most {count_text(len(plan.steps), 'step')}, in order, until {_percent(plan.until)} sure"
    return f"{count_text(len(plan.steps), 'step')}, critical path {critical_path(plan)}"


class _Frame(msgspec.Struct, frozen=True):
    """The common layout of a timeline's lines: column widths, and the time span under the bars."""

    width: int
    index_cells: int
    name_cells: int
    bar_cells: int
    seconds_cells: int
    reads_cells: int
    from_s: float
    to_s: float


def _header(trace: Trace) -> Text:
    path_s = sum(critical_path_s(round.steps, round.plan) for round in trace.rounds)
    plan_s = sum(draft.ended_s - draft.started_s for round in trace.rounds for draft in round.drafts)
    time = f"{seconds_text(trace.seconds)} (critical path {seconds_text(path_s)} + plan {seconds_text(plan_s)})"
    names = [one_line(name) for name in (trace.profile, trace.planner) if name]
    status = [] if trace.status == "done" else [trace.status]
    return _text((" · ".join([*status, *names, time, *_spent(trace)]), "bold"))


def _spent(trace: Trace) -> list[str]:
    usage = trace.usage
    tokens = usage.input_tokens + usage.output_tokens
    read = count_text(tokens, "token")
    if usage.cached_input_tokens:
        read += f" ({usage.cached_input_tokens / usage.input_tokens:.0%} of input cached)"
    return [count_text(usage.calls, "call"), read, cost_text(trace)]


def cost_text(trace: Trace) -> str:
    """Returns the cost of a run, and the part of it that no provider bills."""
    notional_usd = trace.notional_usd
    if not notional_usd:
        return usd_text(trace.cost_usd)
    if trace.cost_usd - notional_usd < 1e-12:
        return f"{usd_text(notional_usd)} (notional: local models)"
    return f"{usd_text(trace.cost_usd)} ({usd_text(notional_usd)} of it notional: local models)"


def _frame_of(trace: Trace, width: int) -> _Frame:
    steps = [step for round in trace.rounds for step in round.steps]
    index = max((len(str(step.index)) for step in steps), default=1)
    name = min(max((len(step.worker) for step in steps), default=0), _MOST_NAME, width // 4)
    seconds = max((len(_step_seconds(step)) for step in steps), default=0)
    reads = max((len(_reads_text(step)) + 2 for step in steps if step.access), default=0)
    left = width - (index + name + seconds + reads + _GAPS) - _ENOUGH_TEXT
    return _Frame(
        width=width,
        index_cells=index,
        name_cells=name,
        bar_cells=max(min(max(width // 4, 8), 28, left), _LEAST_BAR),
        seconds_cells=seconds,
        reads_cells=reads,
        from_s=min((step.started_s for step in steps if not _never_started(step)), default=0.0),
        to_s=max((step.ended_s for step in steps), default=0.0),
    )


def _accepted_by_program(round: Round) -> bool:
    """Returns whether a planner that is a program accepted the answer, which took no time and says nothing new."""
    return round.accepted and bool(round.drafts) and not any(one.attempts or one.error for one in round.drafts)


def _round_notes(round: Round, width: int) -> Iterator[Text]:
    """Yields the lines between the planner and the steps: refused drafts, reasons, a fallback, an acceptance."""
    for draft in round.drafts:
        if draft.error:
            yield from _refused_draft(draft, width)
        elif draft.reason is not None:
            yield from _note(f"why    {one_line(draft.reason.why)}", "dim", width, lead="")
            for sentence in draft.reason.left_out:
                yield from _note(f"note   {one_line(sentence)}", "yellow", width, lead="")
    if round.fallback:
        yield _text(("↳ no valid plan: the profile's fixed plan replaced it", "yellow"))
    if round.accepted:
        yield _text(("accepted the answer unchanged", "green"))
    elif round.plan is not None and not round.steps:
        yield _text((f"planned {plan_figures(round.plan)}; no step started", "yellow"))


def _refused_draft(draft: DraftRecord, width: int) -> Iterator[Text]:
    took = seconds_text(draft.ended_s - draft.started_s)
    yield from _note(f"✗ draft by {one_line(draft.planner)} ({took}): {one_line(draft.error)}", "red", width, lead="")
    if draft.text.strip():
        yield _text((f'  "{one_line(draft.text, width - 4)}"', "dim"))


def _timeline(steps: Sequence[StepRecord], frame: _Frame) -> Iterator[Text]:
    for step in steps:
        left = f"{one_line(step.worker, frame.name_cells).ljust(frame.name_cells)} "
        seconds = _step_seconds(step).rjust(frame.seconds_cells)
        reads = f"  {_reads_text(step)}".ljust(frame.reads_cells)[: frame.reads_cells]
        used = frame.index_cells + frame.name_cells + frame.bar_cells + len(seconds) + len(reads) + _GAPS
        yield _text(
            (f"{step.index:>{frame.index_cells}} ", "bold"),
            (left, "cyan"),
            (_bar(step, frame), _COLOURS[step.status]),
            (f" {seconds}", "dim"),
            (reads, "cyan"),
            "  ",
            *_exchange(step, max(frame.width - used, _LEAST_TEXT)),
        )
        yield from _step_notes(step, frame.width, lead=" " * (frame.index_cells + 1))


_COLOURS = {"done": "green", "failed": "red", "skipped": "yellow", "cancelled": "yellow", "waiting": "cyan"}


def _bar(step: StepRecord, frame: _Frame) -> str:
    """Returns at least one cell, so that the fastest step is visible, and no cell for a step that never started."""
    if _never_started(step):
        return " " * frame.bar_cells
    per_s = frame.bar_cells / max(frame.to_s - frame.from_s, 1e-9)
    first = min(round((step.started_s - frame.from_s) * per_s), frame.bar_cells - 1)
    last = max(round((step.ended_s - frame.from_s) * per_s), first + 1)
    return (" " * first + "█" * (last - first)).ljust(frame.bar_cells)


def _exchange(step: StepRecord, cells: int) -> list[str | tuple[str, str]]:
    """Returns `"subtask" → "reply"`, with how the reply came about: `"subtask" → ran → "77"`.

    Each part may use the room that the other does not need.
    """
    if step.status == "waiting":
        quote, reply = _reply_text(step)
        reply = one_line(reply, cells // 2)
        label = f"waiting: {reply}" if reply else "waiting"
        return [f'"{one_line(step.subtask, cells - len(label) - 4)}" ', (label, _COLOURS["waiting"])]
    if step.status != "done":
        label = f" {step.status}"
        mark = "–" if step.status == "skipped" else "✗"
        return [f'"{one_line(step.subtask, cells - len(label) - 4)}" ', (mark + label, _COLOURS[step.status])]
    quote, reply = _reply_text(step)
    how = how_text(step)
    room = cells - len('"" → ""') - len(how)
    reply = one_line(reply, max(room // 2, room - _cells(one_line(step.subtask, room))))
    asked = one_line(step.subtask, room - _cells(reply))
    return [f'"{asked}"', (f" → {how}", "dim"), f"{quote}{reply}{quote}"]


def how_text(step: StepRecord) -> str:
    """Returns `ran → ` if a program was run for the reply, `3 of 4 → ` if it was chosen; else an empty text."""
    reply = step.reply
    if reply is not None and reply.chosen is not None:
        return f"{reply.chosen.votes} of {reply.chosen.of} → "
    if reply is not None and reply.ran is not None:
        return "ran → " if reply.ran.printed else "ran, failed → "
    return ""


def _reply_text(step: StepRecord) -> tuple[str, str]:
    """Returns the quote mark and the text of the reply, or no quote mark and the tools that it calls."""
    if step.reply is None:
        return "", ""
    calls = ", ".join(f"{call.name}({call.arguments})" for call in step.reply.tool_calls)
    return ("", f"calls {calls}") if calls else ('"', step.reply.text)


def _tool_results(step: StepRecord) -> Iterator[tuple[str, str]]:
    """Yields each tool call of the step and its result, in one line each."""
    results = {message.tool_call_id: message.text for message in step.tool_traffic if message.role == "tool"}
    for message in step.tool_traffic:
        for call in message.tool_calls:
            yield one_line(f"{call.name}({call.arguments})", 60), f'"{one_line(results.get(call.id, ""), 60)}"'


def _step_notes(step: StepRecord, width: int, *, lead: str) -> Iterator[Text]:
    """Yields failed attempts, a substitute worker and the error, in the words of their reports."""
    for asked, answered in _tool_results(step):
        yield from _note(f"↳ {asked} → {answered}", "cyan", width, lead=lead)
    if step.reply is not None and (ran := step.reply.ran) is not None:
        lines = count_text(len(ran.program.strip().splitlines()), "line")
        ended = "stopped" if ran.exit_code is None else f"exit code {ran.exit_code}"
        yield from _note(f"↳ program of {lines}: {ended}, {_walls_text(ran)}", "dim", width, lead=lead)
    shown: set[str] = set()
    for attempt in step.attempts:
        failure = f"↳ {one_line(attempt.worker)}: {one_line(attempt.error)}"
        if attempt.error and failure not in shown:
            shown.add(failure)
            times = sum(a.error == attempt.error and a.worker == attempt.worker for a in step.attempts)
            yield from _note(failure + (f" ({times} times)" if times > 1 else ""), "yellow", width, lead=lead)
        if attempt.overran:
            over = f"↳ {one_line(attempt.worker)} cost more than the amount reserved for it"
            yield from _note(over, "yellow", width, lead=lead)
    if step.planned_worker and step.planned_worker != step.worker:
        taken = f"↳ {one_line(step.worker)} took over from {one_line(step.planned_worker)}"
        yield from _note(taken, "yellow", width, lead=lead)
    if step.reply is not None and (step.checks or step.reply.confidence is not None):
        sure = [f"{_percent(check.confidence)} after step {check.after}" for check in step.checks]
        last = f"{_percent(step.reply.confidence)} in the end"
        said = ", ".join(sure if step.checks and step.checks[-1].confidence == step.reply.confidence else [*sure, last])
        yield from _note(f"↳ sure of its choice: {said}", "cyan", width, lead=lead)
    if step.error:
        mark = "–" if step.status == "skipped" else "✗"
        yield from _note(f"{mark} {one_line(step.error)}", _COLOURS[step.status], width, lead=lead)


def _walls_text(ran: Ran) -> str:
    return "unconfined" if ran.confined_by == "unconfined" else f"behind {one_line(ran.confined_by) or 'walls unknown'}"


def _tree(steps: Sequence[StepRecord], earlier: Mapping[int, StepRecord], width: int) -> Iterator[Text]:
    """The last step first, the steps that it reads below it; a step that was drawn before is only named."""
    own = {step.index: step for step in steps}
    by_index = {**earlier, **own}
    drawn = set(earlier) - set(own)
    for step in sorted(steps, key=lambda step: -step.index):
        if step.index not in drawn:
            yield from _branch(step, by_index, drawn, width, lead="", below="")


def _branch(
    step: StepRecord, by_index: dict[int, StepRecord], drawn: set[int], width: int, *, lead: str, below: str
) -> Iterator[Text]:
    if step.index in drawn:
        yield _text((lead, "dim"), (f"{step.index} ", "bold"), (one_line(step.worker), "cyan"), (" (above)", "dim"))
        return
    drawn.add(step.index)
    figures = f"  {_step_seconds(step)}" + (f" {usd_text(step.cost_usd)}" if step.cost_usd else "")
    used = len(lead) + len(str(step.index)) + len(step.worker) + len(figures) + 3
    yield _text(
        (lead, "dim"),
        (f"{step.index} ", "bold"),
        (one_line(step.worker) + "  ", "cyan"),
        *_exchange(step, max(width - used, _LEAST_TEXT)),
        (figures, "dim"),
    )
    reads = [by_index[j] for j in step.access if j in by_index]
    yield from _step_notes(step, width, lead=below + ("│ " if reads else "  "))
    for place, read in enumerate(reads, start=1):
        last = place == len(reads)
        yield from _branch(
            read,
            by_index,
            drawn,
            width,
            lead=below + ("└─ " if last else "├─ "),
            below=below + ("   " if last else "│  "),
        )


def _outcome(trace: Trace, width: int) -> Iterator[Text]:
    if trace.status == "waiting":
        calls = ", ".join(call.name for call in trace.tool_calls)
        yield from _note(f"waiting for the results of tools: {one_line(calls)}", "cyan", width, lead="")
    elif trace.status != "done":
        kind = f"{trace.error_kind}: " if trace.error_kind else ""
        yield from _note(f"{trace.status}: {kind}{one_line(trace.error)}", "red", width, lead="")


def _note(text: str, style: str, width: int, *, lead: str) -> Iterator[Text]:
    """Prints a sentence in full, on as many lines as it needs."""
    room = max(width - len(lead), _LEAST_TEXT)
    for line in textwrap.wrap(text, room, subsequent_indent="  ", break_on_hyphens=False):
        yield _text((lead, "dim"), (line, style))


def _together(plan: Plan) -> dict[int, int | None]:
    """For each step the first one before it that may run at the same time, if there is one."""
    if plan.until is not None:
        return {index: None for index, _ in plan.numbered()}
    depths: dict[int, int] = {}
    first_at: dict[int, int] = {}
    together: dict[int, int | None] = {}
    for index, step in plan.numbered():
        depths[index] = 1 + max((depths.get(j, 0) for j in step.access), default=0)
        together[index] = first_at.get(depths[index])
        first_at.setdefault(depths[index], index)
    return together


def _price_text(info: WorkerInfo) -> str:
    if info.price is None or not (info.price.input or info.price.output):
        return ""
    return f"${info.price.input:g}/{info.price.output:g} per M"


def _step_seconds(step: StepRecord) -> str:
    return "" if _never_started(step) else seconds_text(step.seconds)


def _never_started(step: StepRecord) -> bool:
    return step.status == "skipped" or (step.status == "waiting" and not step.ended_s)


def _reads_text(step: StepRecord) -> str:
    return f"reads {_numbers(step.access)}" if step.access else ""


def _numbers(access: Sequence[int]) -> str:
    return " ".join(str(j) for j in access)


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


def _cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _text(*parts: str | tuple[str, str]) -> Text:
    from rich.text import Text

    return Text.assemble(*parts)


def _joined(lines: Sequence[Text]) -> Text:
    from rich.text import Text

    for line in lines:
        line.rstrip()
    return Text("\n").join(lines)
