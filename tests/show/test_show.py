"""Plans and runs in the terminal, line by line as a person sees them."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
from contextlib import suppress

import msgspec
import pytest
from tests.facts import Saying, says

from dirigent.limits import Limits
from dirigent.messages import Attempt, Choice, Delta, Message, Ran, Reply, ToolCall, Usage
from dirigent.plan.plan import Plan, Step
from dirigent.run.trace import (
    Drafted,
    DraftRecord,
    Planned,
    Round,
    RunEnded,
    StepDelta,
    StepEnded,
    StepReassigned,
    StepRecord,
    StepStarted,
    Trace,
)
from dirigent.show import (
    LiveRun,
    cost_text,
    draw_plan,
    draw_summary,
    draw_trace,
    escape,
    one_line,
    print_drawing,
    seconds_text,
    usd_text,
    width_of,
)
from dirigent.show.live import Progress, after, draw_progress
from dirigent.workers.worker import Price, WorkerInfo

HOSTILE = "\x1b[2J\x1b]0;owned\x07 \u202eabc\u2028 \x9b31m\r\n\0 \U000e0041"


def a_step(
    index: int, worker: str, subtask: str, access: tuple[int, ...], said: str, *, at: float, took: float = 0.2
) -> StepRecord:
    attempt = Attempt(worker, took, Usage(50, 10))
    reply = Reply(said)
    return StepRecord(index, worker, subtask, access, reply=reply, attempts=(attempt,), started_s=at, ended_s=at + took)


NORWAY = (
    a_step(0, "facts", "What is the capital of Norway?", (), "Oslo", at=0.8),
    a_step(1, "letters", "How many letters are in it?", (0,), "4", at=1.0),
    a_step(2, "numbers", "What is it times 7?", (1,), "28", at=1.2),
)
NORWAY_PLAN = Plan(tuple(Step(step.worker, step.subtask, step.access) for step in NORWAY))
DRAFT = DraftRecord("gym", "…", "lines", ended_s=0.8, attempts=(Attempt("gym", 0.8, Usage(20, 14)),))


def a_trace(*rounds: Round, **fields: object) -> Trace:
    known = {
        "id": "7f3a9c21b0",
        "created_at": "2026-11-15T02:00:00Z",
        "question": (Message("user", "Take the letters…"),),
        "pool": (),
        "limits": Limits(),
        "planner": "gym",
        "profile": "ultra",
        "rounds": rounds or (Round((DRAFT,), NORWAY_PLAN, NORWAY),),
        "answer": "28",
        "seconds": 1.5,
    }
    return Trace(**{**known, **fields})  # type: ignore[arg-type]


def lines_of(trace: Trace, **options: object) -> list[str]:
    return draw_trace(trace, **options).plain.splitlines()  # type: ignore[arg-type]


def test_a_timeline_places_each_step_by_its_time_with_its_input_and_output():
    assert lines_of(a_trace(), width=100) == [
        "ultra · gym · 1.5 s (critical path 0.6 s + plan 0.8 s) · 4 calls · 214 tokens · $0",
        '0 facts   ████████                  0.2 s           "What is the capital of Norway?" → "Oslo"',
        '1 letters         █████████         0.2 s  reads 0  "How many letters are in it?" → "4"',
        '2 numbers                  ████████ 0.2 s  reads 1  "What is it times 7?" → "28"',
    ]


def test_a_tree_starts_at_the_answer_and_draws_a_shared_step_once():
    shared = (*NORWAY[:2], a_step(2, "numbers", "Join them.", (0, 1), "28", at=1.2))
    assert lines_of(a_trace(Round((DRAFT,), NORWAY_PLAN, shared)), style="tree")[1:] == [
        '2 numbers  "Join them." → "28"  0.2 s',
        '├─ 0 facts  "What is the capital of Norway?" → "Oslo"  0.2 s',
        '└─ 1 letters  "How many letters are in it?" → "4"  0.2 s',
        "   └─ 0 facts (above)",
    ]


def test_a_tree_shows_steps_that_no_step_reads_too():
    aside = (a_step(0, "facts", "Aside.", (), "x", at=0), a_step(1, "facts", "Answer.", (), "y", at=0))
    assert lines_of(a_trace(Round((), None, aside)), style="tree")[1:] == [
        '1 facts  "Answer." → "y"  0.2 s',
        '0 facts  "Aside." → "x"  0.2 s',
    ]


BUSY = Attempt("gpt-5", 0.1, error="429 too many requests")
TROUBLED = (
    a_step(0, "facts", "Begin.", (), "begun", at=0, took=2),
    StepRecord(
        1,
        "claude",
        "Go on.",
        (0,),
        reply=Reply("gone on"),
        attempts=(BUSY, BUSY, Attempt("claude", 1, Usage(5, 5), cost_usd=0.0123)),
        started_s=2,
        ended_s=3,
        planned_worker="gpt-5",
    ),
    StepRecord(2, "local", "Check.", (0,), "failed", error="local refused: is it up?", started_s=2, ended_s=2.5),
    StepRecord(3, "facts", "End.", (1, 2), "skipped", error="step 2 gave no result", started_s=3, ended_s=3),
)
TROUBLED_RUN = a_trace(
    Round(
        (
            DraftRecord("gym", "no\nplan", "lists", ended_s=0.5, error="model_id is missing"),
            DraftRecord("fixed", "…", "lists"),
        ),
        Plan((Step("facts", "Begin."),)),
        TROUBLED,
        fallback=True,
    ),
    status="failed",
    error="local refused: is it up?",
    error_kind="WorkerError",
    seconds=3.5,
)


def test_an_error_is_shown_in_its_own_words_below_the_step():
    assert lines_of(TROUBLED_RUN, width=100) == [
        "failed · ultra · gym · 3.5 s (critical path 3.0 s + plan 0.5 s) · 4 calls · 70 tokens · $0.012",
        Saying("✗ gym 0.5 model_id is missing"),
        '  "no plan"',
        Saying("↳"),
        '0 facts  █████████████████         2.0 s             "Begin." → "begun"',
        '1 claude                  ████████ 1.0 s  reads 0    "Go on." → "gone on"',
        Saying("↳ gpt-5: 429 too many requests 2"),
        Saying("↳ claude gpt-5"),
        '2 local                   ████     0.5 s  reads 0    "Check." ✗ failed',
        "  ✗ local refused: is it up?",
        '3 facts                                   reads 1 2  "End." – skipped',
        "  – step 2 gave no result",
        "failed: WorkerError: local refused: is it up?",
    ]


def test_an_unbilled_cost_is_called_notional():
    ours, theirs = WorkerInfo("smol", kind="local"), WorkerInfo("gpt-5", kind="openai")
    paid = (Attempt("smol", 1, cost_usd=0.002), Attempt("gpt-5", 1, cost_usd=0.5))
    for attempts, said in (
        (paid[:1], "$0.002 notional"),
        (paid[1:], "$0.500"),
        (paid, "$0.502 $0.002 notional"),
        ((), "$0"),
    ):
        step = StepRecord(0, "smol", "Say.", attempts=attempts)
        trace = msgspec.structs.replace(a_trace(Round((), None, (step,))), pool=(ours, theirs))
        assert says(cost_text(trace), said)
        assert ("notional" in cost_text(trace)) == ("notional" in said)
        assert cost_text(trace) in lines_of(trace, width=200)[0]


def test_a_call_that_overran_is_shown_below_its_step():
    step = StepRecord(0, "smol", "Say.", attempts=(Attempt("smol", 1, overran=True),))
    assert Saying("↳ smol") in lines_of(a_trace(Round((), None, (step,))))


def test_a_tree_keeps_its_branches_whole_beside_errors():
    assert lines_of(TROUBLED_RUN, width=100, style="tree")[4:-1] == [
        '3 facts  "End." – skipped',
        "│ – step 2 gave no result",
        '├─ 1 claude  "Go on." → "gone on"  1.0 s $0.012',
        Saying("│ ↳ gpt-5: 429 too many requests 2"),
        Saying("│ ↳ claude gpt-5"),
        '│  └─ 0 facts  "Begin." → "begun"  2.0 s',
        '└─ 2 local  "Check." ✗ failed  0.5 s',
        "   │ ✗ local refused: is it up?",
        "   └─ 0 facts (above)",
    ]


def test_rounds_share_one_axis_and_an_acceptance_is_said():
    first = (a_step(0, "facts", "Try.", (), "27", at=0, took=1),)
    second = (a_step(0, "numbers", "Repair.", (), "28", at=3, took=1),)
    trace = a_trace(Round((DRAFT,), NORWAY_PLAN, first), Round((DRAFT,), NORWAY_PLAN, second), Round((), Plan()))
    assert lines_of(trace, width=80)[1:] == [
        "round 1",
        '0 facts   █████                1.0 s  "Try." → "27"',
        "round 2",
        '0 numbers                █████ 1.0 s  "Repair." → "28"',
        "round 3",
        Saying("answer"),
    ]


def test_an_acceptance_by_a_program_is_not_worth_a_line():
    first = (a_step(0, "facts", "Try.", (), "27", at=0, took=1),)
    accepting = Round((DraftRecord("program", "", "lists"),), Plan())
    lines = lines_of(a_trace(Round((DRAFT,), NORWAY_PLAN, first), accepting), width=80)
    assert lines == lines_of(a_trace(Round((DRAFT,), NORWAY_PLAN, first)), width=80)


def test_a_later_rounds_tree_names_the_earlier_steps_that_it_read():
    first = (a_step(0, "facts", "Find.", (), "Oslo", at=0), a_step(1, "facts", "Say.", (0,), "It is Oslo", at=1))
    second = (a_step(2, "letters", "Count.", (0,), "4", at=2),)
    trace = a_trace(
        Round((DRAFT,), NORWAY_PLAN, first), Round((DRAFT,), Plan((Step("letters", "Count.", (0,)),), 2), second)
    )
    assert lines_of(trace, style="tree")[1:] == [
        "round 1",
        '1 facts  "Say." → "It is Oslo"  0.2 s',
        '└─ 0 facts  "Find." → "Oslo"  0.2 s',
        "round 2",
        '2 letters  "Count." → "4"  0.2 s',
        "└─ 0 facts (above)",
    ]
    assert [line[:1] for line in lines_of(trace)[1:]] == ["r", "0", "1", "r", "2"]
    assert "reads 0" in lines_of(trace)[-1]


def test_a_plan_of_a_later_round_is_drawn_with_its_numbers():
    plan = Plan((Step("facts", "Find.", (0,)), Step("facts", "Say.", (1, 3))), 3)
    drawn = draw_plan(plan).plain.splitlines()[1:]
    assert [(line.split()[0], line.split("←")[1].strip()) for line in drawn] == [("3", "0"), ("4", "1 3")]


def test_a_waiting_run_shows_its_tools_and_their_earlier_results():
    call = ToolCall("up", "weather", '{"at":"Oslo"}')
    traffic = (Message("assistant", "", tool_calls=(call,)), Message("tool", "rain", tool_call_id="up", name="weather"))
    asks = Reply("", tool_calls=(ToolCall("up2", "clock", "{}"),), finish="tool_calls")
    steps = (
        StepRecord(0, "facts", "Look.", (), "waiting", reply=asks, started_s=1, ended_s=2, tool_traffic=traffic),
        StepRecord(1, "letters", "Say.", (0,), "waiting"),
    )
    trace = a_trace(Round((DRAFT,), Plan((Step("facts", "Look."), Step("letters", "Say.", (0,)))), steps))
    trace = msgspec.structs.replace(trace, status="waiting", answer="", tool_calls=asks.tool_calls)
    assert lines_of(trace, width=90)[1:] == [
        Saying('0 facts ██████████████████████ 1.0 s "Look." waiting clock({})'),
        '  ↳ weather({"at":"Oslo"}) → "rain"',
        '1 letters                               reads 0  "Say." waiting',
        Saying("waiting clock"),
    ]


def test_a_run_cancelled_before_its_steps_shows_its_plan():
    trace = a_trace(Round((DRAFT,), NORWAY_PLAN), status="cancelled", error="the run was cancelled", answer="")
    assert lines_of(trace)[1:] == [
        Saying("3"),
        "cancelled: the run was cancelled",
    ]


def test_a_run_whose_middle_step_left_no_record_is_drawn_all_the_same():
    trace = a_trace(Round((DRAFT,), NORWAY_PLAN, (NORWAY[0], NORWAY[2])))
    assert [line.split()[0] for line in lines_of(trace)[1:]] == ["0", "2"]
    assert [line.split()[0] for line in lines_of(trace, style="tree")[1:]] == ["2", "0"]


def test_a_step_that_calls_tools_shows_the_calls():
    calls = Reply("", tool_calls=(ToolCall("1", "search", '{"q": "Oslo"}'),), finish="tool_calls")
    step = StepRecord(0, "facts", "Look it up.", reply=calls, ended_s=1)
    assert says(lines_of(a_trace(Round((), None, (step,))))[1], '"Look it up." → search({"q": "Oslo"})')


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_timeline_of_long_names_and_steps_that_read_others_is_no_wider_than_the_terminal(width: int):
    from rich.cells import cell_len

    asked, said = "What is the capital of Norway, and why? " * 3, "It is Oslo, and has been since 1314. " * 3
    steps = tuple(a_step(i, "claude-sonnet-5.5", asked, tuple(range(i)), said, at=i + 0.0, took=12.3) for i in range(4))
    lines = lines_of(a_trace(Round((), None, steps)), width=width)[1:]
    assert [line for line in lines if cell_len(line) > width] == []
    assert all("█" in line and line.count("…") >= 2 for line in lines)


@pytest.mark.parametrize("style", ["timeline", "tree"])
@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_long_and_wide_texts_are_cut_to_the_width(style: str, width: int):
    from rich.cells import cell_len

    step = a_step(0, "facts", "長い質問 " * 90, (), "very long reply " * 90, at=0)
    lines = lines_of(a_trace(Round((), None, (step,))), style=style, width=width)
    assert width - 4 <= cell_len(lines[1]) <= width
    assert lines[1].count("…") == 2


@pytest.mark.parametrize("style", ["timeline", "tree"])
def test_nothing_a_model_wrote_can_command_the_terminal(style: str):
    step = StepRecord(
        0,
        "facts",
        f"ask {HOSTILE}",
        reply=Reply(f"say {HOSTILE}"),
        attempts=(Attempt("facts", 1, error=HOSTILE),),
        error=HOSTILE,
        ended_s=1,
    )
    draft = DraftRecord(f"p{HOSTILE}", HOSTILE, "lists", error=HOSTILE)
    trace = a_trace(Round((draft,), None, (step,)), planner=HOSTILE, profile=HOSTILE, status="failed", error=HOSTILE)
    drawn = draw_trace(trace, style=style, width=400).plain  # type: ignore[arg-type]
    drawn += draw_plan(Plan((Step("facts", HOSTILE),))).plain
    assert "\\x1b[2J\\x1b]0;owned\\x07 \\u202eabc\\u2028 \\x9b31m \\x00 \\U000e0041" in drawn
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\U000e0041]", drawn)


def test_escape_keeps_lines_and_tabs_and_writes_the_rest_out():
    assert escape("a\n\tb\rc\x1b[31m\ud800 ß 😀") == "a\n\tb\\rc\\x1b[31m\\ud800 ß 😀"
    assert escape("👩\u200d👩\u200d👦") == "👩\u200d👩\u200d👦"


def test_one_line_closes_white_space_up_and_marks_a_cut():
    assert one_line("  a\n\n b\tc ") == "a b c"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("x" * 9000, 20) == "x" * 19 + "…"
    assert one_line("\n" * 5000 + "late", 20) == "…"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 ms"),
        (0.0371, "37 ms"),
        (0.2, "0.2 s"),
        (59.94, "59.9 s"),
        (59.96, "1 m 00 s"),
        (125, "2 m 05 s"),
    ],
)
def test_seconds_are_short(seconds: float, said: str):
    assert seconds_text(seconds) == said


@pytest.mark.parametrize(
    ("usd", "said"),
    [
        (0, "$0"),
        (0.021, "$0.021"),
        (1.534, "$1.53"),
        (1234.5, "$1,234.50"),
        (0.00042, "$0.00042"),
        (3e-7, "$0.0000003"),
    ],
)
def test_money_keeps_the_figures_that_count(usd: float, said: str):
    assert usd_text(usd) == said


def test_a_plan_shows_access_parallel_steps_and_the_price():
    plan = Plan(
        (
            Step("gemini-2.5-pro", "read the log, list the three likeliest causes"),
            Step("gpt-5", "inspect the code paths named in the log"),
            Step("claude-sonnet-4", "decide between the causes, give the fix", (0, 1)),
        )
    )
    infos = (WorkerInfo("gpt-5", price=Price(1.25, 10)), WorkerInfo("gemini-2.5-pro", price=Price()))
    assert draw_plan(plan, infos).plain.splitlines() == [
        "plan   3 steps, critical path 2",
        "  0  gemini-2.5-pro   read the log, list the three likeliest causes",
        "  1  gpt-5            inspect the code paths named in the log   (with 0)   $1.25/10 per M",
        "  2  claude-sonnet-4  decide between the causes, give the fix   ← 0 1",
    ]


def test_a_summary_shows_the_cost_and_the_command_for_details():
    assert draw_summary(a_trace()).plain == "4 calls · 214 tokens · 1.5 s · $0 · trace 7f3a9c21"


def test_a_drawing_has_no_colour_codes_without_a_terminal():
    file = io.StringIO()
    print_drawing(draw_trace(a_trace()), file=file)
    assert file.getvalue() == draw_trace(a_trace()).plain + "\n"
    assert width_of(file) == 100


def test_a_drawing_survives_an_encoding_without_its_characters():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    print_drawing(draw_trace(a_trace()), file=file)
    file.flush()
    assert b'0 facts   ########                  0.2 s           "What is the capital' in raw.getvalue()


EVENTS = (
    Drafted(0, DraftRecord("gym", "?", "lines", error="line 1 has no worker")),
    Drafted(0, DRAFT),
    Planned(0, NORWAY_PLAN),
    StepStarted(0, 0, "gpt-5"),
    StepReassigned(0, 0, "gpt-5", "facts", "gpt-5 429 after 2 retries"),
    StepStarted(0, 0, "facts"),
    StepDelta(0, 0, "Oslo"),
    StepEnded(0, NORWAY[0]),
    StepEnded(0, NORWAY[1]),
    StepDelta(0, 2, "2"),
    StepDelta(0, 2, "8\x1b[2J"),
)


def test_a_live_run_without_a_terminal_is_a_line_for_each_thing_that_happens():
    file = io.StringIO()
    clock = iter([0.0, 0.0, *(0.1 * n for n in range(1, 100))])
    with LiveRun(file=file, clock=lambda: next(clock)) as live:
        for event in (*EVENTS, StepEnded(0, NORWAY[2]), RunEnded(a_trace())):
            live(event)
    assert file.getvalue().splitlines() == [
        Saying("✗ gym line 1 has no worker"),
        "plan   3 steps, critical path 3 (0.3 s)",
        Saying("0 gpt-5 429 after 2 retries facts"),
        "  0  facts    What is the capital of Norway? → Oslo   0.2 s",
        "  1  letters  How many letters are in it? ← 0 → 4   0.2 s",
        "  2  numbers  What is it times 7? ← 1 → 28   0.2 s",
    ]


def test_a_failed_step_is_printed_even_without_a_terminal():
    file = io.StringIO()
    with LiveRun(file=file) as live:
        live(Planned(0, Plan((Step("local", "Check."),)), fallback=True))
        live(StepEnded(0, StepRecord(0, "local", "Check.", status="failed", error="local refused: is it up?")))
    assert re.sub(r"\(\d+ ms\)", "(0 ms)", file.getvalue()).splitlines() == [
        Saying("plan 1 0 ms"),
        "  0  local  Check.   failed",
        "     ✗ local refused: is it up?",
    ]


def progress_after(*events: object, now: float = 1.0) -> list[str]:
    state = Progress(since=0.0)
    for event in events:
        state = after(state, event, now)  # type: ignore[arg-type]
    return draw_progress(state, now + 1.5, width=80).plain.splitlines()


def test_a_terminal_shows_spinners_seconds_and_the_answer_as_it_streams():
    assert progress_after() == [Saying("⠋ 2.5")]
    assert progress_after(*EVENTS, StepStarted(0, 2, "numbers")) == [
        Saying("✗ gym line 1 has no worker"),
        "plan   3 steps, critical path 3 (1.0 s)",
        "  0  facts    What is the capital of Norway? → Oslo   0.2 s",
        Saying("↳ gpt-5 429 after 2 retries facts"),
        "  1  letters  How many letters are in it? ← 0 → 4   0.2 s",
        "  2  numbers  What is it times 7? ← 1   ⠋ 1.5 s",
        "  28\\x1b[2J",
    ]


def test_a_streamed_answer_that_another_takes_over_begins_anew():
    plan = Plan((Step("numbers", "Say."),))
    taken_over = StepReassigned(0, 0, "numbers", "facts", "cut")
    shown = progress_after(Planned(0, plan), StepDelta(0, 0, "half"), taken_over, StepDelta(0, 0, "whole"))
    assert shown[-1] == "  whole"


def test_the_streamed_answer_leaves_when_the_run_is_over():
    shown = progress_after(*EVENTS, StepEnded(0, NORWAY[2]), RunEnded(a_trace()))
    assert shown[-1] == "  2  numbers  What is it times 7? ← 1 → 28   0.2 s"


def test_a_second_round_is_shown_below_the_first():
    again = Plan((Step("numbers", "Repair."),))
    shown = progress_after(Planned(0, again), StepEnded(0, NORWAY[0]), Planned(1, again), StepStarted(1, 0, "n"))
    assert [line.split()[0] for line in shown] == ["plan", "0", "plan", "0"]
    later = Plan((Step("numbers", "Repair.", (0,)),), 1)
    record = msgspec.structs.replace(NORWAY[0], index=1)
    shown = progress_after(Planned(0, again), StepEnded(0, NORWAY[0]), Planned(1, later), StepEnded(1, record))
    assert [line.split()[0] for line in shown][:4] == ["plan", "0", "plan", "1"]
    assert "← 0" in shown[3], "the numbers of a later round count on"
    late = progress_after(Planned(1, later), StepEnded(1, record))
    assert "→ Oslo" in late[1]
    assert progress_after(Planned(0, again), Planned(1, Plan()))[-1] == Saying("plan answer 0 ms")


def test_a_worker_asked_without_a_plan_streams_too():
    assert progress_after(Delta("one\n"), Delta("two")) == ["  one", "  two"]


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_on_a_real_terminal_the_lines_are_redrawn_and_stay(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal, LiveRun(file=terminal) as live:
        for event in (*EVENTS, StepEnded(0, NORWAY[2]), RunEnded(a_trace())):
            live(event)
    shown = read_to_end(ours)
    assert "\x1b[?25l" in shown, "the cursor is hidden while lines are redrawn"
    assert "\x1b[?25h" in shown, "and given back"
    assert "\x1b[2J" not in shown, "what the model wrote did not clear the screen"
    assert "What is the capital of Norway?" in shown


def read_to_end(descriptor: int) -> str:
    """The bytes that a terminal got before its other end was closed, which Linux reports as an error."""
    chunks: list[bytes] = []
    with os.fdopen(descriptor, "rb", buffering=0) as terminal, suppress(OSError):
        while chunk := terminal.read(65536):
            chunks.append(chunk)
    return b"".join(chunks).decode()


def test_progress_without_a_reader_does_not_end_the_run():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8", buffering=1) as file:
        with LiveRun(file=file) as live:
            live(Planned(0, NORWAY_PLAN))
            live(StepEnded(0, NORWAY[0]))
        with pytest.raises(BrokenPipeError):
            file.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, writing)
        os.close(nowhere)


def test_a_program_that_ran_is_shown_before_its_reply():
    ran = Ran("a = 7\nprint(a * 11)", 0, "77\n", "", "landlock")
    step = msgspec.structs.replace(a_step(0, "coder", "Compute it.", (), "77", at=0), reply=Reply("77", ran=ran))
    said = "\n".join(lines_of(a_trace(Round((), Plan((Step("coder", "Compute it."),)), (step,)))))
    assert '"Compute it." → ran → "77"' in said
    assert says(said, "2 lines exit code 0 landlock")
    failed = Ran("1/0", None, "", "it was stopped after 10 s", "unconfined")
    step = msgspec.structs.replace(step, reply=Reply("The program failed.", ran=failed))
    said = "\n".join(lines_of(a_trace(Round((), Plan((Step("coder", "Compute it."),)), (step,)))))
    assert "→ ran, failed → " in said
    assert says(said, "1 line stopped unconfined")


def test_a_vote_shows_how_many_agree():
    step = msgspec.structs.replace(
        a_step(0, "vote", "Count.", (), "77", at=0), reply=Reply("77", chosen=Choice(1, 3, 4))
    )
    said = "\n".join(lines_of(a_trace(Round((), Plan((Step("vote", "Count."),)), (step,)))))
    assert '"Count." → 3 of 4 → "77"' in said
