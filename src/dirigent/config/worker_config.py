"""One `[[worker]]` of `dirigent.toml`: its keys, their defaults and their checks.

The worker's preset fills missing settings, else its kind and the vendor at its address do. A key that has no meaning
for the kind is an error, and so is a missing key that the kind needs. The module sees one worker at a time: `file.py`
checks that names are unique and exist, and `build.py` builds workers from the settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from dirigent import plugins
from dirigent.config.presets import Provider, preset, vendor
from dirigent.errors import ConfigError
from dirigent.messages import Effort
from dirigent.toml import nearest
from dirigent.workers.http import Timeouts
from dirigent.workers.pool import NAME
from dirigent.workers.role import RoleSettings
from dirigent.workers.worker import Ability, Price, SecondStep, WorkerKind

DEFAULT_WEIGHTS = "smollm2-135m"
WIRES = ("openai", "anthropic", "gemini")
WIRE_ABILITIES: Mapping[str, tuple[Ability, ...]] = {
    "openai": ("tools", "schema", "json_mode", "seed", "stop"),
    "anthropic": ("images", "tools", "schema", "stop", "effort"),
    "gemini": ("images", "tools", "schema", "json_mode", "seed", "stop", "effort"),
}
"""The assumed abilities of an endpoint without a known provider; `abilities = {…}` corrects them."""

KINDS: Mapping[str, str] = {
    "openai": "an endpoint of OpenAI's wire format: OpenAI itself, vLLM, Ollama, llama.cpp, most providers",
    "anthropic": "an endpoint of Anthropic's wire format",
    "gemini": "an endpoint of Google's wire format",
    "local": "a GGUF model on this machine",
    "recorded": "answers from a file, replayed",
    "scripted": "replies from the configuration, for tests",
    "python": "runs the program in its subtask or in a result that it reads; free",
    "select": "repeats the result most likely right and says how sure it is, by a learned policy's selector; without "
    "one it takes a vote; free",
    "vote": "repeats the answer that most of the results it reads give; free",
}
"""Our own kinds of worker, each in one sentence; plugins of `dirigent.workers` bring others."""

LOCAL_KINDS = ("python", "select", "vote")
"""Kinds that are programs of ours: they read the results of earlier steps and call no model."""

KEYS_OF_KINDS: Mapping[str, tuple[str, ...]] = {
    "base_url": WIRES,
    "api_key_env": WIRES,
    "extra": (*WIRES, "local"),
    "weights": ("local",),
    "adapter": ("local",),
    "merged": ("local",),
    "slots": ("local",),
    "threads": ("local",),
    "role": (*WIRES, "local", "recorded", "scripted"),
    "path": ("recorded", "select"),
    "replies": ("scripted",),
}
"""Keys that only some kinds read; for other kinds they are an error. A plugin's kind may read `base_url`,
`api_key_env`, `extra` and `path`."""
KEYS_OF_ROLES = ("name", "model_of", "role", "about", "skills", "subtask_only", "second_step", "cache")
"""Keys beside `model_of`; all others are those of the model that it names."""
KEYS_OF_PLUGINS = ("base_url", "api_key_env", "extra", "path")

REFUSES_SAMPLING = re.compile(r"(?:openai/)?(?:o\d|gpt-[5-9])")
"""OpenAI's reasoning models refuse a temperature."""


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """Corrections to the assumed abilities of a worker: `abilities = { images = false }`."""

    images: bool | None = None
    """Reads images."""
    tools: bool | None = None
    """Calls tools."""
    schema: bool | None = None
    """Writes a reply that fits a JSON schema."""
    json_mode: bool | None = None
    """Writes a reply that is a JSON object."""
    grammar: bool | None = None
    """Decodes under a GBNF grammar (llama.cpp servers)."""
    effort: bool | None = None
    """Accepts a reasoning effort."""
    seed: bool | None = None
    """Samples the same reply for the same seed."""
    stop: bool | None = None
    """Stops at stop words."""


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One `[[worker]]`: a model, its address and its settings."""

    REFUSED_KEYS: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("api_key", "key", "token"),
        'keys do not belong in a file; put the key in the environment and name the variable: api_key_env = "…"',
    )

    WHOLE_TABLES: ClassVar[Mapping[str, tuple[str, ...]]] = {"price": ("input", "output")}
    """Tables that need all of these keys, because a missing rate would count as free."""

    name: str = ""
    """The worker's name in plans, traces and reports. Default: the preset's name."""
    kind: str = ""
    """Its wire format or backend: see [Kinds of workers](#kinds-of-workers)."""
    preset: str = ""
    """A known model that fills in missing settings: `dirigent pool presets` lists them."""
    model: str = ""
    """The model's id at its endpoint; for `recorded`: the model whose answers are replayed."""
    base_url: str = ""
    """The address that the vendor's own SDK takes: openai `…/v1`, anthropic and gemini the bare host."""
    api_key_env: str = ""
    """The environment variable with the key. Default: the vendor's own, at the vendor's address only."""
    about: str = ""
    """One line on the worker's strengths; planners read it."""
    region: str = ""
    """The region that serves it: us, eu, cn…"""
    price: Price | None = None
    """USD per million tokens. Default: genai-prices, for the vendors' own addresses."""
    context_tokens: int | None = None
    """Most tokens it can read. `local`: the size of one slot's memory, 4096 by default."""
    max_output_tokens: int | None = None
    """Most tokens it may write in one reply."""
    timeout: Timeouts = Timeouts()
    """Seconds a call may take, by phase."""
    retries: int = 2
    """Further attempts after a failure that may pass."""
    breaker_rest_s: float = 30.0
    """Seconds without calls after half of its calls failed; then one call tests it."""
    requests_per_minute: int | None = None
    """Calls started per minute; further calls wait."""
    concurrency: int | None = None
    """Calls at once; further calls wait."""
    cache: bool = False
    """Store replies to deterministic requests under DIRIGENT_HOME and replay them to the same key."""
    effort: Effort | None = None
    """Reasoning effort of requests that do not set it."""
    temperature: float | None = None
    """Sampling temperature of requests that do not set it."""
    sampling: bool | None = None
    """false: send no temperature and no settings like it, for models that refuse them. Default: by the model."""
    system: str = ""
    """A system message before every conversation."""
    extra: dict[str, Any] = {}
    """Further fields of the request body, as the endpoint (or llama.cpp) spells them."""
    abilities: Abilities = Abilities()
    """Corrections to its assumed abilities."""
    subtask_only: bool = False
    """Show the worker its subtask and the replies it may read, never the user's question."""
    second_step: SecondStep = ""
    """`review`, `repair` or `judge`: it reads another worker's answer, a failed program, or two answers that differ."""
    role: RoleSettings | None = None
    """A role of the model: an instruction, sampling of its own, programs that are run: see [roles](../roles.md)."""
    model_of: str = ""
    """Another worker, whose model this role shares with its endpoint, limits and price."""
    skills: tuple[str, ...] = ()
    """Labels for reports."""
    weights: str = ""
    """`local`: a known name or the path of a GGUF file. Default: smollm2-135m."""
    adapter: str = ""
    """`local`: a LoRA adapter in GGUF for these weights: the name of a packaged one, or a path."""
    merged: bool = False
    """`local`: merge the adapter into a copy of the weights: faster, but it needs a process and a file of its own."""
    slots: int | None = None
    """`local`: requests that the model serves at a time, 4 by default. Each slot takes memory for its context."""
    threads: int | None = None
    """`local`: threads that compute. Default: one for each core."""
    path: str = ""
    """`recorded`: a JSONL file (.gz too) of recorded answers. `select`: the folder that `dirigent learn` wrote."""
    replies: tuple[str, ...] = ()
    """`scripted`: its replies in turn; the last one repeats."""

    def __post_init__(self) -> None:
        for name in ("context_tokens", "max_output_tokens", "concurrency", "requests_per_minute", "slots", "threads"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value:g}")
        if not 0 <= self.retries <= 2:
            raise ValueError(f"retries must be 0 to 2, not {self.retries}")
        if not 0 < self.breaker_rest_s <= 3600:
            raise ValueError(f"breaker_rest_s must be above 0 and at most an hour, not {self.breaker_rest_s:g}")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ValueError(f"temperature must be 0 to 2, not {self.temperature:g}")
        if self.merged and not self.adapter:
            raise ValueError("merged = true needs an adapter to add to the weights")


def filled_in(worker: WorkerConfig, *, where: str) -> WorkerConfig:
    """Returns the worker, checked, with the settings of its preset, its vendor and its kind filled in."""
    label = f'[[worker]] "{worker.name or worker.preset}"' if worker.name or worker.preset else "[[worker]]"
    try:
        worker = _from_preset(worker)
        _check_name(worker, label=label)
        if not worker.kind:
            raise ConfigError(f'{label} has no "kind": {", ".join(known_kinds())}')
        if worker.kind not in KINDS and plugin_kind(worker.kind) is None:
            raise ConfigError(f'"kind" in {label} is unknown: "{worker.kind}"{nearest(worker.kind, known_kinds())}')
        _check_keys(worker, label=label)
        if worker.kind == "local" and not worker.weights:
            return msgspec.structs.replace(worker, weights=DEFAULT_WEIGHTS)
        return _at_vendor(worker, label=label) if worker.kind in WIRES else worker
    except ConfigError as error:
        raise ConfigError(f"{error} ({where})") from None


def as_role_of(worker: WorkerConfig, others: Sequence[WorkerConfig], *, where: str) -> WorkerConfig:
    """Returns a role with the settings of the model that it names, which is among the others."""
    label = f'[[worker]] "{worker.name}"' if worker.name else "[[worker]]"
    try:
        _check_name(worker, label=label)
        model = next((other for other in others if other.name == worker.model_of and other is not worker), None)
        if model is None:
            models = [other.name for other in others if not other.model_of]
            raise ConfigError(
                f'"model_of" in {label} names no worker: "{worker.model_of}"{nearest(worker.model_of, models)}'
            )
        if model.model_of:
            raise ConfigError(
                f'"model_of" in {label} names "{model.name}", which is a role itself: say "{model.model_of}", its model'
            )
        if "role" not in _keys_of(model.kind):
            raise ConfigError(f'"model_of" in {label} names "{model.name}" of kind "{model.kind}", which has no model')
        if worker.role is None:
            raise ConfigError(f'{label} has no "role": say  role = {{ instruction = "…" }}')
        usual = WorkerConfig()
        for key in worker.__struct_fields__:
            if key not in KEYS_OF_ROLES and getattr(worker, key) != getattr(usual, key):
                raise ConfigError(f'"{key}" in {label} is set by its model: put it under "{model.name}"')
    except ConfigError as error:
        raise ConfigError(f"{error} ({where})") from None
    own = {key: getattr(worker, key) for key in KEYS_OF_ROLES}
    return msgspec.structs.replace(model, **own)


def runs_programs(worker: WorkerConfig) -> bool:
    """Returns whether the worker runs programs, so that it needs a sandbox."""
    return worker.kind == "python" or (worker.role is not None and worker.role.runs is not None)


def _check_name(worker: WorkerConfig, *, label: str) -> None:
    if not worker.name:
        raise ConfigError(f'{label} has no "name"')
    if not NAME.match(worker.name):
        raise ConfigError(
            f'"{worker.name}" is not a usable worker name: letters, digits and . _ / : @ + - only, '
            "at most 100, with at least one letter"
        )


def _keys_of(kind: str) -> list[str]:
    return [key for key, kinds in KEYS_OF_KINDS.items() if kind in kinds]


def known_kinds() -> tuple[str, ...]:
    """Returns every kind of worker, ours first, without importing plugins."""
    return tuple(dict.fromkeys((*KINDS, *plugins.entries("workers"))))


def plugin_kind(name: str) -> WorkerKind | None:
    """Returns the kind that a plugin brings under this name, or None."""
    if name not in plugins.entries("workers"):
        return None
    found = plugins.load("workers", name)
    if not isinstance(found, WorkerKind):
        raise ConfigError(f"the plugin {name!r} of dirigent.workers must be a WorkerKind, not {found!r}")
    return found


def _from_preset(worker: WorkerConfig) -> WorkerConfig:
    if not worker.preset:
        return worker
    known, provider = preset(worker.preset)
    given: dict[str, Any] = {
        "name": worker.preset,
        "kind": provider.kind,
        "model": known.model,
        "base_url": provider.base_url,
        "about": known.about,
        "region": provider.region,
        "context_tokens": known.context_tokens,
        "max_output_tokens": known.max_output_tokens,
        "extra": known.extra,
        "sampling": known.sampling,
    }
    blank = {key: value for key, value in given.items() if getattr(worker, key) in ("", None, {})}
    return msgspec.structs.replace(worker, **blank)


def _check_keys(worker: WorkerConfig, *, label: str) -> None:
    """Refuses keys of other kinds, and a missing key that this kind needs."""
    defaults = WorkerConfig()
    for key, kinds in KEYS_OF_KINDS.items():
        fits = worker.kind in kinds or (worker.kind not in KINDS and key in KEYS_OF_PLUGINS)
        if getattr(worker, key) != getattr(defaults, key) and not fits:
            raise ConfigError(f'"{key}" in {label} is for kind {" | ".join(kinds)}, not "{worker.kind}"')
    brought = plugin_kind(worker.kind) if worker.kind not in KINDS else None
    own: dict[str, tuple[str, ...]] = {"recorded": ("model", "path"), "scripted": ("replies",)}
    own |= dict.fromkeys(("local", *LOCAL_KINDS), ())
    needed = brought.needs if brought is not None else own.get(worker.kind, ("model",))
    for key in needed:
        if not getattr(worker, key):
            raise ConfigError(f'{label} has no "{key}", which kind "{worker.kind}" needs')
    if worker.api_key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", worker.api_key_env):
        raise ConfigError(f'"api_key_env" in {label} must be the name of an environment variable')


def _at_vendor(worker: WorkerConfig, *, label: str) -> WorkerConfig:
    """Fills in the address and the key's variable. A vendor's key never goes to another address."""
    served_by = vendor(worker.kind, worker.base_url)
    base_url = (worker.base_url or (served_by.base_url if served_by else "")).rstrip("/")
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a bracket is not closed, or the port is not a number
        usable = False
    if not usable:
        raise ConfigError(f'"base_url" in {label} must be an http(s) address, not "{base_url}"')
    if parts.username or parts.password or parts.query:
        raise ConfigError(f'"base_url" in {label} must hold no user, password or query; use api_key_env')
    variable = worker.api_key_env or (_usual_variable(served_by) if served_by else "")
    region = worker.region or (served_by.region if served_by else "")
    sampling = not REFUSES_SAMPLING.match(worker.model) if worker.sampling is None else worker.sampling
    return msgspec.structs.replace(worker, base_url=base_url, api_key_env=variable, region=region, sampling=sampling)


def _usual_variable(provider: Provider) -> str:
    """Returns the first of the provider's variables that is set, else the usual one."""
    return next((name for name in provider.api_key_env if os.environ.get(name)), provider.api_key_env[0])
