"""Configuration: `dirigent.toml` -> frozen structs whose defaults run.

The structs mirror the file field for field; `parse_config` is the only door from text to `Config`, and
everything that can be wrong with a file is said there, with its line, before anything is opened or paid.
What the settings become (workers, pool, conductor) is `runtime.py`'s part; where they come from without a
file is `discover.py`'s.

A key never stands in the file: a worker names the environment variable that holds it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec

from dirigent.errors import ConfigError
from dirigent.limits import Limits
from dirigent.messages import Effort
from dirigent.plan import Dialect
from dirigent.planners import PLANNERS
from dirigent.pool import NAME
from dirigent.presets import Provider, preset, vendor
from dirigent.settings import Guardrails, Override, ServeSettings
from dirigent.toml import decode, lines, nearest
from dirigent.worker import Ability, Price
from dirigent.workers.http import Timeouts

FILE_NAME = "dirigent.toml"
DEFAULT_WEIGHTS = "smollm2-135m"
KNOWN_PLANNERS = tuple(dict.fromkeys((*PLANNERS, "conductor")))
"""`conductor` may stand in a file before its weights ship; asking for it then says so."""
WIRES = ("openai", "anthropic", "gemini")
WIRE_ABILITIES: Mapping[str, tuple[Ability, ...]] = {
    "openai": ("tools", "schema", "json_mode", "seed", "stop"),
    "anthropic": ("images", "tools", "schema", "stop", "effort"),
    "gemini": ("images", "tools", "schema", "json_mode", "seed", "stop", "effort"),
}
"""What an endpoint is taken to honour where no provider is known; `abilities = {…}` corrects it."""

VERSION = r"\d{4}-\d{2}-\d{2}"
"""How a policy's version is written: the day it was made."""

Kind = Literal["openai", "anthropic", "gemini", "local", "recorded", "scripted"]

KEYS_OF_KINDS: Mapping[str, tuple[str, ...]] = {
    "base_url": WIRES,
    "api_key_env": WIRES,
    "extra": (*WIRES, "local"),
    "weights": ("local",),
    "adapter": ("local",),
    "merged": ("local",),
    "path": ("recorded",),
    "replies": ("scripted",),
}
"""Keys that mean something to some kinds only; elsewhere they are a mistake worth saying."""

LOOKS_LIKE_A_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk|gsk|xai|hf)[-_](?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,}|AIza[A-Za-z0-9_-]{30,})"
)

