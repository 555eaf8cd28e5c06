"""Start one program behind every wall, and always end it.

The order is: a user without rights (`setpriv`, if we are root), limits of each process (`prlimit`), fresh namespaces
and mounts (`bwrap`), which then waits at a gate. From outside we look up the program's real user, refuse root, put the
program into its control group, and only then open the gate. Bubblewrap applies the system-call filter and starts
Python. The first line of Python is ours and restricts itself with landlock, if the kernel has it
(`inside/landlock.py`). So no line of a model's code runs before the last wall is up, and no shell takes part.

The module knows nothing of grading. A program that fails, loops or floods is a result; a wall that cannot be put up is
a `SandboxError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal

import msgspec

from dirigent.errors import GradeError
from dirigent.sandbox.groups import Group, Hierarchy, counts_memory, make_group
from dirigent.sandbox.inside.channel import READY
from dirigent.sandbox.inside.landlock import OLDEST_ABI
from dirigent.sandbox.profile import Fds, Profile, Seen, box_command, drop_command, limit_command

Ended = Literal["exited", "timeout", "flooded"]
Stream = int | None

START_LIMIT_S = 10.0
"""Putting up the walls takes some 20 ms. A host that needs this long for it, or to start Python behind them, is too
busy to grade."""


NO_LANDLOCK = f"no landlock (the kernel has none, or one older than ABI {OLDEST_ABI})"


class SandboxError(GradeError):
    """A wall of the sandbox could not be put up, so the program did not run."""


class Walls(msgspec.Struct, frozen=True):
    """The settings that every program of one sandbox starts with."""

    profile: Profile
    seen: Seen
    filter_path: Path
    groups: tuple[Hierarchy, ...] = ()
    landlock_abi: int = 0
    """0: the kernel has no usable landlock, and only the other walls protect."""


class Ran(msgspec.Struct, frozen=True):
    """How a program ended and its output, cut at the profile's limit."""

    ended: Ended
    code: int
    """As bubblewrap reports it: 128 + n for signal n. -1 if it was ended from outside."""
    stdout: bytes
    stderr: bytes
    seconds: float


class _Info(msgspec.Struct):
    child_pid: int = msgspec.field(name="child-pid")


class Child:
    """A running program: bubblewrap outside, its first process inside."""

    def __init__(self, process: asyncio.subprocess.Process, group: Group) -> None:
        self.process = process
        self._group = group
        self._inner: int | None = None

    def hold(self, pid: int) -> None:
        """Opens a descriptor of the inner process, because the kernel may reuse its number."""
        self._inner = os.pidfd_open(pid)

    async def end(self) -> None:
        """Kills the rest. The inner process is the first of its namespace, so the kernel kills all others with it."""
        with contextlib.suppress(ProcessLookupError):
            if self._inner is not None:
                signal.pidfd_send_signal(self._inner, signal.SIGKILL)
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        # asyncio counts a process as ended only after its pipes ended, so their rest must be read.
        await asyncio.gather(self.process.wait(), _discard(self.process.stdout), _discard(self.process.stderr))
        if self._inner is not None:
            os.close(self._inner)
            self._inner = None
        await self._group.remove()


@contextlib.asynccontextmanager
async def launched(
    walls: Walls,
    module: str,
    *,
    uid: int | None,
    stdin: Stream = asyncio.subprocess.PIPE,
    stdout: Stream = asyncio.subprocess.PIPE,
    stderr: Stream = asyncio.subprocess.DEVNULL,
    pass_fds: tuple[int, ...] = (),
) -> AsyncIterator[Child]:
    """Yields an inside program that has passed its gate; ends it on the way out in every case."""
    info_read, info_write = os.pipe()
    gate_read, gate_write = os.pipe()
    filter_fd = os.open(walls.filter_path, os.O_RDONLY)
    fds = Fds(info=info_write, gate=gate_read, filter=filter_fd)
    group = make_group(walls.groups, walls.profile)
    child: Child | None = None
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *_command(walls, module, uid=uid, fds=fds),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(info_write, gate_read, filter_fd, *pass_fds),
                start_new_session=True,
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath)},
            )
        finally:
            for fd in (info_write, gate_read, filter_fd):
                os.close(fd)
        child = Child(process, group)
        await _through_the_gate(child, group, uid=uid, info=info_read, gate=gate_write)
        yield child
    finally:
        os.close(info_read)
        os.close(gate_write)
        await asyncio.shield(child.end() if child else group.remove())


