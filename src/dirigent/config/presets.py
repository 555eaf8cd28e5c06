"""Presets: models and providers that a worker can be filled from by name.

The data is `presets.toml`; this module only reads it. A preset says who serves the model, how to reach it
and what to give it; it holds no price and no key. Prices come from genai-prices when a pool is built.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any, Literal

import msgspec

from dirigent.errors import ConfigError
from dirigent.toml import decode, nearest
from dirigent.workers.worker import Ability

Wire = Literal["openai", "anthropic", "gemini"]


class Provider(msgspec.Struct, frozen=True):
    """Who serves models, and how they are reached."""

    kind: Wire
    base_url: str
    api_key_env: tuple[str, ...]
    """Environment variables that may hold the key; the first is the usual one."""
    prices: str
    """The provider's id in genai-prices."""
    region: str = ""
    abilities: tuple[Ability, ...] = ()
    starters: tuple[str, ...] = ()
    """Presets that `dirigent init` writes when it finds a key."""


class Preset(msgspec.Struct, frozen=True):
    """One model at one provider."""

    provider: str
    model: str
    about: str
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    abilities: tuple[Ability, ...] = ()
    """Beyond what the provider's models have in common."""
    sampling: bool | None = None
    """false: the model refuses, or ignores, a temperature and settings like it."""
    extra: dict[str, Any] = {}


class Presets(msgspec.Struct, frozen=True):
    provider: dict[str, Provider]
    preset: dict[str, Preset]


@functools.cache
def presets() -> Presets:
    """All of them, read once."""
    text = resources.files("dirigent.config").joinpath("presets.toml").read_text(encoding="utf-8")
    return decode(text, Presets, file="presets.toml")


def preset(name: str) -> tuple[Preset, Provider]:
    """A preset and its provider, or an error that names the nearest preset."""
    known = presets()
    if name not in known.preset:
        raise ConfigError(f'no preset is called "{name}"{nearest(name, known.preset)}')
    found = known.preset[name]
    return found, known.provider[found.provider]


def vendor(kind: str, base_url: str = "") -> Provider | None:
    """Who serves this address; without one, whose wire format it is. None: a server of one's own."""
    known = presets().provider
    if not base_url:
        return known.get({"gemini": "google"}.get(kind, kind))
    return next((provider for provider in known.values() if provider.base_url == base_url.rstrip("/")), None)
