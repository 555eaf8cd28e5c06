"""Configuration: `dirigent.toml` -> frozen structs whose defaults run.

The structs mirror the file field for field; `parse_config` is the only door from text to `Config`, and
everything that can be wrong with a file is said there, with its line, before anything is opened or paid.
A `[[worker]]` is filled in and checked by `worker_config.py`, the server's tables are `settings.py`'s. What
the settings become (workers, pool, conductor) is `runtime.py`'s part; where they come from without a file is
`discover.py`'s.

A key never stands in the file: a worker names the environment variable that holds it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from dirigent.config.server_settings import Guardrails, Override, ServeSettings
from dirigent.config.worker_config import WorkerConfig, filled_in
from dirigent.errors import ConfigError
from dirigent.limits import Limits
from dirigent.plan.plan import Dialect
from dirigent.planners import find_planner, profile_planners
from dirigent.toml import decode, lines, nearest, where

FILE_NAME = "dirigent.toml"
VERSION = r"\d{4}-\d{2}-\d{2}"
"""How a policy's version is written: the day it was made."""

LOOKS_LIKE_A_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk|gsk|xai|hf)[-_](?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,}|AIza[A-Za-z0-9_-]{30,})"
)


At = Callable[..., str]
"""From a key's path to where it stands: `dirigent.toml, line 12`."""


class Profile(Limits, frozen=True, kw_only=True):
    """One `[profile.NAME]`: who plans, over whom, within which limits."""

    planner: str = "language"
    """The planner, by name: see [Planners](#planners)."""
    planner_worker: str = ""
    """The worker that plans (`language`, `conductor`) or answers (the others). Default: the first worker."""
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
        if self.repairs < 0:
            raise ValueError(f"repairs must be 0 or more, not {self.repairs}")
        if self.planner_output_tokens < 1:
            raise ValueError(f"planner_output_tokens must be above 0, not {self.planner_output_tokens}")
        if not 0 <= self.temperature <= 2:
            raise ValueError(f"temperature must be 0 to 2, not {self.temperature:g}")
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
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark that TOML does not know
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
        filled.append(filled_in(worker, where=where(file, line_of, ("worker", i))))
    config = msgspec.structs.replace(config, worker=tuple(filled))
    _check_names(config, lambda *path: where(file, line_of, path))
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


def can_plan(planner: str) -> bool:
    """Whether a profile may name this planner."""
    spec = find_planner(planner)
    return spec is not None and spec.make is not None


def _check_names(config: Config, at: At) -> None:
    """Every name that points somewhere points at something."""
    names = [worker.name for worker in config.worker]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ConfigError(f'two workers are called "{name}"; names are unique ({at("worker", i)})')
    for title, profile in config.profile.items():
        place = f"[profile.{title}]"
        if not can_plan(profile.planner):
            hint = nearest(profile.planner, profile_planners())
            line = at("profile", title, "planner")
            raise ConfigError(f'unknown planner "{profile.planner}" in {place}{hint} ({line})')
        for key, values in (("planner_worker", (profile.planner_worker,)), ("workers", profile.workers)):
            for value in values:
                if value and value not in names:
                    hint, line = nearest(value, names), at("profile", title, key)
                    raise ConfigError(f'"{key}" in {place} names no worker: "{value}"{hint} ({line})')
    for i, rule in enumerate(config.override):
        _check_rule(rule, config, names, lambda key, i=i: at("override", i, key))
    if config.default_profile:
        try:
            choose_profile(config)
        except ConfigError as error:
            raise ConfigError(f'"default_profile": {error} ({at("default_profile")})') from None


def _check_rule(rule: Override, config: Config, names: list[str], at: At) -> None:
    place = f'[[override]] "{rule.name}"'
    profiles = config.profile or BUILT_IN_PROFILES
    if rule.planner and not can_plan(rule.planner):
        hint = nearest(rule.planner, profile_planners())
        raise ConfigError(f'"planner" in {place} is not known here: "{rule.planner}"{hint} ({at("planner")})')
    checks: tuple[tuple[str, tuple[str, ...], Iterable[str]], ...] = (
        ("pin", (rule.pin,), names),
        ("deny", rule.deny, names),
        ("profile", (rule.profile,), profiles),
    )
    for key, values, known in checks:
        for value in values:
            if value and value not in known:
                hint = nearest(value, known)
                raise ConfigError(f'"{key}" in {place} is not known here: "{value}"{hint} ({at(key)})')
