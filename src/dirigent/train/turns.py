"""One batch while it is being written: what every row has said so far, and how one more token is said.

`choose` takes a token for every row from the logits at hand; `take` reads the last tokens and chooses the next ones.
Two kinds differ only in the cache they read from: one grows by a column a turn, the other has all its columns from the
start and moves a pointer. Of the latter a turn is the same work on the same memory every time, with nothing decided on
the host, which is what a captured graph needs.
"""

# ruff: noqa: N803, N806 -- suffixes name dimensions: see `decode.py`

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from dirigent.train.noise import draw, uniforms

if TYPE_CHECKING:
    from dirigent.train.decode import DecodeSettings


def read(inner: Any, ids_BT: torch.Tensor, mask: torch.Tensor, positions_BT: torch.Tensor, cache: Any) -> torch.Tensor:
    """Logits after the last token. The one place that runs a model to write with it."""
    kind = ids_BT.device.type
    # No cache of cast weights: a captured graph must cast the weights of its own time, which training moves.
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda", cache_enabled=False):
        hidden_BTD = inner.model(
            input_ids=ids_BT, attention_mask=mask, position_ids=positions_BT, past_key_values=cache, use_cache=True
        ).last_hidden_state
        logits_BV: torch.Tensor = inner.lm_head(hidden_BTD[:, -1])
    return logits_BV.float()