REFUSES_SAMPLING = re.compile(r"(?:openai/)?(?:o\d|gpt-[5-9])")
"""OpenAI's reasoning models answer a temperature with an error."""


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """Corrections to what a worker is taken to honour: `abilities = { images = false }`."""

    images: bool | None = None
    """Reads images."""
    tools: bool | None = None
    """Calls tools."""
    schema: bool | None = None
    """Holds its reply to a JSON schema."""
    json_mode: bool | None = None
    """Holds its reply to some JSON object."""
    grammar: bool | None = None
    """Decodes under a GBNF grammar (llama.cpp servers)."""
    effort: bool | None = None
    """Takes a reasoning effort."""
    seed: bool | None = None
    """Samples the same again under the same seed."""
    stop: bool | None = None
    """Ends at stop words."""


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One `[[worker]]`: a model, where it is, and what to give it."""

    REFUSED_KEYS: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("api_key", "key", "token"),
        'keys do not belong in a file; put it in the environment and name the variable: api_key_env = "…"',
    )

    name: str = ""
    """What plans, traces and reports call it. Default: the preset's name."""
    kind: Kind | None = None
    """Which wire format or local backend it speaks."""
    preset: str = ""
    """Fill what is not said here from a known model: `dirigent pool presets` lists them."""
    model: str = ""
    """The model's id at its endpoint; for `recorded`: whose answers to replay."""
    base_url: str = ""
    """What the vendor's own SDK takes: openai `…/v1`, anthropic and gemini the bare host."""
    api_key_env: str = ""
    """The environment variable with the key. Default: the vendor's own, at the vendor's address only."""
    about: str = ""
    """What it is good at, in a line; planners read this."""
    region: str = ""
    """Where it is served from: us, eu, cn…"""
    price: Price | None = None
    """USD per million tokens. Default: genai-prices, for the vendors' own addresses."""
    context_tokens: int | None = None
    """Most tokens it can read."""
    max_output_tokens: int | None = None
    """Most tokens it may write in one reply."""
    timeout: Timeouts = Timeouts()
    """Seconds a call may take, by phase."""
    retries: int = 2
    """Further tries after a failure that may pass."""
    breaker_rest_s: float = 30.0
    """Seconds it is left alone when half of its calls fail, before one of them may try it again."""
    requests_per_minute: int | None = None
    """Calls started per minute; more wait."""
    concurrency: int | None = None
    """Calls at once; more wait."""
    cache: bool = False
    """Keep replies to deterministic requests under DIRIGENT_HOME and give them again."""
    effort: Effort | None = None
    """Reasoning effort, where a request sets none."""
    temperature: float | None = None
    """Sampling temperature, where a request sets none."""
    sampling: bool | None = None
    """false: leave temperature and top_p out, for models that refuse them. Default: by the model."""
    system: str = ""
    """A system line put before every conversation."""
    extra: dict[str, Any] = {}
    """Further fields of the request body, as the endpoint (or llama.cpp) spells them."""
    abilities: Abilities = Abilities()
    """Corrections to what it is taken to honour."""
    subtask_only: bool = False
    """Show it its subtask and what it may read, never the user's question."""
    skills: tuple[str, ...] = ()
    """Labels for reports."""
    weights: str = ""
    """`local`: a known name or the path of a GGUF file. Default: smollm2-135m."""
    adapter: str = ""
    """`local`: a LoRA adapter in GGUF on those weights: the name of one that ships, or a path."""
    merged: bool = False
    """`local`: add the adapter into a copy of the weights: quicker, for a process and a file of its own."""
    path: str = ""
    """`recorded`: a JSONL file (.gz too) of recorded answers."""
    replies: tuple[str, ...] = ()
    """`scripted`: what it says, in turn; the last repeats."""

    def __post_init__(self) -> None:
        for name in ("context_tokens", "max_output_tokens", "concurrency", "requests_per_minute"):
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


class Profile(Limits, frozen=True, kw_only=True):
    """One `[profile.NAME]`: who plans, over whom, within which limits."""

    planner: str = "language"
    """language | conductor | single | moa | reflect | vote."""
    planner_worker: str = ""
    """Who plans for `language`, `conductor`; who answers for `single`, `reflect`, `vote`. Default: the first worker."""
    workers: tuple[str, ...] = ()
    """Workers that plans may use, in this order. Default: all."""
    dialect: Dialect | None = None
    """How plans are written. Default: what the planning worker can be held to, else `lists`."""
    few_shots: bool = True
    """Show a prompted planner four example plans."""
    show_names: bool = True
    """Show planners the workers' names; false: numbers and cards only."""
    temperature: float = 0.0
    """Of the planning worker."""
    planner_output_tokens: int = 4096
    """Most tokens a draft may take, thinking included."""
    repairs: int = 1
    """How often a planner may mend a draft that was no plan."""
    reassign: bool = True
    """Give a step to the next suitable worker when its own fails."""
    fallback: Literal["single", "none"] = "single"
    """What is run when the planner gives no valid plan."""
    version: str = ""
    """A date such as 2026-11-15: the server then also offers the profile as `NAME-2026-11-15`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.version and not re.fullmatch(VERSION, self.version):
            raise ValueError(f'version must be a date such as "2026-11-15", not "{self.version}"')

    def limits(self) -> Limits:
        return Limits(**{name: getattr(self, name) for name in Limits.__struct_fields__})


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[store]`: where traces are kept."""

    url: str = ""
    """A path, `sqlite:///…` or `postgresql://…`. Default: a SQLite file under DIRIGENT_HOME."""
    url_env: str = ""
    """The environment variable that holds the URL, where it has a password."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    worker: tuple[WorkerConfig, ...] = ()
    """The pool, in order."""
    profile: dict[str, Profile] = {}
    """Ways to run, by name."""
    default_profile: str = ""
    """Used where no `--profile` is given. Default: `ultra`, else the only one."""
    store: StoreConfig = StoreConfig()
    """Where traces are kept."""
    serve: ServeSettings = ServeSettings()
    """How the server behaves."""
    guardrails: Guardrails = Guardrails()
    """What the server lets in and out."""
    override: tuple[Override, ...] = ()
    """Rules that go before the conductor, the first that fits."""


BUILT_IN_PROFILES: Mapping[str, Profile] = {
    "ultra": Profile(max_rounds=2, deadline_s=900.0),
    "mini": Profile(max_steps=1, deadline_s=60.0),
}
"""Where the file has none: up to five steps and two rounds, or one step by the worker the planner picks."""


class Loaded(msgspec.Struct, frozen=True):
    """A checked configuration and where it came from."""

    config: Config
    path: Path | None = None
    """None: made from what was found on this machine."""
    worker_lines: tuple[int | None, ...] = ()

    @property
    def folder(self) -> Path:
        """Relative paths in the file start here."""
        return self.path.parent if self.path is not None else Path()

    def place(self, worker: WorkerConfig) -> str:
        """`dirigent.toml (line 12)`."""
        index = self.config.worker.index(worker)
        line = self.worker_lines[index] if index < len(self.worker_lines) else None
        file = self.path.name if self.path is not None else FILE_NAME
        return file if line is None or self.path is None else f"{file} (line {line})"


def load_config(path: Path) -> Loaded:
    """Read and check a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}; `dirigent init --path {path}` writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file {path} cannot be read: {error}") from None
    return parse_config(text, path=path)


