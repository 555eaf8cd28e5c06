"""One batch while it is being written: what every row has said so far, and how one more token is said.

`choose` takes a token for every row from the logits at hand; `take` reads the last tokens and chooses the next ones.
Two kinds differ only in the cache they read from: one grows by a column a turn, the other has all its columns from the
start and moves a pointer. Of the latter a turn is the same work on the same memory every time, with nothing decided on
the host, which is what a captured graph needs.
"""

# ruff: noqa: N803, N806, N815 -- suffixes name dimensions: see `decode.py`

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from dirigent_gym.train.noise import draw, uniforms
from dirigent_gym.train.passes import fused_norms

if TYPE_CHECKING:
    from dirigent_gym.train.decode import DecodeSettings


def read(inner: Any, ids_BT: torch.Tensor, mask: torch.Tensor, positions_BT: torch.Tensor, cache: Any) -> torch.Tensor:
    """Logits after the last token. The one place that runs a model to write with it."""
    kind = ids_BT.device.type
    # No cache of cast weights: a captured graph must cast the weights of its own time, which training moves.
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda", cache_enabled=False):
        hidden_BTD = inner.model(
            input_ids=ids_BT, attention_mask=mask, position_ids=positions_BT, past_key_values=cache, use_cache=True
        ).last_hidden_state
        logits_BV: torch.Tensor = inner.lm_head(hidden_BTD[:, -1])
    return logits_BV


@contextmanager
def shared_prompt_attention(config: Any) -> Iterator[None]:
    """Inside, a model reads from a `FixedCache`: each prompt once for all the rows that share it.

    A row's own tokens are few where its prompt is long. Repeated over its group, as transformers would have it, the
    prompt's cache is most of what a turn reads; and repeated again for query heads that share keys, several times that.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if config._attn_implementation != "sdpa":
        yield
        return
    ALL_ATTENTION_FUNCTIONS.register(SHARED_PROMPT, _attend)
    config._attn_implementation = SHARED_PROMPT
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"


SHARED_PROMPT = "dirigent_shared_prompt"


ROOM_STEP = 64


def rooms(columns: int) -> tuple[int, ...]:
    """How much of its own text a turn may read: not all of the room while little has been said."""
    return (*range(ROOM_STEP, columns, ROOM_STEP), columns)


class Layer(NamedTuple):
    """What one layer has to read from. Handed through transformers in place of its keys."""

    prompt_keys_PKLD: torch.Tensor
    prompt_values_PKLD: torch.Tensor
    own_keys_BKCD: torch.Tensor
    own_values_BKCD: torch.Tensor
    bias_PS: torch.Tensor
    """Added to scores over the prompt's tokens, then the row's own: 0 where there is something to read, else -inf."""

    def up_to(self, longest: int, columns: int) -> Layer:
        """The same with only the first columns of what rows said."""
        return self._replace(
            own_keys_BKCD=self.own_keys_BKCD[:, :, :columns],
            own_values_BKCD=self.own_values_BKCD[:, :, :columns],
            bias_PS=self.bias_PS[:, : longest + columns],
        )


def _attend(
    module: Any,
    query_BHTD: torch.Tensor,
    layer: Layer,
    values: None,
    mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """One query a row. The heads that share a key are to attention what queries of one sequence are, and so are the
    rows that share a prompt: P prompts, G rows each, K key heads, R query heads each, S = L + C tokens to read."""
    rows, heads, turns, size = query_BHTD.shape
    assert turns == 1, "one query a row"
    prompts, keys, longest, _ = layer.prompt_keys_PKLD.shape
    group, repeats = rows // prompts, heads // keys
    with torch.autocast(query_BHTD.device.type, enabled=False):
        query_BKRD = (query_BHTD * (size**-0.5 if scaling is None else scaling)).reshape(rows, keys, repeats, size)
        query_BKRD = query_BKRD.to(layer.own_keys_BKCD.dtype)
        of_prompt = _by_prompt(query_BKRD, prompts) @ layer.prompt_keys_PKLD.transpose(2, 3)
        of_prompt = of_prompt.view(prompts, keys, group, repeats, longest).transpose(1, 2)
        of_own = (query_BKRD @ layer.own_keys_BKCD.transpose(2, 3)).view(prompts, group, keys, repeats, -1)
        scores = torch.cat([of_prompt, of_own], dim=-1) + layer.bias_PS[:, None, None, None]
        weights = scores.softmax(-1).view(rows, keys, repeats, -1)
        from_prompt = _by_prompt(weights[..., :longest], prompts) @ layer.prompt_values_PKLD
        from_prompt = from_prompt.view(prompts, keys, group, repeats, size).transpose(1, 2)
        from_own = (weights[..., longest:] @ layer.own_values_BKCD).view(prompts, group, keys, repeats, size)
        found = from_prompt + from_own
    return found.reshape(rows, 1, heads, size), None


def _by_prompt(rows_BKRX: torch.Tensor, prompts: int) -> torch.Tensor:
    """Rows of one prompt as queries of one sequence: [P, K, G * R, X]."""
    rows, keys, repeats, width = rows_BKRX.shape
    rows_PGKRX = rows_BKRX.view(prompts, rows // prompts, keys, repeats, width)
    return rows_PGKRX.transpose(1, 2).reshape(prompts, keys, -1, width)


Choosing = Literal["drawn", "likeliest", "either"]
"""How a batch's rows choose: all by their seeds, all without one, or each as it says itself."""


