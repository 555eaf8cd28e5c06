"""Programs: run a worker's program under the strongest walls of this machine, and report those walls.

    bubblewrap   namespaces, mounts and everything else (`box.py`)
    landlock     what a process can put up around itself (`alone.py`), where bubblewrap is missing or may not be used
    unconfined   limits of time and memory alone; only if the user's configuration says so

A runner is attacked before it runs a first program. Where no walls hold, no program runs, and the error says why.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from contextlib import AsyncExitStack
from typing import Literal, Protocol

from dirigent.errors import ConfigError
from dirigent.messages import Ran
from dirigent.sandbox import launch
from dirigent.sandbox.alone import open_alone
from dirigent.sandbox.box import open_untested
from dirigent.sandbox.inside import landlock
from dirigent.sandbox.launch import SandboxError
from dirigent.sandbox.profile import Profile
from dirigent.sandbox.selftest import Runner, attack_at_once

log = logging.getLogger(__name__)

Confinement = Literal["confined", "unconfined"]

PACKAGES = ("sympy", "mpmath")
"""Packages that programs may import beside the standard library: pure Python, and models like to use them."""
END_CHARS = 2000
"""As much of a program's output as is kept for its reply and its trace."""
UNCONFINED_KEY = 'programs = "unconfined"'


class ProgramRunner(Runner, Protocol):
    """A runner that names its walls."""

    level: str
    """bubblewrap, landlock or unconfined."""

    @property
    def stamp(self) -> str: ...


class Programs:
    """Runs programs one by one or several at once. It opens on first use; `close()` it at the end."""

    def __init__(self, confinement: Confinement = "confined", *, profile: Profile | None = None) -> None:
        self._confinement = confinement
        self._profile = profile or Profile()
        self._opening: asyncio.Task[ProgramRunner] | None = None
        self._stack = AsyncExitStack()

    def start(self) -> None:
        """Starts to open the sandbox, so that its self-test runs while a model still writes."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())

    async def run(self, source: str) -> Ran:
        """Runs a program and returns how it ended; raises `SandboxError` if no walls hold on this machine."""
        runner = await self._runner()
        ran = await runner.run(source, profile=self._profile)
        return Ran(
            program=source,
            exit_code=ran.code if ran.ended == "exited" else None,
            output=_end(ran.stdout),
            error=_end(ran.stderr) if ran.ended == "exited" else _why(ran, self._profile),
            confined_by=runner.level,
        )

    async def walls(self) -> str:
        """Returns the walls in one line, after the self-test; raises `SandboxError` if no walls hold."""
        return (await self._runner()).stamp

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        await self._stack.aclose()

    async def _runner(self) -> ProgramRunner:
        self.start()
        assert self._opening is not None
        await asyncio.wait({self._opening})  # a caller that is cancelled does not take the opening with it
        return self._opening.result()

    async def _open(self) -> ProgramRunner:
        if self._confinement == "unconfined":
            return await self._stack.enter_async_context(open_alone(confined=False, packages=PACKAGES))
        refused = []
        for opened in (open_untested(packages=PACKAGES), open_alone(packages=PACKAGES)):
            stack = AsyncExitStack()
            try:
                runner: ProgramRunner = await stack.enter_async_context(opened)
                if through := await attack_at_once(runner):
                    raise SandboxError(f"{', '.join(through)} got through ({runner.stamp})")
            except (SandboxError, ConfigError, OSError) as error:
                await stack.aclose()
                refused.append(str(error))
                continue
            except BaseException:
                await stack.aclose()
                raise
            self._stack.push_async_callback(stack.aclose)
            log.info("programs of workers run behind: %s", runner.stamp)
            return runner
        raise SandboxError(f"no program can be run here: {'; '.join(refused)}. {_fix()}")


def confinement_problem() -> str:
    """Returns why this machine cannot confine a program, with the fix; empty if it looks as if it can.

    It starts nothing. Whether the walls hold is tried before the first program (`Programs`).
    """
    if shutil.which("bwrap") is not None or landlock.usable_abi(landlock.OLDEST_ALONE_ABI):
        return ""
    return f"this machine can confine no program: it has neither bubblewrap nor a Linux of 6.2 with landlock. {_fix()}"


def _fix() -> str:
    return (
        "Install bubblewrap, or let programs that models write run with all your rights: put  "
        f"{UNCONFINED_KEY}  under [sandbox]"
    )


def _end(data: bytes) -> str:
    return data.decode(errors="replace")[-END_CHARS:]


def _why(ran: launch.Ran, profile: Profile) -> str:
    if ran.ended == "timeout":
        return f"it was stopped after {profile.wall_s:g} s"
    return "it was stopped because it wrote too much"
