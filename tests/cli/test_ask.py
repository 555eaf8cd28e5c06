"""`dirigent ask` and `dirigent plan`, in process, over scripted workers."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from dirigent.cli.output import MAX_PIPED_CHARS, read_piped
from dirigent.planners import profile_planners
from tests.cli.conftest import POOL, Run
from tests.facts import says

pytestmark = pytest.mark.usefixtures("pool_file")


def test_the_answer_is_on_stdout_and_everything_else_on_stderr(run: Run) -> None:
    ran = run("ask", "what", "is", "it?")
    assert (ran.code, ran.out) == (0, "it is four\n")
    assert "find it" in ran.err
    assert re.search(r"4 calls · [\d,]+ tokens · .* · \$0\.\d+ · trace [0-9a-f]{8}", ran.err)


def test_json_is_exactly_the_documented_object(run: Run) -> None:
    ran = run("ask", "what is it?", "--json")
    assert ran.code == 0
    told = ran.object
    assert list(told) == ["answer", "trace_id", "plan", "usage", "cost_usd", "notional_usd", "seconds"]
    assert told["answer"] == "it is four"
    assert told["plan"] == [
        {"worker": "finder", "subtask": "find it", "access": []},
        {"worker": "sayer", "subtask": "say it", "access": [0]},
    ]
    assert set(told["usage"]) == {
        "input_tokens", "output_tokens", "orchestration_input_tokens", "orchestration_output_tokens", "calls",
    }  # fmt: skip
    assert told["usage"]["calls"] == 4
    assert told["cost_usd"] > 0


def test_a_dash_reads_the_question_from_stdin(run: Run) -> None:
    told = run("ask", "-", "--json", input="line one\nline two").object
    shown = run("traces", "show", told["trace_id"], "--json").object
    assert shown["question"] == [{"role": "user", "content": "line one\nline two"}]


def test_piped_text_is_read_after_the_question_and_said_in_the_trace(run: Run) -> None:
    told = run("ask", "Summarise", "this", "--json", input="line one\nline two\n").object
    shown = run("traces", "show", told["trace_id"], "--json").object
    assert shown["question"] == [{"role": "user", "content": "Summarise this\n\nline one\nline two\n"}]
    assert [note for note in shown["notes"] if "18 characters" in note and "stdin" in note]


def test_a_plan_reads_piped_text_as_well(run: Run) -> None:
    empty, long = run("plan", "q", "--json", input=""), run("plan", "q", "--json", input="word " * 40_000)
    assert long.object["estimate_usd"]["high"] > empty.object["estimate_usd"]["high"]


@pytest.mark.parametrize("piped", ["", " \n"])
def test_nothing_piped_changes_nothing(run: Run, piped: str) -> None:
    told = run("ask", "what is it?", "--json", input=piped).object
    shown = run("traces", "show", told["trace_id"], "--json").object
    assert shown["question"] == [{"role": "user", "content": "what is it?"}]
    assert not shown.get("notes")


def test_a_terminal_and_a_closed_stdin_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    closed = io.StringIO("text")
    closed.close()
    for stdin in (Terminal("text"), closed, None):
        monkeypatch.setattr("sys.stdin", stdin)
        assert read_piped(["what?"]) == ""


def test_piped_text_is_bounded(run: Run) -> None:
    ran = run("ask", "Summarise", input="x" * (MAX_PIPED_CHARS + 1))
    assert ran.code == 2
    assert f"{MAX_PIPED_CHARS:,}" in ran.err


def test_no_question_is_a_usage_error(run: Run) -> None:
    ran = run("ask", "-", input=" \n")
    assert ran.code == 2
    assert ran.err.startswith("error: ")


def test_the_profile_and_the_planner_are_chosen_by_options(run: Run) -> None:
    assert run("ask", "q", "--profile", "mini", "--json").object["plan"][0]["worker"] == "sayer"
    told = run("ask", "q", "--planner", "single", "--worker", "finder", "--json").object
    assert (told["answer"], told["usage"]["calls"]) == ("four", 1)


@pytest.mark.parametrize("command", ["ask", "plan"])
def test_help_names_every_planner_that_the_option_takes(run: Run, command: str) -> None:
    shown = run(command, "--help").out.partition("--planner <str>")[2].partition("--worker")[0]
    assert set(re.findall(r"[a-z]+", shown)) - {"or"} == set(profile_planners())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--profile", "ulta"], "ulta ultra"),
        (["--planner", "vot"], "vot vote"),
        (["--planner", "conducter"], "conducter conductor"),
        (["--planner", "x"], " ".join(profile_planners())),
        (["--planner", "conductor"], "conductor planner_worker --worker"),
        (["--worker", "findr"], "findr finder"),
        (["--max-steps", "99"], "max_steps 1 32 99"),
        (["--deadline", "0"], "deadline_s 0"),
        (["--max-cost", "-1"], "max_cost_usd 0"),
        (["--rounds", "9"], "max_rounds 1 8 9"),
        (["--plan", "none.json"], "none.json"),
        (["--config", "none.toml"], "none.toml dirigent init --path"),
    ],
)
def test_a_wrong_option_is_exit_2_and_one_line_that_names_the_fix(run: Run, options: list[str], said: str) -> None:
    ran = run("ask", "q", *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert says(ran.err, said)
    assert "Traceback" not in ran.err


def test_a_refused_command_with_json_still_prints_one_object(run: Run) -> None:
    ran = run("ask", "q", "--profile", "none", "--json")
    assert ran.code == 2
    assert says(ran.object["error"], "none")


def test_a_cost_cap_refuses_a_worker_without_a_price(run: Run, pool_file: Path) -> None:
    body = 'kind = "openai"\nmodel = "m"\nbase_url = "http://127.0.0.1:1/v1"\n'
    pool_file.write_text(POOL + f'[[worker]]\nname = "my-vllm"\n{body}')
    ran = run("ask", "q", "--max-cost", "0.2")
    assert ran.code == 2
    assert says(ran.err, "my-vllm price")


def test_a_run_over_its_cap_fails_and_reports_its_spending(run: Run) -> None:
    ran = run("ask", "q", "--profile", "mini", "--max-cost", "0.0000001", "--json")
    assert ran.code == 1
    told = ran.object
    assert told["status"] == "failed"
    assert "$" in told["error"]
    assert re.search(r"\$0.* [0-9a-f]{8} .*`dirigent traces show [0-9a-f]{8}`", ran.err)


PLANS = {
    "json": '{"steps":[{"id":"0","models":["finder"],"prompt":"find","access_list":[]}]}',
    "lists": 'model_id = [1]\nsubtasks = ["find"]\naccess_list = [[]]',
    "lines": "find | finder 1 | -",
}


@pytest.mark.parametrize("dialect", PLANS)
def test_a_plan_by_hand_is_carried_out_in_any_dialect(run: Run, own_place: Path, dialect: str) -> None:
    (own_place / "plan.txt").write_text(PLANS[dialect])
    told = run("ask", "q", "--plan", "plan.txt", "--json").object
    assert told["answer"] == "four"
    assert told["plan"] == [{"worker": "finder", "subtask": "find", "access": []}]


def test_an_invalid_plan_by_hand_is_exit_2(run: Run, own_place: Path) -> None:
    (own_place / "plan.txt").write_text("find | nobody | -")
    ran = run("ask", "q", "--plan", "plan.txt")
    assert ran.code == 2
    assert "nobody" in ran.err


def test_trace_draws_the_run_below_the_answer(run: Run) -> None:
    ran = run("ask", "q", "--trace")
    assert ran.out == "it is four\n"
    assert '"say it" → "it is four"' in ran.err


def test_a_store_that_fails_costs_a_warning_and_not_the_answer(
    run: Run, own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_place / "file").write_text("")
    monkeypatch.setenv("DIRIGENT_HOME", str(own_place / "file"))
    ran = run("ask", "q")
    assert (ran.code, ran.out) == (0, "it is four\n")
    assert says(ran.err, "warning:")


def test_a_key_that_is_missing_is_named_with_its_line_before_anyone_is_asked(run: Run, pool_file: Path) -> None:
    pool_file.write_text(POOL + '\n[[worker]]\npreset = "gpt-5"\n')
    ran = run("ask", "q")
    line = POOL.count("\n") + 2
    assert ran.code == 2
    assert says(ran.err, f"gpt-5 OPENAI_API_KEY dirigent.toml {line}")
    assert run("pool", "list").code == 0


def test_plan_shows_the_plan_and_calls_no_worker_but_the_planner(run: Run) -> None:
    ran = run("plan", "q")
    assert ran.code == 0
    assert says(ran.out, "2 steps")
    assert re.search(r"\$0\.\d+–\$0\.\d+", ran.err)
    assert run("traces", "list", "--json").object == {"traces": []}


def test_plan_json_holds_plan_critical_path_and_estimate(run: Run) -> None:
    told = run("plan", "q", "--json").object
    assert [step["worker"] for step in told["plan"]] == ["finder", "sayer"]
    assert told["critical_path"] == 2
    assert 0 < told["estimate_usd"]["low"] <= told["estimate_usd"]["high"]


def test_a_planned_plan_can_be_carried_out_as_it_is(run: Run, own_place: Path) -> None:
    (own_place / "plan.txt").write_text(run("plan", "q", "--dialect", "lines").out)
    assert run("ask", "q", "--plan", "plan.txt").out == "it is four\n"


def test_an_unknown_dialect_is_exit_2(run: Run) -> None:
    ran = run("plan", "q", "--dialect", "line")
    assert ran.code == 2
    assert says(ran.err, "line lines")
