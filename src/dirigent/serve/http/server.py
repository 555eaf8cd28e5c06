"""Listening: the application behind uvicorn, from the first connection to a graceful stop.

On TERM or Ctrl-C `/readyz` fails at once, so that load balancers send no more requests, and the server answers requests
for `LAST_REQUESTS_S` more. Then it takes no new connections, and requests under way may finish within the grace period;
the rest is cancelled and stored as cancelled. A second signal ends the waiting.
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
from dirigent.serve.http.gc_tuning import seldom_collecting
from dirigent.serve.runs.takeover import resume_all
from dirigent.serve.service import Service
from dirigent.store import Store
from dirigent.store.keys import any_keys

COLLECT_AFTER = 10_000
"""New objects after which Python looks for unreachable cycles. By default 700, about as many as one request makes."""


LAST_REQUESTS_S = 1.0
"""Seconds between the signal to stop and the end of listening: requests on their way then still get an answer."""


def no_core_dumps() -> None:
    """Forbid core dumps of this process and its children: a dump would hold keys and questions."""
    with contextlib.suppress(ModuleNotFoundError):  # not on Windows, which writes none by default
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def tell_of_crashes() -> None:
    """Print the lines that a crash was in, in place of a dump, without any of their values."""
    if sys.__stderr__ is not None:  # a service of Windows has none
        faulthandler.enable(sys.__stderr__)


async def check_bind(host: str, store: Store) -> None:
    """Raise `ConfigError` if the server would listen beyond this machine while no key exists."""
    if not is_loopback(host) and not await any_keys(store):
        raise ConfigError(
            f"listening on {host} without keys would let every caller in: make a key with `dirigent keys create`, "
            "or listen on 127.0.0.1"
        )


def check_no_loop(config: Config, *, host: str, port: int) -> None:
    """Raise `ConfigError` if a worker is this very server: every request would ask itself without end.

    Loops that cannot be seen from here (through a proxy or another server) are ended by `hops` (bounds.py).
    """
    for worker in config.worker:
        parts = urlsplit(worker.base_url)
        same_port = (parts.port or {"http": 80, "https": 443}.get(parts.scheme)) == port
        if same_port and parts.hostname and _leads_here(parts.hostname, port, host=host):
            raise ConfigError(
                f'worker "{worker.name}" has the address of this server itself ({worker.base_url}): '
                "choose another --port for the server, or another base_url for the worker"
            )


def _leads_here(name: str, port: int, *, host: str) -> bool:
    """Return whether a name means an address that this server listens on. The name is looked up."""
    if is_loopback(name) or name == host:
        return True
    try:
        found = {info[4][0] for info in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False  # calls to the worker will say so
    everywhere = host in ("0.0.0.0", "::")
    return any(is_loopback(str(one)) or one == host or (everywhere and _is_ours(str(one))) for one in found)


def _is_ours(address: str) -> bool:
    """Return whether this machine has the address: only its own addresses can be bound."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's delay (40 ms a reply) off for such sockets only.
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
    """Serve until the process gets a signal to stop."""
    server = _server(service)
    await resume_all(service)
    with _signals(server, service), seldom_collecting(after=COLLECT_AFTER):
        await _serve(server, listener)


@asynccontextmanager
async def serving(service: Service, listener: socket.socket) -> AsyncIterator[str]:
    """Serve while the block runs; yields the server's address."""
    server = _server(service)
    await resume_all(service)
    task = asyncio.ensure_future(_serve(server, listener))
    host, port = listener.getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        await task


def _server(service: Service) -> uvicorn.Server:
    settings = service.settings
    config = uvicorn.Config(
        build_app(service),
        http="h11",
        h11_max_incomplete_event_size=settings.max_header_bytes,
        lifespan="off",
        access_log=False,
        log_level="error",  # warnings are about requests (malformed, `Upgrade: h2c`): callers could fill the log
        server_header=False,
        proxy_headers=False,  # an address that a header claims can be a lie
        timeout_keep_alive=settings.idle_timeout_s,  # type: ignore[arg-type]  # seconds, whole or not
        timeout_graceful_shutdown=max(1, round(settings.grace_s)),
        ws="none",
    )
    return uvicorn.Server(config)


async def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    """`uvicorn.Server.serve` without its signal handlers.

    Those raise a caught signal again at the end, which would kill this process before the store is closed.
    """
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets=[listener])
    if not server.should_exit:
        await server.main_loop()
    await server.shutdown(sockets=[listener])


@contextlib.contextmanager
def _signals(server: uvicorn.Server, service: Service) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if service.stopping:  # a second signal does not wait
            server.should_exit = server.force_exit = True
            return
        service.stopping = True
        loop.call_later(LAST_REQUESTS_S, exit)

    def exit() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
