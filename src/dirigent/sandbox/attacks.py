"""Attacks of hostile programs, as data. Every start of a sandbox runs them all; the tests run them one by one.

Each attack is a program that ends by printing "held" or "through". One that exhausts a resource may be ended instead.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Literal

import msgspec

from dirigent.sandbox.allow_list import PRCTL
from dirigent.sandbox.inside.landlock import OLDEST_ABI
from dirigent.sandbox.seccomp import ARCHITECTURES, CLONE, DENIED, IOCTL, MISSING

Walls = Literal["both", "namespaces", "alone"]
Kind = Literal["files", "network", "processes", "kernel", "privileges", "exhaustion"]


SHMAT: tuple[int | None, int | None] = (30, 196)


class Attack(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    source: str
    exhausts: bool = False
    """The attack may be ended from outside, or die of a limit, before it can print its result."""
    limits: dict[str, float] = {}
    """Fields of its profile, if the usual ones would make it slow."""
    landlock_abi: int = 0
    """The landlock that alone contains it. On an older kernel it gets through, and the sandbox still passes."""
    walls: Walls = "both"
    """The sandboxes that it is made for: those with namespaces (bubblewrap), or programs alone on the host."""


_HELPERS = """
import os
HERE = os.environ['HOME']
def tries(action, *arguments):
    try:
        action(*arguments)
    except (OSError, ValueError, MemoryError, RuntimeError):
        print("held")
    else:
        print("through")
def seen(action, *arguments):
    try:
        return action(*arguments)
    except PermissionError:
        return ""
def judge(contained):
    print("held" if contained else "through")