class Turns(ABC):
    """What both kinds share."""

    def __init__(self, inner: Any, settings: DecodeSettings, *, rows: int, choosing: Choosing) -> None:
        device = next(inner.parameters()).device
        self.inner = inner
        self.settings = settings
        self.tokens_BT = torch.full((rows, settings.max_new_tokens), settings.pad, dtype=torch.long, device=device)
        self.logprobs_BT = torch.zeros(rows, settings.max_new_tokens, device=device)
        self.done_B = torch.zeros(rows, dtype=torch.bool, device=device)
        self.turn = torch.zeros(1, dtype=torch.long, device=device)
        self.token_B = torch.zeros(rows, dtype=torch.long, device=device)
        self.position_B = torch.zeros(rows, dtype=torch.long, device=device)
        self.starts_B = torch.zeros(rows, dtype=torch.int64, device=device)
        self.sampled_B = torch.zeros(rows, dtype=torch.bool, device=device)
        self.choosing = choosing
        self.taken = 0
        """Turns so far, as the host counts them."""

    def begin(
        self,
        logits_PV: torch.Tensor,
        mask_PT: torch.Tensor,
        first: Any,
        *,
        starts_B: torch.Tensor,
        sampled_B: torch.Tensor,
    ) -> None:
        """Start from prompts that were read, each repeated over its group; rows beyond them have nothing to say."""
        rows, group = len(starts_B), len(starts_B) // len(logits_PV)
        self.tokens_BT.fill_(self.settings.pad)
        self.logprobs_BT.zero_()
        self.done_B.zero_()
        self.done_B[rows:] = True
        self.turn.zero_()
        self.taken = 1
        self.position_B[:rows] = (mask_PT.sum(1) - 1).repeat_interleave(group, 0)
        self.starts_B[:rows] = starts_B
        self.sampled_B[:rows] = sampled_B
        self.sampled_B[rows:] = False
        self._keep(mask_PT, first, group=group)
        logits_BV = logits_PV.new_zeros(len(self.done_B), logits_PV.shape[1])
        logits_BV[:rows] = logits_PV.repeat_interleave(group, 0)
        self.choose(logits_BV)

    def choose(self, logits_BV: torch.Tensor) -> None:
        """A token for every row. Over a large vocabulary every pass counts: probabilities are made once, and nothing
        else is as wide."""
        scores_BV = logits_BV if self.settings.temperature == 1.0 else logits_BV.float() / self.settings.temperature
        probabilities_BV = torch.softmax(scores_BV, dim=-1, dtype=torch.float32)
        if self.choosing == "likeliest":
            token_B = scores_BV.argmax(-1)
        else:
            token_B = draw(probabilities_BV, uniforms(self.starts_B, self.turn))
            if self.choosing == "either":
                token_B = torch.where(self.sampled_B, token_B, scores_BV.argmax(-1))
        token_B = torch.where(self.done_B, self.settings.pad, token_B)
        self.tokens_BT.index_copy_(1, self.turn, token_B[:, None])
        self.logprobs_BT.index_copy_(1, self.turn, probabilities_BV.gather(1, token_B[:, None]).log())
        self.done_B.logical_or_(token_B == self.settings.end)
        self.token_B.copy_(token_B)
        self.turn.add_(1)

    def take(self) -> None:
        """One more turn."""
        self.choose(self.read_last())
        self.taken += 1

    def read_last(self) -> torch.Tensor:
        """Read the tokens of the last turn: the logits of the next."""
        self.position_B.add_(1)
        mask, cache = self._one_more()
        return read(self.inner, self.token_B[:, None], mask, self.position_B[:, None], cache)

    @abstractmethod
    def _keep(self, mask_PT: torch.Tensor, first: Any, *, group: int) -> None:
        """Take over what was read of the prompts."""

    @abstractmethod
    def _one_more(self) -> tuple[torch.Tensor, Any]:
        """Make room for one more token a row: the mask and the cache to read it with."""


