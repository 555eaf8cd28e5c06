"""torch and llama.cpp give the same replies to the gym's prompts, with the adapter off, on and merged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `train`")
pytest.importorskip("gguf", reason="needs the extra `train`")
pytest.importorskip("peft", reason="needs the extra `train`")
pytest.importorskip("xllamacpp", reason="needs the extra `local`")

from gym.benchmarks import parity  # noqa: E402

from dirigent.learn import export  # noqa: E402
from dirigent.learn.base import Base  # noqa: E402
from dirigent.learn.decoder import Shape  # noqa: E402
from dirigent.learn.export import ModelShapes, export_adapter, shapes_of  # noqa: E402
from dirigent.messages import Request  # noqa: E402
from dirigent.workers.local import Local, LocalModel  # noqa: E402

HIDDEN, INNER, HEADS, KEY_VALUE_HEADS, RANK = 64, 128, 4, 2, 4
TIE = 0.05
"""Two tokens nearer than this, in logits, may fall either way: llama.cpp keeps what it has read in float16."""


def tiny_llama(seed: int = 0) -> Any:
    """Random, and loud enough that its first choice is clear; grouped heads, as the real base has them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def tokenizer(weights_path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(weights_path.parent, gguf_file=weights_path.name)


@pytest.fixture(scope="module")
def base() -> ModelShapes:
    model = tiny_llama()
    weights = dict(model.state_dict())
    return shapes_of(Base("tiny", weights, Shape.of(model.config), SimpleNamespace(get_vocab=dict, eos_token_id=2)))


@pytest.fixture(scope="module")
def files(weights_path: Path, tmp_path_factory: pytest.TempPathFactory) -> parity.Files:
    folder = tmp_path_factory.mktemp("parity")
    model = tiny_llama()
    adapter = parity.random_adapter(model, folder / "random", rank=RANK, size=0.3, seed=3)
    return parity.prepare(model, folder, like=weights_path, adapter=adapter, precision="f32", say=print)


PROMPTS = parity.gym_prompts(10, seed=2)


def test_torch_and_llama_cpp_say_the_same_with_the_adapter_off_on_and_merged(
    files: parity.Files, tokenizer: Any
) -> None:
    templates, agreements, changed = asyncio.run(
        parity.compare(files, tokenizer, PROMPTS, max_tokens=12, threads=1, say=print)
    )
    assert (templates.same_text, templates.same_ids, templates.of) == (10, 10, 10)
    assert changed >= 8, "an adapter that changes nothing would prove nothing"
    for row in agreements:
        assert row.widest_gap < TIE, row
        assert row.same >= 6, row  # of a tiny random model many tokens are ties


async def test_an_adapter_in_the_wrong_order_would_be_noticed(
    files: parity.Files, base: ModelShapes, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "interleaved", lambda rows, *, heads: rows)
    wrong = tmp_path / "wrong.gguf"
    export_adapter(files.base_gguf.parent / "random", wrong, base=base)
    rows = parity.encode(tokenizer, parity.prompt_texts(tokenizer, PROMPTS))
    ours = parity.torch_greedy(parity._runner(files, "on"), rows, max_tokens=12, tokenizer=tokenizer)
    async with LocalModel(files.base_gguf, adapters={"it": wrong}, slots=1, threads=1, context_tokens=1024) as model:
        theirs = await parity.llama_greedy(model, PROMPTS, adapter="it", max_tokens=12, tokenizer=tokenizer)
    found = parity.agreement("on", files, tokenizer, rows, ours, theirs)
    assert found.same < 5
    assert found.widest_gap > TIE


async def test_a_worker_under_the_exported_adapter_replies_as_torch_does(files: parity.Files, tokenizer: Any) -> None:
    """The whole way: our wire, the server's chat template, the adapter chosen by the request."""
    rows = parity.encode(tokenizer, parity.prompt_texts(tokenizer, PROMPTS[:2]))
    ours = parity.torch_greedy(parity._runner(files, "on"), rows, max_tokens=8, tokenizer=tokenizer)
    said = tokenizer.batch_decode(ours, skip_special_tokens=True)
    async with LocalModel(
        files.base_gguf, adapters={"it": files.adapter_gguf}, slots=1, threads=1, context_tokens=1024
    ) as model:
        worker = Local(model, name="it", adapter="it")
        replies = [await worker.ask(Request(p, temperature=0.0, max_output_tokens=8)) for p in PROMPTS[:2]]
    assert [reply.text.strip() for reply in replies] == [text.strip() for text in said]
