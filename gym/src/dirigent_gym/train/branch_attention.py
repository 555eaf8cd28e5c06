"""Attention of prompts and of the completions that branch off them, in which nothing is computed in vain.

Tokens lie flat, without padding: all prompts, then all branches, those of one prompt together. A token of a prompt
reads the prompt up to itself. A token of a branch reads the whole prompt and its branch up to itself: two softmaxes,
which their sums make one again. With a mask over all that shares a prompt, most of what is computed is thrown away:
what one branch would have read of the others.

On a GPU the kernels are those of flash attention that torch brings along, called part by part; a part's way back works
with the sums of the whole. They are no public interface, so before they are first used they are compared with plain
products, and where they are missing or disagree `fault` says so, and whoever asks goes on with masks: this is a matter
of speed, never of results.

Dimensions: N tokens, H heads, K heads of keys and values, D of a head.
"""

# ruff: noqa: N803, N806 -- suffixes name dimensions

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

import torch


class Runs(NamedTuple):
    """Tokens that lie one after the other, in runs: prompts, branches, or all branches of each prompt."""

    starts: torch.Tensor
    """Of each run, and the end of the last: 32 bits, as kernels want them."""
    longest: int


def runs_of(lengths: Sequence[int], device: Any) -> Runs:
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    return Runs(starts, max(lengths, default=0))


class Layout(NamedTuple):
    """Where prompts and branches lie."""

    prompt_tokens: int
    """Of all prompts together; branches follow."""
    prompts: Runs
    branches: Runs
    """Counted from the first branch on, as those below."""
    families: Runs
    """The branches of each prompt as one run."""


def layout_of(prompts: Sequence[int], branches: Sequence[Sequence[int]], device: Any) -> Layout:
    """Of prompts so long, each with branches so long."""
    return Layout(
        sum(prompts),
        runs_of(prompts, device),
        runs_of([length for family in branches for length in family], device),
        runs_of([sum(family) for family in branches], device),
    )


Attended = tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]
"""What was read [N, H, D], the logarithm of each softmax's sum [H, N], and what a kernel wants to see again."""
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Kernels(Protocol):
    """One part: the runs of some queries, each over the run of keys that has its number."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, of: Runs, over: Runs, causal: bool, scale: float
    ) -> Attended: ...

    def backward(
        self, gradient: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
        sums: torch.Tensor, seen: tuple[torch.Tensor, ...], *, of: Runs, over: Runs, causal: bool, scale: float,
    ) -> Gradients:  # fmt: skip
        """Of this part, where `out` and `sums` are those of the whole."""
        ...


class Flash:
    """Torch's flash attention over runs of different lengths."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, of: Runs, over: Runs, causal: bool, scale: float
    ) -> Attended:
        out, sums, *seen, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, of.starts, over.starts, of.longest, over.longest, 0.0, causal, False, scale=scale
        )
        return out, sums, tuple(seen)

    def backward(
        self, gradient: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
        sums: torch.Tensor, seen: tuple[torch.Tensor, ...], *, of: Runs, over: Runs, causal: bool, scale: float,
    ) -> Gradients:  # fmt: skip
        found: Gradients = torch.ops.aten._flash_attention_backward(
            gradient, q, k, v, out, sums, of.starts, over.starts, of.longest, over.longest, 0.0, causal, *seen,
            scale=scale,
        )  # fmt: skip
        return found


