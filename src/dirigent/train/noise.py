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

import torch


def uniforms(starts_B: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """One number between 0 and 1, neither included, for every row at this turn."""
    x = starts_B + (turn + 1) * _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    x = x ^ _shifted(x, 31)
    # 23 bits and a half: a float32 holds them without ever rounding up to 1.
    return (_shifted(x, 41).float() + 0.5) * 2.0**-23


def draw(probabilities_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """The token of each row in which its number falls when tokens are laid end to end, each as wide as it is likely."""
    ends_BV = probabilities_BV.cumsum(-1)
    # Scaled by the last end, which rounding keeps from being 1; a token of no width is never drawn.
    point_B1 = (uniform_B * ends_BV[:, -1])[:, None]
    token_B = torch.searchsorted(ends_BV, point_B1, right=True)[:, 0]
    return token_B.clamp(max=probabilities_BV.shape[1] - 1)


def seed_starts(seeds_B: Sequence[int | None], device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the counter of each row begins, hashed so that near seeds are far apart, and which rows are sampled."""
    digests = [hashlib.blake2b(str(seed).encode(), digest_size=8).digest() for seed in seeds_B]
    starts = [int.from_bytes(digest, "big", signed=True) for digest in digests]
    sampled = [seed is not None for seed in seeds_B]
    return torch.tensor(starts, dtype=torch.int64, device=device), torch.tensor(sampled, device=device)


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
