"""All caches of one keeper of graphs lie in two memories, used in turn, and nobody reads there what another left.

There is no GPU here: what stands for a captured turn takes it as it comes, after warming up as a real capture does, and
holds to the two rules of a real one. Its addresses must still be those of memory that is there, and torch takes no pool
whose graphs are all gone.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")

from tests.gym.train.llamas import small_llama  # noqa: E402

from dirigent_gym.train import decode as decoding  # noqa: E402
from dirigent_gym.train.decode import DecodeSettings, Sample, decode  # noqa: E402
from dirigent_gym.train.graphs import ALIGNED_BYTES, WARM_UP_TURNS, CacheMemory, Graphs  # noqa: E402
from dirigent_gym.train.noise import group_seeds  # noqa: E402
from dirigent_gym.train.turns import FixedTurns, Space  # noqa: E402


class Captured:
    """One turn. Has no hold on what it was captured from, as a graph has none."""

    def __init__(self, gpu: Gpu, turns: FixedTurns, columns: int) -> None:
        self._gpu, self._turns, self._columns = gpu, weakref.ref(turns), columns
        self._addresses = addresses(turns)

    def replay(self) -> None:
        turns = self._turns()
        assert turns is not None
        assert addresses(turns) == self._addresses
        assert storages(turns) <= {flat.untyped_storage().data_ptr() for flat in self._gpu.flats()}
        turns._cache.columns = self._columns
        turns.choose(turns.read_last())


class Gpu:
    """What stands for one, and what was done on it."""

    def __init__(self) -> None:
        self.graphs = Graphs()
        self.shapes: list[tuple[int, Any]] = []
        """Captured: where, and for what."""
        self._pools: dict[Any, weakref.WeakSet[Captured]] = {}

    def capture(self, turns: FixedTurns, *, columns: int, pool: Any) -> Any:
        if pool in self._pools and not self._pools[pool]:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        for _ in range(WARM_UP_TURNS + 1):
            turns.restart()
            turns.take_reading(columns)
        turns.restart()
        graph = Captured(self, turns, columns)
        self._pools.setdefault(pool, weakref.WeakSet()).add(graph)
        return graph.replay

    def flats(self, *memories: int) -> list[Any]:
        return [flat for i in memories or (0, 1) for flat in self.graphs._memories[i]._flat.values()]

    def kept(self, *memories: int) -> list[FixedTurns]:
        return [turns for i in memories or (0, 1) for turns in self.graphs._memories[i].turns.values()]


def layers(turns: FixedTurns) -> list[Any]:
    return [tensor for layer in turns._cache._layers for tensor in layer[:4]]


def addresses(turns: FixedTurns) -> list[int]:
    return [tensor.data_ptr() for tensor in layers(turns)]


def storages(turns: FixedTurns) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in layers(turns)}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """Decoding takes it for a GPU; every batch of three rows or more narrows, in steps of three."""
    torch.set_num_threads(1)
    gpu, handles, turns = Gpu(), itertools.count(), Graphs.turns
    monkeypatch.setattr(
        decoding, "cache_kind", lambda kind, inner, device: "graphs" if kind in ("auto", "graphs") else kind
    )
    monkeypatch.setattr(decoding, "LENGTH_STEP", 4)
    monkeypatch.setattr(decoding, "NARROW_ABOVE_ROWS", 2)
    monkeypatch.setattr(decoding, "ROW_BUCKETS", tuple(range(3, 49, 3)))
    monkeypatch.setattr("dirigent_gym.train.turns.ROOM_STEP", 8)
    monkeypatch.setattr("dirigent_gym.train.graphs.captured", gpu.capture)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: (0, next(handles)))

    def watched(self: Graphs, inner: Any, settings: Any, shape: Any, *, narrowed: int, build: Any) -> FixedTurns:
        there, other = narrowed % 2, 1 - narrowed % 2
        before, kept = [flat.clone() for flat in gpu.flats(other)], gpu.kept(there)
        found = turns(self, inner, settings, shape, narrowed=narrowed, build=build)
        for was, flat in zip(before, gpu.flats(other), strict=True):
            assert torch.equal(was.view(torch.uint8), flat.view(torch.uint8)), "the batch that goes on was written over"
        if found not in kept:
            gpu.shapes.append((there, shape))
        return found

    monkeypatch.setattr(Graphs, "turns", watched)
    yield gpu
    assert not gpu.graphs.fault


@pytest.fixture(scope="module")
def model() -> Any:
    return small_llama(seed=2, vocab_size=12)  # of twelve words, one of which is the end


def drawn(model: Any, *, prompts: int = 16, group: int = 1, tokens: int = 30, words: int = 7, **options: Any) -> Any:
    texts = [[2 + (i * k) % 9 for k in range(1, 2 + i % words)] for i in range(prompts)]
    seeds = group_seeds(options.pop("seed", 8), prompts=prompts, group=group)
    graphs = options.pop("graphs", None)
    settings = DecodeSettings(tokens, pad=0, end=1, **options)
    return decode(model, texts, seeds_PG=seeds, settings=settings, graphs=graphs)


def same(ours: list[list[Sample]], theirs: list[list[Sample]]) -> bool:
    def ids(groups: list[list[Sample]]) -> list[list[list[int]]]:
        return [[sample.ids for sample in group] for group in groups]

    pairs = [pair for groups in zip(ours, theirs, strict=True) for pair in zip(*groups, strict=True)]
    return ids(ours) == ids(theirs) and all(a.logprobs == pytest.approx(b.logprobs, abs=1e-5) for a, b in pairs)


DRAWS: list[dict[str, Any]] = [
    {"group": 2},
    {"prompts": 5, "words": 3, "tokens": 20},
    {"group": 3, "words": 11},
    {"seed": None},
    {"prompts": 2, "tokens": 1},
]


def test_shapes_one_after_another_and_the_first_again_say_what_each_says_by_itself(model: Any, gpu: Gpu) -> None:
    alone = [drawn(model, cache="static", **draw) for draw in DRAWS]
    assert not gpu.shapes
    for _ in range(2):
        for draw, want in zip(DRAWS, alone, strict=True):
            assert same(drawn(model, graphs=gpu.graphs, **draw), want)
    known = len(gpu.shapes)
    for draw, want in reversed(list(zip(DRAWS, alone, strict=True))):
        assert same(drawn(model, graphs=gpu.graphs, **draw), want)
    assert len(gpu.shapes) == known, "captured again, though nothing had to go"
    twice = {shape for there, shape in gpu.shapes if there} & {shape for there, shape in gpu.shapes if not there}
    assert twice, "no shape lay in both memories, each with turns of its own"


def test_there_are_two_memories_however_many_shapes_and_each_is_as_large_as_the_largest(
    model: Any, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[int, list[int]] = {0: [], 1: []}
    tensors = CacheMemory.tensors

    def noted(self: CacheMemory, spaces: Any) -> Any:
        asked[gpu.graphs._memories.index(self)].append(sum(torch.Size(space.shape).numel() for space in spaces))
        return tensors(self, spaces)

    monkeypatch.setattr(CacheMemory, "tensors", noted)
    for draw in DRAWS:
        drawn(model, graphs=gpu.graphs, **draw)
    assert len(set(gpu.shapes)) > 10
    assert len(gpu.flats()) == 2
    for i in (0, 1):
        (flat,) = gpu.flats(i)
        assert max(asked[i]) <= len(flat) <= 9 * max(asked[i]) / 8
        assert len(flat) < sum(asked[i]) / 2
        assert all(storages(turns) == {flat.untyped_storage().data_ptr()} for turns in gpu.kept(i))
    assert len(gpu.flats(1)[0]) < len(gpu.flats(0)[0]), "what narrowed is smaller"


def test_a_batch_lies_where_the_one_it_goes_on_from_does_not(
    model: Any, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[tuple[set[int], set[int]]] = []
    take_over = FixedTurns.take_over

    def noted(self: FixedTurns, wider: FixedTurns, *args: Any, **options: Any) -> None:
        moves.append((storages(wider), storages(self)))
        take_over(self, wider, *args, **options)

    monkeypatch.setattr(FixedTurns, "take_over", noted)
    for _ in range(2):  # a new batch begins in the first memory, wherever the last one ended
        moves.clear()
        drawn(model, group=3, graphs=gpu.graphs)
        first, second = ({flat.untyped_storage().data_ptr()} for flat in gpu.flats())
        assert len(moves) >= 3
        assert moves == [(first, second) if i % 2 == 0 else (second, first) for i in range(len(moves))]


def test_before_memory_grows_what_was_captured_in_it_goes_and_the_rest_stays(model: Any, gpu: Gpu) -> None:
    small: dict[str, Any] = {"prompts": 6, "words": 3}
    want = drawn(model, graphs=gpu.graphs, **small)
    gone, flats = [weakref.ref(turns) for turns in gpu.kept()], [weakref.ref(flat) for flat in gpu.flats()]
    assert len(flats) == 2
    gc.disable()  # memory is there again at once, not when somebody looks for cycles
    try:
        drawn(model, group=3, graphs=gpu.graphs)
    finally:
        gc.enable()
    assert not [ref for ref in (*gone, *flats) if ref() is not None]
    known, kept = len(gpu.shapes), gpu.kept()
    assert same(drawn(model, graphs=gpu.graphs, **small), want)
    assert len(gpu.shapes) == known + len(gone), "captured anew"
    assert all(any(turns is still for still in gpu.kept()) for turns in kept), "what fits drives nothing out"


def test_after_the_last_graph_is_gone_there_is_a_new_pool_for_the_next(model: Any, gpu: Gpu) -> None:
    for prompts in (3, 6):
        drawn(model, prompts=prompts, tokens=2, graphs=gpu.graphs)
        pool = gpu.graphs._pool
        assert [bool(turns.replays) for turns in gpu.kept()] == [True]
    drawn(model, prompts=3, tokens=2, graphs=gpu.graphs)
    assert len(gpu.kept()) == 2
    assert pool == gpu.graphs._pool == (0, 1), "one for all that are kept"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_lies_in_memory_from_before_changes_nothing(gpu: Gpu, dtype: str) -> None:
    model = small_llama(seed=2, vocab_size=12).to(getattr(torch, dtype))
    draw: dict[str, Any] = {"prompts": 13, "group": 3, "words": 6}  # places and columns are left over
    want = drawn(model, cache="static", **draw)
    for worth in (0.0, 1e6, -1e6):
        drawn(model, graphs=gpu.graphs, **draw)
        for flat in gpu.flats():
            flat.fill_(worth)
        assert same(drawn(model, graphs=gpu.graphs, **draw), want)
        gpu.graphs._memories[0].turns.clear()  # and where turns are captured over it
        gpu.graphs._memories[1].turns.clear()
        for flat in gpu.flats():
            flat.fill_(worth)
        assert same(drawn(model, graphs=gpu.graphs, **draw), want)
    greedy = draw | {"seed": None}  # nothing can be drawn where there are no numbers
    want = drawn(model, cache="static", **greedy)
    assert same(drawn(model, graphs=gpu.graphs, **greedy), want)
    for flat in gpu.flats():
        flat.fill_(float("nan"))
    assert not same(drawn(model, graphs=gpu.graphs, **greedy), want), "nothing of it was ever read"


def test_tensors_are_aligned_lie_apart_and_share_no_bytes_with_another_type() -> None:
    memory = CacheMemory()
    like = [torch.empty(0, dtype=getattr(torch, dtype)) for dtype in ("float32", "bfloat16")]
    spaces = [Space((3, n, 5), like[n % 2]) for n in range(1, 9)]
    tensors = memory.tensors(spaces)
    for i, tensor in enumerate(tensors):
        assert not tensor.any(), "memory begins as zeros"
        tensor.fill_(i + 1)
    for i, (tensor, space) in enumerate(zip(tensors, spaces, strict=True)):
        flat = memory._flat[space.like.dtype]
        assert (tensor.shape, tensor.dtype) == (space.shape, space.like.dtype)
        assert (tensor.data_ptr() - flat.data_ptr()) % ALIGNED_BYTES == 0
        assert bool((tensor == i + 1).all()), "another one lies over it"
    assert len({flat.untyped_storage().data_ptr() for flat in memory._flat.values()}) == 2
    again = memory.tensors(spaces[2:4])
    assert [tensor.data_ptr() for tensor in again] == [memory._flat[tensor.dtype].data_ptr() for tensor in again]


def test_memory_that_grows_a_little_grows_by_an_eighth_and_that_of_another_type_stays() -> None:
    memory = CacheMemory()
    whole, half = torch.empty(0), torch.empty(0, dtype=torch.bfloat16)
    memory.tensors([Space((800,), whole), Space((64,), half)])
    other = memory._flat[torch.bfloat16]
    memory.tensors([Space((801,), whole), Space((64,), half)])
    assert len(memory._flat[torch.float32]) == 900
    memory.tensors([Space((2000,), whole)])
    assert len(memory._flat[torch.float32]) == 2000
    assert memory._flat[torch.bfloat16] is other
