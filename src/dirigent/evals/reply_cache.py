"""Replies that planners share: an evaluation computes each greedy reply of a model once.

`conductor` and `conductor:2` send the same first prompt to the same weights. Computed twice, they would take twice the
time and might differ: requests that are computed together share their arithmetic, so a near-tie may fall the other way,
and two rounds would differ from one by luck. The same holds for a specialist that several planners ask the same subtask
with the same results. Only replies at temperature 0 are shared. A sampled worker is asked every time, because its
attempts are meant to differ. A planner pays for a shared reply as if it had asked: tokens, cost and the measured
seconds. `took_s` returns the seconds of such a run, as `record.py` counts them. The server shares nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from dirigent.errors import ConfigError
from dirigent.limits import Quote
from dirigent.messages import Attempt, Delta, Observe, Reply, Request, ignore
from dirigent.run.trace import DraftRecord, Round, StepRecord, Trace, critical_path_s
from dirigent.workers.metering import metered
from dirigent.workers.worker import Worker, Wrapper

log = logging.getLogger(__name__)

ENDING = ".shared.jsonl"
"""The end of the file's name, which is otherwise that of the evaluation's outcomes."""

SHARED = "greedy drafts and replies"
"""The value of `shared` in a report's recipe."""

NOT_ASKED = frozenset({"deadline", "ledger", "seed"})
"""Fields that do not change a greedy reply: at temperature 0 a seed has no effect."""

MARK = re.compile(rb"<(/?)[0-9a-f]{8}( step \d+)?>")
"""The marks around data in a prompt, drawn anew for every run: two equal requests differ in nothing else."""


class Replies:
    """The replies of this evaluation, by request; in memory, and in a file if one is given."""

    def __init__(self) -> None:
        self._by_key: dict[str, Reply] = {}
        self._path: Path | None = None
        self.busy: dict[str, asyncio.Event] = {}
        """Requests that are being answered; the event is set when the reply is there or the call failed."""

    @contextmanager
    def stored_beside(self, outcomes: Path, *, resume: bool) -> Iterator[None]:
        """Stores replies in a file beside the outcomes; `resume` begins with the replies of that file. The caller must
        hold the record of these outcomes, so that no other process writes there. A lost file costs time, no answer."""
        path = outcomes.with_suffix(ENDING)
        try:
            if not resume:
                path.unlink(missing_ok=True)
            self._by_key |= _read(path)
        except OSError as error:
            raise ConfigError(f"shared drafts cannot be kept in {path}: {error}; give another --out") from None
        self._path = path
        try:
            yield
        finally:
            self._path = None

    def get(self, key: str) -> Reply | None:
        return self._by_key.get(key)

    def add(self, key: str, reply: Reply) -> None:
        self._by_key[key] = reply
        if self._path is None:
            return
        try:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(_Line(key, reply)) + b"\n")
        except OSError as error:
            log.warning("shared drafts are no longer kept in %s: %s", self._path, error)
            self._path = None


class Shared(Wrapper):
    """A worker whose greedy replies are reused for equal requests to the same weights. The meter is inside, so a reply
    keeps the attempt that measured it. `weights` is the digest of the files that answer, and `extra` has the settings
    that the worker adds to every request, so a later evaluation with others does not get these replies.
    """

    def __init__(
        self, worker: Worker, replies: Replies, *, weights: str, extra: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(metered(worker))
        self._replies = replies
        self._weights = weights
        self._extra = dict(extra or {})

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        if request.temperature != 0:
            return await self.worker.ask(request, observe=observe)
        key = self._key(request)
        while (written := self._replies.busy.get(key)) is not None:
            await written.wait()
        if (reply := self._replies.get(key)) is not None:
            return await self._given_again(reply, request, observe)
        written = self._replies.busy[key] = asyncio.Event()
        try:
            reply = await self.worker.ask(request, observe=observe)
            if _is_whole(reply, request):
                self._replies.add(key, reply)
            return reply
        finally:
            # A failed call stores nothing; the next request asks again.
            del self._replies.busy[key]
            written.set()

    def _key(self, request: Request) -> str:
        asked = {name: getattr(request, name) for name in request.__struct_fields__ if name not in NOT_ASKED}
        text = msgspec.json.encode([self._weights, self._extra, self.info.name, asked], order="deterministic")
        return hashlib.blake2b(MARK.sub(rb"<\1mark\2>", text), digest_size=16).hexdigest()

    async def _given_again(self, reply: Reply, request: Request, observe: Observe) -> Reply:
        if request.ledger is not None:
            quote = Quote(self.info.name, reply.cost_usd, 0.0, max_output_tokens=reply.usage.output_tokens)
            hold = await request.ledger.reserve(quote)
            request.ledger.settle(hold, cost_usd=reply.cost_usd, output_tokens=reply.usage.output_tokens)
        if reply.text:
            observe(Delta(reply.text))
        return reply


def took_s(trace: Trace) -> float:
    """The seconds of a run as if it had made every call itself; a shared reply counts the seconds measured at first."""
    return trace.seconds + sum(_saved_s(round) for round in trace.rounds)


def weights_digest(file: Path) -> str:
    """A digest of exactly this file, which may be larger than memory and is read again only if it has changed."""
    stat = file.stat()
    return _digest(file.resolve(), stat.st_size, stat.st_mtime_ns)


@cache
def _digest(file: Path, size_bytes: int, mtime_ns: int) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


class _Line(msgspec.Struct, frozen=True):
    key: str
    reply: Reply


def _read(path: Path) -> dict[str, Reply]:
    """The replies of an earlier run. A line that was cut off is dropped, and its question is asked again."""
    if not path.exists():
        return {}
    with path.open("r+b") as file:
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        file.truncate(len(whole))
    found: dict[str, Reply] = {}
    for number, text in enumerate(whole.splitlines(), start=1):
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.DecodeError as error:
            log.warning("line %d of %s is no shared reply, so it is asked again: %s", number, path, error)
        else:
            found[line.key] = line.reply
    return found


def _is_whole(reply: Reply, request: Request) -> bool:
    """Returns whether the reply is whole: one that a budget cut short is not reused."""
    most = request.max_output_tokens
    return reply.finish != "length" or (most is not None and reply.usage.output_tokens >= most)


def _saved_s(round: Round) -> float:
    """The seconds that sharing saved in a round: over its drafts, and along the critical path of its steps."""
    drafts_s = sum(_at_least_s(draft, draft.attempts) - (draft.ended_s - draft.started_s) for draft in round.drafts)
    measured = [
        msgspec.structs.replace(step, ended_s=step.started_s + _at_least_s(step, step.attempts)) for step in round.steps
    ]
    return drafts_s + critical_path_s(measured, round.plan) - critical_path_s(round.steps, round.plan)


def _at_least_s(record: DraftRecord | StepRecord, attempts: Sequence[Attempt]) -> float:
    """The seconds of a step; an attempt that took longer was made earlier, for another planner."""
    return max([record.ended_s - record.started_s, *(attempt.seconds for attempt in attempts)])
