"""The one loop that writes tokens: for the policy's plans, the specialists' replies and whatever is measured.

Each prompt is read once for its group; then all rows take turns together, a token a turn. A row is greedy, or sampled
with a seed of its own: what it says depends on its prompt and seed and, up to rounding, on nothing that shares its
batch, so a step can be drawn again exactly.

The cache grows with the text and has the prompt in every row (`dynamic`); or it is laid out at its full length before
the first turn, each prompt once for all of its group (`static`, see `turns.py`), so that every turn has the same shapes
and can be captured once as a CUDA graph and replayed (`graphs`, see `graphs.py`). `auto` takes graphs on a GPU and the
growing cache elsewhere. Short plans do not wait for long ones there: when enough groups have ended, the others move to
a smaller batch, whose cache lies over that of the batch before last. Knows nothing of plans, workers or adapters.

Dimensions: P prompts, G rollouts of a group, B rows of a batch, T tokens, L length of a cache, V vocabulary.
"""

# ruff: noqa: N803, N806 -- suffixes name dimensions

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import torch

from dirigent_gym.train.noise import seed_starts
from dirigent_gym.train.turns import Allocate, Choosing, FixedTurns, GrowingTurns, Turns, read
from dirigent_gym.train.upload import upload

if TYPE_CHECKING:
    from dirigent_gym.train.graphs import Graphs

CacheKind = Literal["auto", "dynamic", "static", "graphs"]

LOOK_EVERY_TURNS = 8
"""How often a GPU is asked whether all rows have ended: asking makes it wait."""
NARROW_ABOVE_ROWS = 256
"""Batches of so many rows or fewer are as quick whether their groups are still writing or not."""
LENGTH_STEP = 128
"""Static caches have lengths that are multiples of this, so that few shapes occur."""
ROW_BUCKETS = (16, 64, 256, 512, 1024, 1536, 2048)
"""Static batches have one of these sizes. A batch has no more rows than the last, unless one group alone does."""


class Sample(msgspec.Struct, frozen=True):
    """One completion, end mark included where the model wrote one."""

    ids: list[int]
    logprobs: list[float]


class DecodeSettings(msgspec.Struct, frozen=True):
    max_new_tokens: int
    pad: int
    end: int
    temperature: float = 1.0
    """Of the rows that are sampled, and of all logprobs."""
    cache: CacheKind = "auto"
    chunk_tokens: int = 524_288
    """Rows times length of one batch, padding counted."""


Around = Callable[[Sequence[int]], AbstractContextManager[None]]
"""Entered around each run of the model with the prompt that each row of the batch belongs to."""


def no_surroundings(prompt_of_row: Sequence[int]) -> AbstractContextManager[None]:
    return nullcontext()