@contextmanager
def one_query_attention(config: Any) -> Iterator[None]:
    """Inside, a model whose query heads share keys reads its cache without repeating it for each of them.

    With one query a row, the heads that share a key are to attention what queries of one sequence are. transformers
    repeats the whole cache instead where there is a mask, which takes several times the memory traffic of reading it.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if config._attn_implementation != "sdpa":
        yield
        return
    ALL_ATTENTION_FUNCTIONS.register(ONE_QUERY, _attend)
    config._attn_implementation = ONE_QUERY
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"


ONE_QUERY = "dirigent_one_query"


def _attend(
    module: Any,
    query_BHTD: torch.Tensor,
    key_BKLD: torch.Tensor,
    value_BKLD: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    rows, heads, turns, size = query_BHTD.shape
    assert turns == 1, "one query a row"
    shared = query_BHTD.reshape(rows, key_BKLD.shape[1], -1, size)
    found = torch.nn.functional.scaled_dot_product_attention(shared, key_BKLD, value_BKLD, mask, scale=scaling)
    return found.reshape(rows, 1, heads, size), None


class Turns:
    """What both kinds share."""

    def __init__(self, inner: Any, settings: DecodeSettings, *, rows: int) -> None:
        device = next(inner.parameters()).device
        self.inner = inner
        self.settings = settings
        self.logits_BV = torch.zeros(rows, inner.config.vocab_size, device=device)
        self.tokens_BT = torch.full((rows, settings.max_new_tokens), settings.pad, dtype=torch.long, device=device)
        self.logprobs_BT = torch.zeros(rows, settings.max_new_tokens, device=device)
        self.done_B = torch.zeros(rows, dtype=torch.bool, device=device)
        self.turn = torch.zeros(1, dtype=torch.long, device=device)
        self.token_B = torch.zeros(rows, dtype=torch.long, device=device)
        self.position_B = torch.zeros(rows, dtype=torch.long, device=device)
        self.starts_B = torch.zeros(rows, dtype=torch.int64, device=device)
        self.sampled_B = torch.zeros(rows, dtype=torch.bool, device=device)
        self.noisy = False

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
        self.logits_BV[:rows] = logits_PV.repeat_interleave(group, 0)
        self.tokens_BT.fill_(self.settings.pad)
        self.logprobs_BT.zero_()
        self.done_B.zero_()
        self.done_B[rows:] = True
        self.turn.zero_()
        self.position_B[:rows] = (mask_PT.sum(1) - 1).repeat_interleave(group, 0)
        self.starts_B[:rows] = starts_B
        self.sampled_B[:rows] = sampled_B
        self.sampled_B[rows:] = False
        self.noisy = self.noisy or bool(sampled_B.any())
        self._keep(mask_PT, first, group=group)

    def choose(self) -> None:
        """A token for every row, from the logits at hand."""
        scores_BV = self.logits_BV / self.settings.temperature
        logprobs_BV = torch.log_softmax(scores_BV, dim=-1)
        token_B = scores_BV.argmax(-1)
        if self.noisy:
            drawn_B = draw(logprobs_BV.exp(), uniforms(self.starts_B, self.turn))
            token_B = torch.where(self.sampled_B, drawn_B, token_B)
        token_B = torch.where(self.done_B, self.settings.pad, token_B)
        self.tokens_BT.index_copy_(1, self.turn, token_B[:, None])
        self.logprobs_BT.index_copy_(1, self.turn, logprobs_BV.gather(1, token_B[:, None]))
        self.done_B.logical_or_(token_B == self.settings.end)
        self.token_B.copy_(token_B)
        self.turn.add_(1)

    def take(self) -> None:
        """One more turn."""
        self.read_last()
        self.choose()

    def read_last(self) -> None:
        """Read the tokens of the last turn."""
        self.position_B.add_(1)
        mask, cache = self._one_more()
        self.logits_BV.copy_(read(self.inner, self.token_B[:, None], mask, self.position_B[:, None], cache))

    def _keep(self, mask_PT: torch.Tensor, first: Any, *, group: int) -> None:
        raise NotImplementedError

    def _one_more(self) -> tuple[torch.Tensor, Any]:
        raise NotImplementedError


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

    def __init__(self, inner: Any, settings: DecodeSettings, *, rows: int, length: int, noisy: bool, like: Any) -> None:
        super().__init__(inner, settings, rows=rows)
        self.noisy = noisy
        self.replay: Callable[[], None] | None = None
        """A captured turn, where there is one."""
        device = self.done_B.device
        self._mask_BL = torch.zeros(rows, length, dtype=torch.bool, device=device)
        self._mask_BL[:, 0] = True  # a row that may read nothing at all would divide by zero
        self._cache = FixedCache(like, rows=rows, length=length)

    def take(self) -> None:
        if self.replay is None:
            super().take()
        else:
            self.replay()

    def read_last(self) -> None:
        with one_query_attention(self.inner.config):
            super().read_last()

    def restart(self) -> None:
        """Back to the first turn, so that turns taken only to warm up leave nothing behind that is out of range."""
        self.turn.zero_()
        self._cache.slot.zero_()

    def _keep(self, mask_PT: torch.Tensor, first: Any, *, group: int) -> None:
        rows, longest = len(mask_PT) * group, mask_PT.shape[1]
        self._mask_BL.zero_()
        self._mask_BL[:, 0] = True
        self._mask_BL[:rows, :longest] = mask_PT.repeat_interleave(group, 0).bool()
        self._cache.fill(first, group=group)
        self._cache.slot.fill_(longest - 1)

    def _one_more(self) -> tuple[torch.Tensor, Any]:
        self._cache.slot.add_(1)
        self._mask_BL.index_fill_(1, self._cache.slot, True)
        return self._mask_BL[:, None, None, :], self._cache


class FixedCache:
    """Keys and values of every layer at full length, written one column at a time where `slot` points.

    Has of transformers' caches only what a Llama asks of one. Written here because theirs has changed its arguments
    from release to release, and a GPU image rarely has the newest.
    """

    is_compileable = False

    def __init__(self, like: Any, *, rows: int, length: int) -> None:
        layers = [(layer.keys, layer.values) for layer in like.layers]
        self._keys = [keys.new_zeros(rows, keys.shape[1], length, keys.shape[3]) for keys, _ in layers]
        self._values = [values.new_zeros(rows, values.shape[1], length, values.shape[3]) for _, values in layers]
        self.slot = torch.zeros(1, dtype=torch.long, device=self._keys[0].device)

    def fill(self, first: Any, *, group: int) -> None:
        """Take over what was read of the prompts, each repeated over its group."""
        for mine, theirs in [
            *zip(self._keys, (layer.keys for layer in first.layers), strict=True),
            *zip(self._values, (layer.values for layer in first.layers), strict=True),
        ]:
            prompts, heads, longest, size = theirs.shape
            rows = mine[: prompts * group].view(prompts, group, heads, mine.shape[2], size)
            rows[:, :, :, :longest] = theirs[:, None]

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._keys[layer_idx].index_copy_(2, self.slot, keys.to(self._keys[layer_idx].dtype))
        self._values[layer_idx].index_copy_(2, self.slot, values.to(self._values[layer_idx].dtype))
        return self._keys[layer_idx], self._values[layer_idx]

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0
