"""Landlock: the last wall, which the process puts up around itself before a model's code runs in it.

Bubblewrap settles what a program can see; landlock settles what it may do with that: run and read the system tree, read
our files and /proc, use five harmless devices, and write in one folder. It may open nothing else, bind or reach no TCP
port, look into no process outside and, from ABI 6 on, signal none, whatever the mounts allow. Children of a restricted
process are restricted too, and no process can lift the restriction.

The standard library has no functions for the three system calls. They are made through `_ctypes`, the part of `ctypes`
that is written in C: importing all of `ctypes` would cost 3 ms for each of the two interpreters that grade an answer.
The host asks `usable_abi` once; inside, `restrict` either succeeds or the program never starts.
"""

from __future__ import annotations

import _ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

OLDEST_ABI = 4
"""Linux 6.7, the first that knows TCP. On an older kernel only the other walls protect."""
OLDEST_ALONE_ABI = 3
"""Linux 6.2, the first that keeps files from being cut short: enough where a filter denies every socket."""
NEWEST_ABI = 7
"""The newest ABI that this module uses; kernels support all older ones."""

# These numbers are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1

# linux/landlock.h, LANDLOCK_ACCESS_FS_*.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_FILES = (1 << 15) - 1
"""All rights of ABI 3 and 4, from EXECUTE to TRUNCATE."""
_IOCTL_DEV = 1 << 15
_TCP = 0b11
"""The rights to bind and to connect."""
_SCOPES = 0b11
"""Abstract sockets and signals reach only restricted processes of the same program."""
_SILENT = 0b101
"""Denials are not logged, also those of rulesets that the program adds: it could fill the host's audit log."""

_READ = _READ_FILE | _READ_DIR
_RUN = _READ | _EXECUTE
_WORK = _FILES & ~(_EXECUTE | _MAKE_CHAR | _MAKE_BLOCK)
_ALWAYS = {
    "/box": _READ,
    "/proc": _READ,
    "/etc/ld.so.cache": _READ_FILE,
    "/dev": _READ_DIR,
    "/dev/null": _READ_FILE | _WRITE_FILE,
    "/dev/zero": _READ_FILE | _WRITE_FILE,
    "/dev/full": _READ_FILE | _WRITE_FILE,
    "/dev/random": _READ_FILE,
    "/dev/urandom": _READ_FILE,
}
_LOADING = ("/etc/ld.so.cache", "/etc/localtime")
"""Files outside the system tree that libraries read."""


def restrict(abi: int, *, programs: Iterable[str], work: str = "/tmp") -> None:
    """Restricts this process to reading and running `programs` and writing in `work`; raises OSError on failure."""
    _restrict(abi, {**_ALWAYS, **dict.fromkeys(programs, _RUN), work: _WORK})


def restrict_alone(abi: int, *, readable: Iterable[str], work: str) -> None:
    """Restricts this process to reading `readable` and writing in `work`, where no mount hides the other files."""
    devices = {path: rights for path, rights in _ALWAYS.items() if path.startswith("/dev/")}
    _restrict(abi, {**dict.fromkeys(_LOADING, _READ_FILE), **devices, **dict.fromkeys(readable, _READ), work: _WORK})


def _restrict(abi: int, rights: dict[str, int]) -> None:
    ruleset = _checked("landlock_create_ruleset", _create(abi))
    try:
        for path, allowed in rights.items():
            _allow(ruleset, path, allowed)
        # landlock needs no_new_privs, which bubblewrap or our own code has set.
        _checked("landlock_restrict_self", _call(_RESTRICT_SELF, ruleset, _SILENT if abi >= 7 else 0))
    finally:
        os.close(ruleset)


def usable_abi(oldest: int = OLDEST_ABI) -> int:
    """Returns the newest ABI that kernel and module share; 0 without landlock or if it is too old."""
    if sys.platform != "linux":
        return 0
    offered = _call(_CREATE_RULESET, None, 0, _ASK_VERSION)
    for abi in range(min(offered, NEWEST_ABI), oldest - 1, -1):
        # We try each ABI, because kernels of RHEL 9 report 6 and have no scope for signals.
        ruleset = _create(abi)
        if ruleset >= 0:
            os.close(ruleset)
            return abi
    return 0


def _create(abi: int) -> int:
    """Returns a ruleset that denies everything this ABI knows, or -1."""
    parts = [_FILES | (_IOCTL_DEV if abi >= 5 else 0)]
    if abi >= 4:
        parts.append(_TCP)
    if abi >= 6:
        parts.append(_SCOPES)
    attributes = b"".join(part.to_bytes(8, sys.byteorder) for part in parts)
    return _call(_CREATE_RULESET, attributes, len(attributes), 0)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Gives rights on a file, or on everything in a folder. A missing path is skipped."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        attributes = rights.to_bytes(8, sys.byteorder) + fd.to_bytes(4, sys.byteorder)
        _checked(f"landlock_add_rule for {path}", _call(_ADD_RULE, ruleset, _PATH_BENEATH, attributes, 0))
    finally:
        os.close(fd)


def _checked(what: str, result: int) -> int:
    if result < 0:
        code = _ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "l"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Long


def _call(number: int, *arguments: int | bytes | None) -> int:
    itself = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    function = _Function(_ctypes.dlsym(itself, "syscall"))
    words = [_Long(value) if isinstance(value, int) else value for value in arguments]
    return function(_Long(number), *words)  # type: ignore[no-any-return]