class Plain:
    """The same in products that can be read, run by run: what kernels are compared with."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, of: Runs, over: Runs, causal: bool, scale: float
    ) -> Attended:
        out, sums = torch.empty_like(q), q.new_empty(q.shape[1], len(q), dtype=torch.float32)
        for queries, keys in _spans(of, over):
            scores_HQS = _scores(q[queries], k[keys], causal=causal, scale=scale)
            sums[:, queries] = scores_HQS.logsumexp(-1)
            weights_HQS = (scores_HQS - sums[:, queries, None]).exp()
            out[queries] = torch.einsum("hqs,shd->qhd", weights_HQS, _each_head(v[keys], q)).to(q.dtype)
        return out, sums, ()

    def backward(
        self, gradient: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
        sums: torch.Tensor, seen: tuple[torch.Tensor, ...], *, of: Runs, over: Runs, causal: bool, scale: float,
    ) -> Gradients:  # fmt: skip
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for queries, keys in _spans(of, over):
            back, read = gradient[queries].float(), out[queries].float()
            weights_HQS = (_scores(q[queries], k[keys], causal=causal, scale=scale) - sums[:, queries, None]).exp()
            pull_HQS = torch.einsum("qhd,shd->hqs", back, _each_head(v[keys], q))
            scores_HQS = weights_HQS * (pull_HQS - (back * read).sum(-1).T[..., None]) * scale
            dq[queries] = torch.einsum("hqs,shd->qhd", scores_HQS, _each_head(k[keys], q)).to(q.dtype)
            dk[keys] = _shared_heads(torch.einsum("hqs,qhd->shd", scores_HQS, q[queries].float()), k)
            dv[keys] = _shared_heads(torch.einsum("hqs,qhd->shd", weights_HQS, back), v)
        return dq, dk, dv


def _spans(of: Runs, over: Runs) -> Iterator[tuple[slice, slice]]:
    for queries, keys in zip(pairwise(of.starts.tolist()), pairwise(over.starts.tolist()), strict=True):
        yield slice(*queries), slice(*keys)


def _scores(q: torch.Tensor, k: torch.Tensor, *, causal: bool, scale: float) -> torch.Tensor:
    scores_HQS: torch.Tensor = torch.einsum("qhd,shd->hqs", q.float(), _each_head(k, q)) * scale
    if causal:
        later = torch.ones(scores_HQS.shape[1:], dtype=torch.bool, device=q.device).triu(1)
        scores_HQS = scores_HQS.masked_fill(later, -torch.inf)
    return scores_HQS


def _each_head(of_keys: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """For each head of queries the head of keys that it shares."""
    return of_keys.float().repeat_interleave(q.shape[1] // of_keys.shape[1], dim=1)


def _shared_heads(of_queries: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return of_queries.reshape(len(of_queries), like.shape[1], -1, like.shape[2]).sum(2).to(like.dtype)


class _Branching(torch.autograd.Function):
    """Prompts over themselves; branches over their prompts and over themselves, put together."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, scale: float, kernels: Kernels
    ) -> torch.Tensor:
        P = layout.prompt_tokens
        (of_prompt, prompt_sums, seen_1), (afar, far_sums, seen_2), (nearby, near_sums, seen_3) = (
            kernels.forward(q[own], k[read], v[read], of=of, over=over, causal=causal, scale=scale)
            for own, read, of, over, causal in _parts(layout)
        )
        sums = torch.logaddexp(far_sums, near_sums)
        share_NH1 = (far_sums - sums).exp().T[..., None]
        out = torch.empty_like(q)
        out[:P] = of_prompt
        out[P:] = torch.lerp(nearby.float(), afar.float(), share_NH1)
        ctx.save_for_backward(q, k, v, out, prompt_sums, sums, *seen_1, *seen_2, *seen_3)
        ctx.layout, ctx.scale, ctx.kernels = layout, scale, kernels
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradient = gradients[0].contiguous()
        q, k, v, out, prompt_sums, sums, *seen = ctx.saved_tensors
        each = len(seen) // 3
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for number, (own, read, of, over, causal) in enumerate(_parts(ctx.layout)):
            parts = ctx.kernels.backward(
                gradient[own], q[own], k[read], v[read], out[own], sums if number else prompt_sums,
                tuple(seen[number * each : (number + 1) * each]), of=of, over=over, causal=causal, scale=ctx.scale,
            )  # fmt: skip
            for total, place, part in zip((dq, dk, dv), (own, read, read), parts, strict=True):
                total[place] += part
        return dq, dk, dv, None, None, None


