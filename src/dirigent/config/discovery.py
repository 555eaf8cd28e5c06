"""Discover what `dirigent init` can use on this machine, and write a configuration from it.

It looks in three places: keys in the environment, model servers on their usual local ports, and this machine itself,
which runs the embedded pool (`embedded.toml`) if it has the memory, else a small one.
`toml_of` writes the result as a `dirigent.toml`. A machine without a file runs on the same text, so `init` writes the
configuration that was already in use. It checks whether keys exist but never reads them out: the text names only their
variables.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import textwrap
from collections.abc import Mapping
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from dirigent.config.build import card
from dirigent.config.file import parse_config
from dirigent.config.presets import presets
from dirigent.config.worker_config import known_kinds
from dirigent.planners import profile_planners
from dirigent.planners.fixed import cheapest, dearest
from dirigent.sandbox.programs import confinement_problem
from dirigent.workers.adapters import folders
from dirigent.workers.http import HttpClient
from dirigent.workers.pool import NAME

FILE = "dirigent.toml"

PROBE_S = 0.6
"""A server on this machine answers within milliseconds; a port that hangs must not delay `init`."""
MODELS_PER_SERVER = 4
"""A planner reads every card of a pool, so the pool must be much shorter than a shelf of fifty models."""

NOT_CHAT = re.compile(r"embed|rerank|whisper|tts", re.IGNORECASE)

USUAL_PORTS: Mapping[str, int] = {"ollama": 11434, "vllm": 8000, "llama.cpp": 8080, "lm-studio": 1234}

POOL_VARIABLE = "DIRIGENT_POOL"
LEAST_FREE_BYTES = 3_000_000_000
"""The embedded model takes about 2.3 GB with its slots, and other programs need some too."""

LOCAL_POOL = """\
# The small pool: SmolLM2-135M-Instruct on the CPU (98 MB, fetched by `dirigent pool pull`).
# It is one small model with three cards. It shows how plans run; its answers are not reliable.
[[worker]]
name = "smol"
kind = "local"
about = "a small general model: short factual questions, simple writing"
temperature = 0
max_output_tokens = 200

[[worker]]
name = "smol-brief"
kind = "local"
about = "the same small model, one short line; sees its subtask, not the request"
temperature = 0
max_output_tokens = 40
subtask_only = true

[[worker]]
name = "smol-free"
kind = "local"
about = "the same small model with a looser hand: rhymes, stories, lists of ideas"
temperature = 0.8
max_output_tokens = 200
"""

LOCAL_PROFILES = """\
# A model this small answers best alone, so that is the default unless a trained conductor plans for it.
[profile.ultra]
planner = "single"
planner_worker = "smol"
workers = ["smol", "smol-brief", "smol-free"]
deadline_s = 300

[profile.mini]
planner = "single"
planner_worker = "smol"
workers = ["smol", "smol-brief", "smol-free"]
max_output_tokens = 60
deadline_s = 60

