"""Check everything that a run needs, piece by piece: each check passes or names its fix.

A check pays nothing and changes nothing, except that it creates a missing store file. It opens a connection to a
worker's address; only `dirigent pool check` asks the worker and so tests its key. The graders' sandbox runs one
harmless program, since it attacks itself before it grades; the sandbox of workers' programs is attacked here. A check
that only some commands need is marked, because the other commands work without it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from dirigent import plugins
from dirigent.config.file import Loaded, config_path
from dirigent.config.runtime import Runtime, load, open_runtime, open_store
from dirigent.config.worker_config import WorkerConfig, runs_programs
from dirigent.errors import DirigentError
from dirigent.paths import home
from dirigent.show.words import count_text
from dirigent.workers.weights import KNOWN, cached

REACH_S = 3.0
SANDBOX_S = 5.0
"""One program takes about 0.1 s."""
PROGRAMS_S = 30.0
"""The attacks take about 2 s."""
EXTRAS = {"local": "xllamacpp", "serve": "starlette", "eval": "math_verify", "postgres": "psycopg"}
SANDBOX_FIX = (
    "only grading code needs it; it requires Linux 5.14 or newer with user namespaces and bubblewrap 0.8 or newer"
)


class Check(msgspec.Struct, frozen=True):
    what: str
    ok: bool
    found: str
    fix: str = ""
    needed: bool = True
    """False if only some commands need it."""


async def examine(config: Path | None) -> list[Check]:
    """Returns all checks, in the order in which a user would fix them."""
    checks = [_python(), _extras(), *_plugins(), await _sandbox()]
    try:
        loaded = await load(config)
    except DirigentError as error:
        return [*checks, Check("config", False, str(error), "correct the file, or run `dirigent init --force`")]
    checks.append(_config(loaded, config))
    checks.append(await _programs(loaded))
    checks += await _workers(loaded)
    checks += _weights(loaded)
    checks.append(await _store(loaded))
    return checks


def _python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    return Check("python", sys.version_info >= (3, 11), found, "install Python 3.11 or newer")


def _extras() -> Check:
    """Lists the extras. A missing extra is no problem: a worker that needs it reports it."""
    there = [name for name, module in EXTRAS.items() if importlib.util.find_spec(module) is not None]
    missing = [name for name in EXTRAS if name not in there]
    found = f"installed: {', '.join(there) or 'none'}"
    return Check("extras", True, found + (f"; not installed: {', '.join(missing)}" if missing else ""))


def _plugins() -> list[Check]:
    """Returns a check for each distribution with plugins, and one for each plugin that cannot be loaded."""
    brought: dict[str, list[str]] = {}
    broken = []
    for group in plugins.GROUPS:
        for name, entry in plugins.entries(group).items():
            brought.setdefault(plugins.distribution(entry), []).append(f"{group}: {name}")
            try:
                plugins.load(group, name)
            except DirigentError as error:
                fix = f"reinstall or remove {plugins.distribution(entry)}"
                broken.append(Check(f"plugin {name}", False, str(error), fix, needed=False))
    found = [Check("plugins", True, f"{where} ({', '.join(names)})") for where, names in brought.items()]
    return [*(found or [Check("plugins", True, "none installed")]), *broken]


async def _sandbox() -> Check:
    """Runs one program, not all attacks, to see which walls can be put up."""
    from dirigent.sandbox import open_untested

    try:
        async with asyncio.timeout(SANDBOX_S), open_untested(slots=1) as sandbox:
            ran = await sandbox.run("pass")
            if ran.code == 0:
                return Check("sandbox", True, sandbox.stamp, needed=False)
            why = f"an empty program ended with code {ran.code}: {ran.stderr.decode(errors='replace').strip()}"
    except TimeoutError:
        why = f"one program did not end within {SANDBOX_S:g} s"
    except (DirigentError, OSError) as error:
        why = str(error)
    return Check("sandbox", False, f"cannot be opened: {why}", SANDBOX_FIX, needed=False)


async def _programs(loaded: Loaded) -> Check:
    """Attacks the walls around the programs of workers, as the first program of a start does."""
    from dirigent.sandbox.programs import Programs

    runs = [worker.name for worker in loaded.config.worker if runs_programs(worker)]
    programs = Programs(loaded.config.sandbox.programs)
    try:
        async with asyncio.timeout(PROGRAMS_S):
            found = await programs.walls()
    except TimeoutError:
        return Check("programs", False, f"not tested within {PROGRAMS_S:g} s", "try again later", needed=bool(runs))
    except (DirigentError, OSError) as error:
        found, _, fix = str(error).partition(". ")
        return Check("programs", False, found, fix or SANDBOX_FIX, needed=bool(runs))
    finally:
        await programs.close()
    of = f", for {', '.join(runs)}" if runs else ""
    return Check("programs", True, f"{found}{of}", needed=bool(runs))


def _config(loaded: Loaded, config: Path | None) -> Check:
    where = str(config_path(config) or "no file: built from what this machine offers")
    count = len(loaded.config.worker)
    fix = "add a [[worker]], or run `dirigent init --force`"
    return Check("config", count > 0, f"{where}, {count_text(count, 'worker')}", fix)


async def _workers(loaded: Loaded) -> list[Check]:
    """Checks the keys, extras and files of each worker, then its address."""
    async with open_runtime(loaded) as runtime:
        problems = runtime.problems
        policies = _policies(runtime)
    unusable = [_unusable(problem, problems) for problem in dict.fromkeys(problems.values())]
    usable = [worker for worker in loaded.config.worker if worker.name not in problems]
    return unusable + list(await asyncio.gather(*(_worker(worker) for worker in usable))) + policies


def _policies(runtime: Runtime) -> list[Check]:
    """Returns a check of the profiles' learned policies, and one for each worker that a policy does not use."""
    profiles = [name for name, settings in runtime.config.profile.items() if settings.policy]
    if not profiles:
        return []
    try:
        missing = runtime.left_out()
    except DirigentError as error:
        return [Check("policy", False, str(error), "learn again, or leave policy out of the profile")]
    checks = [Check("policy", True, f"of {', '.join(profiles)}")]
    for sentence in missing.values():
        found, _, fix = sentence.partition("; ")
        checks.append(Check("policy", False, found, fix, needed=False))
    return checks


