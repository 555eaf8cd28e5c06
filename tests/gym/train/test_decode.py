"""The one decoding loop: it writes what the model itself would write, whatever it reads from and whoever is beside."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from tests.facts import facts

torch = pytest.importorskip("torch", reason="needs the train extra")

from tests.gym.train.llamas import small_llama  # noqa: E402

from dirigent_gym.train.decode import (  # noqa: E402
    DecodeSettings,
    Sample,
    cache_kind,
    chunks,
    decode,
    row_bucket,
)
from dirigent_gym.train.graphs import Graphs  # noqa: E402
from dirigent_gym.train.memory import ran_out  # noqa: E402
from dirigent_gym.train.noise import group_seeds  # noqa: E402
from dirigent_gym.train.recipe import TinySettings  # noqa: E402
from dirigent_gym.train.tiny import tiny_base  # noqa: E402

Tiny = tuple[Any, Any]


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    torch.set_num_threads(1)
    texts = ["one two three four five six seven eight nine ten"] * 3
    return tiny_base(texts, settings=TinySettings(hidden=32, layers=2, heads=2, words=300), seed=5)


def prompts_of(tokenizer: Any) -> list[list[int]]:
    return [tokenizer(text)["input_ids"] for text in ("one two three", "ten", "four five six seven eight nine")]


def drawn(tiny: Tiny, *, seed: int | None, group: int = 1, graphs: Graphs | None = None, **options: Any) -> Any:
    model, tokenizer = tiny
    settings = {"pad": tokenizer.pad_token_id, "end": tokenizer.eos_token_id, "max_new_tokens": 12} | options
    prompts = prompts_of(tokenizer)
    seeds = group_seeds(seed, prompts=len(prompts), group=group)
    return decode(model, prompts, seeds_PG=seeds, settings=DecodeSettings(**settings), graphs=graphs)


def ids_of(groups: list[list[Sample]]) -> list[list[list[int]]]:
    return [[sample.ids for sample in group] for group in groups]


def test_greedy_samples_are_what_the_model_itself_would_generate(tiny: Tiny) -> None:
    model, tokenizer = tiny
    for prompt, (sample,) in zip(prompts_of(tokenizer), drawn(tiny, seed=None), strict=True):
        with torch.no_grad():
            want = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, len(prompt) :].tolist()
        assert sample.ids == want


def test_logprobs_are_the_models_own_for_every_row_of_a_group(tiny: Tiny) -> None:
    model, tokenizer = tiny
    groups = drawn(tiny, seed=1, group=3, max_new_tokens=6, temperature=0.7)
    for prompt, group in zip(prompts_of(tokenizer), groups, strict=True):
        assert len({tuple(sample.ids) for sample in group}) > 1
        for sample in group:
            with torch.no_grad():
                logits = model(torch.tensor([prompt + sample.ids])).logits[0, len(prompt) - 1 : -1]
            want = torch.log_softmax(logits / 0.7, -1).gather(1, torch.tensor(sample.ids)[:, None])[:, 0]
            assert torch.allclose(torch.tensor(sample.logprobs), want, atol=1e-4)


def test_a_sample_ends_with_the_end_mark_and_follows_its_seed(tiny: Tiny) -> None:
    greedy = drawn(tiny, seed=None, max_new_tokens=4, end=-1)
    end = greedy[0][0].ids[1]  # call the second token of the first row the end

    def samples(seed: int) -> list[list[list[int]]]:
        return ids_of(drawn(tiny, seed=seed, group=4, max_new_tokens=8, end=end))

    cut = drawn(tiny, seed=None, max_new_tokens=4, end=end)
    assert cut[0][0].ids == greedy[0][0].ids[: greedy[0][0].ids.index(end) + 1]
    assert samples(1) == samples(1)
    assert samples(1) != samples(2)
    assert all(end not in ids[:-1] for group in samples(1) for ids in group)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("group", [1, 4])
def test_a_static_cache_gives_the_tokens_and_logprobs_of_a_growing_one(
    tiny: Tiny, seed: int | None, group: int
) -> None:
    growing = drawn(tiny, seed=seed, group=group, cache="dynamic")
    static = drawn(tiny, seed=seed, group=group, cache="static")
    assert ids_of(static) == ids_of(growing)
    for ours, theirs in zip(static, growing, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_rows_read_their_own_prompt_also_where_heads_share_keys() -> None:
    model = small_llama(seed=2)
    prompts = [[3, 9, 4, 4, 7], [11], [5, 6, 20, 30, 41, 2, 8, 8]]
    seeds = group_seeds(4, prompts=3, group=5)
    growing, static = (
        decode(model, prompts, seeds_PG=seeds, settings=DecodeSettings(9, pad=0, end=1, cache=kind))
        for kind in ("dynamic", "static")
    )
    assert ids_of(static) == ids_of(growing)
    assert len({tuple(ids) for group in ids_of(static) for ids in group}) > 10


@pytest.mark.parametrize("group", [1, 3])
def test_groups_that_have_not_ended_move_to_ever_smaller_batches_and_say_the_same(
    monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    from dirigent_gym.train import decode as decoding
    from dirigent_gym.train.turns import FixedTurns

    model = small_llama(seed=2, vocab_size=12)  # of twelve words, one of which is the end
    prompts = [[2 + (i * k) % 9 for k in range(1, 2 + i % 7)] for i in range(16)]
    seeds = group_seeds(8, prompts=16, group=group)

    moved: list[tuple[int, int]] = []
    monkeypatch.setattr(decoding, "NARROW_ABOVE_ROWS", 2)
    monkeypatch.setattr(decoding, "ROW_BUCKETS", tuple(range(3, 49, 3)))
    take_over = FixedTurns.take_over

    def noted(self: Any, wider: Any, places: Sequence[int], *, group: int) -> None:
        moved.append((len(wider.done_B), len(self.done_B)))
        take_over(self, wider, places, group=group)

    monkeypatch.setattr(FixedTurns, "take_over", noted)
    growing, static = (
        decode(model, prompts, seeds_PG=seeds, settings=DecodeSettings(40, pad=0, end=1, cache=kind))
        for kind in ("dynamic", "static")
    )
    assert ids_of(static) == ids_of(growing)
    assert len(moved) >= 3
    assert all(narrow < wide for wide, narrow in moved)
    for ours, theirs in zip(static, growing, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


@pytest.mark.parametrize("group", [6, 7, 16])
def test_a_batch_that_could_not_be_smaller_stays_also_where_groups_do_not_divide_its_size(group: int) -> None:
    from dirigent_gym.train.decode import Shape, _places, _would_do_with_less

    for rows in (512, 1024, 2048):
        places = _places(rows // group, group)
        shape = Shape(prompts=places, group=group, length=128, choosing="drawn")
        assert not _would_do_with_less(rows // group, shape)
        assert _would_do_with_less(1, shape)


def test_turns_read_no_more_columns_than_they_need_and_say_the_same(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dirigent_gym.train.turns import FixedCache, rooms

    assert rooms(160) == (64, 128, 160)
    assert rooms(40) == (40,)
    monkeypatch.setattr("dirigent_gym.train.turns.ROOM_STEP", 4)
    read: list[int] = []
    update = FixedCache.update

    def noted(self: Any, *args: Any, **options: Any) -> Any:
        layer, rest = update(self, *args, **options)
        read.append(layer.own_keys_BKCD.shape[2])
        assert layer.bias_PS.shape[1] == layer.prompt_keys_PKLD.shape[2] + read[-1]
        return layer, rest

    monkeypatch.setattr(FixedCache, "update", noted)
    assert ids_of(drawn(tiny, seed=5, group=4, cache="static")) == ids_of(drawn(tiny, seed=5, group=4, cache="dynamic"))
    assert sorted(set(read)) == [4, 8, 12]


def test_a_token_falls_where_its_number_does_and_one_without_width_never(monkeypatch: pytest.MonkeyPatch) -> None:
    from dirigent_gym.train.noise import draw

    monkeypatch.setattr("dirigent_gym.train.noise.BLOCK_TOKENS", 4)
    wide = torch.tensor([0.0, 0.1, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3, 0.0, 0.4])
    numbers = torch.linspace(1e-6, 1 - 2**-24, 1001)
    drawn_ = draw(wide.expand(1001, -1), numbers)
    ends = wide.cumsum(0)
    assert set(drawn_.tolist()) == {1, 2, 8, 10}
    sure = [i for i, n in enumerate(numbers.tolist()) if min(abs(ends - n)) > 1e-6]
    assert drawn_[sure].tolist() == torch.searchsorted(ends, numbers[sure], right=True).tolist()
    torch.manual_seed(1)
    random = torch.rand(500, 37) ** 9
    found = draw(random / random.sum(-1, keepdim=True), torch.rand(500))
    assert bool((random.gather(1, found[:, None]) > 0).all())


def test_turns_over_a_static_cache_can_be_used_again_for_other_rows(tiny: Tiny) -> None:
    """What a captured graph does: the same memory, filled anew for the next batch."""
    from transformers import DynamicCache

    from dirigent_gym.train.noise import seed_starts
    from dirigent_gym.train.turns import FixedTurns, read

    model, tokenizer = tiny
    settings = DecodeSettings(6, pad=tokenizer.pad_token_id, end=tokenizer.eos_token_id)
    turns = None
    for text in ("one two three four", "ten nine", "six"):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        first, mask = DynamicCache(config=model.config), torch.ones_like(ids)
        with torch.no_grad():
            logits = read(model, ids, mask, torch.arange(ids.shape[1])[None], first)
            turns = turns or FixedTurns(
                model, settings, prompts=16, group=1, length=64, choosing="likeliest", like=first
            )
            starts, sampled = seed_starts([None], "cpu")
            turns.begin(logits, mask, first, starts_B=starts, sampled_B=sampled)
            for _ in range(5):
                turns.take()
            want = model.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :].tolist()
        assert turns.tokens_BT[0, : len(want)].tolist() == want


def test_what_cannot_be_captured_runs_without_and_says_so_once(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no GPU here: the capture fails as it would where a kernel does not allow it."""
    monkeypatch.setattr("dirigent_gym.train.decode.cache_kind", lambda kind, inner, device: "graphs")
    graphs = Graphs()
    for _ in range(2):
        assert ids_of(drawn(tiny, seed=7, group=4, graphs=graphs)) == ids_of(drawn(tiny, seed=7, group=4))
    assert graphs.fault
    assert capsys.readouterr().err.count("without CUDA graphs") == 1


