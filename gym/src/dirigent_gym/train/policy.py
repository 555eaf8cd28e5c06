"""The policy: the conductor's model while it is trained. Opened from a recipe, written with, measured, exported.

Knows the model and its tokenizer; not rewards, nor the optimiser.
"""

# ruff: noqa: N803, N815 -- suffixes name dimensions: prompts, rollouts of a group, batch, time, vocabulary

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch

from dirigent.errors import ConfigError
from dirigent_gym.train.base import encode, load_base, prompt_texts, weights_file
from dirigent_gym.train.dataset import Row
from dirigent_gym.train.decode import CacheKind, DecodeSettings, Sample, decode
from dirigent_gym.train.graphs import Graphs
from dirigent_gym.train.metrics import step_metrics
from dirigent_gym.train.noise import group_seeds
from dirigent_gym.train.passes import computed_by
from dirigent_gym.train.processes import divided
from dirigent_gym.train.recipe import BaseSettings, Recipe
from dirigent_gym.train.reward import Scored
from dirigent_gym.train.scorer import Scorer
from dirigent_gym.train.sft import SftSettings, plain_inputs, save_adapter
from dirigent_gym.train.shards import Gather

ADAPTER = "default"
"""PEFT's name for the adapter that is trained; TRL knows it by no other."""


class Written(msgspec.Struct, frozen=True):
    """Plans for some rows, a group for each."""

    prompts_P: list[list[int]]
    samples_PG: list[list[Sample]]
    texts_PG: list[list[str]]


class Policy:
    """A model, its tokenizer, and how long its plans may be."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_completion_tokens: int,
        cache: CacheKind = "auto",
        merge: bool = False,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_completion_tokens = max_completion_tokens
        self._cache = cache
        self._graphs = Graphs()
        self._quicker: Halved | Merged = Merged() if merge and hasattr(model, "peft_config") else Halved()
        self.gather: Gather | None = None
        """How weights are brought together that are shared out over processes; None: they are all here."""
        self._gathered = False

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, every weight is here to be read. All processes enter together; inside another it does nothing."""
        if self.gather is None or self._gathered:
            yield
            return
        with self.gather():
            self._gathered = True
            try:
                yield
            finally:
                self._gathered = False

    def write(
        self,
        rows: Sequence[Row],
        *,
        group: int,
        seed: int | None,
        temperature: float = 1.0,
        places: Sequence[int] | None = None,
    ) -> Written:
        """`group` plans for each row, sampled; greedy where there is no seed. `places`: for the rows there alone,
        written as they would be among all."""
        own = range(len(rows)) if places is None else places
        prompts = self.prompts([rows[place] for place in own])
        settings = DecodeSettings(
            self.max_completion_tokens,
            pad=self.tokenizer.pad_token_id,
            end=self.tokenizer.eos_token_id,
            temperature=temperature,
            cache=self._cache,
        )
        seeds_of_all = group_seeds(seed, prompts=len(rows), group=group)
        seeds = [seeds_of_all[place] for place in own]
        # What was captured reads weights where they were; gathered ones lie elsewhere every time.
        graphs = self._graphs if self.gather is None else None
        with self.whole(), self._quicker.weights(self.model):
            samples = decode(self.model, prompts, seeds_PG=seeds, settings=settings, graphs=graphs)
        return self.decoded(prompts, samples)

    def prompts(self, rows: Sequence[Row]) -> list[list[int]]:
        return token_ids(self.tokenizer, prompt_texts(self.tokenizer, [row.messages for row in rows]))

    def decoded(self, prompts: list[list[int]], samples_PG: list[list[Sample]]) -> Written:
        texts = iter(token_texts(self.tokenizer, [sample.ids for group in samples_PG for sample in group]))
        return Written(prompts, samples_PG, [[next(texts) for _ in group] for group in samples_PG])


def token_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """What `encode` gives, from the tokenizer within: asked for ids alone, not also where each stood in the text."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None or inner.padding or inner.truncation or inner.encode_special_tokens:
        return encode(tokenizer, texts)
    return [encoding.ids for encoding in inner.encode_batch_fast(list(texts), add_special_tokens=False)]


def token_texts(tokenizer: Any, ids: Sequence[Sequence[int]]) -> list[str]:
    """What `batch_decode` gives without special tokens, from one call instead of one for each text."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None or tokenizer.clean_up_tokenization_spaces:
        texts: list[str] = tokenizer.batch_decode(ids, skip_special_tokens=True)
        return texts
    return list(inner.decode_batch(ids, skip_special_tokens=True))


REFERENCE = ".ref."
"""Marks the weights that TRL sets aside to measure a policy's distance from its start; nothing is written with them."""


class Halved:
    """Full-precision weights in half precision while a GPU writes with them.

    Autocast would halve them again for every token; and as the copies stay where they are, captured graphs stay good.
    """

    def __init__(self) -> None:
        self._copies: list[torch.Tensor] = []

    @contextmanager
    def weights(self, model: Any) -> Iterator[None]:
        full = [
            p
            for name, p in model.named_parameters()
            if p.dtype == torch.float32 and p.device.type == "cuda" and REFERENCE not in name
        ]
        if not full:
            yield
            return
        if not self._copies:
            self._copies = [torch.empty_like(p, dtype=torch.bfloat16) for p in full]
        with torch.no_grad():
            torch._foreach_copy_(self._copies, full)
        originals = [p.data for p in full]
        exchange(full, self._copies)
        try:
            with plain_inputs(model):
                yield
        finally:
            exchange(full, originals)


