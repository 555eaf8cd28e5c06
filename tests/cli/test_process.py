"""The command as a process of its own, against a real server: exit codes, clean stdout, Ctrl-C, quick help."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import sys
import termios
import time
from array import array
from pathlib import Path

import pytest

from tests.cli.conftest import Ran
from tests.facts import says
from tests.stub_provider import StubCall, StubProvider

KEY = "stub-key-0123456789abcdef"


def worker(name: str, url: str, *, kind: str = "openai") -> str:
    return (
        f'[[worker]]\nname = "{name}"\nkind = "{kind}"\nmodel = "m"\nbase_url = "{url}"\n'
        'api_key_env = "STUB_KEY"\nprice = { input = 1, output = 2 }\nretries = 0\n'
        "timeout = { connect_s = 1, first_byte_s = 30 }\n"
    )


SINGLE = '[profile.ultra]\nplanner = "single"\n'


async def started(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dirigent", *arguments,
        env=os.environ | {"STUB_KEY": KEY},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        preexec_fn=_in_the_foreground,
    )  # fmt: skip


def _in_the_foreground() -> None:
    """A suite that a shell started in the background has Ctrl-C switched off, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


async def ran(*arguments: str) -> Ran:
    process = await started(*arguments)
    out, err = await process.communicate()
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["traces list --json", "traces show", "traces export", "pool list", "--help"])
async def test_a_full_disk_under_stdout_is_one_line(own_place: Path, words: str, unbuffered: str) -> None:
    (own_place / "dirigent.toml").write_text('[[worker]]\nname = "w"\nkind = "scripted"\nreplies = ["x"]\n' + SINGLE)
    assert (await ran("ask", "hi")).code == 0
    process = await asyncio.create_subprocess_shell(
        f"{sys.executable} -m dirigent {words} > /dev/full",
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    assert process.returncode == 1
    (line,) = err.decode().splitlines()
    assert says(line, "error: stdout No space left")


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
async def test_each_wire_answers_with_one_object_on_stdout(own_place: Path, kind: str) -> None:
    async with StubProvider(key=KEY) as stub:
        (own_place / "dirigent.toml").write_text(worker("w", stub.url(kind), kind=kind) + SINGLE)  # type: ignore[arg-type]
        done = await ran("ask", "hello there", "--json")
    assert done.code == 0
    assert "hello there" in done.object["answer"]
    assert done.object["usage"]["calls"] == 1
    assert done.object["cost_usd"] > 0


async def test_a_question_that_is_no_utf_8_is_asked_with_marks(own_place: Path) -> None:
    async with StubProvider(key=KEY) as stub:
        (own_place / "dirigent.toml").write_text(worker("w", stub.url("openai")) + SINGLE)
        done = await ran("ask", "caf\udce9?", "--json")
        assert "caf\N{REPLACEMENT CHARACTER}?" in done.object["answer"]
        process = await asyncio.create_subprocess_shell(
            f"printf 'caf\\351?' | {sys.executable} -m dirigent ask -",
            env=os.environ | {"STUB_KEY": KEY, "PYTHONIOENCODING": "utf-8:strict"},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
    assert "caf\N{REPLACEMENT CHARACTER}?" in out.decode()


async def test_a_worker_with_a_cache_is_checked_by_asking_it(own_place: Path) -> None:
    async with StubProvider(key=KEY) as stub:
        cached = worker("w", stub.url("openai")) + "cache = true\ntemperature = 0\n"
        (own_place / "dirigent.toml").write_text(cached)
        up = await ran("pool", "check")
    down = await ran("pool", "check")
    assert (up.code, down.code) == (0, 1)


async def test_a_dead_worker_is_replaced_and_not_with_no_reassign(own_place: Path) -> None:
    async with StubProvider() as stub:
        dead, alive = worker("dead", stub.url("openai", fault="500")), worker("alive", stub.url("openai"))
        (own_place / "dirigent.toml").write_text(dead + alive + SINGLE)
        replaced = await ran("ask", "hello", "--json")
        failed = await ran("ask", "hello", "--json", "--no-reassign")
    assert (replaced.code, failed.code) == (0, 1)
    assert "hello" in replaced.object["answer"]
    assert failed.object["status"] == "failed"
    assert failed.object["answer"] == ""
    assert "dead" in failed.object["error"]
    assert "error: " in failed.err


async def test_the_key_is_shown_nowhere(own_place: Path) -> None:
    def leak(call: StubCall) -> str:
        return f"your key is {KEY}"

    async with StubProvider(leak, key=KEY) as stub:
        (own_place / "dirigent.toml").write_text(worker("w", stub.url("openai")) + SINGLE)
        asked = await ran("ask", "hello", "--json")
        kept = await ran("traces", "show", asked.object["trace_id"], "--json")
        listed = await ran("pool", "list", "--json")
    assert KEY not in kept.out + listed.out + asked.err
    assert all(KEY.encode() not in path.read_bytes() for path in (own_place / "home").rglob("*.db*"))


async def test_ctrl_c_cancels_the_call_reports_the_spending_and_keeps_the_trace(own_place: Path) -> None:
    async with StubProvider() as stub:
        stub.faults = ["first-byte-hang"]
        (own_place / "dirigent.toml").write_text(worker("w", stub.url("openai")) + SINGLE)
        process = await started("ask", "hello", "--json")
        while not stub.calls:  # noqa: ASYNC110 - the stub's journal has no event to wait for
            await asyncio.sleep(0.02)
        interrupted = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), 10)
        call = stub.calls[0]
    assert process.returncode == 130
    assert out == b""
    assert call.aborted_at is not None
    assert call.aborted_at - interrupted < 1.5
    assert re.search(rb"cancelled.*\$", err)
    assert b"Traceback" not in err
    kept = (await ran("traces", "list", "--json")).object["traces"]
    assert [row["status"] for row in kept] == ["cancelled"]