class GrowingTurns(Turns):
    """Over transformers' own cache, longer by a column every turn."""

    def _keep(self, mask_PT: torch.Tensor, first: Any, *, group: int) -> None:
        if group > 1:
            first.batch_repeat_interleave(group)
        self._cache = first
        room = mask_PT.new_ones(len(self.done_B), self.settings.max_new_tokens)
        self._mask_BL = torch.cat([mask_PT.repeat_interleave(group, 0), room], dim=1)
        self._length = mask_PT.shape[1]

    def _one_more(self) -> tuple[torch.Tensor, Any]:
        self._length += 1
        return self._mask_BL[:, : self._length], self._cache


class FixedTurns(Turns):
    """Over a cache of fixed length. Used again for the next batch of the same shape."""

    def __init__(
        self,
        inner: Any,
        settings: DecodeSettings,
        *,
        prompts: int,
        group: int,
        length: int,
        choosing: Choosing,
        like: Any,
        allocate: Allocate | None = None,
    ) -> None:
        super().__init__(inner, settings, rows=prompts * group, choosing=choosing)
        self.replays: dict[int, Callable[[], None]] = {}
        """Captured turns, where there are any, by how many columns of what rows said they read."""
        self.rooms = rooms(settings.max_new_tokens)
        self._cache = FixedCache(
            like, prompts=prompts, group=group, length=length, room=settings.max_new_tokens, allocate=allocate or zeros
        )

    def take(self) -> None:
        # After so many turns there is one column less than that, and this turn adds one.
        room = next(room for room in self.rooms if room >= self.taken)
        if room in self.replays:
            self.replays[room]()
            self.taken += 1
        else:
            self.take_reading(room)

    def take_reading(self, columns: int) -> None:
        """One more turn, in which rows read the first so many columns of what they said."""
        self._cache.columns = columns
        super().take()

    def read_last(self) -> torch.Tensor:
        with shared_prompt_attention(self.inner.config), fused_norms(self.inner.model):
            return super().read_last()

    def take_over(self, wider: FixedTurns, places: Sequence[int], *, group: int) -> None:
        """Go on with some of the prompts of another batch of the same group size and length, by their places in it."""
        device = self.turn.device
        at_P = torch.tensor(places, device=device)
        at_B = (at_P[:, None] * group + torch.arange(group, device=device)).flatten()
        rows = len(at_B)
        for name in ("tokens_BT", "logprobs_BT", "done_B", "token_B", "position_B", "starts_B", "sampled_B"):
            getattr(self, name)[:rows] = getattr(wider, name)[at_B]
        self.done_B[rows:] = True
        self.sampled_B[rows:] = False
        self.turn.copy_(wider.turn)
        self.taken = wider.taken
        self._cache.take_over(wider._cache, at_P, at_B)

    def restart(self) -> None:
        """Back to the first turn, so that turns taken only to warm up leave nothing behind that is out of range."""
        self.turn.zero_()
        self.taken = 1
        self._cache.restart()

    def _keep(self, mask_PT: torch.Tensor, first: Any, *, group: int) -> None:
        self._cache.fill(first, mask_PT)

    def _one_more(self) -> tuple[torch.Tensor, Any]:
        return self._cache.next_column(), self._cache


class Space(NamedTuple):
    """A tensor that is wanted."""

    shape: tuple[int, ...]
    like: torch.Tensor
    """One of the type it is to have, where it is to lie."""


