"""Sandbox: run programs that models wrote. Refuses to exist where it cannot be safe.

    async with open_sandbox() as sandbox:
        ran = await sandbox.run("print(input()[::-1])", stdin=b"abc")
        verdict = await sandbox.judge(source, tests="assert add(1, 2) == 3", names=("add",))

Opening it attacks it: every attack of `attacks.py` is run, and if one gets through, or bubblewrap or user namespaces
are missing, there is no sandbox but a `SandboxError`. Nothing falls back to running code unprotected.
"""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from dirigent.sandbox.groups import hierarchies
from dirigent.sandbox.inside import landlock, literals
from dirigent.sandbox.interpreter import find_interpreter
from dirigent.sandbox.launch import Child, Ran, SandboxError, Walls, finished, launched, stamp
from dirigent.sandbox.profile import FIRST_UID, INSIDE, Profile, Seen
from dirigent.sandbox.seccomp import seccomp_program
from dirigent.sandbox.selftest import attack_all

log = logging.getLogger(__name__)


class Verdict(msgspec.Struct, frozen=True):
    passed: bool
    why: str = ""
    """What failed first, for people; nothing is decided on it."""
    lost: bool = False
    """The answer was never started, so nothing is known of it."""


@contextlib.asynccontextmanager
async def open_sandbox(profile: Profile | None = None, *, slots: int | None = None) -> AsyncIterator[Sandbox]:
    """A sandbox that has withstood every attack we know, just now, on this machine."""
    async with open_untested(profile, slots=slots) as sandbox:
        through = await attack_all(sandbox)
        if through:
            raise SandboxError(
                f"the sandbox does not hold on this machine: {', '.join(through)} got through; nothing was graded. "
                "Use a host with bubblewrap 0.8 or newer, user namespaces and Linux 5.14 or newer"
            )
        log.log(logging.INFO if sandbox.landlock_abi else logging.WARNING, "sandbox: %s", sandbox.stamp)
        yield sandbox


@contextlib.asynccontextmanager
async def open_untested(profile: Profile | None = None, *, slots: int | None = None) -> AsyncIterator[Sandbox]:
    """The same without the attacks: for the tests, which run them one by one."""
    _need_programs()
    interpreter, also = find_interpreter()
    with tempfile.TemporaryDirectory(prefix="dirigent-sandbox-") as name:
        folder = Path(name)
        _furnish(folder)
        walls = Walls(
            profile=profile or Profile(),
            seen=Seen(interpreter, folder / "box", also),
            filter_path=folder / "filter.bpf",
            groups=hierarchies(),
            landlock_abi=landlock.usable_abi(),
        )
        yield Sandbox(walls, slots=slots or len(os.sched_getaffinity(0)))


