"""Cached: the same request to the same worker is paid for once.

A cache must not make a sampled model repeat itself. So only requests that pin their answer are cached (temperature 0,
or a seed), unless `always` is set. The key covers every field of the request except the deadline and the ledger, so a
field that is added later changes the key without further code. The tenant is such a field: a free or quick answer must
not show one tenant what another has asked. Identical requests at the same time share one call. A reply that the
caller's own ledger or deadline cut short is neither stored nor shared. If the cache cannot be read or written, the
request is asked again: it costs money, never the answer.
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
"""Part of every key. Raise it when the meaning of stored data changes."""

NOT_IN_KEY = frozenset({"deadline", "ledger", "question", "results", "warm", "goes_on"})
"""`question` and `results` hold as data what `messages` holds as text; the others do not change a reply."""


class Cached(Wrapper):
    """Stores replies in a folder (one small file each) or in a mapping; in memory by default."""

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
        """Calls in progress, by event loop and key. A loop cannot wait for another loop's calls."""

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        if not (self._always or request.temperature == 0 or request.seed is not None):
            return await self.worker.ask(request, observe=observe)
        key = _key(self.info, request)
        loop = asyncio.get_running_loop()
        while (flight := self._flights.get((loop, key))) is not None:
            outcome = await asyncio.shield(flight)
            if isinstance(outcome, Reply):
                return self._replayed(outcome, observe)
            if outcome is not None:
                raise _copied(outcome)
        flight = self._flights[loop, key] = loop.create_future()
        outcome = None
        try:
            if (found := await self._load(key)) is not None:
                outcome = found
                return self._replayed(found, observe)
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
            # None: the caller was cancelled, or had too little money or time. Then the next caller asks.
            del self._flights[loop, key]
            flight.set_result(outcome)

    def _replayed(self, reply: Reply, observe: Observe) -> Reply:
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
            log.warning("cached reply %s of %s cannot be read and is asked again: %s", key, self.info.name, error)
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
    asked = {name: getattr(request, name) for name in request.__struct_fields__ if name not in NOT_IN_KEY}
    data = msgspec.json.encode([FORMAT, info.name, info.model, asked], order="deterministic")
    return hashlib.sha256(data).hexdigest()


def _cut_by_ledger(request: Request, reply: Reply) -> bool:
    """Return whether the ledger, not the request, limited the length of the reply."""
    asked = request.max_output_tokens
    short = asked is None or reply.usage.output_tokens < asked
    return request.ledger is not None and reply.finish == "length" and short


def _copied(error: WorkerError) -> WorkerError:
    """Return the failure of a shared call without its attempts: the caller that made the call pays for them."""
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
    """Write to a second file and rename it: a reader sees the whole reply or none."""
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
