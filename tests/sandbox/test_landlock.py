"""Landlock stops attacks that pass every other wall, also without the others, and reports when it is missing."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from pathlib import Path

import msgspec
import pytest
from tests.facts import facts
from tests.programs import need

from dirigent.sandbox import Sandbox, SandboxError, open_sandbox, seccomp
from dirigent.sandbox.attacks import ATTACKS, Attack, attacks_on
from dirigent.sandbox.groups import Hierarchy
from dirigent.sandbox.inside import landlock
from dirigent.sandbox.inside.landlock import NEWEST_ABI, OLDEST_ABI, usable_abi
from dirigent.sandbox.launch import stamp
from dirigent.sandbox.selftest import withstands

ONLY_LANDLOCK = [attack for attack in ATTACKS if attack.landlock_abi]
HONEST = {
    "reads its input": ("print(open(0).read())", "hello"),
    "keeps files": (
        "import os, tempfile\nfolder = tempfile.mkdtemp()\nopen(folder + '/a', 'w').write('x')\n"
        "os.rename(folder + '/a', '/tmp/b')\nos.link('/tmp/b', folder + '/c')\nos.symlink('/tmp/b', '/tmp/d')\n"
        "open('/tmp/b', 'w').write('yy')\nprint(open('/tmp/d').read(), os.listdir(folder))",
        "yy ['c']",
    ),
    "starts a program of the system": (
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(5)'], stdout=-1).stdout)",
        r"b'5\n'",
    ),
    "ends what it started": (
        "import subprocess\np = subprocess.Popen(['sleep', '9'])\np.kill()\nprint(p.wait())",
        "-9",
    ),
    "uses a database": (
        "import sqlite3\ndb = sqlite3.connect('/tmp/db')\ndb.execute('create table a(b)')\ndb.commit()\nprint('ok')",
        "ok",
    ),
    "uses devices": (
        "open('/dev/null', 'w').write('x')\n"
        "print(len(open('/dev/zero', 'rb').read(2) + open('/dev/urandom', 'rb').read(3)))",
        "5",
    ),
    "talks to itself": (
        "import socket\na, b = socket.socket(1), socket.socket(1)\n"
        "a.bind('\\0me')\na.listen()\nb.connect('\\0me')\nprint('ok')",
        "ok",
    ),
    "runs threads and a loop": (
        "import asyncio\nasync def main():\n"
        "    return sum(await asyncio.gather(*(asyncio.to_thread(abs, n) for n in range(9))))\n"
        "print(asyncio.run(main()))",
        "36",
    ),
}

# What a process that is restricted by landlock alone can do; each part prints "held" or "through".
ALONE = """
import os, socket, sys
sys.path.append({folder!r})
from landlock import restrict
if {abi}: restrict({abi}, programs=["/usr", "/lib", "/lib64"], work={work!r})
def tries(action, *arguments):
    try: action(*arguments)
    except PermissionError: print("held", end=" ")
    else: print("through", end=" ")
