"""Compare two mathematical answers: as text if that decides it, else with math-verify.

Computer algebra on a model's text may run for ever or fill the memory. So it runs in a child process, which is killed
if a comparison takes too long; the next comparison gets a new child. There are few children; they start on first use
and stay, because math-verify takes seconds to load. A killed comparison counts as "not the same".
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from decimal import Decimal

from dirigent.errors import GradeError

TIMEOUT_S = 4.0
"""For one comparison, as in the scoring of the recorded data."""

START_S = 60.0
"""For a child to load math-verify on a busy machine."""

CHILDREN = max(1, min(4, (os.cpu_count() or 1)))

UNITS = re.compile(r"\\text(?:bf|rm|it)?\{\s*([^{}]*)\}|\\mathrm\{([^{}]*)\}|\\mbox\{([^{}]*)\}")


async def same_mathematics(gold: str, answer: str, *, timeout_s: float = TIMEOUT_S) -> bool:
    """Returns whether the answer equals the gold one. Raises GradeError if math-verify is not installed."""
    left, right = plain(gold), plain(answer)
    if not right:
        return False
    if left == right:
        return True
    if (numbers := (_number(left), _number(right))) and None not in numbers:
        return numbers[0] == numbers[1]
    return await asyncio.to_thread(_compared, gold, answer, timeout_s)


def plain(text: str) -> str:
    """Returns the answer without dollar signs, spacing, sizes, a full stop at its end and `x =`."""
    text = text.strip().strip("$").strip().removesuffix(".")
    text = re.sub(r"\\(left|right|displaystyle|big|Big)(?![A-Za-z])|\\[,!;: ]|~|\\\$", "", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = UNITS.sub(lambda match: next(group for group in match.groups() if group is not None), text)
    text = re.sub(r"^\s*[a-zA-Z]\s*=\s*", "", text)
    return re.sub(r"\s+", "", text)


def _number(text: str) -> Decimal | None:
    """Parses exactly: as floats, 50000000000000000 and 50000000000000001 would be equal."""
    return Decimal(text) if re.fullmatch(r"[-+]?(\d+(\.\d*)?|\.\d+)", text) else None


@functools.lru_cache(maxsize=65_536)
def _compared(gold: str, answer: str, timeout_s: float) -> bool:
    with _places:
        child = _waiting() or _Child()
        same = child.compare(gold, answer, timeout_s)
        if same is None:
            child.kill()
            return False
        _idle.append(child)
        return same


def _waiting() -> _Child | None:
    """Returns an idle child, if one is alive. A child that died while idle, for lack of memory, says nothing about
    the next pair."""
    while True:
        try:
            child = _idle.pop()
        except IndexError:
            return None
        if child.alive:
            return child
        child.kill()


class _Child:
    """A child process that compares one pair at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dirigent.tasks.math_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self._unread = b""
        if self._line(START_S) != b"ready":
            self.kill()
            raise GradeError(
                "math answers are compared by math-verify, which did not start; pip install 'dirigent[eval]'"
            )

    def compare(self, gold: str, answer: str, timeout_s: float) -> bool | None:
        """Returns None if the comparison took too long or the process died."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
        except OSError:
            return None
        line = self._line(timeout_s)
        return None if line is None else line == b"true"

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _line(self, timeout_s: float) -> bytes | None:
        assert self._process.stdout is not None
        until = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))
            piece = os.read(self._process.stdout.fileno(), 4096) if ready else b""
            if not piece:
                return None
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line


_places = threading.BoundedSemaphore(CHILDREN)
_idle: list[_Child] = []


@atexit.register
def _end() -> None:
    while _idle:
        _idle.pop().kill()
