"""Data sets of the Hugging Face hub, over plain HTTPS: fetched once, resumable, kept as JSON lines.

Two ways in, neither of which needs a package: the rows of a set, a hundred at a time, from the viewer's service; or
files of the set as they lie in its repository. What was fetched before a cut is kept and not asked for again. A file is
checked against the sha256 that we know or that the hub itself names. Knows nothing of what the rows mean.

`HF_TOKEN` goes along where it is set, for sets that ask for consent; `HF_ENDPOINT` names a mirror.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dirigent.errors import ConfigError
from dirigent.home import home

if TYPE_CHECKING:
    import aiohttp

PAGE_ROWS = 100
"""The most that the service gives at a time."""
TRIES = 5
MOST_WAIT_S = 60.0
STALL_S = 60.0
CHUNK_BYTES = 1 << 16

Progress = Callable[[str, int, int], None]
"""What is fetched, how much of it is here, how much there is (0: not known)."""


class Addresses(msgspec.Struct, frozen=True):
    """Where the hub is."""

    files: str = "https://huggingface.co"
    rows: str = "https://datasets-server.huggingface.co"

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ) -> Addresses:
        """The hub's own, or a mirror's. A mirror of files need not have the rows, so those have a name of their own."""
        usual = cls()
        files = environ.get("HF_ENDPOINT", "").rstrip("/") or usual.files
        return cls(files, environ.get("DIRIGENT_DATASETS_SERVER", "").rstrip("/") or usual.rows)


class HubSet(msgspec.Struct, frozen=True):
    """One split of a data set."""

    dataset: str
    split: str = "test"
    configs: tuple[str, ...] = ("default",)
    """The rows of all of these; each row says under `config` where it is from."""
    files: tuple[str, ...] = ()
    """JSON lines in the repository, for sets whose rows the service does not serve."""
    sha256: dict[str, str] = {}
    """Of a file, where we know it."""
    gated: bool = False
    """Its authors ask for consent first."""

    @property
    def name(self) -> str:
        part = "-".join(self.files) or f"{self.split}-{'-'.join(self.configs)}"
        return re.sub(r"[^\w.-]", "--", f"{self.dataset}-{part}")[:150]

    @property
    def page(self) -> str:
        return f"https://huggingface.co/datasets/{self.dataset}"


async def fetch(
    wanted: HubSet,
    *,
    cache: Path | None = None,
    addresses: Addresses | None = None,
    progress: Progress = lambda what, done, total: None,
    wait_s: float = 1.0,
) -> Path:
    """The rows as one file of JSON lines, from the cache or the hub. `wait_s`: the first pause before trying again."""
    folder = cache if cache is not None else home() / "datasets"
    path = folder / f"{wanted.name}.jsonl"
    if path.exists():
        return path
    import aiohttp

    token = os.environ.get("HF_TOKEN", "").strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=None, connect=20, sock_read=STALL_S)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True, headers=headers) as session:
            visit = _Visit(session, wanted, folder, addresses or Addresses.of(), progress, wait_s)
            parts = [await visit.file(name) for name in wanted.files]
            parts += [await visit.rows(config) for config in (wanted.configs if not wanted.files else ())]
    except OSError as error:
        raise ConfigError(f"{wanted.dataset} cannot be kept in {folder}: {error}; set DIRIGENT_HOME") from None
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(b"".join(part.read_bytes().rstrip(b"\n") + b"\n" for part in parts))
    fresh.replace(path)
    for part in parts:
        part.unlink()
    return path


class _Page(msgspec.Struct, frozen=True):
    """An answer of the rows service."""

    rows: list[dict[str, Any]]
    num_rows_total: int
    partial: bool = False


class _Again(Exception):
    """The hub was busy or the connection broke: worth another try."""

    def __init__(self, said: str, after_s: float = 0.0) -> None:
        super().__init__(said)
        self.after_s = after_s


class _Visit:
    """One session with the hub."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        wanted: HubSet,
        folder: Path,
        addresses: Addresses,
        progress: Progress,
        wait_s: float,
    ) -> None:
        self._session = session
        self._wanted = wanted
        self._folder = folder
        self._addresses = addresses
        self._progress = progress
        self._wait_s = wait_s

    async def rows(self, config: str) -> Path:
        """All rows of a configuration, behind those that an earlier visit left."""
        part = self._folder / f"{self._wanted.name}.{config}.part"
        have, total = _whole_lines(part), -1  # asked at least once: only an answer says how many there are
        while have < total or total < 0:
            page = await self._patiently(lambda offset=have: self._page(config, offset))  # type: ignore[misc]
            total = page.num_rows_total
            if page.partial or (not page.rows and have < total):
                raise ConfigError(
                    f"{self._wanted.dataset} serves only a part of its rows; get the whole from "
                    f"{self._wanted.page} and name it with --data"
                )
            with part.open("ab") as file:
                file.writelines(
                    msgspec.json.encode({**self._whole(row), "config": config}) + b"\n" for row in page.rows
                )
            have += len(page.rows)
            self._progress(self._wanted.dataset, have, total)
        return part

    async def file(self, name: str) -> Path:
        """A file of the repository, whole and checked."""
        part = self._folder / f"{self._wanted.name}.{name.replace('/', '--')}.part"
        known = await self._patiently(lambda: self._append(name, part))
        digest = await asyncio.to_thread(_sha256, part)
        expected = self._wanted.sha256.get(name) or known
        if expected and digest != expected:
            part.unlink()
            raise ConfigError(
                f"{name} of {self._wanted.dataset} has sha256 {digest}, not {expected}; "
                "the download was deleted, try again"
            )
        return part

    async def _page(self, config: str, offset: int) -> _Page:
        asked = {"dataset": self._wanted.dataset, "config": config, "split": self._wanted.split}
        url = f"{self._addresses.rows}/rows"
        async with self._session.get(url, params=asked | {"offset": offset, "length": PAGE_ROWS}) as response:
            self._require_ok(response)
            try:
                return msgspec.json.decode(await response.read(), type=_Page)
            except msgspec.MsgspecError as error:
                raise ConfigError(f"{url} did not answer with rows of {self._wanted.dataset}: {error}") from None

    async def _append(self, name: str, part: Path) -> str:
        """Ask for the bytes that are missing; returns the sha256 that the hub names, if it does."""
        have = _size(part)
        url = f"{self._addresses.files}/datasets/{self._wanted.dataset}/resolve/main/{name}"
        headers = {"Range": f"bytes={have}-", "Accept-Encoding": "identity"}
        async with self._session.get(url, headers=headers) as response:
            if response.status == 416:  # nothing is missing
                return _named_sha256(response)
            self._require_ok(response)
            starts = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            total = int(response.headers.get("Content-Length", 0)) + (have if starts else 0)
            with part.open("ab" if starts else "wb") as file:
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    file.write(chunk)
                    self._progress(name, file.tell(), total)
            return _named_sha256(response)

    def _require_ok(self, response: aiohttp.ClientResponse) -> None:
        if response.status in (200, 206):
            return
        if response.status == 429 or response.status >= 500:
            after = response.headers.get("Retry-After", "")
            raise _Again(f"HTTP {response.status}", float(after) if after.isdigit() else 0.0)
        raise ConfigError(
            f"{self._wanted.dataset} is not to be had (HTTP {response.status}); {where_to_get(self._wanted)}"
        )

    async def _patiently(self, ask: Callable[[], Any]) -> Any:
        """Try again while the hub is busy, waiting twice as long each time."""
        import aiohttp

        for attempt in range(TRIES):
            try:
                return await ask()
            except (_Again, aiohttp.ClientError, TimeoutError) as error:
                if attempt + 1 == TRIES:
                    said = str(error) or type(error).__name__
                    raise ConfigError(
                        f"{self._wanted.dataset} could not be fetched: {said}; what came is kept, so try again, or "
                        f"{where_to_get(self._wanted)}"
                    ) from None
                after_s = error.after_s if isinstance(error, _Again) else 0.0
                await asyncio.sleep(min(MOST_WAIT_S, max(after_s, self._wait_s * 2**attempt)))
        raise AssertionError("the last try returns or raises")

    def _whole(self, row: dict[str, Any]) -> dict[str, Any]:
        if row.get("truncated_cells"):
            raise ConfigError(
                f"row {row.get('row_idx')} of {self._wanted.dataset} comes with cells cut off; get the files from "
                f"{self._wanted.page} and name them with --data"
            )
        return dict(row["row"])


def where_to_get(wanted: HubSet) -> str:
    """What a person does about a set that does not come."""
    if wanted.gated:
        return f"accept its terms at {wanted.page} and set HF_TOKEN, or name a file of it with --data"
    return f"get it from {wanted.page} and name its folder or file with --data"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _whole_lines(part: Path) -> int:
    """Rows of an earlier visit; one that was cut in the middle of its line is dropped."""
    if not part.exists():
        return 0
    content = part.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        part.write_bytes(whole)
    return whole.count(b"\n")


def _named_sha256(response: aiohttp.ClientResponse) -> str:
    """Large files carry their sha256 as the hub's tag for them, on the redirect to where they lie."""
    for seen in (*response.history, response):
        tag = seen.headers.get("X-Linked-Etag", "").strip('"')
        if re.fullmatch(r"[0-9a-f]{64}", tag):
            return tag
    return ""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