# The same model as an untrained planner, held to the grammar of plans: its plans are valid but seldom useful.
[profile.untrained]
planner = "language"
planner_worker = "smol"
workers = ["smol", "smol-brief", "smol-free"]
dialect = "lines"
max_steps = 2
planner_output_tokens = 120
repairs = 0
deadline_s = 300
"""


class Server(msgspec.Struct, frozen=True):
    """A model server that answered on this machine."""

    name: str
    base_url: str
    models: tuple[str, ...]


class Machine(msgspec.Struct, frozen=True):
    """The keys, models and programs that this machine offers."""

    keys: dict[str, str] = {}
    """Provider -> the environment variable that holds its key."""
    servers: tuple[Server, ...] = ()
    free_bytes: int | None = None
    """Free memory; None if unknown."""
    small: bool = False
    """The user asks for the small pool."""
    unconfined: str = ""
    """Why no program can be confined here; empty if one can."""

    @property
    def has_models(self) -> bool:
        return bool(self.keys or self.servers)


async def discover(*, environment: Mapping[str, str] | None = None, ports: Mapping[str, int] | None = None) -> Machine:
    """Looks for keys and servers; asks all ports at once."""
    chosen = USUAL_PORTS if ports is None else ports
    async with HttpClient() as client:
        answers = await asyncio.gather(*(_probe(client, name, port) for name, port in chosen.items()))
    servers = tuple(server for server in answers if server is not None)
    given = os.environ if environment is None else environment
    return Machine(
        keys=_keys(given),
        servers=servers,
        free_bytes=free_memory_bytes(),
        small=given.get(POOL_VARIABLE, "") == "small",
        unconfined=confinement_problem(),
    )


def toml_of(machine: Machine, *, policy: str = "", right: Mapping[str, float] | None = None) -> str:
    """Returns a `dirigent.toml` for this machine: one worker for each model, and the two profiles.

    `policy` is the folder of a learned policy that fits these workers; the profile `mini` then uses it. `right` is the
    measured share of right answers of workers, by which the profiles' workers are chosen; else their price decides.
    """
    if not machine.has_models:
        return f"{HEADER}\n{_local_text(machine)}"
    workers = "\n".join([*_preset_tables(machine), *_server_tables(machine)])
    infos = [card(worker) for worker in parse_config(workers).config.worker]
    learned = LEARNED_MINI.format(policy=_quoted(policy))
    best = max(right.values(), default=0.0) if right else 0.0
    near = [info for info in infos if right and right.get(info.name, -1.0) >= best - NEAR]
    strong = max(near, key=lambda info: right[info.name]).name if right and near else dearest(infos)
    cheap = CHEAP_MINI.format(
        cheap=_quoted(cheapest(near or infos)),
        why=f"the cheapest within {NEAR:.0%} of the best" if near else "the cheapest by price",
    )
    mini = learned if policy else cheap
    why = "right most often where it was measured" if near else "the dearest by price, likely the strongest"
    planners = "\n#     ".join(textwrap.wrap(" | ".join(profile_planners()), 90))
    profiles = PROFILES.format(planners=planners, strong=_quoted(strong), why=why, mini=mini)
    return "\n".join([HEADER, workers, profiles])


def choices() -> str:
    """Returns comments that list the kinds of workers and the benchmarks, those of plugins included."""
    from dirigent.tasks.benchmarks import known_benchmarks

    lines = [
        f"Kinds of workers: {', '.join(known_kinds())}.",
        f"To see whether planning pays on this pool, run `dirigent eval --pool {FILE} --tasks NAME` with one of: "
        f"{', '.join(known_benchmarks())}.",
    ]
    wrapped = (row for line in lines for row in textwrap.wrap(line, 110, break_on_hyphens=False))
    return "".join(f"# {row}\n" for row in wrapped)


def _local_text(machine: Machine) -> str:
    """Returns the pool of a machine without models: the embedded one, or the small one if it does not fit."""
    if small_pool_reason(machine):
        return f"{LOCAL_POOL}\n{LOCAL_PROFILES}"
    text = resources.files("dirigent.config").joinpath("embedded.toml").read_text(encoding="utf-8")
    if not _policy_ships("embedded"):
        text = text.replace('planner = "learned"\npolicy = "packaged:embedded"\n', 'planner = "program"\n')
        text = re.sub(r"^(?:operating_point|unlike) = .*\n", "", text, flags=re.MULTILINE)
        text = f"# No policy decides: dirigent-weights or numpy is not installed.\n{text}"
    if machine.unconfined:
        tables = text.split("\n\n[[worker]]\n")
        text = "\n\n[[worker]]\n".join(table for table in tables if 'runs = "python"' not in table)
        text = f"# There is no programmer: {machine.unconfined}\n{text}"
    return text


def _policy_ships(name: str) -> bool:
    """Returns whether this packaged policy can decide here: numpy and the distribution that holds it are installed."""
    there = any((folder / "policies" / name / "policy.json").is_file() for folder in folders())
    return there and importlib.util.find_spec("numpy") is not None


def small_pool_reason(machine: Machine) -> str:
    """Returns why a machine without models gets the small pool, for people; empty if it gets the embedded one."""
    if machine.has_models:
        return ""
    if machine.small:
        return f"{POOL_VARIABLE}=small asks for the small pool of a model with 135 million parameters"
    if machine.free_bytes is not None and machine.free_bytes < LEAST_FREE_BYTES:
        return (
            f"{machine.free_bytes / 1e9:.1f} GB of memory are free, and the embedded model of 1.5 billion parameters "
            f"needs {LEAST_FREE_BYTES / 1e9:.0f} GB: the small one of 135 million answers, which is not reliable"
        )
    return ""


def free_memory_bytes() -> int | None:
    """Returns the memory that a new process can have, within a container's limit; None if the system does not tell."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):
        folder = Path("/sys/fs/cgroup")
        limit, used = ((folder / name).read_text() for name in ("memory.max", "memory.current"))
        found.append(int(limit) - int(used))  # ValueError at `max`: no limit
    return min(found, default=None)