@pytest.mark.parametrize("command", ["ask", "plan"])
async def test_ctrl_c_ends_the_wait_for_a_question_from_stdin(own_place: Path, command: str) -> None:
    """Inside the loop the first Ctrl-C would only be noted, and the read go on."""
    (own_place / "dirigent.toml").write_text('[[worker]]\nname = "w"\nkind = "scripted"\nreplies = ["yes"]\n' + SINGLE)
    reads, writes = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dirigent", command, "-",
        stdin=reads, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        preexec_fn=_in_the_foreground,
    )  # fmt: skip
    os.write(writes, b"half a question")
    unread = array("i", [1])
    while unread[0]:  # until it reads, and waits for the other half
        await asyncio.sleep(0.02)
        fcntl.ioctl(reads, termios.FIONREAD, unread)
    process.send_signal(signal.SIGINT)
    out, _ = await asyncio.wait_for(process.communicate(), 10)
    os.close(reads)
    os.close(writes)
    assert (process.returncode, out) == (130, b"")


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("ask q --json 2>&-", 0, '{"answer":"yes"'),
        ("ask - <&-", 2, "error: "),
        ("pool list >&-", 0, ""),
    ],
)
async def test_a_closed_stream_is_an_empty_one(own_place: Path, line: str, code: int, said: str) -> None:
    (own_place / "dirigent.toml").write_text('[[worker]]\nname = "w"\nkind = "scripted"\nreplies = ["yes"]\n' + SINGLE)
    process = await asyncio.create_subprocess_shell(
        f"{sys.executable} -m dirigent {line}", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode == code
    assert out.decode().startswith(said)
    assert out.count(b"\n") == (1 if said else 0)


async def test_a_terminal_without_our_characters_is_given_plain_ones(own_place: Path) -> None:
    (own_place / "dirigent.toml").write_text(worker("w", "http://127.0.0.1:9/v1") + SINGLE)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dirigent", "plan", "q",
        env=os.environ | {"STUB_KEY": KEY, "PYTHONIOENCODING": "ascii"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, err = await process.communicate()
    assert re.match(rb"single - .*\$0", err)
    assert b"?" not in err


async def test_a_misspelt_option_is_exit_2_on_stderr() -> None:
    done = await ran("ask", "q", "--jsn")
    assert (done.code, done.out) == (2, "")
    assert "--jsn" in done.err


async def test_help_imports_nothing_heavy() -> None:
    heavy = ("aiohttp", "genai_prices", "rich", "sqlalchemy", "msgspec", "xllamacpp")
    program = "import sys, dirigent.cli; print([m for m in sys.argv[1:] if m in sys.modules])"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *heavy, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out == b"[]\n"


async def test_export_to_a_closed_pipe_ends_quietly(own_place: Path) -> None:
    (own_place / "dirigent.toml").write_text('[[worker]]\nname = "w"\nkind = "scripted"\nreplies = ["yes"]\n' + SINGLE)
    await ran("ask", "q")
    process = await asyncio.create_subprocess_shell(
        f"{sys.executable} -m dirigent traces export | head -c 1",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert out == b"{"
    assert b"Traceback" not in err


async def test_json_lines_of_an_export_are_all_there_is_on_stdout(own_place: Path) -> None:
    (own_place / "dirigent.toml").write_text('[[worker]]\nname = "w"\nkind = "scripted"\nreplies = ["yes"]\n' + SINGLE)
    for _ in range(2):
        await ran("ask", "q")
    done = await ran("traces", "export")
    assert [json.loads(line)["answer"] for line in done.out.splitlines()] == ["yes", "yes"]