class Sandbox:
    """So many programs at once, each in walls of its own; two for a judged answer."""

    def __init__(self, walls: Walls, *, slots: int) -> None:
        self.walls = walls
        self.slots = slots
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for slot in range(slots):
            self._free.put_nowait(slot)

    @property
    def landlock_abi(self) -> int:
        return self.walls.landlock_abi

    @property
    def stamp(self) -> str:
        """Which walls stand around every program, in one line: for results to carry."""
        return stamp(self.walls)

    async def run(self, source: str, *, stdin: bytes = b"", profile: Profile | None = None) -> Ran:
        """A whole program: bytes in, bytes out. What they should have been is the caller's business."""
        walls = msgspec.structs.replace(self.walls, profile=profile or self.walls.profile)
        async with self._slot() as slot:
            pipe = asyncio.subprocess.PIPE
            uid = _uid(2 * slot)
            async with launched(walls, f"{INSIDE}.program", uid=uid, stderr=pipe) as child:
                return await finished(child, profile=walls.profile, stdin=_frame(source) + stdin)

    async def judge(self, source: str, *, tests: str, names: tuple[str, ...], preamble: str = "") -> Verdict:
        """Whether `tests` pass against `source`, which stays in a sandbox of its own and never meets them.

        `names` are the functions the tests call; `preamble` is defined on the tests' side before they run.
        """
        if len(tests) > literals.MAX_JOB_BYTES // 2:  # as a literal they are longer
            raise SandboxError(f"nothing was graded: tests of {len(tests):,} characters are too many for a sandbox")
        async with self._slot() as slot:
            return await self._judge(slot, source, tests=tests, names=names, preamble=preamble)

    async def _judge(self, slot: int, source: str, *, tests: str, names: tuple[str, ...], preamble: str) -> Verdict:
        calls_read, calls_write = os.pipe()
        replies_read, replies_write = os.pipe()
        job: dict[str, object] = {"source": source, "tests": tests, "preamble": preamble, "names": list(names)}
        job |= {"calls": calls_write, "replies": replies_read}
        left = [calls_read, calls_write, replies_read, replies_write]
        answer = launched(self.walls, f"{INSIDE}.answer", uid=_uid(2 * slot), stdin=calls_read, stdout=replies_write)
        judging = launched(
            self.walls,
            f"{INSIDE}.tests",
            uid=_uid(2 * slot + 1),
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(calls_write, replies_read),
        )
        try:
            async with _both(answer, judging) as (_, child):
                # Only the two sandboxes hold the pipes from here on: when one of them dies, the other one notices.
                while left:
                    os.close(left.pop())
                ran = await finished(child, profile=self.walls.profile, stdin=_frame(_literal(job)))
        finally:
            for fd in left:
                os.close(fd)
        verdict = _verdict(ran)
        if verdict.lost:
            raise SandboxError(f"nothing was graded: {verdict.why}")
        return verdict

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[int]:
        slot = await self._free.get()
        try:
            yield slot
        finally:
            self._free.put_nowait(slot)


@contextlib.asynccontextmanager
async def _both(
    one: contextlib.AbstractAsyncContextManager[Child], two: contextlib.AbstractAsyncContextManager[Child]
) -> AsyncIterator[tuple[Child, Child]]:
    """Start both at the same time."""
    async with contextlib.AsyncExitStack() as stack:
        started = await asyncio.gather(
            stack.enter_async_context(one), stack.enter_async_context(two), return_exceptions=True
        )
        first, second = started
        if isinstance(first, BaseException):
            raise first
        if isinstance(second, BaseException):
            raise second
        yield first, second


def _verdict(ran: Ran) -> Verdict:
    if ran.ended == "timeout":
        return Verdict(False, f"no verdict after {ran.seconds:.0f} s")
    try:
        return msgspec.convert(literals.decode(ran.stdout[8:].decode(), kept=literals.Handle), type=Verdict)
    except (literals.Malformed, msgspec.ValidationError, UnicodeDecodeError):
        return Verdict(False, f"the tests gave no verdict (code {ran.code})")


def _literal(value: object) -> str:
    return literals.encode(value, keep=_no_handle)


def _no_handle(value: object) -> int:
    raise TypeError(f"{type(value).__name__} has no literal")


def _frame(text: str) -> bytes:
    data = text.encode(errors="replace")
    return len(data).to_bytes(8, "big") + data


def _uid(index: int) -> int | None:
    """A user of its own for every program at a time; without root, ours, which then must do."""
    return FIRST_UID + index if os.getuid() == 0 else None


def _need_programs() -> None:
    for program, package in {"bwrap": "bubblewrap", "prlimit": "util-linux", "setpriv": "util-linux"}.items():
        if shutil.which(program) is None:
            raise SandboxError(f"grading code needs {program!r}: install {package} (Debian: apt install {package})")


def _furnish(folder: Path) -> None:
    """Our few files in a place that a user without rights can read."""
    package = folder / "box" / Path(*INSIDE.split("."))
    package.mkdir(parents=True)
    for source in Path(literals.__file__).parent.glob("*.py"):
        if source.name != "__init__.py":  # without them the folders are namespace packages: nothing above is imported
            shutil.copyfile(source, package / source.name)
    compileall.compile_dir(package, quiet=2)  # of use where the Python inside is of our own version
    (folder / "filter.bpf").write_bytes(seccomp_program())
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
