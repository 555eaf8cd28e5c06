"""Every attack is contained, seen from inside and, where it matters, from the host."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tests.facts import facts
from tests.programs import need

from dirigent.sandbox import Profile, Ran, Sandbox, SandboxError, box, open_sandbox
from dirigent.sandbox.attacks import ATTACKS, Attack, attacks_on
from dirigent.sandbox.inside.landlock import NEWEST_ABI
from dirigent.sandbox.launch import launched
from dirigent.sandbox.profile import FIRST_UID
from dirigent.sandbox.selftest import attack_all, attack_at_once, withstands

pytestmark = pytest.mark.system


def test_there_are_at_least_forty_attacks_of_every_kind_and_no_two_alike() -> None:
    assert len({attack.name for attack in ATTACKS}) == len({attack.source for attack in ATTACKS}) == len(ATTACKS) >= 40
    assert {attack.kind for attack in ATTACKS} == {
        "files", "network", "processes", "kernel", "privileges", "exhaustion",
    }  # fmt: skip


@pytest.mark.parametrize("attack", attacks_on(NEWEST_ABI), ids=lambda attack: attack.name)
async def test_the_sandbox_contains(attack: Attack, sandbox: Sandbox) -> None:
    if attack.landlock_abi > sandbox.landlock_abi:
        pytest.skip(f"needs landlock ABI {attack.landlock_abi}, and this kernel has {sandbox.landlock_abi}")
    assert await withstands(sandbox, attack)


@pytest.mark.parametrize("module", ["answer", "tests", "program"])
async def test_the_host_sees_no_root_and_another_user_for_each_program(sandbox: Sandbox, module: str) -> None:
    uid = FIRST_UID + 7 if os.getuid() == 0 else None
    async with launched(sandbox.walls, f"dirigent.sandbox.inside.{module}", uid=uid) as child:
        seen = {_uid(pid) for pid in _descendants(child.process.pid)}
    assert seen == {os.getuid() if uid is None else uid}
    assert 0 not in seen


async def test_a_process_left_behind_is_gone_when_the_program_is(
    sandbox: Sandbox, wait_until: Callable[..., Awaitable[None]]
) -> None:
    name = secrets.token_hex(6)  # of its own: other programs may run on this machine meanwhile
    call_itself = f"ctypes.CDLL(None).prctl(15, b'{name}')"
    child = f"os.setsid()\n    {call_itself}\n    time.sleep(60)"
    running = asyncio.ensure_future(
        sandbox.run(f"import ctypes, os, time\nif os.fork() == 0:\n    {child}\ntime.sleep(1)\nprint('done')")
    )
    await wait_until(lambda: bool(_named(name)))
    ran = await running
    assert (ran.ended, ran.stdout) == ("exited", b"done\n")
    assert not _named(name)


async def test_nothing_of_one_run_is_there_for_the_next(sandbox: Sandbox) -> None:
    await sandbox.run("open('/tmp/note', 'w').write('hello')")
    assert (await sandbox.run("import os\nprint(os.listdir('/tmp'))")).stdout == b"[]\n"


async def test_a_run_that_is_cancelled_leaves_no_process_and_no_group(sandbox: Sandbox) -> None:
    run = asyncio.create_task(sandbox.run("while True: pass"))
    await asyncio.sleep(0.3)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    for hierarchy in sandbox.walls.groups:
        assert not list(hierarchy.folder.glob(f"dirigent-{os.getpid()}-*"))


async def test_output_is_cut_at_the_limit(sandbox: Sandbox) -> None:
    small = msgspec.structs.replace(Profile(), output_bytes=1000)
    ran = await sandbox.run("print('x' * 5000)", profile=small)
    assert (ran.ended, len(ran.stdout), ran.code) == ("flooded", 1000, -1)


async def test_a_program_that_raises_says_so_on_stderr_and_in_its_code(sandbox: Sandbox) -> None:
    ran = await sandbox.run("raise ValueError('no')")
    assert (ran.ended, ran.code) == ("exited", 1)
    assert b"ValueError: no" in ran.stderr


async def test_opening_a_sandbox_attacks_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    need("bwrap")
    tried: list[str] = []

    async def note(sandbox: Sandbox) -> list[str]:
        tried.append("attacked")
        return []

    monkeypatch.setattr(box, "attack_all", note)
    async with open_sandbox() as opened:
        assert tried == ["attacked"]
        assert (await opened.run("print(1)")).stdout == b"1\n"


async def test_a_sandbox_that_an_attack_gets_through_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    need("bwrap")

    async def leaky(sandbox: Sandbox) -> list[str]:
        return ["become root"]

    monkeypatch.setattr(box, "attack_all", leaky)
    with pytest.raises(SandboxError, match=facts("root bubblewrap")):
        async with open_sandbox():
            pytest.fail("opened")


class Says:
    """A sandbox whose every program ends the same way."""

    attacks = ATTACKS

    def __init__(self, stdout: bytes) -> None:
        self._stdout = stdout

    async def run(self, source: str, *, stdin: bytes = b"", profile: Profile | None = None) -> Ran:
        return Ran("exited", 0, self._stdout, b"", 0.0)


@pytest.mark.parametrize("said", [b"through\n", b"", b"began\nthrough\n"])
async def test_the_self_test_trusts_neither_success_nor_silence(said: bytes) -> None:
    assert len(await attack_all(Says(said))) == len(ATTACKS)


@pytest.mark.parametrize("said", [b"0\nthrough\n", b"", b"began\nthrough\n", b"0\nPermissionError\n"])
async def test_the_brief_self_test_trusts_neither_success_nor_silence(said: bytes) -> None:
    brief = [attack.name for attack in ATTACKS if not attack.exhausts]
    assert [name for name in await attack_at_once(Says(said)) if name in brief] == brief


class EndedEarly(Says):
    """A busy host that ends the joined program early, and contains every attack that is tried alone."""

    def __init__(self) -> None:
        super().__init__(b"held\n")
        self.runs = 0

    async def run(self, source: str, *, stdin: bytes = b"", profile: Profile | None = None) -> Ran:
        self.runs += 1
        if self.runs == 1:
            return Ran("timeout", -1, b"0\nheld\n1\n", b"", 10.0)
        return await super().run(source, stdin=stdin, profile=profile)


async def test_an_attack_that_a_busy_host_cut_off_is_tried_again_alone() -> None:
    busy = EndedEarly()
    single = len([attack for attack in ATTACKS if attack.exhausts])
    assert await attack_at_once(busy) == [attack.name for attack in ATTACKS if attack.exhausts]
    assert busy.runs == 1 + single + (len(ATTACKS) - single - 1)


async def test_without_bubblewrap_the_sandbox_refuses_and_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match=facts("bwrap bubblewrap")):
        async with open_sandbox():
            pytest.fail("opened")


async def test_a_wall_that_cannot_be_put_up_is_an_error_and_no_wrong_answer(sandbox: Sandbox) -> None:
    seen = msgspec.structs.replace(sandbox.walls.seen, inside=Path("/nowhere"))
    broken = Sandbox(msgspec.structs.replace(sandbox.walls, seen=seen), slots=1)
    with pytest.raises(SandboxError, match="/nowhere"):
        await broken.run("print(1)")
    with pytest.raises(SandboxError):
        await broken.judge("x = 1", tests="pass", names=())


def _named(name: str) -> list[int]:
    """Processes of the host that call themselves so."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # gone meanwhile
            if path.read_text().strip() == name:
                found.append(int(path.parent.name))
    return found


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(word) for word in children.read_text().split()]
    return found


def _uid(pid: int) -> int:
    return next(int(line.split()[1]) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "Uid:" in line)