tries(open, {secret!r})
tries(open, {work!r} + "/note", "w")
tries(socket.create_connection, ("127.0.0.1", {port}))
tries(socket.socket().bind, ("127.0.0.1", 0))
tries(socket.socket(socket.AF_UNIX).connect, "\\0" + {abstract!r})
tries(os.kill, {parent}, 0)
"""


@pytest.fixture
def bare(sandbox: Sandbox) -> Sandbox:
    """The same sandbox with every wall but landlock."""
    return Sandbox(msgspec.structs.replace(sandbox.walls, landlock_abi=0), slots=1)


@pytest.mark.system
@pytest.mark.parametrize("attack", ONLY_LANDLOCK, ids=lambda attack: attack.name)
async def test_landlock_stops_attacks_that_get_through_all_other_walls(
    attack: Attack, sandbox: Sandbox, bare: Sandbox
) -> None:
    _need(attack.landlock_abi)
    assert await withstands(sandbox, attack)
    assert not await withstands(bare, attack), "another wall holds it, so it shows nothing about landlock"


@pytest.mark.system
@pytest.mark.parametrize("name", HONEST)
async def test_an_honest_program_does_not_notice_it(name: str, sandbox: Sandbox) -> None:
    source, printed = HONEST[name]
    ran = await sandbox.run(source, stdin=b"hello")
    assert (ran.stdout.decode().strip(), ran.stderr) == (printed, b"")


@pytest.mark.system
async def test_tests_and_answer_are_restricted_too(sandbox: Sandbox) -> None:
    _need(OLDEST_ABI)
    verdict = await sandbox.judge("def f(path):\n    open(path)", tests="f('/proc/1/environ')", names=("f",))
    assert "PermissionError" in verdict.why
    verdict = await sandbox.judge("def f(): pass", tests="f()\nopen('/proc/1/environ')", names=("f",))
    assert "PermissionError" in verdict.why


@pytest.mark.parametrize(
    ("abi", "outcome"),
    [
        (0, "through through through through through through"),
        (4, "held through held held through through"),
        (5, "held through held held through through"),
        (6, "held through held held held held"),
        (7, "held through held held held held"),
    ],
)
async def test_alone_it_denies_files_and_tcp_and_from_6_on_abstract_sockets_and_signals(
    abi: int, outcome: str, tmp_path: Path
) -> None:
    _need(abi)
    name, secret = secrets.token_hex(8), tmp_path / "secret"
    secret.write_text("x")
    (tmp_path / "work").mkdir()
    server = await asyncio.start_server(_hang_up, "127.0.0.1", 0)
    async with server, await asyncio.start_unix_server(_hang_up, f"\0{name}"):
        said = await _printed(
            ALONE.format(
                folder=str(Path(landlock.__file__).parent),
                abi=abi,
                work=str(tmp_path / "work"),
                secret=str(secret),
                port=server.sockets[0].getsockname()[1],
                abstract=name,
                parent=os.getpid(),
            )
        )
    assert said == outcome


async def test_a_rule_that_the_kernel_refuses_is_an_error_that_names_it() -> None:
    _need(OLDEST_ABI)
    ruleset = landlock._create(OLDEST_ABI)
    with pytest.raises(OSError, match="landlock_add_rule for /dev/null: Invalid argument"):
        landlock._allow(ruleset, "/dev/null", 1 << 3)  # a folder's right on a file
    os.close(ruleset)


@pytest.mark.parametrize(
    ("offered", "works", "usable"),
    [
        pytest.param(-1, (), 0, id="none"),
        pytest.param(3, (1, 2, 3), 0, id="before TCP"),
        pytest.param(4, (4,), 4, id="the oldest of use"),
        pytest.param(6, (4, 5), 5, id="claims a missing ABI"),
        pytest.param(9, (4, 5, 6, 7, 8, 9), NEWEST_ABI, id="newer than we know"),
        pytest.param(7, (), 0, id="tells its version and forbids the rest"),
    ],
)
def test_the_abi_that_a_kernel_claims_is_tried(
    offered: int, works: tuple[int, ...], usable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "_call", lambda *arguments: offered)
    monkeypatch.setattr(landlock, "_create", lambda abi: os.open(os.devnull, os.O_RDONLY) if abi in works else -1)
    assert usable_abi() == usable


@pytest.mark.system
async def test_where_it_cannot_be_put_up_the_program_is_not_run(
    sandbox: Sandbox, bare: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _need(OLDEST_ABI)
    monkeypatch.setitem(seccomp.DENIED, "landlock_restrict_self", (446, 446))
    (tmp_path / "filter").write_bytes(seccomp.seccomp_program())
    closed = [
        Sandbox(msgspec.structs.replace(one.walls, filter_path=tmp_path / "filter"), slots=1) for one in (sandbox, bare)
    ]
    with pytest.raises(SandboxError, match=facts("landlock_restrict_self: Operation not permitted")):
        await closed[0].run("print(1)")
    with pytest.raises(SandboxError, match=facts("landlock_restrict_self")):
        await closed[0].judge("def f(): pass", tests="f()", names=("f",))
    assert (await closed[1].run("print(1)")).stdout == b"1\n"


@pytest.mark.system
async def test_without_landlock_the_sandbox_opens_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    need("bwrap")
    monkeypatch.setattr(landlock, "usable_abi", lambda: 0)
    with caplog.at_level(logging.INFO, logger="dirigent.sandbox"):
        async with open_sandbox() as opened:
            assert opened.stamp.endswith("no landlock (the kernel has none, or one older than ABI 4)")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"sandbox: {opened.stamp}")
    ]


@pytest.mark.system
async def test_the_stamp_names_the_walls_that_stand_and_those_that_do_not(sandbox: Sandbox) -> None:
    groups = (Hierarchy(Path("/a"), {"memory": "memory.max"}), Hierarchy(Path("/b"), {"pids": "pids.max"}))
    full = msgspec.structs.replace(sandbox.walls, groups=groups, landlock_abi=6)
    assert stamp(full) == "bubblewrap, seccomp, control group (memory, pids), landlock ABI 6"
    assert stamp(msgspec.structs.replace(full, groups=())) == "bubblewrap, seccomp, no control group, landlock ABI 6"


def test_an_older_kernel_meets_only_attacks_that_its_walls_can_stop() -> None:
    counts = [len(attacks_on(abi)) for abi in (0, 4, 5, 6, NEWEST_ABI)]
    assert counts == sorted(counts)
    with_namespaces = [attack for attack in ATTACKS if attack.walls != "alone"]
    assert counts[0] == len(with_namespaces) - len(ONLY_LANDLOCK) >= 40
    assert counts[-1] == len(with_namespaces)
    assert len(ONLY_LANDLOCK) > counts[1] - counts[0] > 0


def _need(abi: int) -> None:
    if abi > usable_abi():
        pytest.skip(f"needs landlock ABI {abi}, and this kernel has {usable_abi()}")


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _printed(source: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *("setpriv", "--no-new-privs", "--", sys.executable, "-I", "-S", "-B", "-c", source),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    return out.decode().strip()
