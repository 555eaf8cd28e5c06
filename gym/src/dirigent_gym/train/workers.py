"""The gym's specialists as workers for training: many asks, few batches, the same answer to the same thing.

`TorchWorkers` answers from adapters in memory. An ask waits in a queue; once the event loop has nothing more to add,
all that is waiting is answered in one batched generation, rows of different adapters together. So a thousand plans
that run at the same time cost about as many batches as the deepest of them has steps. Reliable specialists are greedy,
and what they once answered is remembered; the unreliable one is sampled with the seed of the request, which
`reward.score` makes different for every attempt and the same for every run. `ExactWorkers` has the same face and
answers by the gym's tables, with no model and no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from dirigent.errors import WorkerError
from dirigent.messages import Message, Observe, Reply, Request, Usage, ignore
from dirigent.workers.worker import Worker, WorkerInfo
from dirigent_gym.questions.oracle import answer, read_view
from dirigent_gym.questions.specialists import RL_ROSTER, ROSTER, Specialist

if TYPE_CHECKING:
    from dirigent_gym.train.decode import CacheKind
    from dirigent_gym.train.stacked import Stacked

MAX_NEW_TOKENS = 24
"""No right answer in the gym is longer."""

QUIET_TURNS = 12
"""Turns of the event loop without a new ask before a batch is run: more than it takes from a reply to the next ask."""


class Counts(msgspec.Struct, frozen=True):
    """What was asked since the counts were last taken."""

    asks: int = 0
    remembered: int = 0
    """Answered without a row of their own: from memory, or together with an equal ask."""
    batches: int = 0
    rows: int = 0

    @property
    def hit_rate(self) -> float:
        return self.remembered / self.asks if self.asks else 0.0


def load_workers(
    model: Any,
    tokenizer: Any,
    folders: Sequence[str],
    *,
    specialists: Sequence[Specialist] = RL_ROSTER,
    **options: Any,
) -> TorchWorkers:
    """The specialists whose adapters lie in these folders, the first that has one, on a base that is left as it is."""
    from dirigent_gym.train.adapters import find_adapters, load_adapters
    from dirigent_gym.train.stacked import stack

    paths = find_adapters(folders, [specialist.name for specialist in specialists])
    stacked = stack(model, load_adapters(paths, config=model.config))
    return TorchWorkers(stacked, tokenizer, specialists, **options)


class TorchWorkers(Mapping[str, Worker]):
    """Workers by name over one stacked model. Belongs to one event loop at a time."""

    def __init__(
        self,
        stacked: Stacked,
        tokenizer: Any,
        specialists: Sequence[Specialist] = RL_ROSTER,
        *,
        max_new_tokens: int = MAX_NEW_TOKENS,
        most_remembered: int = 200_000,
        chunk_tokens: int = 262_144,
        cache: CacheKind = "auto",
    ) -> None:
        self._stacked = stacked
        self._tokenizer = tokenizer
        self._max_new_tokens = max_new_tokens
        self._most_remembered = most_remembered
        self._chunk_tokens = chunk_tokens
        self._cache = cache
        self._workers = {s.name: _Queued(s, stacked.index(s.name), self, max_new_tokens) for s in specialists}
        self._remembered: dict[_Key, Reply] = {}
        self._asked: dict[_Key, asyncio.Future[Reply]] = {}
        self._waiting: list[_Call] = []
        self._collector: asyncio.Task[None] | None = None
        self._counts = Counts()

    def __getitem__(self, name: str) -> Worker:
        return self._workers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def take_counts(self) -> Counts:
        """What was asked since the last time, and begin anew."""
        counts, self._counts = self._counts, Counts()
        return counts

    async def reply(self, call: _Call) -> Reply:
        """The answer to a call: remembered, shared with an equal call under way, or written in the next batch."""
        self._count(asks=1)
        if (known := self._remembered.pop(call.key, None)) is not None:
            # Put back at the end: the dict's order is that of last use.
            self._remembered[call.key] = known
            self._count(remembered=1)
            return known
        future = self._asked.get(call.key)
        if future is None:
            future = self._asked[call.key] = asyncio.get_running_loop().create_future()
            self._waiting.append(call)
            if self._collector is None or self._collector.done():
                self._collector = asyncio.create_task(self._collect())
        else:
            self._count(remembered=1)
        # Shielded: one of several that wait for the same answer may go away.
        return await asyncio.shield(future)

    async def _collect(self) -> None:
        """Answer batch after batch until nobody waits."""
        try:
            while self._waiting:
                await self._quiet()
                calls, self._waiting = self._waiting, []
                await self._answer(calls)
        finally:
            for call in self._waiting:
                self._asked.pop(call.key).cancel()
            self._waiting = []

    async def _quiet(self) -> None:
        """Let the loop turn until no new ask has come for a while."""
        turns, known = 0, len(self._waiting)
        while turns < QUIET_TURNS:
            await asyncio.sleep(0)
            turns = turns + 1 if len(self._waiting) == known else 0
            known = len(self._waiting)

    async def _answer(self, calls: list[_Call]) -> None:
        try:
            replies = await asyncio.to_thread(self._write, calls)
        except asyncio.CancelledError:
            for call in calls:
                self._asked.pop(call.key).cancel()
            raise
        except Exception as error:
            # Not a worker's failure but a fault of ours or of the device: whoever waits shall see it as it is.
            for call in calls:
                future = self._asked.pop(call.key)
                future.set_exception(error)
                future.exception()  # Seen, even if nobody waits any more.
            return
        self._count(batches=1, rows=len(calls))
        for call, reply in zip(calls, replies, strict=True):
            if call.seed is None:
                self._remember(call.key, reply)
            self._asked.pop(call.key).set_result(reply)

    def _write(self, calls: Sequence[_Call]) -> list[Reply]:
        from dirigent_gym.train.base import encode, prompt_texts
        from dirigent_gym.train.decode import DecodeSettings
        from dirigent_gym.train.stacked import write

        prompts = encode(self._tokenizer, prompt_texts(self._tokenizer, [call.messages for call in calls]))
        written = write(
            self._stacked,
            prompts,
            adapters=[call.adapter for call in calls],
            seeds=[call.seed for call in calls],
            settings=DecodeSettings(
                self._max_new_tokens,
                pad=self._tokenizer.pad_token_id,
                end=self._tokenizer.eos_token_id,
                cache=self._cache,
                chunk_tokens=self._chunk_tokens,
            ),
        )
        texts = self._tokenizer.batch_decode(written, skip_special_tokens=True)
        return [
            Reply(
                text.strip(),
                finish="stop" if len(ids) < self._max_new_tokens else "length",
                usage=Usage(len(prompt), len(ids)),
            )
            for text, ids, prompt in zip(texts, written, prompts, strict=True)
        ]

    def _remember(self, key: _Key, reply: Reply) -> None:
        self._remembered[key] = reply
        if len(self._remembered) > self._most_remembered:
            del self._remembered[next(iter(self._remembered))]

    def _count(self, *, asks: int = 0, remembered: int = 0, batches: int = 0, rows: int = 0) -> None:
        old = self._counts
        self._counts = Counts(old.asks + asks, old.remembered + remembered, old.batches + batches, old.rows + rows)


class ExactWorkers(Mapping[str, Worker]):
    """Workers by name that answer as perfectly trained specialists would, but for what they are `misled` by."""

    def __init__(self, specialists: Sequence[Specialist] = ROSTER, *, misled: float = 0.0) -> None:
        self._workers = {specialist.name: _Exact(specialist, self, misled) for specialist in specialists}
        self._asks = 0

    def __getitem__(self, name: str) -> Worker:
        return self._workers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def take_counts(self) -> Counts:
        """What was asked since the last time, and begin anew."""
        asks, self._asks = self._asks, 0
        return Counts(asks=asks)

    def count_ask(self) -> None:
        self._asks += 1


_Key = tuple[str, tuple[Message, ...], int | None]
"""Worker, what it is shown, and its seed if it is sampled."""


@dataclass(frozen=True)
class _Call:
    worker: str
    adapter: int
    messages: tuple[Message, ...]
    seed: int | None
    key: _Key = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (self.worker, self.messages, self.seed))


class _Queued:
    """One specialist of `TorchWorkers`."""

    def __init__(self, specialist: Specialist, adapter: int, workers: TorchWorkers, output_tokens: int) -> None:
        self.info = _info(specialist, kind="torch", output_tokens=output_tokens)
        self._sampled = specialist.noise > 0
        self._adapter = adapter
        self._all = workers

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        _check(request, self.info)
        seed = (request.seed or 0) if self._sampled else None
        return await self._all.reply(_Call(self.info.name, self._adapter, request.messages, seed))


class _Exact:
    """One specialist of `ExactWorkers`."""

    def __init__(self, specialist: Specialist, workers: ExactWorkers, misled: float) -> None:
        self.info = _info(specialist, kind="exact")
        self._specialist = specialist
        self._all = workers
        self._misled = misled

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        _check(request, self.info)
        self._all.count_ask()
        subtask, results = read_view(request.messages[-1])
        seed = str(request.seed or 0)
        return Reply(answer(self._specialist, subtask, results, seed=seed, misled=self._misled))


def _info(specialist: Specialist, *, kind: str, output_tokens: int = MAX_NEW_TOKENS) -> WorkerInfo:
    return WorkerInfo(
        specialist.name,
        about=specialist.about,
        kind=kind,
        price=specialist.price,
        output_tokens=output_tokens,
        skills=specialist.skills,
        abilities=frozenset({"seed"}),
        subtask_only=True,
    )


def _check(request: Request, info: WorkerInfo) -> None:
    """A specialist answers a text with a text and sets its own temperature; whatever else is wanted is refused."""
    for name in ("tools", "schema", "json_mode", "grammar", "temperature", "top_p", "stop", "effort"):
        if value := getattr(request, name):
            raise WorkerError(
                f"{info.name} cannot honour {name} = {value!r}; ask without it", worker=info.name, fault="request"
            )
