"""The decoder computes what transformers computes, for both families, with and without an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dirigent.errors import ConfigError
from dirigent.learn.decoder import Adapter, Decoder, Shape, logprobs
from dirigent.learn.sampler import BatchedSampler
from tests.learn.tiny_base import tiny_base

END = 7


def tiny(family: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "vocab_size": 97,
        "eos_token_id": END,
    }
    if family == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=False))
    for parameter in model.parameters():  # larger weights, so that tokens differ in likelihood
        parameter.data.mul_(3).add_(torch.randn_like(parameter) * 0.02)
    return model.eval()


def prompts_of(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(3, 14, (count,), generator=generator).tolist()
    return [torch.randint(8, 97, (length,), generator=generator).tolist() for length in lengths]


def reference(model: Any, prompt: list[int], completion: list[int]) -> torch.Tensor:
    ids = torch.tensor([prompt + completion])
    scores = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return scores.gather(1, torch.tensor(completion)[:, None])[:, 0]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_log_probabilities_are_those_of_transformers(family: str) -> None:
    model = tiny(family)
    decoder = Decoder(model.state_dict(), Shape.of(model.config))
    prompts = prompts_of(4)
    completions = [[prompts_of(8)[(3 * p + g) % 8] for g in range(3)] for p in range(4)]
    with torch.no_grad():
        ours = logprobs(decoder, prompts, completions)
        theirs = torch.cat(
            [reference(model, p, c) for p, group in zip(prompts, completions, strict=True) for c in group]
        )
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_greedy_completions_are_those_of_transformers(family: str) -> None:
    model = tiny(family)
    decoder = Decoder(model.state_dict(), Shape.of(model.config))
    prompts = prompts_of(12)
    ours = BatchedSampler(end=END, max_tokens=20).greedy(decoder, prompts)
    for prompt, mine in zip(prompts, ours, strict=True):
        ids = torch.tensor([prompt])
        whole = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, pad_token_id=END
        )
        theirs = whole[0, len(prompt) :].tolist()
        assert mine == (theirs[: theirs.index(END) + 1] if END in theirs else theirs)


def test_samples_follow_the_model_s_probabilities() -> None:
    model = tiny("llama")
    decoder = Decoder(model.state_dict(), Shape.of(model.config))
    prompt = prompts_of(1)
    sampler = BatchedSampler(end=END, max_tokens=1, temperature=2.0)
    drawn = torch.tensor([row[0] for row in sampler.sample(decoder, prompt, group=4000, seed=3)[0]])
    chances = (model(torch.tensor(prompt)).logits[0, -1] / 2.0).softmax(-1)
    assert (torch.bincount(drawn, minlength=97) / 4000 - chances).abs().max() < 0.03


def test_the_same_seed_gives_the_same_samples() -> None:
    model = tiny("llama")
    decoder = Decoder(model.state_dict(), Shape.of(model.config))
    sampler = BatchedSampler(end=END, max_tokens=9)
    first, again, other = (sampler.sample(decoder, prompts_of(3), group=4, seed=seed) for seed in (5, 5, 6))
    assert first == again
    assert first != other


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_an_adapter_gets_the_gradients_and_the_outputs_that_peft_gives_it(family: str, tmp_path: Path) -> None:
    from peft import PeftModel

    model = tiny(family)
    shape = Shape.of(model.config)
    adapter = Adapter.fresh(model.state_dict(), shape, rank=4, alpha=8, seed=2)
    for matrix in adapter.b.values():
        matrix.normal_(std=0.05, generator=torch.Generator().manual_seed(4))
    adapter = Adapter(  # the values that survive a file in half precision
        {n: t.half().float() for n, t in adapter.a.items()},
        {n: t.half().float() for n, t in adapter.b.items()},
        rank=4,
        alpha=8,
    )
    adapter.save(tmp_path, base="tiny")
    loaded = Adapter.load(tmp_path, device="cpu")
    assert all(torch.equal(loaded.b[name], matrix) for name, matrix in adapter.b.items())
    for parameter in adapter.parameters():
        parameter.requires_grad_()
    prompts, completions = prompts_of(2), [[[9, 11, END]], [[30, 31, 32]]]
    ours = logprobs(Decoder(model.state_dict(), shape, adapter), prompts, completions)
    ours.sum().backward()
    peft: Any = PeftModel.from_pretrained(model, str(tmp_path), is_trainable=True)
    theirs = torch.cat([reference(peft, p, c[0]) for p, c in zip(prompts, completions, strict=True)])
    theirs.sum().backward()
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)
    gradients = {name: p.grad for name, p in peft.named_parameters() if p.grad is not None}
    for part, stacked in adapter.b.items():
        assert stacked.grad is not None
        for i, gradient in enumerate(stacked.grad):
            peft_s = gradients[f"base_model.model.model.layers.{i}.{part}.lora_B.default.weight"]
            torch.testing.assert_close(gradient, peft_s, atol=1e-3, rtol=1e-3)


def test_a_family_the_decoder_does_not_compute_is_refused_by_name() -> None:
    class Config:
        model_type = "gpt2"

    with pytest.raises(ConfigError, match="gpt2"):
        Shape.of(Config())


def test_prompts_that_end_differently_are_read_together_and_written_as_if_alone() -> None:
    base = tiny_base()
    decoder = Decoder(base.weights, base.shape)
    sampler = BatchedSampler(end=base.end, max_tokens=6)
    opening = list(range(20))
    prompts = [[*opening, 1], [*opening, 2], [*opening, 3, 4], [7, 8, 9], [*opening[:-1], 5, 1]]
    together = sampler.greedy(decoder, prompts)
    assert together == [sampler.greedy(decoder, [prompt])[0] for prompt in prompts]
    assert together == [sampler._batches(decoder, [prompt], 1, None)[0][0] for prompt in prompts]
