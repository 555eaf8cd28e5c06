"""Configuration: decode `dirigent.toml` into frozen structs whose defaults run.

The structs mirror the file field for field. `parse_config` is the only door from text to `Config`: it reports every
error in a file, with its line, before anything is opened or paid. `worker_config.py` fills in and checks a
`[[worker]]`; `server_settings.py` has the server's tables. `runtime.py` turns the settings into workers, a pool and a
conductor; `discovery.py` makes the settings of a machine without a file.

The file never contains a key: a worker names the environment variable that holds it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from dirigent.config.server_settings import Guardrails, Override, ServeSettings
from dirigent.config.worker_config import WorkerConfig, as_role_of, filled_in
from dirigent.errors import ConfigError
from dirigent.limits import Limits
from dirigent.plan.plan import Dialect
from dirigent.planners import find_planner, profile_planners
from dirigent.toml import decode, lines, nearest, where

FILE_NAME = "dirigent.toml"
VERSION = r"\d{4}-\d{2}-\d{2}"
"""A policy's version is the day it was made."""

LOOKS_LIKE_A_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk|gsk|xai|hf)[-_](?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,}|AIza[A-Za-z0-9_-]{30,})"
)


At = Callable[..., str]
"""Returns the place of a key's path: `dirigent.toml, line 12`."""


class Profile(Limits, frozen=True, kw_only=True):
    """One `[profile.NAME]`: its planner, its workers and its limits."""

    planner: str = "best"
    """The planner, by name: see [Planners](#planners). One call is one call until something is shown to pay."""
    policy: str = ""
    """Of the planner `learned`: the folder that `dirigent learn` wrote, relative to the configuration's folder."""
    operating_point: str = ""
    """Of the planner `learned`: `same` (as good as the best single worker, for less), `best`, `max-cost X` or
    `price X`. Default: the one that is active in its folder."""
    unlike: str = ""
    """Of the planner `learned`: the planner, such as `program`, for questions unlike all that the policy was fitted on.
    Default: the policy's own plain plan."""
    explore: float = 0.0
    """Of the planner `learned`: the chance with which a question goes to one worker by lot, so that feedback can tell
    what workers are worth that the policy seldom asks."""
    prefer: Literal["cost", "speed"] = "cost"
    """Of the planner `learned`: `cost` asks workers one after another and stops early, `speed` asks all at once."""
    planner_worker: str = ""
    """The worker that plans (`language`, `conductor`) or answers (the others). Default: the first worker."""
    workers: tuple[str, ...] = ()
    """Workers that plans may use, in this order. Default: all."""
    dialect: Dialect | None = None
    """The format of plans. Default: the one that the planning worker's decoding can enforce, else `lists`."""
    few_shots: bool = True
    """Show four example plans to a prompted planner."""
    show_names: bool = True
    """Show the workers' names to planners; false shows numbers and cards only."""
    temperature: float = 0.0
    """Sampling temperature of the planning worker."""
    planner_output_tokens: int = 4096
    """Most tokens of a draft, thinking included."""
    repairs: int = 1
    """How often a planner may correct a draft that is not a valid plan."""
    reassign: bool = True
    """Give a step to the next suitable worker if its own worker fails."""
    fallback: Literal["single", "none"] = "single"
    """The plan that runs if the planner gives no valid plan."""
    version: str = ""
    """A date such as 2026-11-15: the server then also offers the profile as `NAME-2026-11-15`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.repairs < 0:
            raise ValueError(f"repairs must be 0 or more, not {self.repairs}")
        if self.planner_output_tokens < 1:
            raise ValueError(f"planner_output_tokens must be above 0, not {self.planner_output_tokens}")
        if not 0 <= self.explore <= 1:
            raise ValueError(f"explore must be 0 to 1, not {self.explore:g}")
        if not 0 <= self.temperature <= 2:
            raise ValueError(f"temperature must be 0 to 2, not {self.temperature:g}")
        if self.version and not re.fullmatch(VERSION, self.version):
            raise ValueError(f'version must be a date such as "2026-11-15", not "{self.version}"')

    def limits(self) -> Limits:
        return Limits(**{name: getattr(self, name) for name in Limits.__struct_fields__})


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[store]`: where traces are stored."""

    url: str = ""
    """A path, `sqlite:///…` or `postgresql://…`. Default: a SQLite file under DIRIGENT_HOME."""
    url_env: str = ""
    """The environment variable that holds the URL, for URLs with a password."""


class SandboxConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[sandbox]`: where the programs that workers write are run."""

    programs: Literal["confined", "unconfined"] = "confined"
    """`confined`: behind bubblewrap, else behind the kernel's own walls for a process; if neither holds, no program
    runs. `unconfined`: with your own rights: the program of a model may then read, change or send anything that you
    may."""


class CardsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[cards]`: what planners read of each worker besides its `about`."""

    table: str = ""
    """The folder that `dirigent calibrate` or `dirigent learn` wrote, relative to the configuration's folder: its cards
    are put behind each worker's `about`. Default: the folder of a profile's `policy`, if it holds cards."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    worker: tuple[WorkerConfig, ...] = ()
    """The pool, in order."""
    profile: dict[str, Profile] = {}
    """The profiles, by name."""
    default_profile: str = ""
    """The profile without `--profile`. Default: `ultra`, else the only one."""
    store: StoreConfig = StoreConfig()
    """Where traces are stored."""
    sandbox: SandboxConfig = SandboxConfig()
    """Where the programs of workers run."""
    cards: CardsConfig = CardsConfig()
    """The measured figures of the workers."""
    serve: ServeSettings = ServeSettings()
    """How the server behaves."""
    guardrails: Guardrails = Guardrails()
    """Bounds on the text that the server accepts and sends."""
    override: tuple[Override, ...] = ()
    """Rules that override the conductor; the first matching rule counts."""


