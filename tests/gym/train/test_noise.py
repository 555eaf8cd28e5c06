"""Seeds and where their counters begin: the same numbers for ever, or no step could be drawn again."""

from __future__ import annotations

import hashlib
import random

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")

from dirigent_gym.train.noise import group_seeds, seed_starts  # noqa: E402


@pytest.mark.parametrize("rows", [0, 1, 300])
def test_a_counter_begins_at_the_signed_hash_of_its_seed_in_decimals(rows: int) -> None:
    rng = random.Random(rows)
    seeds = [rng.choice([None, rng.getrandbits(56), rng.getrandbits(3), -rng.getrandbits(40)]) for _ in range(rows)]
    hashes = [hashlib.blake2b(str(seed).encode(), digest_size=8).digest() for seed in seeds]
    starts, sampled = seed_starts(seeds, "cpu")
    assert starts.tolist() == [int.from_bytes(digest, "big", signed=True) for digest in hashes]
    assert sampled.tolist() == [seed is not None for seed in seeds]
    assert (starts.dtype, sampled.dtype) == (torch.int64, torch.bool)


def test_seeds_are_those_of_earlier_runs() -> None:
    assert group_seeds(5, prompts=2, group=2) == [
        [57514116016188326, 67550373894032296],
        [3442920134166530, 62209243480602116],
    ]
    assert seed_starts([5, None], "cpu")[0].tolist() == [-8407085121398793824, 6012258934026951680]
