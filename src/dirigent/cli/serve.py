"""`dirigent serve`: serve the pool at one OpenAI-compatible address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dirigent.cli.output import ConfigOption, carry_out, say

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from dirigent.config.server_settings import ServeSettings


def serve(
    host: Annotated[
        str | None, typer.Option(help="The address to listen on (127.0.0.1). Beyond loopback a key must exist.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The port (8000); 0 takes a free one.")] = None,
    grace: Annotated[
        int | None, typer.Option(min=1, help="Seconds that running requests get after a stop signal (30).")
    ] = None,
    open_console: Annotated[bool, typer.Option("--open", help="Open the console in a browser.")] = False,
    config: ConfigOption = None,
) -> None:
    """Serve the pool: any OpenAI client works by changing its base URL.

    [serve] of the config file has the other settings.

    Example:  dirigent serve --port 8000   then   base_url = "http://127.0.0.1:8000/v1"
    """

    async def work() -> None:
        _require_extra()
        import msgspec

        from dirigent.cli.running import check_workers, fetch_weights
        from dirigent.config.runtime import load
        from dirigent.serve.http.auth import is_loopback
        from dirigent.serve.http.server import (
            bound,
            check_bind,
            check_no_loop,
            no_core_dumps,
            serve_until_stopped,
            tell_of_crashes,
        )
        from dirigent.serve.service import open_service

        no_core_dumps()
        tell_of_crashes()
        loaded = await load(config)
        await check_workers(loaded)
        await fetch_weights(loaded)
        settings = _settings(loaded.config.serve, host=host, port=port, grace_s=grace)
        keyed = settings.keys_required or not is_loopback(settings.host)
        settings = msgspec.structs.replace(settings, keys_required=keyed)
        async with open_service(loaded, settings=settings) as service:
            await check_bind(settings.host, service.store)
            listener = bound(settings.host, settings.port)
            shown, number = listener.getsockname()[:2]
            check_no_loop(loaded.config, host=settings.host, port=number)
            say(f"serving http://{shown}:{number}/v1 · {len(service.runtime.pool)} workers · {service.store.where}")
            address = f"http://{f'[{shown}]' if ':' in shown else shown}:{number}"
            say(f"console {address}")
            if open_console:
                import webbrowser

                webbrowser.open(address)  # the listener takes connections already
            await serve_until_stopped(service, listener)

    carry_out(work, new_loop=_fast_loop())


def _fast_loop() -> Callable[[], AbstractEventLoop] | None:
    """Returns uvloop's event loop, which takes less CPU, if it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


def _settings(configured: ServeSettings, **flags: str | float | None) -> ServeSettings:
    """Returns the configured settings, changed by the flags of the command line."""
    import msgspec

    from dirigent.errors import ConfigError

    try:
        return msgspec.structs.replace(configured, **{name: flag for name, flag in flags.items() if flag is not None})
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _require_extra() -> None:
    from importlib.util import find_spec

    from dirigent.errors import ConfigError

    for module in ("starlette", "uvicorn", "jsonschema_rs", "prometheus_client"):
        if find_spec(module) is None:
            raise ConfigError(f"{module} is missing: pip install 'dirigent[serve]'")