@torch.no_grad()
def decode(
    model: Any,
    prompts_P: Sequence[Sequence[int]],
    *,
    seeds_PG: Sequence[Sequence[int | None]],
    settings: DecodeSettings,
    around: Around = no_surroundings,
    graphs: Graphs | None = None,
) -> list[list[Sample]]:
    """One sample for each seed of each prompt, in order; without a seed, the likeliest token each time.

    Groups are of one size. `graphs` keeps what was captured from one call to the next.
    """
    group = len(seeds_PG[0]) if seeds_PG else 1
    if any(len(seeds) != group for seeds in seeds_PG):
        raise ValueError(f"groups must be of one size, not {sorted({len(seeds) for seeds in seeds_PG})}")
    order = sorted(range(len(prompts_P)), key=lambda i: len(prompts_P[i]))
    # A cache that grows has the prompt in every row, the others once for its group.
    copies = group if _kind(model, settings, graphs) == "dynamic" else 1
    widths = [copies * len(prompt) + group * settings.max_new_tokens for prompt in prompts_P]
    groups_P: list[list[Sample]] = [[] for _ in prompts_P]
    with evaluating(model):
        for chosen in chunks(order, widths, settings.chunk_tokens, most=max(1, ROW_BUCKETS[-1] // group)):
            samples = _decode_chunk(
                model,
                [prompts_P[i] for i in chosen],
                [seed for i in chosen for seed in seeds_PG[i]],
                settings=settings,
                around=lambda rows, chosen=chosen: around([chosen[i] for i in rows]),  # type: ignore[misc]
                graphs=graphs,
            )
            for k, i in enumerate(chosen):
                groups_P[i] = samples[k * group : (k + 1) * group]
    return groups_P


def base_of(model: Any) -> Any:
    """The causal language model inside PEFT's wrapping, its adapters still on."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model without dropout inside, and as it was before afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def chunks(order: Sequence[int], widths: Sequence[int], chunk_tokens: int, *, most: int) -> Iterator[list[int]]:
    """Runs of at most so many, shortest first, whose padded size stays within the bound; one too long stands alone."""
    chunk: list[int] = []
    for i in order:
        if chunk and (len(chunk) >= most or (len(chunk) + 1) * widths[i] > chunk_tokens):
            yield chunk
            chunk = []
        chunk.append(i)
    if chunk:
        yield chunk


def cache_kind(kind: CacheKind, inner: Any, device: torch.device) -> CacheKind:
    """What is really used: graphs on a GPU only, and a static cache only under an attention that takes its mask."""
    if getattr(inner.config, "_attn_implementation", "") != "sdpa":
        return "dynamic"
    if kind in ("auto", "graphs"):
        return "graphs" if device.type == "cuda" else {"auto": "dynamic", "graphs": "static"}[kind]  # type: ignore[return-value]
    return kind


def _kind(model: Any, settings: DecodeSettings, graphs: Graphs | None) -> CacheKind:
    inner = base_of(model)
    kind = cache_kind(settings.cache, inner, next(inner.parameters()).device)
    # With nowhere to keep what is captured it would be captured for one batch.
    return "dynamic" if kind == "graphs" and graphs is None else kind


def row_bucket(rows: int) -> int:
    """The size of static batch that so many rows go into."""
    last = ROW_BUCKETS[-1]
    return next((size for size in ROW_BUCKETS if size >= rows), -(-rows // last) * last)


def _decode_chunk(
    model: Any,
    prompts: Sequence[Sequence[int]],
    seeds_B: Sequence[int | None],
    *,
    settings: DecodeSettings,
    around: Around,
    graphs: Graphs | None,
) -> list[Sample]:
    inner = base_of(model)
    device = next(inner.parameters()).device
    kind, rows = _kind(model, settings, graphs), len(seeds_B)
    with around(range(len(prompts))):
        logits_PV, mask_PT, first = _read_prompts(inner, prompts, pad=settings.pad, device=device)
    starts_B, sampled_B = seed_starts(seeds_B, device)
    sampled = sum(seed is not None for seed in seeds_B)
    choosing: Choosing = "likeliest" if not sampled else "drawn" if sampled == rows else "either"
    group, look_every = rows // len(prompts), LOOK_EVERY_TURNS if device.type == "cuda" else 1
    if kind == "dynamic":
        growing = GrowingTurns(inner, settings, rows=rows, choosing=choosing)
        growing.begin(logits_PV, mask_PT, first, starts_B=starts_B, sampled_B=sampled_B)
        with around([k for k in range(len(prompts)) for _ in range(group)]):
            _take_turns(growing, settings.max_new_tokens, look_every=look_every)
        return _cut(growing.tokens_BT, growing.logprobs_BT, end=settings.end)
    length = -(-mask_PT.shape[1] // LENGTH_STEP) * LENGTH_STEP
    shape = Shape(prompts=_places(len(prompts), group), group=group, length=length, choosing=choosing)

    def turns_for(shape: Shape, prompts: Sequence[int], narrowed: int) -> FixedTurns:
        return _fixed_turns(
            inner, settings, shape, first=first, graphs=graphs if kind == "graphs" else None, narrowed=narrowed,
            surroundings=around(_rows_of(prompts, shape)),
        )  # fmt: skip

    turns = turns_for(shape, range(len(prompts)), 0)
    turns.begin(logits_PV, mask_PT, first, starts_B=starts_B, sampled_B=sampled_B)
    tokens_BT, logprobs_BT = _narrowing(
        turns, shape, len(prompts), turns_for=turns_for, around=around, look_every=look_every
    )
    return _cut(tokens_BT, logprobs_BT, end=settings.end)


def _read_prompts(
    inner: Any, prompts: Sequence[Sequence[int]], *, pad: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Logits after each prompt, which of the padded tokens are its own, and the cache of what was read."""
    from transformers import DynamicCache

    ids_PT, mask_PT = upload(_padded(prompts, pad=pad), device).unbind(0)
    cache = DynamicCache(config=inner.config)
    positions_PT = (mask_PT.cumsum(1) - 1).clamp(min=0)
    return read(inner, ids_PT, mask_PT, positions_PT, cache), mask_PT, cache


def _padded(prompts: Sequence[Sequence[int]], *, pad: int) -> np.ndarray[Any, Any]:
    """Ids with padding before them, and which of them are a prompt's own."""
    longest = max(len(prompt) for prompt in prompts)
    table = np.zeros((2, len(prompts), longest), dtype=np.int64)
    table[0].fill(pad)
    for ids, own, prompt in zip(*table, prompts, strict=True):
        ids[longest - len(prompt) :] = prompt
        own[longest - len(prompt) :] = 1
    return table


def _narrowing(
    turns: FixedTurns,
    shape: Shape,
    prompts: int,
    *,
    turns_for: Callable[[Shape, Sequence[int], int], FixedTurns],
    around: Around,
    look_every: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take turns to the end, in ever smaller batches as groups end; what all rows said, in the order of the prompts."""
    there = list(range(prompts))
    """The prompt that stands at each place of the batch; places beyond have none."""
    tokens_BT = turns.tokens_BT.new_empty(prompts * shape.group, turns.tokens_BT.shape[1])
    logprobs_BT = turns.logprobs_BT.new_empty(tokens_BT.shape)
    for narrowed in count(1):
        with around(_rows_of(there, shape)):
            places = _take_turns(turns, turns.settings.max_new_tokens, look_every=look_every, shape=shape)
        rows = _rows_at(there, shape.group, turns.tokens_BT.device)
        tokens_BT[rows] = turns.tokens_BT[: len(rows)]
        logprobs_BT[rows] = turns.logprobs_BT[: len(rows)]
        if not places:
            break
        there = [there[place] for place in places]
        shape = msgspec.structs.replace(shape, prompts=_places(len(places), shape.group))
        smaller = turns_for(shape, there, narrowed)
        smaller.take_over(turns, places, group=shape.group)
        turns = smaller
    return tokens_BT, logprobs_BT


def _places(prompts: int, group: int) -> int:
    """Places for prompts in the smallest static batch that holds so many groups."""
    return -(-row_bucket(prompts * group) // group)


def _rows_of(prompts: Sequence[int], shape: Shape) -> list[int]:
    """The prompt of each row of a batch; rows that have none read the first one's, to no effect."""
    return [k for k in prompts for _ in range(shape.group)] + [0] * ((shape.prompts - len(prompts)) * shape.group)


def _rows_at(prompts: Sequence[int], group: int, device: Any) -> torch.Tensor:
    return upload((np.array(prompts, dtype=np.int64)[:, None] * group + np.arange(group)).reshape(-1), device)


class Shape(msgspec.Struct, frozen=True):
    """What turns over a static cache are made for."""

    prompts: int
    group: int
    length: int
    """Of the prompts."""
    choosing: Choosing


def _fixed_turns(
    inner: Any,
    settings: DecodeSettings,
    shape: Shape,
    *,
    first: Any,
    graphs: Graphs | None,
    narrowed: int,
    surroundings: AbstractContextManager[None],
) -> FixedTurns:
    """Turns over a static cache: captured before or now where there is somewhere to keep them, else plain."""

    def build(allocate: Allocate | None = None) -> FixedTurns:
        return FixedTurns(inner, settings, **msgspec.structs.asdict(shape), like=first, allocate=allocate)

    if graphs is None:
        return build()
    with surroundings:
        return graphs.turns(inner, settings, shape, narrowed=narrowed, build=build)


def _take_turns(turns: Turns, max_new_tokens: int, *, look_every: int, shape: Shape | None = None) -> list[int]:
    """Turns until all rows have ended, or until the groups that go on would do with a smaller batch: their places."""
    for turn in range(turns.taken, max_new_tokens):
        if turn % look_every == 0:
            places = _unended(turns.done_B, shape)
            if not places:
                return []
            if shape is not None and _would_do_with_less(len(places), shape):
                return places
        turns.take()
    return []


def _unended(done_B: torch.Tensor, shape: Shape | None) -> list[int]:
    """The groups in which some row goes on; without a shape all rows count as one."""
    live_P = ~done_B.view(1 if shape is None else shape.prompts, -1).all(1)
    places: list[int] = live_P.nonzero()[:, 0].tolist()
    return places


def _would_do_with_less(groups: int, shape: Shape) -> bool:
    # Places are compared, not rows: where groups do not divide a batch's size it has a few rows more than that.
    return shape.prompts * shape.group > NARROW_ABOVE_ROWS and _places(groups, shape.group) < shape.prompts


def _cut(tokens_BT: torch.Tensor, logprobs_BT: torch.Tensor, *, end: int) -> list[Sample]:
    """Rows up to their end mark."""
    tokens, logprobs = tokens_BT.cpu().numpy(), logprobs_BT.cpu().numpy()
    ends = tokens == end
    lengths = np.where(ends.any(1), ends.argmax(1) + 1, tokens.shape[1]).tolist()
    return [
        Sample(ids[:length].tolist(), of[:length].tolist())
        for ids, of, length in zip(tokens, logprobs, lengths, strict=True)
    ]
