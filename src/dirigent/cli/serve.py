"""`dirigent serve`: the pool behind one OpenAI-compatible address."""

from __future__ import annotations

from typing import Annotated

import typer

from dirigent.cli.output import ConfigOption, carry_out, say


def serve(
    host: Annotated[str, typer.Option(help="Where to listen. Beyond loopback a key must exist.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    grace: Annotated[int, typer.Option(min=1, help="Seconds for requests under way when told to stop.")] = 30,
    config: ConfigOption = None,
) -> None:
    """Serve the pool: any OpenAI client works by changing its base URL.

    Example:  dirigent serve --port 8000   then   base_url = "http://127.0.0.1:8000/v1"
    """

    async def work() -> None:
        _require_extra()
        from dirigent.cli.running import bring_weights
        from dirigent.runtime import load
        from dirigent.serve.gate import is_loopback
        from dirigent.serve.listen import bound, check_bind, check_no_loop, serve_until_stopped
        from dirigent.serve.service import ServeSettings, open_service

        loaded = await load(config)
        await bring_weights(loaded)
        settings = ServeSettings(grace_s=float(grace), keys_required=not is_loopback(host))
        async with open_service(loaded, settings=settings) as service:
            await check_bind(host, service.store)
            listener = bound(host, port)
            shown, number = listener.getsockname()[:2]
            check_no_loop(loaded.config, host=host, port=number)
            say(f"serving http://{shown}:{number}/v1 · {len(service.runtime.pool)} workers · {service.store.where}")
            await serve_until_stopped(service, listener)

    carry_out(work)


def _require_extra() -> None:
    from importlib.util import find_spec

    from dirigent.errors import ConfigError

    for module in ("starlette", "uvicorn", "jsonschema_rs", "prometheus_client"):
        if find_spec(module) is None:
            raise ConfigError(f"{module} is missing: pip install 'dirigent[serve]'")
