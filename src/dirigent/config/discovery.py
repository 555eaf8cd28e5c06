"""What `dirigent init` finds on this machine, and the configuration made of it.

Looks in three places: keys in the environment, model servers on their usual local ports, and the local
weights. `toml_of` writes what was found as a `dirigent.toml`; a machine without a file runs on the same
text, so what `init` writes is what was already running. Keys are looked for, never read out: the text names
their variables.
"""

from __future__ import annotations

import asyncio
import os
import re
import textwrap
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec

from dirigent.config.presets import presets
from dirigent.config.worker_config import known_kinds
from dirigent.planners import profile_planners
from dirigent.workers.http import HttpClient
from dirigent.workers.pool import NAME

FILE = "dirigent.toml"

PROBE_S = 0.6
"""A server on this machine answers within milliseconds; a port that hangs must not hold up `init`."""
MODELS_PER_SERVER = 4
"""A pool is read by the planner, card by card; a shelf of fifty models is not a pool."""

NOT_CHAT = re.compile(r"embed|rerank|whisper|tts", re.IGNORECASE)

USUAL_PORTS: Mapping[str, int] = {"ollama": 11434, "vllm": 8000, "llama.cpp": 8080, "lm-studio": 1234}

LOCAL_POOL = """\
# The embedded default: SmolLM2-135M-Instruct on the CPU (98 MB, brought by `dirigent pool pull`).
# It is one small model under three cards: enough to see plans run, not to rely on the answers.
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
# A model this small answers best alone, so that is the default where no trained conductor plans for it.
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

# The same model as an untrained planner, held to the grammar of plans: valid plans, seldom sensible ones.
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


class Found(msgspec.Struct, frozen=True):
    """What this machine offers."""

    keys: dict[str, str] = {}
    """Provider -> the environment variable that holds its key."""
    servers: tuple[Server, ...] = ()

    @property
    def anything(self) -> bool:
        return bool(self.keys or self.servers)


async def discover(*, environment: Mapping[str, str] | None = None, ports: Mapping[str, int] | None = None) -> Found:
    """Look for keys and servers. All ports are asked at once."""
    chosen = USUAL_PORTS if ports is None else ports
    async with HttpClient() as client:
        answers = await asyncio.gather(*(_probe(client, name, port) for name, port in chosen.items()))
    servers = tuple(server for server in answers if server is not None)
    return Found(keys=_keys(os.environ if environment is None else environment), servers=servers)


def toml_of(found: Found) -> str:
    """The `dirigent.toml` of what was found: a worker per model, and the two profiles."""
    if not found.anything:
        return f"{HEADER}\n{_local_text()}"
    workers = [*_preset_tables(found), *_server_tables(found)]
    return "\n".join([HEADER, *workers, PROFILES.format(planners=" | ".join(profile_planners()))])


def choices() -> str:
    """The kinds of workers and the benchmarks that can be named, as comments; plugins' are among them."""
    from dirigent.tasks.benchmarks import known_benchmarks

    lines = [
        f"Kinds of workers: {', '.join(known_kinds())}.",
        f"Does planning pay on this pool? `dirigent eval --pool {FILE} --tasks NAME` compares, over one of: "
        f"{', '.join(known_benchmarks())}.",
    ]
    wrapped = (row for line in lines for row in textwrap.wrap(line, 110, break_on_hyphens=False))
    return "".join(f"# {row}\n" for row in wrapped)


def _local_text() -> str:
    """The pool that a plugin brings for a machine with nothing else; without one, the plain model."""
    from dirigent import plugins

    for name in plugins.entries("pools"):
        if text := plugins.load("pools", name).toml_text():
            return str(text)
    return f"{LOCAL_POOL}\n{LOCAL_PROFILES}"


HEADER = """\
# Written by `dirigent init` from what it found. Every key: docs/reference/configuration.md
# Keys of providers stay in the environment; only the variables' names stand here.
"""

PROFILES = """\
# Without planner_worker the first worker plans; its order above is yours to change.
[profile.ultra]
# {planners}
# (conductor: needs a trained worker, named by planner_worker)
planner = "language"
max_steps = 5
max_rounds = 2
deadline_s = 900
# max_cost_usd = 2.0

[profile.mini]
planner = "language"
max_steps = 1                   # one worker, picked by the planner
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
    """The server on this port, if one answers with a list of models."""
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
    """Ids of the models that can chat, as far as names say. Another Dirigent's are left out: pools are of models."""
    try:
        listed: Any = msgspec.json.decode(body)
        ids = [str(item["id"]) for item in listed["data"] if item.get("owned_by") != "dirigent"]
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return ()
    chatting = [i for i in ids if i.isprintable() and not NOT_CHAT.search(i)]
    return tuple(chatting[:MODELS_PER_SERVER])


def _preset_tables(found: Found) -> list[str]:
    tables = []
    for name, variable in found.keys.items():
        provider = presets().provider[name]
        for starter in provider.starters:
            lines = ["[[worker]]", f"preset = {_quoted(starter)}"]
            if variable != provider.api_key_env[0]:
                lines.append(f"api_key_env = {_quoted(variable)}")
            lines.append(f"about = {_quoted(presets().preset[starter].about)}")
            tables.append("\n".join(lines) + "\n")
    return tables


def _server_tables(found: Found) -> list[str]:
    tables = []
    taken = {starter for name in found.keys for starter in presets().provider[name].starters}
    for server in found.servers:
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
                "# Planners read this line: add what the model is good at.",
                f"about = {_quoted(about)}",
                "price = { input = 0, output = 0 }",
            ]
            tables.append("\n".join(lines) + "\n")
    return tables


def _worker_name(model: str, server: str) -> str:
    """A usable name for a model id, which may be a file's path."""
    stem = PurePosixPath(model).name.removesuffix(".gguf") if model.endswith(".gguf") else model
    name = re.sub(r"[^A-Za-z0-9._/:@+-]+", "-", stem).lstrip("._/:@+-")[:90]
    return name if NAME.match(name) else f"{server}-model"


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are a part of TOML's."""
    return msgspec.json.encode(text).decode()