Allocate = Callable[[Sequence[Space]], list[torch.Tensor]]
"""Gives a tensor for each. Any finite numbers may stand in them."""


def zeros(spaces: Sequence[Space]) -> list[torch.Tensor]:
    return [space.like.new_zeros(space.shape) for space in spaces]


class FixedCache:
    """Keys and values of every layer: of prompts, once each, and of what rows say after them, a column a turn.

    Has of transformers' caches only what a Llama asks of one. Written here because theirs has changed its arguments
    from release to release, and a GPU image rarely has the newest.

    Keys and values may lie where another cache's lay. What is not yet written is read all the same, with a bias of -inf
    and so a weight of 0: whatever finite number stands there comes to nothing.
    """

    is_compileable = False

    def __init__(self, like: Any, *, prompts: int, group: int, length: int, room: int, allocate: Allocate) -> None:
        keys = like.layers[0].keys
        self.columns = room
        """How many columns of what rows said are read: those that are empty need not be."""
        self._longest = length
        self._before = torch.zeros(1, dtype=torch.long, device=keys.device)
        self._column = torch.zeros(1, dtype=torch.long, device=keys.device)
        self._bias_PS = keys.new_full((prompts, length + room), float("-inf"))
        self._bias_PS[:, 0] = 0.0  # a row that may read nothing at all would divide by zero
        spaces = [
            Space((rows, of.shape[1], tokens, of.shape[3]), of)
            for layer in like.layers
            for rows, tokens in ((prompts, length), (prompts * group, room))
            for of in (layer.keys, layer.values)
        ]
        tensors = iter(allocate(spaces))
        self._layers = [
            Layer(next(tensors), next(tensors), next(tensors), next(tensors), self._bias_PS) for _ in like.layers
        ]

    def fill(self, first: Any, mask_PT: torch.Tensor) -> None:
        """Take over what was read of the prompts."""
        prompts, longest = mask_PT.shape
        self._bias_PS.fill_(float("-inf"))
        self._bias_PS[:, 0] = 0.0
        self._bias_PS[:prompts, :longest] = torch.where(mask_PT.bool(), 0.0, float("-inf")).to(self._bias_PS.dtype)
        for mine, theirs in zip(self._layers, first.layers, strict=True):
            mine.prompt_keys_PKLD[:prompts, :, :longest] = theirs.keys
            mine.prompt_values_PKLD[:prompts, :, :longest] = theirs.values
        self.restart()

    def take_over(self, wider: FixedCache, at_P: torch.Tensor, at_B: torch.Tensor) -> None:
        """Keys and values of some of another cache's prompts and of their rows."""
        prompts, rows = len(at_P), len(at_B)
        self._bias_PS.fill_(float("-inf"))
        self._bias_PS[:, 0] = 0.0
        self._bias_PS[:prompts] = wider._bias_PS[at_P]
        for mine, theirs in zip(self._layers, wider._layers, strict=True):
            mine.prompt_keys_PKLD[:prompts] = theirs.prompt_keys_PKLD[at_P]
            mine.prompt_values_PKLD[:prompts] = theirs.prompt_values_PKLD[at_P]
            mine.own_keys_BKCD[:rows] = theirs.own_keys_BKCD[at_B]
            mine.own_values_BKCD[:rows] = theirs.own_values_BKCD[at_B]
        self._column.copy_(wider._column)
        self._before.copy_(wider._before)

    def restart(self) -> None:
        self._column.fill_(-1)
        self._before.fill_(self._longest - 1)

    def next_column(self) -> torch.Tensor:
        """Make room for one more token a row. What is returned keeps transformers from making a mask of its own."""
        self._column.add_(1)
        self._before.add_(1)
        self._bias_PS.index_fill_(1, self._before, 0.0)
        mask: torch.Tensor = self._bias_PS[:, None, None]
        return mask

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Layer, None]:
        layer = self._layers[layer_idx]
        layer.own_keys_BKCD.index_copy_(2, self._column, keys.to(layer.own_keys_BKCD.dtype))
        layer.own_values_BKCD.index_copy_(2, self._column, values.to(layer.own_values_BKCD.dtype))
        return layer.up_to(self._longest, self.columns), None

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0
