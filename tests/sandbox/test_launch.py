"""A program's time begins when it runs, however long a busy host took to start it."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.facts import facts

from dirigent.sandbox import Profile, SandboxError, launch
from dirigent.sandbox.attacks import ATTACKS
from dirigent.sandbox.groups import make_group
from dirigent.sandbox.inside.channel import READY
from dirigent.sandbox.launch import Child, Ran, finished
from dirigent.sandbox.selftest import attack_all

QUICK = Profile(wall_s=0.3)
SAY_READY = f"printf {READY.decode()}"


async def ran(shell: str, *, profile: Profile = QUICK) -> Ran:
    """A program of the shell in a sandbox's place, since none starts slowly when it should."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", shell, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    child = Child(process, make_group((), profile))
    try:
        return await finished(child, profile=profile)
    finally:
        await child.end()


async def test_time_that_a_busy_host_took_to_start_a_program_is_not_the_programs() -> None:
    found = await ran(f"sleep 0.8; {SAY_READY}; echo done")
    assert (found.ended, found.stdout) == ("exited", b"done\n")
    assert found.seconds < 0.8


async def test_a_program_that_has_started_has_its_own_time_and_no_more() -> None:
    began = time.monotonic()
    found = await ran(f"{SAY_READY}; echo began; sleep 30")
    assert (found.ended, found.stdout) == ("timeout", b"began\n")
    assert time.monotonic() - began < launch.START_LIMIT_S


async def test_one_that_never_starts_is_a_broken_sandbox_and_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "START_LIMIT_S", 0.2)
    with pytest.raises(SandboxError, match=facts("timeout")):
        await ran("sleep 30")


class Breaks:
    """A sandbox that fails at its second program while the others run."""

    attacks = ATTACKS

    def __init__(self) -> None:
        self.asked = 0
        self.running = 0

    async def run(self, source: str, *, stdin: bytes = b"", profile: Profile | None = None) -> Ran:
        self.asked += 1
        if self.asked == 2:
            raise SandboxError("it does not start")
        self.running += 1
        try:
            await asyncio.sleep(60)
        finally:
            self.running -= 1
        raise AssertionError("this wait must not end")


async def test_a_self_test_that_breaks_leaves_no_attack_running() -> None:
    sandbox = Breaks()
    with pytest.raises(SandboxError, match="it does not start"):
        await attack_all(sandbox)
    assert sandbox.running == 0