def stamp(walls: Walls) -> str:
    """Returns the walls by name, with the missing ones: "bubblewrap, seccomp, control group (memory, pids)"."""
    counted = sorted({controller for hierarchy in walls.groups for controller in hierarchy.files})
    group = f"control group ({', '.join(counted)})" if counted else "no control group"
    landlock = f"landlock ABI {walls.landlock_abi}" if walls.landlock_abi else NO_LANDLOCK
    return f"bubblewrap, seccomp, {group}, {landlock}"


async def finished(child: Child, *, profile: Profile, stdin: bytes = b"") -> Ran:
    """Feeds the program, reads up to the limit, and waits; ends the program after the wall clock.

    Our side writes the first byte before anything else. If it is missing, the sandbox is broken and the answer is not
    wrong. The wall clock begins at that byte, so a slow start of Python on a busy host costs the program no time.
    """
    began = time.monotonic()
    process = child.process
    out, err = bytearray(), bytearray()
    ended: Ended = "exited"

    def started() -> None:
        nonlocal began
        began = time.monotonic()
        if not clock.expired():
            clock.reschedule(asyncio.get_running_loop().time() + profile.wall_s)

    try:
        async with asyncio.timeout(START_LIMIT_S) as clock:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_feed(process.stdin, stdin))
                    tasks.create_task(
                        _drain(process.stdout, out, limit=profile.output_bytes + len(READY), first=started)
                    )
                    tasks.create_task(_drain(process.stderr, err, limit=profile.output_bytes))
                    await process.wait()
            except* _Flooded:
                ended = "flooded"
    except TimeoutError:
        ended = "timeout"
    if not out.startswith(READY):
        raise SandboxError(f"the program never started: {err.decode(errors='replace').strip() or ended}")
    code = process.returncode if process.returncode is not None and ended == "exited" else -1
    return Ran(ended, code, bytes(out.removeprefix(READY)), bytes(err), time.monotonic() - began)


class _Flooded(Exception):
    pass


def _command(walls: Walls, module: str, *, uid: int | None, fds: Fds) -> list[str]:
    profile = walls.profile
    processes = profile.processes if counts_memory(walls.groups) else profile.ungrouped_processes
    box = box_command(profile, walls.seen, fds=fds, module=module, processes=processes, landlock_abi=walls.landlock_abi)
    return [*drop_command(uid), *limit_command(profile), *box]


async def _through_the_gate(child: Child, group: Group, *, uid: int | None, info: int, gate: int) -> None:
    pid = await _inner_pid(info, child)
    try:
        child.hold(pid)
        _refuse_root(pid, uid=uid)
        group.join(child.process.pid)
        group.join(pid)
        os.write(gate, b"1")
    except OSError as error:
        said = await _last_words(child) or str(error)
        raise SandboxError(f"the program could not be held: {said}") from error


async def _inner_pid(fd: int, child: Child) -> int:
    """Returns the pid of the inner process. Bubblewrap writes it after all mounts; on failure it explains on stderr."""
    os.set_blocking(fd, False)
    text = b""
    try:
        async with asyncio.timeout(START_LIMIT_S):
            while b"}" not in text:
                await _readable(fd)
                part = os.read(fd, 4096)
                if not part:
                    break
                text += part
        return msgspec.json.decode(text, type=_Info).child_pid
    except (TimeoutError, msgspec.MsgspecError) as error:
        said = await _last_words(child)
        raise SandboxError(f"bubblewrap did not start the program: {said or 'it gave no reason'}") from error


async def _last_words(child: Child) -> str:
    if child.process.stderr is None:
        return ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            return (await child.process.stderr.read(2000)).decode(errors="replace").strip()
    return ""


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


def _refuse_root(pid: int, *, uid: int | None) -> None:
    """Raises if the host's view of the program's user is wrong. Inside, every user is 65534."""
    status = Path(f"/proc/{pid}/status").read_text()
    uids = {int(word) for line in status.splitlines() if line.startswith("Uid:") for word in line.split()[1:]}
    wanted = os.getuid() if uid is None else uid
    if uids != {wanted} or 0 in uids:
        raise SandboxError(f"the program would run as uid {sorted(uids)} of the host, not as {wanted}; it did not run")


async def _feed(writer: asyncio.StreamWriter | None, data: bytes) -> None:
    if writer is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        writer.write(data)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def _drain(
    reader: asyncio.StreamReader | None, into: bytearray, *, limit: int, first: Callable[[], None] = lambda: None
) -> None:
    """Reads to the end; calls `first` at the first byte."""
    if reader is None:
        return
    while part := await reader.read(1 << 16):
        if not into:
            first()
        into += part[: limit - len(into)]
        if len(into) >= limit:
            raise _Flooded


async def _discard(reader: asyncio.StreamReader | None) -> None:
    while reader is not None and await reader.read(1 << 16):
        pass