HEADER = """\
# Written by `dirigent init` from what this machine offers. Every key: docs/reference/configuration.md
# Keys of providers stay in the environment; this file names only their variables.
"""

PROFILES = """\
# One request is one call until something is shown to pay on your own questions:
#     dirigent calibrate --out table    asks every worker graded questions
#     dirigent learn table --out policy learns whom to ask, and when to stop
# Then `dirigent init --force` writes the policy into mini.
# Planners: {planners}
[profile.ultra]
planner = "single"
planner_worker = {strong}         # {why}
# To let this worker plan over all others, at a higher cost: planner = "language", max_rounds = 2
deadline_s = 900
# max_cost_usd = 2.0

{mini}"""

NEAR = 0.05
"""A worker this much less often right than the best one is near enough for quick answers, if it is cheaper."""

CHEAP_MINI = """\
[profile.mini]
planner = "single"
planner_worker = {cheap}          # {why}
deadline_s = 60
"""

LEARNED_MINI = """\
[profile.mini]
planner = "learned"             # fitted on this pool by `dirigent learn`
policy = {policy}
max_steps = 11
deadline_s = 60
"""


def _keys(environment: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, provider in presets().provider.items():
        variable = next((v for v in provider.api_key_env if environment.get(v, "").strip()), None)
        if variable is not None:
            found[name] = variable
    return found


async def _probe(client: HttpClient, name: str, port: int) -> Server | None:
    """Returns the server on this port if it answers with a list of models."""
    import aiohttp

    base_url = f"http://127.0.0.1:{port}/v1"
    try:
        async with asyncio.timeout(PROBE_S):
            async with client.session().get(f"{base_url}/models", allow_redirects=False) as response:
                if response.status != 200:
                    return None
                body = await response.content.read(1 << 20)
    except (TimeoutError, aiohttp.ClientError, OSError):
        return None
    models = _model_ids(body)
    return Server(name, base_url, models) if models else None


def _model_ids(body: bytes) -> tuple[str, ...]:
    """Returns the ids of models that can chat, judged by name. Models of another Dirigent server are skipped."""
    try:
        listed: Any = msgspec.json.decode(body)
        ids = [str(item["id"]) for item in listed["data"] if item.get("owned_by") != "dirigent"]
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return ()
    chatting = [i for i in ids if i.isprintable() and not NOT_CHAT.search(i)]
    return tuple(chatting[:MODELS_PER_SERVER])


def _preset_tables(machine: Machine) -> list[str]:
    tables = []
    for name, variable in machine.keys.items():
        provider = presets().provider[name]
        for starter in provider.starters:
            lines = ["[[worker]]", f"preset = {_quoted(starter)}"]
            if variable != provider.api_key_env[0]:
                lines.append(f"api_key_env = {_quoted(variable)}")
            lines.append(f"about = {_quoted(presets().preset[starter].about)}")
            tables.append("\n".join(lines) + "\n")
    return tables


def _server_tables(machine: Machine) -> list[str]:
    tables = []
    taken = {starter for name in machine.keys for starter in presets().provider[name].starters}
    for server in machine.servers:
        for model in server.models:
            name = _worker_name(model, server.name)
            while name in taken:
                name += "+"
            taken.add(name)
            about = f"{model} on this machine ({server.name})"
            lines = [
                "[[worker]]",
                f"name = {_quoted(name)}",
                'kind = "openai"',
                f"model = {_quoted(model)}",
                f"base_url = {_quoted(server.base_url)}",
                "# Planners read this line: add the model's strengths.",
                f"about = {_quoted(about)}",
                "price = { input = 0, output = 0 }",
            ]
            tables.append("\n".join(lines) + "\n")
    return tables


def _worker_name(model: str, server: str) -> str:
    """Returns a valid worker name for a model id, which may be a file's path."""
    stem = PurePosixPath(model).name.removesuffix(".gguf") if model.endswith(".gguf") else model
    name = re.sub(r"[^A-Za-z0-9._/:@+-]+", "-", stem).lstrip("._/:@+-")[:90]
    return name if NAME.match(name) else f"{server}-model"


def _quoted(text: str) -> str:
    """Returns a TOML basic string; JSON's escapes are a part of TOML's."""
    return msgspec.json.encode(text).decode()
