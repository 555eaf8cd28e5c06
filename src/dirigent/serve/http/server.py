"""Listening: the application behind uvicorn, from the first connection to a graceful stop.

Told to stop (TERM, or Ctrl-C), the server takes no new connections and lets what is under way finish within
the grace; what is left then is cancelled and kept as such. A second signal does not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import uvicorn

from dirigent.config.file import Config
from dirigent.errors import ConfigError
from dirigent.serve.http.app import build_app
from dirigent.serve.http.auth import is_loopback
from dirigent.serve.http.connection import bounded_connection
from dirigent.serve.http.gc_tuning import seldom_collecting
from dirigent.serve.runs.takeover import resume_all
from dirigent.serve.service import Service
from dirigent.store import Store
from dirigent.store.keys import any_keys

COLLECT_AFTER = 10_000
"""New objects after which Python looks for unreachable cycles. By default 700, which one request makes: the search took
an eleventh of its CPU."""


def no_core_dumps() -> None:
    """A dump of this process would hold keys and what people asked. Its children inherit this."""
    with contextlib.suppress(ModuleNotFoundError):  # not on Windows, which writes none by default
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def tell_of_crashes() -> None:
    """In a dump's place: the lines that a crash was in, and nothing of what they held."""
    if sys.__stderr__ is not None:  # a service of Windows has none
        faulthandler.enable(sys.__stderr__)


async def check_bind(host: str, store: Store) -> None:
    """Refuse to listen beyond this machine while anybody could come in."""
    if not is_loopback(host) and not await any_keys(store):
        raise ConfigError(
            f"listening on {host} without keys would let anybody in: make one with `dirigent keys create`, "
            "or listen on 127.0.0.1"
        )


def check_no_loop(config: Config, *, host: str, port: int) -> None:
    """Refuse a worker that is this very server: every request would ask itself without end.

    What leads back in a way that cannot be seen from here (a proxy, another server) is ended by `hops.py`.
    """
    for worker in config.worker:
        parts = urlsplit(worker.base_url)
        same_port = (parts.port or {"http": 80, "https": 443}.get(parts.scheme)) == port
        if same_port and parts.hostname and _leads_here(parts.hostname, port, host=host):
            raise ConfigError(
                f'worker "{worker.name}" ({worker.base_url}) is where this server itself would listen: '
                "choose another --port for the server, or another base_url for the worker"
            )


def _leads_here(name: str, port: int, *, host: str) -> bool:
    """Whether a name means an address that this server listens on. It is looked up, since a name can be anything."""
    if is_loopback(name) or name == host:
        return True
    try:
        found = {info[4][0] for info in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False  # whoever calls it will be told
    everywhere = host in ("0.0.0.0", "::")
    return any(is_loopback(str(one)) or one == host or (everywhere and _is_ours(str(one))) for one in found)


def _is_ours(address: str) -> bool:
    """Whether this machine has the address: no other can be bound."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Said outright, since asyncio turns Nagle's delay (40 ms a reply) off only where the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)  # from here on connections wait until the server takes them
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}; choose another --port") from None
    return listener


async def serve_until_stopped(service: Service, listener: socket.socket) -> None:
    """Serve until a signal says stop."""
    server = _server(service)
    await resume_all(service)
    with _signals(server), seldom_collecting(after=COLLECT_AFTER):
        await server.serve(sockets=[listener])


@asynccontextmanager
async def serving(service: Service, listener: socket.socket) -> AsyncIterator[str]:
    """Serve while the block runs; gives the server's address."""
    server = _server(service)
    await resume_all(service)
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    host, port = listener.getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        await task


class _Server(uvicorn.Server):
    """uvicorn would raise a caught signal again at the end, and so kill us before the store is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(service: Service) -> _Server:
    settings = service.settings
    connection = bounded_connection(
        header_timeout_s=settings.header_timeout_s, max_header_bytes=settings.max_header_bytes
    )
    return _Server(
        uvicorn.Config(
            build_app(service),
            http=connection,
            lifespan="off",
            access_log=False,
            log_level="warning",
            server_header=False,
            proxy_headers=False,  # an address that a header claims can be a lie
            timeout_keep_alive=settings.idle_timeout_s,  # type: ignore[arg-type]  # seconds, whole or not
            timeout_graceful_shutdown=max(1, round(settings.grace_s)),
            ws="none",
        )
    )


@contextlib.contextmanager
def _signals(server: uvicorn.Server) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
