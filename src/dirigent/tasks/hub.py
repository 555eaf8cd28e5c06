"""Fetch data sets of the Hugging Face hub over HTTPS; downloads resume and are cached as JSON lines.

There are two sources: files in the set's repository, or rows from the service of the hub's viewer, a hundred at a time.
Files come first, because one request fetches a whole file and the hub names its sha256. Rows serve users without
pyarrow, which reads Parquet, and sets whose files were moved. An interrupted fetch continues where it ended, and a set
becomes visible only when it is complete. The module does not know what the rows mean.

`HF_ENDPOINT` names a mirror. `HF_TOKEN` is sent, if set, for sets that ask for consent: to the hub or its mirror, never
to the host that a redirect names. A mirror has no viewer unless `DIRIGENT_DATASETS_SERVER` names one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from dirigent.errors import ConfigError
from dirigent.paths import home
from dirigent.tasks.tables import parquet_is_readable, raw_rows

if TYPE_CHECKING:
    import aiohttp

PAGE_ROWS = 100
"""The most rows that the service returns at a time."""
TRIES = 5
MOST_WAIT_S = 300.0
"""The hub counts calls in windows of this length."""
STALL_S = 60.0
CHUNK_BYTES = 1 << 16

Progress = Callable[[str, int, int], None]
"""Receives the name, the amount here and the whole amount (0: unknown)."""


class Addresses(msgspec.Struct, frozen=True):
    """The addresses of the hub."""

    files: str = "https://huggingface.co"
    rows: str = "https://datasets-server.huggingface.co"
    """The address of the rows service; empty if the hub has no such service."""

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ) -> Addresses:
        """Returns the hub's addresses, or a mirror's. A mirror's users are never sent to the hub's viewer."""
        usual = cls()
        files = environ.get("HF_ENDPOINT", "").rstrip("/") or usual.files
        rows = environ.get("DIRIGENT_DATASETS_SERVER", "").rstrip("/")
        return cls(files, rows or (usual.rows if files == usual.files else ""))


class HubSet(msgspec.Struct, frozen=True):
    """One split of a data set."""

    dataset: str
    split: str = "test"
    configs: tuple[str, ...] = ("default",)
    """The rows of all these configurations; the field `config` of each row names its own."""
    files: tuple[str, ...] = ()
    """The files in the repository: JSON lines, CSV or Parquet."""
    sha256: dict[str, str] = {}
    """The sha256 of a file, if we know it."""
    gated: bool = False
    """The authors ask for consent before a download."""

    @property
    def name(self) -> str:
        return re.sub(r"[^\w.-]", "--", f"{self.dataset}-{self.split}-{'-'.join(self.configs)}")[:150]

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
    """Returns the rows as one file of JSON lines, cached or fetched. `wait_s` is the first pause before a retry."""
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
        # aiohttp drops the token if a redirect leads to another host.
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True, headers=headers) as session:
            visit = _Visit(session, wanted, folder, addresses or Addresses.of(), progress, wait_s)
            parts = await _parts(visit, wanted)
        fresh = path.with_name(path.name + ".new")
        await asyncio.to_thread(_join, parts, fresh)
        fresh.replace(path)
        for part in parts:
            part.path.unlink()
    except OSError as error:
        raise ConfigError(f"{wanted.dataset} cannot be stored in {folder}: {error}; set DIRIGENT_HOME") from None
    return path


def config_of(file: str) -> str:
    """Returns the configuration of a file: the name of its folder, else of the file."""
    path = PurePosixPath(file)
    return path.parent.name or path.stem


class _Part(msgspec.Struct, frozen=True):
    """A downloaded part of a set: a file as published, or rows as JSON lines."""

    path: Path
    ending: str = ".jsonl"
    config: str = ""


async def _parts(visit: _Visit, wanted: HubSet) -> list[_Part]:
    if wanted.files and (parquet_is_readable() or not any(name.endswith(".parquet") for name in wanted.files)):
        try:
            return [await visit.file(name) for name in wanted.files]
        except _Missing as missing:
            if not visit.has_rows:
                raise ConfigError(str(missing)) from None
    if not visit.has_rows:
        raise ConfigError(
            f"{wanted.dataset} comes as Parquet: pip install pyarrow, or {where_to_get(wanted)}, "
            "or name a server of its rows with DIRIGENT_DATASETS_SERVER"
        )
    return [await visit.rows(config) for config in wanted.configs]


def _join(parts: Sequence[_Part], path: Path) -> None:
    try:
        with path.open("wb") as file:
            for part in parts:
                _add(part, file)
    except ConfigError:  # resuming would not repair a table that cannot be read
        for file_path in (path, *(part.path for part in parts)):
            _drop(file_path)
        raise


def _add(part: _Part, file: BinaryIO) -> None:
    """Appends a table as JSON lines."""
    if part.ending != ".jsonl":
        rows = raw_rows(part.path, ending=part.ending)
        file.writelines(msgspec.json.encode({**row, "config": part.config}) + b"\n" for row in rows)
        return
    with part.path.open("rb") as lines:
        shutil.copyfileobj(lines, file)
    if not _ends_with_newline(part.path):
        file.write(b"\n")


class _Page(msgspec.Struct, frozen=True):
    """One response of the rows service."""

    rows: list[dict[str, Any]]
    num_rows_total: int
    partial: bool = False


class _Again(Exception):
    """The hub was busy or the connection broke, so a retry may succeed."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


