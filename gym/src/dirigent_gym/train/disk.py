"""A full disk, said plainly: what of the run is kept, and how to go on once there is room.

A checkpoint that was cut has no marker and does not count, so the sealed ones before it are what a run goes on from.
Knows the errors of the libraries that write, and nothing of what they write.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from dirigent.errors import DirigentError

FULL = (errno.ENOSPC, errno.EDQUOT)
SIGNS = ("No space left on device", "Disk quota exceeded", "iostream error", "PytorchStreamWriter failed")
"""What safetensors and torch say, which pass no number on; torch does not say why, only that it could not write."""


class DiskFull(DirigentError):
    """A run could not write what it must."""


@contextmanager
def within_disk() -> Iterator[None]:
    """What is written inside finds room, or the error says that it did not."""
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        raise DiskFull("the disk is full: make room") from error


def is_full(error: BaseException | None) -> bool:
    """Whether this error, or one that it came from, is that of a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        if not isinstance(error, OSError) and any(sign in str(error) for sign in SIGNS):
            return True
        error = error.__cause__ or error.__context__
    return False
