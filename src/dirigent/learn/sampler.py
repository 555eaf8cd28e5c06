"""Sample completions: a group of rows for each prompt, all rows of all prompts at the same time.

`BatchedSampler` is for a small model on one GPU (or, in tests, on a CPU). Other samplers, such as one over an
inference server, implement the same protocol.
"""

# ruff: noqa: N803, N806

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from dirigent.learn.decoder import Decoder, Read

TAIL = 16
"""Tokens at the end of a prompt in which prompts about one question may differ."""


class Sampler(Protocol):
    def sample(
        self, decoder: Decoder, prompts: Sequence[Sequence[int]], *, group: int, seed: int
    ) -> list[list[list[int]]]:
        """`group` sampled completions for each prompt, as token ids with the end token where a row wrote it."""
        ...

    def greedy(self, decoder: Decoder, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """The likeliest completion of each prompt, token by token."""
        ...


class BatchedSampler:
    """Samples with a cache of fixed size, and drops no row before the longest has ended: plans are short."""

    def __init__(self, *, end: int, max_tokens: int, temperature: float = 1.0, rows: int = 1024) -> None:
        self.end = end
        self.max_tokens = max_tokens
        self.temperature = temperature
        self.rows = rows
        """Rows that are sampled at the same time; more wait for the next batch."""

    @torch.no_grad()
    def sample(
        self, decoder: Decoder, prompts: Sequence[Sequence[int]], *, group: int, seed: int
    ) -> list[list[list[int]]]:
        generator = torch.Generator(decoder.device).manual_seed(seed)
        return self._batches(decoder, prompts, group, generator)

    @torch.no_grad()
    def greedy(self, decoder: Decoder, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Prompts that differ in their last tokens only, as by a price, are read together up to there."""
        alike: dict[tuple[int, ...], list[int]] = {}
        for i, prompt in enumerate(prompts):
            alike.setdefault(tuple(prompt[: max(1, len(prompt) - TAIL)]), []).append(i)
        found: dict[int, list[int]] = {}
        for size in {len(places) for places in alike.values()}:
            own = [(opening, places) for opening, places in alike.items() if len(places) == size]
            tails = [[list(prompts[i][len(opening) :]) for i in places] for opening, places in own]
            rows = self._batches(decoder, [opening for opening, _ in own], size, None, tails)
            for (_, places), group in zip(own, rows, strict=True):
                found |= dict(zip(places, group, strict=True))
        return [found[i] for i in range(len(prompts))]

    def _batches(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        group: int,
        generator: torch.Generator | None,
        tails_PG: Sequence[Sequence[list[int]]] = (),
    ) -> list[list[list[int]]]:
        at_once = max(1, self.rows // group)
        # Prompts of like length share a batch, so that little is padded; the order of the answer is the caller's.
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        found: dict[int, list[list[int]]] = {}
        for at in range(0, len(order), at_once):
            places = order[at : at + at_once]
            tails = [tail for i in places for tail in tails_PG[i]] if tails_PG else []
            completions = self._complete(decoder, [prompts[i] for i in places], group, generator, tails)
            found.update(zip(places, completions, strict=True))
        return [found[i] for i in range(len(prompts))]

    def _complete(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        group: int,
        generator: torch.Generator | None,
        tails_B: Sequence[list[int]],
    ) -> list[list[list[int]]]:
        """Rows of a prompt may end it in a tail of their own, which is read and not written."""
        read = decoder.read(prompts)
        rows = len(prompts) * group
        lengths = [len(tail) for tail in tails_B] or [0] * rows
        longest = max(lengths)
        width = longest + self.max_tokens
        given_BC = torch.full((rows, width), -1)
        for row, tail in enumerate(tails_B):
            given_BC[row, : len(tail)] = torch.tensor(tail)
        given_BC = given_BC.to(decoder.device)
        running = torch.ones(rows, dtype=torch.bool, device=decoder.device)
        tokens_BC = torch.full((rows, width), self.end, device=decoder.device)
        hidden = read.last_PM.repeat_interleave(group, 0)
        following = _Following(decoder, read, rows, width)
        for column in range(width):
            if column < longest:
                given = given_BC[:, column]
                token = given
                if bool((given < 0).any()):
                    token = torch.where(given < 0, self._choose(decoder.logits(hidden), generator), given)
                running = running & ((given >= 0) | (token != self.end))
            else:
                token = torch.where(running, self._choose(decoder.logits(hidden), generator), self.end)
                running = running & (token != self.end)
            tokens_BC[:, column] = token
            if column + 1 == width or (column >= longest and column % 8 == 7 and not bool(running.any())):
                break
            hidden = following.hidden(token, column)
        rows_of_tokens = [
            self._until_end(row[length : length + self.max_tokens])
            for row, length in zip(tokens_BC.tolist(), lengths, strict=True)
        ]
        return [rows_of_tokens[i : i + group] for i in range(0, rows, group)]

    def _choose(self, logits_BV: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        if generator is None:
            return logits_BV.argmax(-1)
        chances = (logits_BV / self.temperature).softmax(-1)
        return chances.multinomial(1, generator=generator)[:, 0]

    def _until_end(self, row: list[int]) -> list[int]:
        return row[: row.index(self.end) + 1] if self.end in row else row


class _Following:
    """Reads one more token a row. On a GPU the second time is captured and then replayed: a small model spends most of
    a token on starting kernels."""

    def __init__(self, decoder: Decoder, read: Read, rows: int, width: int) -> None:
        shape = decoder.shape
        size = (rows, shape.key_heads, width, shape.head_size)
        self._own = [
            (
                torch.zeros(size, dtype=decoder.dtype, device=decoder.device),
                torch.zeros(size, dtype=decoder.dtype, device=decoder.device),
            )
            for _ in range(shape.layers)
        ]
        self._decoder = decoder
        self._read = read
        self._token_B1 = torch.zeros(rows, 1, dtype=torch.long, device=decoder.device)
        self._column = torch.zeros(1, dtype=torch.long, device=decoder.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._hidden = torch.empty(0)

    def hidden(self, token_B: torch.Tensor, column: int) -> torch.Tensor:
        self._token_B1.copy_(token_B[:, None])
        self._column.fill_(column)
        if column and self._graph is None and self._decoder.device.type == "cuda":
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._hidden = self._extended()
        if self._graph is None:
            return self._extended()
        self._graph.replay()
        return self._hidden

    def _extended(self) -> torch.Tensor:
        return self._decoder.extend(self._read, self._token_B1, self._column, self._own)[:, 0]
