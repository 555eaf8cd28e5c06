"""Noise for sampling that is the same for a seed and turn on every device and in every batch.

torch's own generators differ between devices and hand out numbers by position in the batch. Here a row's numbers are a
counter that starts where its seed says, run through the finaliser of splitmix64: one number a turn, which picks a token
by where it falls. (Gumbel's noise would need one for every token of the vocabulary: 50 million a turn of 1,024 rows.)
"""

# ruff: noqa: N803, N806 -- suffixes name dimensions: rows of a batch, vocabulary

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dirigent_gym.train.upload import upload


def uniforms(starts_B: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """One number between 0 and 1, neither included, for every row at this turn."""
    x = starts_B + (turn + 1) * _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    x = x ^ _shifted(x, 31)
    # 23 bits and a half: a float32 holds them without ever rounding up to 1.
    return (_shifted(x, 41).float() + 0.5) * 2.0**-23


def draw(probabilities_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """The token of each row in which its number falls when tokens are laid end to end, each as wide as it is likely.

    First the block of tokens in which it falls, then the token within it: so one pass over the vocabulary adds up
    blocks, and nothing as wide as the vocabulary is written. A token of no width is never drawn.
    """
    blocks_BKN = _in_blocks(probabilities_BV)
    widths_BK = blocks_BKN.sum(-1)
    ends_BK = widths_BK.cumsum(-1)
    point_B = uniform_B * ends_BK[:, -1]
    block_B1 = _falls_in(ends_BK, point_B)[:, None]
    width_B, end_B = widths_BK.gather(1, block_B1)[:, 0], ends_BK.gather(1, block_B1)[:, 0]
    within_B = ((point_B - (end_B - width_B)) / width_B).clamp(0.0, 1.0)
    tokens_BN = blocks_BKN.gather(1, block_B1[:, :, None].expand(-1, -1, blocks_BKN.shape[2]))[:, 0]
    ends_BN = tokens_BN.cumsum(-1)
    return block_B1[:, 0] * blocks_BKN.shape[2] + _falls_in(ends_BN, within_B * ends_BN[:, -1])


BLOCK_TOKENS = 256


def _in_blocks(probabilities_BV: torch.Tensor) -> torch.Tensor:
    rows, vocabulary = probabilities_BV.shape
    if rest := -vocabulary % BLOCK_TOKENS:
        probabilities_BV = torch.nn.functional.pad(probabilities_BV, (0, rest))
    return probabilities_BV.view(rows, -1, BLOCK_TOKENS)


def _falls_in(ends_BN: torch.Tensor, point_B: torch.Tensor) -> torch.Tensor:
    """The first of the intervals, given by where they end, that ends after the point; rounding may not push it past
    the last one that has any width."""
    last_B = torch.nextafter(ends_BN[:, -1], torch.zeros_like(point_B))
    return torch.searchsorted(ends_BN, torch.minimum(point_B, last_B)[:, None], right=True)[:, 0]


def seed_starts(seeds_B: Sequence[int | None], device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the counter of each row begins, hashed so that near seeds are far apart, and which rows are sampled."""
    digests = b"".join([hashlib.blake2b(str(seed).encode(), digest_size=8).digest() for seed in seeds_B])
    starts = np.frombuffer(digests, dtype=">i8").astype(np.int64)
    sampled = np.array([seed is not None for seed in seeds_B], dtype=bool)
    return upload(starts, device), upload(sampled, device)


def group_seeds(seed: int | None, *, prompts: int, group: int) -> list[list[int | None]]:
    """A seed for every row of a draw; none where the draw has none, which is greedy."""
    if seed is None:
        return [[None] * group for _ in range(prompts)]
    return [[_mixed(seed, p, g) for g in range(group)] for p in range(prompts)]


def _mixed(*parts: int) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest(), "big")


def _signed(value: int) -> int:
    """An unsigned 64-bit constant as the int64 with the same bits."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right and fill with zeros; torch's own shift keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