def config_path(option: Path | None = None) -> Path | None:
    """`--config`, else DIRIGENT_CONFIG, else ./dirigent.toml if it is there."""
    if option is not None:
        return option
    if named := os.environ.get("DIRIGENT_CONFIG"):
        return Path(named)
    return Path(FILE_NAME) if Path(FILE_NAME).exists() else None


def parse_config(text: str, *, path: Path | None = None) -> Loaded:
    """The one door from text to `Config`. Presets and defaults are filled in."""
    file = path.name if path is not None else "what was found on this machine"
    _refuse_keys(text, file=file)
    config = decode(text, Config, file=file)
    line_of = lines(text)
    filled = []
    for i, worker in enumerate(config.worker):
        line = line_of.get(("worker", i))
        filled.append(_filled(worker, where=f"{file}, line {line}" if line else file))
    config = msgspec.structs.replace(config, worker=tuple(filled))
    _check_names(config, file=file)
    return Loaded(config, path, tuple(line_of.get(("worker", i)) for i in range(len(filled))))


def _refuse_keys(text: str, *, file: str) -> None:
    """First of all, so that no other error repeats one."""
    if secret := LOOKS_LIKE_A_KEY.search(text):
        line = text.count("\n", 0, secret.start()) + 1
        raise ConfigError(
            f"something that looks like a key stands in {file}, line {line}: put it in the environment "
            'and name the variable, api_key_env = "…"'
        )


def choose_profile(config: Config, name: str = "") -> tuple[str, Profile]:
    """`--profile`, else `default_profile`, else `ultra`, else the only one."""
    profiles = config.profile or BUILT_IN_PROFILES
    wanted = name or config.default_profile
    if not wanted:
        wanted = "ultra" if "ultra" in profiles else next(iter(profiles))
        if wanted != "ultra" and len(profiles) > 1:
            raise ConfigError(f"which profile? There are {', '.join(profiles)}: say --profile, or set default_profile")
    if wanted not in profiles:
        raise ConfigError(f'no profile is called "{wanted}"{nearest(wanted, profiles)}')
    return wanted, profiles[wanted]


