"""Journal: every call of a calibration on disk, so that nothing that was answered is ever paid twice.

One JSON line each: money that is set aside before a call, and the answer with what it really cost. Lines are handed to
the operating system at once, so a killed process loses none. Money set aside by a process that died before the answer
came counts as spent: its provider may have billed it. An answer is known by exactly what was asked of exactly which
worker, so a changed question or worker is asked again, and only that.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from dirigent.errors import ConfigError, CostError
from dirigent.limits import Budget, Hold, Quote

BATCH = 32
"""Lines between two fsyncs."""
BEGINS = b'{"type":"calibration"'


class Answered(msgspec.Struct, frozen=True, omit_defaults=True, tag="answer"):
    """One call that has ended."""

    key: str
    worker: str
    text: str = ""
    error: str = ""
    """Why there is no answer: it is asked again by the next run."""
    ended: bool = True
    failed: bool = False
    """Its program failed or printed nothing."""
    cost_usd: float = 0.0
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0


class _Begun(msgspec.Struct, frozen=True, tag="calibration"):
    format: int = 1


class _Held(msgspec.Struct, frozen=True, tag="held"):
    id: int
    usd: float


class _Settled(msgspec.Struct, frozen=True, tag="settled"):
    id: int
    usd: float


_Line = _Begun | _Held | _Settled | Answered
_DECODER: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)


class Journal:
    """The answers of a calibration by what was asked, and the ledger that its calls are reserved in.

    A call that the rest of the cap pays for only in part is refused: an answer that was cut short for want of money
    says nothing about its worker.
    """

    def __init__(self, file: BinaryIO | None = None, *, max_cost_usd: float | None = None) -> None:
        self.answers: dict[str, Answered] = {}
        self.lost_usd = 0.0
        """Set aside by runs that were killed, and never heard of again. It is a part of what is spent."""
        self._budget = Budget(max_cost_usd=max_cost_usd, what="the calibration")
        self._file = file
        self._next_id = 0
        self._ids: dict[int, int] = {}
        self._settled: list[_Settled] = []
        self._unsynced = 0

    @classmethod
    @contextmanager
    def open(cls, path: Path, *, max_cost_usd: float | None = None) -> Iterator[Journal]:
        """Goes on with the journal at this path, or begins one. Only one process at a time may do so."""
        with _locked(path) as file:
            journal = cls(file, max_cost_usd=max_cost_usd)
            journal._restore(path)
            try:
                yield journal
            finally:
                journal._write()
                os.fsync(file.fileno())

    @property
    def spent_usd(self) -> float:
        """Everything paid for this calibration, by this run and earlier ones."""
        return self._budget.spent_usd

    def add(self, answer: Answered) -> None:
        if not answer.error or answer.key not in self.answers:
            self.answers[answer.key] = answer
        self._write(answer)

    async def reserve(self, quote: Quote) -> Hold:
        hold = await self._budget.reserve(quote)
        wanted, granted = quote.max_output_tokens, hold.max_output_tokens
        if granted is not None and (wanted is None or granted < wanted) and quote.output_token_usd:
            self._budget.settle(hold, cost_usd=0.0, output_tokens=0)
            raise CostError(
                f"the calibration may cost ${self._budget.max_cost_usd or 0:.6g} and has spent ${self.spent_usd:.6g}: "
                f"a whole answer of {quote.worker} may cost more than what is left; raise --max-cost"
            )
        self._ids[hold.id] = self._next_id
        self._next_id += 1
        if hold.cost_usd:
            self._write(_Held(self._ids[hold.id], hold.cost_usd))
        return hold

    def settle(self, hold: Hold, *, cost_usd: float, output_tokens: int) -> None:
        """Counts the cost. It is written together with the answer: the two are lost together or not at all."""
        self._budget.settle(hold, cost_usd=cost_usd, output_tokens=output_tokens)
        id = self._ids.pop(hold.id, None)
        if id is not None and (hold.cost_usd or cost_usd):
            self._settled.append(_Settled(id, cost_usd))

    def _write(self, *lines: _Line) -> None:
        lines, self._settled = (*self._settled, *lines), []
        if self._file is None or not lines:
            return
        self._file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        self._file.flush()
        self._unsynced += len(lines)
        if self._unsynced >= BATCH:
            os.fsync(self._file.fileno())
            self._unsynced = 0

    def _restore(self, path: Path) -> None:
        assert self._file is not None
        self._file.seek(0)
        content = self._file.read()
        if not BEGINS.startswith(content[: len(BEGINS)]):
            raise ConfigError(f"{path} is where the answers are kept, and it holds something else; give another --out")
        whole = content[: content.rfind(b"\n") + 1]
        self._file.truncate(len(whole))
        if not whole:
            self._write(_Begun())
        held: dict[int, float] = {}
        settled = 0.0
        for number, text in enumerate(whole.splitlines(), start=1):
            try:
                line = _DECODER.decode(text)
            except msgspec.MsgspecError as error:
                raise ConfigError(
                    f"line {number} of {path} cannot be read ({error}); remove it, or give another --out"
                ) from None
            if isinstance(line, _Held):
                held[line.id] = line.usd
                self._next_id = line.id + 1
            elif isinstance(line, _Settled):
                held.pop(line.id, None)
                self._next_id = max(self._next_id, line.id + 1)
                settled += line.usd
            elif isinstance(line, Answered) and (not line.error or line.key not in self.answers):
                self.answers[line.key] = line
        self.lost_usd = sum(held.values())
        self._budget.spent_usd = settled + self.lost_usd


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    except OSError as error:
        raise ConfigError(f"the answers cannot be kept in {path}: {error}; --out names another folder") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another calibration is writing to {path}; wait for it, or give another --out") from None
        yield file