def _unusable(problem: str, problems: Mapping[str, str]) -> Check:
    """Returns one check for all workers with the same problem."""
    names = [name for name, its_problem in problems.items() if its_problem == problem]
    found, _, fix = problem.partition(": ")
    fix = fix or "see docs/reference/configuration.md"
    if len(names) == 1:
        return Check(f"worker {names[0]}", False, found, fix)
    return Check(f"{len(names)} workers", False, f"{found} ({', '.join(names)})", fix)


async def _worker(worker: WorkerConfig) -> Check:
    what = f"worker {worker.name}"
    if not worker.base_url:
        return Check(what, True, str(worker.kind))
    parts = urlsplit(worker.base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    place = f"{parts.hostname}:{port}"
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
        writer.close()
    except TimeoutError:
        return Check(what, False, f"{place} did not answer within {REACH_S:g} s", "check the network")
    except OSError as error:
        return Check(what, False, f"{place} cannot be reached ({error})", "check that the server runs")
    return Check(what, True, f"{worker.kind} at {place}{', key set' if worker.api_key_env else ''}")


def _weights(loaded: Loaded) -> list[Check]:
    names = {w.weights for w in loaded.config.worker if w.kind == "local" and w.weights in KNOWN}
    checks = []
    for name in sorted(names):
        path = cached(name)
        found = str(path) if path else f"{name} is not on this machine"
        checks.append(Check("weights", path is not None, found, "run `dirigent pool pull` to fetch it"))
    return checks


async def _store(loaded: Loaded) -> Check:
    try:
        async with open_store(loaded.config) as store:
            await store.list(limit=1)
            return Check("store", True, store.where)
    except DirigentError as error:
        named = loaded.config.store.url or loaded.config.store.url_env
        return Check(
            "store",
            False,
            str(error),
            "correct [store] in the file" if named else f"check DIRIGENT_HOME, which is {home()}",
        )
