"""The store's tests run on a real SQLite file and, if its programs are installed, a real PostgreSQL."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

POSTGRESQL_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if shutil.which("psql") else []
"""Empty if `psql` is not in PATH. The server's own programs lie outside PATH, so `.ci/bare` can only hide `psql`."""


class PostgreSQL:
    """A throw-away server on a Unix socket. It refuses to run as root, so root lends it another user."""

    def __init__(self, programs: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dirigent-pg-"))
        self._programs = programs
        self._user = _unprivileged_user()
        if self._user is not None:
            os.chown(self.folder, pwd.getpwnam(self._user).pw_uid, -1)
        data = str(self.folder / "data")
        self._run("initdb", "--pgdata", data, "--username=dirigent", "--auth=trust", "--no-sync")
        options = f"-c listen_addresses= -c unix_socket_directories={self.folder} -c fsync=off"
        self._run("pg_ctl", "start", "-w", "-D", data, "-l", str(self.folder / "log"), "-o", options)

    def new_schema(self) -> str:
        """A schema of its own stands in for a database, of which each would be hundreds of files to copy and delete."""
        name = f"t{uuid.uuid4().hex[:12]}"
        where = ("--host", str(self.folder), "--username=dirigent", "--dbname=postgres")
        self._run("psql", "--quiet", "--no-psqlrc", *where, "--command", f"CREATE SCHEMA {name}")
        return f"postgresql://dirigent@/postgres?host={self.folder}&options=-csearch_path%3D{name}"

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Its processes are stopped but not gone: connections stay open and get no answer."""
        first = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(first)], check=True, capture_output=True, text=True)
        processes = [first, *map(int, listed.stdout.split())]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                os.kill(process, signal.SIGCONT)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-m", "immediate", "-D", str(self.folder / "data"))
        shutil.rmtree(self.folder)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        subprocess.run(
            command,
            check=True,
            cwd=self.folder,
            user=self._user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=60,
        )


def _unprivileged_user() -> str | None:
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    if not POSTGRESQL_FOLDERS:
        pytest.skip("postgresql: its server is not installed (make system-deps)")
    server = PostgreSQL(POSTGRESQL_FOLDERS[-1])
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.system)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An unused place for a store."""
    if request.param == "sqlite":
        return str(tmp_path / "home" / "dirigent.db")
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return server.new_schema()