BUILT_IN_PROFILES: Mapping[str, Profile] = {
    "ultra": Profile(deadline_s=900.0),
    "mini": Profile(planner="cheapest", max_steps=1, deadline_s=60.0),
}
"""The profiles of a file without any: the dearest worker alone, which is likely the strongest, or the cheapest."""


class Loaded(msgspec.Struct, frozen=True):
    """A checked configuration and its origin."""

    config: Config
    path: Path | None = None
    """None if the configuration was made from what this machine offers."""
    worker_lines: tuple[int | None, ...] = ()
    note: str = ""
    """Notes for the user on a configuration that was made from this machine's keys and servers."""

    @property
    def folder(self) -> Path:
        """The folder at which relative paths in the file start."""
        return self.path.parent if self.path is not None else Path()

    def place(self, worker: WorkerConfig) -> str:
        """Returns `dirigent.toml (line 12)`."""
        index = self.config.worker.index(worker)
        line = self.worker_lines[index] if index < len(self.worker_lines) else None
        file = self.path.name if self.path is not None else FILE_NAME
        return file if line is None or self.path is None else f"{file} (line {line})"


def load_config(path: Path) -> Loaded:
    """Reads and checks a file."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark that TOML does not allow
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}; `dirigent init --path {path}` writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file {path} cannot be read: {error}") from None
    return parse_config(text, path=path)


def config_path(option: Path | None = None) -> Path | None:
    """Returns `--config`, else DIRIGENT_CONFIG, else ./dirigent.toml if it exists."""
    if option is not None:
        return option
    if named := os.environ.get("DIRIGENT_CONFIG"):
        return Path(named)
    return Path(FILE_NAME) if Path(FILE_NAME).exists() else None


def parse_config(text: str, *, path: Path | None = None) -> Loaded:
    """Decodes text into a `Config`, filled in with presets and defaults. No other function does."""
    file = path.name if path is not None else "the configuration of this machine"
    _refuse_keys(text, file=file)
    config = decode(text, Config, file=file)
    line_of = lines(text)
    places = [where(file, line_of, ("worker", i)) for i in range(len(config.worker))]
    filled = [
        worker if worker.model_of else filled_in(worker, where=place)
        for worker, place in zip(config.worker, places, strict=True)
    ]
    filled = [
        as_role_of(worker, filled, where=place) if worker.model_of else worker
        for worker, place in zip(filled, places, strict=True)
    ]
    config = msgspec.structs.replace(config, worker=tuple(filled))
    _check_names(config, lambda *path: where(file, line_of, path))
    return Loaded(config, path, tuple(line_of.get(("worker", i)) for i in range(len(filled))))


def _refuse_keys(text: str, *, file: str) -> None:
    """Refuses text with a key. It runs first, so that no other error repeats the key."""
    if secret := LOOKS_LIKE_A_KEY.search(text):
        line = text.count("\n", 0, secret.start()) + 1
        raise ConfigError(
            f"{file}, line {line} contains something that looks like a key: put it in the environment "
            'and name the variable, api_key_env = "…"'
        )


def choose_profile(config: Config, name: str = "") -> tuple[str, Profile]:
    """Returns `--profile`, else `default_profile`, else `ultra`, else the only profile."""
    profiles = config.profile or BUILT_IN_PROFILES
    wanted = name or config.default_profile
    if not wanted:
        wanted = "ultra" if "ultra" in profiles else next(iter(profiles))
        if wanted != "ultra" and len(profiles) > 1:
            raise ConfigError(f"no profile is chosen of {', '.join(profiles)}: give --profile, or set default_profile")
    if wanted not in profiles:
        raise ConfigError(f'no profile is called "{wanted}"{nearest(wanted, profiles)}')
    return wanted, profiles[wanted]


def can_plan(planner: str) -> bool:
    """Returns whether a profile may name this planner."""
    spec = find_planner(planner)
    return spec is not None and spec.make is not None


def _stands_in(planner: str) -> bool:
    """Returns whether this planner can plan in a policy's place: a program that needs no model and no policy."""
    spec = find_planner(planner)
    return spec is not None and spec.make is not None and not spec.planned_by and not spec.by_policy


def _check_names(config: Config, at: At) -> None:
    """Checks that every name in the file refers to something."""
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
        if profile.unlike and not _stands_in(profile.unlike):
            usable = [name for name in profile_planners() if _stands_in(name)]
            hint, line = nearest(profile.unlike, usable), at("profile", title, "unlike")
            raise ConfigError(f'"unlike" in {place} names no fixed planner: "{profile.unlike}"{hint} ({line})')
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
        raise ConfigError(f'"planner" in {place} is unknown: "{rule.planner}"{hint} ({at("planner")})')
    checks: tuple[tuple[str, tuple[str, ...], Iterable[str]], ...] = (
        ("pin", (rule.pin,), names),
        ("deny", rule.deny, names),
        ("profile", (rule.profile,), profiles),
    )
    for key, values, known in checks:
        for value in values:
            if value and value not in known:
                hint = nearest(value, known)
                raise ConfigError(f'"{key}" in {place} is unknown: "{value}"{hint} ({at(key)})')
