"""The base of every torture row: the row itself, and a real `dirigent serve` process under it.

    async with upstream() as up, Server.open(config(worker("a", up))) as server, Client.open(server) as client:
        await client.ask(marker_of(1), model="worker/a")
        faults = await settle(server, up, client)      # the three journals agree, and nothing is left over

A row is a goal and an async function `run(count, seed) -> Result`; `python -m tests.torture` runs rows and prints
«N of N» for each. The server is always the real one: its own process, its own folder, a real database, keys, a
log. What the client saw, what the stub saw and what the database holds is compared in `journals.py`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from dirigent.store import Store
from dirigent.store.keys import PEPPER_VARIABLE, Caller, create_key
from tests.stub_wires import WireName
from tests.torture.evidence import hand_over
from tests.torture.upstream import ROOT, Upstream, raise_fd_limit

KEY_VARIABLE = "TORTURE_PROVIDER_KEY"
PEPPER = secrets.token_hex(32)
"""One for all servers of this process: keys are made here, under the environment's."""
PRICE = "{ input = 1.0, output = 3.0 }"
"""USD per million tokens of every worker made by `worker`."""
START_S = 30.0
AT_ONCE = 24
"""Requests that a row without a rate has under way."""
DEADLINE_S = 12.0
"""Of runs whose workers fail."""
LATE_S = 3.0
"""Seconds for a busy machine, added to the promised ones."""
PROGRESS_EVERY_S = 5.0


class Result(msgspec.Struct, frozen=True):
    """What became of a row."""

    done: int
    """Cases that ended as they should."""
    wanted: int
    faults: tuple[str, ...] = ()
    """What went wrong, in words; a row with any has fallen short."""
    figures: Mapping[str, float | int | str] = {}
    """Measured on the way: for reading, never for judging."""

    @property
    def reached(self) -> bool:
        return self.done >= self.wanted and not self.faults


class Row(msgspec.Struct, frozen=True):
    """One row of the goal sheet."""

    name: str
    goal: str
    full_count: int
    ci_count: int
    run: Callable[..., Awaitable[Result]]
    """`await run(count, seed)`; a paced one takes `rate=` too."""
    paced: bool = False
    """`--rate` changes how many requests a second it sends."""
    waits: bool = False
    """It waits more than it works, so the rows after it need not wait for its end."""
    closes: bool = False
    """It looks through what other rows have left, so it runs once they have ended."""


# ---- the configuration ------------------------------------------------------------------------------------


def worker(name: str, up: Upstream | None = None, *, kind: WireName = "openai", url: str = "", **keys: Any) -> str:
    """A `[[worker]]` whose model has the worker's name. Further keys are written as they are given."""
    base_url = url or (up.url(kind) if up is not None else "")
    lines = [f'name = "{name}"', f'kind = "{kind}"', f'model = "{name}"', f'base_url = "{base_url}"']
    lines += [f'api_key_env = "{KEY_VARIABLE}"', f"price = {keys.pop('price', PRICE)}"]
    lines += [f"{key} = {_toml(value)}" for key, value in keys.items()]
    return "\n".join(["[[worker]]", *lines, ""])


def profile(name: str, **keys: Any) -> str:
    """A `[profile.NAME]`; without more, the first worker of the pool answers alone."""
    keys = {"planner": "single", "max_rounds": 1} | keys
    return "\n".join([f"[profile.{name}]", *(f"{key} = {_toml(value)}" for key, value in keys.items()), ""])


def config(*parts: str, serve: Mapping[str, Any] | None = None) -> str:
    """The file from its parts; `serve` are settings of `[serve]`."""
    said = [f"{key} = {_toml(value)}" for key, value in (serve or {}).items()]
    return "\n".join([*parts, "[serve]", *said, ""])


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if value.startswith("{") else f'"{value}"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    return str(value)


# ---- the server -------------------------------------------------------------------------------------------


