"""Supervised fitting of one LoRA adapter: how specialists learn their skill and a conductor its plan language.

Everything is tokenised once, rows of like length share a batch, and the loss counts the completion alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import torch

from dirigent.messages import Message
from dirigent_gym.train.base import encode, prompt_texts
from dirigent_gym.train.passes import quick_passes

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Pair(msgspec.Struct, frozen=True):
    """A conversation and the reply it should get."""

    messages: tuple[Message, ...]
    completion: str


class SftSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rank: int = 8
    alpha: int = 16
    targets: tuple[str, ...] = ALL_LINEAR
    learning_rate: float = 1e-3
    steps: int = 800
    batch: int = 256
    warmup: float = 0.05
    """Share of the steps in which the rate rises; then it falls to zero along a cosine."""
    clip_norm: float = 1.0
    seed: int = 0


Report = Callable[[int, float], None]
"""Called with the step and its loss."""


def fit_adapter(
    model: Any, tokenizer: Any, pairs: Sequence[Pair], *, name: str, settings: SftSettings, report: Report
) -> Any:
    """Add adapter `name` to `model` (a plain base or a PEFT model), fit it, and return the PEFT model.

    The base is shared and frozen; other adapters on it are left alone.
    """
    torch.manual_seed(settings.seed)
    model = with_adapter(model, name, settings)
    rows = encode_pairs(tokenizer, pairs)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=settings.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: rate_factor(s, settings))
    batches = endless_batches(rows, settings.batch, random.Random(settings.seed))
    device = next(model.parameters()).device
    model.train()
    for step in range(settings.steps):
        loss = completion_loss(model, *collate(next(batches), pad=tokenizer.pad_token_id, device=device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, settings.clip_norm)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        schedule.step()
        if step % 20 == 0 or step == settings.steps - 1:
            report(step, float(loss.detach()))
    return model.eval()


def with_adapter(model: Any, name: str, settings: SftSettings) -> Any:
    """The model with an adapter of that name, active and the only thing that trains; fresh if it had none."""
    from peft import LoraConfig, PeftModel, get_peft_model

    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=list(settings.targets),
        task_type="CAUSAL_LM",
        lora_dropout=0.0,
    )
    if isinstance(model, PeftModel):
        if name not in model.peft_config:
            model.add_adapter(name, config)
        model.set_adapter(name)
        return model
    return get_peft_model(model, config, adapter_name=name)


Row = tuple[list[int], list[int]]
"""Token ids of a prompt and of its completion, end mark included."""


def encode_pairs(tokenizer: Any, pairs: Sequence[Pair]) -> list[Row]:
    prompts = encode(tokenizer, prompt_texts(tokenizer, [pair.messages for pair in pairs]))
    completions = encode(tokenizer, [pair.completion for pair in pairs])
    end = tokenizer.eos_token_id
    return [(prompt, [*completion, end]) for prompt, completion in zip(prompts, completions, strict=True)]


def endless_batches(rows: Sequence[Row], size: int, rng: random.Random) -> Iterator[list[Row]]:
    """Epoch after epoch, each in a new order; rows of like length share a batch, so little is padding."""
    while True:
        order = list(rows)
        rng.shuffle(order)
        chunk = size * 16
        batches = []
        for start in range(0, len(order), chunk):
            near = sorted(order[start : start + chunk], key=lambda row: len(row[0]) + len(row[1]))
            batches += [near[i : i + size] for i in range(0, len(near), size)]
        rng.shuffle(batches)
        yield from batches


def collate(rows: Sequence[Row], *, pad: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels, padded on the right; labels are -100 wherever the loss must not look."""
    longest = max(len(prompt) + len(completion) for prompt, completion in rows)
    ids_BT, labels_BT = [], []  # noqa: N806 -- suffixes name dimensions: batch, time
    for prompt, completion in rows:
        gap = longest - len(prompt) - len(completion)
        ids_BT.append(prompt + completion + [pad] * gap)
        labels_BT.append([-100] * len(prompt) + completion + [-100] * gap)
    ids, labels = (torch.tensor(table, dtype=torch.long).to(device, non_blocking=True) for table in (ids_BT, labels_BT))
    return ids, labels


def completion_loss(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over completion tokens; logits are computed for those positions only.

    No mask: what is padding comes last, where no token that counts can read it, and attention is quicker without.
    """
    kind = ids.device.type
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"), quick_passes(model):
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        hidden_BTD = inner.model(input_ids=ids, use_cache=False).last_hidden_state  # noqa: N806
        counted = labels[:, 1:] != -100
        logits_NV = inner.lm_head(hidden_BTD[:, :-1][counted])  # noqa: N806
    return torch.nn.functional.cross_entropy(logits_NV.float(), labels[:, 1:][counted])


def plain_inputs(model: Any) -> AbstractContextManager[None]:
    """On a GPU, under autocast: adapters take their inputs as they come.

    Autocast brings the float32 adapter to the input's precision; PEFT would bring the input to the adapter's, and keep
    a float32 copy of every activation for the backward pass.
    """
    if not hasattr(model, "peft_config") or next(model.parameters()).device.type != "cuda":
        return nullcontext()
    from peft.helpers import disable_input_dtype_casting

    plain: AbstractContextManager[None] = disable_input_dtype_casting(model, active=True)
    return plain


def rate_factor(step: int, settings: SftSettings) -> float:
    """Linear warm-up, then a cosine to zero."""
    warm = max(1, int(settings.warmup * settings.steps))
    if step < warm:
        return (step + 1) / warm
    progress = (step - warm) / max(1, settings.steps - warm)
    return 0.5 * (1.0 + float(torch.cos(torch.tensor(progress * torch.pi))))


def save_adapter(model: Any, name: str, folder: Path) -> None:
    """Write one adapter, in half precision, as PEFT reads it. Each file is there whole or as it was before."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    state = get_peft_model_state_dict(model, adapter_name=name)
    target, beside = folder / name, folder / f"{name}.tmp"
    for place in (target, beside):
        place.mkdir(parents=True, exist_ok=True)
    model.peft_config[name].save_pretrained(str(beside))
    save_file(
        {key: value.to(torch.float16).contiguous() for key, value in state.items()},
        str(beside / "adapter_model.safetensors"),
    )
    for file in beside.iterdir():
        file.replace(target / file.name)
    beside.rmdir()
