"""A role is a model with an instruction; a role that writes programs replies with their output."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dirigent import Conductor, Limits, Plan, Pool, Scripted, Step
from dirigent.errors import DirigentError, GradeError, WorkerError
from dirigent.messages import Delta, Message, Ran, Reply, Request, Result, Text, conversation
from dirigent.planners.fixed import Fixed
from dirigent.workers.metering import Metered
from dirigent.workers.role import Python, Role, RoleSettings, instructed, last_program, said_by
from dirigent.workers.worker import Price, WorkerInfo
from tests.facts import facts, says

THINK = RoleSettings(instruction="Think step by step.", temperature=0.7, max_output_tokens=400)
CODE = RoleSettings(instruction="Write a program.", runs="python")
BLOCK = "Here it is:\n```python\nprint(7 * 11)\n```\nIt prints the answer."


class Sandbox:
    """Stands in for the sandbox: every program ends the same way."""

    def __init__(self, outcome: Ran | Exception | Callable[[str], Ran]) -> None:
        self.outcome = outcome
        self.starts = 0
        self.programs: list[str] = []

    def start(self) -> None:
        self.starts += 1

    async def run(self, source: str) -> Ran:
        self.programs.append(source)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome(source) if callable(self.outcome) else self.outcome


def printing(output: str) -> Sandbox:
    return Sandbox(lambda source: Ran(source, 0, output, "", "landlock"))


def role(model: Scripted, settings: RoleSettings = THINK, *, programs: Sandbox | None = None, name: str = "r") -> Role:
    info = WorkerInfo(name, price=model.info.price, abilities=frozenset({"schema", "grammar", "seed", "stop"}))
    return Role(Metered(model), settings, info=info, programs=programs)


def asked(text: str = "How much is 7 times 11?", **fields: object) -> Request:
    return Request(conversation(text), **fields)  # type: ignore[arg-type]


async def test_the_instruction_follows_the_question_and_the_roles_sampling_wins() -> None:
    model = Scripted("77")
    await role(model).ask(asked(temperature=0.0, max_output_tokens=1000, grammar='root ::= "77"'))
    (request,) = model.requests
    assert request.messages == (Message("user", "How much is 7 times 11?\n\nThink step by step."),)
    assert (request.temperature, request.max_output_tokens, request.grammar) == (0.7, 400, 'root ::= "77"')


async def test_a_caller_may_lower_the_limit_and_a_draft_has_its_own() -> None:
    model = Scripted("77")
    await role(model).ask(asked(max_output_tokens=20))
    await role(model).ask(asked(max_output_tokens=1000, drafts=True))
    assert [request.max_output_tokens for request in model.requests] == [20, 1000]


def test_an_instruction_keeps_images_and_becomes_a_system_line_behind_a_tool() -> None:
    parts = Message("user", (Text("What is this?"),))
    assert instructed([parts], "Say it.")[0].content == (Text("What is this?"), Text("Say it."))
    tool = Message("tool", "rain", tool_call_id="1")
    assert instructed([parts, tool], "Say it.") == (Message("system", "Say it."), parts, tool)


async def test_calls_are_entered_under_the_roles_name_also_if_they_fail() -> None:
    price = Price(1.0, 1.0)
    good, bad = Scripted("77", name="qwen", price=price), Scripted(WorkerError("down"), name="qwen", price=price)
    reply = await role(good, name="thinker").ask(asked())
    assert [attempt.worker for attempt in reply.attempts] == ["thinker"]
    assert reply.cost_usd == reply.attempts[0].cost_usd > 0
    assert reply.attempts[0].usage == reply.usage
    with pytest.raises(WorkerError) as failed:
        await role(bad, name="thinker").ask(asked())
    assert [attempt.worker for attempt in failed.value.attempts] == ["thinker"]


async def test_a_program_is_run_and_its_last_line_is_the_reply() -> None:
    sandbox = printing("so:\n77\n")
    reply = await role(Scripted(BLOCK), CODE, programs=sandbox).ask(asked())
    assert (reply.text, sandbox.programs, sandbox.starts) == ("77", ["print(7 * 11)"], 1)
    assert reply.ran == Ran("print(7 * 11)", 0, "so:\n77\n", "", "landlock")


async def test_a_reply_without_a_code_block_is_the_answer_unchanged() -> None:
    sandbox = printing("77")
    reply = await role(Scripted("It is 77."), CODE, programs=sandbox).ask(asked())
    assert (reply.text, reply.ran, sandbox.programs) == ("It is 77.", None, [])


@pytest.mark.parametrize(
    ("ran", "said"),
    [
        (Ran("1/0", 1, "1\n", "Traceback …\nZeroDivisionError: division by zero\n"), "failed ZeroDivisionError"),
        (Ran("while 1: 0", None, "", "it was stopped after 10 s"), "failed stopped 10 s"),
        (Ran("x = 1", 0, " \n"), "printed nothing"),
        (Ran("exit(3)", 3, ""), "failed code 3"),
        (Ran("raise", 1, "", "x" * 5000), "failed"),
    ],
)
async def test_a_failure_of_the_program_is_a_short_reply_too(ran: Ran, said: str) -> None:
    reply = await role(Scripted(BLOCK), CODE, programs=Sandbox(ran)).ask(asked())
    assert says(reply.text, said)
    assert len(reply.text) < 400
    assert reply.ran == ran


async def test_a_sandbox_that_does_not_open_is_the_roles_failure_and_the_call_stays_paid() -> None:
    sandbox = Sandbox(GradeError("no walls hold here"))
    with pytest.raises(WorkerError, match=facts("walls coder")) as failed:
        await role(Scripted(BLOCK, price=Price(1, 1)), CODE, programs=sandbox, name="coder").ask(asked())
    assert isinstance(failed.value.__cause__, DirigentError)
    assert len(failed.value.attempts) == 1


async def test_only_the_printed_line_is_streamed() -> None:
    seen: list[str] = []
    worker = role(Scripted(BLOCK), CODE, programs=printing("a 77"))
    await worker.ask(asked(), observe=lambda event: seen.append(event.text if isinstance(event, Delta) else ""))
    assert "".join(seen) == "a 77"


@pytest.mark.parametrize(
    "fields", [{"grammar": "root ::= x"}, {"json_mode": True}, {"tools": ("x",)}], ids=lambda fields: next(iter(fields))
)
async def test_a_request_that_a_program_cannot_fulfil_is_refused_before_the_model_is_asked(
    fields: dict[str, object],
) -> None:
    model = Scripted(BLOCK)
    worker = role(model, CODE, programs=printing("77"))
    with pytest.raises(WorkerError):
        await worker.ask(asked(**fields))
    assert not model.requests
    assert worker.info.abilities == {"seed"}


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("no code", ""),
        ("```python\na = 1\n```\n```output\n1\n```", "a = 1"),
        ("```\nfirst\n```\nthen\n```\nsecond\n```", "second"),
        ("```py\nold\n```\nBetter:\n```python3\nnew\n```", "new"),
        ("  ```python\n  cut = 1", "  cut = 1"),
        ("`print(1)` alone", ""),
    ],
)
def test_the_last_python_block_is_the_program(text: str, program: str) -> None:
    assert last_program(text) == program


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("Sort these names alphabetically: Zoe, Ben", "Ben, Zoe"),
        ("List the prime numbers below 5.", "Ben, Zoe"),
        ("What are the first three squares?", "Ben, Zoe"),
        ("Who is the oldest of them?", "Zoe"),
        ("", "Zoe"),
    ],
)
def test_every_printed_line_is_an_item_where_a_list_is_asked_for(asked: str, said: str) -> None:
    assert said_by(Ran("", 0, "Ben\n\n  Zoe\n"), asked=asked) == said


async def test_a_role_replies_with_the_whole_list_that_its_program_printed() -> None:
    worker = role(Scripted(BLOCK), CODE, programs=printing("Ben\nZoe"))
    reply = await worker.ask(Request((Message("user", "Sort by alphabet: Zoe, Ben"),)))
    assert reply.text == "Ben, Zoe"


def test_a_long_last_line_is_whole() -> None:
    assert said_by(Ran("", 0, "x\n" + "9" * 1000)) == "9" * 1000


async def test_a_role_without_an_instruction_is_refused() -> None:
    with pytest.raises(ValueError, match="instruction"):
        RoleSettings(instruction="  ")


async def test_the_trace_shows_the_program_and_a_later_step_reads_it_as_data() -> None:
    seen: list[Request] = []

    def look(request: Request) -> Reply:
        seen.append(request)
        return Reply("done")

    coder = role(Scripted(BLOCK), CODE, programs=printing("77"), name="coder")
    pool = Pool([coder, Scripted(look, name="reader")])
    plan = Plan((Step("coder", "Compute it."), Step("reader", "Read it.", (0,))))
    trace = await Conductor(Fixed(plan), pool, limits=Limits()).run("How much is 7 times 11?")
    assert trace.steps[0].reply is not None
    assert trace.steps[0].reply.ran is not None
    (result,) = seen[0].results
    assert (result.text, result.ended) == ("77", True)
    assert result.ran is not None
    assert result.ran.printed


async def test_the_free_worker_runs_the_program_in_its_subtask_or_its_newest_result() -> None:
    sandbox = printing("77\n")
    worker = Python(sandbox)
    reply = await worker.ask(asked("Run this.\n```python\nprint(77)\n```"))
    assert (reply.text, reply.attempts, reply.cost_usd) == ("77", (), 0.0)
    old, new = (Result(n, "w", "x", f"```python\nprint({n})\n```") for n in (1, 2))
    await worker.ask(Request(conversation("Run it."), results=(old, new)))
    ran = Result(3, "coder", "x", "77", ran=Ran("print(3)", 0, "77"))
    await worker.ask(Request(conversation("Run it again."), results=(ran,)))
    assert sandbox.programs == ["print(77)", "print(2)", "print(3)"]


async def test_the_free_workers_error_without_a_program_names_its_need() -> None:
    with pytest.raises(WorkerError, match=facts("python no program code block")):
        await Python(printing("")).ask(asked("Run it."))
