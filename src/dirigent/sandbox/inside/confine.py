"""Confine: the walls that a process puts up around itself without bubblewrap, before a model's code runs in it.

In this order: it dies with its parent, loses every capability, can gain no rights by running a program, and can open
only its own files (landlock). Last comes the system-call filter, which allows no further change. If a wall cannot be
put up, this raises and the program never starts.
"""

from __future__ import annotations

import ctypes
import os
import signal

from dirigent.sandbox.inside.landlock import restrict_alone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 22, 38, 47
_CAP_AMBIENT_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_INSTRUCTION_BYTES = 8


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def confine(abi: int, *, filter_path: str, readable: Iterable[str], work: str, parent: int) -> None:
    """Puts up every wall around this process, the child of `parent`."""
    with open(filter_path, "rb") as file:  # noqa: PTH123 - pathlib is slow to import
        code = file.read()
    libc = ctypes.CDLL(None, use_errno=True)
    _prctl(libc, _PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before the kernel knew
    _prctl(libc, _PR_SET_NO_NEW_PRIVS, 1)
    _drop_capabilities(libc)
    restrict_alone(abi, readable=readable, work=work)
    wall = _Filter(len(code) // _INSTRUCTION_BYTES, code)
    _prctl(libc, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(wall))


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Without them root is a user like any other, whose files landlock closes."""
    _prctl(libc, _PR_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    _checked("capset", libc.capset(header, none))


def _prctl(libc: ctypes.CDLL, option: int, *arguments: object) -> None:
    padded = [*arguments, *[0] * (4 - len(arguments))]
    _checked(
        f"prctl {option}",
        libc.prctl(option, *(ctypes.c_ulong(a) if isinstance(a, int) else a for a in padded)),
    )


def _checked(what: str, result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