def call(number, *arguments):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(ctypes.c_long(number), *[a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments])
"""


def _attack(name: str, kind: Kind, body: str) -> Attack:
    return Attack(name, kind, _HELPERS + body)


def _by_namespaces(name: str, kind: Kind, body: str) -> Attack:
    """Returns an attack that namespaces contain by hiding the thing; a program alone may see that it is there."""
    return Attack(name, kind, _HELPERS + body, walls="namespaces")


def _alone(name: str, kind: Kind, body: str) -> Attack:
    """Returns an attack on things that a program without namespaces shares with its user."""
    return Attack(name, kind, _HELPERS + body, walls="alone")


def _exhausts(name: str, body: str, **limits: float) -> Attack:
    return Attack(name, "exhaustion", _HELPERS + "print('began', flush=True)\n" + body, True, limits)


def _landlocked(name: str, kind: Kind, body: str, *, abi: int = OLDEST_ABI) -> Attack:
    return Attack(name, kind, _HELPERS + body, landlock_abi=abi)


def _number(numbers: tuple[int | None, int | None]) -> int:
    found = numbers[ARCHITECTURES.get(platform.machine(), ARCHITECTURES["x86_64"]).column]
    return -1 if found is None else found


def _denied(name: str, kind: Kind, arguments: str) -> Attack:
    """Returns an attack by a system call that must fail for any arguments."""
    number = _number((DENIED | MISSING)[name])
    return _attack(f"system call {name}", kind, f"judge(call({number}, {arguments}) == -1)")


_FILES = (
    _attack("write into the system tree", "files", "tries(open, '/usr/lib/x', 'w')"),
    _attack("write into the root folder", "files", "tries(open, '/x', 'w')"),
    _attack("write among the devices", "files", "tries(open, '/dev/x', 'w')"),
    _attack("write into shared memory", "files", "tries(open, '/dev/shm/x', 'w')"),
    _attack("change our own files", "files", "tries(open, '/box/x', 'w')"),
    _by_namespaces(
        "find the host's accounts", "files", "judge(not any(map(os.path.exists, ['/etc/passwd', '/etc/shadow'])))"
    ),
    _attack("read the host's accounts", "files", "tries(open, '/etc/passwd')"),
    _attack(
        "list what is in homes and state",
        "files",
        "for path in '/root', '/home', '/var', '/run', '/sys', '/mnt', '/opt', '/srv': tries(os.listdir, path)",
    ),
    _by_namespaces(
        "find homes and state",
        "files",
        "judge(not any(map(os.path.exists, ['/root', '/home', '/var', '/run', '/sys', '/mnt', '/opt', '/srv'])))",
    ),
    _attack("find files of others in scratch", "files", "judge(os.listdir(HERE) == [])"),
    _attack(
        "climb out by the root of process 1",
        "files",
        "judge(not any(map(os.path.exists, ['/proc/1/root/root', '/proc/1/cwd/../etc/passwd'])))",
    ),
    _attack("climb out by dots", "files", "tries(open, HERE + '/../../../../../../etc/hostname')"),
    _attack("make a device", "files", "tries(os.mknod, HERE + '/disk', 0o60600, os.makedev(8, 0))"),
    _attack(
        "read the disk",
        "files",
        "judge(not [n for n in seen(os.listdir, '/dev') if n.startswith(('sd', 'vd', 'nvme'))])",
    ),
    _attack(
        "read kernel memory",
        "files",
        "for path in '/dev/mem', '/dev/kmem', '/dev/port': tries(open, path)",
    ),
    _denied("open_by_handle_at", "files", "-100, b'x' * 64, 0"),
)
_SOCKETS = {"TCP": (2, 1), "UDP over IPv6": (10, 2), "raw packets": (17, 3), "netlink": (16, 3), "hypervisor": (40, 1)}
_NETWORK = (
    *(
        _attack(f"open a socket: {name}", "network", f"import socket\ntries(socket.socket, {family}, {kind})")
        for name, (family, kind) in _SOCKETS.items()
    ),
    _attack(
        "find a network card",
        "network",
        "judge(seen(lambda: open('/proc/net/dev').read()).count(':') <= 1)",
    ),
    _attack(
        "find the host's abstract sockets",
        "network",
        "judge(len(seen(lambda: open('/proc/net/unix').read()).splitlines()) <= 1)",
    ),
)
_PROCESSES = (
    _attack(
        "see the host's processes",
        "processes",
        "judge(len([n for n in seen(os.listdir, '/proc') if n.isdigit()]) <= 3)",
    ),
    _attack(
        "kill process 1",
        "processes",
        "try: os.kill(1, 9)\nexcept PermissionError: pass\nimport time\ntime.sleep(0.05)\nprint('held')",
    ),
    _by_namespaces(
        "signal a process of the host",
        "processes",
        "def there(pid):\n    try: os.kill(pid, 0)\n    except ProcessLookupError: return False\n    return True\n"
        "judge(not any(map(there, range(100, 40000))))",
    ),
    _denied("ptrace", "processes", "16, 1, 0, 0"),
    _denied("process_vm_readv", "processes", "1, 0, 0, 0, 0, 0"),
    _denied("pidfd_getfd", "processes", "0, 0, 0"),
    _attack(
        "find a pipe of the grader",
        "processes",
        "judge({int(n) for n in seen(os.listdir, '/proc/self/fd')} <= {0, 1, 2, 3})",
    ),
    _attack(
        "find secrets in the environment",
        "processes",
        "judge(set(os.environ) <= {'HOME', 'TMPDIR', 'PATH', 'LANG', 'PWD', 'LC_CTYPE'})",
    ),
    _attack("type into the terminal", "processes", f"judge(call({_number(IOCTL)}, 0, 0x5412, b'x') == -1)"),
)
_PRIVILEGES = (
    _attack("become root", "privileges", "tries(os.setuid, 0)"),
    _attack("become another user", "privileges", "tries(os.setresuid, 1000, 1000, 1000)"),
    _by_namespaces(
        "keep a capability",
        "privileges",
        "lines = dict(l.split(':\\t') for l in open('/proc/self/status').read().splitlines() if ':\\t' in l)\n"
        "judge(all(int(lines[k], 16) == 0 for k in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')))",
    ),
    _by_namespaces(
        "gain rights by exec, or run unfiltered",
        "privileges",
        "text = open('/proc/self/status').read()\njudge('NoNewPrivs:\\t1' in text and 'Seccomp:\\t2' in text)",
    ),
    _attack(
        "raise its limits",
        "privileges",
        "import resource\ntries(resource.setrlimit, resource.RLIMIT_AS, (1 << 40, 1 << 40))",
    ),
    _attack("go before others", "privileges", "tries(os.nice, -5)"),
    _attack("run in real time", "privileges", "tries(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(50))"),
    _attack(
        "write a map of users",
        "privileges",
        "tries(lambda: os.write(os.open('/proc/self/uid_map', os.O_WRONLY), b'0 0 1'))",
    ),
)
_KERNEL = (
    _attack("set the host's core pattern", "kernel", "tries(open, '/proc/sys/kernel/core_pattern', 'w')"),
    _attack("press a system request key", "kernel", "tries(open, '/proc/sysrq-trigger', 'w')"),
    _attack(
        "clone into a user namespace", "kernel", f"judge(call({_number(CLONE)}, 0x10000000 | 17, 0, 0, 0, 0) == -1)"
    ),
    _denied("clone3", "kernel", "b'x' * 64, 64"),
    _denied("unshare", "kernel", "0x10000000"),
    _denied("setns", "kernel", "0, 0"),
    _denied("mount", "kernel", "b'none', b'/tmp', b'tmpfs', 0, 0"),
    _denied("fsopen", "kernel", "b'tmpfs', 0"),
    _denied("pivot_root", "kernel", "b'/tmp', b'/tmp'"),
    _denied("chroot", "kernel", "b'/tmp'"),
    _denied("bpf", "kernel", "0, 0, 0"),
    _denied("perf_event_open", "kernel", "0, 0, -1, -1, 0"),
    _denied("io_uring_setup", "kernel", "8, b'\\0' * 256"),
    _denied("keyctl", "kernel", "0, -3, 1"),
    _denied("userfaultfd", "kernel", "0"),
    _denied("init_module", "kernel", "0, 0, b''"),
    _denied("memfd_create", "kernel", "b'x', 0"),
    _denied("shmget", "kernel", "0, 4096, 0o1600"),
    _denied("clock_settime", "kernel", "0, b'\\0' * 16"),
    _denied("sethostname", "kernel", "b'mine', 4"),
    _attack("use the numbers of another convention", "kernel", "judge(call(0x40000000 | 39) == -1)"),
)
_EXHAUSTION = (
    _exhausts("take all memory", "tries(bytearray, 2 << 30)"),
    _exhausts("take memory bit by bit", "tries(lambda: [bytearray(16 << 20) for _ in range(64)])"),
    _exhausts("fork without end", "tries(lambda: [os.fork() for _ in range(64)])", wall_s=3),
    _exhausts(
        "start threads without end",
        "import threading, time\n"
        "def start():\n"
        "    for _ in range(200): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "tries(start)\nos._exit(0)",
    ),
    _exhausts("compute without end", "while True: pass", wall_s=0.7),
    _exhausts(
        "wait without end, deaf to signals",
        "import signal\nfor n in (2, 3, 14, 15): signal.signal(n, 1)\nsignal.pause()",
        wall_s=0.7,
    ),
    _exhausts("write without end", "while True: os.write(1, b'x' * 65536)"),
    _exhausts(
        "one huge file", "f = open(HERE + '/x', 'wb')\ntries(lambda: [f.write(bytes(1 << 20)) for _ in range(80)])"
    ),
    _exhausts(
        "many large files",
        "def fill():\n    for n in range(9): open(f'{HERE}/{n}', 'wb').write(bytes(16 << 20))\ntries(fill)",
    ),
    _exhausts("open files without end", "tries(lambda: [open('/dev/null') for _ in range(100)])"),
    _exhausts(
        "leave a process behind",
        "if os.fork() == 0:\n    os.setsid()\n    import time\n    time.sleep(60)\nprint('held')",
    ),
    _exhausts("dump core", "import resource\njudge(resource.getrlimit(resource.RLIMIT_CORE) == (0, 0))\nos.abort()"),
)

# Every other wall lets these pass, so they show that landlock is up. Without it they gain little: process 1 is
# bubblewrap, behind the same walls as the program itself, and its environment holds only our PATH.
_STACK = """
def at_stack(mode):
    stack = next(line for line in open('/proc/1/maps') if '[stack]' in line)
    memory = open('/proc/1/mem', mode, 0)
    memory.seek(int(stack.split('-')[0], 16))
    return memory