def test_where_memory_is_out_decoding_ends_instead_of_going_on_without_graphs(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: the capture that could not be ended puts an error of its own before the true one."""

    def capture(*_: Any, **__: Any) -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        finally:
            raise RuntimeError("capture was not ended")

    monkeypatch.setattr("dirigent_gym.train.decode.cache_kind", lambda kind, inner, device: "graphs")
    monkeypatch.setattr("dirigent_gym.train.graphs.captured", capture)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: (0, 1))
    graphs = Graphs()
    with pytest.raises(RuntimeError, match="capture was not ended") as raised:
        drawn(tiny, seed=7, group=4, graphs=graphs)
    assert ran_out(raised.value) is not None
    assert not graphs.fault


def test_only_so_many_shapes_are_kept(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dirigent_gym.train.decode.cache_kind", lambda kind, inner, device: "graphs")
    monkeypatch.setattr("dirigent_gym.train.decode.LENGTH_STEP", 1)
    graphs = Graphs(most=2)
    graphs.fault = "not tried"
    for tokens in (6, 5, 4):
        drawn(tiny, seed=None, max_new_tokens=tokens, graphs=graphs)
    assert [len(memory.turns) for memory in graphs._memories] == [2, 0]


def test_graphs_are_for_gpus_and_static_caches_for_an_attention_that_takes_their_mask(tiny: Tiny) -> None:
    model, _ = tiny
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [cache_kind("auto", model, device) for device in (cpu, cuda)] == ["dynamic", "graphs"]
    assert [cache_kind("graphs", model, device) for device in (cpu, cuda)] == ["static", "graphs"]
    model.config._attn_implementation, was = "eager", model.config._attn_implementation
    try:
        assert cache_kind("graphs", model, cuda) == "dynamic"
    finally:
        model.config._attn_implementation = was


def test_batches_have_few_sizes() -> None:
    assert [row_bucket(n) for n in (1, 16, 17, 1000, 1024, 2048, 2049)] == [16, 16, 64, 1024, 1024, 2048, 4096]


def test_every_run_of_the_model_knows_the_prompt_of_each_row(tiny: Tiny) -> None:
    model, tokenizer = tiny
    seen: list[list[int]] = []

    def around(prompt_of_row: Sequence[int]) -> AbstractContextManager[None]:
        seen.append(list(prompt_of_row))
        return nullcontext()

    prompts = prompts_of(tokenizer)
    settings = DecodeSettings(2, pad=0, end=-1, chunk_tokens=24)
    decode(model, prompts, seeds_PG=[[1, 2]] * 3, settings=settings, around=around)
    shortest, middle, longest = sorted(range(3), key=lambda i: len(prompts[i]))
    assert seen[0][0] == shortest
    assert {prompt for batch in seen for prompt in batch} == {shortest, middle, longest}
    assert seen[1] == [prompt for prompt in seen[0] for _ in range(2)]


def test_rows_too_long_for_a_batch_stand_alone() -> None:
    assert list(chunks([0, 1, 2, 3], [4, 4, 5, 100], 12, most=8)) == [[0, 1], [2], [3]]
    assert list(chunks([0, 1, 2], [1, 1, 1], 12, most=2)) == [[0, 1], [2]]


def test_groups_of_different_sizes_are_refused(tiny: Tiny) -> None:
    model, _ = tiny
    with pytest.raises(ValueError, match=facts("[1, 2]")):
        decode(model, [[3], [4]], seeds_PG=[[1], [1, 2]], settings=DecodeSettings(2, pad=0, end=1))


def test_decoding_leaves_the_model_in_the_mode_it_was_in(tiny: Tiny) -> None:
    tiny[0].train()
    drawn(tiny, seed=None, max_new_tokens=2)
    assert tiny[0].training
    tiny[0].eval()


def test_every_row_of_a_draw_has_a_seed_of_its_own_and_a_greedy_draw_none() -> None:
    seeds = [seed for group in group_seeds(5, prompts=6, group=7) for seed in group]
    assert len(set(seeds)) == 42
    assert group_seeds(5, prompts=6, group=7)[2] == group_seeds(5, prompts=3, group=7)[2]
    assert group_seeds(None, prompts=1, group=2) == [[None, None]]


def test_prompts_are_padded_before_and_samples_cut_after_their_first_end_mark() -> None:
    from dirigent_gym.train.decode import _cut, _padded, _rows_at

    assert _padded([[3, 4, 5], [6]], pad=9).tolist() == [[[3, 4, 5], [9, 9, 6]], [[1, 1, 1], [0, 0, 1]]]
    assert _rows_at([2, 0], 3, "cpu").tolist() == [6, 7, 8, 0, 1, 2]
    tokens = torch.tensor([[5, 1, 7, 1], [1, 0, 0, 0], [5, 6, 7, 8], [5, 6, 7, 1]])
    logprobs = -torch.rand(4, 4)
    cut = _cut(tokens, logprobs, end=1)
    assert [sample.ids for sample in cut] == [[5, 1], [1], [5, 6, 7, 8], [5, 6, 7, 1]]
    assert [sample.logprobs for sample in cut] == [
        row[:n] for row, n in zip(logprobs.tolist(), (2, 1, 4, 4), strict=True)
    ]