class _Missing(Exception):
    """The hub has no such file."""


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

    @property
    def has_rows(self) -> bool:
        return bool(self._addresses.rows)

    async def rows(self, config: str) -> _Part:
        """Returns all rows of a configuration. Rows of an earlier visit are not fetched again."""
        part = self._folder / f"{self._wanted.name}.{config}.part"
        have, total = _whole_lines(part), -1  # one request at least, because only a response names the total
        while have < total or total < 0:
            page = await self._patiently(lambda offset=have: self._page(config, offset))  # type: ignore[misc]
            total = page.num_rows_total
            if page.partial or (not page.rows and have < total):
                raise ConfigError(
                    f"{self._wanted.dataset} serves only a part of its rows; get all of them from "
                    f"{self._wanted.page} and name the file with --data"
                )
            with part.open("ab") as file:
                file.writelines(
                    msgspec.json.encode({**self._whole(row), "config": config}) + b"\n" for row in page.rows
                )
            have += len(page.rows)
            self._progress(self._wanted.dataset, have, total)
        return _Part(part)

    async def file(self, name: str) -> _Part:
        """Returns a complete and checked file of the repository."""
        part = self._folder / f"{self._wanted.name}.{name.replace('/', '--')}.part"
        known = await self._patiently(lambda: self._append(name, part))
        digest = await asyncio.to_thread(_sha256, part)
        expected = self._wanted.sha256.get(name) or known
        if expected and digest != expected:
            part.unlink()
            raise ConfigError(
                f"{name} of {self._wanted.dataset} has sha256 {digest}, not {expected}; "
                "the download was deleted; try again"
            )
        if not _looks_right(part, PurePosixPath(name).suffix):
            part.unlink()
            raise ConfigError(
                f"{name} of {self._wanted.dataset} has the wrong format; a proxy or a login page may have answered for "
                f"{self._addresses.files}. The download was deleted"
            )
        return _Part(part, PurePosixPath(name).suffix, config_of(name))

    async def _page(self, config: str, offset: int) -> _Page:
        asked = {"dataset": self._wanted.dataset, "config": config, "split": self._wanted.split}
        url = f"{self._addresses.rows}/rows"
        async with self._session.get(url, params=asked | {"offset": offset, "length": PAGE_ROWS}) as response:
            self._require_ok(response)
            try:
                return msgspec.json.decode(await response.read(), type=_Page)
            except msgspec.MsgspecError as error:
                raise ConfigError(f"{url} did not return rows of {self._wanted.dataset}: {error}") from None

    async def _append(self, name: str, part: Path) -> str:
        """Downloads the missing bytes; returns the sha256 that the hub names, or ""."""
        have = _size(part)
        url = f"{self._addresses.files}/datasets/{self._wanted.dataset}/resolve/main/{name}"
        headers = {"Range": f"bytes={have}-", "Accept-Encoding": "identity"}
        async with self._session.get(url, headers=headers) as response:
            if response.status == 416:  # no byte is missing, if the local file is as long as the hub's
                if response.headers.get("Content-Range", "").rpartition("/")[2] != str(have):
                    _drop(part)
                    raise _Again("the earlier download is not part of this file, so the file is fetched anew")
                return _named_sha256(response)
            if response.status == 404:
                raise _Missing(f"{self._unavailable(404)}: it has no {name}; {where_to_get(self._wanted)}")
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
        if response.status == 429 or (response.status >= 500 and response.status != 501):
            raise _Again(f"HTTP {response.status}", _wait_s(response))
        refused = response.status in (401, 403)
        advice = _access_advice(self._wanted) if refused else where_to_get(self._wanted)
        raise ConfigError(f"{self._unavailable(response.status)}; {advice}")

    def _unavailable(self, status: int) -> str:
        return f"{self._wanted.dataset} is not available (HTTP {status})"

    async def _patiently(self, ask: Callable[[], Any]) -> Any:
        """Retries while the hub is busy and doubles the pause each time."""
        import aiohttp

        for attempt in range(TRIES):
            try:
                return await ask()
            except (_Again, aiohttp.ClientError, TimeoutError) as error:
                if attempt + 1 == TRIES:
                    reason = str(error) or type(error).__name__
                    raise ConfigError(
                        f"{self._wanted.dataset} could not be fetched: {reason}; the part that came is stored, so try "
                        f"again, or {where_to_get(self._wanted)}"
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
    """Returns advice for a user whose set cannot be fetched."""
    if wanted.gated:
        return f"accept its terms at {wanted.page} and set HF_TOKEN, or name a file of it with --data"
    return f"get it from {wanted.page} and name its folder or file with --data"


def _access_advice(wanted: HubSet) -> str:
    """Returns advice for a refused request: the hub gives one status for gated and for missing sets."""
    if os.environ.get("HF_TOKEN", "").strip():
        return (
            f"HF_TOKEN was sent but does not open it: accept the terms at {wanted.page} with the account of that "
            "token, or name a file of it with --data"
        )
    if wanted.gated:
        return where_to_get(wanted)
    return f"it may have moved, or it now asks for consent: see {wanted.page}, set HF_TOKEN, or name a file with --data"


def _wait_s(response: aiohttp.ClientResponse) -> float:
    """Returns the seconds that the hub asks us to wait: `Retry-After: 5`, or `RateLimit: "api";r=0;t=55`."""
    asked = response.headers.get("Retry-After", "")
    window = re.search(r";\s*t=(\d+)", response.headers.get("RateLimit", ""))
    return float(asked) if asked.isdigit() else float(window[1]) if window else 0.0


def _drop(path: Path) -> None:
    path.unlink(missing_ok=True)


def _looks_right(path: Path, ending: str) -> bool:
    """Returns whether a file begins as its kind does; a Parquet file must also end so."""
    with path.open("rb") as file:
        begin = file.read(4)
        file.seek(-min(4, _size(path)), os.SEEK_END)
        end = file.read(4)
    if ending == ".parquet":
        return begin == end == b"PAR1" and _size(path) >= 12
    return begin[:1] == b"{" if ending == ".jsonl" else begin[:1] != b"<"


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-min(1, _size(path)), os.SEEK_END)
        return file.read(1) == b"\n"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _whole_lines(part: Path) -> int:
    """Returns the number of rows from an earlier visit; drops a last line that was cut off."""
    if not part.exists():
        return 0
    content = part.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        part.write_bytes(whole)
    return whole.count(b"\n")


def _named_sha256(response: aiohttp.ClientResponse) -> str:
    """Returns the sha256 of a large file: the hub's tag for it, on the redirect to its host."""
    for seen in (*response.history, response):
        tag = seen.headers.get("X-Linked-Etag", "").strip('"')
        if re.fullmatch(r"[0-9a-f]{64}", tag):
            return tag
    return ""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