"""
_LANDLOCK = (
    _landlocked(
        "execute a file of its own",
        "files",
        "own = os.open(HERE + '/own', os.O_CREAT | os.O_WRONLY, 0o755)\n"
        "os.write(own, open('/bin/true', 'rb').read())\nos.close(own)\n"
        "tries(lambda: os.waitpid(os.posix_spawn(HERE + '/own', ['own'], {}), 0))",
    ),
    _landlocked("write about itself to the kernel", "kernel", "tries(open, '/proc/self/oom_score_adj', 'w')"),
    _landlocked("open a terminal", "kernel", "tries(os.openpty)"),
    _landlocked("read the environment of process 1", "processes", "tries(lambda: open('/proc/1/environ').read())"),
    _landlocked("read the memory of process 1", "processes", _STACK + "tries(lambda: at_stack('rb').read(64))"),
    _landlocked("write the memory of process 1", "processes", _STACK + "tries(lambda: at_stack('r+b').write(b'x'))"),
    _landlocked(
        "speak to a driver",
        "kernel",
        "import fcntl\ntries(lambda: fcntl.ioctl(open('/dev/urandom', 'rb'), 0x80045200, bytes(4)))",
        abi=5,
    ),
    _landlocked("signal process 1", "processes", "tries(os.kill, 1, 0)", abi=6),
)

# What a program without namespaces shares with its user. No attack here harms anything if it gets through.
_ALONE = (
    _alone("start a process", "processes", "tries(os.fork)"),
    _alone("start another program", "processes", "tries(os.execv, '/bin/true', ['true'])"),
    _alone("signal its parent", "processes", "tries(os.kill, os.getppid(), 0)"),
    _alone(
        "have a pipe signal its parent",
        "processes",
        "import fcntl\ntries(fcntl.fcntl, os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
    ),
    _alone("outlive its parent", "processes", f"judge(call({_number(PRCTL)}, 1, 0, 0, 0, 0) == -1)"),
    _alone("read the environment of its parent", "processes", "tries(open, f'/proc/{os.getppid()}/environ')"),
    _alone("slow its parent down", "processes", "tries(os.setpriority, os.PRIO_PROCESS, os.getppid(), 0)"),
    _alone("read the limits of its parent", "processes", "import resource\ntries(resource.prlimit, os.getppid(), 7)"),
    _alone("open a Unix socket", "network", "import socket\ntries(socket.socket, socket.AF_UNIX)"),
    _alone(
        "pair sockets that can send to others",
        "network",
        "import socket\ntries(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)",
    ),
    _alone("change the mode of a file", "files", "tries(os.chmod, '/usr', os.stat('/usr').st_mode & 0o7777)"),
    _alone("change the times of a file", "files", "tries(os.utime, '/usr', (os.stat('/usr').st_atime,) * 2)"),
    _alone("change the owner of a file", "files", "tries(os.chown, '/usr', -1, -1)"),
    _alone("mark a file", "files", "tries(os.setxattr, '/usr', 'user.dirigent', b'')"),
    _alone("write beside its scratch folder", "files", "tries(open, os.path.dirname(HERE) + '/dirigent-own', 'w')"),
    _alone("write among shared memory", "files", "tries(open, '/dev/shm/dirigent-own', 'w')"),
    _alone("use a shared segment of others", "kernel", f"judge(call({_number(SHMAT)}, 0, 0, 0) == -1)"),
)

ATTACKS: tuple[Attack, ...] = _FILES + _NETWORK + _PROCESSES + _PRIVILEGES + _KERNEL + _EXHAUSTION + _LANDLOCK + _ALONE


def attacks_on(landlock_abi: int) -> tuple[Attack, ...]:
    """Returns the attacks that bubblewrap with this landlock ABI must contain; 0 means no landlock."""
    return tuple(attack for attack in ATTACKS if attack.walls != "alone" and attack.landlock_abi <= landlock_abi)


def attacks_alone() -> tuple[Attack, ...]:
    """Returns the attacks that a program must not win without namespaces; its filter stands in for a newer landlock."""
    return tuple(attack for attack in ATTACKS if attack.walls != "namespaces")


def joined(attacks: Sequence[Attack]) -> str:
    """Returns one program that tries these attacks in turn. It prints each name's number before its result."""
    parts = [
        f"print({number})\ntry: exec(compile({attack.source!r}, 'attack', 'exec'), {{}})\n"
        "except BaseException as error: print(type(error).__name__)"
        for number, attack in enumerate(attacks)
    ]
    return "\n".join(parts)
