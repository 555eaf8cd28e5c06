"""Cached: the same question to the same worker is paid for once.

Only requests that pin their answer are kept (temperature 0, or a seed), unless `always` is set: a cache must
not make a sampled model repeat itself. Deadline and ledger are not part of the question; every other field of
the request is, so one that is added later changes the key by itself. The tenant is such a field: nobody can tell, by
an answer that is free or quick, what another has asked. Identical requests at the same time share one call. What only
its caller's ledger or deadline cut short is neither kept nor shared. A cache that cannot be written or read costs the
saving, never the answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import MutableMapping
from pathlib import Path

import msgspec

from dirigent.errors import WorkerError
from dirigent.messages import Attempt, Delta, Observe, Reply, Request, Usage, ignore
from dirigent.workers.worker import Worker, WorkerInfo, Wrapper

log = logging.getLogger(__name__)

FORMAT = 1
"""Part of every key: raised when what is stored changes its meaning."""

NOT_ASKED = frozenset({"deadline", "ledger"})


class Cached(Wrapper):
    """Keeps replies in a folder (one small file each) or in a mapping; by default in memory."""

    def __init__(
        self,
        worker: Worker,
        store: Path | str | MutableMapping[str, bytes] | None = None,
        *,
        always: bool = False,
    ) -> None:
        super().__init__(worker)
        self._folder = Path(store) if isinstance(store, str | Path) else None
        self._memory: MutableMapping[str, bytes] = {} if store is None or isinstance(store, str | Path) else store
        self._always = always
        self._flights: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Future[Reply | WorkerError | None]] = {}
        """Calls under way, by event loop: another one cannot wait for them."""

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        if not (self._always or request.temperature == 0 or request.seed is not None):
            return await self.worker.ask(request, observe=observe)
        key = _key(self.info, request)
        loop = asyncio.get_running_loop()
        while (flight := self._flights.get((loop, key))) is not None:
            outcome = await asyncio.shield(flight)
            if isinstance(outcome, Reply):
                return self._given_again(outcome, observe)
            if outcome is not None:
                raise _retold(outcome)
        flight = self._flights[loop, key] = loop.create_future()
        outcome = None
        try:
            if (found := await self._load(key)) is not None:
                outcome = found
                return self._given_again(found, observe)
            reply = await self.worker.ask(request, observe=observe)
            if not _cut_by_ledger(request, reply):
                outcome = reply
                await self._save(key, reply)
            return reply
        except WorkerError as error:
            if request.deadline is None or time.monotonic() < request.deadline:
                outcome = error
            raise
        finally:
            # None: the caller was cancelled, or had too little money or time; its own affair, and the next one asks.
            del self._flights[loop, key]
            flight.set_result(outcome)

    def _given_again(self, reply: Reply, observe: Observe) -> Reply:
        if reply.text:
            observe(Delta(reply.text))
        attempt = Attempt(self.info.name, 0.0, cached=True)
        return msgspec.structs.replace(reply, usage=Usage(), cost_usd=0.0, attempts=(attempt,), seconds=0.0)

    async def _load(self, key: str) -> Reply | None:
        try:
            if self._folder is None:
                data = self._memory[key]
            else:
                data = await asyncio.to_thread(_path(self._folder, key).read_bytes)
            return msgspec.json.decode(data, type=Reply)
        except (KeyError, FileNotFoundError):
            return None
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("cached reply %s of %s cannot be read, asking again: %s", key, self.info.name, error)
            return None

    async def _save(self, key: str, reply: Reply) -> None:
        data = msgspec.json.encode(reply)
        if self._folder is None:
            self._memory[key] = data
            return
        try:
            await asyncio.to_thread(_write, _path(self._folder, key), data)
        except OSError as error:
            log.warning("reply of %s was not cached in %s: %s", self.info.name, self._folder, error)


def _key(info: WorkerInfo, request: Request) -> str:
    asked = {name: getattr(request, name) for name in request.__struct_fields__ if name not in NOT_ASKED}
    data = msgspec.json.encode([FORMAT, info.name, info.model, asked], order="deterministic")
    return hashlib.sha256(data).hexdigest()


def _cut_by_ledger(request: Request, reply: Reply) -> bool:
    """Whether the reply ended for its length before it was as long as the request allows."""
    asked = request.max_output_tokens
    short = asked is None or reply.usage.output_tokens < asked
    return request.ledger is not None and reply.finish == "length" and short


def _retold(error: WorkerError) -> WorkerError:
    """The failure of the call that was shared; its attempts are on the bill of whoever made it."""
    return WorkerError(
        str(error),
        said=error.said,
        worker=error.worker,
        fault=error.fault,
        status=error.status,
        retry_after_s=error.retry_after_s,
    )


def _path(folder: Path, key: str) -> Path:
    return folder / key[:2] / f"{key}.json"


def _write(path: Path, data: bytes) -> None:
    """Write beside the file, then rename: whoever reads sees the whole reply or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