def _filled(worker: WorkerConfig, *, where: str) -> WorkerConfig:
    """The worker with everything its preset, its vendor and its kind say, and checked."""
    label = f'[[worker]] "{worker.name or worker.preset}"' if worker.name or worker.preset else "[[worker]]"
    try:
        worker = _from_preset(worker)
        if not worker.name:
            raise ConfigError(f'{label} has no "name"')
        if not NAME.match(worker.name):
            raise ConfigError(
                f'"{worker.name}" is not a usable worker name: letters, digits and . _ / : @ + - only, '
                "at most 100, with at least one letter"
            )
        if worker.kind is None:
            raise ConfigError(f'{label} has no "kind": openai, anthropic, gemini, local, recorded or scripted')
        _check_keys(worker, label=label)
        if worker.kind == "local" and not worker.weights:
            return msgspec.structs.replace(worker, weights=DEFAULT_WEIGHTS)
        return _at_vendor(worker, label=label) if worker.kind in WIRES else worker
    except ConfigError as error:
        raise ConfigError(f"{error} ({where})") from None


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
    """Keys that belong to another kind, and keys that this kind cannot do without."""
    defaults = WorkerConfig()
    for key, kinds in KEYS_OF_KINDS.items():
        if getattr(worker, key) != getattr(defaults, key) and worker.kind not in kinds:
            raise ConfigError(f'"{key}" in {label} is for kind {" | ".join(kinds)}, not "{worker.kind}"')
    needed = {"recorded": ("model", "path"), "scripted": ("replies",), "local": ()}.get(str(worker.kind), ("model",))
    for key in needed:
        if not getattr(worker, key):
            raise ConfigError(f'{label} has no "{key}", which kind "{worker.kind}" needs')
    if worker.api_key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", worker.api_key_env):
        raise ConfigError(f'"api_key_env" in {label} must be the name of an environment variable')


def _at_vendor(worker: WorkerConfig, *, label: str) -> WorkerConfig:
    """Fill the address and the key's variable. A vendor's key is never offered to another address."""
    served_by = vendor(str(worker.kind), worker.base_url)
    base_url = (worker.base_url or (served_by.base_url if served_by else "")).rstrip("/")
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f'"base_url" in {label} must be an http(s) address, not "{base_url}"')
    if parts.username or parts.password or parts.query:
        raise ConfigError(f'"base_url" in {label} must hold no user, password or query; use api_key_env')
    variable = worker.api_key_env or (_usual_variable(served_by) if served_by else "")
    region = worker.region or (served_by.region if served_by else "")
    sampling = not REFUSES_SAMPLING.match(worker.model) if worker.sampling is None else worker.sampling
    return msgspec.structs.replace(worker, base_url=base_url, api_key_env=variable, region=region, sampling=sampling)


def _usual_variable(provider: Provider) -> str:
    """The first of the provider's variables that is set, else the usual one."""
    return next((name for name in provider.api_key_env if os.environ.get(name)), provider.api_key_env[0])


def _check_names(config: Config, *, file: str) -> None:
    """Every name that points somewhere points at something."""
    names = [worker.name for worker in config.worker]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f'two workers are called "{name}"; names are unique ({file})')
    for title, profile in config.profile.items():
        place = f"[profile.{title}]"
        if profile.planner not in KNOWN_PLANNERS:
            hint = nearest(profile.planner, KNOWN_PLANNERS)
            raise ConfigError(f'unknown planner "{profile.planner}" in {place}{hint} ({file})')
        for key, values in (("planner_worker", (profile.planner_worker,)), ("workers", profile.workers)):
            for value in values:
                if value and value not in names:
                    raise ConfigError(f'"{key}" in {place} names no worker: "{value}"{nearest(value, names)} ({file})')
    for rule in config.override:
        _check_rule(rule, config, names, file=file)
    if config.default_profile:
        try:
            choose_profile(config)
        except ConfigError as error:
            raise ConfigError(f'"default_profile": {error} ({file})') from None


def _check_rule(rule: Override, config: Config, names: list[str], *, file: str) -> None:
    place = f'[[override]] "{rule.name}"'
    profiles = config.profile or BUILT_IN_PROFILES
    checks: tuple[tuple[str, tuple[str, ...], Iterable[str]], ...] = (
        ("pin", (rule.pin,), names),
        ("deny", rule.deny, names),
        ("planner", (rule.planner,), KNOWN_PLANNERS),
        ("profile", (rule.profile,), profiles),
    )
    for key, values, known in checks:
        for value in values:
            if value and value not in known:
                raise ConfigError(f'"{key}" in {place} is not known here: "{value}"{nearest(value, known)} ({file})')