class Merged:
    """The adapter added to the weights it adapts while a GPU writes: without it a token takes half as many kernels.

    The sums lie in copies of their own, so the weights themselves are never rounded, and captured graphs stay good.
    """

    def __init__(self, *, on: str = "cuda") -> None:
        self._on = on
        self._layers: list[Any] = []
        """Looked for once: going through thousands of modules takes longer than merging them."""
        self._copies: list[torch.Tensor] = []

    @contextmanager
    def weights(self, model: Any) -> Iterator[None]:
        layers = self._layers = self._layers or _adapted_layers(model)
        if not layers or layers[0].weight.device.type != self._on:
            yield
            return
        adapted = [layer.get_base_layer().weight for layer in layers]
        if not self._copies:
            self._copies = [torch.empty_like(weight) for weight in adapted]
        with torch.no_grad(), torch.autocast(self._on, enabled=False):
            for layer, weight, copy in zip(layers, adapted, self._copies, strict=True):
                _add_up(layer, weight, into=copy)
        originals = [weight.data for weight in adapted]
        exchange(adapted, self._copies)
        try:
            # The base layer in place of each: switching adapters off and on again walks through all they consist of.
            with computed_by({layer: layer.get_base_layer().forward for layer in layers}):
                yield
        finally:
            exchange(adapted, originals)


def _add_up(layer: Any, weight: torch.Tensor, *, into: torch.Tensor) -> None:
    """As PEFT adds, rounding for rounding, in fewer kernels."""
    delta = layer.lora_B[ADAPTER].weight @ layer.lora_A[ADAPTER].weight
    into.copy_(delta.mul_(layer.scaling[ADAPTER]).float().add_(weight))


def _adapted_layers(model: Any) -> list[Any]:
    return [m for m in model.modules() if hasattr(m, "get_delta_weight") and ADAPTER in m.lora_A]


def exchange(parameters: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Let parameters be these tensors; what they were is the caller's to keep."""
    for parameter, tensor in zip(parameters, tensors, strict=True):
        parameter.data = tensor


def measure(policy: Policy, scorer: Scorer, rows: Sequence[Row], *, seed: int | None = None) -> dict[str, float]:
    """The metrics of one plan a row, greedy unless a seed is given."""
    return step_metrics(rows, tried(policy, scorer, rows, seed=seed))


def tried(policy: Policy, scorer: Scorer, rows: Sequence[Row], *, seed: int | None) -> list[Scored]:
    """What became of one plan a row. Processes divide the rows among them, and all come here together."""

    def own(places: Sequence[int]) -> list[Scored]:
        # Here, so that it is entered equally often whatever becomes of a process's share.
        with policy.whole():
            written = policy.write(rows, group=1, seed=seed, places=places)
        return scorer.score(
            [rows[place] for place in places],
            [text for (text,) in written.texts_PG],
            tokens=[len(sample.ids) for (sample,) in written.samples_PG],
        )

    scored = divided([row.id for row in rows], own)
    scorer.require_paid(scored, what="the questions of a measurement")
    return scored


def open_base(settings: BaseSettings) -> tuple[Any, Any]:
    """Model and tokenizer of a base that exists already; a tiny one is made by its warm start."""
    if settings.weights:
        return load_base(weights_file(settings.weights))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    cuda = torch.cuda.is_available()
    try:
        tokenizer = AutoTokenizer.from_pretrained(settings.model, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.bfloat16 if cuda else torch.float32)
    except OSError as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"base.model is {settings.model!r}, which cannot be opened: {why}") from error
    if tokenizer.pad_token is None:  # Llama 3 names none; what is padding is masked, whatever stands there
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.chat_template is None:
        raise ConfigError(f"base.model {settings.model!r} has no chat template; take the version that follows one")
    return model.to("cuda" if cuda else "cpu").eval(), tokenizer


def adapter_settings(recipe: Recipe) -> SftSettings:
    """The warm start's settings, with the policy's adapter in them."""
    warm, policy = recipe.warm_start, recipe.policy
    return SftSettings(
        rank=policy.rank,
        alpha=policy.alpha,
        targets=policy.targets,
        learning_rate=warm.learning_rate,
        steps=warm.steps,
        batch=warm.batch,
        seed=recipe.seed,
    )


def export(policy: Policy, folder: Path) -> None:
    """The policy in half precision, as PEFT (or, where all weights were trained, transformers) reads it.

    Written beside the folder and then put in its place, so that nobody meets a half-written one.
    """
    beside = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(beside, ignore_errors=True)
    if hasattr(policy.model, "peft_config"):
        save_adapter(policy.model, ADAPTER, beside)
        finished = beside / ADAPTER
    else:
        policy.model.save_pretrained(beside)
        policy.tokenizer.save_pretrained(beside)
        finished = beside
    shutil.rmtree(folder, ignore_errors=True)
    finished.rename(folder)
    shutil.rmtree(beside, ignore_errors=True)


def load_adapter(policy_base: Any, folder: Path, *, trainable: bool = True) -> Any:
    """The base under an exported adapter, weights in full precision where they are to be trained."""
    from peft import PeftModel

    return PeftModel.from_pretrained(policy_base, str(folder), adapter_name=ADAPTER, is_trainable=trainable)