class Server:
    """A `dirigent serve` process in a folder of its own. It can be stopped, killed and started again there."""

    command: tuple[str, ...] = ("-m", "dirigent")
    """Python's arguments before `serve`."""

    def __init__(self, folder: Path, text: str, *, store_url: str = "", before: Sequence[str] = ()) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        """All that every process of this server has said."""
        self.replies = folder / "replies"
        """All that clients were told, byte for byte."""
        self.store_url = store_url or str(folder / "torture.db")
        self.is_sqlite = not store_url.startswith("postgresql")
        self.provider_key = f"sk-torture-{secrets.token_hex(16)}"
        self.pepper = PEPPER
        self.key = self.admin_key = ""
        self.keys: list[str] = []
        """The text of every key that was made here."""
        self.url = ""
        self.process: asyncio.subprocess.Process | None = None
        self.sockets_at_start = 0
        self.rss_mib_at_start = 0.0
        self._before = tuple(before)
        self._config = folder / "dirigent.toml"
        self._config.write_text(f'{text}\n[store]\nurl = "{self.store_url}"\n')

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, text: str, *, store_url: str = "", before: Sequence[str] = ()) -> AsyncIterator[Server]:
        """The server of this configuration, with a key and an admin's, listening; killed and forgotten at the end.

        `before` is put before its command: a program that runs it in other surroundings, in the same process.
        """
        raise_fd_limit()  # the process inherits it
        with tempfile.TemporaryDirectory(prefix="dirigent-torture-") as folder:
            server = cls(Path(folder), text, store_url=store_url, before=before)
            await server.prepare()
            try:
                await server.start()
                yield server
            except Exception as error:
                error.add_note(await server.last_words())
                raise
            finally:
                await server.kill()
                await server.hand_over()

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must be found nowhere: not in the database, in no log, in no reply."""
        return (self.provider_key, self.pepper, *self.keys)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def prepare(self) -> None:
        """A store up to date, and the two keys."""
        if self.is_sqlite:
            await _copy_empty_store(Path(self.store_url))
        self.key = await self.make_key(Caller(label="torture"))
        self.admin_key = await self.make_key(Caller(label="operator", role="admin"))

    async def make_key(self, caller: Caller) -> str:
        async with Store.open(self.store_url) as store:
            making = create_key(store, caller)
            with _own_pepper():
                made = await making
        self.keys.append(made.text)
        return made.text

    async def start(self) -> float:
        """Start it; the seconds until it answers."""
        began = time.monotonic()
        said = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(*self._before, sys.executable, *self.command),
                *("serve", "--port", "0", "--config", str(self._config)),
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=self._environment(),
            )
        self.url = await self._said_url(said, began + START_S)
        await self.get("/healthz")  # it has said where it listens a moment before it is all there
        ready_s = time.monotonic() - began
        self.sockets_at_start, self.rss_mib_at_start = self.sockets(), self.rss_mib()
        return ready_s

    def _environment(self) -> dict[str, str]:
        env = {KEY_VARIABLE: self.provider_key, PEPPER_VARIABLE: self.pepper, "DIRIGENT_HOME": str(self.folder)}
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return kept | env  # as installed: from the second start on, nothing is compiled

    async def _said_url(self, offset: int, give_up_at: float) -> str:
        assert self.process is not None
        while time.monotonic() < give_up_at and self.process.returncode is None:
            line = self.log.read_bytes()[offset:].partition(b"\n")[0].decode()
            if line.startswith("serving http://"):
                return line.split()[1].removesuffix("/v1")
            await asyncio.sleep(0.02)
        raise RuntimeError(f"the server did not start: {self.log.read_text()[-2000:]}")

    async def stop(self, *, within_s: float = 40.0) -> int:
        """Tell it to stop; its exit status. One that does not stop in time is killed."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within_s):
                return await self.process.wait()
        except TimeoutError:
            await self.kill()
            return -signal.SIGKILL

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()

    async def last_words(self) -> str:
        """Whether it runs, and its last output: facts that a client's error does not have."""
        await asyncio.sleep(0.5)  # one that has crashed is known to have ended a moment later
        status = None if self.process is None else self.process.returncode
        alive = "runs" if status is None else f"ended with {status}"
        return f"the server {alive}; its log ends:\n{self.log.read_text()[-6000:] if self.log.exists() else ''}"

    async def hand_over(self) -> None:
        """Hands its files to the rows that search them (`evidence.py`)."""
        await hand_over(self.folder, store_url=self.store_url, secrets=self.secrets)

    def keep(self, headers: object, body: bytes) -> None:
        """Write a reply down."""
        with self.replies.open("ab") as replies:
            replies.write(f"{headers}\n".encode() + body + b"\n")

    async def get(self, path: str) -> tuple[int, str]:
        """Ask as an admin; status and text."""
        async with aiohttp.ClientSession() as session:
            headers = {"Authorization": f"Bearer {self.admin_key}"}
            async with session.get(self.url + path, headers=headers) as response:
                self.keep(response.headers, await response.read())
                return response.status, await response.text()

    async def breaker(self, worker: str) -> str:
        """closed, open or half-open, as an admin is shown."""
        _, text = await self.get(f"/v1/models/worker/{worker}")
        state: str = json.loads(text)["breakers"][worker]
        return state

    async def in_flight(self) -> int:
        """Runs under way, as the server itself counts them."""
        _, page = await self.get("/metrics")
        (line,) = [line for line in page.splitlines() if line.startswith("dirigent_in_flight ")]
        return int(float(line.split()[1]))

    def rss_mib(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) / 1024

    def cpu_s(self) -> float:
        """User and system time so far: what load costs whatever else the machine does."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:13]) / os.sysconf("SC_CLK_TCK")

    def sockets(self) -> int:
        return sum(link.startswith("socket:") for link in self._open_files())

    def children(self) -> list[int]:
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]

    def _open_files(self) -> Iterator[str]:
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                yield str(entry.readlink())


_EMPTY_STORES: list[Path] = []
"""Made once a process: bringing a new database up to date takes longer than starting the server."""


async def _copy_empty_store(path: Path) -> None:
    if not _EMPTY_STORES:
        folder = tempfile.mkdtemp(prefix="dirigent-empty-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        made = Path(folder) / "empty.db"
        async with Store.open(made):
            pass
        _EMPTY_STORES.append(made)
    shutil.copy(_EMPTY_STORES[0], path)


@contextlib.contextmanager
def _own_pepper() -> Iterator[None]:
    """Rows may run side by side: the last one to end restores the state before all of them."""
    before = os.environ.get(PEPPER_VARIABLE)
    os.environ[PEPPER_VARIABLE] = PEPPER
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(PEPPER_VARIABLE, None)
        elif before != PEPPER:
            os.environ[PEPPER_VARIABLE] = before


# ---- small things that rows share -------------------------------------------------------------------------


def connections() -> aiohttp.TCPConnector:
    """A careful client's: it gives an idle connection up sooner than the server does (15 s). One that keeps it as long
    may send a request just when the server closes it, which no server can help."""
    return aiohttp.TCPConnector(keepalive_timeout=3)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


async def eventually(true: Callable[[], Awaitable[bool]], *, within_s: float) -> bool:
    """Whether it came true in time."""
    give_up_at = time.monotonic() + within_s
    while not await true():
        if time.monotonic() > give_up_at:
            return False
        await asyncio.sleep(0.05)
    return True


class Progress:
    """Prints a row's progress now and then, on stderr, so that the output at the end stays clean."""

    def __init__(self, name: str, wanted: int) -> None:
        self._name, self._wanted, self._done = name, wanted, 0
        self._next_s = time.monotonic() + PROGRESS_EVERY_S

    def step(self, count: int = 1) -> None:
        self._done += count
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PROGRESS_EVERY_S
            print(f"  {self._name}  {self._done:,} of {self._wanted:,} …", file=sys.stderr, flush=True)
