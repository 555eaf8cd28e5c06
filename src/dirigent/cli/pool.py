"""`dirigent pool`: list the workers, test them, and fetch the weights of local ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dirigent.cli.output import (
    FAILED,
    ConfigOption,
    JsonOption,
    carry_out,
    print_json,
    print_text,
    say,
    table,
)

if TYPE_CHECKING:
    from dirigent.config.runtime import Runtime
    from dirigent.workers.worker import Worker, WorkerInfo

app = typer.Typer(
    help="The workers: list, check, pull local weights, presets.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

CHECK_QUESTION = "Reply with one short sentence that says you are ready."
CHECK_TOKENS = 512
"""Enough tokens for models that think first."""


@app.command("list")
def list_(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the workers with their cards and prices, without calling them.

    Example:  dirigent pool list
    """

    async def work() -> None:
        from dirigent.config.runtime import load, open_runtime

        async with open_runtime(await load(config)) as runtime:
            if as_json:
                print_json({"workers": [_worker_json(info, runtime) for info in runtime.pool.infos]})
            else:
                print_text(_list_table(runtime))

    carry_out(work, as_json=as_json)


@app.command()
def check(
    timeout: Annotated[float, typer.Option(min=1, help="Most seconds for a worker's reply.")] = 60.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Call all workers at once and print latency, tokens per second, price and errors.

    Example:  dirigent pool check
    """

    async def work() -> int:
        from dirigent.cli.running import open_pool
        from dirigent.config.runtime import NO_WORKER
        from dirigent.errors import ConfigError

        async with open_pool(config) as runtime:
            if not runtime.pool:
                raise ConfigError(NO_WORKER)
            rows = await _check_all(runtime, timeout_s=timeout)
        if as_json:
            print_json({"workers": rows})
        else:
            print_text(_check_table(rows))
        return FAILED if any(row["status"] != "ok" for row in rows) else 0

    carry_out(work, as_json=as_json)


@app.command()
def pull(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Fetch the weights of local workers and check them.

    Example:  dirigent pool pull
    """

    async def work() -> None:
        from dirigent.cli.running import fetch_weights, known_weights
        from dirigent.config.runtime import load
        from dirigent.config.worker_config import DEFAULT_WEIGHTS
        from dirigent.workers.weights import fetch

        loaded = await load(config)
        await fetch_weights(loaded)
        names = known_weights(loaded) or [DEFAULT_WEIGHTS]
        paths = {name: str(await fetch(name)) for name in names}
        if as_json:
            print_json({"weights": paths})
        else:
            print_text("\n".join(f"{name}  {path}" for name, path in paths.items()))

    carry_out(work, as_json=as_json)


@app.command()
def presets(as_json: JsonOption = False) -> None:
    """List the models that  preset = "…"  can name.

    Example:  dirigent pool presets
    """

    async def work() -> None:
        from dirigent.config.presets import presets as known
        from dirigent.workers.prices import price_of

        rows = []
        for name, preset in known().preset.items():
            provider = known().provider[preset.provider]
            price = price_of(preset.model, provider=provider.prices)
            rows.append(
                {
                    "preset": name,
                    "model": preset.model,
                    "api_key_env": provider.api_key_env[0],
                    "region": provider.region,
                    "input_usd_per_mtok": price.input if price else None,
                    "output_usd_per_mtok": price.output if price else None,
                    "about": preset.about,
                }
            )
        if as_json:
            print_json({"presets": rows})
            return
        header = ("preset", "key", "region", "$/M in", "$/M out", "good at")
        keys = ("preset", "api_key_env", "region", "input_usd_per_mtok", "output_usd_per_mtok", "about")
        print_text(table(header, [[_cell(row[key]) for key in keys] for row in rows], right=(3, 4)))

    carry_out(work, as_json=as_json)


def _worker_json(info: WorkerInfo, runtime: Runtime) -> dict[str, Any]:
    return {
        "name": info.name,
        "kind": info.kind,
        "model": info.model,
        "about": info.about,
        "region": info.region,
        "context_tokens": info.context_tokens,
        **_prices(info),
        "abilities": sorted(info.abilities),
        "measured": runtime.cards.get(info.name),
        "problem": runtime.problems.get(info.name),
    }


def _prices(info: WorkerInfo) -> dict[str, float | None]:
    price = info.price
    return {
        "input_usd_per_mtok": price.input if price else None,
        "output_usd_per_mtok": price.output if price else None,
    }


def _list_table(runtime: Runtime) -> str:
    header = ("id", "worker", "kind", "model", "region", "$/M in", "$/M out", "good at")
    rows = []
    for id, info in enumerate(runtime.pool.infos):
        problem = runtime.problems.get(info.name)
        price = _prices(info)
        rows.append(
            (
                str(id),
                info.name,
                info.kind,
                info.model or "–",
                info.region or "–",
                _cell(price["input_usd_per_mtok"]),
                _cell(price["output_usd_per_mtok"]),
                info.about + (f"  [{problem}]" if problem else ""),
            )
        )
    return table(header, rows, right=(0, 5, 6))


async def _check_all(runtime: Runtime, *, timeout_s: float) -> list[dict[str, Any]]:
    """Asks all workers at once and prints each result as it arrives. A problem of several workers is printed once."""

    async def one(name: str, worker: Worker) -> dict[str, Any]:
        row = {"worker": name, "kind": worker.info.kind, **await _check_one(worker, timeout_s=timeout_s)}
        row |= _prices(worker.info) | {"status": row["status"].removeprefix(f"{name}: ")}
        if name not in runtime.problems:
            say(f"{name}: {row['status']}")
        return row

    if runtime.problem:
        say(runtime.problem)
    for sentence in runtime.left_out().values():
        say(sentence)
    return await asyncio.gather(*(one(name, worker) for name, worker in runtime.pool.items()))


async def _check_one(worker: Worker, *, timeout_s: float) -> dict[str, Any]:
    from dirigent.errors import DirigentError
    from dirigent.messages import Message, Request

    if worker.info.reads_results:  # a program of ours, which cannot be asked a question alone
        return {"latency_s": 0.0, "tokens_per_s": None, "cost_usd": 0.0, "status": "ok"}
    began = time.monotonic()
    request = Request(
        (Message("user", CHECK_QUESTION),),
        max_output_tokens=CHECK_TOKENS,
        temperature=1.0,  # at 0 a worker with a cache would repeat its last reply
        deadline=began + timeout_s,
    )
    blank = {"latency_s": None, "tokens_per_s": None, "cost_usd": None}
    try:
        async with asyncio.timeout(timeout_s):
            reply = await worker.ask(request)
    except TimeoutError:
        return blank | {"status": f"timed out at {timeout_s:g} s"}
    except DirigentError as error:
        return blank | {"status": str(error)}
    seconds = time.monotonic() - began
    return {
        "latency_s": seconds,
        "tokens_per_s": reply.usage.output_tokens / seconds if seconds else None,
        "cost_usd": reply.cost_usd,
        "status": "ok",
    }


def _check_table(rows: Sequence[dict[str, Any]]) -> str:
    from dirigent.show import one_line, seconds_text

    header = ("worker", "kind", "latency", "tok/s", "$/M in", "$/M out", "status")
    cells = [
        (
            row["worker"],
            row["kind"],
            seconds_text(row["latency_s"]) if row["latency_s"] is not None else "–",
            f"{row['tokens_per_s']:.0f}" if row["tokens_per_s"] is not None else "–",
            _cell(row["input_usd_per_mtok"]),
            _cell(row["output_usd_per_mtok"]),
            one_line(row["status"], 120),
        )
        for row in rows
    ]
    return table(header, cells, right=(2, 3, 4, 5))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return str(value) if value not in (None, "") else "–"