def _parts(layout: Layout) -> list[tuple[slice, slice, Runs, Runs, bool]]:
    """Whose queries, whose keys, in which runs, and whether a token reads no further than itself."""
    prompts, branches = slice(0, layout.prompt_tokens), slice(layout.prompt_tokens, None)
    return [
        (prompts, prompts, layout.prompts, layout.prompts, True),
        (branches, prompts, layout.families, layout.prompts, False),
        (branches, branches, layout.branches, layout.branches, True),
    ]


def attend(
    q_NHD: torch.Tensor, k_NKD: torch.Tensor, v_NKD: torch.Tensor, layout: Layout, *, scale: float, kernels: Kernels
) -> torch.Tensor:
    """What each token reads, [N, H, D]."""
    read: torch.Tensor = _Branching.apply(q_NHD, k_NKD, v_NKD, layout, scale, kernels)  # type: ignore[no-untyped-call]
    return read


BRANCHES = "dirigent_branches"


@contextmanager
def branch_attention(config: Any, layout: Layout, *, kernels: Kernels) -> Iterator[None]:
    """Inside, a model reads one flat row of tokens that lie so."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register(BRANCHES, partial(_attend_in_model, layout=layout, kernels=kernels))
    config._attn_implementation = BRANCHES
    try:
        yield
    finally:
        config._attn_implementation = before


def _attend_in_model(
    module: Any,
    query_1HND: torch.Tensor,
    key_1KND: torch.Tensor,
    value_1KND: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    layout: Layout,
    kernels: Kernels,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query_1HND, key_1KND, value_1KND))
    kind = q.device.type
    if torch.is_autocast_enabled(kind):
        q, k, v = (tensor.to(torch.get_autocast_dtype(kind)) for tensor in (q, k, v))
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    with torch.autocast(kind, enabled=False):
        return attend(q, k, v, layout, scale=scale, kernels=kernels)[None], None


@cache
def fault(device: torch.device) -> str:
    """Why flash attention cannot be used there; nothing where it can, and says what plain products say."""
    if device.type != "cuda":
        return "there is none but on a GPU"
    try:
        far = disagreement(Flash(), device, torch.bfloat16)
        why = "" if far < MOST_APART else f"it differs from plain products by {far:.0%}"
    except (RuntimeError, AttributeError, TypeError, ValueError) as error:  # missing, moved, or for other devices
        why = str(error).splitlines()[0]
    if why:
        print(f"branches are read with masks, not by flash attention: {why}", file=sys.stderr)
    return why


MOST_APART = 0.03
"""Of the largest number: half precision is good for a part of that."""


def disagreement(kernels: Kernels, device: Any, dtype: torch.dtype) -> float:
    """How far kernels are from plain products in full precision, forth and back, on prompts and branches drawn at
    random."""
    layout = layout_of((40, 3, 130), ((9, 70), (1,), (30, 2, 65)), device)
    tokens = layout.prompt_tokens + int(layout.branches.starts[-1])
    drawn = torch.Generator().manual_seed(1)
    given = [torch.randn(tokens, heads, 64, generator=drawn).to(device, dtype) for heads in (6, 2, 2, 6)]
    ours = _forth_and_back(given, layout, kernels)
    theirs = _forth_and_back([tensor.float() for tensor in given], layout, Plain())
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in zip(ours, theirs, strict=True))


def _forth_and_back(given: Sequence[torch.Tensor], layout: Layout, kernels: Kernels) -> list[torch.Tensor]:
    with torch.enable_grad():  # the first to ask may be a pass without gradients
        q, k, v = (tensor.detach().requires_grad_() for tensor in given[:3])
        read = attend(q, k, v, layout, scale=0.125, kernels=kernels)
        pulled = torch.autograd.grad((read * given[3]).sum(), (q, k, v))
    return [tensor.detach().float() for tensor in (read, *pulled)]
