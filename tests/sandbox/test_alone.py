"""Without bubblewrap a program is confined by its own walls, and every attack shows it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.facts import facts
from tests.sandbox.test_seccomp import column, interpret

from dirigent.sandbox import Profile, SandboxError, alone
from dirigent.sandbox.allow_list import (
    ALLOWED,
    FCNTL,
    FCNTL_COMMANDS,
    PRCTL,
    PRLIMIT,
    SOCKETPAIR,
    allow_list_program,
)
from dirigent.sandbox.alone import Alone, open_alone
from dirigent.sandbox.attacks import Attack, attacks_alone
from dirigent.sandbox.inside import landlock
from dirigent.sandbox.seccomp import ALLOW, ARCHITECTURES, CLONE, DENIED, ERRNO, SOCKETS
from dirigent.sandbox.selftest import attack_all, attack_at_once, withstands

REFUSED = ERRNO | errno.EPERM
SHARED = [attack for attack in attacks_alone() if attack.walls == "alone"]
HONEST = {
    "reads its input": ("print(open(0).read())", "hello"),
    "keeps files in its folder": (
        "import os, tempfile\nfolder = tempfile.mkdtemp()\nopen(folder + '/a', 'w').write('x')\n"
        "os.rename(folder + '/a', 'b')\nos.symlink('b', 'c')\nprint(open('c').read(), sorted(os.listdir('.')) != [])",
        "x True",
    ),
    "uses a database": (
        "import sqlite3\ndb = sqlite3.connect('db')\ndb.execute('create table a(b)')\ndb.commit()\nprint('ok')",
        "ok",
    ),
    "runs threads and a loop": (
        "import asyncio\nasync def main():\n"
        "    return sum(await asyncio.gather(*(asyncio.to_thread(abs, n) for n in range(9))))\n"
        "print(asyncio.run(main()))",
        "36",
    ),
    "knows dates": ("import datetime as d\nprint((d.date(2024, 3, 1) - d.date(2024, 2, 1)).days)", "29"),
    "draws at random": (
        "import random, secrets\nprint(len(secrets.token_hex(4)), random.Random(1).randint(1, 1))",
        "8 1",
    ),
    "uses devices": ("open('/dev/null', 'w').write('x')\nprint(len(open('/dev/urandom', 'rb').read(3)))", "3"),
    "imports sympy": ("from sympy import symbols, solve\nx = symbols('x')\nprint(solve(x - 7))", "[7]"),
}


@pytest.fixture
async def runner() -> AsyncIterator[Alone]:
    if not landlock.usable_abi(landlock.OLDEST_ALONE_ABI):
        pytest.skip("needs a kernel with landlock")
    async with open_alone(packages=("sympy", "mpmath")) as opened:
        yield opened


@pytest.fixture
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scratch folders in a folder of the test, and the one file elsewhere removed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    Path("/dev/shm/dirigent-own").unlink(missing_ok=True)


@pytest.mark.parametrize("attack", attacks_alone(), ids=lambda attack: attack.name)
async def test_it_contains(attack: Attack, runner: Alone) -> None:
    assert await withstands(runner, attack)


SILENT = ("start another program", "use a shared segment of others", "mark a file")
"""Attacks whose success leaves no word, or depends on the host."""


@pytest.mark.parametrize("attack", [a for a in SHARED if a.name not in SILENT], ids=lambda attack: attack.name)
async def test_without_the_walls_the_attack_would_get_through(attack: Attack, nothing_left: None) -> None:
    """Otherwise the attack would prove nothing. Each of these is harmless if it succeeds."""
    async with open_alone(confined=False) as free:
        assert not await withstands(free, attack)


async def test_the_self_test_of_a_start_finds_attacks_that_get_through(runner: Alone, nothing_left: None) -> None:
    assert await attack_at_once(runner) == await attack_all(runner) == []
    async with open_alone(confined=False) as free:
        harmless = _Some(free, tuple(attack for attack in SHARED if attack.name != "start another program"))
        found = await attack_at_once(harmless)
    assert {"signal its parent", "start a process", "read the environment of its parent"} <= set(found)


@pytest.mark.parametrize("name", HONEST)
async def test_an_honest_program_does_not_notice_it(name: str, runner: Alone) -> None:
    source, printed = HONEST[name]
    ran = await runner.run(source, stdin=b"hello")
    assert (ran.stdout.decode().strip(), ran.stderr) == (printed, b"")


async def test_a_program_starts_fast(runner: Alone) -> None:
    took = []
    for _ in range(5):
        began = time.monotonic()
        assert (await runner.run("print(1)")).stdout == b"1\n"
        took.append(time.monotonic() - began)
    assert min(took) < 0.2


async def test_the_host_sees_no_capability_and_every_wall(runner: Alone) -> None:
    running = asyncio.ensure_future(runner.run("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(1.5)"))
    pid = await _child_of(os.getpid())
    await asyncio.sleep(0.8)
    status = _status(pid)
    assert [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [0, 0, 0, 0]
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
    assert (await running).stdout.split() == [str(pid).encode()]


async def test_a_secret_of_this_process_reaches_no_program(runner: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "geheim-4711")
    home = Path(os.environ["HOME"])
    ran = await runner.run(
        "import os\nprint(dict(os.environ))\n"
        f"for path in ('/proc/self/environ', '/proc/{os.getpid()}/environ', {str(home)!r}):\n"
        "    try: print(open(path).read() if 'proc' in path else os.listdir(path))\n"
        "    except OSError as error: print(type(error).__name__)"
    )
    assert b"geheim-4711" not in ran.stdout
    assert ran.stdout.count(b"PermissionError") == 3


async def test_killing_its_parent_fails(runner: Alone) -> None:
    ran = await runner.run("import os, signal\nos.kill(os.getppid(), signal.SIGTERM)")
    assert b"PermissionError" in ran.stderr


async def test_a_program_ends_with_its_parent(tmp_path: Path) -> None:
    """The parent is killed and can clean nothing up."""
    if not landlock.usable_abi(landlock.OLDEST_ALONE_ABI):
        pytest.skip("needs a kernel with landlock")
    code = (
        "import asyncio\nfrom dirigent.sandbox.alone import open_alone\n"
        "async def main():\n    async with open_alone() as r:\n"
        "        await r.run('import time\\ntime.sleep(60)')\nasyncio.run(main())"
    )
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code), env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    pid = await _child_of(parent.pid)
    await asyncio.sleep(0.5)
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    for _ in range(100):
        if not _alive(pid):
            return
        await asyncio.sleep(0.05)
    pytest.fail("the program outlived its parent")


async def test_too_many_files_end_the_program_though_each_is_small(runner: Alone) -> None:
    ran = await runner.run("n = 0\nwhile True:\n    open(str(n), 'w').close()\n    n += 1")
    assert (ran.ended, ran.code) == ("flooded", -1)


async def test_a_program_that_ends_between_two_looks_and_wrote_too_much_has_no_output(
    runner: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone, "WATCH_S", 600)
    source = "for n in range(3): open(str(n), 'wb').write(bytes(1 << 20))\nprint('through')"
    ran = await runner.run(source, profile=Profile(scratch_bytes=2 << 20))
    assert (ran.ended, ran.code, ran.stdout) == ("flooded", -1, b"")


async def test_nothing_of_one_run_is_there_for_the_next(runner: Alone) -> None:
    first = await runner.run("import os\nopen('note', 'w').write('hello')\nprint(os.getcwd())")
    assert (await runner.run("import os\nprint(os.listdir('.'))")).stdout == b"[]\n"
    assert not _exists(first.stdout.decode().strip())


async def test_a_run_that_is_cancelled_leaves_no_process_and_no_folder(runner: Alone) -> None:
    run = asyncio.create_task(runner.run("while True: pass"))
    pid = await _child_of(os.getpid())
    folder = str(_folder_of(pid))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not _alive(pid)
    assert not _exists(folder)


async def test_a_program_that_waits_is_stopped_at_the_clock(runner: Alone) -> None:
    ran = await runner.run("import time\ntime.sleep(60)", profile=msgspec.structs.replace(Profile(), wall_s=0.3))
    assert (ran.ended, ran.code) == ("timeout", -1)


async def test_a_wall_that_cannot_be_put_up_stops_the_program(runner: Alone) -> None:
    (runner.folder / "filter.bpf").write_bytes(b"\0" * 8)
    with pytest.raises(SandboxError, match="never started"):
        await runner.run("print(1)")


async def test_an_old_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone.landlock, "usable_abi", lambda oldest: 0)
    with pytest.raises(SandboxError, match=facts("6.2 landlock")):
        async with open_alone():
            pytest.fail("opened")


@pytest.mark.parametrize("machine", list(ARCHITECTURES))
def test_the_filter_lets_through_its_list_and_nothing_that_the_other_filter_denies(machine: str) -> None:
    def decision(number: int, *arguments: int) -> int:
        return interpret(allow_list_program(machine), machine, number, *arguments)

    ours = ARCHITECTURES[machine].column
    listed = {numbers[ours] for numbers in ALLOWED.values()} - {None}
    with_arguments = {numbers[ours] for numbers in (SOCKETPAIR, FCNTL, PRCTL, PRLIMIT, CLONE)}
    for number in range(470):
        if number in listed:
            assert decision(number) == ALLOW
        elif number == 435:
            assert decision(number) == ERRNO | errno.ENOSYS
        elif number not in with_arguments:
            assert decision(number) == REFUSED, number
    assert not listed & {numbers[ours] for numbers in (DENIED | {"socket": SOCKETS["socket"]}).values()}


@pytest.mark.parametrize("machine", list(ARCHITECTURES))
@pytest.mark.parametrize(
    ("numbers", "arguments", "allowed"),
    [
        (SOCKETPAIR, (1, 1), True),
        (SOCKETPAIR, (1, 1 | 0o2000000), True),
        (SOCKETPAIR, (1, 2), False),
        (SOCKETPAIR, (2, 1), False),
        (CLONE, (0x003D0F00,), True),
        (CLONE, (17,), False),
        (CLONE, (0x003D0F00 | 0x20000,), False),
        (PRLIMIT, (0,), True),
        (PRLIMIT, (1,), False),
        (PRCTL, (15,), True),
        (PRCTL, (1,), False),
        (FCNTL, (3, 8), False),
        (FCNTL, (3, 10), False),
        *((FCNTL, (3, command), True) for command in FCNTL_COMMANDS),
    ],
)
def test_some_calls_pass_with_some_arguments_only(
    machine: str, numbers: tuple[int | None, int | None], arguments: tuple[int, ...], allowed: bool
) -> None:
    found = interpret(allow_list_program(machine), machine, column(machine, numbers), *arguments)
    assert found == (ALLOW if allowed else REFUSED)


class _Some:
    """A runner that counts only some attacks as its own."""

    def __init__(self, runner: Alone, attacks: tuple[Attack, ...]) -> None:
        self.attacks = attacks
        self.run = runner.run


async def _child_of(pid: int) -> int:
    for _ in range(200):
        if children := _children(pid):
            return children[-1]
        await asyncio.sleep(0.02)
    pytest.fail(f"{pid} started nothing")


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _alive(pid: int) -> bool:
    try:
        return not _status(pid)["State"].startswith("Z")
    except OSError:
        return False


def _folder_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/cwd").readlink()


def _exists(path: str) -> bool:
    return Path(path).exists()
